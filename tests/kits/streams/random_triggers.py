"""Random streams with a trigger of their own: what they are, the windows that they have by definition, and what their
queries give for a window, as text with the constants put in by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from hypothesis import strategies as st

SECOND = 1_000
#: Begins well before rows and fits windows of any length that divides a minute.
BASE = 1_700_000_040_000
#: When each table has its last row, which closes all windows before it. Its state is no other's.
FAR = BASE + 300 * SECOND
LAST_STATE, LAST_VALUE = -1, 9

GroupValue = str | int | None


class Row(NamedTuple):
    """A row of table `t<table>`, whose tag is `site`."""

    time: int
    table: int
    site: int
    v: int | None
    x: int | None


@dataclass(frozen=True)
class Fired:
    """A window by definition: of which group, and how many rows it has."""

    group: tuple[GroupValue, ...]
    start: int
    end: int
    rows: int


Split = Callable[[Sequence[Row]], list[tuple[int, int, int]]]
"""Gives the windows of a group's rows in order of time: start, end, and how many rows; open ones as well."""


@dataclass(frozen=True)
class Trigger:
    """A trigger. `by_table`: its groups are tables. `apart`: no row is in two windows. `in_order`: none may be late.

    `filled`: windows are on a grid, and end before their end. `slides`: it has SLIDING's words.
    """

    text: str
    split: Split
    by_table: bool = False
    apart: bool = True
    in_order: bool = False
    filled: bool = False
    slides: bool = False


@dataclass(frozen=True)
class Question:
    """What is computed, with `{S}`, `{E}`, `{N}` and `{D}` for start, end, number of rows and length; `{rows}` for
    %%trows, `{rows_and}` before more conditions; `{table_and}` for %%tbname, `{name}` for its name, `{group}` for %%1.

    `by_table`: it needs the table's name. `in_order`: it reads rows before the window. `apart`: windows that share rows
    would write the same times. `columns`: those of INTO, if one is a key. `grouped`: it needs PARTITION BY.
    `of_windows`: it has what SLIDING alone doesn't give. `forced`: FORCE_OUTPUT may stand beside it.
    """

    text: str
    by_table: bool = False
    in_order: bool = False
    apart: bool = False
    columns: str = ""
    grouped: bool = False
    of_windows: bool = False
    forced: bool = False

    @property
    def has_key(self) -> bool:
        return "KEY" in self.columns


@dataclass(frozen=True)
class Stream:
    """A stream: trigger, table or `m`, what PARTITION BY has, options and the query."""

    name: str
    trigger: Trigger
    source: str
    partition: tuple[str, ...]
    condition: str | None
    options: tuple[str, ...]
    question: Question

    @property
    def statement(self) -> str:
        start, end = ("_tprev_ts", "_tcurrent_ts") if self.trigger.slides else ("_twstart", "_twend")
        query = self.question.text.format(
            S=start, E=end, N="_twrownum", D="_twduration", rows="%%trows", rows_and="%%trows WHERE", group="%%1",
            table_and="%%tbname WHERE", name="%%tbname")
        options = [*self.options, *([] if self.condition is None else [f"PRE_FILTER({self.condition})"])]
        return " ".join(filter(None, (
            f"CREATE STREAM {self.name} {self.trigger.text} FROM {self.source}",
            f"PARTITION BY {', '.join(self.partition)}" if self.partition else "",
            f"STREAM_OPTIONS({' | '.join(options)})" if options else "",
            f"INTO o_{self.name} {self.question.columns}".rstrip(), f"AS {query}")))

    def asked(self, window: Fired) -> str:
        """The query of one window, with constants."""
        start, end = (f"CAST({time} AS TIMESTAMP)" for time in (window.start, window.end))
        conditions = [f"ts >= {start}", f"ts {'<' if self.trigger.filled else '<='} {end}"]
        conditions += [f"{item} IS NULL" if value is None else f"{item} = {literal(value)}"
                       for item, value in zip(self.partition, window.group, strict=True)]
        conditions += [] if self.condition is None else [f"({self.condition})"]
        conditions += ["v IS NOT NULL"] if self._counts_values else []
        rows = f"{self.source} WHERE {' AND '.join(conditions)}"
        table = self.source
        if self.source == "m" and "tbname" in self.partition:
            table = str(window.group[self.partition.index("tbname")])
        return self.question.text.format(
            S=start, E=end, N=window.rows, D=window.end - window.start, rows=rows, rows_and=f"{rows} AND",
            group=literal(window.group[0]) if window.group else "", table_and=f"{table} WHERE", name=f"'{table}'")

    @property
    def forces(self) -> bool:
        """Whether a window without results has a row: its start, end and 7, and a NULL for both others."""
        return "FORCE_OUTPUT" in self.options

    def windows(self, rows: Sequence[Row]) -> list[Fired]:
        """All windows that fire before the tables' last rows, and those that are open by then."""
        kept = [row for row in rows if self._reads(row)]
        found = []
        for group in sorted({self._group(row) for row in kept}, key=repr):
            own = sorted(row for row in kept if self._group(row) == group)
            found += [Fired(group, *window) for window in self.trigger.split(own) if window[0] < FAR]
        return found

    def _reads(self, row: Row) -> bool:
        return self.source in ("m", f"t{row.table}") and (
            self.condition is None or CONDITIONS[self.condition](row)) and (
            not self._counts_values or row.v is not None)

    @property
    def _counts_values(self) -> bool:
        return self.trigger.text.endswith(", v)")

    def _group(self, row: Row) -> tuple[GroupValue, ...]:
        return tuple(ITEMS[item](row) for item in self.partition)


