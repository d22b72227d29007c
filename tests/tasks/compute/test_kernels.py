"""Kernels compute what the planner's SQL computes: on any rows, whichever of the two runs makes no difference."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import times
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kits.basics.loops_of_both import BOTH, loops
from kits.streams.stream_kit import SUPER_UID, TAGS, Catalog

from penstock.planner.duckdb_sql.duckdb_tree import parse_tree
from penstock.planner.lower.kernels.kernel_planner import expression_kernel
from penstock.planner.streams.stream_planner import plan_stream
from penstock.planner.task_plans.stream_plan import StreamPlan, WindowsPlan
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Column, Session, Table
from penstock.sql.tree.statements import CreateStream
from penstock.sql.types import DataType, Kind, timestamp
from penstock.tasks.compute import value_groups
from penstock.tasks.compute.accumulators import Values
from penstock.tasks.compute.child_tables import ChildTables
from penstock.tasks.compute.duckdb_computer import Computer
from penstock.tasks.compute.first_stage import FirstStage
from penstock.tasks.compute.group_index import GroupIndex
from penstock.tasks.compute.kernel_vectors import Vector, evaluate
from penstock.tasks.compute.lateness import ClassifiedRows
from penstock.tasks.compute.partial_columns import PartialColumns
from penstock.tasks.protocol.block_schema import ADD, ROWS, WINDOW_START, block_schema, result_schema
from penstock.tasks.window.final_stage import FinalStage
from penstock.tasks.window.window_state import WindowState

TABLES = 4
DUCKDB = Computer()
INTEGERS = {"i1": Kind.TINYINT, "i2": Kind.SMALLINT, "i4": Kind.INT, "i8": Kind.BIGINT,
            "u1": Kind.UTINYINT, "u2": Kind.USMALLINT, "u4": Kind.UINT, "u8": Kind.UBIGINT}
KINDS = {**INTEGERS, "f4": Kind.FLOAT, "f8": Kind.DOUBLE, "b": Kind.BOOL, "txt": Kind.VARCHAR}
COLUMNS = (Column("ts", timestamp(), "ts"), *(
    Column(name, DataType(kind, 16 if kind is Kind.VARCHAR else None), name) for name, kind in KINDS.items()))


def range_of(kind: Kind) -> tuple[int, int]:
    """The least and greatest value of an integer type that sums of a few rows don't overflow with."""
    info = np.iinfo(DataType(kind).arrow().to_pandas_dtype())
    return max(int(info.min), -(1 << 58)), min(int(info.max), 1 << 58)


def values_of(name: str) -> st.SearchStrategy[Any]:
    """Values of a column, NULL and the awkward ones included."""
    kind = KINDS[name]
    if name in INTEGERS:
        low, high = range_of(kind)
        numbers: st.SearchStrategy[Any] = st.one_of(
            st.sampled_from([value for value in (0, 1, 5, low, high) if low <= value <= high]),
            st.integers(max(low, -9), min(high, 9)))
    elif kind in (Kind.FLOAT, Kind.DOUBLE):
        numbers = st.one_of(st.sampled_from([0.0, 1.5, -2.25, math.nan, math.inf]),
                            st.floats(-100, 100, width=32))
    else:
        numbers = st.booleans() if kind is Kind.BOOL else st.sampled_from(["", "a", "b", "żółw", "x" * 20])
    return st.one_of(st.none(), numbers)


@st.composite
def blocks(draw: st.DrawFn) -> pa.Table:
    """The relation `rows`: up to 30 rows with distinct keys."""
    keys = draw(st.lists(st.tuples(st.integers(0, TABLES - 1), st.integers(-30_000, 60_000)), min_size=1, max_size=30,
                         unique=True))
    columns: dict[str, pa.Array] = {
        "_tuid": pa.array([SUPER_UID + 1 + table for table, _ in keys], pa.uint64()),
        "ts": pa.array([ts for _, ts in keys], pa.int64())}
    for column in COLUMNS[1:]:
        values = draw(st.lists(values_of(column.name), min_size=len(keys), max_size=len(keys)))
        columns[column.name] = pa.array(values, column.type.arrow())
    return pa.table(columns)


