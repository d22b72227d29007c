"""Slots by (input, group, start): columnar state that is written to and read from a store one slot at a time.

A slot is a place in the columns. For windows that rows define, of which a group has few in memory; windows on a grid
are kept by `tasks.window_table`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.common.errors import InternalError
from penstock.planner.task_plans.stream_plan import Field, WindowsPlan
from penstock.tasks.compute.accumulators import Slots, Values, columns_for, merges_of
from penstock.tasks.compute.function_runtime import UserFunctions
from penstock.tasks.compute.group_index import GroupIndex
from penstock.tasks.protocol.block_schema import ROWS
from penstock.tasks.state.old_pickles import is_pickle
from penstock.tasks.state.state_store import StateStore
from penstock.tasks.state.stored_values import damaged, pack_batch, unpack, unpack_batch

_FIRST_CAPACITY = 1024
_WHAT = "a window of a task"


class SlotTable:
    """What `tasks.segment_table` builds on: slots, their columns, and their place in the store."""

    def __init__(
        self, plan: WindowsPlan, keys: Sequence[Field], inputs: int, store: StateStore,
        functions: UserFunctions | None = None,
    ) -> None:
        """`functions` has the users' aggregates of the plan, if there are any."""
        self._accumulators = plan.accumulators
        self._merges = merges_of(plan.accumulators, functions)
        self._fields = plan.fields
        self._store = store
        self._inputs = inputs
        self.groups = GroupIndex(keys)
        self._capacity = _FIRST_CAPACITY
        self._rows: npt.NDArray[np.int64] = np.zeros(self._capacity, np.int64)
        self._columns = columns_for(self._fields, self._capacity)
        self._group_of: npt.NDArray[np.int64] = np.zeros(self._capacity, np.int64)
        self._window_of: npt.NDArray[np.int64] = np.zeros(self._capacity, np.int64)
        self._input_of: npt.NDArray[np.int64] = np.zeros(self._capacity, np.int64)
        self._dirty: npt.NDArray[np.bool_] = np.zeros(self._capacity, bool)
        self._used: npt.NDArray[np.bool_] = np.zeros(self._capacity, bool)
        self._open: npt.NDArray[np.bool_] = np.zeros(self._capacity, bool)
        self._announced: npt.NDArray[np.bool_] = np.zeros(self._capacity, bool)
        self._free: list[int] = list(range(self._capacity - 1, -1, -1))
        self._slots: list[dict[tuple[int, int], int]] = [{} for _ in range(inputs)]
        self._newest_stored: int | None = None
        self._row_bytes = 64 + sum(column.dtype.itemsize + 1 for column in self._columns)
        self._codec = codec_of(self._columns)

    @property
    def slots_used(self) -> int:
        return self._capacity - len(self._free)

    @property
    def memory_bytes(self) -> int:
        return self.slots_used * self._row_bytes + sum(column.held for column in self._columns)

    def save(self) -> dict[str, Any]:
        """Hands everything that changed since the last call to the store; returns what `restore` needs besides."""
        self._write(np.flatnonzero(self._dirty & self._used))
        self._store.put_many(self.groups.unsaved())
        return {"newest_stored": self._newest_stored}

    def validate(self) -> None:
        """Raises InternalError if the indexes and the columns disagree."""
        indexed = sum(len(slots) for slots in self._slots)
        if indexed != self.slots_used or indexed != int(self._used.sum()):
            raise InternalError(f"{indexed} slots are indexed, {self.slots_used} are used")

    def _key(self, start: int, input: int, group: int) -> bytes:
        raise NotImplementedError

    def _find(self, groups: Slots, starts: npt.NDArray[np.int64], input: int) -> Slots:
        """Returns the slot of each (group, start) of an input, making or loading those that aren't in memory."""
        lookup = self._slots[input]
        keys = list(zip(groups.tolist(), starts.tolist(), strict=True))
        slots = [lookup.get(key, -1) for key in keys]
        missing = [n for n, slot in enumerate(slots) if slot == -1]
        if missing:
            stored = [n for n in missing if self._newest_stored is not None and keys[n][1] <= self._newest_stored]
            values = self._store.get_many(self._key(keys[n][1], input, keys[n][0]) for n in stored)
            known = {n: value for n, value in zip(stored, values, strict=True) if value is not None}
            for n in missing:
                slot = slots[n] = self._new_slot(keys[n][0], keys[n][1], input)
                if n in known:
                    self._decode(slot, known[n])
        return np.array(slots, np.int64)

    def _new_slot(self, group: int, start: int, input: int) -> int:
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self._slots[input][(group, start)] = slot
        self._group_of[slot], self._window_of[slot], self._input_of[slot] = group, start, input
        self._used[slot] = True
        return slot

    def _take(self, groups: Slots, starts: npt.NDArray[np.int64]) -> Slots:
        """Returns new slots of the first input, which are not indexed yet."""
        while len(self._free) < len(groups):
            self._grow()
        slots = np.array(self._free[len(self._free) - len(groups):], np.int64)
        del self._free[len(self._free) - len(groups):]
        self._group_of[slots], self._window_of[slots], self._input_of[slots] = groups, starts, 0
        self._used[slots] = True
        return slots

    def _release(self, slot: int) -> None:
        start = int(self._window_of[slot])
        del self._slots[int(self._input_of[slot])][(int(self._group_of[slot]), start)]
        self._rows[slot] = 0
        self._dirty[slot] = self._used[slot] = self._open[slot] = self._announced[slot] = False
        index = np.array([slot])
        for column in self._columns:
            column.clear(index)
        self._free.append(slot)

    def _grow(self) -> None:
        old, new = self._capacity, self._capacity * 2
        for name in ("_rows", "_group_of", "_window_of", "_input_of", "_dirty", "_used", "_open", "_announced"):
            array = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.zeros(old, array.dtype)]))
        for column in self._columns:
            column.grow(new)
        self._free = list(range(new - 1, old - 1, -1)) + self._free
        self._capacity = new

    def _slot_key(self, slot: int) -> bytes:
        return self._key(int(self._window_of[slot]), int(self._input_of[slot]), int(self._group_of[slot]))

    def _write(self, slots: Slots) -> None:
        slots = slots[self._dirty[slots]]
        if not len(slots):
            return
        self._store.put_many(zip((self._slot_key(slot) for slot in slots.tolist()), self._encode(slots), strict=True))
        self._dirty[slots] = False
        newest = int(self._window_of[slots].max())
        self._newest_stored = newest if self._newest_stored is None else max(newest, self._newest_stored)

    def _encode(self, slots: Slots) -> Iterable[bytes]:
        if self._codec is None:
            arrays = [pa.array(self._rows[slots]), *(column.take(slots).arrow() for column in self._columns)]
            batch = pa.RecordBatch.from_arrays(arrays, schema=stored_schema([ROWS], self._columns))
            for n in range(len(slots)):
                yield pack_batch(batch.slice(n, 1))
            return
        records = np.zeros(len(slots), self._codec)
        records["rows"] = self._rows[slots]
        for n, column in enumerate(self._columns):
            records[f"v{n}"] = column.data[slots]
            records[f"n{n}"] = column.valid[slots]
        content, size = records.tobytes(), self._codec.itemsize
        for n in range(len(slots)):
            yield content[n * size : (n + 1) * size]

    def _decode(self, slot: int, value: bytes) -> None:
        self._announced[slot] = True  # before it was stored
        if self._codec is None:
            self._decode_objects(np.array([slot]), value)
            return
        if len(value) != self._codec.itemsize:
            raise damaged(_WHAT, f"it has {len(value)} bytes instead of {self._codec.itemsize}")
        record = np.frombuffer(value, self._codec)[0]
        self._rows[slot] = record["rows"]
        for n, column in enumerate(self._columns):
            column.data[slot], column.valid[slot] = record[f"v{n}"], record[f"n{n}"]

    def _decode_objects(self, slot: Slots, value: bytes) -> None:
        if is_pickle(value):
            rows, content = unpack(value, _WHAT)
            found = [Values.of(pa.array([data if valid else None], column.type))
                     for column, (data, valid) in zip(self._columns, content, strict=True)]
        else:
            batch = unpack_batch(value, stored_schema([ROWS], self._columns), _WHAT)
            if batch.num_rows != 1:
                raise damaged(_WHAT, f"it has {batch.num_rows} rows")
            rows, *found = batch.column(0)[0].as_py(), *map(Values.of, batch.columns[1:])
        self._rows[slot] = rows
        for column, values in zip(self._columns, found, strict=True):
            column.set(slot, values, slice(None))


def stored_schema(first: Sequence[pa.Field], columns: Sequence[Values]) -> pa.Schema:
    """Returns the schema of stored slots with values of no fixed width: some fields, and one per column."""
    return pa.schema([*first, *(pa.field(f"v{n}", column.type) for n, column in enumerate(columns))])


def codec_of(columns: Sequence[Values]) -> np.dtype[Any] | None:
    """Returns the dtype of a stored slot if all its values have a fixed width, else None (then it is a batch)."""
    if any(column.dtype == np.dtype(object) for column in columns):
        return None
    fields: list[tuple[str, Any]] = [("rows", np.int64)]
    for n, column in enumerate(columns):
        fields += [(f"v{n}", column.dtype), (f"n{n}", np.bool_)]
    return np.dtype(fields)