def literal(value: GroupValue) -> str:
    return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value)


ITEMS: dict[str, Callable[[Row], GroupValue]] = {
    "tbname": lambda row: f"t{row.table}", "site": lambda row: row.site, "x": lambda row: row.x,
}
CONDITIONS: dict[str, Callable[[Row], bool]] = {
    "v > 2": lambda row: row.v is not None and row.v > 2,
    "v IS NOT NULL": lambda row: row.v is not None,
    "x IS NOT NULL": lambda row: row.x is not None,
    "v <> 4 OR site = 1": lambda row: row.site == 1 or (row.v is not None and row.v != 4),
}


# --- windows by definition ------------------------------------------------------------------------------------------


def intervals(length: int, step: int, offset: int, *, filled: bool) -> Split:
    """INTERVAL; `filled`: also those without rows, between two that have some."""
    def split(rows: Sequence[Row]) -> list[tuple[int, int, int]]:
        counts: dict[int, int] = {}
        for row in rows:
            start = (row.time - offset) // step * step + offset
            while start > row.time - length:
                counts[start] = counts.get(start, 0) + 1
                start -= step
        last = max((start for start in counts if start < FAR - length), default=0)
        starts = set(counts)
        if filled and last:
            starts |= set(range(min(counts), last, step))
        return [(start, start + length, counts.get(start, 0)) for start in sorted(starts) if start <= last]

    return split


def sessions(gap: int) -> Split:
    """SESSION, which fires when no row can join it any more, and ends with its last row."""
    def split(rows: Sequence[Row]) -> list[tuple[int, int, int]]:
        found: list[list[Row]] = []
        for row in rows:
            if found and row.time - found[-1][-1].time <= gap:
                found[-1].append(row)
            else:
                found.append([row])
        return [(some[0].time, some[-1].time, len(some)) for some in found]

    return split


def states(least: int) -> Split:
    """STATE_WINDOW(x); rows without a state are of none."""
    def split(rows: Sequence[Row]) -> list[tuple[int, int, int]]:
        found = [list(some) for _, some in groupby((row for row in rows if row.x is not None), lambda row: row.x)]
        return [(some[0].time, some[-1].time, len(some)) for some in found if some[-1].time - some[0].time >= least]

    return split


def events(least: int) -> Split:
    """START WITH x = 1 END WITH x >= 2; those that end."""
    def split(rows: Sequence[Row]) -> list[tuple[int, int, int]]:
        found, begun, count = [], None, 0
        for row in rows:
            if begun is None and row.x == 1:
                begun, count = row.time, 0
            count += 1
            if begun is not None and row.x is not None and row.x >= 2:
                found.append((begun, row.time, count))
                begun = None
        return [window for window in found if window[1] - window[0] >= least]

    return split


def counts(count: int, step: int) -> Split:
    """COUNT_WINDOW; those that are full."""
    def split(rows: Sequence[Row]) -> list[tuple[int, int, int]]:
        return [(rows[first].time, rows[first + count - 1].time, count)
                for first in range(0, len(rows) - count + 1, step)]

    return split


