"""Every statement of the dialect as an expression class: what the parser returns and the engine executes.

Scalar expressions inside them are sqlglot expressions of our dialect (`sql.tree.expression_nodes`), unbound: names are
not looked up yet. Identifiers are folded to lower case unless they were back-quoted. `source_text` and `text` are
what was typed, since result columns without alias are named after it. `source_start` is where `source_text` begins in
the whole text, whose offsets nodes and names know; queries within others have neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from penstock.sql.rights import GrantObject, Privilege, Role
from penstock.sql.tree.node import Node, in_meta, secret
from penstock.sql.types import DataType, Precision

Unit = Literal["b", "u", "a", "s", "m", "h", "d", "w", "n", "y"]


@dataclass(frozen=True, slots=True)
class Duration:
    """A duration literal such as `10s`. `unit` "" means units of the database's precision (a bare integer)."""

    value: int
    unit: Unit | Literal[""]

    def __str__(self) -> str:
        return f"{self.value}{self.unit}"

    @property
    def is_calendar(self) -> bool:
        """Whether the length depends on the calendar: months (n) and years (y)."""
        return self.unit in ("n", "y")

    def in_units(self, precision: Precision) -> int:
        """Returns the length in units of `precision`, rounded towards zero. Not for calendar units."""
        if self.unit == "":
            return self.value
        nanoseconds = self.value * NANOSECONDS_PER_UNIT[self.unit]
        return nanoseconds // {"ms": 1_000_000, "us": 1_000, "ns": 1}[precision]


NANOSECONDS_PER_UNIT: dict[str, int] = {
    "b": 1, "u": 1_000, "a": 1_000_000, "s": 1_000_000_000, "m": 60 * 1_000_000_000, "h": 3_600 * 1_000_000_000,
    "d": 86_400 * 1_000_000_000, "w": 7 * 86_400 * 1_000_000_000,
}


class Statement(Node):
    """Base of all statements."""


TRIGGER = "%%"
"""Begins what stands for something that a trigger gives: columns %%tbname and %%1, and tables %%trows and %%tbname,
whose names have it in the place of a database."""


class Name(Node):
    """A possibly database-qualified object name, as written; `offset` is where it starts in the text."""

    name: str
    database: str | None = None
    offset: int = in_meta(default=0)

    def __str__(self) -> str:
        return f"{self.database}.{self.name}" if self.database else self.name


# --- queries -------------------------------------------------------------------------------------------------


class SelectItem(Node):
    """One projection; a star is `exp.Star` or `exp.Column(this=exp.Star, table=...)`."""

    expression: exp.Expression
    alias: str | None
    text: str = in_meta(default="")

    @property
    def name(self) -> str:
        return self.alias if self.alias is not None else self.text


class PartitionItem(Node):
    """One item of PARTITION BY or GROUP BY."""

    expression: exp.Expression
    alias: str | None
    text: str = in_meta(default="")


class IntervalWindow(Node):
    interval: Duration
    offset: Duration | Literal["auto"] | None = None
    sliding: Duration | None = None


class SessionWindow(Node):
    column: exp.Expression
    gap: Duration


class StateWindow(Node):
    expression: exp.Expression
    true_for: Duration | None = None


class EventWindow(Node):
    start: exp.Expression
    end: exp.Expression
    true_for: Duration | None = None


class CountWindow(Node):
    count: int
    sliding: int | None = None
    columns: tuple[exp.Expression, ...] = ()


Window = IntervalWindow | SessionWindow | StateWindow | EventWindow | CountWindow
FillMode = Literal["none", "null", "null_f", "value", "value_f", "prev", "next", "linear", "near"]


class Fill(Node):
    mode: FillMode
    values: tuple[exp.Expression, ...] = ()


class OrderItem(Node):
    expression: exp.Expression
    descending: bool = False
    nulls_first: bool | None = None


class TableSource(Node):
    """`cuts`: BETWEEN CUT first AND last, only the rows that were written between two positions, as text."""

    name: Name
    alias: str | None = None
    cuts: tuple[str, str] | None = None


class ExternalSource(Node):
    """CONNECTION `connection` (TABLE 'table'): a table of the server that a connection leads to."""

    connection: Name
    table: str
    alias: str | None = None


