"""Functions in streams: the reference says which are allowed; those whose state grows are exact like any other."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.basics.places import ROOT
from kits.streams.interval_streams import PARTITIONS, STEP, WIDTH
from kits.streams.stream_kit import Catalog, Store, StreamKit, assert_same, millis, null_last, play, unhurried
from scripts.function_examples import EXAMPLES

from penstock.common.errors import InvalidStatementError, InvalidStreamError
from penstock.planner.functions.table import FUNCTIONS
from penstock.planner.streams.stream_planner import plan_stream
from penstock.planner.task_plans.stream_plan import RefreshPlan
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Column, Session
from penstock.sql.tree.statements import CreateStream
from penstock.sql.types import INT, DataType, Kind, timestamp
from penstock.tasks.operators.stream_task import StreamTask

DOCS = ROOT / "docs"
COLUMNS = (Column("ts", timestamp(), "ts"), Column("v", INT, "v"), Column("s", DataType(Kind.VARCHAR, 8), "s"))
PLAIN = ("trigger at_once into o as select ts, {} from d0", "trigger at_once into o as select {} from d0 interval(10s)",
         "trigger at_once into o as select {}, count(*) c from d0 interval(10s)",
         "trigger at_once into o as select {} from d0 session(ts, 10s)")
FORCED = ("trigger force_window_close into o as select {} from d0 interval(10s)",
          "trigger force_window_close into o as select {}, count(*) c from d0 interval(10s)",
          "trigger force_window_close into o as select {} from d0 every(1s) fill(prev)")

AGAIN = ("into o as select {} from d0 interval(10s)", "into o as select {} from d0",
         "into o (x primary key) as select {} from d0", "into o (x primary key, y) as select {} from d0",
         "into o (x primary key, y) as select {} from d0 group by rollup (s, v)")


@cache
def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text("utf-8")


def in_reference(name: str) -> str:
    """What docs/functions.md says of a function in streams: yes, no, or when."""
    found = re.search(rf"^### {name}(?:\(.*)?\n(?:(?!###).*\n)*?- In streams: ([^;.]+)[;.]", page("functions"),
                      re.MULTILINE)
    assert found is not None, f"docs/functions.md says nothing of {name} in streams"
    return found[1]


def in_table(name: str) -> str:
    """What docs/dialect.md says of it."""
    found = re.search(rf"^\| `{name}(?:\(.*)?` \| .* \| ([^|]+) \|$", page("dialect"), re.MULTILINE)
    assert found is not None, f"docs/dialect.md has no {name}"
    return found[1]


def accepted(statements: tuple[str, ...], call: str, *, again: bool = False) -> list[str]:
    """The statements with this call that a stream can be made of whose tasks keep it; or that is computed again."""
    catalog = Catalog(1, 1, columns=COLUMNS)
    found = []
    for text in statements:
        sql = f"create stream s {text.format(call)}"
        statement = parse_one(sql)
        assert isinstance(statement, CreateStream)
        try:
            plan = plan_stream(statement, catalog, Session("p", "UTC", 0))
        except (InvalidStreamError, InvalidStatementError):
            continue
        if isinstance(plan.computation, RefreshPlan) == again:
            found.append(sql)
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One child table that all streams of this module's functions read."""
    store = Store(tmp_path_factory.mktemp("store"), Catalog(1, 1, columns=COLUMNS))
    yield store
    store.close()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_reference_says_which_functions_streams_may_use(tmp_path: Path, store: Store, name: str) -> None:
    """Yes: a stream with the function can be made and gives rows; recomputed: one can be made that keeps nothing;
    no: it is refused, whatever the stream is."""
    call = EXAMPLES[name].split(" FROM m")[0]
    plain, forced, again = accepted(PLAIN, call), accepted(FORCED, call), accepted(AGAIN, call, again=True)
    allowed = "yes" if plain else "with FORCE_WINDOW_CLOSE only" if forced else "recomputed" if again else "no"
    assert in_reference(name) == in_table(name) == allowed
    for n, sql in enumerate(plain[:times(1, len(PLAIN))]):
        kit = StreamKit(tmp_path / str(n), sql, store=store)
        try:
            kit.insert([(0, 1_000, 1, "a"), (0, 2_000, 3, "b"), (0, 3_000, None, "b"), (0, 4_000, 6, None)])
            kit.run()
            assert kit.rows()
        finally:
            kit.close()


VALUES = ("apercentile(current, 30) p, apercentile(voltage, 90, 't-digest') q, hyperloglog(note) n, "
          "hyperloglog(voltage) h")
ORACLE = f"""
    SELECT {{}} ts // {WIDTH} * {WIDTH} AS start, quantile_cont(current, 0.3), quantile_cont(voltage::DOUBLE, 0.9),
        count(DISTINCT note), count(DISTINCT voltage)
    FROM source GROUP BY ALL
"""


@pytest.mark.parametrize("partition", ["table", "tag", "none"])
@settings(max_examples=times(3, 400))
@given(steps=st.lists(STEP, min_size=1, max_size=14), vnodes=st.integers(1, 4), block=st.integers(1, 4),
       memory=st.sampled_from([0, 3_000, 1 << 27]))
