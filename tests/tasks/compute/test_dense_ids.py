"""Dense numbers for ids: the same as a dictionary would give, for whole columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from kits.basics.loops_of_both import BOTH, loops

from penstock.tasks.compute.dense_ids import Numbering
from penstock.tasks.compute.id_table import IdTable, numbered

IDS = st.integers(0, 40) | st.sampled_from([2**63 - 1, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)


@BOTH
@given(columns=st.lists(st.lists(IDS, max_size=300), max_size=6))
def test_numbers_are_those_of_a_dictionary(columns: list[list[int]], compiled: bool) -> None:
    """Each id keeps the number it got first; unknown ones are -1."""
    with loops(compiled=compiled):
        numbering, expected = Numbering(), dict[int, int]()
        for column in columns:
            ids = np.array(column, np.uint64)
            assert numbering.find(ids).tolist() == [expected.get(each, -1) for each in column]
            fresh = [each for each in dict.fromkeys(column) if each not in expected]
            assert ids[numbering.find_or_first(ids)[1]].tolist() == fresh
            numbering.add(np.array(fresh, np.uint64))
            for each in fresh:
                expected[each] = len(expected)
            assert numbering.find(ids).tolist() == [expected[each] for each in column]
            assert [numbering.number(each) for each in (*column, 41)] == [
                expected.get(each, -1) for each in (*column, 41)]
        assert numbering.ids.tolist() == list(expected)
        assert len(numbering) == len(expected)


@BOTH
@pytest.mark.parametrize("count", [1, 2, 3000])
def test_ids_that_share_slots_are_told_apart(count: int, compiled: bool) -> None:
    """Many ids whose hashes begin alike go to neighbouring slots, also across the end of the table."""
    inverse = pow(0x9E37_79B9_7F4A_7C15, -1, 2**64)
    ids = np.array([((2**64 - 1 - n) * inverse) % 2**64 for n in range(count)], np.uint64)
    with loops(compiled=compiled):
        numbering = Numbering()
        for start in range(0, len(ids), 100):
            numbering.add(ids[start:start + 100])
        assert numbering.find(ids).tolist() == list(range(len(ids)))
        assert [numbering.number(each) for each in ids.tolist()] == list(range(len(ids)))
        assert numbering.intern(ids[::-1].copy()).tolist() == [*range(len(ids))][::-1]


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
        kept = Numbering()
        assert [number for id_ in column for number in kept.intern(np.array([id_], np.uint64)).tolist()] == (
            numbers.tolist())
        assert kept.intern(ids).tolist() == numbers.tolist()


class Table(RuleBasedStateMachine):
    """A table in which ids come and go, while what is compiled and what NumPy does take turns."""

    def __init__(self) -> None:
        super().__init__()
        self.table = IdTable()
        self.known: dict[int, int] = {}

    @rule(ids=st.lists(IDS, max_size=700, unique=True), compiled=st.booleans())
    def put(self, ids: list[int], compiled: bool) -> None:
        """New ids get numbers that nobody has."""
        fresh = [id_ for id_ in ids if id_ not in self.known]
        taken = {*self.known.values()}
        free = [number for number in range(len(taken) + len(fresh)) if number not in taken][:len(fresh)]
        with loops(compiled=compiled):
            self.table.put(np.array(fresh, np.uint64), np.array(free, np.int64))
        self.known.update(zip(fresh, free, strict=True))

    @rule(data=st.data(), compiled=st.booleans())
    def remove(self, data: st.DataObject, compiled: bool) -> None:
        """Some leave."""
        gone = data.draw(st.sets(st.sampled_from([*self.known]))) if self.known else set()
        with loops(compiled=compiled):
            self.table.remove(np.array([self.known.pop(id_) for id_ in sorted(gone)], np.int64))

    @invariant()
    def finds(self) -> None:
        """Both find who is there, and nobody else."""
        ids = [*self.known, 7, 2**64 - 1]
        for compiled in (True, False):
            with loops(compiled=compiled):
                assert self.table.find(np.array(ids, np.uint64)).tolist() == [self.known.get(id_, -1) for id_ in ids]


def test_ids_come_and_go() -> None:
    """However they do, the table is a dictionary."""
    run_state_machine_as_test(Table, settings=settings(max_examples=30, stateful_step_count=15, deadline=None))
