"""Dense numbers for ids: the same as a dictionary would give, for whole columns."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.tasks.compute.dense_ids import Numbering


@given(st.lists(st.lists(st.one_of(st.integers(0, 40), st.integers(0, 2**64 - 1)), max_size=300), max_size=6))
def test_numbers_are_those_of_a_dictionary(columns: list[list[int]]) -> None:
    """Each id keeps the number it got first; unknown ones are -1."""
    numbering, expected = Numbering(), dict[int, int]()
    for column in columns:
        ids = np.array(column, np.uint64)
        assert numbering.find(ids).tolist() == [expected.get(each, -1) for each in column]
        fresh = [each for each in dict.fromkeys(column) if each not in expected]
        numbering.add(np.array(fresh, np.uint64))
        for each in fresh:
            expected[each] = len(expected)
        assert numbering.find(ids).tolist() == [expected[each] for each in column]
        assert [numbering.number(each) for each in (*column, 41)] == [expected.get(each, -1) for each in (*column, 41)]
    assert numbering.ids.tolist() == list(expected)
    assert len(numbering) == len(expected)


def test_ids_that_share_slots_are_told_apart() -> None:
    """Many ids whose hashes begin alike go to neighbouring slots, also across the end of the table."""
    inverse = pow(0x9E37_79B9_7F4A_7C15, -1, 2**64)
    ids = np.array([((2**64 - 1 - n) * inverse) % 2**64 for n in range(3000)], np.uint64)
    numbering = Numbering()
    for start in range(0, len(ids), 100):
        numbering.add(ids[start:start + 100])
    assert numbering.find(ids).tolist() == list(range(len(ids)))
    assert [numbering.number(each) for each in ids.tolist()] == list(range(len(ids)))
