"""What the source and agg tasks of a stream compute, as DuckDB SQL and kernels, from its logical plan.

Aggregates are split in two stages: source tasks make partials of their vnode's rows, agg tasks merge them and compute
the results. Which groups and windows there are follows from rows alone, so both stages name them alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from penstock.common.errors import InternalError
from penstock.planner.bind.aggregate_calls import selection_of
from penstock.planner.duckdb_sql.duckdb_tree import (
    Tree,
    all_of,
    cast,
    column,
    columns_in,
    extended,
    fragment,
    made,
    named,
    number,
    printed,
    render,
    replaced_columns,
    select,
)
from penstock.planner.duckdb_sql.group_ids import group_digest, group_id, group_value
from penstock.planner.duckdb_sql.interval_windows import (
    EVER_END,
    EVER_START,
    expanded_windows,
    interval_end,
    interval_start,
)
from penstock.planner.duckdb_sql.pieces import ordered, row_number, star
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.partials import Names, Partial, picked
from penstock.planner.functions.table import require
from penstock.planner.logical.explain import explained_stream
from penstock.planner.logical.expr import Written
from penstock.planner.logical.group_values import AggregateCall, PickedColumn
from penstock.planner.logical.operators import (
    Aggregate,
    FillColumn,
    FillGaps,
    Filter,
    Lookup,
    Operator,
    Project,
    Scan,
    Window,
)
from penstock.planner.logical.stream import LogicalStream, StreamKey
from penstock.planner.logical.window_kinds import END, START, ByClock, ByInterval
from penstock.planner.logical.written import text_of
from penstock.planner.lower.duckdb.aggregate_sql import user_call
from penstock.planner.lower.gaps import fill_plan, with_constants
from penstock.planner.lower.inner_names import with_inner_names
from penstock.planner.lower.kernels.kernel_planner import expression_kernel, expression_kernels, panes_of, source_kernel
from penstock.planner.lower.partial_aggregates import retractable, split, split_to_retract
from penstock.planner.lower.row_marks import RowMarks, bookkeeping, marks_of, rows_query
from penstock.planner.lower.targets import converted_results, key_fields, once_computed, sink_plan, tolerant
from penstock.planner.task_plans.kernel_spec import FinalKernel, SourceKernel, ValueKeys
from penstock.planner.task_plans.stream_plan import (
    ARRIVAL_COLUMN,
    LAST_ROW,
    LOOKUP,
    Accumulator,
    Computation,
    Field,
    Grouping,
    LookupPlan,
    RowsPlan,
    RowWindow,
    SourceColumn,
    SourcePlan,
    StreamPlan,
    TimeWindows,
    WindowsPlan,
)
from penstock.planner.task_plans.user_calls import Step, UserCall
from penstock.sql.schema import Table
from penstock.sql.tree.statements import IntervalWindow
from penstock.sql.types import INTEGERS, STRINGS, Kind, Precision

TBNAME = "tbname"
_COUNTABLE = (*INTEGERS, *STRINGS, Kind.BOOL, Kind.TIMESTAMP)
_STEPS: tuple[Step, ...] = ("partial", "finish")
#: What the bounds of windows are called between tasks.
WINDOW_START, WINDOW_END = "_wstart", "_wend"


def stream_plan(stream: LogicalStream, functions: Sequence[UserCall], times: Sequence[tuple[str, str]]) -> StreamPlan:
    """Returns what tasks compute so that the results are those of a plan over one table.

    `functions`: the users' functions that it calls row by row; `times`: what EXPLAIN tells of time.
    """
    project = with_inner_names(stream.plan)
    assert isinstance(project, Project)
    below = project.input
    results = [item.value for item in project.columns]
    columns = stream.target.result_columns
    if isinstance(below, Filter) and isinstance(below.input, Aggregate):
        return _windowed(stream, below.input, results, functions, times, having=below.condition)
    if isinstance(below, FillGaps | Aggregate):
        return _windowed(stream, below, results, functions, times)
    rows = rows_of(below, stream.keys, stream.time_zone)
    results, made = once_computed(results, columns)
    source = _scalar_source(rows, converted_results(results, columns), made, keyed=stream.target.composite)
    return assembled(stream, source, _grouping(rows), RowsPlan(), functions, times)


def assembled(
    stream: LogicalStream, source: SourcePlan, grouping: Grouping, computation: Computation,
    functions: Sequence[UserCall], times: Sequence[tuple[str, str]],
) -> StreamPlan:
    """Returns the plan of a stream whose tasks compute this."""
    return StreamPlan(
        replace(source, history=stream.history), grouping, computation, stream.trigger, stream.policies,
        sink_plan(stream.target, stream.keys, leaves_out_errors=stream.policies.leaves_out_errors,
                  group_is_table=source.group_is_table), stream.time_zone,
        explained_stream(stream, times), tuple(dict.fromkeys(functions)), stream.dlq, stream.notify)


def _grouping(rows: SourceRows) -> Grouping:
    table_key = next((place for place, key in enumerate(rows.keys) if key.column == TBNAME), None)
    return Grouping(tuple(key.field for key in rows.keys), rows.by_table, table_key,
                    by_values=not rows.keys_are_of_tables)


def _windowed(
    stream: LogicalStream, below: FillGaps | Aggregate, results: Sequence[SqlExpr], functions: Sequence[UserCall],
    times: Sequence[tuple[str, str]], having: SqlExpr | None = None,
) -> StreamPlan:
    aggregate = aggregate_of(below)
    window = aggregate.input
    rows = rows_of(window.input if isinstance(window, Window) else window, stream.keys, stream.time_zone)
    # Of windows what has changed is read back; of groups that have no end nobody could. From groups that may have been
    # let go nothing can be taken.
    retracts = not isinstance(window, Window) and stream.policies.state_ttl is None and all(
        isinstance(found, AggregateCall) and retractable(found) for found in aggregate.calls)
    calls = _staged_calls(aggregate, split_to_retract if retracts else split)
    partials = [call.partial for call in calls]
    windows: TimeWindows | RowWindow
    if not isinstance(window, Window):
        windows = TimeWindows(None, rows.precision, stream.time_zone)
        source = _groups_source(rows, windows, partials)
        end: Tree = number(EVER_END)
    elif isinstance(window.shape, ByInterval | ByClock):
        windows = TimeWindows(*_grid(_interval_of(window.shape)))
        source = _interval_source(rows, window.shape, windows, partials, ignore_expired=stream.policies.ignore_expired)
        end = interval_end(column(WINDOW_START), *_grid(_interval_of(window.shape)))
    else:
        marks, ts = marks_of(window.shape, aggregate.least or 0), column(window.line.order[0])
        windows = marks.window
        partials += bookkeeping(windows, ts)
        source = _row_window_source(rows, marks, ts, partials)
        end = fragment(":last + :gap", last=column(LAST_ROW), gap=windows.gap)
    of_blocks: dict[str, Tree] = {START: column(WINDOW_START), END: column(WINDOW_END), **{
        key.name: column(held.field.name) for key, held in zip(stream.keys, rows.keys, strict=True)}}
    columns = stream.target.result_columns
    computed = computed_below(below, results)
    if stream.policies.leaves_out_errors:
        results, computed = list(map(tolerant, results)), list(map(tolerant, computed))
    values, fill = converted_results(computed, columns), None
    if isinstance(below, FillGaps):
        shown = fill_of_results(below, results)
        fill = fill_plan(below.mode, below.interval, shown, stream.target, [key.field for key in rows.keys], of_blocks)
        values = with_constants(below.mode, shown, columns, values)
    for call in calls:
        # Of no rows nothing is kept, of which these functions give 0.
        counted = stream.target.single and require(call.function).counts
        of_blocks |= call.finals if not counted else {
            name: fragment("CASE WHEN :value IS NULL THEN 0 ELSE :value END", value=value)
            for name, value in call.finals.items()}
    nothing = _nothing(aggregate, calls, single=stream.target.single)
    if having is not None:
        nothing = fragment("(:nothing OR NOT coalesce(:holds, false))", nothing=nothing,
                           holds=replaced_columns(having.node, of_blocks))
    final = _final(rows, nothing, partials, end, [replaced_columns(value, of_blocks) for value in values])
    meanings = (*(key.written for key in stream.keys), *(call.meaning for call in calls if call.partial.parts))
    computation = WindowsPlan(windows, *final, meanings, fill, stream.period_ms, retracts)
    grouping = _grouping(rows)
    if stream.target.single:
        grouping = replace(grouping, colocated=False)  # tasks of vnodes without rows would have a row each
    return assembled(stream, source, grouping, computation, [*functions, *_users_aggregates(aggregate)], times)


def _users_aggregates(aggregate: Aggregate) -> list[UserCall]:
    """What is called of users' aggregates."""
    return [user_call(step, found) for found in aggregate.calls
            if isinstance(found, AggregateCall) and found.user is not None for step in _STEPS]


