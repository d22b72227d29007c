"""Compiles values of DuckDB's own types: what makes them, what takes parts of them, and lambdas over their items."""

from __future__ import annotations

from functools import partial

from sqlglot import exp

from penstock.common.errors import InvalidStatementError, Position
from penstock.planner.bind.scope_protocol import LocatingScope, Scope
from penstock.planner.duckdb_sql.duckdb_tree import Tree, call, closed, fragment, made, null, number
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.duckdb_sql.timezones import from_local_timestamp, local_timestamp
from penstock.planner.functions.spec import ANY, FunctionSpec, check_call
from penstock.planner.functions.table import require
from penstock.planner.scalar.duckdb_values import (
    Operator,
    duckdb_value,
    from_duckdb,
    instant_of,
    no_operator,
    operand_tree,
    type_name_of,
)
from penstock.planner.scalar.scalar_call import ScalarCall
from penstock.planner.scalar.scalar_cast import cast as cast_expression
from penstock.planner.scalar.scalar_cast import null_of, timestamp_constant, to_bool
from penstock.sql.dialect.literals import parse_duration, zone
from penstock.sql.tree.expression_nodes import SIGNS, IntervalLiteral, LambdaVariable
from penstock.sql.types import BOOL, DataType, Kind, Precision, other_type, timestamp

WRONG_EXPRESSION = 0x2603


