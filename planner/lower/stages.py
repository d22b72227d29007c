"""What the source and agg tasks of a stream compute, as DuckDB SQL and kernels, from its bound parts.

Aggregates are split in two stages: source tasks make partials of their vnode's rows, agg tasks merge them and compute
the results. Which groups and windows there are follows from rows alone, so both stages name them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from penstock.planner.duckdb_tree import (
    Tree,
    all_of,
    cast,
    column,
    columns_in,
    everything,
    fragment,
    named,
    render,
    replaced_columns,
    select,
)
from penstock.planner.group_ids import group_id, group_value
from penstock.planner.grouped_call import RowKey
from penstock.planner.kernel_planner import expression_kernel, expression_kernels, panes_of, source_kernel
from penstock.planner.kernel_spec import FinalKernel, SourceKernel
from penstock.planner.partials import Partial
from penstock.planner.plan import SqlExpr
from penstock.planner.stream import ARRIVAL_COLUMN, AggPlan, Field, SourceColumn, SourcePlan
from penstock.planner.stream_lookup import Lookup
from penstock.planner.stream_row_windows import LAST_ROW, WindowMarks, rows_sql
from penstock.planner.windows import expanded_windows, interval_end, interval_start
from penstock.sql.schema import Table
from penstock.sql.statements import IntervalWindow, PartitionItem
from penstock.sql.types import DataType, Kind, Precision

TBNAME = "tbname"
WINDOW_START, WINDOW_END = "_wstart", "_wend"


@dataclass(frozen=True, slots=True)
class GroupKey:
    """One value that all rows of a group share: `value` over a source row, `field` in blocks.

    `names`: how expressions may refer to it (alias, text). `partitions`: False for values that follow from the others,
    such as the tags where the stream is partitioned by tbname. `item`: what stands in PARTITION BY.
    """

    field: Field
    value: SqlExpr
    names: tuple[str, ...]
    partitions: bool
    item: PartitionItem | None = None

    @property
    def column(self) -> str | None:
        """The column or tag of the row that it is, `tbname`, or None if it is computed."""
        node = self.value.node
        return str(node.name) if isinstance(node, exp.Column) else None


@dataclass(frozen=True, slots=True)
class Companion:
    """A plain column of the row that an aggregate picks: the column `output` of what is computed of groups.

    `written` is how the statement calls it.
    """

    output: str
    written: str


@dataclass(frozen=True, slots=True)
class StagedCall:
    """An aggregate over a group's rows in a window: the column `output`, of `type`, of what is computed of groups.

    `written` is how the statement spells the call. The picked row's `companions` follow its value, time and table among
    the fields of its accumulator.
    """

    name: str
    arguments: tuple[SqlExpr, ...]
    partial: Partial
    output: str
    type: DataType
    written: str
    companions: tuple[Companion, ...] = ()

    @property
    def finals(self) -> dict[str, Tree]:
        """What its columns are over the fields of its accumulators."""
        carried = zip(self.companions, self.partial.fields[3:], strict=False)
        return {self.output: self.partial.final,
                **{companion.output: column(field.name) for companion, field in carried}}

    @property
    def meaning(self) -> str:
        """What its accumulators stand for, as the statement spells it."""
        carried = ", ".join(companion.written for companion in self.companions)
        return f"{self.written} with {carried}" if carried else self.written


@dataclass(frozen=True, slots=True)
class SourceRows:
    """The rows that a stream reads, and how they are told apart.

    `used` are the columns that anything reads, `needs_children` whether names and tags of tables are read.
    `by_arrival`: windows go by when rows came.
    """

    table: Table
    precision: Precision
    time_zone: str
    used: tuple[SourceColumn, ...]
    needs_children: bool
    lookup: Lookup | None
    condition: Tree | None
    keys: tuple[GroupKey, ...]
    row: RowKey
    by_arrival: bool = False

    @property
    def ts(self) -> Tree:
        """What windows go by."""
        return column(ARRIVAL_COLUMN) if self.by_arrival else self.row.ts.node

    @property
    def partition(self) -> tuple[GroupKey, ...]:
        return tuple(key for key in self.keys if key.partitions)

    @property
    def tags(self) -> set[str]:
        return {tag.name for tag in self.table.tags}

    @property
    def by_table(self) -> bool:
        """Whether each group is part of one table."""
        return self.table.kind != "super" or any(key.column == TBNAME for key in self.partition)

    @property
    def group_is_table(self) -> bool:
        """Whether groups are tables, so that a table's uid names its group."""
        if not self.partition and self.table.kind != "super":
            return False
        return self.by_table and all(key.column == TBNAME or key.column in self.tags for key in self.partition)

    @property
    def keys_are_of_tables(self) -> bool:
        """Whether a row's keys follow from its child table alone: from its name and its tags."""
        return all(columns_in(key.value.node) <= {TBNAME, *self.tags} for key in self.keys)

    @property
    def gid(self) -> Tree:
        """The id of a row's group."""
        if self.group_is_table:
            return fragment("_tuid")
        if not self.partition:
            return fragment("0::UBIGINT")
        return group_id((key.value.node, key.field.type) for key in self.partition)

    def key_columns(self) -> list[Tree]:
        """Returns the keys over a row, by their names in blocks."""
        return [named(cast(group_value(key.value.node, key.field.type), key.field.duckdb()), key.field.name)
                for key in self.keys]

    def steps(self) -> list[tuple[str, Tree]]:
        """Returns the steps up to `kept`: the rows that count."""
        needs_children = self.needs_children or any(key.column == TBNAME for key in self.keys)
        base = fragment("SELECT r.*, c.* EXCLUDE (_tuid) FROM rows AS r LEFT JOIN children AS c USING (_tuid)"
                        if needs_children else "SELECT r.* FROM rows AS r")
        if self.lookup is not None:
            self.lookup.join(base)
        return [("base", base), ("kept", select([everything()], "base", where=self.condition))]