class SubquerySource(Node):
    """`columns` are what the first of its columns are called; `lateral`: it may name columns of what is before it.

    `as_alone`: a lateral one whose aggregates have a row over no rows only if those of a query of its own had one.
    """

    query: Query
    alias: str | None = None
    columns: tuple[str, ...] = ()
    lateral: bool = False
    as_alone: bool = False


class FunctionSource(Node):
    """A call of a function that gives rows. `columns`: what its column is called. It may name columns of what is before
    it."""

    call: exp.Expression
    alias: str | None = None
    columns: tuple[str, ...] = ()


JoinKind = Literal["inner", "left", "right", "full"]
JoinVariant = Literal["", "semi", "anti", "asof", "window"]


class JoinSource(Node):
    """`window` is WINDOW_OFFSET(start, end) of a window join; `jlimit` is JLIMIT. `using`: columns of both that are
    equal, and one in the result; () if `natural`: then those whose names both have. An inner semi or anti join, without
    LEFT or RIGHT, is standard SQL's: it has the columns of its left side alone. `nearest`: ASOF stands before LEFT, and
    finds the nearest row by any values, not by times alone.

    `place` is where its words, such as LEFT JOIN, or its comma start and end in the text.
    """

    left: Source
    right: Source
    kind: JoinKind
    variant: JoinVariant = ""
    on: exp.Expression | None = None
    window: tuple[Duration, Duration] | None = None
    jlimit: int | None = None
    using: tuple[str, ...] = ()
    natural: bool = False
    nearest: bool = False
    place: tuple[int, int] = in_meta(default=(0, 0))


Source = TableSource | ExternalSource | SubquerySource | FunctionSource | JoinSource


class Range(Node):
    """INTERP's RANGE(first[, last]); `near` is the duration of RANGE(.., .., d)."""

    first: exp.Expression
    last: exp.Expression | None = None
    near: Duration | None = None


class Limit(Node):
    """So many rows, or so many of a hundred (`percent`), after the first ones; `count` is None for OFFSET alone."""

    count: int | exp.Expression | None = None
    offset: int | exp.Expression = 0
    percent: bool = False


class PartitionsLimit(Node):
    """SLIMIT: so many partitions after the first ones."""

    count: int
    offset: int = 0


RECURRING = "recurring"
"""What stands before the name of a recursive query with a key, for all rows that it has found."""


class Cte(Node):
    """One query that WITH names: `columns` are what it calls the first of its columns; `offset` is that of the name.

    `key_columns`: USING KEY, the columns of a recursive query by which its rows replace each other.
    """

    name: str
    query: Query
    columns: tuple[str, ...] = ()
    recursive: bool = False
    key_columns: tuple[str, ...] = ()
    offset: int = in_meta(default=0)


class NamedWindow(Node):
    """One window that WINDOW names: `window` is as behind OVER."""

    name: str
    window: exp.Expression


class Select(Statement):
    """`ctes`: WITH. `nests`: its expressions may have queries, FILTER, OVER, or DISTINCT and ORDER BY in calls; if not,
    they have none. `distinct_on`: of the rows in which these are equal the first one.

    An item of GROUP BY may be an exp.Rollup, exp.Cube or exp.GroupingSets; an exp.Var ALL, in ORDER BY too, stands for
    what the SELECT list has.
    """

    items: tuple[SelectItem, ...]
    source: Source | None = None
    distinct: bool = False
    distinct_on: tuple[exp.Expression, ...] = ()
    tags_only: bool = False
    where: exp.Expression | None = None
    partition_by: tuple[PartitionItem, ...] = ()
    window: Window | None = None
    fill: Fill | None = None
    range: Range | None = None
    every: Duration | None = None
    group_by: tuple[PartitionItem, ...] = ()
    having: exp.Expression | None = None
    windows: tuple[NamedWindow, ...] = ()
    qualify: exp.Expression | None = None
    order_by: tuple[OrderItem, ...] = ()
    slimit: PartitionsLimit | None = None
    limit: Limit | None = None
    ctes: tuple[Cte, ...] = ()
    into_file: str | None = None
    source_text: str = in_meta(default="")
    source_start: int = in_meta(default=0)
    nests: bool = in_meta(default=False)


SetKind = Literal["union", "intersect", "except"]


class SetOperation(Statement):
    """UNION, INTERSECT or EXCEPT of two or more queries, from left to right; ALL: rows count as often as they are
    there. WITH, ORDER BY and LIMIT belong to the whole. `by_name`: columns of equal names belong together."""

    queries: tuple[Query, ...]
    all: bool = False
    kind: SetKind = "union"
    by_name: bool = False
    order_by: tuple[OrderItem, ...] = ()
    limit: Limit | None = None
    ctes: tuple[Cte, ...] = ()
    into_file: str | None = None
    source_text: str = in_meta(default="")
    source_start: int = in_meta(default=0)


