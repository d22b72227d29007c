"""Finds slots by (line, group): a table of all combinations while that is small enough, else a hash table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.tasks.compute.accumulators import Slots
from penstock.tasks.compute.id_table import Ids, IdTable
from penstock.vnode.store.sorted_keys import run_starts

_SPARE_CELLS = 4_000_000
_CELLS_PER_SLOT = 8
_GROUP_BITS = np.uint64(32)
_GROUP = np.uint64(2**32 - 1)


class SlotIndex:
    """Slots by line (a small number that stands for a window) and group number, both below 2 ** 32."""

    def __init__(self) -> None:
        self._cells: npt.NDArray[np.int32] | None = np.full((8, 64), -1, np.int32)
        self._sparse = _SparseSlots()
        self.used = 0

    def find(self, lines: Slots, groups: Slots) -> Slots:
        """Returns the slot of each (line, group), -1 where there is none."""
        cells = self._cells
        if cells is None:
            return self._sparse.find(lines, groups)
        if not len(lines):
            return np.zeros(0, np.int64)
        try:
            return cells[lines, groups].astype(np.int64)
        except IndexError:
            pass  # some are outside of the table
        inside = (lines < cells.shape[0]) & (groups < cells.shape[1])
        found = np.full(len(lines), -1)
        found[inside] = cells[lines[inside], groups[inside]]
        return found

    def put(self, lines: Slots, groups: Slots, slots: Slots) -> None:
        """Notes the slots of (line, group)s that had none."""
        self.used += len(slots)
        if not len(slots):
            return
        if self._cells is not None and not self._fits(int(lines.max()), int(groups.max())):
            self._become_sparse()
        if self._cells is None:
            self._sparse.put(lines, groups, slots)
        else:
            self._cells[lines, groups] = slots

    def members(self, lines: Slots) -> tuple[Slots, Slots, Slots]:
        """Returns what is in some lines, by line and group: the line's place in `lines`, the group, and the slot."""
        cells = self._cells
        if cells is None:
            return self._sparse.members(lines)
        inside = np.flatnonzero(lines < cells.shape[0])
        rows = cells[lines[inside]]
        places, groups = np.nonzero(rows >= 0)
        return inside[places], groups, rows[places, groups].astype(np.int64)

    def count(self, line: int) -> int:
        """Returns how many slots are in a line."""
        if self._cells is None:
            return self._sparse.count(line)
        return int(np.count_nonzero(self._cells[line] >= 0)) if line < self._cells.shape[0] else 0

    def holds(self, line: int) -> bool:
        """Whether anything is in a line."""
        if self._cells is None:
            return self._sparse.holds(line)
        return line < self._cells.shape[0] and bool((self._cells[line] >= 0).any())

    def remove(self, line: int, groups: Slots, slots: Slots) -> None:
        """Forgets groups of a line, and the slots that they have."""
        self.used -= len(groups)
        if self._cells is None:
            self._sparse.remove(line, slots)
        elif line < self._cells.shape[0]:
            self._cells[line, groups] = -1

    def slots(self) -> Slots:
        """Returns all slots that anything has."""
        if self._cells is None:
            return self._sparse.slots()
        return self._cells[self._cells >= 0].astype(np.int64)

    def renumber(self, numbers: Slots) -> None:
        """Has slot i be `numbers[i]` from now on."""
        if self._cells is None:
            self._sparse.renumber(numbers)
        else:
            held = self._cells >= 0
            self._cells[held] = numbers[self._cells[held]]

    def _fits(self, line: int, group: int) -> bool:
        """Makes room in the table; returns False if it would become too large for what is in it."""
        assert self._cells is not None
        lines, groups = self._cells.shape
        while lines <= line:
            lines *= 2
        while groups <= group:
            groups *= 2
        if (lines, groups) == self._cells.shape:
            return True
        if lines * groups > _SPARE_CELLS + _CELLS_PER_SLOT * self.used:
            return False
        cells = np.full((lines, groups), -1, np.int32)
        cells[: self._cells.shape[0], : self._cells.shape[1]] = self._cells
        self._cells = cells
        return True

    def _become_sparse(self) -> None:
        assert self._cells is not None
        lines, groups = np.nonzero(self._cells >= 0)
        if len(lines):
            self._sparse.put(lines, groups, self._cells[lines, groups].astype(np.int64))
        self._cells = None


class _SparseSlots:
    """Slots by (line, group) in a hash table, and by line. No more than what there is takes memory."""

    def __init__(self) -> None:
        self._table = IdTable()
        self._lines: dict[int, list[Slots]] = {}

    def find(self, lines: Slots, groups: Slots) -> Slots:
        return self._table.find(_ids(lines, groups))

    def put(self, lines: Slots, groups: Slots, slots: Slots) -> None:
        self._table.put(_ids(lines, groups), slots)
        order = np.argsort(lines, kind="stable")
        lines, slots = lines[order], slots[order]
        begins = run_starts(lines)
        for line, some in zip(lines[begins].tolist(), np.split(slots, begins[1:]), strict=True):
            self._lines.setdefault(line, []).append(some)

    def members(self, lines: Slots) -> tuple[Slots, Slots, Slots]:
        found = [self._of(line) for line in lines.tolist()]
        slots = np.concatenate([*found, np.zeros(0, np.int64)])
        places = np.repeat(np.arange(len(found)), [*map(len, found)])
        return places, self._groups_of(slots), slots

    def slots(self) -> Slots:
        return np.concatenate([*(part for parts in self._lines.values() for part in parts), np.zeros(0, np.int64)])

    def renumber(self, numbers: Slots) -> None:
        slots, old = self.slots(), self._table
        self._table = IdTable()
        self._table.put(old.ids_of(slots), numbers[slots])
        self._lines = {line: [numbers[part] for part in parts] for line, parts in self._lines.items()}

    def count(self, line: int) -> int:
        return sum(map(len, self._lines.get(line, ())))

    def holds(self, line: int) -> bool:
        return line in self._lines

    def remove(self, line: int, slots: Slots) -> None:
        if not len(slots):
            return
        own = self._of(line)
        if len(slots) == len(own):
            del self._lines[line]
        else:
            self._lines[line] = [own[~np.isin(own, slots)]]
        self._table.remove(slots)

    def _of(self, line: int) -> Slots:
        """The slots of a line, by group."""
        parts = self._lines.get(line, [])
        if len(parts) != 1:
            slots = np.concatenate([*parts, np.zeros(0, np.int64)])
            slots = slots[np.argsort(self._groups_of(slots), kind="stable")]
            if parts:
                self._lines[line] = [slots]
            return slots
        return parts[0]

    def _groups_of(self, slots: Slots) -> Slots:
        return (self._table.ids_of(slots) & _GROUP).astype(np.int64)


def _ids(lines: Slots, groups: Slots) -> Ids:
    return (lines.astype(np.uint64) << _GROUP_BITS) | groups.astype(np.uint64)
