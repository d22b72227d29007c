"""Partials are combined in the same way by compiled loops and by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.basics.loops_of_both import loops

from penstock.planner.task_plans.stream_plan import Accumulator
from penstock.tasks.compute.accumulators import Values, combine

COUNT = 12
FLOATS = st.one_of(st.floats(width=32), st.sampled_from([float("nan"), 0.0, -0.0, float("inf")]))
NUMBERS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-5, 5), pa.int32(): st.integers(-5, 5), pa.float64(): FLOATS, pa.float32(): FLOATS}


def columns(type_: pa.DataType, count: int) -> st.SearchStrategy[Values]:
    """Returns columns of some slots, some of which hold nothing."""
    rows = st.lists(st.one_of(st.none(), NUMBERS[type_]), min_size=count, max_size=count)
    return rows.map(lambda values: Values.of(pa.array(values, type_)))


@pytest.mark.parametrize("type_", NUMBERS, ids=str)
@pytest.mark.parametrize("accumulator", [
    Accumulator("add", ()), Accumulator("pick", (), ((0, True),)), Accumulator("pick", (), ((0, False),))],
    ids=["sum", "least", "greatest"])
@given(data=st.data())
def test_loops_combine_what_numpy_does(accumulator: Accumulator, type_: pa.DataType, data: st.DataObject) -> None:
    """Numbers, NaN and slots without a value; of all rows or of some."""
    before, source = data.draw(columns(type_, COUNT)), data.draw(columns(type_, COUNT))
    chosen = data.draw(st.lists(st.integers(0, COUNT - 1), unique=True))
    rows: Any = data.draw(st.sampled_from([np.array(chosen[::-1], np.int64), slice(0, len(chosen))]))
    found = []
    for compiled in (True, False):
        target = Values(type_, before.data.copy(), before.valid.copy())
        with loops(compiled=compiled):
            combine(accumulator, [target], np.array(chosen, np.int64), [source], rows)
        found.append(target)
    assert found[0].valid.tolist() == found[1].valid.tolist()
    np.testing.assert_array_equal(found[0].data[found[0].valid], found[1].data[found[1].valid])