def scalar_source(rows: SourceRows, results: Sequence[Tree], *, keyed: bool) -> SourcePlan:
    """Returns what source tasks of a stream without windows compute. `keyed`: the target has a composite key."""
    columns = [fragment("_tuid AS _row"), named(rows.gid, "_gid"), *rows.key_columns(),
               *(named(result, f"r{n}") for n, result in enumerate(results))]
    once = None
    if rows.lookup is not None:  # a row that finds several gives the greatest result, as a join does
        place = [column("_row"), column("r0"), *([column("r1")] if keyed else [])]
        greatest = [exp.Ordered(this=column(f"r{n}"), desc=True, nulls_first=False) for n in range(len(results))]
        once = exp.EQ(
            this=exp.Window(this=exp.Anonymous(this="row_number"), partition_by=place,
                            order=exp.Order(expressions=greatest)),
            expression=exp.Literal.number(1))
    sql = select(columns, "kept", steps=rows.steps(), qualify=once)
    return _source(rows, sql, kernel=_kernel(rows, results))


def row_window_source(rows: SourceRows, marks: WindowMarks, partials: Sequence[Partial]) -> SourcePlan:
    """Returns what source tasks compute of windows that rows define."""
    kernel = _kernel(rows, (), partials, marks=marks)
    base = _partials(rows, partials, "windowed", [])
    return replace(_source(rows, base, kernel=kernel), row_window=marks.window,
                   rows_sql=render(rows_sql(rows.steps(), marks, rows.gid, rows.ts)))


def interval_source(
    rows: SourceRows, window: IntervalWindow, partials: Sequence[Partial], *, ignore_expired: bool
) -> SourcePlan:
    """Returns what source tasks compute of INTERVAL windows."""
    # Windows of arrival lie on a column that the log doesn't have.
    kernel = None if rows.by_arrival else _kernel(rows, (), partials, window)
    grid = (window, rows.precision, rows.time_zone)
    start = interval_start(rows.ts, *grid) if window.sliding is None else fragment(
        "unnest(:starts)", starts=expanded_windows(rows.ts, *grid))
    steps = [*rows.steps(), ("windowed", select([everything(), named(start, WINDOW_START)], "kept"))]
    sql = _partials(rows, partials, "windowed", steps)
    if not ignore_expired:
        return _source(rows, sql, kernel=kernel)
    end = interval_end(column(WINDOW_START), *grid)
    last_end = interval_end(interval_start(column("_last"), *grid), *grid)
    expired = fragment("coalesce(:end < :last_end AND :end <= _limit, false)", end=end, last_end=last_end)
    live = select([everything()], "windowed", where=fragment("NOT :expired", expired=expired))
    late = _partials(rows, partials, "live", [*steps, ("live", live)])
    gone = select([column("_row")], "windowed", group_by=[column("_row")],
                  having=fragment("bool_and(:expired)", expired=expired), steps=steps)
    return replace(_source(rows, sql, kernel=kernel), late_sql=render(late), expired_sql=render(gone))


