"""Slots that were stored in parts, combined: what one contributed to each group, in the order in which it did."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.planner.task_plans.stream_plan import WindowsPlan
from penstock.tasks.compute.accumulators import Slots
from penstock.tasks.compute.function_runtime import UserFunctions
from penstock.tasks.window.slot_codec import SlotCodec, StoredSlots
from penstock.tasks.window.slot_table import SlotTable


class SlotParts:
    """Combines parts; has room of its own, since none of them is in use."""

    def __init__(self, plan: WindowsPlan, functions: UserFunctions | None, what: str) -> None:
        """`functions` has the users' aggregates of the plan, if any. `what` names a value in errors."""
        self._table = SlotTable(plan, functions, 0)
        self._codec = SlotCodec(self._table, what, grouped=True)

    def packed(self, parts: Sequence[StoredSlots]) -> bytes:
        """Returns the value that stands for all of them, which hold something."""
        groups, slots = self._combine(parts)
        (value,) = self._codec.encoded(slots, [0], [len(slots)], groups)
        assert value is not None
        self._table.release(slots)
        return value

    def _combine(self, parts: Sequence[StoredSlots]) -> tuple[Slots, Slots]:
        """Returns the groups, and the slots that they have for now."""
        table = self._table
        parts = [part for part in parts if len(part.groups)]
        # They are ascending, of one page: its groups are few enough for a table of all.
        low = min(int(part.groups[0]) for part in parts)
        present = np.zeros(max(int(part.groups[-1]) for part in parts) + 1 - low, bool)
        for part in parts:
            present[part.groups - low] = True
        groups = np.flatnonzero(present) + low
        slots, known = table.take(len(groups)), np.zeros(len(groups), bool)
        place_of = np.cumsum(present) - 1
        for part in parts:
            places = place_of[part.groups - low]
            table.rows[slots[places]] += part.rows
            table.put(slots[places], part.values(table.columns), ~known[places])
            known[places] = True
        return groups, slots
