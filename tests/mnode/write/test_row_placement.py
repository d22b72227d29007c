"""Rows on their way to vnodes: each goes to its child table's, sorted as vnodes store them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.mnode.write.inserts import place_by_index
from penstock.mnode.write.row_placement import Owners
from penstock.sql.schema import ChildTable

CHILDREN = [ChildTable(uid, f"t{uid}", vgroup, ()) for uid, vgroup in ((9, 2), (3, 1), (7, 2), (1, 3), (8, 1))]


@given(st.lists(st.integers(0, len(CHILDREN) - 1), max_size=40))
def test_rows_go_to_their_vnodes_by_child_table_and_those_of_one_stay_in_order(owners: list[int]) -> None:
    """Of rows with the same key the last one counts, so rows of a child table must not change places."""
    batch = pa.record_batch({"row": pa.array(range(len(owners)), pa.int64())})
    placed = place_by_index(batch, np.array(owners, np.int32), Owners(CHILDREN))
    found = {vgroup: list(zip(part.column("_tuid").to_pylist(), part.column("row").to_pylist(), strict=True))
             for vgroup, part in placed}
    wanted: dict[int, list[tuple[int, int]]] = {}
    for row, owner in enumerate(owners):
        wanted.setdefault(CHILDREN[owner].vgroup_id, []).append((CHILDREN[owner].uid, row))
    assert len(placed) == len(found)
    assert found == {vgroup: sorted(rows) for vgroup, rows in wanted.items()}


def test_a_child_table_that_is_named_twice_keeps_its_rows_in_order() -> None:
    """Two names of an INSERT may stand for one table; its rows are not sorted by name."""
    batch = pa.record_batch({"row": pa.array(range(4), pa.int64())})
    twice = [CHILDREN[1], CHILDREN[1]]
    ((vgroup, part),) = place_by_index(batch, np.array([1, 0, 1, 0], np.int32), Owners(twice))
    assert (vgroup, part.column("row").to_pylist()) == (1, [0, 1, 2, 3])