def aggregate_of(below: FillGaps | Aggregate) -> Aggregate:
    """Returns what gives the windows with rows."""
    if isinstance(below, Aggregate):
        return below
    assert isinstance(below.input, Project)
    assert isinstance(below.input.input, Aggregate)
    return below.input.input


def fill_of_results(fill: FillGaps, results: Sequence[SqlExpr]) -> list[FillColumn | SqlExpr]:
    """Returns what FILL gives in gaps, or the value there, for each result."""
    given = {each.name: each for each in fill.columns}
    return [given.get(_name_of(result), result) for result in results]


def computed_below(below: FillGaps | Aggregate, results: Sequence[SqlExpr]) -> list[SqlExpr]:
    """Returns the results over groups: what FILL would give is what is computed below it."""
    if isinstance(below, Aggregate):
        return list(results)
    assert isinstance(below.input, Project)
    filled = {each.name for each in below.columns}
    values = {item.name: item.value for item in below.input.columns if item.name in filled}
    return [values.get(_name_of(result), result) for result in results]


def _name_of(value: SqlExpr) -> str:
    """The name of the column that a value is, empty if it is another value."""
    return str(value.node.name) if isinstance(value.node, exp.Column) else ""


# --- aggregates -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StagedCall:
    """An aggregate over a group's rows in a window, split: `finals` are its columns over the accumulators' fields.

    `meaning`: what its accumulators stand for, as the statement spells it.
    """

    function: str
    partial: Partial
    finals: Mapping[str, Tree]
    meaning: str