class ValuesQuery(Statement):
    """VALUES (...), (...): each of `rows` is an exp.Tuple."""

    rows: tuple[exp.Expression, ...]
    order_by: tuple[OrderItem, ...] = ()
    limit: Limit | None = None
    ctes: tuple[Cte, ...] = ()
    into_file: str | None = None
    source_text: str = in_meta(default="")
    source_start: int = in_meta(default=0)


Query = Select | SetOperation | ValuesQuery


ExplainPart = Literal["logical", "sql", "tasks"]


class Explain(Statement):
    """EXPLAIN [ANALYZE] statement. `part`: EXPLAIN (TASKS) shows only the task graph; None: all there is to say."""

    statement: Statement
    analyze: bool = False
    part: ExplainPart | None = None


class AnalyzeStream(Statement):
    """EXPLAIN ANALYZE STREAM: measures a running stream for `seconds`."""

    name: str
    seconds: float = 10.0


# --- databases and tables -------------------------------------------------------------------------------------


#: Database options whose values are durations, and how many each has at most.
DURATION_OPTIONS = {
    "DURATION": 1, "KEEP": 3, "KEEP_TIME_OFFSET": 1, "COMPACT_INTERVAL": 1, "SS_KEEPLOCAL": 1, "S3_KEEPLOCAL": 1}


class CreateDatabase(Statement):
    """`options` are upper-case keys with values as typed: ints, durations as text, strings without quotes."""

    name: str
    options: tuple[tuple[str, str | int], ...] = ()
    if_not_exists: bool = False


class AlterDatabase(Statement):
    name: str
    options: tuple[tuple[str, str | int], ...]


class SplitVgroup(Statement):
    vgroup_id: int


class DropDatabase(Statement):
    """DROP DATABASE [IF EXISTS] name [CASCADE]."""

    name: str
    if_exists: bool = False
    cascade: bool = False


class UseDatabase(Statement):
    name: str


class SetQueryTimeout(Statement):
    """SET queryTimeout 'duration', of one session. `timeout_s` in seconds; 0: as long as the configuration says."""

    timeout_s: float


class SetAnsiQuotes(Statement):
    """SET ansiQuotes ON | OFF, of one session: whether double quotes are around names, not texts."""

    is_on: bool


class FlushDatabase(Statement):
    name: str


class TrimDatabase(Statement):
    name: str


class ColumnDefinition(Node):
    """A column or tag in CREATE TABLE. `options` holds ENCODE/COMPRESS/LEVEL, which change nothing here."""

    name: str
    type: DataType
    primary_key: bool = False
    comment: str | None = None
    options: tuple[tuple[str, str], ...] = ()


class CreateTable(Statement):
    """CREATE TABLE or CREATE STABLE with a column list; with tags it is a super table."""

    name: Name
    columns: tuple[ColumnDefinition, ...]
    tags: tuple[ColumnDefinition, ...] = ()
    if_not_exists: bool = False
    must_be_super: bool = False
    comment: str | None = None
    ttl_days: int = 0
    options: tuple[tuple[str, str], ...] = ()


class CreateTableAs(Statement):
    """CREATE TABLE name AS query: a normal table of the query's columns, with its rows.

    `primary_key`: its columns; without it the first column is the primary timestamp.
    """

    name: Name
    query: Query
    if_not_exists: bool = False
    primary_key: tuple[str, ...] = ()


class CreateChildTable(Node):
    """One `child USING super [(tags)] TAGS (values)`. `tag_names` None: all tags in order."""

    name: Name
    using: Name
    tag_names: tuple[str, ...] | None
    tag_values: tuple[exp.Expression, ...]
    if_not_exists: bool = False
    comment: str | None = None
    ttl_days: int = 0


@dataclass(frozen=True, slots=True)
class PlainChildren:
    """Child tables of one super table, as `read_plain_children` finds them in `text`.

    `child` is the first one, and all are in its database. `names` and `places` are those of all: where in the text the
    list of tag values of each begins.
    """

    text: str
    child: Name
    using: Name
    tag_names: tuple[str, ...] | None
    if_not_exists: bool
    names: tuple[str, ...]
    places: tuple[int, ...]