def test_percentiles_and_distinct_counts_equal_the_batch(
    tmp_path_factory: pytest.TempPathFactory, partition: str, steps: list[Any], vnodes: int, block: int, memory: int
) -> None:
    """Exact under updates, deletes, kills and checkpoints, for any number of vnodes and any memory."""
    clause, key, oracle_key = PARTITIONS[partition]
    tags, name = (f"tags({key} varchar(20))", f", {key}") if key else ("", "")
    kit = StreamKit(
        tmp_path_factory.mktemp("stream"), f"create stream s trigger at_once ignore expired 0 into o {tags} as "
        f"select _wstart, {VALUES}{name} from meters {clause} interval(10s)", vnodes=vnodes,
        settings=unhurried(block_rows_max=block, state_memory_bytes=memory))
    try:
        play(kit, steps)
        kit.run()
        with duckdb.connect() as connection:
            connection.register("source", kit.source())
            want = connection.execute(ORACLE.format(oracle_key)).fetchall()
        got = [(*((row[key],) if key else ()), millis(row["_wstart"]), row["p"], row["q"], row["n"], row["h"])
               for row in kit.rows()]
        assert_same(sorted(got, key=lambda row: null_last(row[:2])), sorted(want, key=lambda row: null_last(row[:2])))
    finally:
        kit.close()


def agg_of(kit: StreamKit) -> StreamTask:
    return next(task for task in kit.tasks if task.id.operator == "agg")


@pytest.mark.parametrize("window", ["interval(10s)", "session(ts, 1s)"])
def test_the_memory_of_state_counts_the_values_that_it_holds(kits: Any, window: str) -> None:
    """A state of ten thousand values takes their bytes, and goes to disk where that is more than allowed."""
    sql = f"create stream s trigger at_once into o as select _wstart, apercentile(current, 50) p from meters {window}"
    free, bound = kits(sql), kits(sql, settings=unhurried(state_memory_bytes=50_000))
    for kit in (free, bound):
        for start in (0, 5_000):
            kit.insert([(0, ts, 1, float(ts), None) for ts in range(start, start + 5_000)])
            kit.run()
        assert [row["p"] for row in kit.rows()] == [4_999.5]
    assert agg_of(free)._table.memory_bytes >= 80_000
    assert agg_of(bound)._table.memory_bytes <= 50_000
    free.delete(None, 0, 10_000)
    free.run()
    assert agg_of(free)._table.memory_bytes == 0


def test_a_state_that_is_larger_than_a_queue_arrives(kits: Any) -> None:
    """What takes the place of a window's values is one row, however long the queue is."""
    kit = kits("create stream s trigger at_once into o as select _wstart, hyperloglog(current) n from meters "
               "interval(10s)", vnodes=2, settings=unhurried(queue_bytes=20_000, block_bytes_max=10_000))
    for start in range(0, 5_000, 500):
        kit.insert([(0, ts, 1, float(ts), None) for ts in range(start, start + 500)])
        kit.run()
    kit.insert([(0, 7, 1, -1.0, None), (0, 8, 1, -1.0, None)])
    kit.run()
    assert [row["n"] for row in kit.rows()] == [4_999]


def test_calls_that_need_the_same_values_share_them(kits: Any) -> None:
    """Percentiles of one column, and deviation and variance, are of one state."""
    kit = kits("create stream s trigger at_once into o as select _wstart, apercentile(current, 50) a, "
               "apercentile(current, 90) b, apercentile(voltage, 90) c, stddev(current) d, var_pop(current) e "
               "from meters interval(10s)")
    assert [accumulator.kind for accumulator in kit.plan.computation.accumulators] == ["values", "values", "moments"]
    kit.insert([(0, 1_000, 1, 1.0, None), (0, 2_000, 11, 2.0, None)])
    kit.run()
    assert [tuple(row[name] for name in "abcde") for row in kit.rows()] == [(1.5, 1.9, 10.0, 0.5, 0.25)]


def test_null_and_constants_have_percentiles_and_counts(kits: Any) -> None:
    """As in queries: nothing has no percentile and no different values; one constant has both."""
    kit = kits("create stream s trigger at_once into o as select _wstart, hyperloglog(null) a, "
               "apercentile(null, 50) b, hyperloglog('x') c, apercentile(7, 50) d, max(null) e from meters "
               "interval(10s)", vnodes=2)
    kit.insert([(0, 1_000, 1, 1.0, None), (1, 2_000, 3, 2.0, None)])
    kit.run()
    assert [tuple(row[name] for name in "abcde") for row in kit.rows()] == [(0, None, 1, 7.0, None)]


@pytest.mark.parametrize("name", ["_rowts", "_c0"])
def test_the_row_time_next_to_a_selected_row_is_that_rows(kits: Any, name: str) -> None:
    """It accompanies what is selected, as the column does by its own name; next to a count it is refused."""
    kit = kits(f"create stream s trigger at_once into o as select _wstart, max(voltage) v, {name} t from meters "
               "interval(10s)")
    kit.insert([(0, 1_000, 1, 1.0, None), (0, 2_000, 11, 2.0, None), (0, 3_000, 5, 2.0, None)])
    kit.run()
    assert [(row["v"], millis(row["t"])) for row in kit.rows()] == [(11, 2_000)]
    with pytest.raises(InvalidStatementError, match="column ts has many values per group"):
        kits(f"create stream s trigger at_once into o as select _wstart, count(*) v, {name} t from meters interval(1s)")


@pytest.mark.parametrize("name", ["_qstart", "_qend", "_qduration", "_irowts_origin"])
def test_pseudo_columns_of_queries_are_refused_with_the_code_of_functions(name: str) -> None:
    """They tell of a query's time range, or are not for streams in TDengine either."""
    for sql in (f"select ts, {name} from d0", f"select _wstart, count(*), {name} from d0 interval(10s)",
                f"select ts, v from d0 where {name} > 0"):
        statement = parse_one(f"create stream s trigger at_once into o as {sql}")
        assert isinstance(statement, CreateStream)
        with pytest.raises(InvalidStreamError, match=f"{name} is not allowed in a stream") as caught:
            plan_stream(statement, Catalog(1, 1, columns=COLUMNS), Session("p", "UTC", 0))
        assert caught.value.code == 0x265A
