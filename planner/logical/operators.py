"""The operators of a logical plan: a tree of plain data, from the rows that are read to those that are wanted.

Each says which columns its rows have. Expressions name columns of the operator's input; those of a Join name its sides
as well, `l` and `r`. Nothing here is SQL text, and nothing says how rows are found: that is what a lowering does.

Operators have no slots: what their rows have is computed once, as it is asked for by each operator above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from sqlglot import exp

from penstock.planner.logical.expr import ColumnExpr, Computed, Expr, Line, Written
from penstock.planner.logical.group_values import GroupValue
from penstock.planner.logical.window_kinds import END, NUMBER, START, STATE, ByClock, ByInterval, ByState, Shape
from penstock.sql.cuts import Cut
from penstock.sql.schema import Table
from penstock.sql.tree import statements
from penstock.sql.tree.statements import FillMode
from penstock.sql.types import BIGINT, BOOL, UBIGINT, DataType, Kind, Precision, timestamp

TABLE_UID = "_tuid"
#: Columns of rows of INTERP: their instant, whether no row is there, and the time of the row the value is from.
AT, FILLED, ORIGIN = "#at", "#filled", "#origin"
#: What the one column of the row without columns is called.
ONE = "#one"
#: The column of a counted scan that says how many rows each stands for.
ROWS = "#rows"
#: The column of a row that a function gives.
VALUE = "#value"
#: The column that numbers the driving rows of a window join.
ROW = "#row"
TBNAME = DataType(Kind.VARCHAR, 192)

JoinKind = Literal["inner", "left", "right", "full"]
JoinVariant = Literal["", "semi", "anti", "asof", "window"]
Side = Literal["l", "r"]
Comparison = Literal[">", ">=", "<", "<=", "="]
NewestRows = Literal["rows", "values"]


# --- rows that are read -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scan:
    """One read of a table, also of a system table or of one of an external server.

    Whoever runs the plan provides the relation `name`, with these columns: `_tuid` UBIGINT (the child table), and each
    name in `columns`: user columns, tags and `tbname`, named as the user names them; timestamps are BIGINT in units of
    the database's precision.
    `first_ts` and `last_ts` are inclusive bounds on the primary timestamp that the WHERE clause implies, or None, and
    `ranges` such bounds on other timestamps, by column: the relation has no rows outside of them, but for those of
    system tables and of other servers. It may leave out rows of child tables that are not in `tuids`, unless that is
    None: conditions on tags leave only these (the plan filters again). `cuts`: only rows that were written
    behind the first and up to the second stream cut, as they were at the second. `newest`: of each child table all
    rows may be left out but the newest one, if `values` in a column are needed only where none of these is NULL.
    `counted`: nothing matters but the number of rows and their first and last times; each row of the relation has ROWS,
    how many it stands for, and those with these times are among them. It has no columns but the primary timestamp.
    `names`: no rows of the table, but one per child table, with its uid and `tbname`. `keys`: values of the only column
    of its KEY; the relation has no rows with others.
    """

    name: str
    table: Table
    columns: tuple[str, ...]
    first_ts: int | None = None
    last_ts: int | None = None
    tuids: tuple[int, ...] | None = None
    cuts: tuple[Cut, Cut] | None = None
    precision: Precision = "ms"
    newest: NewestRows | None = None
    counted: bool = False
    names: bool = False
    ranges: tuple[tuple[str, int | None, int | None], ...] = ()
    keys: tuple[int | str, ...] | None = None

    @cached_property
    def output(self) -> tuple[ColumnExpr, ...]:
        uid = () if self.table.kind in ("system", "tags", "external") else (ColumnExpr(TABLE_UID, UBIGINT),)
        rows = (ColumnExpr(ROWS, BIGINT),) if self.counted else ()
        return (*uid, *_of_table(self.table, self.columns, self.precision), *rows)


@dataclass(frozen=True)
class Children:
    """A row per child table of a super table, with its uid, name and tags: the relation `name`, known when planning."""

    name: str
    table: Table
    precision: Precision

    @cached_property
    def output(self) -> tuple[ColumnExpr, ...]:
        names = ("tbname", *(tag.name for tag in self.table.tags))
        return (ColumnExpr(TABLE_UID, UBIGINT), *_of_table(self.table, names, self.precision))


@dataclass(frozen=True)
class OneRow:
    """One row: what SELECT without FROM reads."""

    @cached_property
    def output(self) -> tuple[ColumnExpr, ...]:
        return (ColumnExpr(ONE, BIGINT),)


@dataclass(frozen=True)
class ConstantRows:
    """Rows that the statement has."""

    rows: tuple[tuple[Expr, ...], ...]
    columns: tuple[ColumnExpr, ...]

    @property
    def output(self) -> tuple[ColumnExpr, ...]:
        return self.columns


@dataclass(frozen=True)
class Generated:
    """The rows that a function gives, the items of a list or steps of a range: each is a `value`, made of VALUE."""

    function: Literal["range", "generate_series", "unnest"]
    arguments: tuple[Expr, ...]
    value: Computed

    @property
    def output(self) -> tuple[ColumnExpr, ...]:
        return (self.value.column,)


@dataclass(frozen=True)
class Iterated:
    """The rows that a recursive query has found in its last step: what it calls itself, `key`.

    `so_far`: those that it has found in all of its steps, and that none has replaced.
    """

    key: str
    columns: tuple[ColumnExpr, ...]
    so_far: bool = False

    @property
    def output(self) -> tuple[ColumnExpr, ...]:
        return self.columns


# --- row by row -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _SameColumns:
    """Gives some rows of its input, or all, in whatever order: its columns are those of the input."""

    input: Operator

    @cached_property
    def output(self) -> tuple[ColumnExpr, ...]:
        return self.input.output


@dataclass(frozen=True)
class Filter(_SameColumns):
    """The rows for which the condition is true. `clause` is what EXPLAIN calls it.

    `called`: what sub-queries in the condition call the rows, None if they name none of their columns.
    """

    condition: Expr
    written: Written
    clause: Literal["condition", "having", "qualify"] = "condition"
    called: str | None = None


@dataclass(frozen=True)
class NameTables:
    """Gives the column `key`, which has the uids of child tables, their names instead, as `names` has them.

    Groups are told apart by uids faster than by names, and have fewer rows than what they are groups of.
    """

    input: Operator
    key: str
    names: Scan

    @cached_property
    def output(self) -> tuple[ColumnExpr, ...]:
        return tuple(ColumnExpr(self.key, TBNAME) if column.name == self.key else column
                     for column in self.input.output)


@dataclass(frozen=True)
class Project:
    """Computes columns; if it `extends` the rows, these keep the columns that they have. `called`: as in Filter."""

    input: Operator
    columns: tuple[Computed, ...]
    extends: bool = False
    called: str | None = None

    @cached_property
    def output(self) -> tuple[ColumnExpr, ...]:
        own = tuple(column.column for column in self.columns)
        return (*self.input.output, *own) if self.extends else own


@dataclass(frozen=True, slots=True)
class LookedUp:
    """A column that rows get by a lookup: `column` of the table, called `name`."""

    name: str
    column: ColumnExpr


@dataclass(frozen=True)
class Lookup:
    """Adds the `columns` of the rows of `table` for which `on` is true; `outer`: or NULLs, where there is none.

    Rows are found as of now, without regard to time. `on` names the columns of both as they are called behind it; it is
    None if all rows are found, as a filter over them says more.
    """

    input: Operator
    table: Scan
    on: Expr | None
    columns: tuple[LookedUp, ...]
    outer: bool
    written: Written | None = None

    @cached_property
    def output(self) -> tuple[ColumnExpr, ...]:
        return (*self.input.output, *(ColumnExpr(column.name, column.column.type) for column in self.columns))


# --- joins ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinKey:
    """Values of both sides that must be equal, which `equal` says. `as_they_are`: none is converted for that."""

    left: Expr
    right: Expr
    equal: Expr
    as_they_are: bool


@dataclass(frozen=True, slots=True)
class JoinTime:
    """The time of the left side COMPARISON that of the right side.

    `exact`: both are the times of the rows themselves, perhaps shifted; truncated times aren't.
    """

    comparison: Comparison
    left: Expr
    right: Expr
    exact: bool


@dataclass(frozen=True, slots=True)
class JoinRange:
    """Right time minus left time is from `start` to `end`, in units; None where nothing bounds it.

    `left` and `right` name the columns with the times.
    """

    left: str
    right: str
    start: int | None
    end: int | None


@dataclass(frozen=True, slots=True)
class JoinColumn:
    """A column of joined rows: `column` of one side, called `name`."""

    name: str
    side: Side
    column: ColumnExpr


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """One side: its rows, and the columns that order them along their time line, if they have one.

    `one_per_instant`: no two of its rows have the same time. `qualifiers` are the tables' names in the statement.
    """

    rows: Operator
    order: tuple[str, ...] = ()
    one_per_instant: bool = False
    qualifiers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Join:
    """Pairs of rows of both sides for which `condition` is true: it names their columns as of `l` and `r`.

    semi, anti, asof and window joins have a driving side, the one that `kind` names: what the other side adds is
    chosen per driving row, at most `limit` rows of it. Joined rows of a window join have the column ROW, which numbers
    the driving rows: aggregates are computed over each of them. What the condition implies is said by `keys`, `times`
    and `range`; `others`: it says more. `looked_up`: that side's rows are found without regard to time. `nearest`: of
    the pairs of each row of the left side the one that its only inequality says is there.
    """

    left: JoinedRows
    right: JoinedRows
    kind: JoinKind
    variant: JoinVariant
    condition: Expr
    columns: tuple[JoinColumn, ...]
    written: statements.JoinSource
    keys: tuple[JoinKey, ...] = ()
    times: tuple[JoinTime, ...] = ()
    range: JoinRange | None = None
    others: bool = False
    limit: int | None = None
    looked_up: Side | None = None
    nearest: bool = False

    @property
    def driver(self) -> Side:
        """The side that LEFT or RIGHT names, the left one of inner and full joins."""
        return "r" if self.kind == "right" else "l"

    @property
    def other(self) -> Side:
        return "l" if self.kind == "right" else "r"

    def side(self, side: Side) -> JoinedRows:
        return self.left if side == "l" else self.right

    @cached_property
    def output(self) -> tuple[ColumnExpr, ...]:
        row = (ColumnExpr(ROW, BIGINT),) if self.variant == "window" else ()
        return (*(ColumnExpr(column.name, column.column.type) for column in self.columns), *row)


@dataclass(frozen=True)
class Lateral:
    """Adds to each row the `columns` of the rows of `query`, which may name its columns as those of `called`.

    `query` has them as `o0`, `o1`, ...; `outer`: rows for which it has none are there, with NULLs.
    """

    input: Operator
    query: exp.Query
    called: str
    columns: tuple[ColumnExpr, ...]
    outer: bool

    @cached_property
    def output(self) -> tuple[ColumnExpr, ...]:
        return (*self.input.output, *self.columns)


# --- windows and groups -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """Puts rows into windows of a kind: adds the column START (interval) or NUMBER, with `borders` START and END.

    Rows in several windows are there several times, rows in none are left out; `line` is that along which they lie. The
    state of a state window is added as
    STATE. `least`: windows shorter than that many units are left out; it needs `borders`.
    """

    input: Operator
    shape: Shape
    line: Line
    borders: bool = False
    least: int | None = None

    @cached_property
    def output(self) -> tuple[ColumnExpr, ...]:
        interval = isinstance(self.shape, ByInterval | ByClock)
        time = timestamp(self.shape.interval.precision) if isinstance(self.shape, ByClock) else _named(
            self.input.output, self.line.order[0]).type
        own = [ColumnExpr(START, time)] if interval else [ColumnExpr(NUMBER, BIGINT)]
        if isinstance(self.shape, ByState):
            own.append(ColumnExpr(STATE, self.shape.value.type))
        if self.borders:
            own += [ColumnExpr(END, time)] if interval else [ColumnExpr(START, time), ColumnExpr(END, time)]
        return (*self.input.output, *own)


@dataclass(frozen=True)
class Aggregate:
    """One row per group: the columns `keys`, and what is computed over its rows. Without keys, all rows are one group.

    `present`: groups in which none of these has a value have no row, with () those without rows; None: all have one.
    `interval`: groups are windows on this grid, and get END. `time`: groups are windows that rows define, and get START
    and END, the least and the greatest of that column; those shorter than `least` units are left out.
    `sets`: rows are grouped by each of these subsets of the keys, the other keys are NULL. What EXPLAIN shows:
    `window`, `by` and `functions`.
    """

    input: Operator
    keys: tuple[str, ...]
    calls: tuple[GroupValue, ...]
    present: tuple[Expr, ...] | None = None
    interval: ByInterval | None = None
    time: str | None = None
    least: int | None = None
    window: statements.Window | None = None
    by: tuple[str, ...] = ()
    functions: tuple[Written, ...] = ()
    sets: tuple[tuple[str, ...], ...] | None = None

    @cached_property
    def output(self) -> tuple[ColumnExpr, ...]:
        keys = tuple(_named(self.input.output, key) for key in self.keys)
        bounds: tuple[ColumnExpr, ...] = ()
        if self.interval is not None:
            bounds = (ColumnExpr(END, _named(self.input.output, START).type),)
        elif self.time is not None:
            time = _named(self.input.output, self.time).type
            bounds = (ColumnExpr(START, time), ColumnExpr(END, time))
        return (*keys, *bounds, *(ColumnExpr(call.name, call.type) for call in self.calls))


@dataclass(frozen=True, slots=True)
class FillColumn:
    """A column of windows: FILL gives its value where a window has no rows. `constant` is VALUE's value."""

    name: str
    type: DataType
    constant: Expr | None = None