class CreateChildTables(Statement):
    """Without `tables` what is read of it is in `plain`; the parser reads the whole of it from the text there."""

    tables: tuple[CreateChildTable, ...]
    plain: PlainChildren | None = in_meta(default=None)


AlterAction = Literal[
    "add_column", "drop_column", "modify_column", "rename_column",
    "add_tag", "drop_tag", "modify_tag", "rename_tag", "set_tag", "set_option",
]


class TagAssignment(Node):
    """tag = value"""

    tag: str
    value: exp.Expression


class AlterTable(Statement):
    """ALTER TABLE/STABLE. Which fields are set depends on `action`:

    add/modify: `column`, `type`; drop: `column`; rename: `column`, `new_name`;
    set_tag: `assignments`; set_option (COMMENT, TTL, KEEP): `option`.
    """

    name: Name
    action: AlterAction
    column: str | None = None
    type: DataType | None = None
    new_name: str | None = None
    assignments: tuple[TagAssignment, ...] = ()
    option: tuple[str, str | int] | None = None
    must_be_super: bool = False


class DropTable(Statement):
    """DROP TABLE [IF EXISTS] name, ... [CASCADE], and DROP STABLE."""

    names: tuple[Name, ...]
    if_exists: bool = False
    must_be_super: bool = False
    cascade: bool = False


# --- views ----------------------------------------------------------------------------------------------------


class CreateView(Statement):
    """CREATE [OR REPLACE] VIEW [IF NOT EXISTS] name [(columns)] [SQL SECURITY DEFINER | INVOKER] AS query.

    `columns` are what it calls the first of the query's columns.
    """

    name: Name
    query: Query
    columns: tuple[str, ...] = ()
    invoker: bool = False
    or_replace: bool = False
    if_not_exists: bool = False


class DropView(Statement):
    name: Name
    if_exists: bool = False


# --- rows -----------------------------------------------------------------------------------------------------


class InsertTarget(Node):
    """One table of an INSERT.

    `columns` None: all columns in order. For the super-table form `columns` contains `tbname`.
    Exactly one of `rows`, `file`, `query` is set. `rows` is the text between VALUES and the next target, from the
    first parenthesis on; the fast VALUES reader (`penstock.sql.rows.values`) turns it into columns when the table is
    known, so that no parse tree is built per literal. `rows_offset` is where it starts in the statement.
    """

    name: Name
    using: Name | None = None
    tag_names: tuple[str, ...] | None = None
    tag_values: tuple[exp.Expression, ...] = ()
    columns: tuple[str, ...] | None = None
    rows: str | None = None
    rows_offset: int = in_meta(default=0)
    file: str | None = None
    query: Query | None = None


class Insert(Statement):
    targets: tuple[InsertTarget, ...]


class Delete(Statement):
    name: Name
    where: exp.Expression | None = None


# --- streams --------------------------------------------------------------------------------------------------

OnErrorWord = Literal["fail", "skip", "dlq"]
LateWord = Literal["drop", "recalc", "dlq"]
OnMismatch = Literal["report", "recalculate"]
TimeWord = Literal["event", "ingestion", "processing"]
Guarantee = Literal["exactly_once", "at_least_once"]
OnFailure = Literal["pause", "dlq"]
TriggerMode = Literal["at_once", "window_close", "max_delay", "force_window_close", "continuous_window_close"]


class StreamOptions(Node):
    """Options of CREATE STREAM; None means not given, so that defaults come from the engine.

    Rates are per second and task, 0 is unlimited: `sink_rate` in MB, `sink_calls`, `source_rate` and `history_rate` in
    rows. `state_limit` is in bytes, 0 is unlimited. `state_ttl`: groups go that nothing has changed for so long.
    """

    trigger: TriggerMode | None = None
    max_delay: Duration | None = None
    recalculate: Duration | None = None
    watermark: Duration | None = None
    watermark_from: Literal["writers"] | None = None
    writer_timeout: Duration | None = None
    ignore_expired: bool | None = None
    ignore_update: bool | None = None
    delete_mark: Duration | None = None
    fill_history: bool | None = None
    fill_history_async: bool = False
    timezone: str | None = None
    time: TimeWord | None = None
    allowed_lateness: Duration | None = None
    idle_timeout: Duration | None = None
    close_when_idle: bool | None = None
    max_future: Duration | None = None
    max_skew: Duration | None = None
    on_error: OnErrorWord | None = None
    late: LateWord | None = None
    dlq: Name | None = None
    checkpoint_interval: Duration | None = None
    sink_rate: float | None = None
    sink_calls: float | None = None
    source_rate: float | None = None
    history_rate: float | None = None
    state_limit: int | None = None
    state_ttl: Duration | None = None
    guarantee: Guarantee | None = None
    on_failure: OnFailure | None = None
    retry_time: Duration | None = None
    lookup_freshness: Duration | None = None
    latency: Duration | None = None
    on_mismatch: OnMismatch | None = None