# --- drawing --------------------------------------------------------------------------------------------------------

QUESTIONS = (
    Question("SELECT {S} ts, {E} till, {N} n, count(*) c, sum(v) s FROM {rows}", of_windows=True),
    Question("SELECT {S} ts, avg(v) a, min(x) b, max(ts) l, first(v) f, last(x) e, spread(v) z FROM {rows}"),
    Question("SELECT {S} ts, {E} till, 7 n, max(v) a, min(x) b FROM {rows_and} v > 5", forced=True),
    Question("SELECT ts, v, x y, tbname t FROM {rows}"),
    Question("SELECT ts, v FROM {rows_and} v IS NOT NULL ORDER BY v DESC, ts, tbname LIMIT 2", apart=True),
    Question("SELECT ts, v, sum(v) OVER (ORDER BY ts, tbname) r FROM {rows}", apart=True),
    Question("SELECT {S} ts, coalesce(x, -5) k, count(*) c, max(v) b FROM {rows} GROUP BY coalesce(x, -5)",
             columns="(ts, k COMPOSITE KEY, c, b)"),
    Question("WITH r AS (SELECT ts, v FROM {rows}) SELECT {S} ts, max(v) a, min(v) b, max(ts) l FROM r"),
    Question("SELECT {S} ts, max(a.v) a, count(*) c, max(b.w) w FROM (SELECT ts, v FROM {rows}) a "
             "JOIN o b ON a.ts = b.ts"),
    Question("SELECT {S} ts, (SELECT max(w) FROM o WHERE ts <= {E}) w, count(*) c FROM {rows}"),
    Question("SELECT {S} ts, count(*) c, max(w) w FROM o WHERE ts >= {S} AND ts < {E}"),
    Question("SELECT ts, w FROM o WHERE ts >= {S} AND {E} > ts", apart=True),
    Question("SELECT {S} ts, sum(v) s FROM {rows} UNION ALL SELECT {S} + 1a, sum(w) FROM o WHERE ts > {E} - 5s"),
    Question("SELECT {S} ts, {E} till, {N} n, {D} d, {group} g", grouped=True, of_windows=True),
    Question("SELECT {S} ts, count(*) c, min(ts) f, max(ts) l FROM (SELECT ts FROM {rows} ORDER BY ts LIMIT 3)"),
    Question("SELECT ts, v, lag(v) OVER (PARTITION BY tbname ORDER BY ts) p FROM {rows_and} x IS NOT NULL QUALIFY "
             "row_number() OVER (PARTITION BY tbname ORDER BY ts) > 1", apart=True),
    Question("SELECT {S} ts, count(*) c FROM o WHERE w IN (SELECT v FROM {rows})"),
    Question("SELECT {S} ts, max(v) a, {name} t FROM {table_and} ts >= {S} AND ts < {E}", by_table=True),
    Question("SELECT {S} ts, count(*) c, sum(v) s FROM {table_and} ts <= {E}", by_table=True, in_order=True),
    Question("SELECT {S} ts, count(*) c, last(v) s FROM {table_and} ts < {E}", by_table=True, in_order=True),
    Question("SELECT {S} ts, max(a.ts) l, count(*) c FROM (SELECT * FROM {table_and} ts >= {S}) a JOIN o b "
             "ON a.ts = b.ts WHERE a.ts < {E}", by_table=True),
)


_AGGREGATES = ("count(*)", *(f"{name}({column})" for column in ("v", "x") for name in (
    "count", "sum", "avg", "min", "max", "spread", "first", "last")), "min(ts)", "last(ts)")
"""What tasks that have the rows of a window compute as the query does."""


@st.composite
def aggregates(draw: st.DrawFn, *, of_windows: bool, by_table: bool) -> Question:
    """A question that INTERVAL and SESSION answer without its query. `by_table`: it may read the table of the group."""
    columns = draw(st.lists(st.sampled_from(_AGGREGATES), min_size=1, max_size=6, unique=True))
    columns += ["{N}"] * (of_windows and draw(st.booleans()))
    shown = ", ".join(f"{column} c{place}" for place, column in enumerate(columns))
    from_table = by_table and draw(st.booleans())
    rows = "{table_and} ts >= {S} AND ts < {E}" if from_table else "{rows}"
    return Question(f"SELECT {{S}} ts, {shown} FROM {rows}", by_table=from_table)