@dataclass(frozen=True, slots=True)
class FillSpan:
    """The windows that start from `first` to `last`, inclusive, about `count` of them.

    `first` is the start of the earliest window, None if there is to be none.
    """

    first: int | None
    last: int
    count: int


@dataclass(frozen=True)
class FillGaps:
    """Adds windows without rows: each group then has all windows of the `span`, None: all between two that have rows.

    `keys` tell groups apart; a group is there if it has a window with rows, the one group without keys also where the
    mode is forced.
    """

    input: Operator
    keys: tuple[str, ...]
    interval: ByInterval
    span: FillSpan | None
    mode: FillMode
    columns: tuple[FillColumn, ...]

    @cached_property
    def output(self) -> tuple[ColumnExpr, ...]:
        known = self.input.output
        return known if any(column.name == END for column in known) else (
            *known, ColumnExpr(END, _named(known, START).type))


# --- rows of groups ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowCall:
    """A function that runs along rows, as the column `name`: its arguments, constants by position, and its type.

    `unit` is the length of its unit argument in units of the precision.
    """

    name: str
    function: str
    arguments: tuple[Expr, ...]
    constants: tuple[object, ...]
    type: DataType
    unit: int = 1


@dataclass(frozen=True)
class SeriesValues:
    """DIFF, CSUM and their kin: the rows that the calls leave, with a column per call. All calls leave the same rows.

    `window` and `by` are for EXPLAIN.
    """

    input: Operator
    calls: tuple[RowCall, ...]
    line: Line
    by: tuple[str, ...] = ()

    @cached_property
    def output(self) -> tuple[ColumnExpr, ...]:
        return (*self.input.output, *(ColumnExpr(call.name, call.type) for call in self.calls))