OF_VIEWS = StreamOptions(trigger="at_once", fill_history=True, late="recalc")
"""The options of a materialized view: nothing is left out."""

ExternalFormat = Literal["json", "csv", "parquet", "avro"]


class ExternalTargetOptions(Node):
    """What stands in the parentheses of INTO CONNECTION name (...); what isn't given is None.

    `places`: TOPIC, TABLE or PATH in lower case, and what it is. `qos` is that of MQTT. `key_columns`: those by which
    rows are told apart.
    """

    places: tuple[tuple[str, str], ...] = ()
    format: ExternalFormat | None = None
    qos: int | None = None
    key_columns: tuple[str, ...] = ()


class StreamTarget(Node):
    """INTO name [(columns)] [TAGS(...)] [SUBTABLE(...)], or INTO CONNECTION name (...).

    `columns`: names with a primary-key flag, or None. `tag_definitions`: TAGS with types; `tag_names`: without.
    `external`: `name` is a connection's, and results go where it leads to. `tag_values`: what the tags of
    `tag_definitions` are, where PARTITION BY doesn't say that by their names.
    """

    name: Name
    columns: tuple[tuple[str, bool], ...] | None = None
    tag_definitions: tuple[ColumnDefinition, ...] | None = None
    tag_names: tuple[str, ...] | None = None
    subtable: exp.Expression | None = None
    external: ExternalTargetOptions | None = None
    tag_values: tuple[exp.Expression, ...] | None = None


NotifyEvent = Literal["window_open", "window_close"]
NotifyFailure = Literal["pause", "drop"]


class Notify(Node):
    """NOTIFY (url, ...) ON ('WINDOW_OPEN', ...) [NOTIFY_HISTORY 0|1] [ON_FAILURE DROP|PAUSE]."""

    urls: tuple[str, ...]
    events: tuple[NotifyEvent, ...]
    history: bool = False
    on_failure: NotifyFailure = "pause"


class Calculation(Node):
    """What a stream computes whenever its trigger fires, apart from that: CREATE STREAM name trigger ... AS query.

    `query`: what is computed; None: nothing, notifications alone tell of the trigger. `database`: that of the stream,
    where unqualified names lead. `period`, `offset`: PERIOD, by the clock. `slides`: SLIDING without INTERVAL.
    `expired`: windows older than their group's newest by more aren't computed again. `where`: which results are told.
    """

    query: Query | None = None
    database: str | None = None
    period: Duration | None = None
    offset: Duration | None = None
    slides: bool = False
    expired: Duration | None = None
    history_from: exp.Expression | None = None
    events: tuple[NotifyEvent, ...] = ("window_close",)
    notify_only: bool = False
    force_output: bool = False
    ignore_nodata: bool = False
    flags: tuple[str, ...] = ()
    where: exp.Expression | None = None


class CreateStream(Statement):
    """`source_text` is the whole statement as typed, for SHOW STREAMS and for planning it again after a restart.

    `materialized`: CREATE MATERIALIZED VIEW. `option_offsets`: where options start in the text that was parsed, by the
    fields of `options`. With a `calculation`, `query` says when that is done: its rows are the windows of the trigger.
    """

    name: str
    options: StreamOptions
    target: StreamTarget
    query: Query
    if_not_exists: bool = False
    source_text: str = in_meta(default="")
    or_replace: bool = False
    notify: Notify | None = None
    source_start: int = in_meta(default=0)
    materialized: bool = False
    calculation: Calculation | None = None
    option_offsets: Mapping[str, int] | None = in_meta(default=None)

    @property
    def select(self) -> Select:
        """The query of a stream that is no set operation."""
        assert isinstance(self.query, Select)
        return self.query


class AlterStream(Statement):
    """ALTER STREAM name SET options: those that are given."""

    name: str
    options: StreamOptions
    if_exists: bool = False


