"""SESSION, STATE_WINDOW, EVENT_WINDOW and COUNT_WINDOW in streams: what is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from penstock.common.errors import InvalidStatementError, InvalidStreamError
from penstock.planner.bind.expressions import Scope, compile_expression, condition_tree
from penstock.planner.bind.scopes import TIME_NAMES, unwrapped
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.window_kinds import Count, Event, Session, Shape, State
from penstock.planner.query.window_steps import SESSION_COLUMN, SESSION_GAP, STATE_TAG, STATE_TYPE
from penstock.sql.schema import Table
from penstock.sql.tree.statements import CountWindow, Duration, EventWindow, SessionWindow, StateWindow
from penstock.sql.types import BOOL, INTEGERS, STRINGS, Kind, Precision

AnyRowWindow = SessionWindow | StateWindow | EventWindow | CountWindow

@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What the rules for windows ask about a stream. `by_table`: every group is part of one table."""

    table: Table
    precision: Precision
    by_table: bool
    watermark: int
    ignore_expired: bool


def bind_row_window(window: AnyRowWindow, facts: StreamFacts, scope: Scope) -> tuple[Shape, int | None]:
    """Returns what puts rows into windows, and how short these may be in units of the precision.

    Raises InvalidStreamError or InvalidStatementError (tdengine.md 1.4, 2.1).
    """
    if not isinstance(window, SessionWindow):
        name = _name(window)
        if not facts.by_table:
            raise InvalidStreamError(f"{name} over a super table needs tbname in PARTITION BY",
                                     hint="add PARTITION BY tbname")
        if facts.table.key_column is not None:
            raise InvalidStreamError(f"{name} cannot read {facts.table.name}: it has a composite primary key")
    match window:
        case SessionWindow():
            return _session(window, facts), None
        case StateWindow():
            return _state(window, facts, scope), _true_for(window.true_for, facts.precision)
        case EventWindow():
            start, end = (SqlExpr(condition_tree(node, scope), BOOL) for node in (window.start, window.end))
            return Event(start, end), _true_for(window.true_for, facts.precision)
        case CountWindow():
            return _count(window, facts, scope), None


def _session(window: SessionWindow, facts: StreamFacts) -> Session:
    column = unwrapped(window.column)
    if not isinstance(column, exp.Column) or column.name not in (facts.table.time_column.name, *TIME_NAMES):
        raise InvalidStreamError("SESSION needs the primary timestamp", code=SESSION_COLUMN,
                                 hint=f"write SESSION({facts.table.time_column.name}, ...)")
    if window.gap.is_calendar or window.gap.in_units(facts.precision) <= 0:
        raise InvalidStreamError(f"the gap {window.gap} of SESSION is not a positive fixed time", code=SESSION_GAP)
    return Session(window.gap.in_units(facts.precision))


def _state(window: StateWindow, facts: StreamFacts, scope: Scope) -> State:
    column = unwrapped(window.expression)
    if isinstance(column, exp.Column) and any(tag.name == column.name for tag in facts.table.tags):
        raise InvalidStreamError("STATE_WINDOW cannot be over a tag", code=STATE_TAG,
                                 hint="use PARTITION BY for tags")
    value = compile_expression(window.expression, scope)
    if value.type.kind not in (*INTEGERS, Kind.BOOL, *STRINGS):
        raise InvalidStreamError(f"STATE_WINDOW cannot be over {value.type.sql()}", code=STATE_TYPE,
                                 hint="use an integer, a boolean or a string")
    return State(value)


def _count(window: CountWindow, facts: StreamFacts, scope: Scope) -> Count:
    sliding = window.count if window.sliding is None else window.sliding
    if window.count < 2 or not 1 <= sliding <= window.count:
        raise InvalidStatementError(f"{_shown(window)} is not possible",
                                    hint="the count must be at least 2, the slide from 1 to the count")
    if facts.watermark <= 0:
        raise InvalidStreamError("COUNT_WINDOW in a stream needs a WATERMARK", hint="for example WATERMARK 10s")
    if not facts.ignore_expired:
        raise InvalidStreamError("COUNT_WINDOW in a stream needs IGNORE EXPIRED 1")
    values = tuple(compile_expression(node, scope) for node in window.columns)
    return Count(window.count, sliding, values)


def _shown(window: CountWindow) -> str:
    return f"count_window({window.count}{'' if window.sliding is None else f', {window.sliding}'})"


def _true_for(duration: Duration | None, precision: Precision) -> int:
    if duration is None:
        return 0
    if duration.is_calendar:
        raise InvalidStatementError("TRUE_FOR cannot be in months or years")
    return duration.in_units(precision)


def _name(window: StateWindow | EventWindow | CountWindow) -> str:
    names: Sequence[tuple[type, str]] = (
        (StateWindow, "STATE_WINDOW"), (EventWindow, "EVENT_WINDOW"), (CountWindow, "COUNT_WINDOW"))
    return next(name for kind, name in names if isinstance(window, kind))