@st.composite
def triggers(draw: st.DrawFn, in_order: bool) -> Trigger:
    kind = draw(st.sampled_from(
        ["interval", "interval", "sliding", "session", "session", "state", "event", *["count"] * in_order]))
    least = draw(st.sampled_from([0, 0, 2]))
    lasting = f" TRUE_FOR({least}s)" if least else ""
    match kind:
        case "interval":
            step = draw(st.sampled_from([2, 5, 6]))
            length = step * draw(st.sampled_from([1, 1, 2, 3]))
            offset = draw(st.sampled_from([0, 0, 1]))
            text = f"INTERVAL({length}s{f', {offset}s' * bool(offset)}) SLIDING({step}s)"
            return Trigger(text, intervals(length * SECOND, step * SECOND, offset * SECOND, filled=True),
                           apart=length == step, filled=True)
        case "sliding":
            step = draw(st.sampled_from([3, 10]))
            return Trigger(f"SLIDING({step}s)", intervals(step * SECOND, step * SECOND, 0, filled=True),
                           filled=True, slides=True)
        case "session":
            gap = draw(st.sampled_from([1, 2, 4]))
            return Trigger(f"SESSION(ts, {gap}s)", sessions(gap * SECOND))
        case "state":
            return Trigger(f"STATE_WINDOW(x){lasting}", states(least * SECOND), by_table=True)
        case "event":
            return Trigger(f"EVENT_WINDOW(START WITH x = 1 END WITH x >= 2){lasting}", events(least * SECOND),
                           by_table=True)
        case _:
            count = draw(st.sampled_from([2, 3, 4]))
            step = draw(st.integers(1, count))
            columns = draw(st.sampled_from(["", "", ", v"]))
            return Trigger(f"COUNT_WINDOW({count}, {step}{columns})", counts(count, step), by_table=True,
                           apart=step == count, in_order=True)


@st.composite
def streams(draw: st.DrawFn, name: str, tables: int, in_order: bool) -> Stream:
    """A stream over the super table `m` or one of its tables; `in_order`: its rows come in order, and none goes."""
    trigger = draw(triggers(in_order))
    source = draw(st.sampled_from(["m", "m", "m", f"t{draw(st.integers(0, tables - 1))}"]))
    partitions: list[tuple[str, ...]] = [("tbname",), ("tbname",), ("site", "tbname")]
    if not trigger.by_table:
        partitions += [(), ("site",), ("x",), ("site", "x")]
    partition = draw(st.sampled_from(partitions)) if source == "m" else ()
    by_table = "tbname" in partition or source != "m"
    condition = draw(st.sampled_from([None, None, *CONDITIONS]))
    if "STATE" in trigger.text and not in_order:  # rows without a state fire nothing, but are among the trigger's
        condition = "x IS NOT NULL"
    question = draw(st.sampled_from([
        each for each in QUESTIONS
        # What PRE_FILTER leaves out fires nothing, but is in the table.
        if (not each.by_table or (by_table and (in_order or condition is None)))
        and (in_order or not each.in_order) and (trigger.apart or not each.apart)
        and (partition or not each.grouped) and not (trigger.slides and each.of_windows)]))
    if trigger.text.startswith(("INTERVAL", "SESSION")) and draw(st.booleans()):
        in_table = trigger.filled and by_table and condition is None
        question = draw(aggregates(of_windows=not trigger.slides, by_table=in_table))
    options = []
    if trigger.filled and draw(st.integers(0, 3)) == 0:
        options.append("IGNORE_NODATA_TRIGGER")
        trigger = _unfilled(trigger)
    if question.forced and draw(st.booleans()):
        options.append("FORCE_OUTPUT")
    if draw(st.integers(0, 4)) == 0:
        late = [] if trigger.in_order else ["WATERMARK(2s)"]  # else the tables' last rows would leave windows open
        options.append(draw(st.sampled_from([*late, "LOW_LATENCY_CALC", "DELETE_RECALC"])))
    return Stream(name, trigger, source, partition, condition, tuple(options), question)


def _unfilled(trigger: Trigger) -> Trigger:
    split = trigger.split
    return Trigger(trigger.text, lambda rows: [window for window in split(rows) if window[2]], trigger.by_table,
                   trigger.apart, trigger.in_order, filled=True, slides=trigger.slides)