class CheckpointStream(Statement):
    name: str
    if_exists: bool = False


class StopStream(Statement):
    """STOP STREAM name [WITH SAVEPOINT 'savepoint']."""

    name: str
    if_exists: bool = False
    savepoint: str | None = None


class StartStream(Statement):
    """START STREAM [IGNORE UNTREATED] name [FROM SAVEPOINT 'savepoint']."""

    name: str
    if_exists: bool = False
    savepoint: str | None = None
    ignore_untreated: bool = False


class DropSavepoint(Statement):
    """DROP SAVEPOINT 'savepoint' FOR stream."""

    savepoint: str
    stream: str
    if_exists: bool = False


class DropStream(Statement):
    """DROP STREAM, or DROP MATERIALIZED VIEW: then the result table goes along, if the stream has made it."""

    name: str
    if_exists: bool = False
    with_table: bool = False


class PauseStream(Statement):
    name: str
    if_exists: bool = False


class ResumeStream(Statement):
    name: str
    if_exists: bool = False
    ignore_untreated: bool = False


class RecalculateStream(Statement):
    """RECALCULATE STREAM name FROM first [TO last]: both are constant expressions for instants, inclusive."""

    name: str
    first: exp.Expression
    last: exp.Expression | None = None
    if_exists: bool = False


class VerifyStream(Statement):
    """VERIFY STREAM name [FROM first [TO last]] [SAMPLE n].

    `first` and `last` are constant expressions for times of results, inclusive. `sample`: so many windows or times of
    these are drawn, and compared; None: all are compared.
    """

    name: str
    first: exp.Expression | None = None
    last: exp.Expression | None = None
    sample: int | None = None


class NoteTime(Statement):
    """NOTE TIME instant [WRITER 'name'] ON database: nothing older comes from this writer any more."""

    instant: exp.Expression
    database: str
    writer: str = ""


class ReplayDlq(Statement):
    """REPLAY DLQ name [WHERE ...]: tries rows of a dead letter queue once more; without WHERE those that are dead."""

    name: Name
    where: exp.Expression | None = None
    source_text: str = in_meta(default="")


class DryRunStream(Statement):
    """DRY RUN CREATE STREAM ... ON SAMPLE (FROM first TO last | FILE 'path').

    The sample is a range of the source's rows by constant expressions, or a CSV `file` as INSERT ... FILE takes it.
    """

    stream: CreateStream
    first: exp.Expression | None = None
    last: exp.Expression | None = None
    file: str | None = None


class CreateSnode(Statement):
    dnode_id: int


class DropSnode(Statement):
    dnode_id: int


# --- ingests --------------------------------------------------------------------------------------------------

IngestFormat = Literal["json", "csv", "avro", "line", "debezium", "upsert"]
IngestErrors = Literal["fail", "skip", "dlq"]
MessagePart = Literal["topic", "key", "measurement", "time"]
TimeUnit = Literal["s", "ms", "us", "ns"]


@dataclass(frozen=True, slots=True)
class MessageField:
    """Where in a message a value is: `$.a.b` is the path (a, b). Else a `part` of what comes with the message.

    `level`: of the topic, from 1; None is the whole topic. `measurement` and `time` are those of a line. `array`:
    so many keys of the path lead to an array, whose elements are rows: `$.a[*].b` is (a, b) with 1.
    """

    path: tuple[str, ...]
    part: MessagePart | None = None
    level: int | None = None
    array: int | None = None

    def __str__(self) -> str:
        if self.part is None:
            keys = [f"{key}[*]" if place == self.array else key for place, key in enumerate(self.path, 1)]
            return ".".join(("$", *keys))
        return f"_{self.part}" if self.level is None else f"_{self.part}({self.level})"


class FieldMapping(Node):
    """column = field"""

    column: str
    field: MessageField


class IngestOptions(Node):
    """What stands in parentheses behind the connection; None or empty is not given.

    `schema`: of CSV the names of the fields, of Avro its JSON. `max_message` in bytes.
    """

    topics: tuple[str, ...] = ()
    format: IngestFormat | None = None
    schema: str | None = None
    path: str | None = None
    qos: int | None = None
    start: Literal["earliest", "latest"] | None = None
    time_unit: TimeUnit | None = None
    unknown: Literal["ignore", "refuse"] | None = None
    measurement: str | None = None
    max_message: int | None = None