class ValueCompiler:
    """The part of the compiler of expressions that is about these; `compile` is that of all."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._session = scope.session
        self._precision: Precision = scope.precision
        self._variables: dict[str, SqlExpr] = {}  # of lambdas
        self._named = 0  # of these, also such as have the name of one further in
        self._calls = 0  # what is inside of calls may end up in lambdas, where DuckDB knows no queries

    def compile(self, node: exp.Expression) -> SqlExpr:
        """Returns the tree and the type of an expression. Raises PenstockErrors."""
        raise NotImplementedError

    def _position(self, node: exp.Expression) -> Position | None:
        return self._scope.position(node) if isinstance(self._scope, LocatingScope) else None

    def _wrong(self, message: str, node: exp.Expression, code: int = WRONG_EXPRESSION,
               hint: str | None = None) -> InvalidStatementError:
        return InvalidStatementError(message, code=code, hint=hint, position=self._position(node))

    def _as_condition(self, value: SqlExpr, node: exp.Expression) -> Tree:
        if value.type.kind in (Kind.VARBINARY, Kind.GEOMETRY, Kind.OTHER):
            raise self._wrong(f"{value.type.sql()} is no condition", node)
        return to_bool(value)

    def _call(self, spec: FunctionSpec, arguments: list[SqlExpr]) -> ScalarCall:
        typed = [_typed_null(_unquoted_duration(argument, spec, index), spec, index)
                 for index, argument in enumerate(arguments)]
        result = check_call(spec, [argument.type for argument in typed],
                            [argument.constant for argument in typed], precision=self._precision)
        return ScalarCall(spec.name, tuple(typed), result, self._precision, self._session)

    def _interval(self, node: IntervalLiteral) -> SqlExpr:
        value, unit = self.compile(node.this), node.args.get("unit")
        if unit is None:
            return cast_expression(value, other_type("INTERVAL"), self._precision, self._session.time_zone)
        return self._by_duckdb("interval", lambda value: fragment(f"INTERVAL (:value) {unit}", value=value), value)

    def _struct(self, node: exp.Struct) -> SqlExpr:
        names = [field.this for field in node.expressions]

        def make(*values: Tree) -> Tree:
            return made(exp.Struct, expressions=[made(exp.PropertyEQ, this=name, expression=value)
                                                 for name, value in zip(names, values, strict=True)])

        return self._by_duckdb("struct", make, *(self.compile(field.expression) for field in node.expressions),
                               time_zone="UTC")

    def _subscript(self, node: exp.Bracket) -> SqlExpr:
        value = self.compile(node.this)
        name = "map_extract_value" if value.type.sql().startswith("MAP(") else "array_extract"
        spec = require(name)
        return spec.compile(self._call(spec, [value, self.compile(node.expressions[0])]))

    def _at_time_zone(self, node: exp.AtTimeZone) -> SqlExpr:
        """The wall clock of a zone, as the time at which that of the session shows the same."""
        name = node.args["zone"].this
        zone(name)
        time = cast_expression(self.compile(node.this), timestamp(self._precision), self._precision,
                               self._session.time_zone)
        local = local_timestamp(time.node, self._precision, name)
        return self._known(SqlExpr(from_local_timestamp(local, self._precision, self._session.time_zone), time.type))

    def _by_duckdb(self, words: str, make: Operator, *operands: SqlExpr, time_zone: str | None = None) -> SqlExpr:
        """What DuckDB computes by rules of its own. `words` is what errors call it; times in values that are put
        together are in UTC, or an hour that comes twice would be one.
        """
        value = duckdb_value(make, operands, self._precision, time_zone or self._session.time_zone)
        if value is None:
            raise no_operator(words, operands)
        return self._known(value)

    def _operator(self, node: exp.Expression, left: SqlExpr, right: SqlExpr) -> SqlExpr:
        kind = type(node)
        return self._by_duckdb(SIGNS[kind], lambda a, b: made(kind, this=closed(a), expression=closed(b)), left, right)

    def _inverse(self, node: exp.BitwiseNot) -> SqlExpr:
        return self._by_duckdb("~", lambda value: made(exp.BitwiseNot, this=closed(value)), self.compile(node.this))

    def _known(self, value: SqlExpr) -> SqlExpr:
        """Computes a time that depends on no row now: WHERE's bounds on time are taken from it."""
        known = value.type.kind is Kind.TIMESTAMP and not self._variables
        instant = instant_of(value.node) if known else None
        return value if instant is None else timestamp_constant(instant, self._precision)

    def _call_with_lambda(self, name: str, node: exp.Anonymous) -> SqlExpr:
        """A function that computes a lambda for the items of a list, which its first argument is."""
        first, function, *others = node.expressions
        if isinstance(first, exp.Lambda) or not isinstance(function, exp.Lambda):
            raise self._wrong(f"{name}() takes a list, then a lambda", node)
        values = [self.compile(argument) for argument in (first, *others)]
        item = type_name_of(lambda given, *_: call("list_extract", given, number(1)), values)
        if item is None:
            raise self._wrong(f"{name}() takes a list, not {values[0].type.sql()}", first)
        names = [made(exp.Identifier, this=f"#{self._named + place}", quoted=True)
                 for place in range(len(function.expressions))]
        body = self._body(name, function, {
            given.this: from_duckdb(called, kind, self._precision, "UTC")
            for given, called, kind in zip(function.expressions, names, _types_of_variables(name, item), strict=False)})

        def make(result: Tree, given: Tree, *rest: Tree) -> Tree:
            return call(name, given, made(exp.Lambda, this=result, expressions=names, colon=True), *rest)

        found = type_name_of(partial(make, null(body.type.duckdb_name())), values)
        if found is None:
            raise self._wrong(f"there is no {name}() of such a lambda", function)
        given = [operand_tree(value, "UTC") for value in (body, *values)]
        return from_duckdb(make(*given), found, self._precision, "UTC")

    def _body(self, name: str, function: exp.Lambda, variables: dict[str, SqlExpr]) -> SqlExpr:
        """What a lambda makes of its variables, which it may have beside those of lambdas around it."""
        around, self._variables = self._variables, self._variables | variables
        self._named += len(function.expressions)
        self._calls += 1
        body = self.compile(function.this)
        self._calls -= 1
        self._named -= len(function.expressions)
        self._variables = around
        if name.endswith("filter"):
            return SqlExpr(self._as_condition(body, function.this), BOOL)
        if name.endswith("reduce") and not body.type.is_numeric and body.type.kind is not Kind.TIMESTAMP:
            # What is twice as long with each item would be beyond all bounds.
            raise self._wrong(f"{name}() makes numbers, not {body.type.sql()}", function.this,
                              hint="array_to_string joins texts, flatten joins lists")
        return body

    def _variable(self, node: LambdaVariable) -> SqlExpr:
        if node.this not in self._variables:
            raise self._wrong(f"{node.this} is of a lambda around this, which it can't use", node)
        return self._variables[node.this]


def _types_of_variables(name: str, item: str) -> tuple[str, ...]:
    """DuckDB's names of the types of what a lambda is given: an item and its place, or what is reduced first."""
    return (item, item, "BIGINT") if name.endswith("reduce") else (item, "BIGINT")


def _unquoted_duration(argument: SqlExpr, spec: FunctionSpec, index: int) -> SqlExpr:
    """Reads a text such as '1s' as the duration that it spells, where one is wanted."""
    if not isinstance(argument.constant, str) or index >= spec.maximum or not spec.argument(index).duration:
        return argument
    duration = parse_duration(argument.constant)
    return argument if duration is None else SqlExpr(argument.node, argument.type, duration)


def _typed_null(argument: SqlExpr, spec: FunctionSpec, index: int) -> SqlExpr:
    """Gives a NULL literal a type that its place accepts, so that DuckDB finds the function."""
    if argument.type.kind is not Kind.NULL or index >= spec.maximum or spec.argument(index).duration:
        return argument
    accepts = spec.argument(index).accepts
    if accepts >= ANY:
        return argument
    kind = next((kind for kind in (Kind.DOUBLE, Kind.BIGINT, Kind.VARCHAR) if kind in accepts), Kind.NULL)
    return SqlExpr(null_of(DataType(kind)), DataType(kind))