def _staged_calls(
    aggregate: Aggregate, split_call: Callable[[AggregateCall, Names], Partial]
) -> list[StagedCall]:
    """Splits the calls. Columns of the row that one picks follow its value, time and table in its accumulator."""
    numbers = itertools.count()

    def fresh() -> str:
        return f"p{next(numbers)}"

    staged: list[StagedCall] = []
    for found in aggregate.calls:
        if not isinstance(found, AggregateCall):
            continue
        partial = split_call(found, fresh)
        same = None if found.user is not None else next(
            (call.partial for call in staged if partial.holds_what(call.partial)), None)
        partial = partial if same is None else partial.over(same)
        staged.append(StagedCall(found.function, partial, {found.name: partial.final}, _text(found.written)))
    carried = [found for found in aggregate.calls if isinstance(found, PickedColumn)]
    if not carried:
        return staged
    # Fields go on being numbered behind those of the call alone: that is how states are laid out.
    first = carried[0]
    partial = picked(selection_of(first.function), first.by, [found.column for found in carried], first.row, fresh)
    finals = {found.name: column(field.name) for found, field in zip(carried, partial.fields[3:], strict=False)}
    (call,) = staged
    meaning = f"{call.meaning} with {', '.join(_text(found.written) for found in carried)}"
    return [StagedCall(call.function, partial, {**dict.fromkeys(call.finals, partial.final), **finals}, meaning)]


def _text(written: Written | None) -> str:
    return "" if written is None else text_of(written)


