"""Groups go to the sink task of the vnode that their child table is placed on, which is found once for each."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.common.placement import place
from penstock.planner.task_plans.stream_plan import Field, SinkPlan
from penstock.sql.types import VARCHAR
from penstock.tasks.compute.duckdb_computer import Computer
from penstock.tasks.compute.group_index import GroupIndex
from penstock.tasks.operators.group_sinks import GroupSinks


def test_sinks_are_found_for_groups_that_have_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the order in which the SQL has them; what is known isn't asked for again."""
    keys = [Field("k0", VARCHAR)]
    sql = "SELECT _gid, 't_' || k0 AS _child, error('not asked for') AS t0 FROM groups ORDER BY k0 DESC"
    index, computer = GroupIndex(keys), Computer()
    names = [f"group {number}" for number in range(40)]
    index.intern(pa.record_batch({"_gid": pa.array(range(100, 140), pa.uint64()), "k0": pa.array(names)}))
    sinks = GroupSinks(SinkPlan("db", "target", (), (), sql, 1, True), keys, computer, 3)
    asked: list[int] = []

    def columns_of(groups: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[pa.Array]:
        asked.extend(groups.tolist())
        return [pa.array(index.ids(groups)), *index.key_columns(groups)]

    for groups in (np.array([5, 3, 5, 39]), np.array([3, 7]), np.array([39, 5])):
        found = sinks.of(groups, len(index), index.numbers, columns_of)
        assert found.tolist() == [place(f"db.t_{names[group]}", 3) for group in groups.tolist()]
    assert asked == [3, 5, 39, 7]
    computer.close()
