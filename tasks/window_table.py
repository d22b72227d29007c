"""The windows an agg task keeps: columnar state per (input, group, window), spilled to and restored from its store.

A slot is a place in the columns. Each input (upstream source task) has slots of its own, so that a source can replace
what it contributed; results combine the slots of all inputs. Knows nothing of queues, triggers or results.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.common.errors import InternalError
from penstock.planner.stream import AggPlan, Field
from penstock.planner.windows import Grid, end_of, grid_of
from penstock.tasks.accumulators import Slots, Values, columns_for, combine
from penstock.tasks.compute import GROUP, ROWS, WINDOW_START, fields_schema
from penstock.tasks.state_store import StateStore
from penstock.tasks.user_functions import UserFunctions

ADD, REPLACE, REPLAYED = 0, 1, 2
_GROUP_PREFIX, _WINDOW_PREFIX = b"g", b"w"
_GROUP_KEY = struct.Struct(">Q")
_WINDOW_KEY = struct.Struct(">QHQ")
_SIGN = 1 << 63
_FIRST_CAPACITY = 1024


class WindowTable:
    """All windows of one agg task. `closed_until`: windows that end at or before it are closed (None: none is)."""

    def __init__(
        self, plan: AggPlan, keys: Sequence[Field], inputs: int, store: StateStore,
        functions: UserFunctions | None = None,
    ) -> None:
        """`functions` has the users' aggregates of the plan, if there are any."""
        self._grid = grid_of(plan.window, plan.precision, plan.time_zone) if plan.window is not None else None
        self._accumulators = plan.accumulators
        self._merges = [functions.merge(accumulator.function)
                        if functions is not None and accumulator.function is not None else None
                        for accumulator in plan.accumulators]
        self._key_fields = tuple(keys)
        self._fields = plan.fields
        self._store = store
        self._inputs = inputs
        self._capacity = _FIRST_CAPACITY
        self._rows: npt.NDArray[np.int64] = np.zeros(self._capacity, np.int64)
        self._columns = columns_for(self._fields, self._capacity)
        self._group_of: npt.NDArray[np.int64] = np.zeros(self._capacity, np.int64)
        self._window_of: npt.NDArray[np.int64] = np.zeros(self._capacity, np.int64)
        self._input_of: npt.NDArray[np.int64] = np.zeros(self._capacity, np.int64)
        self._dirty: npt.NDArray[np.bool_] = np.zeros(self._capacity, bool)
        self._used: npt.NDArray[np.bool_] = np.zeros(self._capacity, bool)
        self._free: list[int] = list(range(self._capacity - 1, -1, -1))
        self._slots: list[dict[tuple[int, int], int]] = [{} for _ in range(inputs)]
        self._group_index: dict[int, int] = {}
        self._group_ids: list[int] = []
        self._group_keys: list[tuple[Any, ...]] = []
        self._new_groups: list[int] = []
        self._windows: dict[int, set[int]] = {}
        self._ends: dict[int, int] = {}
        self._spilled: set[int] = set()
        self._newest_stored: int | None = None
        self._row_bytes = 64 + sum(column.dtype.itemsize + 1 for column in self._columns)
        self._codec = codec_of(self._columns)

    # -- combining -------------------------------------------------------------------------------------------

    def merge(self, partials: pa.RecordBatch, operation: int, input: int) -> dict[int, Slots]:
        """Combines partials of one input and returns the groups touched per window start.

        `partials`: `_gid`, keys, `_wstart`, `_rows`, the accumulators' fields; one row per (group, window).
        `operation`: ADD adds them, REPLACE puts them in the place of all that this input had contributed.
        """
        groups = self._groups(partials)
        starts = partials.column(WINDOW_START.name).to_numpy()
        slots = self._find(groups, starts, input)
        first_field = 3 + len(self._key_fields)
        source = [Values.of(column) for column in partials.columns[first_field:]]
        rows = partials.column(ROWS.name).to_numpy()
        if operation == REPLACE:
            self._rows[slots] = 0
            for column in self._columns:
                column.clear(slots)
        self._rows[slots] += rows
        position = 0
        for accumulator, unite in zip(self._accumulators, self._merges, strict=True):
            width = len(accumulator.fields)
            combine(accumulator, self._columns[position : position + width], slots,
                    source[position : position + width], slice(None), unite)
            position += width
        self._dirty[slots] = True
        touched: dict[int, Slots] = {}
        order = np.argsort(starts, kind="stable")
        distinct, offsets = np.unique(starts[order], return_index=True)
        for start, members in zip(distinct.tolist(), np.split(groups[order], offsets[1:]), strict=True):
            touched[start] = members
        return touched

    def state(self, start: int, groups: Slots | None) -> pa.Table:
        """Returns the combined state of a window, for these groups or for all of them: the relation `state`.

        Columns: `_gid`, keys, `_wstart`, `_rows` (0: the window has ceased to exist), the accumulators' fields.
        """
        if groups is None:
            self._load(start)
            groups = np.unique(self._group_of[self._members(start)])
        else:
            self._fetch(start, groups.tolist())
        combined_rows = np.zeros(len(groups), np.int64)
        combined = columns_for(self._fields, len(groups))
        for input in range(self._inputs):
            lookup = self._slots[input]
            found = np.fromiter((lookup.get((group, start), -1) for group in groups.tolist()), np.int64, len(groups))
            present = np.flatnonzero(found >= 0)
            if not len(present):
                continue
            slots = found[present]
            combined_rows[present] += self._rows[slots]
            position = 0
            for accumulator, unite in zip(self._accumulators, self._merges, strict=True):
                width = len(accumulator.fields)
                combine(accumulator, combined[position : position + width], present,
                        self._columns[position : position + width], slots, unite)
                position += width
        return self._table(start, groups, combined_rows, combined)

    def groups_of(self, gids: Sequence[int]) -> Slots:
        """Returns the indexes of known groups by their ids."""
        return np.array([self._group_index[gid] for gid in gids], np.int64)

    def gids_of(self, groups: Sequence[int]) -> list[int]:
        """Returns the ids of groups by their indexes."""
        return [self._group_ids[group] for group in groups]

    @property
    def grid(self) -> Grid:
        """Where windows start and end; only INTERVAL has one."""
        assert self._grid is not None
        return self._grid

    def drop_empty(self, start: int) -> None:
        """Forgets the slots of a window that hold no rows any more."""
        for slot in [slot for slot in self._windows.get(start, ()) if self._rows[slot] == 0]:
            self._store.put_many([(self._slot_key(slot), None)])
            self._release(slot)

    def clear(self, first: int, last: int, input: int) -> dict[int, Slots]:
        """Voids what an input had contributed to windows that start in [first, last]; returns its groups by window."""
        for key, value in self._stored(first, last):
            if _WINDOW_KEY.unpack(key[1:])[1] == input:
                self._adopt(key, value)
        touched: dict[int, Slots] = {}
        for start in [start for start in self._windows if first <= start <= last]:
            members = self._members(start)
            slots = members[self._input_of[members] == input]
            if not len(slots):
                continue
            self._rows[slots] = 0
            for column in self._columns:
                column.clear(slots)
            self._dirty[slots] = True
            touched[start] = self._group_of[slots]
        return touched

    def forget(self, until: int) -> None:
        """Drops the state of all windows that end at or before `until`, in memory and in the store."""
        for start in [start for start in self._windows if self.end(start) <= until]:
            for slot in self._members(start).tolist():
                self._release(slot)
        self._spilled = {start for start in self._spilled if self.end(start) > until}
        gone = [key for key, _ in self._stored(-_SIGN, until)
                if self.end(_WINDOW_KEY.unpack(key[1:])[0] - _SIGN) <= until]
        self._ends = {start: end for start, end in self._ends.items() if end > until}
        self._store.put_many((key, None) for key in gone)

    def _stored(self, first: int, last: int) -> list[tuple[bytes, bytes]]:
        """Returns what the store holds of windows that start in [first, last]."""
        if self._newest_stored is None or first > self._newest_stored:
            return []
        stop = _WINDOW_PREFIX + struct.pack(">Q", min(last + _SIGN + 1, 2**64 - 1))
        return self._store.between(_WINDOW_PREFIX + struct.pack(">Q", max(first + _SIGN, 0)), stop)

    # -- windows ---------------------------------------------------------------------------------------------

    def end(self, start: int) -> int:
        """Returns the exclusive end of the window that starts at `start`."""
        found = self._ends.get(start)
        if found is None:
            assert self._grid is not None
            found = self._ends[start] = end_of(start, self._grid)
        return found

    def starts(self) -> list[int]:
        """Returns the starts of all windows in memory or spilled while open, ascending."""
        return sorted(self._windows.keys() | self._spilled)

    @property
    def slots_used(self) -> int:
        return self._capacity - len(self._free)

    @property
    def memory_bytes(self) -> int:
        return self.slots_used * self._row_bytes

    def spill(self, bytes_max: int, closed_until: int | None) -> None:
        """Moves the oldest windows out of memory until what stays is at most `bytes_max`, closed ones first.

        Closed windows are forgotten in memory and found again when a late row asks for them.
        """
        for start in self.starts():
            if self.memory_bytes <= bytes_max:
                return
            members = self._members(start)
            if not len(members):
                continue
            self._write(members)
            for slot in members.tolist():
                self._release(slot)
            if closed_until is None or self.end(start) > closed_until:
                self._spilled.add(start)

    # -- checkpoints -----------------------------------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Hands everything that changed since the last call to the store; returns what `restore` needs besides."""
        self._write(np.flatnonzero(self._dirty & self._used))
        groups = []
        for group in self._new_groups:
            value = pickle.dumps(self._group_keys[group], protocol=5)
            groups.append((_GROUP_PREFIX + _GROUP_KEY.pack(self._group_ids[group]), value))
        self._store.put_many(groups)
        self._new_groups = []
        return {"newest_stored": self._newest_stored}

    def restore(self, meta: dict[str, Any], closed_until: int | None) -> None:
        """Loads the groups and the windows that are still open from the store."""
        self._newest_stored = meta["newest_stored"]
        for key, value in self._store.items():
            if key.startswith(_GROUP_PREFIX):
                self._restore_group(key, value)
            elif key.startswith(_WINDOW_PREFIX):
                start = _WINDOW_KEY.unpack(key[1:])[0] - _SIGN
                if closed_until is None or self.end(start) > closed_until:
                    self._adopt(key, value)
        self._new_groups = []

    def validate(self) -> None:
        """Raises InternalError if the indexes and the columns disagree."""
        indexed = sum(len(slots) for slots in self._slots)
        if indexed != self.slots_used or indexed != int(self._used.sum()):
            raise InternalError(f"{indexed} slots are indexed, {self.slots_used} are used")
        for start, members in self._windows.items():
            if not members or any(self._window_of[slot] != start for slot in members):
                raise InternalError(f"the window at {start} lists wrong slots")

    # -- inside ----------------------------------------------------------------------------------------------

    def _groups(self, partials: pa.RecordBatch) -> Slots:
        gids = partials.column(GROUP.name).to_numpy().tolist()
        index = self._group_index
        groups = [index.get(gid, -1) for gid in gids]
        if -1 in groups:
            keys = [partials.column(1 + n) for n in range(len(self._key_fields))]
            for row, group in enumerate(groups):
                if group == -1:
                    known = index.get(gids[row])
                    if known is None:
                        known = self._add_group(gids[row], tuple(key[row].as_py() for key in keys))
                    groups[row] = known
        return np.array(groups, np.int64)

    def _restore_group(self, key: bytes, value: bytes) -> None:
        (gid,) = _GROUP_KEY.unpack(key[1:])
        self._add_group(gid, pickle.loads(value))

    def _add_group(self, gid: int, keys: tuple[Any, ...]) -> int:
        group = len(self._group_ids)
        self._group_index[gid] = group
        self._group_ids.append(gid)
        self._group_keys.append(keys)
        self._new_groups.append(group)
        return group

    def _find(self, groups: Slots, starts: npt.NDArray[np.int64], input: int) -> Slots:
        """Returns the slot of each (group, window) of an input, making or loading those that aren't in memory."""
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

    def _load(self, start: int) -> None:
        """Brings a window that was spilled back into memory."""
        if start not in self._spilled:
            return
        self._spilled.discard(start)
        prefix = _WINDOW_PREFIX + struct.pack(">Q", start + _SIGN)
        for key, value in self._store.items(prefix):
            if not key.startswith(prefix):
                break
            self._adopt(key, value)

    def _fetch(self, start: int, groups: list[int]) -> None:
        """Brings what is stored of some groups of a window back into memory, for all inputs."""
        if self._newest_stored is None or start > self._newest_stored:
            return
        for input in range(self._inputs):
            keys = [self._key(start, input, group) for group in groups if (group, start) not in self._slots[input]]
            for key, value in zip(keys, self._store.get_many(keys), strict=True):
                if value is not None:
                    self._adopt(key, value)

    def _new_slot(self, group: int, start: int, input: int) -> int:
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self._slots[input][(group, start)] = slot
        self._group_of[slot], self._window_of[slot], self._input_of[slot] = group, start, input
        self._used[slot] = True
        self._windows.setdefault(start, set()).add(slot)
        return slot

    def _release(self, slot: int) -> None:
        start = int(self._window_of[slot])
        del self._slots[int(self._input_of[slot])][(int(self._group_of[slot]), start)]
        members = self._windows[start]
        members.discard(slot)
        if not members:
            del self._windows[start]
            self._ends.pop(start, None)
        self._rows[slot] = 0
        self._dirty[slot] = self._used[slot] = False
        index = np.array([slot])
        for column in self._columns:
            column.clear(index)
        self._free.append(slot)

    def _grow(self) -> None:
        old, new = self._capacity, self._capacity * 2
        for name in ("_rows", "_group_of", "_window_of", "_input_of", "_dirty", "_used"):
            array = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.zeros(old, array.dtype)]))
        for column in self._columns:
            column.grow(new)
        self._free = list(range(new - 1, old - 1, -1))
        self._capacity = new

    def _members(self, start: int) -> Slots:
        return np.array(sorted(self._windows.get(start, ())), np.int64)

    def _table(
        self, start: int, groups: Slots, rows: npt.NDArray[np.int64], columns: Sequence[Values]
    ) -> pa.Table:
        members = groups.tolist()
        arrays = [pa.array([self._group_ids[group] for group in members], pa.uint64())]
        for n, field in enumerate(fields_schema(self._key_fields)):
            arrays.append(pa.array([self._group_keys[group][n] for group in members], field.type))
        arrays.append(pa.repeat(pa.scalar(start, pa.int64()), len(members)))
        arrays.append(pa.array(rows))
        arrays += [column.arrow() for column in columns]
        schema = pa.schema([GROUP, *fields_schema(self._key_fields), WINDOW_START, ROWS, *fields_schema(self._fields)])
        return pa.Table.from_arrays(arrays, schema=schema)

    def _key(self, start: int, input: int, group: int) -> bytes:
        return _WINDOW_PREFIX + _WINDOW_KEY.pack(start + _SIGN, input, self._group_ids[group])

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

    def _adopt(self, key: bytes, value: bytes) -> None:
        biased, input, gid = _WINDOW_KEY.unpack(key[1:])
        group, start = self._group_index[gid], biased - _SIGN
        if (group, start) not in self._slots[input]:
            self._decode(self._new_slot(group, start, input), value)

    def _encode(self, slots: Slots) -> Iterable[bytes]:
        if self._codec is None:
            for slot in slots.tolist():
                values = [(column.data[slot], bool(column.valid[slot])) for column in self._columns]
                yield pickle.dumps((int(self._rows[slot]), values), protocol=5)
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
        if self._codec is None:
            rows, content = pickle.loads(value)
            self._rows[slot] = rows
            for column, (data, valid) in zip(self._columns, content, strict=True):
                column.data[slot], column.valid[slot] = data, valid
            return
        record = np.frombuffer(value, self._codec)[0]
        self._rows[slot] = record["rows"]
        for n, column in enumerate(self._columns):
            column.data[slot], column.valid[slot] = record[f"v{n}"], record[f"n{n}"]


def codec_of(columns: Sequence[Values]) -> np.dtype[Any] | None:
    """Returns the dtype of a stored slot if all its values have a fixed width, else None (then it is pickled)."""
    if any(column.dtype == np.dtype(object) for column in columns):
        return None
    fields: list[tuple[str, Any]] = [("rows", np.int64)]
    for n, column in enumerate(columns):
        fields += [(f"v{n}", column.dtype), (f"n{n}", np.bool_)]
    return np.dtype(fields)
