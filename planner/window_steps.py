"""Puts rows into windows: the steps of a query that add the columns which tell windows apart."""

from __future__ import annotations

from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.planner.expressions import compile_condition, compile_expression
from penstock.planner.plan import SqlExpr
from penstock.planner.query_context import QueryContext
from penstock.planner.query_parts import text_of
from penstock.planner.row_windows import STATE, WINDOW_ID, count_sql, event_sql, session_sql, state_sql
from penstock.planner.scopes import NO_TIME_LINE, Key, fingerprint, unwrapped
from penstock.planner.windows import (
    auto_offset,
    check_interval,
    expand_windows_sql,
    interval_end_sql,
    interval_start_sql,
    is_local,
    window_table_sql,
)
from penstock.sql.statements import CountWindow, EventWindow, IntervalWindow, SessionWindow, StateWindow
from penstock.sql.types import INTEGERS, STRINGS, Kind

STATE_TYPE = 0x2628
STATE_TAG = 0x2629
SESSION_GAP = 0x262B
SESSION_COLUMN = 0x262C


def assign_windows(query: QueryContext, *, borders: bool) -> list[str]:
    """Puts rows into windows; returns the columns whose values tell windows apart.

    Rows get `#ws` (interval) or `#wid`; with `borders` also `#ws` and `#we`.
    """
    window, relation, builder = query.select.window, query.relation, query.builder
    keys = query.key_columns
    if relation.time is None:
        raise InvalidStatementError("a window needs a time line", code=NO_TIME_LINE,
                                    hint="let the sub-query return the primary timestamp")
    if isinstance(window, IntervalWindow):
        return _assign_intervals(query, window, borders=borders)
    assert window is not None
    ts = relation.time.use().sql
    sql = _row_window_sql(query, window)
    name = builder.step("windowed", sql)
    if borders:
        part = ", ".join((*keys, WINDOW_ID))
        name = builder.step("windowed", f"SELECT *, min({ts}) OVER (PARTITION BY {part}) AS \"#ws\", "
                                        f"max({ts}) OVER (PARTITION BY {part}) AS \"#we\" FROM {name}")
        length = true_for(query)
        if length is not None:
            name = builder.step("windowed", f"SELECT * FROM {name} WHERE \"#we\" - \"#ws\" >= {length}")
    query.move(relation.over(name))
    return [*keys, WINDOW_ID]


def resolved_interval(query: QueryContext, window: IntervalWindow) -> IntervalWindow:
    """Checks the window's numbers and returns it with a definite offset."""
    check_interval(window, query.scope.precision)
    if window.offset == "auto":
        return auto_offset(window, query.bounds[0], query.scope.precision, query.scope.session.time_zone)
    return window


def _assign_intervals(query: QueryContext, window: IntervalWindow, *, borders: bool) -> list[str]:
    window = resolved_interval(query, window)
    assert query.relation.time is not None
    ts, precision, zone = query.relation.time.use().sql, query.scope.precision, query.scope.session.time_zone
    rows = query.relation.name
    if is_local(window, zone):
        table = query.builder.step("calendar", window_table_sql(rows, ts, window, precision, zone))
        join = f"ASOF JOIN {table} w ON r.{ts} >= w.s" if window.sliding is None else (
            f"JOIN {table} w ON r.{ts} >= w.s AND r.{ts} < w.e")
        sql = f"SELECT r.*, w.s AS \"#ws\" FROM {rows} r {join}"
    elif window.sliding is None:
        sql = f"SELECT *, {interval_start_sql(ts, window, precision, zone)} AS \"#ws\" FROM {rows}"
    else:
        sql = f"SELECT *, unnest({expand_windows_sql(ts, window, precision, zone)}) AS \"#ws\" FROM {rows}"
    name = query.builder.step("windowed", sql)
    if borders:
        end = interval_end_sql('"#ws"', window, precision, zone)
        name = query.builder.step("windowed", f"SELECT *, {end} AS \"#we\" FROM {name}")
    query.move(query.relation.over(name))
    return [*query.key_columns, '"#ws"']


def _row_window_sql(query: QueryContext, window: SessionWindow | StateWindow | EventWindow | CountWindow) -> str:
    relation, builder = query.relation, query.builder
    keys, order = query.key_columns, relation.order
    match window:
        case SessionWindow():
            scope = query.scope.within("SESSION")
            if scope.find(unwrapped(window.column)) is not relation.time:
                raise builder.error("SESSION needs the primary timestamp", window.column, code=SESSION_COLUMN)
            if window.gap.is_calendar or window.gap.in_units(scope.precision) <= 0:
                raise InvalidStatementError(f"the gap {window.gap} of SESSION is not a positive fixed time",
                                            code=SESSION_GAP)
            return session_sql(relation.name, keys, order, window.gap.in_units(scope.precision))
        case StateWindow():
            state = _state(query, window.expression)
            mark = fingerprint(window.expression, query.scope)
            query.keys.append(Key(STATE, state.type, mark, None, text_of(window.expression), partitions=False))
            return state_sql(relation.name, keys, order, state.sql)
        case EventWindow():
            scope = query.scope.within("EVENT_WINDOW")
            return event_sql(relation.name, keys, order, compile_condition(window.start, scope),
                             compile_condition(window.end, scope))
    sliding = window.count if window.sliding is None else window.sliding
    if window.count < 2 or not 1 <= sliding <= window.count:
        raise InvalidStatementError(
            f"COUNT_WINDOW({window.count}{'' if window.sliding is None else f', {sliding}'}) is not possible",
            hint="the count must be at least 2, the slide from 1 to the count")
    columns = [compile_expression(node, query.scope.within("COUNT_WINDOW")).sql for node in window.columns]
    return count_sql(relation.name, keys, order, window.count, sliding, columns)


def _state(query: QueryContext, node: exp.Expression) -> SqlExpr:
    scope = query.scope.within("STATE_WINDOW")
    column = scope.find(unwrapped(node))
    if column is not None and column.role != "column":
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


def bounded(query: QueryContext, name: str) -> str:
    """Adds the windows' ends, and leaves out windows that are too short."""
    window, builder = query.select.window, query.builder
    if isinstance(window, IntervalWindow):
        end = interval_end_sql('"#ws"', resolved_interval(query, window), query.scope.precision,
                               query.scope.session.time_zone)
        return builder.step("windows", f"SELECT *, {end} AS \"#we\" FROM {name}")
    length = true_for(query)
    if length is None:
        return name
    return builder.step("windows", f"SELECT * FROM {name} WHERE \"#we\" - \"#ws\" >= {length}")