def windows_of_groups(
    rows: SourceRows, window: IntervalWindow | WindowMarks, calls: Sequence[StagedCall],
    partials: Sequence[Partial], results: Sequence[Tree],
) -> AggPlan:
    """Returns what agg tasks keep per group and window, and compute of it.

    `partials` are those of the calls, and what windows carry besides. `results` are over keys, the columns of the
    calls, and the windows' bounds.
    """
    finals: dict[str, Tree] = {}
    for call in calls:
        finals |= call.finals
    results = [replaced_columns(result, finals) for result in results]
    end = fragment(":last + :gap", last=column(LAST_ROW), gap=window.window.gap) if isinstance(
        window, WindowMarks) else interval_end(column(WINDOW_START), window, rows.precision, rows.time_zone)
    nothing = _nothing(calls)
    final = select(
        [fragment(":nothing::UTINYINT AS _op", nothing=nothing), column("_gid"),
         *(column(key.field.name) for key in rows.keys),
         *(named(result, f"r{n}") for n, result in enumerate(results))],
        select([everything(), named(end, WINDOW_END)], "state"))
    accumulators = tuple(accumulator for partial in partials for accumulator in partial.accumulators)
    types = {"_rows": Kind.BIGINT, "_gid": Kind.UBIGINT, WINDOW_START: Kind.BIGINT,
             **{key.field.name: key.field.type.kind for key in rows.keys},
             **{field.name: field.type.kind for accumulator in accumulators for field in accumulator.fields
                if not field.many}}
    end_kernel = expression_kernel(end, types)
    computed = expression_kernels(results, types if end_kernel is None else {**types, WINDOW_END: Kind.BIGINT})
    empty = expression_kernel(nothing, types)
    kernel = FinalKernel(computed, end_kernel, empty) if computed is not None and empty is not None else None
    meanings = (*(key.names[-1] for key in rows.keys), *(call.meaning for call in calls if call.partial.parts))
    return AggPlan(None if isinstance(window, WindowMarks) else window, rows.precision, rows.time_zone, accumulators,
                   render(final), kernel, meanings)


def _nothing(calls: Sequence[StagedCall]) -> Tree:
    """Whether a window has no result row: no rows are left, or first and last, alone, find only NULLs."""
    if any(call.name not in ("first", "last") for call in calls):
        return fragment("_rows = 0")
    return all_of([fragment(":value IS NULL", value=call.partial.final) for call in calls])


def _kernel(
    rows: SourceRows, projections: Sequence[Tree], partials: Sequence[Partial] = (),
    window: IntervalWindow | None = None, marks: WindowMarks | None = None,
) -> SourceKernel | None:
    """Returns what a source task can compute without DuckDB: groups must follow from the child table alone."""
    if rows.lookup is not None or (rows.keys and not rows.keys_are_of_tables):
        return None
    panes = panes_of(window, rows.precision, rows.time_zone) if window is not None else None
    if window is not None and panes is None:
        return None
    groups = None
    if rows.keys:
        groups = render(select([column("_tuid"), named(rows.gid, "_gid"), *rows.key_columns()], "children"))
    types = {"_tuid": Kind.UBIGINT, TBNAME: Kind.VARCHAR, **{tag.name: tag.type.kind for tag in rows.table.tags},
             **{used.name: used.type.kind for used in rows.used}}
    return source_kernel(
        condition=rows.condition, groups_sql=groups, partials=partials, projections=projections,
        marks=marks.marks if marks is not None else (), mark_condition=marks.condition if marks is not None else None,
        panes=panes, types=types)


def _partials(
    rows: SourceRows, partials: Sequence[Partial], source: str, steps: Sequence[tuple[str, Tree]]
) -> exp.Select:
    """Returns the SELECT of the partials per group and window of the rows of `source`."""
    gid = rows.gid
    inner, grouped = [named(gid, "_gid")], [column("_gid"), column(WINDOW_START)]
    for key, value in zip(rows.keys, rows.key_columns(), strict=True):
        if rows.group_is_table or not key.partitions:
            inner.append(named(cast(fragment("any_value(:key)", key=key.value.node), key.field.duckdb()),
                               key.field.name))
        else:
            inner.append(value)
            grouped.append(column(key.field.name))
    inner += [column(WINDOW_START), fragment("count(*) AS _rows")]
    outer = [column("_gid"), *(column(key.field.name) for key in rows.keys), column(WINDOW_START), column("_rows")]
    parts = [part for partial in partials for part in partial.parts]
    for place, part in enumerate(parts):
        fields = part.accumulator.fields
        if part.struct is not None:
            inner.append(named(part.struct, f"s{place}"))
            outer += [named(cast(column(field.name, f"s{place}"), field.duckdb()), field.name) for field in fields]
            continue
        outer += [column(field.name) for field in fields]
        inner += [named(cast(value, field.duckdb()), field.name)
                  for field, value in zip(fields, part.columns, strict=True)]
    return select(outer, select(inner, source, group_by=grouped), steps=steps)


def _source(rows: SourceRows, sql: Tree, *, kernel: SourceKernel | None = None) -> SourcePlan:
    return source_plan(rows, render(sql), kernel, group_is_table=rows.group_is_table)


def source_plan(rows: SourceRows, sql: str, kernel: SourceKernel | None = None, *, group_is_table: bool) -> SourcePlan:
    """Returns the plan of source tasks that compute `sql`."""
    table = rows.table
    return SourcePlan(
        storage_uid=table.storage_uid, keep_tuid=None if table.kind == "super" else table.uid,
        time_column=table.time_column.name, group_is_table=group_is_table,
        precision=rows.precision, columns=rows.used, tags=tuple(Field(tag.name, tag.type) for tag in table.tags),
        needs_children=rows.needs_children or any(key.column == TBNAME for key in rows.keys), sql=sql, late_sql=None,
        expired_sql=None, kernel=kernel, key_column=None if table.key_column is None else table.key_column.name,
        lookup=None if rows.lookup is None else rows.lookup.plan())