AGGREGATES = st.one_of(
    st.just("count(*)"),
    st.builds("{}({})".format, st.sampled_from(["count", "min", "max", "avg", "spread", "stddev", "first", "last"]),
              st.sampled_from([*(name for name in INTEGERS if name != "u8"), "f4", "f8", "f8 + i4", "i2 * 2.5"])),
    st.builds("sum({})".format, st.sampled_from(["i1", "i2", "i4", "u1", "u2", "u4", "f4", "f8", "i8", "f8 / i1"])),
    st.builds("{}({})".format, st.sampled_from(["first", "last", "count"]), st.sampled_from(["txt", "b", "u8"])),
)
CONDITIONS = st.sampled_from([
    "i4 > 3", "f8 > 1.5", "f8 <= 0 or i1 = 5", "not (f4 >= 1.5)", "txt = 'a'", "txt <> 'a' and b", "site = 's1'",
    "i2 between -3 and 4", "u1 in (1, 5)", "f8 is null or f8 <> 1.5", "f8 = f4", "f8 > f8 * 2", "i8 is not null",
    "tbname = 'd1' or i4 < 0", "f8 / i4 > 0.5", "ts >= 10000",
])
PARTITIONS = st.sampled_from(["", "partition by tbname", "partition by site", "partition by tbname, site"])
OF_TABLES = ["tbname", "site", "concat(site, tbname)"]
VALUES = st.lists(st.sampled_from([*INTEGERS, "b", "txt", "ts", *OF_TABLES]), min_size=1, max_size=3,
                  unique=True).filter(lambda keys: not {*keys} <= {*OF_TABLES})
WINDOWS = st.sampled_from([
    "interval(10s)", "interval(7s, 3s)", "interval(10s) sliding(5s)", "interval(25s) sliding(10s)"])
ROW_WINDOWS = st.sampled_from([
    "session(ts, 5s)", "state_window(i1)", "state_window(txt)", "event_window start with f8 > 1 end with i4 < 3",
    "count_window(3)", "count_window(5, 2)"])
QUIET = settings(max_examples=times(10, 400), deadline=None,
                 suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def planned(query: str, options: str = "") -> StreamPlan:
    """The plan of a stream over the columns of all types."""
    catalog = Catalog(1, TABLES)
    catalog.meters = Table(SUPER_UID, "p", "meters", "super", COLUMNS, TAGS)
    statement = parse_one(f"create stream s {options} into o as {query}")
    assert isinstance(statement, CreateStream)
    return plan_stream(statement, catalog, Session("p", "UTC", 0))


def stages(plan: StreamPlan) -> tuple[FirstStage, FirstStage]:
    """The first stage with its kernel, and as DuckDB alone computes it."""
    assert plan.source.kernel is not None, plan.source.sql
    tables = pa.table({"uid": pa.array([SUPER_UID + 1 + n for n in range(TABLES)], pa.uint64()),
                       "name": [f"d{n}" for n in range(TABLES)], "site": ["s0", "s0", "s1", None]})
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, tables.schema) as writer:
        writer.write_table(tables)
    children = buffer.getvalue().to_pybytes()
    without = replace(plan, source=replace(plan.source, kernel=None))
    schema = block_schema(plan)
    computer = Computer()
    first, second = (FirstStage(each, schema, computer, ChildTables(each.source, children)) for each in (plan, without))
    return first, second


def rows_of(batch: pa.RecordBatch | pa.Table, keys: int) -> list[tuple[Any, ...]]:
    """The rows, sorted by their first columns."""
    rows = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return sorted(rows, key=lambda row: tuple((value is None, value) for value in row[:keys]))


