"""The view contract: under EXPIRED 0 and UPDATE 0 a stream's result equals the batch answer, whatever happens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from stream_kit import StreamKit

from penstock.tasks.task import TaskSettings

AGGREGATES = ("count(*) c, sum(voltage) s, avg(current) a, min(voltage) lo, max(current) hi, first(voltage) f, "
              "last(note) l, spread(voltage) sp, stddev(current) sd")
ORACLE = """
    SELECT {keys} (ts // {width}) * {width} AS start, count(*) AS c, sum(voltage)::BIGINT AS s, avg(current) AS a,
        min(voltage) AS lo, max(current) AS hi,
        arg_min(voltage, (ts, _tuid)) FILTER (voltage IS NOT NULL) AS f,
        arg_max(note, (ts, -(_tuid::HUGEINT))) FILTER (note IS NOT NULL) AS l,
        (max(voltage) - min(voltage))::DOUBLE AS sp, stddev_pop(current) AS sd
    FROM source {where} GROUP BY ALL ORDER BY ALL
"""
WIDTH = 10_000


def batch(kit: StreamKit, keys: str, where: str = "", width: int = WIDTH) -> list[tuple[Any, ...]]:
    """The batch answer, from DuckDB over the stored rows."""
    source = kit.source()
    with duckdb.connect() as connection:
        connection.register("source", source)
        return connection.execute(ORACLE.format(keys=keys, where=where, width=width)).fetchall()


def stream(kit: StreamKit, key: str | None) -> list[tuple[Any, ...]]:
    """The stream's result in the oracle's column order."""
    rows = []
    for row in kit.rows():
        start = round(row["_wstart"].timestamp() * 1000) if row["_wstart"].tzinfo else _millis(row["_wstart"])
        head = (row[key],) if key else ()
        rows.append((*head, start, *(row[name] for name in ("c", "s", "a", "lo", "hi", "f", "l", "sp", "sd"))))
    return sorted(rows, key=lambda row: tuple((value is None, value) for value in row[:2]))


def _millis(moment: Any) -> int:
    from datetime import UTC

    return round(moment.replace(tzinfo=UTC).timestamp() * 1000)


def assert_same(got: list[tuple[Any, ...]], want: list[tuple[Any, ...]]) -> None:
    assert len(got) == len(want), (got, want)
    for left, right in zip(got, want, strict=True):
        for a, b in zip(left, right, strict=True):
            if isinstance(a, float) and isinstance(b, float):
                assert math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6), (left, right)
            else:
                assert a == b, (left, right)


ROW = st.tuples(
    st.integers(0, 3), st.integers(0, 60_000), st.one_of(st.none(), st.integers(-5, 5)),
    st.one_of(st.none(), st.floats(-10, 10)), st.one_of(st.none(), st.sampled_from(["x", "y", ""])),
)
WRITES = (
    st.tuples(st.just("insert"), st.lists(ROW, min_size=1, max_size=8)),
    st.tuples(st.just("partial"), st.lists(ROW, min_size=1, max_size=3)),
    st.tuples(st.just("delete"), st.tuples(st.one_of(st.none(), st.lists(st.integers(0, 3), min_size=1, max_size=2)),
                                           st.integers(0, 60_000), st.integers(0, 30_000))),
)
STEP = st.one_of(
    *WRITES,
    st.tuples(st.just("run"), st.none()),
    st.tuples(st.just("checkpoint"), st.booleans()),
    st.tuples(st.just("kill"), st.none()),
)

PARTITIONS = {
    "table": ("partition by tbname tn, site", "tn", "tbname,"),
    "tag": ("partition by site", "site", "site,"),
    "column": ("partition by note", "note", "note,"),
    "none": ("", None, ""),
}


def play(kit: StreamKit, steps: list[tuple[str, Any]]) -> None:
    """Carries out random steps."""
    for kind, what in steps:
        match kind:
            case "insert":
                kit.insert(what)
            case "partial":
                kit.insert([row[:3] for row in what], ("voltage",))
            case "delete":
                tables, first, length = what
                kit.delete(tables, first, first + length)
            case "run":
                kit.run()
            case "checkpoint":
                kit.run()
                kit.checkpoint(commit=what)
            case "kill":
                kit.kill()


@pytest.fixture
def kits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Makes kits and closes them."""
    made: list[StreamKit] = []

    def make(sql: str, **options: Any) -> StreamKit:
        kit = StreamKit(tmp_path_factory.mktemp("stream"), sql, **options)
        made.append(kit)
        return kit

    yield make
    for kit in made:
        kit.close()


@pytest.mark.parametrize("partition", PARTITIONS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture,
                                                                 HealthCheck.too_slow])
