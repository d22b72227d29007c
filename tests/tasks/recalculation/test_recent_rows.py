"""What is rewritten shortly after it was written is read from memory, and results stay those of the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import times
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kits.basics.shared_duckdb import duckdb_with
from kits.streams.interval_streams import AGGREGATES, INTO, PARTITIONS, batch, stream
from kits.streams.stream_kit import MemoryEnvironment, Step, StreamKit, assert_same, millis, play, unhurried

from penstock.planner.task_plans.kernel_spec import Panes
from penstock.tasks.protocol.messages import Pause, Resume
from penstock.tasks.protocol.store_requests import RowsRequest, StoreRequest
from penstock.tasks.recalculation.recent_rows import RecentRows
from penstock.tasks.source import source_task

TABLES, SECONDS = 3, 1000
VALUE = st.one_of(st.none(), st.integers(-5, 5))
#: Tables, how many half seconds a row is older than the newest, and its values.
ROW = st.tuples(st.integers(0, TABLES - 1), st.integers(-3, 40), VALUE,
                st.sampled_from([-1.5, 0.0, 2.0]), st.sampled_from(["x", "y", ""]))
ROWS = st.lists(ROW, min_size=1, max_size=6)
MOVE = st.one_of(
    st.tuples(st.just("insert"), ROWS), st.tuples(st.just("insert"), ROWS), st.tuples(st.just("insert"), ROWS),
    st.tuples(st.just("run"), st.none()), st.tuples(st.just("run"), st.none()),
    st.tuples(st.sampled_from(["partial", "delete", "checkpoint", "kill"]), ROWS))


def steps_of(moves: list[tuple[str, Any]]) -> list[Step]:
    """Returns steps whose rows come in the order of time, but for those that are up to twenty seconds older."""
    steps: list[Step] = []
    newest = 100 * SECONDS
    for kind, rows in moves:
        newest += 2 * SECONDS
        placed = [(table, newest - 500 * behind, *values) for table, behind, *values in rows or ()]
        match kind:
            case "insert" | "partial":
                steps.append((kind, placed))
            case "delete":
                steps.append((kind, ([placed[0][0]], placed[0][1], 3 * SECONDS)))
            case "checkpoint":
                steps.append((kind, len(placed) > 1))
            case _:
                steps.append((kind, None))
    return steps


#: Which part of a queue's bytes rows in memory may have: much, or so little that most are let go of.
PART = st.sampled_from([1, 50_000])
CASES = [*((partition, "interval(10s)") for partition in PARTITIONS), ("table", "interval(10s) sliding(5s)")]


@settings(max_examples=times(20, 2_000))
@given(case=st.sampled_from(CASES), part=PART, moves=st.lists(MOVE, min_size=4, max_size=24),
       vnodes=st.integers(1, 2), block=st.integers(1, 4))
@example(case=("table", "interval(10s)"), part=1, vnodes=1, block=4, moves=[
    ("insert", [(0, 0, 1, 0.0, "x")]), ("insert", [(0, 4, 2, 0.0, "x")]), ("run", None),
    ("insert", [(0, 0, 1, 0.0, "x")]), ("run", None), ("insert", [(0, 4, 5, 0.0, "y")]), ("run", None)])
def test_windows_equal_the_batch(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[str, str], part: int, moves: list[Any], vnodes: int,
    block: int
) -> None:
    """Whatever is rewritten, in part or wholly, deleted in between, or after a kill."""
    partition, window = case
    clause, key, oracle_key = PARTITIONS[partition]
    sql = (f"create stream s trigger at_once ignore expired 0 ignore update 0 into {INTO[partition]} as "
           f"select _wstart, {AGGREGATES}{f', {key}' if key else ''} from meters {clause} {window}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_task, "_RECENT_PART", part)
        kit = StreamKit(tmp_path_factory.mktemp("stream"), sql, vnodes=vnodes, tables=TABLES,
                        settings=unhurried(block_rows_max=block))
        try:
            play(kit, steps_of(moves))
            kit.run()
            if "sliding" in window:
                assert counts(kit) == sliding_counts(kit)
            else:
                assert_same(stream(kit, key), batch(kit, oracle_key))
        finally:
            kit.close()


def counts(kit: StreamKit) -> list[tuple[Any, ...]]:
    found = [(row["tn"], millis(row["_wstart"]), row["c"], row["s"]) for row in kit.rows()]
    return sorted(found, key=lambda row: row[:2])


def sliding_counts(kit: StreamKit) -> list[tuple[Any, ...]]:
    with duckdb_with({"source": kit.source()}) as connection:
        return connection.execute(
            "SELECT tbname, (ts // 5000 - step) * 5000 AS start, count(*), sum(voltage)::BIGINT FROM source, "
            "(SELECT unnest([0, 1]) step) GROUP BY ALL ORDER BY 1, 2").fetchall()


@settings(max_examples=times(10, 1_000))
@given(part=PART, moves=st.lists(MOVE, min_size=4, max_size=24), block=st.integers(1, 4))
def test_rows_without_windows_equal_the_batch(
    tmp_path_factory: pytest.TempPathFactory, part: int, moves: list[Any], block: int
) -> None:
    """A row that its WHERE no longer lets through is deleted."""
    sql = ("create stream s trigger at_once ignore expired 0 ignore update 0 into o subtable(tbname) as "
           "select ts, voltage, note from meters where voltage > 0 partition by tbname")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_task, "_RECENT_PART", part)
        kit = StreamKit(tmp_path_factory.mktemp("stream"), sql, tables=TABLES,
                        settings=unhurried(block_rows_max=block))
        try:
            play(kit, steps_of(moves))
            kit.run()
            with duckdb_with({"source": kit.source()}) as connection:
                wanted = connection.execute("SELECT ts, voltage, note FROM source WHERE voltage > 0").fetchall()
            assert sorted((millis(row["ts"]), row["voltage"], row["note"]) for row in kit.rows()) == sorted(wanted)
        finally:
            kit.close()


def test_the_store_is_not_asked_for_what_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only for windows that had begun when the first row was rewritten, and again once a row was deleted."""
    reads: list[int] = []
    ask = MemoryEnvironment.ask

    def counted(self: MemoryEnvironment, request: StoreRequest) -> pa.Table:
        if isinstance(request, RowsRequest):
            reads.append(request.first_ts)
        return ask(self, request)

    monkeypatch.setattr(MemoryEnvironment, "ask", counted)
    kit = StreamKit(tmp_path, "create stream s trigger at_once ignore expired 0 ignore update 0 into o as select "
                    "_wstart, count(*) c, max(voltage) m from meters partition by tbname interval(10s)")
    try:
        def write(*rows: tuple[int, int]) -> int:
            """Returns how often the store was read for rows of table 0, given as seconds and values."""
            before = len(reads)
            kit.insert([(0, SECONDS * at, value, 0.0, "") for at, value in rows])
            kit.run()
            return len(reads) - before

        assert write((1, 5)) == 0
        assert write((1, 6)) > 0, "nothing was kept before"
        assert write((11, 7), (12, 8), (21, 1)) == 0
        assert write((12, 3)) == 0
        assert write((21, 2), (11, 6)) == 0
        assert write((1, 7)) > 0, "that was written before rows were kept"
        assert [(row["c"], row["m"]) for row in kit.rows()] == [(1, 7), (2, 6), (1, 2)]
        kit.delete([0], 11 * SECONDS, 11 * SECONDS)
        kit.run()
        assert write((12, 4)) > 0, "a delete changes what is stored"
        assert [(row["c"], row["m"]) for row in kit.rows()] == [(1, 7), (1, 4), (1, 2)]
    finally:
        kit.close()


