"""Slots by line and group in hash tables, one for each line: no more than what there is takes memory.

A line stands for a window, and what comes together is mostly of few windows: so only few tables are looked at, which
fit into the processor's caches however many groups and windows there are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.tasks.compiled.compiled_loops import row_loops
from penstock.tasks.compute.accumulators import Slots
from penstock.tasks.compute.growing_arrays import grown

Cells = npt.NDArray[np.uint64]

_NONE = -1
_LEAST_BITS = 2
_KEPT_CELLS = 1 << 16
_FEW_LINES = 16
_GROUP_BITS = np.uint64(32)
_SLOT = np.uint64(2**32 - 1)


class LineCells:
    """A cell holds a group in its upper half, and the slot and 1 in the lower one; 0 is free.

    All tables are parts of one array. One that grows moves to the array's end; what it leaves behind is given back once
    it is more than what is in use.
    """

    def __init__(self) -> None:
        self._cells: Cells = np.zeros(0, np.uint64)
        self._end = 0  # of what was ever given to a table
        self._live = 0  # cells of tables
        # By line: where its table begins, or _NONE; 64 minus the exponent of its size; how many it holds.
        self._begins = np.zeros(0, np.int64)
        self._shifts: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._counts = np.zeros(0, np.int64)
        #: the cells of lines by group, as long as they are what is in their tables
        self._sorted: dict[int, Cells] = {}

    def find(self, lines: Slots, groups: Slots) -> Slots:
        """Returns the slot of each (line, group), -1 where there is none."""
        found: Slots = np.empty(len(lines), np.int64)
        row_loops().seek(self._cells, self._begins, self._shifts, *map(np.ascontiguousarray, (lines, groups)), found)
        return found

    def put(self, lines: Slots, groups: Slots, slots: Slots) -> None:
        """Notes the slots of (line, group)s that had none."""
        if not len(lines):
            return
        last = int(lines.max())
        if last >= len(self._begins):
            more = max(len(self._begins), last + 1 - len(self._begins))
            self._begins = np.concatenate([self._begins, np.full(more, _NONE)])
            self._shifts = np.concatenate([self._shifts, np.zeros(more, np.uint64)])
            self._counts = np.concatenate([self._counts, np.zeros(more, np.int64)])
        if last < _FEW_LINES * len(lines):
            fresh = np.bincount(lines)
            touched = fresh.nonzero()[0]
            fresh = fresh[touched]
        else:
            touched, fresh = np.unique(lines, return_counts=True)
        self._counts[touched] += fresh
        if self._sorted:
            for line in touched.tolist():
                self._sorted.pop(line, None)
        self._make_room(touched[2 * self._counts[touched] > self._sizes_of(touched)])
        self._settle(lines, (groups.astype(np.uint64) << _GROUP_BITS) | (slots + 1).view(np.uint64))

    def members(self, lines: Slots) -> tuple[Slots, Slots, Slots]:
        """Returns what is in some lines, by line and group: the line's place in `lines`, the group, and the slot."""
        found = [self._of(line) for line in lines.tolist()]
        cells = np.concatenate([np.zeros(0, np.uint64), *found])
        places = np.repeat(np.arange(len(found)), [*map(len, found)])
        return places, (cells >> _GROUP_BITS).view(np.int64), _slots_of(cells)

    def slots(self) -> Slots:
        """Returns all slots."""
        return _slots_of(self._cells[self._cells != 0])

    def all(self) -> tuple[Slots, Slots, Slots]:
        """Returns the line, the group, and the slot of everything."""
        lines = np.flatnonzero(self._begins >= 0)
        places, groups, slots = self.members(lines)
        return lines[places], groups, slots

    def renumber(self, numbers: Slots) -> None:
        """Has slot i be `numbers[i]` from now on."""
        self._sorted = {}
        held = np.flatnonzero(self._cells)
        cells = self._cells[held]
        self._cells[held] = cells & ~_SLOT | (numbers[_slots_of(cells)] + 1).view(np.uint64)

    def count(self, line: int) -> int:
        """Returns how many slots are in a line."""
        return int(self._counts[line]) if line < len(self._counts) else 0

    def remove(self, line: int, slots: Slots) -> None:
        """Forgets slots of a line."""
        if not len(slots):
            return
        own = self._of(line)
        del self._sorted[line]
        begin, size = self._table_of(line)
        self._cells[begin : begin + size] = 0
        self._counts[line] -= len(slots)
        if self._counts[line]:
            kept = own[~np.isin(_slots_of(own), slots)]
            self._settle(np.full(len(kept), line), kept)
            return
        self._begins[line] = _NONE
        self._live -= size
        if self._end > 2 * self._live + _KEPT_CELLS:
            self._gather()

    # -- inside ----------------------------------------------------------------------------------------------

    def _of(self, line: int) -> Cells:
        """Returns the cells of a line, by group."""
        known = self._sorted.get(line)
        if known is not None:
            return known
        begin, size = self._table_of(line)
        cells = self._cells[begin : begin + size]
        held: Cells = cells[cells != 0]
        held.sort()
        if len(held):
            self._sorted[line] = held
        return held

    def _table_of(self, line: int) -> tuple[int, int]:
        if not self.count(line):
            return 0, 0
        return int(self._begins[line]), 1 << 64 - int(self._shifts[line])

    def _sizes_of(self, lines: Slots) -> Slots:
        sizes = np.left_shift(1, 64 - self._shifts[lines].astype(np.int64))
        return np.where(self._begins[lines] >= 0, sizes, 0)

    def _make_room(self, lines: Slots) -> None:
        """Has the tables of lines be large enough for as many as they are to hold; they are copied if they were not."""
        if not len(lines):
            return
        bits = np.maximum(np.ceil(np.log2(3 * self._counts[lines])).astype(np.int64), _LEAST_BITS)
        sizes = np.left_shift(1, bits)
        had = self._sizes_of(lines)
        if self._end + int(sizes.sum()) > 2 * (self._live + int(sizes.sum())) + _KEPT_CELLS:
            self._gather()
        begins = self._end + np.cumsum(sizes) - sizes
        self._end += int(sizes.sum())
        self._live += int((sizes - had).sum())
        if self._end > len(self._cells):
            held = [self._cells]
            del self._cells
            self._cells = grown(held, max(self._end, 2 * len(held[0]) if held else 0))
        old = lines[had > 0]
        cells = [self._of_table(begin, size)
                 for begin, size in zip(self._begins[old].tolist(), had[had > 0].tolist(), strict=True)]
        self._begins[lines], self._shifts[lines] = begins, (64 - bits).astype(np.uint64)
        if cells:
            self._settle(np.repeat(old, [*map(len, cells)]), np.concatenate(cells))

    def _of_table(self, begin: int, size: int) -> Cells:
        """Takes all cells out of a table."""
        cells = self._cells[begin : begin + size]
        held: Cells = cells[cells != 0]
        cells[:] = 0
        return held

    def _gather(self) -> None:
        """Moves the tables next to each other, into no more memory than they need."""
        lines = np.flatnonzero(self._begins >= 0)
        sizes = self._sizes_of(lines)
        begins = np.cumsum(sizes) - sizes
        cells: Cells = grown([np.zeros(0, np.uint64)], max(self._live, 1))
        for begin, old, size in zip(begins.tolist(), self._begins[lines].tolist(), sizes.tolist(), strict=True):
            cells[begin : begin + size] = self._cells[old : old + size]
        self._begins[lines] = begins
        self._cells, self._end = cells, self._live

    def _settle(self, lines: Slots, cells: Cells) -> None:
        """Puts cells into the tables of their lines: each into the first free place from its group's on."""
        row_loops().settle(self._cells, self._begins, self._shifts, *map(np.ascontiguousarray, (lines, cells)))


def _slots_of(cells: Cells) -> Slots:
    return (cells & _SLOT).view(np.int64) - 1
