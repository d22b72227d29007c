"""Ids of child tables are found as in a dictionary, however the rows of a block are ordered."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.basics.loops_of_both import BOTH, loops

from penstock.tasks.compute.kernel_vectors import NotInKernelError
from penstock.tasks.compute.vnode_groups import IdIndex

IDS = st.integers(0, 40) | st.integers(2**63, 2**64 - 1)


@BOTH
@given(known=st.lists(IDS, min_size=1, max_size=20, unique=True), data=st.data())
def test_ids_are_found(known: list[int], data: st.DataObject, compiled: bool) -> None:
    """In short and in long runs, each id has its place, whenever it came; an unknown one anywhere is refused."""
    before, middle = sorted((data.draw(st.integers(0, len(known))), data.draw(st.integers(0, len(known)))))
    with loops(compiled=compiled):
        index = IdIndex(np.array(known[:before], np.uint64))
        index.add(np.array(known[before:middle], np.uint64))
        index.add(np.array(known[middle:], np.uint64))
        assert len(index) == len(known)
        runs = data.draw(st.lists(st.tuples(st.sampled_from(known), st.integers(1, 12)), max_size=8))
        ids = [id for id, count in runs for _ in range(count)]
        assert index.find(np.array(ids, np.uint64)).tolist() == [known.index(id) for id in ids]
        unknown = data.draw(IDS.filter(lambda id: id not in known))
        ids.insert(data.draw(st.integers(0, len(ids))), unknown)
        with pytest.raises(NotInKernelError):
            index.find(np.array(ids, np.uint64))