def test_rows_that_were_skipped_count_when_their_window_is_computed_again(tmp_path: Path) -> None:
    """They were never in memory."""
    kit = StreamKit(tmp_path, "create stream s trigger at_once ignore expired 0 ignore update 0 into o as select "
                    "_wstart, count(*) c, max(voltage) m from meters interval(10s)")
    try:
        kit.insert([(0, SECONDS, 1, 0.0, "")])
        kit.run()
        kit.post(Pause(), "source")
        kit.run()
        kit.insert([(0, 32 * SECONDS, 9, 0.0, "")])
        kit.post(Resume(skip_to_end=True), "source")
        kit.run()
        for at, value in ((11, 5), (11, 6), (31, 5), (31, 6)):
            kit.insert([(1, SECONDS * at, value, 0.0, "")])
            kit.run()
        assert [(row["c"], row["m"]) for row in kit.rows()] == [(1, 1), (1, 6), (2, 9)]
    finally:
        kit.close()


# --- rows alone ----------------------------------------------------------------------------------------------------


def rows_of(*rows: tuple[int, int, int]) -> pa.Table:
    """Returns rows, given as table, time and value."""
    tuids, ts, values = zip(*rows, strict=True)
    return pa.table({"_tuid": pa.array(tuids, pa.uint64()), "ts": pa.array(ts, pa.int64()), "v": pa.array(values)})


