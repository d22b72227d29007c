"""The windows an agg task keeps: columnar state per (input, group, window), spilled to and restored from its store.

A slot is a place in the columns. Each input (upstream source task) has slots of its own, so that a source can replace
what it contributed; results combine the slots of all inputs. A window is in memory as a whole or not at all; the store
holds it in chunks of neighbouring groups. Knows nothing of queues, triggers or results.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.common.errors import InternalError
from penstock.common.masks import all_set, any_set
from penstock.planner.duckdb_sql.interval_windows import Grid, end_of
from penstock.planner.task_plans.stream_plan import Field, TimeWindows, WindowsPlan
from penstock.tasks.compute.accumulators import Slots, Values, columns_for
from penstock.tasks.compute.function_runtime import UserFunctions
from penstock.tasks.compute.group_index import GROUP_PREFIX, GroupIndex
from penstock.tasks.compute.partial_columns import PartialColumns
from penstock.tasks.protocol.block_schema import GROUP, REPLACE, ROWS, WINDOW_START, fields_schema
from penstock.tasks.state.state_store import StateStore
from penstock.tasks.state.stored_values import damaged
from penstock.tasks.window.slot_codec import SlotCodec
from penstock.tasks.window.slot_index import SlotIndex
from penstock.tasks.window.slot_table import SlotTable
from penstock.tasks.window.window_state import WindowState
from penstock.vnode.store.sorted_keys import run_starts

_PREFIX = b"w"
_CHUNK_KEY = struct.Struct(">QHI")
_CHUNK_KEYS = np.dtype([("prefix", "S1"), ("start", ">u8"), ("input", ">u2"), ("chunk", ">u4")])
_SIGN = 1 << 63
_BEHIND_ALL = b"\xff" * 7  # behind the input and the chunk of any key
_SLOT_BYTES = 48
_NUMBERED_MIN = 1024
_CHUNK_GROUPS = 4_096
_NUMBERED_SPAN = 4
_WRITTEN_CELLS = 1 << 20
_KEPT_CAPACITY, _SPARE_CAPACITY, _LOOKS_PER_PERIOD = 1 << 16, 4, 16
_WHAT = "windows of a task"

Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Touched:
    """(group, window)s that a block changed: group `groups[i]` of the window that starts at `starts[which[i]]`."""

    starts: Times
    which: Slots
    groups: Slots

    def groups_of(self, place: int) -> Slots:
        """Returns the groups that were touched in the window `starts[place]`."""
        return self.groups if len(self.starts) == 1 else self.groups[self.which == place]


def united(parts: Sequence[Touched]) -> Touched:
    """Returns what any of the blocks touched, each (group, window) once; there is at least one."""
    if len(parts) == 1:
        return parts[0]
    starts, which = np.unique(np.concatenate([part.starts[part.which] for part in parts]), return_inverse=True)
    groups = np.concatenate([part.groups for part in parts])
    span = int(groups.max(initial=0)) + 1
    distinct = _distinct(which * span + groups)
    return Touched(starts, distinct // span, distinct % span)


class WindowTable:
    """All windows of one agg task. `closed_until`: windows that end at or before it are closed (None: none is)."""

    def __init__(
        self, plan: WindowsPlan, keys: Sequence[Field], inputs: int, store: StateStore,
        functions: UserFunctions | None = None,
    ) -> None:
        """`functions` has the users' aggregates of the plan, if there are any."""
        assert isinstance(plan.windows, TimeWindows)
        self.grid: Grid = plan.windows.grid
        self._regular = self.grid.zone is None and not self.grid.step_months and not self.grid.width_months
        self._table = SlotTable(plan, functions, _SLOT_BYTES)
        self._codec = SlotCodec(self._table, _WHAT, grouped=True)
        self._store = store
        self._inputs = inputs
        self.groups = GroupIndex(keys)
        self._index = [SlotIndex() for _ in range(inputs)]
        self._line_of: dict[int, int] = {}
        self._free_lines: list[int] = []
        self._ends: dict[int, int] = {}
        self._spilled: set[int] = set()
        self._dirty: set[tuple[int, int, int]] = set()
        self._emptied: set[int] = set()
        self._newest_stored: int | None = None
        self._most_used = self._looks = 0

    # -- combining -------------------------------------------------------------------------------------------

    def merge(self, partials: PartialColumns, operation: int, input: int) -> Touched:
        """Combines partials of one input and returns what they touched.

        `operation`: ADD adds them, REPLACE puts them in the place of all that this input had contributed.
        """
        groups = self.groups.intern_ids(partials.groups, partials.keys)
        starts, which = self._distinct(partials.starts)
        lines = self._lines(starts.tolist())[which]
        index = self._index[input]
        slots = index.find(lines, groups)
        missing = slots < 0
        fresh = any_set(missing)
        if fresh:
            slots[missing] = self._table.take(int(missing.sum()))
            index.put(lines[missing], groups[missing], slots[missing])
        rows = partials.rows
        if operation == REPLACE:
            self._table.clear(slots)
            missing[:] = fresh = True
        if not all_set(rows):
            self._emptied.update(starts[np.unique(which[rows == 0])].tolist())
        self._table.rows[slots] += rows
        self._table.put(slots, partials.fields, missing if fresh else None)
        self._note_dirty(starts, which, groups, input)
        return Touched(starts, which, groups)

    def state(self, starts: Times, groups: Slots) -> WindowState:
        """Returns the combined state of (window, group)s, in their order."""
        distinct, which = self._distinct(starts)
        lines = self._lines(distinct.tolist())[which]
        combined_rows = np.zeros(len(groups), np.int64)
        combined: list[Values] | None = None
        for index in self._index:
            found = index.find(lines, groups)
            present = (found >= 0).nonzero()[0]
            if not len(present):
                continue
            slots = found[present]
            combined_rows[present] += self._table.rows[slots]
            if combined is None and len(present) == len(groups):
                combined = [column.take(slots) for column in self._table.columns]
                continue
            if combined is None:
                combined = columns_for(self._table.fields, len(groups))
            self._table.combine(combined, present, self._table.columns, slots)
        if combined is None:
            combined = columns_for(self._table.fields, len(groups))
        return WindowState(self.groups, groups, starts, combined_rows, self._table.fields, combined)

    def members(self, starts: Sequence[int]) -> tuple[Slots, Slots]:
        """Returns the (window, group)s of some windows, ordered so: the window's place in `starts`, and the group."""
        lines = self._lines(starts)
        found = [index.members(lines)[:2] for index in self._index]
        if len(found) == 1:
            return found[0]
        count = max(len(self.groups), 1)
        both = _distinct(np.concatenate([places * count + groups for places, groups in found]))
        return both // count, both % count

    def contributed(self, start: int, input: int) -> pa.RecordBatch:
        """Returns what an input contributed to a window, as a batch of partials."""
        _, groups, slots = self._index[input].members(np.array([self._line(start)]))
        return self._partials(start, groups, slots)

    def stored(self) -> Iterator[int]:
        """Yields the starts of all windows, also of those that are not in memory, ascending."""
        self._write(self._dirty.copy())
        self._store.flush()
        key = _PREFIX
        while (found := self._store.neighbour(key, _PREFIX, forward=True)) is not None:
            start = _start_of(found)
            yield start
            key = _PREFIX + struct.pack(">Q", start + _SIGN) + _BEHIND_ALL

    def give_up(self, leaving: npt.NDArray[np.bool_]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Takes groups (true at their numbers) out of all windows.

        Yields what each input contributed: it and a batch of partials. The groups keep their numbers.
        """
        for start in self.stored():
            line = self._line(start)
            for input, index in enumerate(self._index):
                _, groups, slots = index.members(np.array([line]))
                gone = leaving[groups]
                if gone.any():
                    yield input, self._partials(start, groups[gone], slots[gone])
                    self._note_chunks(start, input, groups[gone])
                    index.remove(line, groups[gone], slots[gone])
                    self._table.release(slots[gone])
            self._drop_line_if_empty(start)

    def _partials(self, start: int, groups: Slots, slots: Slots) -> pa.RecordBatch:
        arrays = [pa.array(self.groups.ids(groups)), *self.groups.key_columns(groups),
                  pa.array(np.full(len(groups), start)), pa.array(self._table.rows[slots]),
                  *(column.take(slots).arrow() for column in self._table.columns)]
        schema = pa.schema([GROUP, *self.groups.key_fields, WINDOW_START, ROWS, *fields_schema(self._table.fields)])
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def drop_empty(self, starts: Times) -> None:
        """Forgets the slots of windows that hold no rows any more."""
        if not self._emptied:
            return
        for start in self._emptied.intersection(np.unique(starts).tolist()):
            self._emptied.discard(start)
            line = self._line_of.get(start)
            if line is None:
                continue
            for input, index in enumerate(self._index):
                _, groups, slots = index.members(np.array([line]))
                gone = self._table.rows[slots] == 0
                if gone.any():
                    self._note_chunks(start, input, groups[gone])
                    index.remove(line, groups[gone], slots[gone])
                    self._table.release(slots[gone])
            self._drop_line_if_empty(start)

    def clear(self, first: int, last: int, input: int) -> dict[int, Slots]:
        """Voids what an input had contributed to windows that start in [first, last]; returns its groups by window."""
        for start in {_start_of(key) for key, _ in self._stored(first, last)}:
            self._line(start)
        touched: dict[int, Slots] = {}
        for start in [start for start in self._line_of if first <= start <= last]:
            _, groups, slots = self._index[input].members(np.array([self._line_of[start]]))
            if not len(slots):
                continue
            self._table.clear(slots)
            self._note_chunks(start, input, groups)
            self._emptied.add(start)
            touched[start] = groups
        return touched

    def forget(self, until: int, keeps: Callable[[int], bool]) -> None:
        """Drops the state of the windows that end at or before `until`, in memory and in the store.

        Those stay for whose start `keeps` is true.
        """
        def goes(start: int) -> bool:
            return self.end(start) <= until and not keeps(start)

        self._give_back()
        for start in [start for start in self._line_of if goes(start)]:
            self._drop_line(start)
        self._spilled = {start for start in self._spilled if not goes(start)}
        self._dirty = {chunk for chunk in self._dirty if not goes(chunk[0])}
        self._emptied = {start for start in self._emptied if not goes(start)}
        gone = [key for key, _ in self._stored(-_SIGN, until) if goes(_start_of(key))]
        self._ends = {start: end for start, end in self._ends.items() if end > until}
        self._store.put_many((key, None) for key in gone)

    def _give_back(self) -> None:
        """Gives memory back that wasn't needed for a while: room for slots, most of which nobody used."""
        self._most_used = max(self._most_used, self._table.used)
        self._looks += 1
        if self._looks < _LOOKS_PER_PERIOD:
            return
        most, self._most_used, self._looks = self._most_used, self._table.used, 0
        if self._table.capacity <= max(_KEPT_CAPACITY, _SPARE_CAPACITY * most):
            return
        slots = np.concatenate([index.slots() for index in self._index])
        numbers = np.full(self._table.capacity, -1)
        numbers[slots] = np.arange(len(slots))
        self._table.keep(slots, 2 * most)
        for index in self._index:
            index.renumber(numbers)

    # -- windows ---------------------------------------------------------------------------------------------

    def end(self, start: int) -> int:
        """Returns the exclusive end of the window that starts at `start`."""
        if self._regular:
            return start + self.grid.width
        found = self._ends.get(start)
        if found is None:
            found = self._ends[start] = end_of(start, self.grid)
        return found

    def ends(self, starts: Times) -> Times:
        """Returns the exclusive ends of the windows with these starts."""
        if self._regular:
            return starts + self.grid.width
        return np.array([self.end(start) for start in starts.tolist()], np.int64)

    @property
    def step(self) -> int:
        """From one start to the next at least: what a calendar says differs."""
        return self.grid.step if self._regular else 1

    def starts(self) -> list[int]:
        """Returns the starts of all windows in memory or spilled while open, ascending."""
        return sorted(self._line_of.keys() | self._spilled)

    @property
    def slots_used(self) -> int:
        return self._table.used

    @property
    def memory_bytes(self) -> int:
        return self._table.memory_bytes

    def spill(self, bytes_max: int, closed_until: int | None) -> None:
        """Moves the oldest windows out of memory until what stays is at most `bytes_max`.

        Closed windows are forgotten in memory and found again when a late row asks for them.
        """
        if self.memory_bytes <= bytes_max:
            return
        dirty: dict[int, list[tuple[int, int, int]]] = {}
        for chunk in self._dirty:
            dirty.setdefault(chunk[0], []).append(chunk)
        for start in sorted(self._line_of):
            if self.memory_bytes <= bytes_max:
                return
            self._write(dirty.get(start, ()))
            self._drop_line(start)
            if closed_until is None or self.end(start) > closed_until:
                self._spilled.add(start)

    # -- checkpoints -----------------------------------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Hands everything that changed since the last call to the store; returns what `restore` needs besides."""
        self._write(self._dirty.copy())
        self._store.put_many(self.groups.unsaved())
        return {"newest_stored": self._newest_stored}

    def restore(self, meta: dict[str, Any], closed_until: int | None) -> None:
        """Loads the groups and the windows that are still open from the store."""
        self._newest_stored = meta["newest_stored"]
        self.groups.restore([(key, value) for key, value in self._store.items(GROUP_PREFIX)
                             if key.startswith(GROUP_PREFIX)])
        newest = -_SIGN if self._newest_stored is None else self._newest_stored
        oldest = -_SIGN if closed_until is None else closed_until - self.grid.longest
        for start in {_start_of(key) for key, _ in self._stored(oldest, newest)}:
            if closed_until is None or self.end(start) > closed_until:
                self._line(start)

    def validate(self) -> None:
        """Raises InternalError if the indexes and the columns disagree."""
        lines = np.array([*self._line_of.values()], np.int64)
        slots = [slot for index in self._index for slot in index.members(lines)[2].tolist()]
        if len(slots) != self.slots_used or len(set(slots)) != len(slots):
            raise InternalError(f"{len(slots)} slots are indexed, {self.slots_used} are used")

    # -- inside ----------------------------------------------------------------------------------------------

    def _distinct(self, starts: Times) -> tuple[Times, Slots]:
        """Returns the distinct starts, ascending, and which of them each is."""
        if not len(starts):
            return starts, np.zeros(0, np.int64)
        low, high = int(starts.min()), int(starts.max())
        if low == high:
            return starts[:1], np.zeros(len(starts), np.int64)
        step = self.grid.step
        if self._regular and (high - low) // step < _NUMBERED_MIN + _NUMBERED_SPAN * len(starts):
            numbers = (starts - low) // step
            present = np.flatnonzero(np.bincount(numbers))
            places = np.zeros(int(present[-1]) + 1, np.int64)
            places[present] = np.arange(len(present))
            return low + present * step, places[numbers]
        return np.unique(starts, return_inverse=True)

    def _lines(self, starts: Sequence[int]) -> Slots:
        """Returns the lines of windows, which are brought into memory if they are stored."""
        lines = [*map(self._line_of.get, starts)]
        if None in lines:
            lines = [*map(self._line, starts)]
        return np.array(lines, np.int64)

    def _line(self, start: int) -> int:
        """Returns the line of a window, which is brought into memory if it is stored."""
        line = self._line_of.get(start)
        if line is not None:
            return line
        line = self._free_lines.pop() if self._free_lines else len(self._line_of)
        self._line_of[start] = line
        self._spilled.discard(start)
        if self._newest_stored is not None and start <= self._newest_stored:
            for key, value in self._stored(start, start):
                _, input, chunk = _CHUNK_KEY.unpack(key[1:])
                # What is dirty without being in memory has ceased to exist since it was stored.
                if (start, input, chunk) not in self._dirty:
                    self._load(line, input, value)
        return line

    def _stored(self, first: int, last: int) -> list[tuple[bytes, bytes]]:
        """Returns what the store holds of windows that start in [first, last]."""
        if self._newest_stored is None or first > self._newest_stored:
            return []
        stop = _PREFIX + struct.pack(">Q", min(last + _SIGN + 1, 2**64 - 1))
        return self._store.between(_PREFIX + struct.pack(">Q", max(first + _SIGN, 0)), stop)

    def _drop_line(self, start: int) -> None:
        line = self._line_of[start]
        for index in self._index:
            _, groups, slots = index.members(np.array([line]))
            index.remove(line, groups, slots)
            self._table.release(slots)
        self._drop_line_if_empty(start)

    def _drop_line_if_empty(self, start: int) -> None:
        line = self._line_of[start]
        if not any(index.holds(line) for index in self._index):
            del self._line_of[start]
            self._free_lines.append(line)
            self._ends.pop(start, None)

    # -- chunks of the store -----------------------------------------------------------------------------------

    def _note_dirty(self, starts: Times, which: Slots, groups: Slots, input: int) -> None:
        if len(self.groups) <= _CHUNK_GROUPS:
            self._dirty.update(zip(starts.tolist(), repeat(input), repeat(0)))
            return
        chunks = np.unique(which * (len(self.groups) // _CHUNK_GROUPS + 1) + groups // _CHUNK_GROUPS)
        for number in chunks.tolist():
            place, chunk = divmod(number, len(self.groups) // _CHUNK_GROUPS + 1)
            self._dirty.add((int(starts[place]), input, chunk))

    def _note_chunks(self, start: int, input: int, groups: Slots) -> None:
        self._dirty.update((start, input, chunk) for chunk in np.unique(groups // _CHUNK_GROUPS).tolist())

    def _write(self, chunks: Collection[tuple[int, int, int]]) -> None:
        """Hands chunks to the store, in which those without groups cease to exist."""
        starts, inputs, numbers = np.array([*chunks], np.int64).reshape(len(chunks), 3).T
        order = np.lexsort((numbers, starts, inputs))
        self._dirty.difference_update(chunks)
        at_once = max(1, _WRITTEN_CELLS // max(len(self.groups), 1))
        for input in range(self._inputs):
            mine = order[inputs[order] == input]
            windows = run_starts(starts[mine])[::at_once].tolist() if len(mine) else []
            for first, end in pairwise([*windows, len(mine)]):
                self._write_some(input, starts[mine[first:end]], numbers[mine[first:end]])

    def _write_some(self, input: int, starts: Times, chunks: Slots) -> None:
        """Hands chunks of one input to the store; all values are gathered at once.

        `starts`, ascending, and `chunks`, ascending within a window: which they are.
        """
        windows = run_starts(starts)
        lines = np.array([*map(self._line_of.get, starts[windows].tolist(), repeat(-1))], np.int64)
        present = np.flatnonzero(lines >= 0)
        per_window = len(self.groups) // _CHUNK_GROUPS + 1
        places, groups, slots = self._index[input].members(lines[present])
        numbers = present[places] * per_window + groups // _CHUNK_GROUPS
        wanted = np.repeat(np.arange(len(windows)), np.diff(windows, append=len(starts))) * per_window + chunks
        firsts, ends = np.searchsorted(numbers, wanted), np.searchsorted(numbers, wanted, "right")
        values = self._codec.encoded(slots, firsts.tolist(), ends.tolist(), groups)
        self._store.put_many(zip(_keys_of(starts, input, chunks), values, strict=True))
        held = np.flatnonzero(ends > firsts)
        if len(held):
            newest = int(starts[held[-1]])
            self._newest_stored = newest if self._newest_stored is None else max(newest, self._newest_stored)

    def _load(self, line: int, input: int, value: bytes) -> None:
        stored = self._codec.decoded(value)
        groups = stored.groups
        # They are written ascending, each once.
        if len(groups) and not (groups[0] >= 0 and (np.diff(groups) > 0).all() and groups[-1] < len(self.groups)):
            raise damaged(_WHAT, "it has groups that the task doesn't know")
        slots = self._table.take(len(groups))
        self._index[input].put(np.full(len(groups), line), groups, slots)
        self._codec.load(slots, stored)

def _keys_of(starts: Times, input: int, chunks: Slots) -> list[bytes]:
    """Returns the store's keys of chunks of one input."""
    keys = np.empty(len(starts), _CHUNK_KEYS)
    keys["prefix"], keys["input"], keys["chunk"] = _PREFIX, input, chunks
    keys["start"] = starts.view(np.uint64) + np.uint64(_SIGN)
    content, size = keys.tobytes(), _CHUNK_KEYS.itemsize
    return [content[place : place + size] for place in range(0, len(content), size)]


def _distinct(values: Slots) -> Slots:
    """Returns each of some numbers once, ascending. What comes nearly sorted is sorted faster than it is hashed."""
    ascending = np.sort(values)
    return ascending[run_starts(ascending)] if len(ascending) else ascending


def _start_of(key: bytes) -> int:
    return int(_CHUNK_KEY.unpack(key[1:])[0]) - _SIGN