class CreateIngest(Statement):
    """CREATE INGEST [IF NOT EXISTS] name FROM CONNECTION c [(options)] INTO table [(column = field, ...)]
    [TAGS (tag = field, ...)] [TBNAME (field)] [TS FROM field | TS ON ARRIVAL] [ON_ERROR FAIL | SKIP | DLQ table]."""

    name: str
    connection: str
    options: IngestOptions
    target: Name
    columns: tuple[FieldMapping, ...] = ()
    tags: tuple[FieldMapping, ...] = ()
    tbname: MessageField | None = None
    time: MessageField | None = None
    on_arrival: bool = False
    on_error: IngestErrors = "fail"
    dlq: Name | None = None
    if_not_exists: bool = False
    source_text: str = in_meta(default="")


class AlterIngest(Statement):
    """ALTER INGEST [IF EXISTS] name ON_ERROR FAIL | SKIP | DLQ table."""

    name: str
    on_error: IngestErrors
    dlq: Name | None = None
    if_exists: bool = False


class DropIngest(Statement):
    name: str
    if_exists: bool = False


class PauseIngest(Statement):
    name: str
    if_exists: bool = False


class ResumeIngest(Statement):
    name: str
    if_exists: bool = False


# --- functions ------------------------------------------------------------------------------------------------


class CreateFunction(Statement):
    """CREATE [OR REPLACE] [AGGREGATE] FUNCTION.

    `arguments` None: no types are declared. `source`: as `UserFunction` has it.
    """

    name: str
    aggregate: bool
    arguments: tuple[DataType, ...] | None
    result: DataType
    source: str
    replace: bool = False
    if_not_exists: bool = False
    comment: str | None = None


class DropFunction(Statement):
    name: str
    if_exists: bool = False


# --- users ----------------------------------------------------------------------------------------------------


class CreateUser(Statement):
    name: str
    password: str = secret()
    role: Role = "read"
    if_not_exists: bool = False


class AlterUser(Statement):
    """ALTER USER name [PASS 'password'] [ROLE role]; None is not given."""

    name: str
    password: str | None = secret(default=None)
    role: Role | None = None


class DropUser(Statement):
    name: str
    if_exists: bool = False


class Grant(Statement):
    """GRANT privileges ON object TO user."""

    privileges: tuple[Privilege, ...]
    on: GrantObject
    user: str


class Revoke(Statement):
    """REVOKE privileges ON object FROM user."""

    privileges: tuple[Privilege, ...]
    on: GrantObject
    user: str


class KillQuery(Statement):
    """KILL QUERY 'id'. `number`: what `kill_id` of SHOW QUERIES is the hexadecimal text of."""

    number: int


class SwitchOver(Statement):
    """SWITCHOVER TO n: the active node of the cluster hands over to node `node`."""

    node: int


class Promote(Statement):
    """PROMOTE: the node that executes it becomes active, whatever it lacks, if no other one is."""


# --- connections ----------------------------------------------------------------------------------------------


class CreateConnection(Statement):
    """CREATE CONNECTION [IF NOT EXISTS] name TYPE kind WITH (option='value', ...).

    Which kinds and options there are isn't known here. `options` is kept out of repr: a value may be a password that
    doesn't belong there.
    """

    name: str
    kind: str
    options: tuple[tuple[str, str], ...] = secret()
    if_not_exists: bool = False


class AlterConnection(Statement):
    """ALTER CONNECTION name SET (option='value', ...); None is NULL, which takes an option away."""

    name: str
    options: tuple[tuple[str, str | None], ...] = secret()


class DropConnection(Statement):
    name: str
    if_exists: bool = False


class TestConnection(Statement):
    """TEST CONNECTION name: connects, and tells what happened."""

    __test__ = False  # its name looks like a test to pytest

    name: str


# --- inspection -----------------------------------------------------------------------------------------------


class Show(Statement):
    """SHOW ...: `what` is one of the lower-case words the parser knows, such as `databases`, `stables`, `tables`,
    `child tables`, `normal tables`, `streams`, `stream tasks`, `vgroups`, `variables`, `create table`,
    `create stable`, `create database`, `create stream`, `tags`, `table tags`, `snodes`, `dnodes`, ...

    `database` is a prefix or FROM db; `table` an object name, or the stream behind FOR; `like` the pattern of LIKE.
    """

    what: str
    database: str | None = None
    table: Name | None = None
    like: str | None = None


class Describe(Statement):
    name: Name
