"""Finds numbers by 64-bit ids, whole columns at a time: a hash table with open addressing, at most half full.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.tasks.compiled.compiled_loops import row_loops
from penstock.tasks.compiled.loops import FREE

Ids = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

_FIRST_PLACES = 1024
_LEAST, _GROWTH = 256, 7


class IdTable:
    """Numbers ids 0, 1, 2, ... in the order in which they are added. None is ever removed.

    Nearly all ids are found at the first look.
    """

    def __init__(self) -> None:
        self._ids: Ids = np.zeros(2, np.uint64)
        self._held = 0
        self._clear(_FIRST_PLACES)

    def __len__(self) -> int:
        return self._held

    @property
    def memory_bytes(self) -> int:
        return self._ids.nbytes + self._table.nbytes

    @property
    def ids(self) -> Ids:
        """The ids by their numbers."""
        return self._ids[:self._held]

    def find(self, ids: Ids) -> Numbers:
        """Returns the number of each id; -1 for ids that have none."""
        numbers: Numbers = np.empty(len(ids), np.int64)
        row_loops().find(self._table, self._ids, self._shift, ids, numbers)
        return numbers

    def find_or_first(self, ids: Ids) -> tuple[Numbers, Numbers]:
        """Returns the numbers of ids as `find` does, and the first row of each id that was not added, in order."""
        numbers = self.find(ids)
        unknown = (numbers < 0).nonzero()[0]
        if not len(unknown):
            return numbers, unknown
        return numbers, unknown[numbered(ids[unknown])[1]]

    def add(self, ids: Ids) -> None:
        """Numbers ids that are distinct and not known yet."""
        first, end = self._held, self._held + len(ids)
        self._make_room(end)
        self._ids[first:end] = ids
        self._held = end
        self._enter(first, end)

    def intern(self, ids: Ids) -> tuple[Numbers, Numbers]:
        """Returns the numbers of ids, and the first row of each new one in order; these get theirs."""
        numbers, firsts = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
        row, before = 0, self._held
        while row < len(ids):
            # As many more are expected as there were so far, but not on the word of few.
            expected = (self._held - before) * (len(ids) - row) // max(row, 1)
            self._make_room(self._held + max(min(expected, _GROWTH * self._held), _LEAST))
            row, self._held = row_loops().find_or_enter(
                self._table, self._ids, self._shift, self._held, ids, row, numbers, firsts[self._held - before :])
        return numbers, firsts[: self._held - before].copy()

    def _clear(self, places: int) -> None:
        self._table: npt.NDArray[np.int32] = np.full(places, FREE, np.int32)
        self._shift = np.uint64(65 - places.bit_length())

    def _make_room(self, count: int) -> None:
        """Has the table be at most half full with so many."""
        if count > len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros(max(count - len(self._ids), len(self._ids)), np.uint64)])
        if 2 * count > len(self._table):
            self._clear(1 << (4 * count - 1).bit_length())
            self._enter(0, self._held)

    def _enter(self, first: int, end: int) -> None:
        row_loops().enter(self._table, self._ids, self._shift, first, end)


def numbered(ids: Ids) -> tuple[Numbers, Numbers]:
    """Numbers distinct ids 0, 1, ... in the order in which they come: returns each row's number, and the first row of
    each number."""
    bits = max((2 * len(ids)).bit_length(), 1)
    numbers, firsts = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    count = row_loops().number(ids, np.full(1 << bits, FREE, np.int32), np.uint64(64 - bits), numbers, firsts)
    return numbers, firsts[:count]
