"""Binds window clauses: which columns tell windows apart, and what puts rows into them."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.bind.scopes import NO_TIME_LINE, Key, condition_of, fingerprint, unwrapped
from penstock.planner.duckdb_sql.interval_windows import auto_offset, check_interval
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.expr import Line
from penstock.planner.logical.operators import Operator, Window
from penstock.planner.logical.window_kinds import NUMBER, START, STATE, Count, Event, Interval, Session, Shape, State
from penstock.planner.logical.written import text_of
from penstock.planner.query.query_context import QueryContext
from penstock.sql.tree.statements import CountWindow, EventWindow, IntervalWindow, SessionWindow, StateWindow
from penstock.sql.types import INTEGERS, STRINGS, Kind

STATE_TYPE = 0x2628
STATE_TAG = 0x2629
SESSION_GAP = 0x262B
SESSION_COLUMN = 0x262C


def assign_windows(query: QueryContext, *, borders: Callable[[], bool]) -> list[str]:
    """Puts rows into windows; returns the columns whose values tell windows apart.

    Rows get START (interval) or NUMBER; with `borders`, which is asked once all is bound, also START and END.
    """
    relation, keys = query.relation, query.key_columns
    if relation.time is None:
        raise InvalidStatementError("a window needs a time line", code=NO_TIME_LINE,
                                    hint="let the sub-query return the primary timestamp")
    shape, line, least = _shape(query), Line(tuple(keys), relation.order), true_for(query)

    def plan(below: Operator) -> Operator:
        asked = borders()
        return Window(below, shape, line, asked, least if asked else None)

    query.move(relation.over(plan))
    return [*keys, START if isinstance(shape, Interval) else NUMBER]


def resolved_interval(query: QueryContext, window: IntervalWindow) -> IntervalWindow:
    """Checks the window's numbers and returns it with a definite offset."""
    check_interval(window, query.scope.precision)
    if window.offset == "auto":
        return auto_offset(window, query.bounds[0], query.scope.precision, query.scope.session.time_zone)
    return window


def interval_of(query: QueryContext, window: IntervalWindow) -> Interval:
    """Returns the windows on a grid that INTERVAL asks for; see `resolved_interval`."""
    return Interval(resolved_interval(query, window), query.scope.precision, query.scope.session.time_zone)


def _shape(query: QueryContext) -> Shape:
    """What the window clause says, bound. The state of a state window becomes a key of the query."""
    builder, window = query.builder, query.select.window
    match window:
        case IntervalWindow():
            return interval_of(query, window)
        case SessionWindow():
            scope = query.scope.within("SESSION")
            if scope.find(unwrapped(window.column)) is not query.relation.time:
                raise builder.error("SESSION needs the primary timestamp", window.column, code=SESSION_COLUMN)
            if window.gap.is_calendar or window.gap.in_units(scope.precision) <= 0:
                raise InvalidStatementError(f"the gap {window.gap} of SESSION is not a positive fixed time",
                                            code=SESSION_GAP)
            return Session(window.gap.in_units(scope.precision))
        case StateWindow():
            state = _state(query, window.expression)
            mark = fingerprint(window.expression, query.scope)
            query.keys.append(Key(STATE, state.type, mark, None, text_of(window.expression), partitions=False))
            return State(state)
        case EventWindow():
            scope = query.scope.within("EVENT_WINDOW")
            return Event(condition_of(window.start, scope), condition_of(window.end, scope))
    assert isinstance(window, CountWindow)
    sliding = window.count if window.sliding is None else window.sliding
    if window.count < 2 or not 1 <= sliding <= window.count:
        raise InvalidStatementError(
            f"COUNT_WINDOW({window.count}{'' if window.sliding is None else f', {sliding}'}) is not possible",
            hint="the count must be at least 2, the slide from 1 to the count")
    values = tuple(compile_expression(node, query.scope.within("COUNT_WINDOW")) for node in window.columns)
    return Count(window.count, sliding, values)


def _state(query: QueryContext, node: exp.Expression) -> SqlExpr:
    scope = query.scope.within("STATE_WINDOW")
    found = scope.find(unwrapped(node))
    if found is not None and found.role != "column":
        raise query.builder.error("STATE_WINDOW cannot be over a tag", node, code=STATE_TAG,
                                 hint="use PARTITION BY for tags")
    value = compile_expression(node, scope)
    if value.type.kind not in (*INTEGERS, Kind.BOOL, *STRINGS):
        raise query.builder.error(f"STATE_WINDOW cannot be over {value.type.sql()}", node, code=STATE_TYPE,
                                 hint="use an integer, a boolean or a string")
    return value


def true_for(query: QueryContext) -> int | None:
    """Returns the least length of a window in units, if TRUE_FOR gives one."""
    window = query.select.window
    if not isinstance(window, StateWindow | EventWindow) or window.true_for is None:
        return None
    if window.true_for.is_calendar:
        raise InvalidStatementError("TRUE_FOR cannot be in months or years")
    return window.true_for.in_units(query.scope.precision)