def same(left: Any, right: Any) -> bool:
    """Equality but for the order in which floats are added."""
    if isinstance(left, float) and isinstance(right, float):
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        return math.isclose(left, right, rel_tol=1e-6, abs_tol=1e-4)
    return bool(left == right)


def assert_same(got: list[tuple[Any, ...]], want: list[tuple[Any, ...]]) -> None:
    assert len(got) == len(want), (got, want)
    for one, other in zip(got, want, strict=True):
        assert all(same(a, b) for a, b in zip(one, other, strict=True)), (one, other)


def state_of(plan: StreamPlan, partials: pa.RecordBatch) -> WindowState:
    """The state of windows that have these partials and nothing else."""
    index = GroupIndex(plan.grouping.keys)
    assert isinstance(plan.computation, WindowsPlan)
    groups = index.intern(partials)
    columns = [Values.of(column) for column in partials.columns[3 + len(plan.grouping.keys):]]
    return WindowState(index, groups, partials.column(WINDOW_START.name).to_numpy(),
                       partials.column(ROWS.name).to_numpy(), plan.computation.fields, columns)


NO_VALUES = pa.table({
    "_tuid": pa.array([SUPER_UID + 1] * 9, pa.uint64()), "ts": pa.array(range(0, 90_000, 10_000), pa.int64()),
    **{column.name: pa.array([None] * 9, column.type.arrow()) for column in COLUMNS[1:]}})

NOT_ALL_ARE_NUMBERS = NO_VALUES.set_column(
    NO_VALUES.column_names.index("f4"), "f4",
    pa.array([math.nan, 0, 1, math.nan, None, None, 2, math.nan, -1], pa.float32()))


@BOTH
@QUIET
@given(rows=blocks(), aggregates=st.lists(AGGREGATES, min_size=1, max_size=4, unique=True),
       condition=st.one_of(st.none(), CONDITIONS), partition=PARTITIONS, window=WINDOWS)
@example(rows=NO_VALUES, aggregates=["stddev(i1)"], condition=None, partition="", window="interval(25s) sliding(10s)")
@example(rows=NOT_ALL_ARE_NUMBERS, aggregates=["min(f4)", "max(f4)", "spread(f4)"], condition=None, partition="",
         window="interval(25s) sliding(10s)")
def test_partials_and_results_of_intervals(
    rows: pa.Table, aggregates: list[str], condition: str | None, partition: str, window: str, compiled: bool
) -> None:
    """Partials per group and window, and the results made of them, are the SQL's, NULLs and NaN included."""
    columns = ", ".join(f"{text} a{n}" for n, text in enumerate(aggregates))
    where = f"where {condition}" if condition else ""
    plan = planned(f"select _wstart, {columns} from meters {where} {partition} {window}")
    by_kernel, by_sql = stages(plan)
    with loops(compiled=compiled):
        got = by_kernel.compute(rows)
    want = by_sql.compute(rows)
    keys = 2 + len(plan.grouping.keys)
    # Moments of values that aren't finite are NaN in both, and how the mean of a window says so doesn't matter.
    assert_same(rows_of(got, keys), rows_of(want, keys))
    assert isinstance(plan.computation, WindowsPlan)
    assert plan.computation.kernel is not None
    check_columns(by_kernel, rows)
    schema, state = result_schema(plan.grouping.keys, plan.result_fields), state_of(plan, want)
    computer = Computer()
    result = FinalStage(plan.computation, schema, computer).compute(state)
    assert_same(rows_of(result, 3), rows_of(computer.run(plan.computation.final_sql, schema, state=state.table()), 3))


