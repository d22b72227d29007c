"""Finds numbers by 64-bit ids, whole columns at a time: a hash table with open addressing, at most half full.

What is compiled and what NumPy does read and write the same table, so that either may go on with it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.tasks.compiled.compiled_loops import compiled
from penstock.tasks.compiled.loops import FREE

Ids = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

_FIRST_PLACES = 1024
_LEAST, _GROWTH = 256, 7
_HALF = np.uint64(32)
_MULTIPLIER = np.uint64(0x9E37_79B9_7F4A_7C15)


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
        loops = compiled()
        if loops is not None:
            numbers: Numbers = np.empty(len(ids), np.int64)
            loops.find(self._table, self._ids, self._shift, ids, numbers)
            return numbers
        places = self._places_of(ids)
        found = self._table[places]
        rows = np.flatnonzero(self._are_others(found, ids))
        while len(rows):
            places[rows] = behind = (places[rows] + 1) & self._mask
            found[rows] = there = self._table[behind]
            rows = rows[self._are_others(there, ids[rows])]
        return found.astype(np.int64)

    def number(self, id_: int) -> int:
        """Returns the number of one id; -1 if it has none. Faster than `find` for one."""
        place = ((id_ ^ id_ >> int(_HALF)) * int(_MULTIPLIER) & 0xFFFF_FFFF_FFFF_FFFF) >> int(self._shift)
        while True:
            number = int(self._table[place])
            if number == FREE or int(self._ids[number]) == id_:
                return number
            place = place + 1 & self._mask

    def add(self, ids: Ids) -> None:
        """Numbers ids that are distinct and not known yet."""
        first, end = self._held, self._held + len(ids)
        self._make_room(end)
        self._ids[first:end] = ids
        self._held = end
        self._enter(first, end)

    def intern(self, ids: Ids) -> tuple[Numbers, Numbers]:
        """Returns the numbers of ids, and the first row of each new one in order; these get theirs."""
        loops = compiled()
        if loops is None:
            numbers = self.find(ids)
            unknown = (numbers < 0).nonzero()[0]
            if not len(unknown):
                return numbers, unknown
            within, firsts = numbered(ids[unknown])
            numbers[unknown] = within + self._held
            self.add(ids[unknown[firsts]])
            return numbers, unknown[firsts]
        numbers, firsts = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
        row, before = 0, self._held
        while row < len(ids):
            # As many more are expected as there were so far, but not on the word of few.
            expected = (self._held - before) * (len(ids) - row) // max(row, 1)
            self._make_room(self._held + max(min(expected, _GROWTH * self._held), _LEAST))
            row, self._held = loops.find_or_enter(
                self._table, self._ids, self._shift, self._held, ids, row, numbers, firsts[self._held - before :])
        return numbers, firsts[: self._held - before].copy()

    def _clear(self, places: int) -> None:
        self._table: npt.NDArray[np.int32] = np.full(places, FREE, np.int32)
        self._mask = places - 1
        self._shift = np.uint64(65 - places.bit_length())

    def _make_room(self, count: int) -> None:
        """Has the table be at most half full with so many."""
        if count > len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros(max(count - len(self._ids), len(self._ids)), np.uint64)])
        if 2 * count > len(self._table):
            self._clear(1 << (4 * count - 1).bit_length())
            self._enter(0, self._held)

    def _are_others(self, numbers: npt.NDArray[np.int32], ids: Ids) -> npt.NDArray[np.bool_]:
        """Where a look must go on: neither is the id there, nor is the place free."""
        others: npt.NDArray[np.bool_] = self._ids[numbers] != ids
        others &= numbers >= 0
        return others

    def _places_of(self, ids: Ids) -> Numbers:
        mixed = (ids ^ (ids >> _HALF)) * _MULTIPLIER
        return (mixed >> self._shift).astype(np.int64)

    def _enter(self, first: int, end: int) -> None:
        """Puts numbers into the table: each into the first free place from its own on."""
        loops = compiled()
        if loops is not None:
            loops.enter(self._table, self._ids, self._shift, first, end)
            return
        numbers = np.arange(first, end)
        places = self._places_of(self._ids[first:end])
        while len(numbers):
            free = self._table[places] == FREE
            self._table[places[free]] = numbers[free]  # of several for one place, one stays
            moving = self._table[places] != numbers
            numbers, places = numbers[moving], (places[moving] + 1) & self._mask


def numbered(ids: Ids) -> tuple[Numbers, Numbers]:
    """Numbers distinct ids 0, 1, ... in the order in which they come: returns each row's number, and the first row of
    each number."""
    loops = compiled()
    if loops is None:
        _, first, place = np.unique(ids, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        return rank[place], first[order]
    bits = max((2 * len(ids)).bit_length(), 1)
    numbers, firsts = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    count = loops.number(ids, np.full(1 << bits, FREE, np.int32), np.uint64(64 - bits), numbers, firsts)
    return numbers, firsts[:count]