# --- rows -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyOfRows:
    """A key of groups over source rows, and as a column of blocks. `partitions`: it tells groups apart."""

    value: Tree
    field: Field
    partitions: bool

    @property
    def column(self) -> str | None:
        """The column or tag of the row that it is, `tbname`, or None if it is computed."""
        return str(self.value.name) if isinstance(self.value, exp.Column) else None


@dataclass(frozen=True, slots=True)
class SourceRows:
    """The rows that source tasks read: a scan with what is looked up and left out, and the keys of groups."""

    scan: Scan
    lookup: Lookup | None
    condition: Tree | None
    keys: tuple[KeyOfRows, ...]
    time_zone: str

    @property
    def table(self) -> Table:
        return self.scan.table

    @property
    def precision(self) -> Precision:
        return self.scan.precision

    @property
    def used(self) -> tuple[SourceColumn, ...]:
        """The columns that are read, without tags."""
        by_name = {each.name: each for each in self.table.stored_columns}
        return tuple(SourceColumn(name, by_name[name].physical, by_name[name].type)
                     for name in self.scan.columns if name in by_name)

    @property
    def needs_children(self) -> bool:
        """Whether names and tags of tables are read."""
        return not {TBNAME, *self.tags}.isdisjoint(self.scan.columns)

    @property
    def partition(self) -> tuple[KeyOfRows, ...]:
        return tuple(key for key in self.keys if key.partitions)

    @property
    def identity(self) -> tuple[KeyOfRows, ...]:
        """The keys whose values make a group: also tags that follow from its table, until they are set anew."""
        if not self.partition:
            return ()
        return tuple(key for key in self.keys if key.partitions or columns_in(key.value) & self.tags)

    @property
    def tags(self) -> set[str]:
        return {tag.name for tag in self.table.tags}

    @property
    def by_table(self) -> bool:
        """Whether each group is part of one table."""
        return self.table.kind != "super" or any(key.column == TBNAME for key in self.partition)

    @property
    def group_is_table(self) -> bool:
        """Whether groups are tables, so that a table's uid names its group. One with other tags is another group."""
        if not self.partition and self.table.kind != "super":
            return False
        return self.by_table and all(key.column == TBNAME for key in self.identity)

    @property
    def keys_are_of_tables(self) -> bool:
        """Whether a row's keys follow from its child table alone: from its name and its tags."""
        return all(columns_in(key.value) <= {TBNAME, *self.tags} for key in self.keys)

    @property
    def gid(self) -> Tree:
        """The id of a row's group."""
        if self.group_is_table:
            return fragment("_tuid")
        if not self.partition:
            return fragment("0::UBIGINT")
        return group_id((key.value, key.field.type) for key in self.identity)

    def key_columns(self) -> list[Tree]:
        """Returns the keys over a row, by their names in blocks."""
        return [named(cast(group_value(key.value, key.field.type), key.field.duckdb()), key.field.name)
                for key in self.keys]

    def steps(self) -> list[tuple[str, Tree]]:
        """Returns the steps up to `kept`: the rows that count."""
        base = fragment("SELECT r.*, c.* EXCLUDE (_tuid) FROM rows AS r LEFT JOIN children AS c USING (_tuid)"
                        if self.needs_children else "SELECT r.* FROM rows AS r")
        if self.lookup is not None:
            assert isinstance(base, exp.Select)
            base = _looking_up(self.lookup, base)
        return [("base", base), ("kept", select([star()], "base", where=self.condition))]


def rows_of(operator: Operator, keys: Sequence[StreamKey], time_zone: str) -> SourceRows:
    """Returns the rows with their keys that Project over Filter over Lookup over Scan are."""
    values: dict[str, SqlExpr] = {}
    condition: Tree | None = None
    looked_up: Lookup | None = None
    if isinstance(operator, Project):
        values, operator = {item.name: item.value for item in operator.columns}, operator.input
    if isinstance(operator, Filter):
        condition, operator = operator.condition.node, operator.input
    if isinstance(operator, Lookup):
        looked_up, operator = operator, operator.input
    if not isinstance(operator, Scan):
        raise InternalError(f"source tasks can't compute {type(operator).__name__}")
    held = tuple(KeyOfRows(values[key.name].node, field, key.partitions)
                 for key, field in zip(keys, key_fields(keys), strict=True))
    return SourceRows(operator, looked_up, condition, held, time_zone)


