"""Which instants that a plan is given when it runs bound the primary timestamp; `time_range` knows constants."""

from __future__ import annotations

from typing import Literal

from sqlglot import exp

from penstock.planner.bind.binder import GivenInstant, RelColumn
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.bind.scopes import QUERIES, RowScope, has_given
from penstock.planner.duckdb_sql.duckdb_tree import Tree, fragment, parameters_of, render
from penstock.sql.tree.expression_nodes import DurationLiteral, Given
from penstock.sql.tree.walking import conjuncts, found_in, unwrapped
from penstock.sql.types import Kind

Side = Literal["first", "last"]
_SIDES: dict[type[exp.Expression], tuple[Side, ...]] = {
    exp.GT: ("first",), exp.GTE: ("first",), exp.LT: ("last",), exp.LTE: ("last",), exp.EQ: ("first", "last")}
_MIRROR: dict[type[exp.Expression], type[exp.Expression]] = {
    exp.GT: exp.LT, exp.LT: exp.GT, exp.GTE: exp.LTE, exp.LTE: exp.GTE, exp.EQ: exp.EQ}


def given_instants(where: exp.Expression | None, scope: RowScope, time: RelColumn | None) -> tuple[GivenInstant, ...]:
    """Returns the instants that every row for which `where` is true keeps."""
    return tuple(found for node in conjuncts(where) for found in _instants(node, scope, time))


def is_given_range(node: exp.Expression, scope: RowScope, time: RelColumn | None) -> bool:
    """Whether a condition is true for the rows between its `given_instants`, and for no others."""
    node = unwrapped(node)
    found = _instants(node, scope, time)
    return len(found) == (2 if isinstance(node, exp.Between | exp.EQ) else 1) and all(each.exact for each in found)


def _instants(node: exp.Expression, scope: RowScope, time: RelColumn | None) -> list[GivenInstant]:
    if time is None or not has_given(node):
        return []
    kind = type(node)
    compared: list[tuple[Side, exp.Expression]]
    if isinstance(node, exp.Between) and scope.find(unwrapped(node.this)) is time:
        compared = [("first", node.args["low"]), ("last", node.args["high"])]
    elif kind in _SIDES and scope.find(unwrapped(node.this)) is time:
        compared = [(side, node.expression) for side in _SIDES[kind]]
    elif kind in _SIDES and scope.find(unwrapped(node.expression)) is time:
        kind = _MIRROR[kind]
        compared = [(side, node.this) for side in _SIDES[kind]]
    else:
        return []
    moved = {exp.GT: 1, exp.LT: -1}.get(kind, 0)
    found = (_instant(side, unwrapped(other), moved, scope) for side, other in compared)
    return [each for each in found if each is not None]


def _instant(side: Side, node: exp.Expression, moved: int, scope: RowScope) -> GivenInstant | None:
    if not has_given(node) or found_in(node, exp.Column, *QUERIES):
        return None
    value = compile_expression(node, scope)
    if value.type.kind is Kind.DOUBLE:
        rounded = fragment("TRY_CAST(floor(:value) AS BIGINT)" if side == "first" else
                           "TRY_CAST(ceil(:value) AS BIGINT)", value=value.node)
        return _computed(side, None, rounded, 0, exact=False)
    if value.type.kind is Kind.BIGINT or (
            value.type.kind is Kind.TIMESTAMP and value.type.precision == scope.precision):
        return _computed(side, _shifted(node, scope), value.node, moved, exact=True)
    return None


def _computed(side: Side, of: tuple[str, int] | None, value: Tree, moved: int, *, exact: bool) -> GivenInstant:
    return GivenInstant(side, of, render(value), parameters_of(value), moved, exact)


def _shifted(node: exp.Expression, scope: RowScope) -> tuple[str, int] | None:
    """Returns which given value an instant is, and how many units later; None where it must be computed."""
    if isinstance(node, Given):
        return str(node.this), 0
    if isinstance(node, exp.Add | exp.Sub) and isinstance(node.expression, DurationLiteral):
        duration, inner = node.expression.duration, unwrapped(node.this)
        if isinstance(inner, Given) and not duration.is_calendar:
            units = duration.in_units(scope.precision)
            return str(inner.this), units if isinstance(node, exp.Add) else -units
    return None
