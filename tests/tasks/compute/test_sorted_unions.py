"""Unions of ascending numbers are what sets say, with and without compiled loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from kits.basics.loops_of_both import BOTH, loops

from penstock.tasks.compute.sorted_unions import union_of

ASCENDING = st.sets(st.integers(0, 60) | st.integers(0, 2**62)).map(sorted)


@BOTH
@given(parts=st.lists(ASCENDING, min_size=1, max_size=4))
def test_each_number_is_there_once(parts: list[list[int]], compiled: bool) -> None:
    """And for each part it is known where its own are."""
    arrays = [np.array(part, np.int64) for part in parts]
    with loops(compiled=compiled):
        both, places = union_of(arrays)
    assert both.tolist() == sorted({number for part in parts for number in part})
    assert [both[own].tolist() for own in places] == parts