def take(recent: RecentRows, version: int, *rows: tuple[int, int, int], newest: int = 0, updates: bool = True) -> None:
    table = rows_of(*rows)
    recent.take(table, table.column("ts").to_numpy(), version - 1, version, newest, updates=updates)


def test_rows_are_told_as_of_before_the_last_block_and_behind_it() -> None:
    """Of several versions the newest counts; of other versions of the log nothing is known."""
    recent = RecentRows(1 << 20)
    take(recent, 5, (1, 10, 0), (1, 20, 0), newest=9)
    take(recent, 6, (1, 20, 1), (2, 20, 2))
    keys = np.array([1, 1, 2], np.uint64), np.array([10, 20, 20], np.int64)
    assert recent.known_behind(6) == recent.known_behind(7) == recent.known_behind(5) == 9
    assert recent.known_behind(4) is None
    assert sorted(recent.of_keys(*keys, 5).column("v").to_pylist()) == [0, 0]
    assert sorted(recent.of_keys(*keys, 6).column("v").to_pylist()) == [0, 1, 2]
    panes = Panes(0, 10, 10, 10)
    wanted = np.array([1], np.uint64), np.array([20], np.int64)
    assert recent.of_windows(*wanted, 30, panes, 6).column("v").to_pylist() == [1]
    assert recent.of_windows(*wanted, 30, None, 6).column("v").to_pylist() == [1, 2]


def test_nothing_is_kept_before_a_row_is_rewritten_nor_long_after_the_last() -> None:
    """Most streams see no updates, and pay nothing for them."""
    recent = RecentRows(1 << 20)
    take(recent, 1, (1, 10, 0), updates=False)
    assert recent.known_behind(1) is None
    take(recent, 2, (1, 10, 1), newest=10)
    for version in range(3, 67):
        take(recent, version, (1, 10 * version, 0), updates=False)
        assert recent.known_behind(version) == 10
    take(recent, 67, (1, 1000, 0), updates=False)
    assert recent.known_behind(67) is None
    assert recent.memory_bytes == 0


def test_the_oldest_rows_go_where_there_are_too_many() -> None:
    """What is behind the newest of them stays known."""
    one = rows_of((1, 1, 1)).nbytes
    recent = RecentRows(3 * one)
    for version in range(1, 6):
        take(recent, version, (1, 10 * version, 0))
        recent.settle()
        assert recent.memory_bytes <= 3 * one
    behind = recent.known_behind(5)
    assert behind is not None
    assert behind < 50
    assert recent.of_keys(np.array([1], np.uint64), np.array([50], np.int64), 5).num_rows == 1
    recent.forget()
    assert recent.known_behind(5) is None
    nothing = RecentRows(0)
    take(nothing, 1, (1, 10, 1))
    nothing.settle()
    assert nothing.known_behind(1) == 10
    found = nothing.of_windows(np.array([1], np.uint64), np.array([20], np.int64), 30, None, 1)
    assert (found.num_rows, found.column_names) == (0, ["_tuid", "ts", "v"])
