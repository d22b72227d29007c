"""The windows an agg task keeps: columnar state per (input, group, window), spilled to and restored from its store.

A slot is a place in the columns. Each input (upstream source task) has slots of its own, so that a source can replace
what it contributed; results combine the slots of all inputs. Windows go out of memory as a whole; what comes for them
then is kept beside what is stored, whose pages come back one by one, when somebody asks for what they hold
(`penstock.tasks.window.window_pages`). Knows nothing of queues, triggers or results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
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
from penstock.tasks.compute.kernel_vectors import Bools
from penstock.tasks.compute.partial_columns import PartialColumns
from penstock.tasks.compute.sorted_unions import union_of
from penstock.tasks.protocol.block_schema import GROUP, REPLACE, ROWS, WINDOW_START, fields_schema
from penstock.tasks.state.state_store import StateStore
from penstock.tasks.window.loaded_pages import add_parts, stacked, taken_out
from penstock.tasks.window.slot_codec import SlotCodec
from penstock.tasks.window.slot_index import SlotIndex
from penstock.tasks.window.slot_parts import SlotParts
from penstock.tasks.window.slot_table import SlotTable
from penstock.tasks.window.window_pages import WHAT, Page, Times, WindowPages, chunks_of, groups_of
from penstock.tasks.window.window_state import WindowState
from penstock.vnode.store.sorted_keys import run_starts

_SLOT_BYTES = 48
_NUMBERED_MIN = 1024
_NUMBERED_SPAN = 4
_LOADED_PAGES = 64
_KEPT_CAPACITY, _SPARE_CAPACITY, _LOOKS_PER_PERIOD = 1 << 16, 4, 16
_SIGN = 1 << 63


@dataclass(frozen=True, slots=True)
class Touched:
    """(group, window)s that a block changed: group `groups[i]` of the window that starts at `starts[which[i]]`."""

    starts: Times
    which: Slots
    groups: Slots

    def groups_of(self, place: int) -> Slots:
        """Returns the groups that were touched in the window `starts[place]`."""
        return self.groups if len(self.starts) == 1 else self.groups[self.which == place]

    def of_windows(self, chosen: Bools) -> Touched:
        """Returns what was touched in some of the windows."""
        if all_set(chosen):
            return self
        rows = chosen[self.which].nonzero()[0]
        places = np.cumsum(chosen) - 1
        return Touched(self.starts[chosen], places[self.which[rows]], self.groups[rows])


def united(parts: Sequence[Touched]) -> Touched:
    """Returns what any of the blocks touched, each (group, window) once; there is at least one."""
    if len(parts) == 1:
        return parts[0]
    starts, which = np.unique(np.concatenate([part.starts[part.which] for part in parts]), return_inverse=True)
    groups = np.concatenate([part.groups for part in parts])
    span = int(groups.max(initial=0)) + 1
    distinct = _distinct(which * span + groups)
    return Touched(starts, distinct // span, distinct % span)


class _Emptied(dict[int, list[Slots]]):
    """Groups that may be left without rows, by the starts of their windows."""

    def note(self, starts: Times, which: Slots, groups: Slots) -> None:
        """Adds `groups[i]` of the window `starts[which[i]]`."""
        for place in np.unique(which).tolist():
            self.setdefault(int(starts[place]), []).append(groups[which == place])

    def taken(self, start: int) -> Slots:
        """Returns the groups of a window, each once, and forgets them."""
        return _distinct(np.concatenate(self.pop(start)))

    def forget(self, goes: Callable[[int], bool]) -> None:
        """Drops the windows for whose start `goes` is true."""
        for start in [start for start in self if goes(start)]:
            del self[start]


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
        codec = SlotCodec(self._table, WHAT, grouped=True)
        self._store = store
        self.groups = GroupIndex(keys)
        self._pages = WindowPages(store, self.groups, codec, SlotParts(plan, functions, WHAT))
        self._index = [SlotIndex() for _ in range(inputs)]
        self._line_of: dict[int, int] = {}
        self._free_lines: list[int] = []
        self._ends: dict[int, int] = {}
        self._spilled: set[int] = set()
        self._emptied = _Emptied()
        self._most_used = self._looks = 0

    # -- combining -------------------------------------------------------------------------------------------

    def merge(self, partials: PartialColumns, operation: int, input: int) -> Touched:
        """Combines partials of one input and returns what they touched.

        `operation`: ADD adds them, REPLACE puts them in the place of all that this input had contributed.
        """
        groups = self.groups.intern_ids(partials.groups, partials.keys)
        starts, which = self._distinct(partials.starts)
        lines = self._lines(starts.tolist())[which]
        rows = partials.rows
        emptied = (rows <= 0).nonzero()[0]
        if len(emptied) or operation == REPLACE:
            self._warm(starts, which, groups, [input])
        index = self._index[input]
        slots = index.find(lines, groups)
        missing = slots < 0
        fresh = any_set(missing)
        if fresh:
            slots[missing] = self._table.take(int(missing.sum()))
            index.put(lines[missing], groups[missing], slots[missing])
        if operation == REPLACE:
            self._table.clear(slots)
            missing[:] = fresh = True
        self._table.rows[slots] += rows
        if len(emptied):
            empty = emptied[self._table.rows[slots[emptied]] == 0]
            self._emptied.note(starts, which[empty], groups[empty])
        self._table.put(slots, partials.fields, missing if fresh else None)
        self._pages.note(starts, which, groups, input)
        return Touched(starts, which, groups)

    def state(self, starts: Times, groups: Slots) -> WindowState:
        """Returns the combined state of (window, group)s, in their order."""
        distinct, which = self._distinct(starts)
        lines = self._lines(distinct.tolist())[which]
        self._warm(distinct, which, groups, range(len(self._index)))
        parts = []
        for index in self._index:
            found = index.find(lines, groups)
            present = (found >= 0).nonzero()[0]
            parts.append((present, found[present]))
        return self._combined(groups, starts, parts)

    def state_of_all(self, starts: Sequence[int]) -> WindowState:
        """Returns the combined state of all groups of some windows: window by window, by their numbers."""
        places, groups, parts = self._all_of(starts)
        return self._combined(groups, np.array(starts, np.int64)[places], parts)

    def members(self, starts: Sequence[int]) -> tuple[Slots, Slots]:
        """Returns the (window, group)s of some windows, ordered so: the window's place in `starts`, and the group."""
        return self._all_of(starts)[:2]

    def _all_of(self, starts: Sequence[int]) -> tuple[Slots, Slots, list[tuple[Slots, Slots]]]:
        """Returns what `members` does, and for each input which of these it contributed to, and the slots."""
        lines = self._lines(starts)
        for start in starts:
            self._warm_all(start)
        found = [index.members(lines) for index in self._index]
        if len(found) == 1:
            ((places, groups, slots),) = found
            return places, groups, [(np.arange(len(slots)), slots)]
        count = max(len(self.groups), 1)
        both, present = union_of([places * count + groups for places, groups, _ in found])
        places = both // count
        return places, both - places * count, [(own, slots) for own, (_, _, slots) in zip(present, found, strict=True)]

    def _combined(self, groups: Slots, starts: Times, parts: Iterable[tuple[Slots, Slots]]) -> WindowState:
        """Returns the state of (window, group)s. `parts`: for each input which of them it contributed to, and the
        slots."""
        rows = np.zeros(len(groups), np.int64)
        combined: list[Values] | None = None
        for present, slots in parts:
            if not len(present):
                continue
            rows[present] += self._table.rows[slots]
            if combined is None and len(present) == len(groups):
                combined = [column.take(slots) for column in self._table.columns]
                continue
            if combined is None:
                combined = columns_for(self._table.fields, len(groups))
            self._table.combine(combined, present, self._table.columns, slots)
        if combined is None:
            combined = columns_for(self._table.fields, len(groups))
        return WindowState(self.groups, groups, starts, rows, self._table.fields, combined)

    def portions(self, starts: Sequence[int], bytes_max: int) -> Iterator[Sequence[int]]:
        """Yields windows in their order, so many at a time as may come into memory together, or one."""
        self._lines(starts)
        if not self._pages.cold:
            yield starts
            return
        page_bytes = self._table.slot_bytes * len(groups_of(0, len(self.groups)))
        first, size = 0, 0
        for place, start in enumerate(starts):
            more = page_bytes * len(self._pages.cold.get(start, ()))
            if place > first and size + more > bytes_max // 2:
                yield starts[first:place]
                first, size = place, 0
            size += more
        yield starts[first:]

    def contributed(self, start: int, input: int) -> pa.RecordBatch:
        """Returns what an input contributed to a window, as a batch of partials."""
        line = self._line(start)
        self._warm_all(start)
        _, groups, slots = self._index[input].members(np.array([line]))
        return self._partials(start, groups, slots)

    def stored(self) -> Iterator[int]:
        """Yields the starts of all windows, also of those that are not in memory, ascending."""
        self._pages.write(self._members)
        yield from self._pages.all_starts()

    def give_up(self, leaving: npt.NDArray[np.bool_]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Takes groups (true at their numbers) out of all windows.

        Yields what each input contributed: it and a batch of partials. The groups keep their numbers.
        """
        for start in self.stored():
            line = self._line(start)
            self._warm_all(start)
            for input, index in enumerate(self._index):
                _, groups, slots = index.members(np.array([line]))
                gone = leaving[groups]
                if gone.any():
                    yield input, self._partials(start, groups[gone], slots[gone])
                    self._pages.note_groups(start, input, groups[gone])
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
        for start in self._emptied.keys() & set(np.unique(starts).tolist()):
            groups = self._emptied.taken(start)
            line = self._line_of.get(start)
            if line is None:
                continue
            self._warm(np.array([start]), np.zeros(len(groups), np.int64), groups, range(len(self._index)))
            for input, index in enumerate(self._index):
                slots = index.find(np.full(len(groups), line), groups)
                gone = slots >= 0
                gone[gone] = self._table.rows[slots[gone]] == 0
                if gone.any():
                    self._pages.note_groups(start, input, groups[gone])
                    index.remove(line, groups[gone], slots[gone])
                    self._table.release(slots[gone])
            self._drop_line_if_empty(start)

    def clear(self, first: int, last: int, input: int) -> dict[int, Slots]:
        """Voids what an input had contributed to windows that start in [first, last]; returns its groups by window."""
        for start in self._pages.starts(first, last):
            self._line(start)
        touched: dict[int, Slots] = {}
        for start in [start for start in self._line_of if first <= start <= last]:
            self._warm_all(start)
            _, groups, slots = self._index[input].members(np.array([self._line_of[start]]))
            if not len(slots):
                continue
            self._table.clear(slots)
            self._pages.note_groups(start, input, groups)
            self._emptied.note(np.array([start]), np.zeros(len(groups), np.int64), groups)
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
        self._emptied.forget(goes)
        self._pages.forget(until, goes)
        self._ends = {start: end for start, end in self._ends.items() if end > until}

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
        if self._regular and not self.grid.endless:
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
        """Moves the oldest windows out of memory, once it is more than `bytes_max`, until what stays is at most half.

        Closed windows are forgotten in memory and found again when a late row asks for them.
        """
        if self.memory_bytes <= bytes_max:
            return
        waiting = sorted(self._line_of, reverse=True)
        while waiting and (memory := self.memory_bytes) > bytes_max // 2:
            starts: list[int] = []
            slots, enough = 0, self.slots_used * (1 - bytes_max / 2 / memory)
            while waiting and (not starts or slots < enough):
                starts.append(waiting.pop())
                slots += sum(index.count(self._line_of[starts[-1]]) for index in self._index)
            self._pages.write_windows(starts, self._members)
            for start in starts:
                self._drop_line(start)
                self._pages.leave(start)
                if closed_until is None or self.end(start) > closed_until:
                    self._spilled.add(start)

    # -- checkpoints -----------------------------------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Hands everything that changed since the last call to the store; returns what `restore` needs besides."""
        self._pages.write(self._members)
        self._store.put_many(self.groups.unsaved())
        return {"newest_stored": self._pages.newest}

    def restore(self, meta: dict[str, Any], closed_until: int | None) -> None:
        """Loads the groups; the windows that are still open come into memory once they are asked for."""
        self._pages.newest = newest = meta["newest_stored"]
        self.groups.restore([(key, value) for key, value in self._store.items(GROUP_PREFIX)
                             if key.startswith(GROUP_PREFIX)])
        oldest = -_SIGN if closed_until is None else closed_until - self.grid.longest - self.grid.turn
        self._spilled = {start for start in self._pages.starts(oldest, -_SIGN if newest is None else newest)
                         if closed_until is None or self.end(start) > closed_until}

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
        if low == high:  # for one, where all time is one window
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
        """Returns the lines of windows; the pages of those that come into memory are cold."""
        lines = [*map(self._line_of.get, starts)]
        if None in lines:
            lines = [*map(self._line, starts)]
        return np.array(lines, np.int64)

    def _line(self, start: int) -> int:
        """Returns the line of a window; if it comes into memory with that, its pages are cold."""
        line = self._line_of.get(start)
        if line is not None:
            return line
        line = self._free_lines.pop() if self._free_lines else len(self._line_of)
        self._line_of[start] = line
        self._spilled.discard(start)
        self._pages.enter(start)
        return line

    def _warm(self, starts: Times, which: Slots, groups: Slots, inputs: Sequence[int]) -> None:
        """Brings the pages of some groups of windows into memory: `groups[i]` of the window `starts[which[i]]`."""
        cold = self._pages.cold
        if not cold:
            return
        for place, start in enumerate(starts.tolist()):
            pages = cold.get(start)
            if pages is not None:
                chunks = chunks_of(groups[which == place])
                self._load(start, [page for input in inputs for chunk in chunks if (page := (input, chunk)) in pages])

    def _warm_all(self, start: int) -> None:
        """Brings all pages of a window in memory there."""
        pages = self._pages.cold.get(start)
        if pages:
            self._load(start, sorted(pages))

    def _load(self, start: int, pages: Sequence[Page]) -> None:
        """Brings cold pages of a window into memory, those of an input next to each other, many at a time."""
        line = self._line_of[start]
        for input, own in groupby(pages, itemgetter(0)):
            index = self._index[input]
            has_more = index.holds(line)
            chunks = [chunk for _, chunk in own]
            for first in range(0, len(chunks), _LOADED_PAGES):
                some = chunks[first : first + _LOADED_PAGES]
                stored = [self._pages.read(start, (input, chunk)) for chunk in some]
                parts = stacked(stored)
                if has_more:
                    groups = np.concatenate([groups_of(chunk, len(self.groups)) for chunk in some])
                    parts += taken_out(self._table, index, line, groups)
                add_parts(self._table, index, line, some, parts)

    def _members(self, input: int, starts: Times) -> tuple[Slots, Slots, Slots]:
        """Returns what is in memory of windows: the window's place in `starts`, the group, and the slot."""
        lines = np.array([self._line_of.get(start, -1) for start in starts.tolist()], np.int64)
        present = np.flatnonzero(lines >= 0)
        places, groups, slots = self._index[input].members(lines[present])
        return present[places], groups, slots

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


def _distinct(values: Slots) -> Slots:
    """Returns each of some numbers once, ascending. What comes nearly sorted is sorted faster than it is hashed."""
    ascending = np.sort(values)
    return ascending[run_starts(ascending)] if len(ascending) else ascending
