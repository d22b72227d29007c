"""Which range of the primary timestamp a WHERE clause implies; constants only, nothing is executed."""

from __future__ import annotations

import math
from collections.abc import Callable

from sqlglot import exp

from penstock.common.errors import PenstockError
from penstock.planner.bind.binder import RelColumn
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.bind.scopes import QUERIES, Bounds, RowScope
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.scalar.duckdb_values import instant_of
from penstock.planner.scalar.scalar_cast import cast
from penstock.sql.dialect.literals import parse_timestamp
from penstock.sql.schema import Session
from penstock.sql.tree.walking import found_in, unwrapped
from penstock.sql.types import UNITS_PER_SECOND, Kind, Precision, timestamp

_MIRROR: dict[type[exp.Expression], type[exp.Expression]] = {
    exp.GT: exp.LT, exp.LT: exp.GT, exp.GTE: exp.LTE, exp.LTE: exp.GTE, exp.EQ: exp.EQ,
}
EVERYTHING: Bounds = (None, None)


def time_constant(value: SqlExpr, precision: Precision, session: Session) -> float | int | None:
    """Returns the instant that a constant means where it meets a timestamp, in units of `precision`, or None.

    What lies outside of 64 bits becomes the first or the last instant.
    """
    instant = _instant(value, precision, session)
    return None if instant is None or instant != instant else max(-(1 << 63), min(instant, (1 << 63) - 1))


def _instant(value: SqlExpr, precision: Precision, session: Session) -> float | int | None:
    constant = value.constant
    if value.type.kind is Kind.OTHER:
        return _instant_of_duckdb(value, precision, session)
    if isinstance(constant, bool) or constant is None:
        return None
    if isinstance(constant, str):
        try:
            return parse_timestamp(constant, precision, session.time_zone)
        except PenstockError:
            return None
    if not isinstance(constant, int | float):
        return None
    if value.type.kind is Kind.TIMESTAMP and value.type.precision != precision:
        return constant * UNITS_PER_SECOND[precision] // UNITS_PER_SECOND[value.type.precision]
    return constant


def _instant_of_duckdb(value: SqlExpr, precision: Precision, session: Session) -> int | None:
    """Returns the instant that a date, or the like, means."""
    try:
        return instant_of(cast(value, timestamp(precision), precision, session.time_zone).node)
    except PenstockError:
        return None


def bounds_of(where: exp.Expression | None, scope: RowScope, time: RelColumn | None) -> Bounds:
    """Returns the bounds of a time line that WHERE leaves, as `time_bounds`."""
    if time is None:
        return EVERYTHING

    def constant(node: exp.Expression) -> float | int | None:
        if found_in(node, exp.Column, *QUERIES):
            return None
        return time_constant(compile_expression(node, scope), scope.precision, scope.session)

    return time_bounds(where, lambda node: scope.find(node) is time, constant)


def is_time_range(where: exp.Expression, scope: RowScope, time: RelColumn | None) -> bool:
    """Tells whether a condition is true for the rows between its `bounds_of`, and for no others."""
    node = unwrapped(where)
    if isinstance(node, exp.And):
        return is_time_range(node.this, scope, time) and is_time_range(node.expression, scope, time)
    first, last = bounds_of(node, scope, time)
    if isinstance(node, exp.Between):
        return first is not None and last is not None
    return type(node) in _MIRROR and (first is not None or last is not None)


def time_bounds(
    where: exp.Expression | None, is_time: Callable[[exp.Expression], bool],
    constant: Callable[[exp.Expression], float | int | None],
) -> Bounds:
    """Returns inclusive bounds that every row for which `where` is true keeps, None where there is none.

    `is_time` recognises the primary timestamp, `constant` returns the instant of a constant expression or None.
    """
    if where is None:
        return EVERYTHING
    node = unwrapped(where)
    if isinstance(node, exp.And):
        left = time_bounds(node.this, is_time, constant)
        right = time_bounds(node.expression, is_time, constant)
        return _larger(left[0], right[0]), _smaller(left[1], right[1])
    if isinstance(node, exp.Or):
        left = time_bounds(node.this, is_time, constant)
        right = time_bounds(node.expression, is_time, constant)
        first = None if left[0] is None or right[0] is None else min(left[0], right[0])
        last = None if left[1] is None or right[1] is None else max(left[1], right[1])
        return first, last
    if isinstance(node, exp.Between) and is_time(unwrapped(node.this)):
        low, high = constant(node.args["low"]), constant(node.args["high"])
        return (None if low is None else math.ceil(low)), (None if high is None else math.floor(high))
    if isinstance(node, exp.In) and is_time(unwrapped(node.this)):
        points = [constant(item) for item in node.expressions]
        known = [point for point in points if point is not None]
        if known and len(known) == len(points):
            return math.ceil(min(known)), math.floor(max(known))
        return EVERYTHING
    kind = type(node)
    if kind not in _MIRROR:
        return EVERYTHING
    assert isinstance(node, exp.Binary)
    subject, other = unwrapped(node.this), node.expression
    if not is_time(subject):
        subject, other, kind = unwrapped(node.expression), node.this, _MIRROR[kind]
        if not is_time(subject):
            return EVERYTHING
    point = constant(other)
    return EVERYTHING if point is None else _of_comparison(kind, point)


def _of_comparison(kind: type[exp.Expression], point: float | int) -> Bounds:
    if kind is exp.EQ:
        return math.ceil(point), math.floor(point)
    if kind is exp.GT:
        return math.floor(point) + 1, None
    if kind is exp.GTE:
        return math.ceil(point), None
    if kind is exp.LT:
        return None, math.ceil(point) - 1
    return None, math.floor(point)


def _larger(left: int | None, right: int | None) -> int | None:
    return max(left, right) if left is not None and right is not None else left if right is None else right


def _smaller(left: int | None, right: int | None) -> int | None:
    return min(left, right) if left is not None and right is not None else left if right is None else right