def check_columns(by_kernel: FirstStage, rows: pa.Table) -> None:
    """Checks that an agg task of the same process gets what it would get by Arrow."""
    block = by_kernel.partials(rows) if rows.num_rows else None
    if block is None:
        return
    assert block.rows == block.data.num_rows
    assert set(block.data.column("_op").to_pylist()) <= {ADD}
    direct, by_arrow = block.columns(), PartialColumns.of(block.batch())
    chosen = np.arange(block.rows)[::2]
    keys, keys_by_arrow = ([key.to_pylist() for key in each.keys(chosen)] for each in (direct, by_arrow))
    assert keys == keys_by_arrow
    for name in ("groups", "starts", "rows"):
        np.testing.assert_array_equal(getattr(direct, name), getattr(by_arrow, name))
    for mine, its in zip(direct.fields, by_arrow.fields, strict=True):
        assert (mine.type, mine.dtype) == (its.type, its.dtype)
        np.testing.assert_array_equal(mine.valid, its.valid)
        np.testing.assert_array_equal(mine.data, its.data)


@BOTH
@QUIET
@given(some=st.lists(blocks(), min_size=1, max_size=3), keys=VALUES, condition=st.one_of(st.none(), CONDITIONS),
       aggregates=st.lists(AGGREGATES, min_size=1, max_size=2, unique=True), window=WINDOWS,
       most=st.sampled_from([3, 1 << 21]))
def test_groups_of_values(
    some: list[pa.Table], keys: list[str], condition: str | None, aggregates: list[str], window: str, most: int,
    compiled: bool,
) -> None:
    """Columns of rows make the groups that they make in SQL, block after block, with a bound of how many or without."""
    columns = ", ".join(f"{text} a{n}" for n, text in enumerate(aggregates))
    named = ", ".join(f"{key} k{n}" for n, key in enumerate(keys))
    plan = planned(f"select _wstart, {columns} from meters {f'where {condition}' if condition else ''} "
                   f"partition by {named} {window}")
    by_kernel, by_sql = stages(plan)
    with loops(compiled=compiled), pytest.MonkeyPatch.context() as patch:
        patch.setattr(value_groups, "MOST_GROUPS", most)
        for rows in some:
            got, want = by_kernel.compute(rows), by_sql.compute(rows)
            assert_same(rows_of(got, 2 + len(keys)), rows_of(want, 2 + len(keys)))
            check_columns(by_kernel, rows)


@BOTH
@pytest.mark.parametrize("window", ["interval(1s)", "interval(3s, 1s) sliding(1s)", ""])
def test_many_groups_of_values(window: str, compiled: bool) -> None:
    """Tables grow, and rows far apart in time are told apart, too."""
    random = np.random.default_rng(5)
    plan = planned(f"select {'_wstart, count(*) c, sum(i4) s' if window else 'ts, i4 * 2.5 c'} from meters "
                   f"partition by {'' if window else 'tbname n, '}i8 k, txt t {window}")
    by_kernel, by_sql = stages(plan)
    with loops(compiled=compiled):
        for count in (20, 30_000, 30_000, 20):
            rows = pa.table({
                "_tuid": pa.array(SUPER_UID + 1 + random.integers(0, TABLES, count).astype(np.uint64)),
                "ts": pa.array(random.integers(0, 20_000, count) + random.integers(0, 2, count) * 4_000_000_000_000),
                "i8": pa.array(random.integers(0, 9_000, count), mask=random.random(count) < 0.01),
                "txt": pa.array(random.choice(["a", "b", "żółw"], count), mask=random.random(count) < 0.1),
                "i4": pa.array(random.integers(-9, 9, count).astype(np.int32))})
            got, want = by_kernel.compute(rows), by_sql.compute(rows)
            assert got.schema == want.schema
            order = [(name, "ascending") for name in got.schema.names]
            assert got.sort_by(order).equals(want.sort_by(order))


@BOTH
@QUIET
@given(rows=blocks(), aggregates=st.lists(AGGREGATES, min_size=1, max_size=3, unique=True),
       condition=st.one_of(st.none(), CONDITIONS), window=ROW_WINDOWS)
