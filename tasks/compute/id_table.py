"""Finds numbers by 64-bit ids, whole columns at a time: a hash table with open addressing, at most half full.

What is compiled and what NumPy does read and write the same table, so that either may go on with it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.tasks.compiled.compiled_loops import compiled
from penstock.tasks.compiled.loops import FREE, GONE

Ids = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

_FIRST_PLACES = 1024
_HALF = np.uint64(32)
_MULTIPLIER = np.uint64(0x9E37_79B9_7F4A_7C15)


class IdTable:
    """Which number stands for which id. Numbers are small: each is a place in an array of ids.

    Nearly all ids are found at the first look. Whoever is removed leaves a mark, so that looks go on behind it.
    """

    def __init__(self) -> None:
        # As many as there are marks, which are looked up like numbers, from the end.
        self._ids: Ids = np.zeros(2, np.uint64)
        self._held = 0
        self._marks = 0
        self._clear(_FIRST_PLACES)

    @property
    def memory_bytes(self) -> int:
        return self._ids.nbytes + self._table.nbytes

    def ids_of(self, numbers: Numbers) -> Ids:
        """Returns the ids that numbers stand for."""
        return self._ids[numbers]

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
            if number == FREE or (number >= 0 and int(self._ids[number]) == id_):
                return number
            place = place + 1 & self._mask

    def put(self, ids: Ids, numbers: Numbers) -> None:
        """Gives ids their numbers. The ids are distinct and have none yet; the numbers stand for nothing."""
        if not len(ids):
            return
        last = int(numbers.max())
        if last >= len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros(max(len(self._ids), last + 1 - len(self._ids)), np.uint64)))
        self._ids[numbers] = ids
        self._held += len(ids)
        if 2 * (self._held + self._marks) > len(self._table):
            numbers = np.concatenate((self._table[self._table >= 0].astype(np.int64), numbers))
            self._clear(1 << (4 * self._held - 1).bit_length())
        self._place(numbers)

    def remove(self, numbers: Numbers) -> None:
        """Takes the ids of numbers out, all of which have one."""
        self._held -= len(numbers)
        if not self._held:
            self._clear(_FIRST_PLACES)
            return
        self._marks += len(numbers)
        loops = compiled()
        if loops is not None:
            loops.leave(self._table, self._ids, self._shift, numbers)
            return
        places = self._places_of(self._ids[numbers])
        rows = np.flatnonzero(self._table[places] != numbers)
        while len(rows):
            places[rows] = behind = (places[rows] + 1) & self._mask
            rows = rows[self._table[behind] != numbers[rows]]
        self._table[places] = GONE

    def _clear(self, places: int) -> None:
        self._table: npt.NDArray[np.int32] = np.full(places, FREE, np.int32)
        self._mask = places - 1
        self._shift = np.uint64(65 - places.bit_length())
        self._marks = 0

    def _are_others(self, numbers: npt.NDArray[np.int32], ids: Ids) -> npt.NDArray[np.bool_]:
        """Where a look must go on: neither is the id there, nor is the place free."""
        others: npt.NDArray[np.bool_] = self._ids[numbers] != ids
        others &= numbers >= 0
        if self._marks:
            others |= numbers == GONE
        return others

    def _places_of(self, ids: Ids) -> Numbers:
        mixed = (ids ^ (ids >> _HALF)) * _MULTIPLIER
        return (mixed >> self._shift).astype(np.int64)

    def _place(self, numbers: Numbers) -> None:
        """Puts numbers into the table: each into the first free place from its own on."""
        loops = compiled()
        if loops is not None:
            loops.enter(self._table, self._ids, self._shift, numbers)
            return
        places = self._places_of(self._ids[numbers])
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
