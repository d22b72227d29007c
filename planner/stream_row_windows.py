"""SESSION, STATE_WINDOW, EVENT_WINDOW and COUNT_WINDOW in streams: what is allowed, and the SQL that prepares rows.

Which rows form a window is decided by `tasks.windower`, since it depends on rows that came before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from penstock.common.errors import InvalidStatementError, InvalidStreamError
from penstock.planner.duckdb_tree import Tree, any_of, call, column, everything, fragment, named, select
from penstock.planner.expressions import Scope, compile_expression, condition_tree
from penstock.planner.partials import Part, Partial, field_column
from penstock.planner.scopes import unwrapped
from penstock.planner.stream import Accumulator, Field, RowWindow
from penstock.planner.window_steps import SESSION_COLUMN, SESSION_GAP, STATE_TAG, STATE_TYPE
from penstock.sql.schema import Table
from penstock.sql.statements import CountWindow, Duration, EventWindow, SessionWindow, StateWindow
from penstock.sql.types import BIGINT, INTEGERS, STRINGS, DataType, Kind, Precision

AnyRowWindow = SessionWindow | StateWindow | EventWindow | CountWindow

LAST_ROW = "_wlast"
END_ROWS = "_ends"


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What the rules for windows ask about a stream. `by_table`: every group is part of one table."""

    table: Table
    precision: Precision
    by_table: bool
    watermark: int
    ignore_expired: bool


@dataclass(frozen=True, slots=True)
class WindowMarks:
    """A planned window: its numbers, and the columns over single rows by which `tasks.windower` tells windows apart.

    `marks` are (value, name); `condition` over them leaves out rows that belong to no window.
    """

    window: RowWindow
    marks: tuple[tuple[Tree, str], ...] = ()
    condition: Tree | None = None


def plan_row_window(window: AnyRowWindow, facts: StreamFacts, scope: Scope) -> WindowMarks:
    """Returns how a window is computed; raises InvalidStreamError or InvalidStatementError (tdengine.md 1.4, 2.1)."""
    if not isinstance(window, SessionWindow):
        name = _name(window)
        if not facts.by_table:
            raise InvalidStreamError(f"{name} over a super table needs tbname in PARTITION BY",
                                     hint="add PARTITION BY tbname")
        if facts.table.key_column is not None:
            raise InvalidStreamError(f"{name} cannot read {facts.table.name}: it has a composite primary key")
    match window:
        case SessionWindow():
            return _session(window, facts)
        case StateWindow():
            return _state(window, facts, scope)
        case EventWindow():
            marks = tuple((fragment("coalesce(:met, false)", met=condition_tree(node, scope)), name)
                          for node, name in ((window.start, "#opens"), (window.end, "#ends")))
            return WindowMarks(RowWindow("event", least=_true_for(window.true_for, facts.precision)), marks)
        case CountWindow():
            return _count(window, facts, scope)


def bookkeeping(window: RowWindow, ts: Tree) -> list[tuple[str, Partial]]:
    """Returns the partials that every window carries besides those of the query, by name."""
    last = Accumulator("pick", (Field(LAST_ROW, DataType(Kind.TIMESTAMP)),), ((0, False),))
    kept = [(LAST_ROW, Partial((Part(last, (call("max", ts),)),), field_column(LAST_ROW)))]
    if window.kind == "event":
        ends = Accumulator("add", (Field(END_ROWS, BIGINT),))
        counted = fragment('count(*) FILTER (WHERE "#ends")')
        kept.append((END_ROWS, Partial((Part(ends, (counted,)),), field_column(END_ROWS))))
    return kept


def rows_sql(steps: Sequence[tuple[str, Tree]], planned: WindowMarks, group: Tree, ts: Tree) -> Tree:
    """Returns `SourcePlan.rows_sql`: `steps` end with `kept`, `group` is the group's id."""
    marked = select([everything(), named(group, "#group"), named(ts, "#ts"),
                     *(named(value, name) for value, name in planned.marks)], "kept")
    return select([everything()], "marked", where=planned.condition, steps=[*steps, ("marked", marked)],
                  order_by=[column("#group"), column("#ts"), column("_tuid")])