@dataclass(frozen=True)
class Pick:
    """TOP, BOTTOM, SAMPLE, TAIL, UNIQUE: the rows that the call picks in each group, with its value on them.

    `line.keys` tell groups apart. `seed` says which rows SAMPLE takes. `window` and `by` are for EXPLAIN.
    """

    input: Operator
    call: RowCall
    line: Line
    seed: int
    window: statements.Window | None = None
    by: tuple[str, ...] = ()

    @cached_property
    def output(self) -> tuple[ColumnExpr, ...]:
        return (*self.input.output, ColumnExpr(self.call.name, self.call.type))


@dataclass(frozen=True, slots=True)
class Parameter:
    """An integer that whoever runs the plan gives by this name."""

    name: str


@dataclass(frozen=True, slots=True)
class WindowGrid:
    """The instants first, first + step, ... up to last; `reach` is how far away a row may be, None: any distance."""

    first: int | Parameter
    last: int | Parameter
    step: int
    reach: int | None = None


@dataclass(frozen=True, slots=True)
class Interpolated:
    """One INTERP call as the column `name`: its argument, IGNORE NULL, and FILL's value."""

    name: str
    argument: Expr
    ignore_null: bool
    constant: Expr | None = None


@dataclass(frozen=True)
class Interpolate:
    """INTERP: one row per group and instant of the grid, with AT, FILLED, ORIGIN and a column per call."""

    input: Operator
    calls: tuple[Interpolated, ...]
    line: Line
    grid: WindowGrid
    mode: FillMode

    @cached_property
    def output(self) -> tuple[ColumnExpr, ...]:
        known = self.input.output
        time = _named(known, self.line.order[0]).type
        return (*(_named(known, key) for key in self.line.keys), ColumnExpr(AT, time), ColumnExpr(FILLED, BOOL),
                ColumnExpr(ORIGIN, time), *(ColumnExpr(call.name, call.argument.type) for call in self.calls))


