"""Dense numbers for ids: the same as a dictionary would give, for whole columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.basics.loops_of_both import BOTH, loops

from penstock.tasks.compute.id_table import IdTable, numbered

IDS = st.integers(0, 40) | st.sampled_from([2**63 - 1, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)


@BOTH
@given(columns=st.lists(st.lists(IDS, max_size=300), max_size=6))
def test_numbers_are_those_of_a_dictionary(columns: list[list[int]], compiled: bool) -> None:
    """Each id keeps the number it got first; unknown ones are -1."""
    with loops(compiled=compiled):
        numbering, expected = IdTable(), dict[int, int]()
        for column in columns:
            ids = np.array(column, np.uint64)
            assert numbering.find(ids).tolist() == [expected.get(each, -1) for each in column]
            fresh = [each for each in dict.fromkeys(column) if each not in expected]
            assert ids[numbering.find_or_first(ids)[1]].tolist() == fresh
            numbering.add(np.array(fresh, np.uint64))
            for each in fresh:
                expected[each] = len(expected)
            assert numbering.find(ids).tolist() == [expected[each] for each in column]
        assert numbering.ids.tolist() == list(expected)
        assert len(numbering) == len(expected)


@BOTH
@pytest.mark.parametrize("count", [1, 2, 3000])
def test_ids_that_share_slots_are_told_apart(count: int, compiled: bool) -> None:
    """Many ids whose hashes begin alike go to neighbouring slots, also across the end of the table."""
    inverse = pow(0x9E37_79B9_7F4A_7C15, -1, 2**64)
    ids = np.array([((2**64 - 1 - n) * inverse) % 2**64 for n in range(count)], np.uint64)
    with loops(compiled=compiled):
        numbering = IdTable()
        for start in range(0, len(ids), 100):
            numbering.add(ids[start:start + 100])
        assert numbering.find(ids).tolist() == list(range(len(ids)))
        assert numbering.intern(ids[::-1].copy())[0].tolist() == [*range(len(ids))][::-1]


@BOTH
@given(column=st.lists(IDS, max_size=300))
def test_distinct_ids_are_numbered_as_they_come(column: list[int], compiled: bool) -> None:
    """In one block, and over several where they are kept."""
    distinct = [*dict.fromkeys(column)]
    with loops(compiled=compiled):
        ids = np.array(column, np.uint64)
        numbers, firsts = numbered(ids)
        assert ids[firsts].tolist() == distinct
        assert firsts.tolist() == [column.index(id_) for id_ in distinct]
        assert numbers.tolist() == [distinct.index(id_) for id_ in column]
        kept = IdTable()
        assert [number for id_ in column for number in kept.intern(np.array([id_], np.uint64))[0].tolist()] == (
            numbers.tolist())
        assert kept.intern(ids)[0].tolist() == numbers.tolist()


@BOTH
@given(columns=st.lists(st.lists(IDS, max_size=300), max_size=6), many=st.booleans())
def test_new_ids_are_numbered_as_they_are_found(columns: list[list[int]], many: bool, compiled: bool) -> None:
    """Each row has its id's number, and the first rows of new ids are told; also where the table grows in between."""
    if many:
        columns = [[*columns[0], *range(1000, 4000), *columns[0]] if columns else [], *columns]
    with loops(compiled=compiled):
        kept, expected = IdTable(), dict[int, int]()
        for column in columns:
            known = len(expected)
            for id_ in column:
                expected.setdefault(id_, len(expected))
            numbers, firsts = kept.intern(np.array(column, np.uint64))
            assert numbers.tolist() == [expected[id_] for id_ in column]
            assert firsts.tolist() == [column.index(id_) for id_ in [*expected][known:]]
            assert kept.ids.tolist() == [*expected]
