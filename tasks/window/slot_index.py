"""Finds slots by (line, group): a table of all combinations while that is small enough, else hash tables."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from penstock.tasks.compute.accumulators import Slots
from penstock.tasks.compute.growing_arrays import grown
from penstock.tasks.window.line_cells import LineCells

Cells = npt.NDArray[np.int32]

_FIRST_LINES, _FIRST_GROUPS = 8, 64
_CHUNK_BITS = 12  # of groups in a chunk, once there are several
_SPARE_CELLS = 4_000_000
_CELLS_PER_SLOT = 8


class SlotIndex:
    """Slots by line (a small number that stands for a window) and group number, both below 2 ** 32."""

    def __init__(self) -> None:
        #: how many the table has, or would have: powers of 2
        self._lines, self._groups = _FIRST_LINES, _FIRST_GROUPS
        #: cells by the group's chunk, the line, and the group within the chunk: the slot and 1, 0 for none
        self._cells: Cells | None = None
        self._flat: Cells | None = None
        self._set_cells(np.zeros(_FIRST_LINES * _FIRST_GROUPS, np.int32))
        self._sparse = LineCells()
        self.used = 0

    def find(self, lines: Slots, groups: Slots) -> Slots:
        """Returns the slot of each (line, group), -1 where there is none."""
        cells = self._cells
        if cells is None:
            return self._sparse.find(lines, groups)
        if not len(lines):
            return np.zeros(0, np.int64)
        try:
            found: Slots = cells[_places(cells, lines, groups)].astype(np.int64)
        except IndexError:  # some are outside of the table
            chunks, line_count, chunk = cells.shape
            inside = (lines < line_count) & (groups < chunks * chunk)
            found = np.zeros(len(lines), np.int64)
            found[inside] = cells[_places(cells, lines[inside], groups[inside])]
        found -= 1
        return found

    def put(self, lines: Slots, groups: Slots, slots: Slots) -> None:
        """Notes the slots of (line, group)s that had none."""
        self.used += len(slots)
        if not len(slots):
            return
        self._lines = _doubled(self._lines, int(lines.max()))
        self._groups = _doubled(self._groups, int(groups.max()))
        if self._lines * self._groups <= _SPARE_CELLS + _CELLS_PER_SLOT * self.used:
            self._make_room()
        elif self._cells is not None and self._cells.shape != self._shape():
            self._become_sparse()
        if self._cells is None:
            self._sparse.put(lines, groups, slots)
        else:
            self._cells[_places(self._cells, lines, groups)] = slots + 1

    def members(self, lines: Slots) -> tuple[Slots, Slots, Slots]:
        """Returns what is in some lines, by line and group: the line's place in `lines`, the group, and the slot."""
        cells = self._cells
        if cells is None:
            return self._sparse.members(lines)
        chunks, line_count, chunk = cells.shape
        inside = np.flatnonzero(lines < line_count)
        if chunks == 1:
            rows = cells[0, lines[inside]]
        else:
            rows = np.empty((len(inside), chunks * chunk), np.int32)
            for row, line in zip(rows, lines[inside].tolist(), strict=True):
                row.reshape(chunks, chunk)[:] = cells[:, line]
        places, groups = np.nonzero(rows)
        slots = rows[places, groups].astype(np.int64)
        slots -= 1
        return inside[places], groups, slots

    def count(self, line: int) -> int:
        """Returns how many slots are in a line."""
        if self._cells is None:
            return self._sparse.count(line)
        return int(np.count_nonzero(self._cells[:, line])) if line < self._cells.shape[1] else 0

    def holds(self, line: int) -> bool:
        """Whether anything is in a line."""
        if self._cells is None:
            return self._sparse.count(line) > 0
        return line < self._cells.shape[1] and bool(self._cells[:, line].any())

    def remove(self, line: int, groups: Slots, slots: Slots) -> None:
        """Forgets groups of a line, and the slots that they have."""
        self.used -= len(groups)
        if self._cells is None:
            self._sparse.remove(line, slots)
        elif line < self._cells.shape[1]:
            self._cells[_places(self._cells, np.full(len(groups), line), groups)] = 0

    def slots(self) -> Slots:
        """Returns all slots that anything has."""
        if self._cells is None:
            return self._sparse.slots()
        return self._cells[self._cells > 0].astype(np.int64) - 1

    def renumber(self, numbers: Slots) -> None:
        """Has slot i be `numbers[i]` from now on."""
        if self._cells is None:
            self._sparse.renumber(numbers)
        else:
            held = self._cells > 0
            self._cells[held] = numbers[self._cells[held] - 1] + 1

    def _shape(self) -> tuple[int, int, int]:
        chunk = min(self._groups, 1 << _CHUNK_BITS)
        return self._groups // chunk, self._lines, chunk

    def _set_cells(self, flat: Cells) -> None:
        self._flat, self._cells = flat, flat.reshape(self._shape())

    def _make_room(self) -> None:
        """Has the table be as large as it is to be, if it isn't."""
        before, shape = self._cells, self._shape()
        if before is not None and before.shape == shape:
            return
        if before is not None and before.shape[1:] == shape[1:]:
            # Further chunks are behind the others: nothing moves.
            assert self._flat is not None
            flat = [self._flat]
            before = self._cells = self._flat = None
            self._set_cells(grown(flat, math.prod(shape)))
            return
        self._set_cells(grown([np.zeros(0, np.int32)], math.prod(shape)))
        assert self._cells is not None
        if before is not None:
            chunks, lines, groups = before.shape
            self._cells[:chunks, :lines, :groups] = before
        else:
            lines_of, groups_of, slots = self._sparse.all()
            self._cells[_places(self._cells, lines_of, groups_of)] = slots + 1
            self._sparse = LineCells()

    def _become_sparse(self) -> None:
        assert self._cells is not None
        chunks, lines, groups = np.nonzero(self._cells)
        if len(lines):
            slots = self._cells[chunks, lines, groups].astype(np.int64) - 1
            self._sparse.put(lines, chunks * self._cells.shape[2] + groups, slots)
        self._cells = self._flat = None


def _places(cells: Cells, lines: Slots, groups: Slots) -> tuple[int | Slots, Slots, Slots]:
    """Returns where (line, group)s are; beyond the last chunk, line or group if there is no room for one."""
    if len(cells) == 1:
        return 0, lines, groups
    return groups >> _CHUNK_BITS, lines, groups & ((1 << _CHUNK_BITS) - 1)


def _doubled(count: int, last: int) -> int:
    """Returns a count doubled until it has a place for `last`."""
    while count <= last:
        count *= 2
    return count
