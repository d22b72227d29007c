"""Maps 64-bit ids to dense numbers, whole columns at a time. What the ids stand for doesn't matter."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

_FIRST_SLOTS = 1024
_HALF = np.uint64(32)
_MULTIPLIER = np.uint64(0x9E37_79B9_7F4A_7C15)


class Numbering:
    """Numbers ids 0, 1, 2, ... in the order in which they are added.

    A hash table with open addressing, at most half full, so that nearly all ids are found at the first look.
    """

    def __init__(self) -> None:
        self._ids: Ids = np.zeros(0, np.uint64)
        self._count = 0
        self._clear(_FIRST_SLOTS)

    def __len__(self) -> int:
        return self._count

    @property
    def ids(self) -> Ids:
        """The ids by their numbers."""
        return self._ids[:self._count]

    def find(self, ids: Ids) -> Numbers:
        """Returns the number of each id; -1 for ids that were not added."""
        slots = self._slots_of(ids)
        numbers = self._table[slots]
        other = (numbers >= 0) & (self._ids[numbers] != ids) if self._count else np.zeros(0, np.bool_)
        rows = np.flatnonzero(other)
        while len(rows):
            slots[rows] = (slots[rows] + 1) & self._mask
            found = self._table[slots[rows]]
            numbers[rows] = found
            rows = rows[(found >= 0) & (self._ids[found] != ids[rows])]
        return numbers

    def find_or_first(self, ids: Ids) -> tuple[Numbers, Numbers]:
        """Returns the numbers of ids as `find` does, and the first row of each id that was not added, in order."""
        numbers = self.find(ids)
        unknown = np.flatnonzero(numbers < 0)
        if not len(unknown):
            return numbers, unknown
        _, first = np.unique(ids[unknown], return_index=True)
        return numbers, unknown[np.sort(first)]

    def number(self, id_: int) -> int:
        """Returns the number of one id; -1 for an id that was not added. Faster than `find` for one."""
        slot = ((id_ ^ id_ >> int(_HALF)) * int(_MULTIPLIER) & 0xFFFF_FFFF_FFFF_FFFF) >> int(self._shift)
        while True:
            number = int(self._table[slot])
            if number < 0 or int(self._ids[number]) == id_:
                return number
            slot = slot + 1 & self._mask

    def add(self, ids: Ids) -> None:
        """Numbers ids that are distinct and not known yet."""
        first = self._count
        self._count += len(ids)
        if self._count > len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros(max(len(self._ids), len(ids)), np.uint64)))
        self._ids[first:self._count] = ids
        if 2 * self._count > len(self._table):
            self._clear(1 << (4 * self._count - 1).bit_length())
            first = 0
        self._place(np.arange(first, self._count))

    def _clear(self, slots: int) -> None:
        self._table: Numbers = np.full(slots, -1, np.int64)
        self._mask = slots - 1
        self._shift = np.uint64(65 - slots.bit_length())

    def _slots_of(self, ids: Ids) -> Numbers:
        mixed = (ids ^ (ids >> _HALF)) * _MULTIPLIER
        return (mixed >> self._shift).astype(np.int64)

    def _place(self, numbers: Numbers) -> None:
        """Puts numbers into the table: each into the first free slot from its own on."""
        slots = self._slots_of(self._ids[numbers])
        while len(numbers):
            free = self._table[slots] < 0
            self._table[slots[free]] = numbers[free]  # of several for one slot, one stays
            moving = self._table[slots] != numbers
            numbers, slots = numbers[moving], (slots[moving] + 1) & self._mask
