"""The groups without a window that an agg task keeps and may let go: all time is one window."""

from __future__ import annotations

import numpy as np

from penstock.planner.duckdb_sql.interval_windows import EVER_START
from penstock.tasks.compute.accumulators import Slots
from penstock.tasks.compute.group_index import GROUP_PREFIX
from penstock.tasks.window.slot_index import SlotIndex
from penstock.tasks.window.window_table import WindowTable


class GroupTable(WindowTable):
    """All groups of one agg task."""

    def let_go(self, groups: Slots) -> int:
        """Forgets groups, each named once; returns how many there were."""
        line = self._line(EVER_START)
        self._warm(np.array([EVER_START]), np.zeros(len(groups), np.int64), groups, range(len(self._index)))
        held = np.zeros(len(groups), bool)
        for input, index in enumerate(self._index):
            slots = index.find(np.full(len(groups), line), groups)
            present = slots >= 0
            if present.any():
                held |= present
                self._pages.note_groups(EVER_START, input, groups[present])
                index.remove(line, groups[present], slots[present])
                self._table.release(slots[present])
        self._drop_line_if_empty(EVER_START)
        return int(held.sum())

    def renumber(self, staying: Slots) -> None:
        """Forgets all groups but some, ascending, which get the numbers 0, 1, ... in their order.

        Only they hold anything. All of that comes into memory.
        """
        self.drop_empty(np.array([EVER_START]))
        line = self._line(EVER_START)
        self._warm_all(EVER_START)
        numbers = np.full(len(self.groups), -1)
        numbers[staying] = np.arange(len(staying))
        self._pages.begin_anew(EVER_START)
        self.groups.keep(staying, self._store.keys(GROUP_PREFIX, bytes([GROUP_PREFIX[0] + 1])))
        for input, index in enumerate(self._index):
            _, groups, slots = index.members(np.array([line]))
            fresh = self._index[input] = SlotIndex()
            fresh.put(np.full(len(slots), line), numbers[groups], slots)
            self._pages.note_groups(EVER_START, input, numbers[groups])
        self._drop_line_if_empty(EVER_START)