def test_rows_and_segments_of_row_windows(
    rows: pa.Table, aggregates: list[str], condition: str | None, window: str, compiled: bool
) -> None:
    """Rows come in the SQL's order with its marks, and segments have its partials, whatever windows they are put in."""
    columns = ", ".join(f"{text} a{n}" for n, text in enumerate(aggregates))
    where = f"where {condition}" if condition else ""
    plan = planned(f"select _wstart, {columns} from meters {where} partition by tbname {window}",
                   "watermark 10s ignore expired 1")
    by_kernel, by_sql = stages(plan)
    got, want = by_kernel.in_windows(rows), by_sql.in_windows(rows)
    assert_same(rows_of(got, 0), rows_of(want.select(got.column_names), 0))
    starts = pa.array(np.asarray(want.column("#ts")) // 20_000 * 20_000)
    twice = [pa.concat_tables([table.append_column("_wstart", starts), table.append_column("_wstart", pa.array(
        np.asarray(starts) + 20_000))]) for table in (got, want)]
    keys = 2 + len(plan.grouping.keys)
    with loops(compiled=compiled):
        segments = by_kernel.segments(twice[0])
    assert_same(rows_of(segments, keys), rows_of(by_sql.segments(twice[1]), keys))


@QUIET
@given(rows=blocks(), condition=st.one_of(st.none(), CONDITIONS),
       columns=st.lists(st.sampled_from(["i4", "f8 * 2", "txt", "site", "tbname", "i8", "f8 / i4", "b", "-f8"]),
                        min_size=1, max_size=4))
def test_results_of_scalar_streams(rows: pa.Table, condition: str | None, columns: list[str]) -> None:
    """Filtered and projected rows are the SQL's."""
    where = f"where {condition}" if condition else ""
    items = ", ".join(f"{text} c{n}" for n, text in enumerate(columns))
    plan = planned(f"select ts, {items} from meters {where} partition by tbname")
    by_kernel, by_sql = stages(plan)
    keys = 3 + len(plan.grouping.keys)
    assert_same(rows_of(by_kernel.compute(rows), keys), rows_of(by_sql.compute(rows), keys))


@BOTH
@QUIET
@given(rows=blocks(), window=WINDOWS, condition=st.one_of(st.none(), CONDITIONS), data=st.data())
def test_late_rows(
    rows: pa.Table, window: str, condition: str | None, data: st.DataObject, compiled: bool
) -> None:
    """Which rows are expired, for all or for some of their windows, is what the SQL says."""
    where = f"where {condition}" if condition else ""
    plan = planned(f"select _wstart, count(*) c, sum(i4) s from meters {where} partition by tbname {window}",
                   "ignore expired 1")
    count = rows.num_rows
    moments = st.lists(st.integers(-30_000, 90_000), min_size=count, max_size=count)
    change = np.array(data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)), np.uint8)
    ts = rows.column("ts").to_numpy()
    records = tuple(range(1, count + 1))
    last, limits = (np.array(data.draw(moments)) for _ in range(2))
    classified = ClassifiedRows(rows, ts, change, last, limits, records, records, records)
    by_kernel, by_sql = stages(plan)
    with loops(compiled=compiled):
        got, expired = by_kernel.compute_timely(classified)
    want, wanted = by_sql.compute_timely(classified)
    assert expired.tolist() == wanted.tolist()

    def summed(batches: list[pa.RecordBatch]) -> list[tuple[Any, ...]]:
        table = pa.Table.from_batches(batches).select(["_gid", "_wstart", "_rows", "p0", "p1"])
        return rows_of(table.group_by(["_gid", "_wstart"]).aggregate(
            [("_rows", "sum"), ("p0", "sum"), ("p1", "sum")]), 2)

    assert_same(summed(got), summed(want))


