"""Finds slots by (line, group): a table of all combinations while that is small enough, else dictionaries."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.tasks.compute.accumulators import Slots

_SPARE_CELLS = 4_000_000
_CELLS_PER_SLOT = 8


class SlotIndex:
    """Slots by line (a small number that stands for a window) and group number."""

    def __init__(self) -> None:
        self._cells: npt.NDArray[np.int32] | None = np.full((8, 64), -1, np.int32)
        self._lines: dict[int, dict[int, int]] = {}
        self.used = 0

    def find(self, lines: Slots, groups: Slots) -> Slots:
        """Returns the slot of each (line, group), -1 where there is none."""
        cells = self._cells
        if cells is None:
            empty: dict[int, int] = {}
            return np.array([self._lines.get(line, empty).get(group, -1)
                             for line, group in zip(lines.tolist(), groups.tolist(), strict=True)], np.int64)
        if not len(lines):
            return np.zeros(0, np.int64)
        if int(lines.max()) < cells.shape[0] and int(groups.max()) < cells.shape[1]:
            return cells[lines, groups].astype(np.int64)
        inside = (lines < cells.shape[0]) & (groups < cells.shape[1])
        found = np.full(len(lines), -1)
        found[inside] = cells[lines[inside], groups[inside]]
        return found

    def put(self, lines: Slots, groups: Slots, slots: Slots) -> None:
        """Notes the slots of (line, group)s that had none."""
        self.used += len(slots)
        if self._cells is not None and not self._fits(int(lines.max()), int(groups.max())):
            self._become_sparse()
        if self._cells is not None:
            self._cells[lines, groups] = slots
            return
        for line, group, slot in zip(lines.tolist(), groups.tolist(), slots.tolist(), strict=True):
            self._lines.setdefault(line, {})[group] = slot

    def members(self, lines: Slots) -> tuple[Slots, Slots, Slots]:
        """Returns what is in some lines, by line and group: the line's place in `lines`, the group, and the slot."""
        cells = self._cells
        if cells is None:
            found = [(place, group, slot) for place, line in enumerate(lines.tolist())
                     for group, slot in sorted(self._lines.get(line, {}).items())]
            triples = np.array(found, np.int64).reshape(len(found), 3)
            return triples[:, 0], triples[:, 1], triples[:, 2]
        inside = np.flatnonzero(lines < cells.shape[0])
        rows = cells[lines[inside]]
        places, groups = np.nonzero(rows >= 0)
        return inside[places], groups, rows[places, groups].astype(np.int64)

    def remove(self, line: int, groups: Slots) -> None:
        """Forgets the slots of groups of a line, all of which have one."""
        self.used -= len(groups)
        if self._cells is not None:
            if line < self._cells.shape[0]:
                self._cells[line, groups] = -1
            return
        members = self._lines.get(line, {})
        for group in groups.tolist():
            del members[group]
        if not members:
            self._lines.pop(line, None)

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
        for line, group in np.argwhere(self._cells >= 0).tolist():
            self._lines.setdefault(line, {})[group] = int(self._cells[line, group])
        self._cells = None