def describe(window: AnyRowWindow) -> str:
    """Returns the window as EXPLAIN shows it."""
    match window:
        case SessionWindow():
            return f"session({window.gap})"
        case StateWindow():
            return "state_window" + _least(window.true_for)
        case EventWindow():
            return "event_window" + _least(window.true_for)
        case CountWindow():
            return f"count_window({window.count}{'' if window.sliding is None else f', {window.sliding}'})"


def _session(window: SessionWindow, facts: StreamFacts) -> WindowMarks:
    column = unwrapped(window.column)
    if not isinstance(column, exp.Column) or column.name not in (facts.table.time_column.name, "_rowts", "_c0"):
        raise InvalidStreamError("SESSION needs the primary timestamp", code=SESSION_COLUMN,
                                 hint=f"write SESSION({facts.table.time_column.name}, ...)")
    if window.gap.is_calendar or window.gap.in_units(facts.precision) <= 0:
        raise InvalidStreamError(f"the gap {window.gap} of SESSION is not a positive fixed time", code=SESSION_GAP)
    return WindowMarks(RowWindow("session", gap=window.gap.in_units(facts.precision)))


def _state(window: StateWindow, facts: StreamFacts, scope: Scope) -> WindowMarks:
    column = unwrapped(window.expression)
    if isinstance(column, exp.Column) and any(tag.name == column.name for tag in facts.table.tags):
        raise InvalidStreamError("STATE_WINDOW cannot be over a tag", code=STATE_TAG,
                                 hint="use PARTITION BY for tags")
    value = compile_expression(window.expression, scope)
    if value.type.kind not in (*INTEGERS, Kind.BOOL, *STRINGS):
        raise InvalidStreamError(f"STATE_WINDOW cannot be over {value.type.sql()}", code=STATE_TYPE,
                                 hint="use an integer, a boolean or a string")
    return WindowMarks(RowWindow("state", least=_true_for(window.true_for, facts.precision)),
                       ((value.node, "#state"),), fragment('"#state" IS NOT NULL'))


def _count(window: CountWindow, facts: StreamFacts, scope: Scope) -> WindowMarks:
    sliding = window.count if window.sliding is None else window.sliding
    if window.count < 2 or not 1 <= sliding <= window.count:
        raise InvalidStatementError(f"{describe(window)} is not possible",
                                    hint="the count must be at least 2, the slide from 1 to the count")
    if facts.watermark <= 0:
        raise InvalidStreamError("COUNT_WINDOW in a stream needs a WATERMARK", hint="for example WATERMARK 10s")
    if not facts.ignore_expired:
        raise InvalidStreamError("COUNT_WINDOW in a stream needs IGNORE EXPIRED 1")
    planned = WindowMarks(RowWindow("count", count=window.count, sliding=sliding))
    present = [fragment(":value IS NOT NULL", value=compile_expression(node, scope).node) for node in window.columns]
    if not present:
        return planned
    counts = any_of(present)
    return replace(planned, marks=((counts, "#counts"),), condition=column("#counts"))


def _true_for(duration: Duration | None, precision: Precision) -> int:
    if duration is None:
        return 0
    if duration.is_calendar:
        raise InvalidStatementError("TRUE_FOR cannot be in months or years")
    return duration.in_units(precision)


def _least(duration: Duration | None) -> str:
    return "" if duration is None else f" true_for({duration})"


def _name(window: StateWindow | EventWindow | CountWindow) -> str:
    names: Sequence[tuple[type, str]] = (
        (StateWindow, "STATE_WINDOW"), (EventWindow, "EVENT_WINDOW"), (CountWindow, "COUNT_WINDOW"))
    return next(name for kind, name in names if isinstance(window, kind))