@BOTH
@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_that_leaves_its_range_is_kept_in_two_parts(sign: int, compiled: bool) -> None:
    """A BIGINT sum that doesn't fit says how often it went beyond 64 bits, never a wrapped number alone."""
    plan = planned("select _wstart, sum(i8) s from meters interval(10s)")
    rows = pa.table({"_tuid": pa.array([SUPER_UID + 1] * 3, pa.uint64()), "ts": pa.array([1, 2, 3], pa.int64()),
                     "i8": pa.array([sign * (1 << 62)] * 3, pa.int64())})
    for stage in stages(plan):
        with loops(compiled=compiled):
            low, high = (column.to_pylist() for column in stage.compute(rows).columns[-2:])
            assert [low[0] + (high[0] << 64)] == [3 * sign * (1 << 62)]


@BOTH
def test_many_rows_are_for_duckdb_where_nothing_is_compiled(compiled: bool) -> None:
    """Python runs the loops over few rows only."""
    by_kernel, by_sql = stages(planned("select _wstart, count(*) c from meters interval(10s)"))
    few, many = (pa.table({"_tuid": pa.array([SUPER_UID + 1] * count, pa.uint64()),
                           "ts": pa.array(range(count), pa.int64())}) for count in (5, 5_000))
    with loops(compiled=compiled):
        assert by_kernel.partials(few) is not None
        assert (by_kernel.partials(many) is not None) is compiled
        assert_same(rows_of(by_kernel.compute(many), 2), rows_of(by_sql.compute(many), 2))


@BOTH
@pytest.mark.parametrize("selection", ["max(u8) h, i8", "min(u8) h, i8", "last(i8)"])
def test_rows_are_picked_by_several_orders(selection: str, compiled: bool) -> None:
    """Unsigned numbers, descending ones, and equal ones that the next order tells apart."""
    by_kernel, by_sql = stages(planned(f"select _wstart, {selection} from meters interval(10s)"))
    rows = pa.table({"_tuid": pa.array([SUPER_UID + 2, SUPER_UID + 1] * 2, pa.uint64()),
                     "ts": pa.array([3, 3, 1, 1], pa.int64()), "i8": pa.array([4, 3, 2, 1], pa.int64()),
                     "u8": pa.array([1 << 63, (1 << 64) - 1, (1 << 64) - 1, 1 << 63], pa.uint64())})
    with loops(compiled=compiled):
        assert_same(rows_of(by_kernel.compute(rows), 3), rows_of(by_sql.compute(rows), 3))


@BOTH
def test_a_sum_that_overflows_on_its_way_is_that_of_sql(compiled: bool) -> None:
    """What fits in the end is a sum, and the greatest and least numbers of all types are found."""
    plan = planned("select _wstart, sum(i8) s, min(i8) l, max(i8) h, min(u8) lu, max(u8) hu, first(i8) f, last(u8) t, "
                   "min(f8) n, max(f8) x from meters interval(10s)")
    low, high = -(1 << 63), (1 << 63) - 1
    rows = pa.table({"_tuid": pa.array([SUPER_UID + 2, SUPER_UID + 1] * 2, pa.uint64()),
                     "ts": pa.array([-9, -9, -1, -1], pa.int64()), "i8": pa.array([high, high, low, low], pa.int64()),
                     "u8": pa.array([0, (1 << 64) - 1, None, 1 << 63], pa.uint64()),
                     "f8": pa.array([math.nan, math.inf, -math.inf, None], pa.float64())})
    by_kernel, by_sql = stages(plan)
    with loops(compiled=compiled):
        assert_same(rows_of(by_kernel.compute(rows), 3), rows_of(by_sql.compute(rows), 3))


@pytest.mark.parametrize("case", [
    "case when 1 > 0 then 2.5 end", "case when 1 < 0 then i4 end", "case when i4 > 0 then 1 when 1 > 0 then 2 end",
    "case when 1 < 0 then 1 when i4 > 0 then 2 else 3 end", "case when 1 > 0 then i4 else 3 end",
    "case when 1 between -5 and 5 then 1 end"])