@dataclass(frozen=True)
class Over:
    """Adds columns that are computed of the rows around each row, as OVER says. `called`: as in Filter."""

    input: Operator
    columns: tuple[Computed, ...]
    written: tuple[Written, ...]
    called: str | None = None

    @cached_property
    def output(self) -> tuple[ColumnExpr, ...]:
        return (*self.input.output, *(column.column for column in self.columns))


# --- results ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Distinct(_SameColumns):
    """Each different row once."""



@dataclass(frozen=True, slots=True)
class SortKey:
    """Rows are ordered by the column `name`. `written` is what the statement has there, None if it has no ORDER BY."""

    name: str
    descending: bool = False
    nulls_first: bool = True
    written: Written | None = None


@dataclass(frozen=True)
class Sort(_SameColumns):
    """The rows in an order."""

    keys: tuple[SortKey, ...]


@dataclass(frozen=True)
class LimitRows(_SameColumns):
    """`count` rows (None: all) after the first `offset`, in each partition that `keys` tell apart, in the order of
    `order`. Without keys both may be values that are computed once, and `percent` says that `count` is one, so many of
    a hundred rows. `distinct_on` is what EXPLAIN shows where these are the first rows of DISTINCT ON.
    """

    count: int | Computed | None
    offset: int | Computed = 0
    keys: tuple[str, ...] = ()
    order: tuple[SortKey, ...] = ()
    distinct_on: tuple[Written, ...] = ()
    percent: bool = False