@given(steps=st.lists(STEP, min_size=1, max_size=14), vnodes=st.integers(1, 4), block=st.integers(1, 4),
       memory=st.sampled_from([0, 1 << 27]))
def test_at_once_equals_batch(
    tmp_path_factory: pytest.TempPathFactory, partition: str, steps: list[Any], vnodes: int, block: int, memory: int
) -> None:
    """AT_ONCE: after everything is processed the result is the batch answer, for any change, kill and vnode count.

    Without memory for state, all windows live in the store between blocks.
    """
    clause, key, oracle_key = PARTITIONS[partition]
    into = {"table": "o tags(tn varchar(20)) ", "tag": "o tags(site varchar(20)) ",
            "column": "o tags(note varchar(20)) ", "none": "o "}[partition]
    name = f", {key}" if key else ""
    sql = (f"create stream s trigger at_once ignore expired 0 ignore update 0 into {into} as "
           f"select _wstart, {AGGREGATES}{name} from meters {clause} interval(10s)")
    kit = StreamKit(tmp_path_factory.mktemp("stream"), sql, vnodes=vnodes, settings=TaskSettings(
        sink_bytes_per_second=0, sink_calls_per_second=0, state_map_bytes=1 << 26, block_rows_max=block,
        state_memory_bytes=memory))
    try:
        play(kit, steps)
        kit.run()
        want = batch(kit, oracle_key)
        want = sorted(want, key=lambda row: tuple((value is None, value) for value in row[:2]))
        assert_same(stream(kit, key), want)
    finally:
        kit.close()


@pytest.mark.parametrize("partition", ["table", "tag", "none"])
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEP, min_size=1, max_size=14), vnodes=st.integers(1, 4), watermark=st.sampled_from([0, 5]),
       memory=st.sampled_from([0, 1 << 27]))
def test_window_close_equals_batch(
    tmp_path_factory: pytest.TempPathFactory, partition: str, steps: list[Any], vnodes: int, watermark: int,
    memory: int
) -> None:
    """WINDOW_CLOSE: all windows that event time has closed are there, and every row there is the batch's."""
    clause, key, oracle_key = PARTITIONS[partition]
    into = {"table": "o tags(tn varchar(20)) ", "tag": "o tags(site varchar(20)) ", "none": "o "}[partition]
    name = f", {key}" if key else ""
    sql = (f"create stream s trigger window_close watermark {watermark}s ignore expired 0 ignore update 0 into {into} "
           f"as select _wstart, {AGGREGATES}{name} from meters {clause} interval(10s)")
    kit = StreamKit(tmp_path_factory.mktemp("stream"), sql, vnodes=vnodes, settings=TaskSettings(
        sink_bytes_per_second=0, sink_calls_per_second=0, state_map_bytes=1 << 26, state_memory_bytes=memory))
    try:
        play(kit, steps)
        kit.run()
        kit.pass_time(5)
        got = {row[: 2 if key else 1]: row for row in stream(kit, key)}
        want = {row[: 2 if key else 1]: row for row in batch(kit, oracle_key)}
        for head, row in got.items():
            assert head in want, f"{row} should be gone"
            assert_same([row], [want[head]])
        newest = newest_per_vnode(kit, steps)
        for head in want:
            until = newest[table_vnode(kit, head[0])] if partition == "table" else min(newest.values())
            if head[-1] + WIDTH <= until - watermark * 1000:
                assert head in got, f"{head} should be closed"
    finally:
        kit.close()


