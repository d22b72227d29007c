"""What the tasks of a stream compute: plain data that is shipped to workers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from penstock.common.connection import ConnectionKind
from penstock.planner.duckdb_sql.interval_windows import Grid, count_between, grid_of, window_bounds
from penstock.planner.task_plans.kernel_spec import FinalKernel, SourceKernel
from penstock.planner.task_plans.plan_tree import PlanNode
from penstock.planner.task_plans.schedule import Schedule
from penstock.planner.task_plans.user_calls import UserCall
from penstock.sql.schema import PLACE, Column, UserFunction
from penstock.sql.tree.statements import (
    ExternalFormat,
    FillMode,
    Guarantee,
    IntervalWindow,
    NotifyEvent,
    NotifyFailure,
    OnFailure,
)
from penstock.sql.types import UBIGINT, VARCHAR, DataType, Precision

Trigger = Literal["at_once", "window_close", "max_delay", "force_window_close", "continuous_window_close", "period"]


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a block: its name there and its type. TIMESTAMP values travel as int64.

    `many`: each row has a list of values of the type.
    """

    name: str
    type: DataType
    many: bool = False

    def duckdb(self) -> str:
        """Returns the column's DuckDB type in compiled SQL."""
        return self.type.duckdb() + ("[]" if self.many else "")


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of the source table that the stream reads: `name` in SQL, `physical` in the WAL."""

    name: str
    physical: str
    type: DataType


LOOKUP = "lookup"


@dataclass(frozen=True, slots=True)
class LookupPlan:
    """A table that rows of a stream look up in: a normal table, the tags of a super table, or with `connection` one of
    an external server.

    Source tasks keep a copy of its `columns` as the relation LOOKUP of their SQL: `name` there, `physical` in the
    table. `described` are all columns of an external table when the stream was planned: they are to be remembered.
    """

    table: str
    table_uid: int
    connection: str | None
    columns: tuple[SourceColumn, ...]
    described: tuple[Column, ...] = ()

    @property
    def text(self) -> str:
        """What is looked up in, as reasons of tasks have it."""
        return self.table if self.connection is None else f"{self.table} of connection {self.connection}"


AccumulatorKind = Literal["add", "wide_add", "pick", "moments", "values", "distinct", "udaf"]


@dataclass(frozen=True, slots=True)
class Accumulator:
    """How partials of one (group, window) are combined.

    add: `fields` has one numeric column; values are added, NULL counts as nothing.
    wide_add: `fields` are 64 bits of a sum, which wrap around, and how often it went beyond them.
    pick: the candidate with the best order wins as a whole: `order` lists positions in `fields` with True for
    smallest-first; a candidate whose first order field is NULL never wins. The other fields are carried along.
    moments: `fields` are count, mean and sum of squared deviations (Chan's parallel update).
    values: `fields` has one list, of all values; distinct: of the different ones. No bound: it grows with the window.
    udaf: `fields` has one column with states of the user's aggregate `function`, which merges them.
    """

    kind: AccumulatorKind
    fields: tuple[Field, ...]
    order: tuple[tuple[int, bool], ...] = ()
    function: UserFunction | None = None


@dataclass(frozen=True, slots=True)
class TimeWindows:
    """Windows that a grid of time gives, in units of `precision`. `interval` None: all time is one window."""

    interval: IntervalWindow | None
    precision: Precision
    time_zone: str

    @property
    def grid(self) -> Grid:
        return grid_of(self.interval, self.precision, self.time_zone)

    def bounds(self, ts: int) -> list[tuple[int, int]]:
        """Returns [start, end) of every window that holds the instant `ts`, oldest first."""
        return window_bounds(ts, self.interval, self.precision, self.time_zone)

    def count_between(self, first: int, last: int) -> int:
        """Returns about how many windows start in [first, last]."""
        return count_between(first, last, self.interval, self.precision, self.time_zone)


@dataclass(frozen=True, slots=True)
class RowWindow:
    """Windows that rows define. `gap`, `least`: in units of the precision; windows shorter than `least` don't count.

    session: rows at most `gap` apart. state: rows of equal state. event: from a row that meets the start condition to
    the next that meets the end condition. count: `count` rows, a new window at every `sliding`-th.
    """

    kind: Literal["session", "state", "event", "count"]
    gap: int = 0
    count: int = 0
    sliding: int = 0
    least: int = 0


LAST_ROW, END_ROWS = "_wlast", "_ends"
"""What every window carries that rows define: its newest row's time, and how many rows of it end an event window."""


@dataclass(frozen=True, slots=True)
class History:
    """FILL_HISTORY 1: rows from before the stream that it computes too, by inclusive bounds of the primary timestamp.

    The bounds are what WHERE implies, None where it implies none.
    """

    first_ts: int | None
    last_ts: int | None


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """What a source task reads of its vnode, rows of the table `database.table`, and computes over them.

    The SQL texts read the relation `rows`: `_tuid`, the `columns` by name (timestamps BIGINT), and, where
    `needs_children`, are joined with `children`: `_tuid`, `tbname` and the tags by name.
    Unless windows go by the rows' own time, rows also have `#time`, when they arrived.
    `sql` yields blocks: `_gid`, keys, then for windows `_wstart`, `_rows` and the accumulators' fields, or for
    scalar streams the result columns.
    `late_sql` is the same for rows that carry `_row` (a number), `_limit` (newest event time of the vnode before the
    row's record, minus the delay of closing) and `_last` (newest event time of the row's table before it; both NULL for
    rows that cannot be late), and leaves out what is expired; `expired_sql` yields the `_row` of those all of whose
    windows are. Both are None if late rows are never dropped.
    `keep_tuid`: the `_tuid` of the only child table that counts, or None. `group_is_table`: `_gid` is the `_tuid`.
    `key_column`: that of the second part of the source's primary key, or None.
    Where rows define windows, `rows_sql` yields the rows that count, sorted by group and time, with `#group`, `#ts` and
    the marks of their kind (`#state`; `#opens` and `#ends`); `sql` then reads `windowed`: those rows with the
    `_wstart` of their window. There is no `late_sql`: each row is judged by its own time.
    `kernel` is what `sql` and `rows_sql` compute, where that is simple enough to do without DuckDB.
    With `lookup` they join with the relation LOOKUP first.
    `history`: what of the rows from before the stream counts, too; None: nothing.
    `used_tags`: the names of those `tags` that the SQL reads; None in plans of older versions: any may be.
    """

    database: str
    table: str
    storage_uid: int
    keep_tuid: int | None
    time_column: str
    group_is_table: bool
    precision: Precision
    columns: tuple[SourceColumn, ...]
    tags: tuple[Field, ...]
    needs_children: bool
    sql: str
    late_sql: str | None
    expired_sql: str | None
    rows_sql: str = ""
    kernel: SourceKernel | None = None
    key_column: str | None = None
    lookup: LookupPlan | None = None
    history: History | None = None
    used_tags: tuple[str, ...] | None = None

    @property
    def timed(self) -> bool:
        """Whether its rows go by a time: those of a table with a KEY have places, which mean nothing."""
        return self.time_column != PLACE.name


@dataclass(frozen=True, slots=True)
class FillPlan:
    """What stands in windows without rows between two windows of a group.

    `sql` reads the relation `gaps`: `_op`, `_gid`, keys, `_wstart`, and of the windows around it their starts `_t0` and
    `_t1` and the result columns `b<i>` (of the one before) for i in `before`, `a<i>` for i in `after`. It yields
    `_op`, `_gid`, keys and the result columns.
    """

    mode: FillMode
    before: tuple[int, ...]
    after: tuple[int, ...]
    sql: str


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """A stream without windows: source tasks make result rows of their rows, and nothing is kept of these."""


@dataclass(frozen=True, slots=True)
class WindowsPlan:
    """What an agg task keeps per (group, window), and how a result row is made of it.

    `final_sql` reads the relation `state` (`_gid`, keys, `_wstart`, `_rows`, the accumulators' fields) and yields
    `_op` (1 where no rows are left, or none that count: the result is to be deleted), `_gid`, keys and the result
    columns.
    `kernel` is what `final_sql` computes, where that is simple enough to do without DuckDB. `meanings`: what the keys
    and the accumulators stand for, in their order, as the statement spells them. `period_ms`: MAX_DELAY's delay, or
    RECALCULATE's period. `retracts`: rows that go are taken out of the accumulators, all of which add.
    """

    windows: TimeWindows | RowWindow
    accumulators: tuple[Accumulator, ...]
    final_sql: str
    kernel: FinalKernel | None = None
    meanings: tuple[str, ...] = ()
    fill: FillPlan | None = None
    period_ms: int = 0
    retracts: bool = False

    @property
    def fields(self) -> tuple[Field, ...]:
        return tuple(field for accumulator in self.accumulators for field in accumulator.fields)


@dataclass(frozen=True, slots=True)
class ForcePlan:
    """What a source task computes by the clock (FORCE_WINDOW_CLOSE).

    `sql` reads `rows` (and `children`) and yields `_op`, `_gid`, keys, result columns, and `_start`: of the window, or
    of the step that ends at an INTERP instant. `keep_sql` yields those of `rows` that a later window may look back at;
    None: none. With `instants`, `sql` has the parameter INSTANT: the one instant of a run's grid.
    `alone`: a run computes one window only. `created`: when the stream was made, in units of the precision.
    """

    windows: TimeWindows
    sql: str
    keep_sql: str | None
    instants: bool
    alone: bool
    created: int
    fill: FillPlan | None = None


@dataclass(frozen=True, slots=True)
class PeriodPlan:
    """What fires by the clock alone, and for which groups.

    `groups_sql` reads the relation LOOKUP, the `tags` of the trigger's child tables, and yields `_gid` and keys, each
    group once; None: there is one group.
    """

    schedule: Schedule
    groups_sql: str | None
    tags: LookupPlan | None


INSTANT = "instant"
"""The parameter of `ForcePlan.sql` for the instant that a run is about."""


@dataclass(frozen=True, slots=True)
class ExternalSinkPlan:
    """Where results go outside of Penstock: a topic, table or path of a connection.

    `place` is empty where the connection's own address will do. `format` is None for PostgreSQL. `qos` is MQTT's.
    `on_failure`: what becomes of results that can't be delivered, once they were tried for long enough.
    """

    connection: str
    kind: ConnectionKind
    place: str
    format: ExternalFormat | None
    qos: int = 1
    on_failure: OnFailure = "pause"

    @property
    def text(self) -> str:
        """The place as EXPLAIN and SHOW have it."""
        return f"{self.kind} connection {self.connection}" + (f", {self.place}" if self.place else "")


def target_text(database: str, table: str, external: ExternalSinkPlan | None) -> str:
    """Returns where results go as EXPLAIN and SHOW have it."""
    if external is not None:
        return external.text
    return f"{database}.{table}" if table else "notifications"


WindowType = Literal["Time", "State", "Session", "Event", "Count", "Interval", "Period", "Sliding"]


@dataclass(frozen=True, slots=True)
class NotifyPlan:
    """Who is told of windows that open and close.

    `end_column`: which result column is the window's end; None: the grid of time tells. `skips_before`: nobody is
    told of windows that opened or ended before it, in units of the source's precision; None: of all they are.
    """

    urls: tuple[str, ...]
    events: tuple[NotifyEvent, ...]
    on_failure: NotifyFailure
    window_type: WindowType
    end_column: int | None
    skips_before: int | None = None


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """Where results go.

    `columns` are the target's columns that the result columns `r0`, `r1`, ... are written to, the primary timestamp
    first. `children_sql` reads the relation `groups` (`_gid`, keys) and yields `_gid`, `_child` (the name of the
    child table) and `t0`, `t1`, ... (values of the target's `tags`, or NULL).
    `target_uid` is 0 until the engine has created the target.
    With `external` there is no table: `database` is the name of the connection, `table` the place there, and `tags` are
    the groups' keys.
    `checks_results`: another result column, the last one, names what doesn't fit its column; such rows aren't written.
    `checks_tags`: `children_sql` yields `_problem` as well, which does so for the tags of a child table.
    `key_places`: the target is a table with a KEY, which has a row for each group, and no child tables: which column
    each key of groups is. `single`: such a table has no row but that of the only group, whatever its KEY.
    `by_key`: of `external` rows without groups and a time of their own; the columns that are flagged tell them apart.
    """

    database: str
    table: str
    columns: tuple[Column, ...]
    tags: tuple[Column, ...]
    children_sql: str
    target_uid: int
    create: bool
    external: ExternalSinkPlan | None = None
    checks_results: bool = False
    checks_tags: bool = False
    key_places: tuple[int, ...] = ()
    by_key: bool = False
    single: bool = False

    @property
    def text(self) -> str:
        """The target as EXPLAIN and SHOW have it."""
        return target_text(self.database, self.table, self.external)

    @property
    def keyed(self) -> bool:
        """Whether the target is a table with a KEY, to which groups belong."""
        return self.single or bool(self.key_places)

    @property
    def problem(self) -> str | None:
        """The result column that names what doesn't fit, or None."""
        return f"r{len(self.columns)}" if self.checks_results else None

    @property
    def key_column(self) -> Column | None:
        """The second part of the target's primary key, result column `r1`, or None."""
        return self.columns[1] if len(self.columns) > 1 and self.columns[1].primary_key and not self.keyed else None


TimeClock = Literal["event", "ingestion", "processing"]
ARRIVAL_COLUMN = "#time"


@dataclass(frozen=True, slots=True)
class TimePlan:
    """How a stream goes by time, beyond its watermark. Durations are in units of the source's precision.

    `clock`: what windows go by: the rows' own time, the ingestion of their WAL records, or when they are processed.
    `lateness`: how much longer a window stays open than the watermark says. `idle_timeout_s`: after how many seconds
    without rows a vnode is idle (None: as the engine is configured). `close_when_idle`: time goes on by the clock
    while all vnodes are idle. `max_future`: how much newer than its WAL record a row may be (None: as it likes);
    `created`: when the stream was made, which no row of its history is newer than. `max_skew`:
    how far a vnode may be ahead of the slowest that isn't idle (None: as it likes). `writer_timeout_ms`: time is what
    writers have noted, and after so long without a note one is left out (None: time is that of the rows).
    """

    clock: TimeClock = "event"
    lateness: int = 0
    idle_timeout_s: float | None = None
    close_when_idle: bool = False
    max_future: int | None = None
    max_skew: int | None = None
    writer_timeout_ms: int | None = None
    created: int = 0


OnError = Literal["null", "fail", "skip", "dlq"]

TTL_STEPS = 8
"""Into so many steps STATE_TTL is cut at most."""


@dataclass(frozen=True, slots=True)
class DlqPlan:
    """The table for rows that a stream leaves out: those that come `late`, or `errors` and those from the future.

    `failures`: and results that an external target doesn't take.

    `target_uid` is 0 until it is created. `columns` are all that a row of the source has.
    """

    database: str
    table: str
    target_uid: int
    columns: tuple[SourceColumn, ...]
    late: bool
    errors: bool
    failures: bool = False

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"


class IsolationClass(Enum):
    """With whom a stream shares processes: only with streams of the same kind."""

    ANY = "streams that keep no more groups than there are tables, and call no users' functions"
    USER_CODE = "streams that call users' functions"
    OPEN_GROUPS = "streams whose groups nothing bounds"


@dataclass(frozen=True, slots=True)
class JoinSide:
    """One of the two tables that a stream joins.

    `source` is what its source tasks compute: `_row`, `_gid` (a number that is equal for rows that may give results of
    one place), `_tuid`, and `columns` as `r0`, `r1`, ..., the primary timestamp first, then the key column if there is
    one. `slack`: rows older than their vnode's time by more come too late; None: none does. `newest_sql` reads `rows`
    that are older than all that may still look for one, and yields those of them that may be found; None: all may.
    """

    source: SourcePlan
    columns: tuple[Column, ...]
    slack: int | None
    dlq: DlqPlan | None
    newest_sql: str | None = None


JoinDistribution = Literal["vnode", "exchange"]


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """What a join task computes of the rows of both sides.

    `sql` reads `left_rows` and `right_rows` (`_tuid`, `r0`, ...) and yields `_at`, `_op` (0), `_gid`, keys and result
    columns: it is the batch query. `places_sql` yields the same of a join in which rows of one side stay alone: a
    result with the group and time of each that they may have part in. `driver` is the side whose rows all have a place
    in time; the other side's time minus the driver's is within `start` and `end` (None: without bound). `both`: rows of
    either side may stand alone, and `_at` is their time plus 1. `width`: of the longest of `windows` over the
    driver's time, whose end is `_at`; 0 without windows, where `_at` is NULL unless `both`. `waits`: so long after its
    time a row may find partners. `kept`: how far behind the join's time the driver's rows count. `single`: why there is
    only one join task; empty if there is one per vnode. `distribution` and `reason`: where rows meet, and
    why. `right_vgroup_ids`: of the right side's database.
    """

    left: JoinSide
    right: JoinSide
    sql: str
    places_sql: str
    driver: Literal["left", "right"]
    start: int | None
    end: int
    both: bool
    windows: TimeWindows | None
    width: int
    waits: int
    kept: int
    distribution: JoinDistribution
    reason: str
    single: str
    right_vgroup_ids: tuple[int, ...]

    @property
    def sides(self) -> tuple[JoinSide, JoinSide]:
        return self.left, self.right

    def kept_of(self, place: int, delete_mark: int) -> int:
        """Returns how far behind the join's time rows of a side are kept; `place`: 0 left, 1 right.

        `delete_mark` is for rows that no time ends: it must.
        """
        if (place == 0) == (self.driver == "left"):
            return self.kept + (max(self.end, 0) if self.both else 0)
        if self.start is not None:
            return self.kept - (min(self.start, 0) if self.both else self.start)
        return self.kept - self.end if self.sides[place].newest_sql is not None else self.kept + delete_mark


@dataclass(frozen=True, slots=True)
class RefreshPlan:
    """A stream of any query: what its result table holds is compared with the answer whenever a table that it reads
    has changed, and made the same.

    `sources`: the tables, each once. `reason`: what the query has that no quicker way is known for.
    `groups`: tags of the only source, or `tbname`, by which rows are grouped, where the answer for a group is of the
    rows of its child tables alone: then only groups of tables that have changed are computed. `keys`: the places of
    their values among the columns of the result. `repeats`: rows of the answer may be equal, and the table holds as
    many of them; all of its columns are its KEY.
    `touched`: places of columns of the result by whose values its rows are of rows of their own. `origins`: of each
    source, for each of its scans, the physical columns that these values are; see `planner.streams.touched_keys`.
    `steady`: of each source, whether a row that is rewritten keeps them, since they are of its KEY. `claimed`: that the
    KEY tells rows apart the statement says alone, and rows with other such values might have the same.
    """

    sources: tuple[SourcePlan, ...]
    reason: str
    groups: tuple[str, ...] = ()
    keys: tuple[int, ...] = ()
    repeats: bool = False
    touched: tuple[int, ...] = ()
    origins: tuple[tuple[tuple[str, ...], ...], ...] = ()
    steady: tuple[bool, ...] = ()
    claimed: bool = False


Computation = RowsPlan | WindowsPlan | JoinPlan | ForcePlan | RefreshPlan | PeriodPlan
"""What a stream computes: result rows of rows, windows, a join, windows that the clock ends, or any query; or that the
clock has come to a time."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """What rows and results are told apart by: the keys of PARTITION BY, and tags of the target.

    `colocated`: groups are parts of tables, so that source, agg and sink of a vnode form a chain of their own and
    nothing crosses to another vnode. `table_key`: which of the keys is the name of the rows' table, if any is.
    `by_values`: columns of rows tell groups apart, so nothing bounds how many there are; with names and tags of tables
    there are no more than tables.
    """

    keys: tuple[Field, ...]
    colocated: bool
    table_key: int | None = None
    by_values: bool = False


@dataclass(frozen=True, slots=True)
class Policies:
    """What the options of a stream say of late rows, old state and failures.

    `delete_mark`: windows older than the newest event time by this much may be forgotten (units of the source's
    precision, as `watermark`). `guarantee`: how often a row counts after a failure. `on_error`: what becomes of rows
    that can't be computed; null is TDengine's way: functions give NULL, and what else fails ends the attempt.
    `state_ttl`: groups that nothing has changed for so long are let go (units of the source's precision; None: none).
    """

    watermark: int = 0
    ignore_expired: bool = True
    ignore_update: bool = False
    delete_mark: int = 0
    time: TimePlan = TimePlan()
    on_error: OnError = "null"
    guarantee: Guarantee = "exactly_once"
    state_ttl: int | None = None

    @property
    def leaves_out_errors(self) -> bool:
        """Whether rows that can't be computed are left out, so that the others are computed."""
        return self.on_error in ("skip", "dlq")

    @property
    def closing_delay(self) -> int:
        """How far behind the newest event time windows close (units of the source's precision)."""
        return self.watermark + self.time.lateness

    @property
    def ttl_step(self) -> int:
        """How long the steps are by which time goes on for STATE_TTL, an eighth of it.

        What comes in one step comes at one time, so that many records may be processed at once; a group goes in the
        first step that begins later than STATE_TTL after the end of its last one.
        """
        assert self.state_ttl is not None
        return -(-self.state_ttl // TTL_STEPS)


@dataclass(frozen=True, slots=True)
class QueriedTable:
    """A table that the query of a trigger reads: a super or a normal table, of which `child_uid` may be the only child
    that counts. `columns`: their physical names.
    """

    uid: int
    child_uid: int | None
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CalculationPlan:
    """What is computed whenever a window of the trigger is done, by the engine: sink tasks hand over windows, whose
    columns are the sink's.

    `columns`: of the result table, or of what is told. `table`: that of the executions, in the sink's database; its
    `uid` is 0 until it is created. `events`: what fires. `reads`: the tables that the query reads, beside the names of
    the users' functions that it calls and of the connections that it uses. `values`: so many of the sink's last columns
    are results already, of windows all of whose rows the stream has read; 0: the query gives them.
    """

    columns: tuple[Column, ...]
    table: str
    uid: int
    events: tuple[NotifyEvent, ...]
    reads: tuple[QueriedTable, ...] = ()
    functions: tuple[str, ...] = ()
    connections: tuple[str, ...] = ()
    values: int = 0


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """One planned stream: what it reads, computes, and writes, and by which rules.

    The `source` of a join is that of its left side. `functions` are the users' functions that the SQL texts call.
    """

    source: SourcePlan
    grouping: Grouping
    computation: Computation
    trigger: Trigger
    policies: Policies
    sink: SinkPlan
    time_zone: str
    tree: PlanNode
    functions: tuple[UserCall, ...] = ()
    dlq: DlqPlan | None = None
    notify: NotifyPlan | None = None
    calculation: CalculationPlan | None = None

    @property
    def recalls(self) -> bool:
        """Whether what comes for windows that DELETE_MARK let go has them read back; else it is late."""
        return (not self.policies.ignore_expired and self.policies.time.clock == "event"
                and not isinstance(self.computation, JoinPlan | RefreshPlan))

    @property
    def forgets(self) -> bool:
        """Whether DELETE_MARK lets state go: values for gaps come from the windows around them, however old."""
        match self.computation:
            case WindowsPlan(windows=RowWindow()):
                return False
            case WindowsPlan(fill=FillPlan(before=before, after=after)):
                return not before and not after
            case _:
                return True

    @property
    def isolation_class(self) -> IsolationClass:
        """With whom the stream may share processes."""
        if self.functions:
            return IsolationClass.USER_CODE
        return IsolationClass.OPEN_GROUPS if self.grouping.by_values and self.sends_partials else IsolationClass.ANY

    @property
    def executions_uid(self) -> int:
        """The table of executions, 0 if there is none."""
        return 0 if self.calculation is None else self.calculation.uid

    @property
    def announces_windows(self) -> bool:
        """Whether agg tasks tell sink tasks of windows that open."""
        events = () if self.notify is None else self.notify.events
        return "window_open" in (*events, *(() if self.calculation is None else self.calculation.events))

    @property
    def keeps_time(self) -> bool:
        """Whether source tasks tell others what time it is."""
        return isinstance(self.computation, WindowsPlan | JoinPlan) and self.source.timed

    @property
    def sends_partials(self) -> bool:
        """Whether source tasks send partials of windows, else rows."""
        return isinstance(self.computation, WindowsPlan)

    @property
    def time_windows(self) -> TimeWindows | None:
        """The windows by time that agg tasks keep, if they are such."""
        match self.computation:
            case WindowsPlan(windows=TimeWindows() as windows):
                return windows
        return None

    @property
    def keeps_groups(self) -> bool:
        """Whether agg tasks keep groups without windows."""
        return self.time_windows is not None and self.time_windows.interval is None

    @property
    def holds_answer(self) -> bool:
        """Whether the result table is to hold the answer of the query as it is, nothing else, and at all times."""
        return isinstance(self.computation, RefreshPlan) or self.sink.keyed

    @property
    def row_window(self) -> RowWindow | None:
        """The windows that rows define, if they do."""
        match self.computation:
            case WindowsPlan(windows=RowWindow() as window):
                return window
        return None

    @property
    def sources(self) -> tuple[SourcePlan, ...]:
        """What is read: one table, the two of a join, or all of a query."""
        if isinstance(self.computation, JoinPlan):
            return tuple(side.source for side in self.computation.sides)
        if isinstance(self.computation, RefreshPlan):
            return self.computation.sources
        return (self.source,) if self.source.table else ()  # PERIOD may do without

    def of_side(self, place: int) -> StreamPlan:
        """Returns what the source tasks of a joined table run: a stream of its rows. `place`: 0 left, 1 right."""
        assert isinstance(self.computation, JoinPlan)
        side = self.computation.sides[place]
        dlq = side.dlq
        if dlq is not None and self.dlq is not None:
            dlq = replace(dlq, target_uid=self.dlq.target_uid)
        sink = replace(self.sink, columns=side.columns, checks_results=False)
        return replace(self, source=side.source, dlq=dlq, sink=sink,
                       grouping=replace(self.grouping, keys=(Field("_tuid", UBIGINT),)))

    @property
    def function_names(self) -> tuple[str, ...]:
        """The users' functions that the stream calls, each once."""
        queried = () if self.calculation is None else self.calculation.functions
        return tuple(dict.fromkeys((*(call.function.name for call in self.functions), *queried)))

    @property
    def window_columns(self) -> tuple[Column, ...]:
        """What sink tasks hand over of a window of a trigger, without results."""
        values = 0 if self.calculation is None else self.calculation.values
        return self.sink.columns[:len(self.sink.columns) - values]

    @property
    def connections(self) -> tuple[str, ...]:
        """The names of the connections that the stream uses, each once."""
        used = (self.sink.external.connection if self.sink.external is not None else None,
                self.source.lookup.connection if self.source.lookup is not None else None)
        queried = () if self.calculation is None else self.calculation.connections
        return tuple(dict.fromkeys(name for name in (*used, *queried) if name is not None))

    @property
    def emits_at_checkpoints(self) -> bool:
        """Whether results leave with the checkpoints that they belong to, not when they are computed."""
        external = self.sink.external
        if external is None:
            return False
        if isinstance(self.computation, RefreshPlan):
            return True
        return external.kind == "files" or (external.kind == "kafka" and self.policies.guarantee == "exactly_once")

    @property
    def counts_updates(self) -> bool:
        """Whether a row that is written anew takes the place of what it was; other rows can't be told apart there."""
        window = self.row_window
        return not self.policies.ignore_update or (window is not None and window.kind != "session")

    @property
    def result_fields(self) -> tuple[Field, ...]:
        """The columns of result blocks."""
        types = [column.type for column in self.sink.columns] + [VARCHAR] * self.sink.checks_results
        return tuple(Field(f"r{i}", kind) for i, kind in enumerate(types))