@dataclass(frozen=True)
class PartitionLimit(_SameColumns):
    """The rows of `count` partitions after the first `offset`; `keys` tell partitions apart, and order them."""

    keys: tuple[str, ...]
    count: int | None
    offset: int = 0


@dataclass(frozen=True)
class Combined:
    """The rows of the inputs, whose columns have the same names and types, from left to right.

    Those of all (union), those that are in all (intersect), or those of the first that are in no other one (except);
    each different one once, unless `all`: then as often as they are there, or remain.
    """

    inputs: tuple[Operator, ...]
    kind: statements.SetKind
    all: bool

    @cached_property
    def output(self) -> tuple[ColumnExpr, ...]:
        return self.inputs[0].output


@dataclass(frozen=True)
class Recursive:
    """The rows of `base`, and those of `step` over the rows that were found last, until there are none.

    `step` reads these as the Iterated of this `key`. Unless `all`, a row that was found before counts no more. A row
    replaces the one that was found before with the same values in the columns `by`, if there are such columns.
    """

    base: Operator
    step: Operator
    key: str
    all: bool
    by: tuple[str, ...] = ()

    @cached_property
    def output(self) -> tuple[ColumnExpr, ...]:
        return self.base.output


@dataclass(frozen=True)
class Shared(_SameColumns):
    """The rows of a query that WITH names, which others may read as well: it is computed once, and called `key`.

    `depth`: in so many queries within each other its WITH stands; what stands deeper finds it by its key.
    """

    name: str
    key: str
    depth: int


@dataclass(frozen=True)
class Viewed(_SameColumns):
    """The rows of a view's query. It computes nothing: EXPLAIN tells by it where the plan of a view begins."""

    view: str


Operator: TypeAlias = (
    "Scan | Children | OneRow | ConstantRows | Generated | Iterated | Filter | Project | Lookup | Join | Lateral "
    "| Window | Aggregate | NameTables | FillGaps | SeriesValues | Pick | Interpolate | Distinct | Sort | LimitRows "
    "| PartitionLimit | Combined | Recursive | Shared | Over | Viewed")
"""One operator of a plan, with all below it."""


def inputs_of(operator: Operator) -> tuple[Operator, ...]:
    """Returns the operators whose rows an operator reads, from left to right."""
    match operator:
        case Scan() | Children() | OneRow() | ConstantRows() | Generated() | Iterated():
            return ()
        case Recursive():
            return operator.base, operator.step
        case Combined():
            return operator.inputs
        case Join():
            return operator.left.rows, operator.right.rows
        case Lookup():
            return operator.input, operator.table
    return (operator.input,)


def _named(columns: Sequence[ColumnExpr], name: str) -> ColumnExpr:
    return next(column for column in columns if column.name == name)


def _of_table(table: Table, names: Sequence[str], precision: Precision) -> tuple[ColumnExpr, ...]:
    """Returns the columns of these names, timestamps in units of the precision."""
    columns, known = [], {each.name: each for each in (*table.stored_columns, *table.tags)}
    for name in names:
        column = known.get(name)
        type_ = TBNAME if column is None else column.type
        columns.append(ColumnExpr(name, timestamp(precision) if type_.kind is Kind.TIMESTAMP else type_))
    return tuple(columns)