def test_a_row_that_moves_between_groups_within_one_block(kits: Any) -> None:
    """A key that is written and rewritten into another group before the stream reads it counts once."""
    kit = kits("create stream s trigger at_once ignore expired 0 ignore update 0 into o tags(note varchar(20)) as "
               f"select _wstart, {AGGREGATES}, note from meters partition by note interval(10s)")
    kit.insert([(0, 1_000, 1, 1.0, "x")])
    kit.insert([(0, 1_000, 1, 1.0, "y")])
    kit.run()
    assert_same(stream(kit, "note"), batch(kit, "note,"))


def test_zeros_of_both_signs_are_one_group(kits: Any) -> None:
    """-0.0 and 0.0 are equal, so they are one group, as in the batch."""
    kit = kits("create stream s trigger at_once ignore expired 0 into o tags(zero double) as "
               "select _wstart, count(*) c, zero from meters partition by current zero interval(10s)")
    kit.insert([(0, 1_000, 1, 0.0, "x"), (1, 2_000, 1, -0.0, "x"), (0, 3_000, 1, -0.0, "x")])
    kit.run()
    assert [(row["c"], str(row["zero"])) for row in kit.rows()] == [(3, "0.0")]


CUTS = {
    "expired": "ignore expired 1 ignore update 0 {} interval(10s)",
    "expired, close": "trigger window_close watermark 5s ignore expired 1 ignore update 0 {} interval(10s)",
    "update": "ignore expired 0 ignore update 1 {} interval(10s)",
    "both": "ignore expired 1 ignore update 1 {} interval(10s) sliding(5s)",
    "mark": "ignore expired 0 ignore update 0 delete_mark 15s {} interval(10s)",
    "session": "ignore expired 1 ignore update 0 {} session(ts, 2s)",
    "session update": "ignore expired 1 ignore update 1 {} session(ts, 2s)",
    "state": "ignore expired 1 ignore update 0 {} state_window(voltage)",
    "count": "watermark 5s ignore expired 1 ignore update 0 {} count_window(3, 2)",
}


@pytest.mark.parametrize("kind", CUTS)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture,
                                                                 HealthCheck.too_slow])
@given(steps=st.lists(st.one_of(WRITES), min_size=2, max_size=6),
       vnodes=st.integers(1, 2))
@example(steps=[("insert", [(0, 11_000, 1, 1.0, "x"), (0, 13_000, 1, 1.0, "x")]), ("delete", (None, 13_000, 500)),
                ("insert", [(0, 11_000, 2, 1.0, "x"), (0, 40_000, 2, 1.0, "x")]),
                ("insert", [(0, 12_000, 3, 1.0, "x")]), ("insert", [(0, 11_000, 4, 1.0, "x")])], vnodes=1)
def test_the_cut_of_the_log_into_blocks_never_shows(kits: Any, kind: str, steps: list[Any], vnodes: int) -> None:
    """Rows that come late or twice are judged by their place in the log, not by what happens to be read with them."""
    options, window = CUTS[kind].split("{}")
    trigger = "" if "trigger" in options else "trigger at_once "
    sql = (f"create stream s {trigger}{options} into o as select _wstart, count(*) c, sum(voltage) s from meters "
           f"partition by tbname{window}")
    at_once, piece_by_piece = kits(sql, vnodes=vnodes), kits(sql, vnodes=vnodes)
    play(at_once, steps)
    at_once.run()
    for step in steps:
        play(piece_by_piece, [step])
        piece_by_piece.run()
    assert at_once.rows() == piece_by_piece.rows()


def newest_per_vnode(kit: StreamKit, steps: list[tuple[str, Any]]) -> dict[int, int]:
    """The newest time ever inserted into each vnode that has any."""
    newest: dict[int, int] = {}
    for kind, what in steps:
        if kind in ("insert", "partial"):
            for row in what:
                vgroup = kit.catalog.child_list[row[0]].vgroup_id
                newest[vgroup] = max(row[1], newest.get(vgroup, row[1]))
    return newest


