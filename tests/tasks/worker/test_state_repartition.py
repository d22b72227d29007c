"""Where a stream's groups and times go when its vnodes become more; whole streams are in test_splitting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from kits.streams.stream_kit import StreamKit

from penstock.planner.task_plans.stream_plan import StreamPlan
from penstock.tasks.compute.group_index import GroupIndex
from penstock.tasks.flow.watermarks import Watermarks
from penstock.tasks.worker.state_repartition import Moved, homes_of, refusal, united_watermarks

SELECT = "create stream s trigger at_once into o as select _wstart ts, count(*) n from {}"
TIMES = st.none() | st.integers(0, 50)


def plan_of(directory: Path, query: str) -> StreamPlan:
    kit = StreamKit(directory, SELECT.format(query))
    try:
        return kit.plan
    finally:
        kit.close()


def groups_of(plan: StreamPlan, groups: list[tuple[int, str]]) -> GroupIndex:
    """An index of groups by id, whose first key is a text."""
    index = GroupIndex(plan.grouping.keys)
    columns = [pa.array([gid for gid, _ in groups], pa.uint64()), pa.array([name for _, name in groups])]
    index.intern(pa.RecordBatch.from_arrays(columns, names=["_gid", "k0"]))
    return index


def test_groups_go_where_their_tables_or_their_ids_lead(tmp_path: Path) -> None:
    """By table: with the table, known by its uid or its name; by other keys: by the id, as rows are sent."""
    moved = Moved({101: 2, 104: 3}, {"d0": 2, "d3": 3})
    by_table = plan_of(tmp_path / "a", "meters partition by tbname interval(10s)")
    index = groups_of(by_table, [(104, "d3"), (101, "d0"), (102, "d1")])
    assert homes_of(by_table, index, 1, 4, moved).tolist() == [3, 2, 1]
    by_both = plan_of(tmp_path / "b", "meters partition by tbname, voltage interval(10s)")
    assert by_both.grouping.table_key == 0
    first_key = replace(by_both.grouping, keys=by_both.grouping.keys[:1])
    index = groups_of(replace(by_both, grouping=first_key), [(9, "d3"), (8, "d1"), (7, "d3")])
    assert homes_of(by_both, index, 0, 4, moved).tolist() == [3, 0, 3]
    by_site = plan_of(tmp_path / "c", "meters partition by site interval(10s)")
    index = groups_of(by_site, [(9, "s0"), (2**64 - 1, "s1"), (4, "s2")])
    assert homes_of(by_site, index, 0, 4, moved).tolist() == [1, 3, 0]
    one = plan_of(tmp_path / "d", "d0 interval(10s)")
    index = GroupIndex(one.grouping.keys)
    index.intern(pa.RecordBatch.from_arrays([pa.array([0], pa.uint64())], names=["_gid"]))
    assert homes_of(one, index, 1, 4, moved).tolist() == [2]
    assert homes_of(one, index, 1, 4, Moved({102: 3}, {"d1": 3})).tolist() == [1]


def test_streams_whose_state_cannot_be_divided_are_known(tmp_path: Path) -> None:
    """Windows that rows define are divided by table only."""
    assert refusal(plan_of(tmp_path / "a", "meters partition by tbname session(ts, 10s)")) is None
    assert refusal(plan_of(tmp_path / "b", "meters partition by site interval(10s)")) is None
    assert "SESSION" in str(refusal(plan_of(tmp_path / "c", "meters partition by site session(ts, 10s)")))


@given(heard=st.lists(st.tuples(TIMES, TIMES, st.booleans(), st.booleans(), TIMES), min_size=1, max_size=4),
       parents=st.lists(st.integers(0, 1), max_size=4))
def test_no_time_is_ahead_of_what_a_task_has_heard(
    heard: list[tuple[int | None, int | None, bool, bool, int | None]], parents: list[int]
) -> None:
    """The time of a task over more vnodes is that of the task that has heard least; new vnodes have their parents'."""
    saved = [{"ts": [a, b], "idle": [idle_a, idle_b], "current": now} for a, b, idle_a, idle_b, now in heard]
    united = united_watermarks(saved, (0, 1, *parents))
    for input, parent in enumerate((0, 1, *parents)):
        times = [one["ts"][parent] for one in saved]
        assert united["ts"][input] == (None if None in times else min(times))
        assert united["idle"][input] == all(one["idle"][parent] for one in saved)
    restored = Watermarks(2 + len(parents))
    restored.restore(united)
    for one in saved:
        assert restored.current is None or (one["current"] is not None and restored.current <= one["current"])
