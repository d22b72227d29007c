"""Functions that give rows rather than a value: DIFF and its kin, TOP and its kin. No windows over time, no groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from penstock.planner.bind.binder import Builder, Relation, is_pseudo
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.bind.scopes import NO_TIME_LINE, NOT_ALLOWED_FUNCTION, TIME_NAMES, RowScope
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.spec import WRONG_ARGUMENT_TYPE, WRONG_ARGUMENT_VALUE
from penstock.planner.functions.table import FunctionSpec, check_call, require
from penstock.planner.logical.expr import Line
from penstock.planner.logical.operators import RowCall
from penstock.sql.dialect.literals import parse_duration
from penstock.sql.tree.expression_nodes import DurationLiteral
from penstock.sql.tree.statements import Duration
from penstock.sql.tree.walking import unwrapped
from penstock.sql.types import DataType, Kind


@dataclass(frozen=True, slots=True)
class SeriesCall:
    """A checked call: compiled arguments (None for durations), constants by position, result type."""

    spec: FunctionSpec
    arguments: tuple[SqlExpr, ...]
    constants: tuple[object, ...]
    type: DataType
    node: exp.Anonymous

    @property
    def name(self) -> str:
        return self.spec.name

    def constant(self, index: int, default: object = None) -> object:
        """Returns the value of an argument that is known when planning."""
        return self.constants[index] if index < len(self.constants) else default

    def integer(self, index: int, default: int = 0) -> int:
        """Returns such a value, which the checks have found to be an integer."""
        value = self.constant(index, default)
        assert isinstance(value, int)
        return value


def checked_call(node: exp.Anonymous, scope: RowScope) -> SeriesCall:
    """Compiles and checks the arguments of a call over rows. Raises InvalidStatementError."""
    spec = require(str(node.this), scope.builder.position(node))
    arguments: list[SqlExpr] = []
    constants: list[object] = []
    for index, argument in enumerate(node.expressions):
        if isinstance(argument, exp.Star):
            raise scope.builder.error(f"{spec.name}(*) is not possible", node, hint=f"write {spec.signature}")
        duration = _duration(argument) if index < spec.maximum and spec.argument(index).duration else None
        if duration is not None:
            arguments.append(SqlExpr(exp.null(), DataType(Kind.BIGINT)))
            constants.append(duration)
        else:
            if index < spec.maximum and spec.argument(index).not_time_line and _is_time_line(argument, scope):
                raise scope.builder.error(f"{spec.name}() does not take the primary timestamp", node,
                                          code=WRONG_ARGUMENT_TYPE, hint=f"write {spec.name}(cast(ts AS BIGINT))")
            compiled = compile_expression(argument, scope)
            arguments.append(compiled)
            constants.append(compiled.constant)
    result = check_call(spec, [argument.type for argument in arguments], constants,
                        precision=scope.precision, position=scope.builder.position(node))
    return SeriesCall(spec, tuple(arguments), tuple(constants), result, node)


def _is_time_line(node: exp.Expression, scope: RowScope) -> bool:
    node = unwrapped(node)
    return is_pseudo(node, *TIME_NAMES) or (
        scope.relation is not None and isinstance(node, exp.Column) and scope.relation.is_time_line(scope.find(node)))


def _duration(node: exp.Expression) -> Duration | None:
    if isinstance(node, DurationLiteral):
        return node.duration
    if isinstance(node, exp.Literal) and node.is_string:
        return parse_duration(node.this)
    return None


def unit_of(duration: object, scope: RowScope, node: exp.Expression, least: int = 1) -> int:
    """Returns the length of a unit argument in units of the precision; None is one such unit."""
    if duration is None:
        return 1
    assert isinstance(duration, Duration)
    if duration.is_calendar or duration.in_units(scope.precision) < least:
        raise scope.builder.error(f"the unit {duration} is too short or not a fixed time", node)
    return duration.in_units(scope.precision)


def time_series(
    calls: Sequence[SeriesCall], relation: Relation, keys: Sequence[str], builder: Builder, scope: RowScope
) -> tuple[tuple[RowCall, ...], Line]:
    """Returns the calls as they run along rows, and the lines they run along. Raises if they leave different rows."""
    rules = {call.spec.along.rule for call in calls if call.spec.along is not None}
    if len(rules) > 1:
        names = " and ".join(f"{call.name}()" for call in calls)
        raise builder.error(f"{names} give different rows, so they cannot stand in one query", calls[1].node,
                            code=NOT_ALLOWED_FUNCTION)
    if relation.time is None:
        raise builder.error(f"{calls[0].name}() needs a time line", calls[0].node, code=NO_TIME_LINE,
                            hint="let the sub-query return the primary timestamp")
    bound = tuple(RowCall(f"#value{index}", call.name, call.arguments, call.constants, call.type, _unit(call, scope))
                  for index, call in enumerate(calls))
    return bound, Line(tuple(keys), relation.order)


def _unit(call: SeriesCall, scope: RowScope) -> int:
    """The length of the unit argument of a call, if it has one."""
    place = call.spec.unit_argument
    if place is None:
        return 1
    unit = call.constant(place)
    if not call.spec.arguments[place].units:
        return unit_of(unit, scope, call.node)
    length = unit if isinstance(unit, int) else unit_of(unit, scope, call.node, least=-(2**63))
    if not length:
        raise scope.builder.error(f"the interval of {call.name}() must not be 0", call.node, code=WRONG_ARGUMENT_VALUE,
                                  hint=f"write {call.spec.signature}")
    return length


def picking(call: SeriesCall, relation: Relation, keys: Sequence[str], builder: Builder) -> tuple[RowCall, Line]:
    """Returns how TOP, BOTTOM, SAMPLE, TAIL or UNIQUE picks rows in each group, which `keys` tell apart."""
    order = relation.order
    if call.spec.needs_time and not order:
        raise builder.error(f"{call.name}() needs a time line", call.node, code=NO_TIME_LINE,
                            hint="let the sub-query return the primary timestamp")
    return RowCall("#picked", call.name, call.arguments, call.constants, call.type), Line(tuple(keys), order)
