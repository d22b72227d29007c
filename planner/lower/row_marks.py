"""Windows that rows define, as streams compute them: the columns of single rows by which `tasks.windower` tells them
apart, since which rows form a window depends on rows that came before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.common.errors import InternalError
from penstock.planner.duckdb_sql.duckdb_tree import Tree, any_of, call, column, fragment, named, select
from penstock.planner.duckdb_sql.pieces import star
from penstock.planner.functions.partials import Partial, PartialColumn, field_column
from penstock.planner.logical.window_kinds import ByCount, ByEvent, BySession, ByState, Shape
from penstock.planner.task_plans.stream_plan import END_ROWS, LAST_ROW, Accumulator, Field, RowWindow
from penstock.sql.types import BIGINT, DataType, Kind


@dataclass(frozen=True, slots=True)
class RowMarks:
    """A window's numbers, and what marks single rows: (value, name); `condition` over these leaves out rows that belong
    to no window."""

    window: RowWindow
    marks: tuple[tuple[Tree, str], ...] = ()
    condition: Tree | None = None


def marks_of(shape: Shape, least: int) -> RowMarks:
    """Returns how windows of at least that many units are computed."""
    match shape:
        case BySession(gap):
            return RowMarks(RowWindow("session", gap=gap))
        case ByState(value):
            return RowMarks(RowWindow("state", least=least), ((value.node, "#state"),),
                            fragment('"#state" IS NOT NULL'))
        case ByEvent(start, end):
            marks = tuple((fragment("coalesce(:met, false)", met=met.node), name)
                          for met, name in ((start, "#opens"), (end, "#ends")))
            return RowMarks(RowWindow("event", least=least), marks)
        case ByCount(count, sliding, values):
            planned = RowWindow("count", count=count, sliding=sliding)
            if not values:
                return RowMarks(planned)
            counts = any_of([fragment(":value IS NOT NULL", value=value.node) for value in values])
            return RowMarks(planned, ((counts, "#counts"),), column("#counts"))
    raise InternalError(f"{type(shape).__name__} is no window that rows define")


def bookkeeping(window: RowWindow, ts: Tree) -> list[Partial]:
    """Returns the partials that every window carries besides those of the query."""
    last = Accumulator("pick", (Field(LAST_ROW, DataType(Kind.TIMESTAMP)),), ((0, False),))
    kept = [Partial((PartialColumn(last, (call("max", ts),)),), field_column(LAST_ROW))]
    if window.kind == "event":
        ends = Accumulator("add", (Field(END_ROWS, BIGINT),))
        counted = fragment('count(*) FILTER (WHERE "#ends")')
        kept.append(Partial((PartialColumn(ends, (counted,)),), field_column(END_ROWS)))
    return kept


def rows_query(steps: Sequence[tuple[str, Tree]], marks: RowMarks, group: Tree, ts: Tree) -> Tree:
    """Returns `SourcePlan.rows_sql`: `steps` end with `kept`, `group` is the group's id."""
    marked = select([star(), named(group, "#group"), named(ts, "#ts"),
                     *(named(value, name) for value, name in marks.marks)], "kept")
    return select([star()], "marked", where=marks.condition, steps=[*steps, ("marked", marked)],
                  order_by=[column("#group"), column("#ts"), column("_tuid")])
