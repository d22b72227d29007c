"""Users' functions in expressions: calls are bound to the catalog's functions before planning, and compiled here.

What the functions do is not known here; they aren't loaded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sqlglot import exp

from penstock.common.errors import InvalidStatementError, Position
from penstock.planner.duckdb_tree import Tree, call, null
from penstock.planner.duckdb_tree import cast as duckdb_cast
from penstock.planner.functions.spec import NUMBERS, TEXTS, Argument, FunctionSpec, always, check_call
from penstock.planner.functions.table import lookup
from penstock.planner.grouped_call import RowKey, in_order
from penstock.planner.partials import Names, Part, Partial, field_column
from penstock.planner.plan import SqlExpr
from penstock.planner.scalar_cast import cast
from penstock.planner.scalar_sql import quote_name
from penstock.planner.stream import Accumulator, Field
from penstock.planner.user_calls import Step, UserCall
from penstock.sql.schema import CatalogView, Session, UserFunction
from penstock.sql.statements import Statement
from penstock.sql.types import DOUBLE, DataType, Kind, Precision

_META = "user_function"
_STATE = DataType(Kind.VARBINARY)


class BoundFunction:
    """A user's function in one statement. What is compiled is added to `calls`, which the whole statement shares."""

    def __init__(self, function: UserFunction, session: Session, calls: list[UserCall]) -> None:
        self.function = function
        self.spec = _spec(function)
        self._session = session
        self._calls = calls

    def __deepcopy__(self, memo: object) -> BoundFunction:
        # Copies of an expression are still calls in the same statement.
        return self

    def scalar(self, arguments: Sequence[SqlExpr], precision: Precision, position: Position | None = None) -> SqlExpr:
        """Returns a call of a scalar function. Raises InvalidStatementError for arguments that don't fit."""
        values, types, result = self._checked(arguments, precision, position)
        return SqlExpr(self._call("scalar", types, result, values), result)

    def aggregate(
        self, arguments: Sequence[SqlExpr], row: RowKey, precision: Precision, position: Position | None
    ) -> SqlExpr:
        """Returns an aggregate over grouped rows, which the function sees along the time line."""
        values, types, result = self._checked(arguments, precision, position)
        return SqlExpr(self._call("aggregate", types, result, [_rows(values, row)]), result)

    def partial(
        self, arguments: Sequence[SqlExpr], row: RowKey, precision: Precision, position: Position | None, fresh: Names
    ) -> Partial:
        """Returns the aggregate split over source and agg tasks: states are made, merged and finished."""
        values, types, result = self._checked(arguments, precision, position)
        state = Field(fresh(), _STATE)
        made = self._call("partial", types, result, [_rows(values, row)])
        finished = self._call("finish", types, result, [field_column(state.name)])
        return Partial((Part(Accumulator("udaf", (state,), function=self.function), (made,)),), finished)

    def result(self, precision: Precision) -> DataType:
        """Returns the type of the function's result in a database of this precision."""
        return _with_precision(self.function.result, precision)

    def _checked(
        self, arguments: Sequence[SqlExpr], precision: Precision, position: Position | None
    ) -> tuple[list[Tree], tuple[DataType, ...], DataType]:
        """Returns the arguments, converted to what is declared, their types and the result's."""
        if any(isinstance(argument.node, exp.Star) for argument in arguments):
            raise InvalidStatementError(f"{self.function.name}() does not take *", position=position)
        result = check_call(self.spec, [argument.type for argument in arguments],
                            [argument.constant for argument in arguments], precision=precision, position=position)
        declared = self.function.arguments
        types = []
        for n, argument in enumerate(arguments):
            kind = declared[n] if declared is not None else argument.type
            types.append(_with_precision(DOUBLE if kind.kind is Kind.NULL else kind, precision))
        values = [self._converted(argument, kind, precision, position)
                  for argument, kind in zip(arguments, types, strict=True)]
        return values, tuple(types), result

    def _converted(
        self, argument: SqlExpr, target: DataType, precision: Precision, position: Position | None
    ) -> Tree:
        if argument.type.kind is Kind.NULL:
            return null(target.duckdb())
        if argument.type.kind is not target.kind or target.kind is Kind.DECIMAL:
            return cast(argument, target, precision, self._session.time_zone, position).node
        return duckdb_cast(argument.node, target.duckdb())

    def _call(self, step: Step, types: tuple[DataType, ...], result: DataType, arguments: Sequence[Tree]) -> Tree:
        used = UserCall(step, self.function, types, result)
        if used not in self._calls:
            self._calls.append(used)
        made = call(quote_name(used.name), *arguments)
        if step == "partial" or not result.is_string:
            return made
        # What is longer than declared is cut, as CAST does it.
        return cast(SqlExpr(made, DataType(result.kind)), result, result.precision, self._session.time_zone).node


def bind_user_functions(statement: Statement, catalog: CatalogView, session: Session) -> list[UserCall]:
    """Binds the calls of users' functions in a statement. Returns the list that planning it fills with its calls.

    Functions of the dialect come first: no user's function can take their place.
    """
    calls: list[UserCall] = []
    for node in statement.find_all(exp.Anonymous):
        name = str(node.this).lower()
        function = None if lookup(name) is not None else catalog.function(name)
        if function is not None:
            node.meta[_META] = BoundFunction(function, session, calls)
    return calls


def bound_function(node: object) -> BoundFunction | None:
    """Returns the user's function that a node calls, or None."""
    found = node.meta.get(_META) if isinstance(node, exp.Anonymous) else None
    return found if isinstance(found, BoundFunction) else None


def function_of(node: exp.Anonymous) -> FunctionSpec | None:
    """Returns the function that a node calls, a user's or the dialect's, or None if there is none of its name."""
    bound = bound_function(node)
    return bound.spec if bound is not None else lookup(str(node.this))


def _rows(values: Sequence[Tree], row: RowKey) -> Tree:
    """An aggregate: the list of a group's rows, as structs of the arguments, along the time line."""
    members = [exp.PropertyEQ(this=exp.to_identifier(f"a{n}"), expression=value) for n, value in enumerate(values)]
    return in_order(call("struct_pack", *members), row)


def _with_precision(type_: DataType, precision: Precision) -> DataType:
    return dataclasses.replace(type_, precision=precision) if type_.kind is Kind.TIMESTAMP else type_


def _spec(function: UserFunction) -> FunctionSpec:
    if function.arguments is not None:
        arguments = tuple(Argument(kind.sql().lower(), _accepted(kind.kind)) for kind in function.arguments)
    else:
        optional = function.maximum - function.minimum
        arguments = (Argument("value"),) * function.minimum
        arguments += (Argument("value", optional=True, repeats=optional),) if optional else ()
    return FunctionSpec(function.name, "aggregate" if function.aggregate else "scalar", arguments,
                        always(function.result), function.comment or "A user's function.")


def _accepted(declared: Kind) -> frozenset[Kind]:
    """The kinds of values that are converted to a declared one without being asked."""
    if declared in NUMBERS:
        return NUMBERS
    if declared in TEXTS:
        return TEXTS
    return frozenset((declared,))