def test_conditions_that_are_constants(case: str) -> None:
    """Where no column decides, each row counts all the same."""
    called = ", ".join(f"{name}({case}) a_{name}" for name in ("sum", "avg", "count", "min", "first", "stddev"))
    by_kernel, by_sql = stages(planned(f"select _wstart, {called} from meters interval(10s)"))
    rows = pa.table({"_tuid": pa.array([SUPER_UID + 1] * 3, pa.uint64()), "ts": pa.array([1, 2, 3], pa.int64()),
                     "i4": pa.array([5, None, -5], pa.int32())})
    assert_same(rows_of(by_kernel.compute(rows), 1), rows_of(by_sql.compute(rows), 1))
    by_kernel, by_sql = stages(planned(f"select ts, {case} a from meters partition by tbname"))
    assert_same(rows_of(by_kernel.compute(rows), 4), rows_of(by_sql.compute(rows), 4))


def test_rows_of_an_unknown_table_are_left_to_sql() -> None:
    """A table that the log hasn't announced has no group number; DuckDB joins it with nothing."""
    plan = planned("select _wstart, count(*) c from meters partition by tbname interval(10s)")
    rows = pa.table({"_tuid": pa.array([SUPER_UID + 1, 77], pa.uint64()), "ts": pa.array([1, 2], pa.int64())})
    by_kernel, by_sql = stages(plan)
    assert rows_of(by_kernel.compute(rows), 1) == rows_of(by_sql.compute(rows), 1)


@pytest.mark.parametrize("sql", [
    "lower(txt)", "md5(txt)", "i4 + i4", "i8 * 2", "CAST(f8 AS BIGINT)", "CAST(i8 AS INTEGER)", "i4 = f8", "txt < 'a'",
    "2.5", "f8 // 2", "CASE WHEN b THEN i4 ELSE f8 END", "CAST(txt AS DOUBLE)", "unknown", "f8 % 2"])
def test_what_is_not_simple_has_no_kernel(sql: str) -> None:
    """SQL whose meaning needs DuckDB's casts, checks or functions is left to it."""
    assert expression_kernel(parse_tree(sql), KINDS) is None


@QUIET
@given(left=values_of("b"), right=values_of("b"), f=values_of("f8"), g=values_of("f8"))
@pytest.mark.parametrize("sql", [
    "b AND c", "b OR c", "NOT b", "b IS NULL", "coalesce(b, false)", "f8 > g", "f8 >= g", "f8 < g", "f8 <= g", "f8 = g",
    "f8 <> g", "greatest(f8, 0)", "NULLIF(f8, 'nan'::DOUBLE)", "f8 / NULLIF(g, 0e0)", "CASE WHEN b THEN f8 END",
    "CASE WHEN f8 > g THEN f8 WHEN b THEN g ELSE 1e0 END", "sqrt(f8)", "-f8"])
def test_expressions(sql: str, left: bool | None, right: bool | None, f: float | None, g: float | None) -> None:
    """Every operation gives what DuckDB gives, in three-valued logic and with NaN as the greatest number."""
    kinds = {"b": Kind.BOOL, "c": Kind.BOOL, "f8": Kind.DOUBLE, "g": Kind.DOUBLE}
    expression = expression_kernel(parse_tree(sql), kinds)
    assert expression is not None
    arrays = {"b": pa.array([left], pa.bool_()), "c": pa.array([right], pa.bool_()),
              "f8": pa.array([f], pa.float64()), "g": pa.array([g], pa.float64())}

    def column(name: str) -> Vector:
        array = arrays[name]
        filled = array.fill_null(False if name in "bc" else 0.0).to_numpy(zero_copy_only=False)
        return Vector(filled, None if array.null_count == 0 else np.array([False]))

    want = DUCKDB.table(f"SELECT {sql} FROM t", t=pa.table(arrays)).column(0)[0].as_py()
    type_ = DataType(expression.type).arrow()
    got = evaluate(expression, column).arrow(type_, 1)[0].as_py()
    assert same(got, want), (got, want)