def _looking_up(lookup: Lookup, rows: exp.Select) -> exp.Select:
    """Returns the rows that source tasks read with what they look up in."""
    side = {"side": "LEFT"} if lookup.outer else {"kind": "INNER"}
    on = exp.true() if lookup.on is None else lookup.on.node
    return extended(rows, [made(exp.Column, this=star(), table=exp.to_identifier(LOOKUP))],
                    [made(exp.Join, this=exp.to_table(LOOKUP), on=on, **side)])


def _lookup_plan(lookup: Lookup) -> LookupPlan:
    table = lookup.table.table
    physical = {each.name: each.physical for each in table.columns}
    return LookupPlan(
        table=f"the tags of {table.name}" if table.kind == "tags" else table.name, table_uid=table.uid,
        connection=table.database if table.kind == "external" else None,
        columns=tuple(SourceColumn(found.name, physical[found.column.name], found.column.type)
                      for found in lookup.columns),
        described=table.columns if table.kind == "external" else ())


# --- source tasks -----------------------------------------------------------------------------------------------


def _scalar_source(
    rows: SourceRows, results: Sequence[Tree], made: Sequence[Tree], *, keyed: bool
) -> SourcePlan:
    """Returns what source tasks of a stream without windows compute. `keyed`: the target has a composite key.

    `made`: columns that are computed before `results`, which read them.
    """
    columns = [fragment("_tuid AS _row"), named(rows.gid, "_gid"), *rows.key_columns(),
               *(named(result, f"r{n}") for n, result in enumerate(results))]
    once = None
    if rows.lookup is not None:  # a row that finds several gives the greatest result, as a join does
        place = [column("_row"), column("r0"), *([column("r1")] if keyed else [])]
        greatest = [ordered(column(f"r{n}"), descending=True) for n in range(len(results))]
        once = fragment(":place = 1", place=row_number(place, greatest))
    steps, kept = rows.steps(), "kept"
    if made:
        steps, kept = [*steps, ("made", select([star(), *made], kept))], "made"
    sql = select(columns, kept, steps=steps, qualify=once)
    return _source(rows, sql, kernel=None if made else _kernel(rows, results))


def _row_window_source(rows: SourceRows, marks: RowMarks, ts: Tree, partials: Sequence[Partial]) -> SourcePlan:
    """Returns what source tasks compute of windows that rows define."""
    kernel = _kernel(rows, (), partials, marks=marks)
    base = _partials_per_group(rows, partials).of("windowed", [])
    ordered = render(rows_query(rows.steps(), marks, rows.gid, ts))
    return replace(_source(rows, base, kernel=kernel), rows_sql=ordered)


def _groups_source(rows: SourceRows, windows: TimeWindows, partials: Sequence[Partial]) -> SourcePlan:
    """Returns what source tasks compute of groups without a window: all time is one."""
    windowed = select([star(), named(fragment(":start::BIGINT", start=EVER_START), WINDOW_START)], "kept")
    sql = _partials_per_group(rows, partials).of("windowed", [*rows.steps(), ("windowed", windowed)])
    return _source(rows, sql, kernel=_kernel(rows, (), partials, windows))


