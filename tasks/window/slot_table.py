"""Slots: columnar state per (input, group, window), below the windows on a grid and those that rows define.

A slot is a place in the columns. Which window of which group it holds, and where that is stored, the tables above know.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.planner.task_plans.stream_plan import WindowsPlan
from penstock.tasks.compute.accumulators import Slots, Values, columns_for, combine, merges_of
from penstock.tasks.compute.function_runtime import UserFunctions
from penstock.tasks.compute.growing_arrays import grown

_FIRST_CAPACITY = 1024


class SlotTable:
    """`rows`: how many rows each slot holds. `columns`: the accumulators' `fields`, then what `more` adds.

    `slot_bytes`: what a slot takes, but for values without a bound.
    """

    def __init__(self, plan: WindowsPlan, functions: UserFunctions | None, slot_bytes: int,
                 more: Sequence[pa.DataType] = ()) -> None:
        """`functions` has the users' aggregates of the plan, if any; `slot_bytes`: what a slot takes but for values."""
        self.fields = plan.fields
        self._accumulators = plan.accumulators
        self._merges = merges_of(plan.accumulators, functions)
        self._capacity = _FIRST_CAPACITY
        self.rows: npt.NDArray[np.int64] = np.zeros(self._capacity, np.int64)
        self.columns = columns_for(self.fields, self._capacity)
        self.slot_bytes = slot_bytes + sum(column.dtype.itemsize + 1 for column in self.columns)
        self.columns += [Values.empty(type_, self._capacity) for type_ in more]
        # Slots from `_fresh` on were never used; of those before, the first `_free_count` of `_free` are free.
        self._fresh = 0
        self._free: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._free_count = 0

    @property
    def used(self) -> int:
        return self._fresh - self._free_count

    @property
    def capacity(self) -> int:
        """How many slots there is room for: what they take is taken, be they used or not."""
        return self._capacity

    @property
    def memory_bytes(self) -> int:
        return self.used * self.slot_bytes + sum(column.held for column in self.columns)

    def take(self, count: int) -> Slots:
        """Returns slots that hold nothing."""
        again = min(count, self._free_count)
        self._free_count -= again
        slots = self._free[self._free_count : self._free_count + again]
        if again == count:
            return slots.copy()
        first, self._fresh = self._fresh, self._fresh + count - again
        if self._fresh > self._capacity:
            self._grow(self._fresh)
        return np.concatenate([slots, np.arange(first, self._fresh)])

    def release(self, slots: Slots) -> None:
        """Empties slots and gives them back."""
        self.clear(slots)
        count = self._free_count + len(slots)
        if count > len(self._free):
            self._free = np.concatenate([self._free, np.zeros(max(count - len(self._free), len(self._free)), np.int64)])
        self._free[self._free_count : count] = slots
        self._free_count = count

    def keep(self, slots: Slots, capacity: int) -> None:
        """Gives memory back: these slots, all that are used, become 0, 1, ... of at least `capacity`."""
        capacity = max(capacity, len(slots), _FIRST_CAPACITY)
        rows = np.zeros(capacity, np.int64)
        rows[: len(slots)] = self.rows[slots]
        self.rows = rows
        for column in self.columns:
            column.keep(slots, capacity)
        self._capacity, self._fresh = capacity, len(slots)
        self._free, self._free_count = np.zeros(0, np.int64), 0

    def clear(self, slots: Slots) -> None:
        self.rows[slots] = 0
        for column in self.columns:
            column.clear(slots)

    def put(self, slots: Slots, source: Sequence[Values], fresh: npt.NDArray[np.bool_] | None) -> None:
        """Combines one row of `source` into each slot; `fresh` slots hold nothing yet (None: all hold something)."""
        if fresh is None:
            self.combine(self.columns, slots, source, slice(None))
            return
        if fresh.all():
            for column, values in zip(self.columns, source, strict=True):
                column.set(slots, values, slice(None))
            return
        new, rows = np.flatnonzero(fresh), np.flatnonzero(~fresh)
        for column, values in zip(self.columns, source, strict=True):
            column.set(slots[new], values, new)
        self.combine(self.columns, slots[rows], source, rows)

    def combine(
        self, target: Sequence[Values], slots: Slots, source: Sequence[Values], rows: Slots | slice
    ) -> None:
        """Combines `source[rows]` into `target[slots]`, both with the accumulators' fields first."""
        position = 0
        for accumulator, unite in zip(self._accumulators, self._merges, strict=True):
            end = position + len(accumulator.fields)
            combine(accumulator, target[position:end], slots, source[position:end], rows, unite)
            position = end

    def _grow(self, count: int) -> None:
        """Makes room for `count` slots and as many more as there is room for now."""
        while self._capacity < count:
            self._capacity *= 2
        rows = [self.rows]
        del self.rows
        self.rows = grown(rows, self._capacity)
        for column in self.columns:
            column.grow(self._capacity)
