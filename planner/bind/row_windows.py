"""Binds window clauses that rows alone decide on: SESSION, STATE_WINDOW, EVENT_WINDOW and COUNT_WINDOW."""

from __future__ import annotations

from penstock.common.errors import InvalidStatementError
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.bind.scopes import RowScope, condition_of
from penstock.planner.logical.window_kinds import ByCount, ByEvent, BySession, ByState
from penstock.sql.tree.statements import CountWindow, EventWindow, SessionWindow, StateWindow
from penstock.sql.tree.walking import unwrapped
from penstock.sql.types import INTEGERS, STRINGS, Kind, Precision

AnyRowWindow = SessionWindow | StateWindow | EventWindow | CountWindow
RowShape = BySession | ByState | ByEvent | ByCount

STATE_TYPE = 0x2628
STATE_TAG = 0x2629
SESSION_GAP = 0x262B
SESSION_COLUMN = 0x262C


def bind_row_window(window: AnyRowWindow, scope: RowScope, least_count: int = 2) -> RowShape:
    """Returns what puts rows into windows. `least_count`: so many rows a COUNT_WINDOW has at least.

    Raises InvalidStatementError for what no window can be.
    """
    match window:
        case SessionWindow():
            return _session(window, scope.within("SESSION"))
        case StateWindow():
            return _state(window, scope.within("STATE_WINDOW"))
        case EventWindow():
            within = scope.within("EVENT_WINDOW")
            return ByEvent(condition_of(window.start, within), condition_of(window.end, within))
        case CountWindow():
            return _count(window, scope.within("COUNT_WINDOW"), least_count)


def _session(window: SessionWindow, scope: RowScope) -> BySession:
    relation = scope.relation
    if relation is None or not relation.is_time_line(scope.find(unwrapped(window.column))):
        raise scope.builder.error("SESSION needs the primary timestamp", window.column, code=SESSION_COLUMN)
    if window.gap.is_calendar or window.gap.in_units(scope.precision) <= 0:
        raise InvalidStatementError(f"the gap {window.gap} of SESSION is not a positive fixed time", code=SESSION_GAP)
    return BySession(window.gap.in_units(scope.precision))


def _state(window: StateWindow, scope: RowScope) -> ByState:
    node = window.expression
    found = scope.find(unwrapped(node))
    if found is not None and found.role != "column":
        raise scope.builder.error("STATE_WINDOW cannot be over a tag", node, code=STATE_TAG,
                                  hint="use PARTITION BY for tags")
    value = compile_expression(node, scope)
    if value.type.kind not in (*INTEGERS, Kind.BOOL, *STRINGS):
        raise scope.builder.error(f"STATE_WINDOW cannot be over {value.type.sql()}", node, code=STATE_TYPE,
                                  hint="use an integer, a boolean or a string")
    return ByState(value)


def _count(window: CountWindow, scope: RowScope, least: int) -> ByCount:
    sliding = window.count if window.sliding is None else window.sliding
    if window.count < least or not 1 <= sliding <= window.count:
        raise InvalidStatementError(
            f"COUNT_WINDOW({window.count}{'' if window.sliding is None else f', {sliding}'}) is not possible",
            hint=f"the count must be at least {least}, the slide from 1 to the count")
    return ByCount(window.count, sliding, tuple(compile_expression(node, scope) for node in window.columns))


def least_length(window: object, precision: Precision) -> int | None:
    """Returns the least length of a window in units, if TRUE_FOR gives one. Raises InvalidStatementError for months."""
    if not isinstance(window, StateWindow | EventWindow) or window.true_for is None:
        return None
    if window.true_for.is_calendar:
        raise InvalidStatementError("TRUE_FOR cannot be in months or years")
    return window.true_for.in_units(precision)