def _interval_source(
    rows: SourceRows, shape: ByInterval | ByClock, windows: TimeWindows, partials: Sequence[Partial], *,
    ignore_expired: bool,
) -> SourcePlan:
    """Returns what source tasks compute of windows on a grid."""
    interval = _interval_of(shape)
    window, grid = interval.window, _grid(interval)
    # Windows of arrival lie on a column that the log doesn't have.
    kernel = None if isinstance(shape, ByClock) else _kernel(rows, (), partials, windows)
    ts = column(ARRIVAL_COLUMN if isinstance(shape, ByClock) else rows.table.time_column.name)
    start = interval_start(ts, *grid) if window.sliding is None else fragment(
        "unnest(:starts)", starts=expanded_windows(ts, *grid))
    steps = [*rows.steps(), ("windowed", select([star(), named(start, WINDOW_START)], "kept"))]
    steps = [(name, printed(step)) for name, step in steps]
    per_group = _partials_per_group(rows, partials).as_text()
    sql = per_group.of("windowed", steps)
    if not ignore_expired:
        return _source(rows, sql, kernel=kernel)
    end = interval_end(column(WINDOW_START), *grid)
    last_end = interval_end(interval_start(column("_last"), *grid), *grid)
    expired = printed(fragment("coalesce(:end < :last_end AND :end <= _limit, false)", end=end, last_end=last_end))
    live = select([star()], "windowed", where=fragment("NOT :expired", expired=expired))
    late = per_group.of("live", [*steps, ("live", live)])
    gone = select([column("_row")], "windowed", group_by=[column("_row")],
                  having=fragment("bool_and(:expired)", expired=expired), steps=steps)
    return replace(_source(rows, sql, kernel=kernel), late_sql=render(late), expired_sql=render(gone))


def _interval_of(shape: ByInterval | ByClock) -> ByInterval:
    return shape.interval if isinstance(shape, ByClock) else shape


def _grid(interval: ByInterval) -> tuple[IntervalWindow, Precision, str]:
    return interval.window, interval.precision, interval.zone


# --- agg tasks --------------------------------------------------------------------------------------------------


def _final(
    rows: SourceRows, nothing: Tree, partials: Sequence[Partial], end: Tree, results: Sequence[Tree]
) -> tuple[tuple[Accumulator, ...], str, FinalKernel | None]:
    """Returns what agg tasks keep per group and window, and what computes the results of it, in SQL and as a kernel.

    `nothing`: whether a window has no result. `partials` are those of the calls, and what windows carry besides; `end`
    is a window's end over them. `results` are over keys, the fields of the accumulators, and the windows' bounds.
    """
    final = select(
        [fragment(":nothing::UTINYINT AS _op", nothing=nothing), column("_gid"),
         *(column(key.field.name) for key in rows.keys),
         *(named(result, f"r{n}") for n, result in enumerate(results))],
        select([star(), named(end, WINDOW_END)], "state"))
    accumulators = tuple(accumulator for partial in partials for accumulator in partial.accumulators)
    types = {"_rows": Kind.BIGINT, "_gid": Kind.UBIGINT, WINDOW_START: Kind.BIGINT,
             **{key.field.name: key.field.type.kind for key in rows.keys},
             **{field.name: field.type.kind for accumulator in accumulators for field in accumulator.fields
                if not field.many}}
    end_kernel = expression_kernel(end, types)
    computed = expression_kernels(results, types if end_kernel is None else {**types, WINDOW_END: Kind.BIGINT})
    empty = expression_kernel(nothing, types)
    kernel = FinalKernel(computed, end_kernel, empty) if computed is not None and empty is not None else None
    return accumulators, render(final), kernel


def _nothing(aggregate: Aggregate, calls: Sequence[StagedCall], *, single: bool) -> Tree:
    """Whether a window has no result row: no rows are left, or all calls find only NULLs where they must find more.

    `single`: the only group there is may have a row without rows.
    """
    if aggregate.present is None and single:
        return exp.false()
    if not aggregate.present:
        return fragment("_rows = 0")
    return all_of([fragment(":value IS NULL", value=call.partial.final) for call in calls])


# --- parts ------------------------------------------------------------------------------------------------------


