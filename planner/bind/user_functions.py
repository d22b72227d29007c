"""Users' functions in expressions: calls are bound to the catalog's functions before planning, and compiled here.

What the functions do is not known here; they aren't loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.planner.duckdb_sql.duckdb_tree import Tree, call, null
from penstock.planner.duckdb_sql.duckdb_tree import cast as duckdb_cast
from penstock.planner.duckdb_sql.quoting import quote_stored
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.duckdb_calls import of_form
from penstock.planner.functions.spec import NUMBERS, TEXTS, Argument, FunctionSpec, always, check_call
from penstock.planner.functions.table import FUNCTIONS, lookup
from penstock.planner.logical.group_values import AggregateCall, RowKey
from penstock.planner.scalar.scalar_cast import cast
from penstock.planner.task_plans.user_calls import UserCall
from penstock.sql.schema import CatalogView, Session, UserFunction
from penstock.sql.tree.statements import Statement
from penstock.sql.tree.walking import found_in
from penstock.sql.types import DOUBLE, DataType, Kind, Precision

_META = "user_function"


class BoundFunction:
    """A user's function in one statement. Its calls row by row are added to `calls`, which all of it shares."""

    def __init__(self, function: UserFunction, session: Session, calls: list[UserCall]) -> None:
        self.function = function
        self.spec = _spec(function)
        self._session = session
        self._calls = calls

    def __deepcopy__(self, memo: object) -> BoundFunction:
        # Copies of an expression are still calls in the same statement.
        return self

    def scalar(self, arguments: Sequence[SqlExpr], precision: Precision) -> SqlExpr:
        """Returns a call of a scalar function. Raises InvalidStatementError for arguments that don't fit."""
        values, types, result = self._checked(arguments, precision)
        used = UserCall("scalar", self.function, types, result)
        if used not in self._calls:
            self._calls.append(used)
        return SqlExpr(called(used, values), result)

    def aggregate(
        self, name: str, arguments: Sequence[SqlExpr], row: RowKey, node: exp.Expression | None, precision: Precision,
    ) -> AggregateCall:
        """Returns a call of an aggregate as the column `name` of groups; raises as `scalar`."""
        values, types, result = self._checked(arguments, precision)
        converted = tuple(map(SqlExpr, values, types))
        return AggregateCall(name, self.function.name, converted, row, result, node, self.function)

    def _checked(
        self, arguments: Sequence[SqlExpr], precision: Precision
    ) -> tuple[list[Tree], tuple[DataType, ...], DataType]:
        """Returns the arguments, converted to what is declared, their types and the result's."""
        if any(isinstance(argument.node, exp.Star) for argument in arguments):
            raise InvalidStatementError(f"{self.function.name}() does not take *")
        result = check_call(self.spec, [argument.type for argument in arguments],
                            [argument.constant for argument in arguments], precision=precision)
        declared = self.function.arguments
        types = []
        for n, argument in enumerate(arguments):
            kind = declared[n] if declared is not None else argument.type
            types.append(DOUBLE if kind.kind is Kind.NULL else kind.with_precision(precision))
        values = [self._converted(argument, kind, precision)
                  for argument, kind in zip(arguments, types, strict=True)]
        return values, tuple(types), result

    def _converted(self, argument: SqlExpr, target: DataType, precision: Precision) -> Tree:
        if argument.type.kind is Kind.NULL:
            return null(target.duckdb())
        if argument.type.kind is not target.kind or target.kind is Kind.DECIMAL:
            return cast(argument, target, precision, self._session.time_zone).node
        return duckdb_cast(argument.node, target.duckdb())


def called(user: UserCall, arguments: Sequence[Tree]) -> Tree:
    """Returns what DuckDB computes for a call."""
    made = call(quote_stored(user.name), *arguments)
    result = user.result
    if user.step == "partial" or not result.is_string:
        return made
    # What is longer than declared is cut, as CAST does it, for which no time zone matters.
    return cast(SqlExpr(made, DataType(result.kind)), result, result.precision, "UTC").node


def bind_user_functions(
    statement: Statement, catalog: CatalogView, session: Session, calls: list[UserCall] | None = None
) -> list[UserCall]:
    """Binds the calls of users' functions in a statement. Returns the list that binding fills with those row by row:
    `calls`, if that is given.

    Functions of the dialect come first: no user's function can take their place. It can take that of one of DuckDB's.
    """
    calls = [] if calls is None else calls
    for node in found_in(statement, exp.Anonymous):
        name = str(node.this).lower()
        function = None if name in FUNCTIONS else catalog.function(name)
        if function is not None:
            node.meta[_META] = BoundFunction(function, session, calls)
    return calls


def bound_function(node: object) -> BoundFunction | None:
    """Returns the user's function that a node calls, or None."""
    found = node.meta.get(_META) if isinstance(node, exp.Anonymous) else None
    return found if isinstance(found, BoundFunction) else None


def function_of(node: exp.Anonymous) -> FunctionSpec | None:
    """Returns the function that a node calls, a user's, the dialect's or DuckDB's, or None if there is none."""
    bound: BoundFunction | None = node.meta.get(_META)
    if bound is not None:
        return bound.spec
    spec = lookup(node.this)
    return None if spec is None else of_form(spec, len(node.expressions), ordered=node.args.get("order") is not None)


def _spec(function: UserFunction) -> FunctionSpec:
    if function.arguments is not None:
        arguments = tuple(Argument(kind.sql().lower(), _accepted(kind.kind)) for kind in function.arguments)
    else:
        optional = function.maximum - function.minimum
        arguments = (Argument("value"),) * function.minimum
        arguments += (Argument("value", optional=True, repeats=optional),) if optional else ()
    return FunctionSpec(function.name, "aggregate" if function.aggregate else "scalar", arguments,
                        always(function.result), function.comment or "A user's function.",
                        along_rows=function.aggregate)


def _accepted(declared: Kind) -> frozenset[Kind]:
    """The kinds of values that are converted to a declared one without being asked."""
    if declared in NUMBERS:
        return NUMBERS
    if declared in TEXTS:
        return TEXTS
    return frozenset((declared,))
