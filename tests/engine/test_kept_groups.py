"""Streams of groups without a window: the result equals the batch answer, whatever comes, changes and goes."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc
import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.basics.shared_duckdb import duckdb_with
from kits.streams.interval_streams import STEP
from kits.streams.stream_kit import Answer, StreamKit, assert_same, null_last, play, unhurried

from penstock.planner.task_plans.stream_plan import WindowsPlan

#: Two of these are beyond 64 bits.
WIDE = "case when voltage > 0 then 9000000000000000000 when voltage < 0 then -9000000000000000000 end"
#: Each query, and whether rows that go are taken out of what is kept; else their groups are read back.
QUERIES = {
    "select note, count(*) c, sum(voltage) s, avg(voltage) a, count(current) d from meters group by note": True,
    "select note, sum(voltage) s from meters where voltage > 1 group by note having count(*) > 1": True,
    "select voltage % 3 m, note n, count(*) c from meters group by 1, note": True,
    f"select site, sum({WIDE}) s, avg({WIDE}) a, count(voltage) c from meters group by site": True,
    "select tbname, sum(voltage) + count(*) c from meters group by tbname": True,
    "select distinct note, voltage from meters where voltage is not null": True,
    "select note, min(voltage) low, max(voltage) high, sum(current) s, stddev(voltage) d from meters group by note":
        False,
    "select site, first(voltage) f, last(current) l from meters group by site": False,
    "select upper(note) u, count(*) filter (where voltage > 0) c, avg(voltage) filter (where current < 0) a "
    "from meters group by upper(note)": True,
    "select note, count(distinct voltage) c, count(distinct site) filter (where voltage > 1) d, "
    "max(distinct voltage) m from meters group by note": False,
    "select tbname, max(voltage) high from meters group by tbname having max(voltage) < 5": False,
    "select count(*) c, sum(voltage) s, avg(voltage) a from meters": True,
    "select count(voltage) c, sum(voltage) s from meters where note = 'x' having sum(voltage) > 1": True,
    "select sum(voltage) s from d1": True,
    "select count(*) c, count(distinct note) d, min(voltage) low, sum(current) s from meters where site = 's0'": False,
    "select count(*) filter (where voltage > 0) + 1 c, max(current) m from d0": False,
}


#: Steps over so few rows that each is often written, rewritten and deleted several times between two looks at the log.
CROWDED_ROW = st.tuples(st.integers(0, 1), st.sampled_from([1_000, 2_000, 3_000]), st.sampled_from([None, 1, 2]),
                        st.sampled_from([None, 0.5]), st.sampled_from([None, "x", "y"]))
CROWDED = st.lists(st.one_of(
    st.tuples(st.sampled_from(["insert", "insert", "partial", "each"]), st.lists(CROWDED_ROW, min_size=1, max_size=3)),
    st.tuples(st.just("delete"), st.tuples(st.sampled_from([None, [0], [0, 1]]), st.sampled_from([1_000, 2_000]),
                                           st.sampled_from([0, 1_000, 9_000]))),
    st.tuples(st.sampled_from(["run", "kill"]), st.none()), st.tuples(st.just("checkpoint"), st.booleans())),
    min_size=2, max_size=16)


@pytest.mark.parametrize("query", QUERIES)
@settings(max_examples=times(3, 400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.one_of(st.lists(STEP, min_size=1, max_size=14), CROWDED), vnodes=st.integers(1, 4),
       block=st.sampled_from([1, 2, 4, 100]), memory=st.sampled_from([0, 1 << 27]))
def test_groups_equal_batch(
    tmp_path_factory: pytest.TempPathFactory, query: str, steps: list[Any], vnodes: int, block: int, memory: int
) -> None:
    """Through kills, checkpoints and any cut of the log, with and without memory for state."""
    kit = StreamKit(tmp_path_factory.mktemp("stream"), f"create stream s into o as {query}", vnodes=vnodes,
                    settings=unhurried(block_rows_max=block, state_memory_bytes=memory))
    try:
        assert isinstance(kit.plan.computation, WindowsPlan)
        assert kit.plan.computation.retracts is QUERIES[query]
        play(kit, steps)
        kit.run()
        assert_same(*map(in_order, (results(kit), batch(kit, query))))
    finally:
        kit.close()


def results(kit: StreamKit) -> list[Answer]:
    names = [column.name for column in kit.plan.sink.columns]
    return [tuple(row[name] for name in names) for row in kit.rows()]


def batch(kit: StreamKit, query: str) -> list[Answer]:
    """What DuckDB answers. What the dialect calls otherwise is written as DuckDB has it."""
    written = query
    for ours, theirs in (("first(voltage)", "arg_min(voltage, (ts, _tuid)) FILTER (voltage IS NOT NULL)"),
                         ("last(current)", "arg_max(current, (ts, -_tuid::HUGEINT)) FILTER (current IS NOT NULL)"),
                         ("stddev(", "stddev_pop("), (f"sum({WIDE})", f"try_cast(sum({WIDE}) AS BIGINT)")):
        written = written.replace(ours, theirs)
    if not any(word in query for word in ("group by", "count(", "distinct")):
        written += " having count(*) > 0"  # no row tells of no rows, unless something counts them
    meters = kit.source()
    with duckdb_with({"meters": meters, **{name: meters.filter(pc.equal(meters.column("tbname"), name))
                                           for name in ("d0", "d1")}}) as connection:
        found = connection.execute(written).fetchall()
    return [row for row in found if "first(" not in query or any(value is not None for value in row[1:])]


def in_order(rows: list[Answer]) -> list[Answer]:
    return sorted(rows, key=null_last)


def test_a_rewritten_row_never_leaves_its_group(kits: Any) -> None:
    """What goes and what comes of a group is one change: nobody sees the one without the other."""
    kit = kits("create stream s into o as select note, count(*) c, sum(voltage) s from meters group by note")
    kit.insert([(0, 1_000, 1, 1.0, "x"), (0, 2_000, 2, 1.0, "y")])
    kit.run()
    written = len(kit.writes)
    kit.insert([(0, 1_000, 5, 1.0, "x"), (0, 2_000, 7, 1.0, "x")])
    kit.run()
    changes = [row for write in kit.writes[written:] for row in write.rows.to_pylist()]
    assert sorted((row["_op"], row["note"], row["c"]) for row in changes) == [(0, "x", 2), (1, "y", 0)]


@pytest.mark.parametrize("steps", [
    [("delete", (None, 1_000, 0)), ("delete", (None, 1_000, 0))],
    [("insert", [(0, 1_000, 5, 1.0, "x")]), ("delete", ([0], 1_000, 0))],
    [("partial", [(0, 1_000, 5, 1.0, "x")]), ("delete", ([0], 1_000, 0)), ("insert", [(0, 1_000, 7, 1.0, "y")])],
    [("delete", ([0], 1_000, 0)), ("insert", [(0, 1_000, 5, 1.0, "x")]), ("delete", ([0], 0, 9_000))],
])
def test_a_row_that_goes_several_ways_goes_once(kits: Any, steps: list[Any]) -> None:
    """Rewritten and deleted, or deleted twice, before anybody looks at the log."""
    query = "select note, count(*) c, sum(voltage) s from meters group by note"
    kit = kits(f"create stream s into o as {query}", vnodes=1)
    kit.insert([(0, 1_000, 1, 1.0, "x"), (0, 2_000, 2, 1.0, "x"), (1, 1_000, 3, 1.0, "x")])
    kit.run()
    play(kit, steps)
    kit.run()
    assert_same(*map(in_order, (results(kit), batch(kit, query))))


@pytest.mark.parametrize("steps", [
    [("insert", [(0, 1_000, 1, None, "x")]), ("run", None), ("delete", (None, 1_000, 0)), ("kill", None)],
    [("insert", [(0, 1_000, 1, None, "x")]), ("run", None), ("insert", [(0, 1_000, 1, None, "y")]), ("kill", None)],
    [("insert", [(0, 1_000, 1, None, "x"), (0, 1_000, 2, None, "y")]), ("run", None), ("delete", ([0], 0, 9_000)),
     ("kill", None)],
])
def test_what_came_and_went_in_one_block_leaves_no_result(kits: Any, steps: list[Any]) -> None:
    """An attempt before, which was killed before its first checkpoint, has written one."""
    query = "select distinct note, voltage from meters where voltage is not null"
    kit = kits(f"create stream s into o as {query}", vnodes=1)
    play(kit, steps)
    kit.run()
    assert_same(*map(in_order, (results(kit), batch(kit, query))))