def _kernel(
    rows: SourceRows, projections: Sequence[Tree], partials: Sequence[Partial] = (),
    windows: TimeWindows | None = None, marks: RowMarks | None = None,
) -> SourceKernel | None:
    """Returns what a source task can compute without DuckDB: groups must follow from the child table, or from values
    that are whole numbers or texts."""
    if rows.lookup is not None:
        return None
    values = None
    if rows.keys and not rows.keys_are_of_tables:
        values = _value_keys(rows)
        if values is None or marks is not None:
            return None
    panes = None if windows is None else panes_of(windows.grid)
    if windows is not None and panes is None:
        return None
    groups = None
    if rows.keys and values is None:
        groups = render(select([column("_tuid"), named(rows.gid, "_gid"), *rows.key_columns()], "children"))
    types = {"_tuid": Kind.UBIGINT, TBNAME: Kind.VARCHAR, **{tag.name: tag.type.kind for tag in rows.table.tags},
             **{used.name: used.type.kind for used in rows.used}}
    return source_kernel(
        condition=rows.condition, groups_sql=groups, partials=partials, projections=projections,
        marks=marks.marks if marks is not None else (), mark_condition=marks.condition if marks is not None else None,
        panes=panes, types=types, values=values)


def _value_keys(rows: SourceRows) -> ValueKeys | None:
    """Returns how groups follow from the rows' values: each key is a column, or of the child table."""
    of_tables = {TBNAME, *rows.tags}
    columns: dict[str, None] = {}
    kinds = {used.name: used.type.kind for used in rows.used}
    for key in rows.keys:
        if not key.partitions:
            return None
        if columns_in(key.value) <= of_tables:
            continue
        if key.column is None or kinds[key.column] not in _COUNTABLE:
            return None
        columns[key.column] = None
    digest = group_digest((key.value, key.field.type) for key in rows.partition)
    return ValueKeys(render(select([named(digest, "_digest"), *rows.key_columns()], "keys")), tuple(columns),
                     any(columns_in(key.value) & of_tables for key in rows.keys))


@dataclass(frozen=True, slots=True)
class _PartialsPerGroup:
    """The partials per group and window: columns over rows, those that rows are grouped by, and columns over groups."""

    inner: list[Tree]
    grouped: list[Tree]
    outer: list[Tree]

    def of(self, source: str, steps: Sequence[tuple[str, Tree]]) -> exp.Select:
        """Returns the SELECT of the partials of the rows of `source`."""
        return select(self.outer, select(self.inner, source, group_by=self.grouped), steps=steps)

    def as_text(self) -> _PartialsPerGroup:
        """Returns the same as text, for several SELECTs."""
        return _PartialsPerGroup(list(map(printed, self.inner)), self.grouped, list(map(printed, self.outer)))


def _partials_per_group(rows: SourceRows, partials: Sequence[Partial]) -> _PartialsPerGroup:
    gid = rows.gid
    inner, grouped = [named(gid, "_gid")], [column("_gid"), column(WINDOW_START)]
    for key, value in zip(rows.keys, rows.key_columns(), strict=True):
        if rows.group_is_table or not key.partitions:
            inner.append(named(cast(fragment("any_value(:key)", key=key.value), key.field.duckdb()),
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
    return _PartialsPerGroup(inner, grouped, outer)


def _source(rows: SourceRows, sql: Tree, *, kernel: SourceKernel | None = None) -> SourcePlan:
    return source_plan(rows, render(sql), kernel, group_is_table=rows.group_is_table)


def source_plan(rows: SourceRows, sql: str, kernel: SourceKernel | None = None, *, group_is_table: bool) -> SourcePlan:
    """Returns the plan of source tasks that compute `sql`."""
    table = rows.table
    return SourcePlan(
        database=table.database, table=table.name, storage_uid=table.storage_uid,
        keep_tuid=None if table.kind == "super" else table.uid,
        time_column=table.time_column.name, group_is_table=group_is_table,
        precision=rows.precision, columns=rows.used, tags=tuple(Field(tag.name, tag.type) for tag in table.tags),
        needs_children=rows.needs_children, sql=sql, late_sql=None,
        expired_sql=None, kernel=kernel, key_column=None if table.key_column is None else table.key_column.name,
        lookup=None if rows.lookup is None else _lookup_plan(rows.lookup),
        used_tags=tuple(sorted(rows.tags.intersection(rows.scan.columns))))