def table_vnode(kit: StreamKit, name: str) -> int:
    return next(child.vgroup_id for child in kit.catalog.child_list if child.name == name)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    batches=st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60_000), st.just(1)),
                              min_size=1, max_size=6), min_size=1, max_size=10),
    block=st.integers(1, 8), kill_after=st.integers(0, 10), watermark=st.sampled_from([0, 7]),
)
def test_expired_rows_are_judged_row_by_row(
    tmp_path_factory: pytest.TempPathFactory, batches: list[Any], block: int, kill_after: int, watermark: int
) -> None:
    """IGNORE EXPIRED 1: which rows count is a function of the WAL alone, not of blocks, kills or replays."""
    sql = (f"create stream s trigger at_once watermark {watermark}s ignore expired 1 ignore update 1 into o as "
           "select _wstart, sum(voltage) s from meters interval(10s)")
    kit = StreamKit(tmp_path_factory.mktemp("stream"), sql, vnodes=1, settings=TaskSettings(
        sink_bytes_per_second=0, sink_calls_per_second=0, state_map_bytes=1 << 26, block_rows_max=block))
    try:
        for number, rows in enumerate(batches):
            kit.insert(rows, ("voltage",))
            if number % 3 == 0:
                kit.run()
            if number == kill_after:
                kit.checkpoint()
                kit.kill()
        kit.run()
        got = {_millis(row["_wstart"]): row["s"] for row in kit.rows()}
        want, late = kept_by_rule(batches, watermark * 1000)
        assert got == want
        source = next(task for task in kit.tasks if task.id.level == "source")
        assert source.status().late_rows == late
    finally:
        kit.close()


def kept_by_rule(batches: list[Any], watermark: int) -> tuple[dict[int, int], int]:
    """Plain Python for tdengine.md 7.2, with vnode and table judged before each row's own record."""
    newest: int | None = None
    tables: dict[int, int] = {}
    windows: dict[int, int] = {}
    late = 0
    for rows in batches:
        distinct = {(row[0], row[1]): row[2] for row in rows}
        for (table, ts), value in distinct.items():
            start = ts // WIDTH * WIDTH
            end = start + WIDTH
            behind_table = table in tables and end < tables[table] // WIDTH * WIDTH + WIDTH
            if behind_table and newest is not None and end <= newest - watermark:
                late += 1
                continue
            windows[start] = windows.get(start, 0) + value
        for table, ts in distinct:
            tables[table] = max(ts, tables.get(table, ts))
            newest = ts if newest is None else max(ts, newest)
    return windows, late


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEP, min_size=1, max_size=14), vnodes=st.integers(1, 4), block=st.integers(1, 4))
def test_rows_without_windows_equal_batch(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], vnodes: int, block: int
) -> None:
    """A filter and projection keeps exactly the rows that the batch has, for any change, kill and vnode count."""
    sql = ("create stream s trigger at_once ignore expired 0 ignore update 0 into o subtable(tbname) as "
           "select ts, voltage, note from meters where voltage > 0 partition by tbname")
    kit = StreamKit(tmp_path_factory.mktemp("stream"), sql, vnodes=vnodes, settings=TaskSettings(
        sink_bytes_per_second=0, sink_calls_per_second=0, state_map_bytes=1 << 26, block_rows_max=block))
    try:
        play(kit, steps)
        kit.run()
        with duckdb.connect() as connection:
            connection.register("source", kit.source())
            want = connection.execute(
                "SELECT tbname, ts, voltage, note FROM source WHERE voltage > 0 ORDER BY tbname, ts").fetchall()
        assert [(row["_child"].split("_")[0], _millis(row["ts"]), row["voltage"], row["note"])
                for row in kit.rows()] == want
    finally:
        kit.close()


def test_a_row_that_came_and_went_before_a_restart_is_withdrawn(kits: Any) -> None:
    """An attempt wrote a row and died before it read of its deletion; the next reads both in one block."""
    kit = kits("create stream s trigger at_once into o as select ts, voltage from meters partition by tbname")
    kit.insert([(0, 1_000, 1, 1.0, "x")])
    kit.run()
    assert len(kit.rows()) == 1
    kit.delete(None, 0, 10_000)
    kit.kill()
    kit.run()
    assert kit.rows() == []
