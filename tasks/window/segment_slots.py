"""Slots of segments: each has its group, its start, its input, and whether it is open, closed or written."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.planner.task_plans.stream_plan import END_ROWS, LAST_ROW, WindowsPlan
from penstock.tasks.compute.accumulators import Slots, Values
from penstock.tasks.compute.function_runtime import UserFunctions
from penstock.tasks.compute.growing_arrays import grown
from penstock.tasks.protocol.block_schema import ROWS
from penstock.tasks.window.slot_table import SlotTable

_SLOT_BYTES = 64
_NOTES = ("group_of", "start_of", "input_of", "dirty", "used_slots", "open", "announced")


class SegmentSlots(SlotTable):
    """What is known of each segment in memory, by its slot.

    `last_of`: the time of its newest row. `ends_of`: how many rows end it (event), None for other windows. `out`:
    whether its result is out; stored with it. `dirty`: the store has something else. `open`: its window is open still,
    where each segment is a window. `announced`: it was announced as a window that has opened.
    """

    def __init__(self, plan: WindowsPlan, functions: UserFunctions | None) -> None:
        super().__init__(plan, functions, _SLOT_BYTES, [pa.bool_()])
        names = [field.name for field in self.fields]
        self.last_of = self.columns[names.index(LAST_ROW)]
        self.ends_of: Values | None = self.columns[names.index(END_ROWS)] if END_ROWS in names else None
        self.out = self.columns[-1]
        self.group_of: npt.NDArray[np.int64] = np.zeros(self._capacity, np.int64)
        self.start_of: npt.NDArray[np.int64] = np.zeros(self._capacity, np.int64)
        self.input_of: npt.NDArray[np.int64] = np.zeros(self._capacity, np.int64)
        self.dirty: npt.NDArray[np.bool_] = np.zeros(self._capacity, bool)
        self.used_slots: npt.NDArray[np.bool_] = np.zeros(self._capacity, bool)
        self.open: npt.NDArray[np.bool_] = np.zeros(self._capacity, bool)
        self.announced: npt.NDArray[np.bool_] = np.zeros(self._capacity, bool)

    def take_for(self, groups: Slots, starts: npt.NDArray[np.int64], input: int) -> Slots:
        """Returns slots for segments of an input that start there; nothing finds them yet."""
        slots = self.take(len(groups))
        self.group_of[slots], self.start_of[slots], self.input_of[slots] = groups, starts, input
        self.used_slots[slots] = True
        return slots

    def release(self, slots: Slots) -> None:
        self.dirty[slots] = self.used_slots[slots] = self.open[slots] = self.announced[slots] = False
        super().release(slots)

    def set_out(self, slot: int, out: bool) -> None:
        """Notes whether a segment's result is out."""
        if bool(self.out.data[slot]) != out:
            self.out.data[slot] = out
            self.out.valid[slot] = True
            self.dirty[slot] = True

    def add(self, slots: Slots, partials: pa.RecordBatch, rows: Slots | slice, first_field: int) -> None:
        """Combines rows of partials, whose accumulators' fields begin at `first_field`, into distinct slots."""
        source = [Values.of(column) for column in partials.columns[first_field:]]
        self.rows[slots] += partials.column(ROWS.name).to_numpy()[rows]
        self.combine(self.columns, slots, source, rows)
        self.dirty[slots] = True

    def _grow(self, count: int) -> None:
        super()._grow(count)
        for name in _NOTES:
            held = [getattr(self, name)]
            delattr(self, name)
            setattr(self, name, grown(held, self._capacity))
