"""Binds window clauses: which columns tell windows apart, and what puts rows into them."""

from __future__ import annotations

from collections.abc import Callable

from penstock.common.errors import InvalidStatementError
from penstock.planner.bind.row_windows import bind_row_window, least_length
from penstock.planner.bind.scopes import NO_TIME_LINE, GroupKey, fingerprint
from penstock.planner.duckdb_sql.interval_windows import auto_offset, check_interval
from penstock.planner.logical.expr import Line
from penstock.planner.logical.operators import Operator, Window
from penstock.planner.logical.window_kinds import NUMBER, START, STATE, ByInterval, ByState, Shape
from penstock.planner.logical.written import text_of
from penstock.planner.query.query_context import QueryContext
from penstock.sql.tree.statements import IntervalWindow, StateWindow


def assign_windows(query: QueryContext, *, borders: Callable[[], bool]) -> list[str]:
    """Puts rows into windows; returns the columns whose values tell windows apart.

    Rows get START (interval) or NUMBER; with `borders`, which is asked once all is bound, also START and END.
    """
    relation, keys = query.relation, query.key_columns
    if relation.time is None:
        raise InvalidStatementError("a window needs a time line", code=NO_TIME_LINE,
                                    hint="let the sub-query return the primary timestamp")
    shape, line = _shape(query), Line(tuple(keys), relation.order)
    least = least_length(query.select.window, query.scope.precision)

    def plan(below: Operator) -> Operator:
        asked = borders()
        return Window(below, shape, line, asked, least if asked else None)

    query.move(relation.over(plan))
    return [*keys, START if isinstance(shape, ByInterval) else NUMBER]


def resolved_interval(query: QueryContext, window: IntervalWindow) -> IntervalWindow:
    """Checks the window's numbers and returns it with a definite offset."""
    check_interval(window, query.scope.precision)
    if window.offset == "auto":
        query.builder.require_known_times("AUTO")
        return auto_offset(window, query.bounds[0], query.scope.precision, query.scope.session.time_zone)
    return window


def interval_of(query: QueryContext, window: IntervalWindow) -> ByInterval:
    """Returns the windows on a grid that INTERVAL asks for; see `resolved_interval`."""
    return ByInterval(resolved_interval(query, window), query.scope.precision, query.scope.session.time_zone)


def _shape(query: QueryContext) -> Shape:
    """What the window clause says, bound. The state of a state window becomes a key of the query."""
    window = query.select.window
    assert window is not None
    if isinstance(window, IntervalWindow):
        return interval_of(query, window)
    shape = bind_row_window(window, query.scope)
    if isinstance(shape, ByState) and isinstance(window, StateWindow):
        mark = fingerprint(window.expression, query.scope)
        query.keys.append(GroupKey(STATE, shape.value.type, mark, None, text_of(window.expression), partitions=False))
    return shape
