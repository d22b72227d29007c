"""The segments an agg task keeps for windows that rows define, the windows they make up, and which results are out.

With one input a segment is a window. Sessions of several inputs are merged where they are within the gap. A window's
result is out if the target table holds a row for it; what is out always follows from the segments, the watermark and
the trigger alone: `changes` says how to get there.
"""

from __future__ import annotations

import heapq
import struct
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.planner.task_plans.stream_plan import END_ROWS, LAST_ROW, Field, RowWindow, Trigger, WindowsPlan
from penstock.tasks.compute.accumulators import Slots, Values, columns_for, combine
from penstock.tasks.compute.function_runtime import UserFunctions
from penstock.tasks.compute.group_index import GROUP_PREFIX
from penstock.tasks.protocol.block_schema import GROUP, ROWS, WINDOW_START
from penstock.tasks.state.state_store import StateStore
from penstock.tasks.window.slot_table import SlotTable, codec_of
from penstock.tasks.window.window_state import WindowState

_PREFIX = b"w"
_KEY = struct.Struct(">HQQ")
_SIGN = 1 << 63
_LEAST, _MOST = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Window:
    group: int
    start: int
    slots: tuple[int, ...]


class SegmentTable(SlotTable):
    """All segments of one agg task; `windows` is how many inputs' segments may make up one.

    Of each (input, group) the newest segments are in memory, from a floor on (no floor: all), and maybe others; what is
    in memory counts more than what is stored.
    """

    def __init__(self, plan: WindowsPlan, trigger: Trigger, keys: Sequence[Field], inputs: int, store: StateStore,
                 functions: UserFunctions | None = None, *, announces: bool = False) -> None:
        """`announces`: `announced` tells of windows that open."""
        super().__init__(plan, keys, inputs, store, functions)
        self._announces = announces
        self._opened: list[WindowState] = []
        self._voided: set[tuple[int, int]] = set()
        assert isinstance(plan.windows, RowWindow)
        self._window = plan.windows
        self._at_once = trigger == "at_once"
        self._delays = trigger == "max_delay"
        self._changed: set[tuple[int, int]] = set()
        names = [field.name for field in self._fields]
        self._last_of = self._columns[names.index(LAST_ROW)]
        self._ends_of = self._columns[names.index(END_ROWS)] if END_ROWS in names else None
        self._last_field = names.index(LAST_ROW)
        self._out = Values.empty(pa.bool_(), self._capacity)
        self._columns.append(self._out)
        self._codec = codec_of(self._columns)
        self._order: list[dict[int, list[int]]] = [{} for _ in range(inputs)]
        self._floors: list[dict[int, int]] = [{} for _ in range(inputs)]
        #: in memory, but neither in `_slots` nor in `_order` yet: (groups, starts, slots)
        self._unindexed: list[tuple[Slots, Slots, Slots]] = []
        self._tails = np.full(64, -1)
        self._alone = inputs == 1
        self._closing: list[tuple[int, int, int]] = []
        self._waiting: dict[tuple[int, int], int] = {}

    # -- what the agg task calls -------------------------------------------------------------------------------

    def apply(
        self, partials: pa.RecordBatch, input: int, until: int | None, *, replayed: bool
    ) -> list[WindowState]:
        """Takes partials of one input and returns the results that change.

        A partial without rows makes the segments of its group from `_wstart` to `_wlast` void, one with less than none
        names a start of which an earlier attempt may have written a result. `replayed`: it may have done so for any
        window that is touched. `until`: the watermark. In what is returned `rows` 0 says that the window's result is to
        be deleted.
        """
        if not self._alone or replayed or self._delays or self._window.kind == "count":
            found = [self._apply(partials, input, until, replayed=replayed)]
            if self._alone:
                self._find_tails(partials)
            return [state for state in found if state is not None]
        gids = partials.column(GROUP.name).to_numpy()
        void = partials.column(ROWS.name).to_numpy() == 0
        plain = ~np.isin(gids, gids[void]) if void.any() else np.ones(len(gids), bool)
        groups = self.groups.intern(_only(partials, plain))
        appended = self._appended(_only(partials, plain), groups)
        plain[plain] = appended
        states = []
        if appended.any():
            states.append(self._append(_only(partials, plain), groups[appended], until))
        if not plain.all():
            others = _only(partials, ~plain)
            states.append(self._apply(others, input, until, replayed=False))
            self._find_tails(others)
        return [state for state in states if state is not None]

    def _apply(self, partials: pa.RecordBatch, input: int, until: int | None, *, replayed: bool) -> WindowState | None:
        """Takes any partials, one by one."""
        self._index_all()
        withdrawn: set[tuple[int, int]] = set()
        counted = partials.column(ROWS.name).to_numpy()
        if replayed:
            doubtful = partials.filter(pa.array(counted < 0))
            partials = partials.filter(pa.array(counted >= 0))
            counted = counted[counted >= 0]
            starts = doubtful.column(WINDOW_START.name).to_pylist()
            withdrawn.update(zip(self.groups.intern(doubtful).tolist(), starts, strict=True))
        void = counted == 0
        if self._window.kind == "session":
            touched = self._apply_sessions(partials, void, input, withdrawn)
        else:
            if void.any():
                for group, first, last in self._stretches(partials.filter(pa.array(void))):
                    self._load_between(input, group, first, last)
                    self._remove(input, group, first, last, withdrawn)
                partials = partials.filter(pa.array(~void))
            touched = self._add(partials, input)
        if replayed:
            withdrawn.update((window.group, int(self._window_of[slot])) for window in touched for slot in window.slots)
        return self._changes(touched, withdrawn, until)

    def announced(self) -> tuple[list[WindowState], WindowState | None]:
        """Returns the windows that have opened since the last call, and those that had opened and are none any more.

        The results that changed meanwhile must have been sent before: of those nothing is said here.
        """
        opened, self._opened = self._opened, []
        gone = sorted(window for window in self._voided
                      if not self._is_announced(*window) and not self._is_out(*window))
        self._voided.clear()
        return opened, self._state_of([], gone) if gone else None

    def _announce(self, window: _Window, *, closed: bool) -> None:
        """Notes that a window is open; segments that have become a part of it are no windows any more."""
        for slot in window.slots[1:]:
            self._void(slot, window.start)
        leader = window.slots[0]
        if not closed and not self._announced[leader]:
            self._announced[leader] = True
            self._opened.append(self._state_of([window], []))

    def _void(self, slot: int, start: int | None = None) -> None:
        """Notes that what a segment was told of as is no window any more, unless a window starts there (`start`)."""
        if self._announces and self._announced[slot]:
            self._announced[slot] = False
            if self._window_of[slot] != start:
                self._voided.add((int(self._group_of[slot]), int(self._window_of[slot])))

    def _is_announced(self, group: int, start: int) -> bool:
        slots = (lookup.get((group, start)) for lookup in self._slots)
        return any(slot is not None and self._announced[slot] for slot in slots)

    def close_until(self, until: int) -> list[WindowState]:
        """Returns the results of the windows that the new watermark closes."""
        found = [self._close_alone(until)] if self._alone and not self._delays else []
        windows: dict[tuple[int, int], _Window] = {}
        if self._closing and self._closing[0][0] < until:
            self._index_all()
        while self._closing and self._closing[0][0] < until:
            last, group, start = heapq.heappop(self._closing)
            if self._waiting.get((group, start)) != last:
                continue
            del self._waiting[group, start]
            window = self._window_at(group, start)
            if window is not None and (
                not self._out.data[window.slots[0]] or (group, window.start) in self._changed
            ):
                windows[group, window.start] = window
        found.append(self._changes(list(windows.values()), set(), until))
        return [state for state in found if state is not None]

    def next_closing(self) -> int | None:
        """Returns the least watermark at which a window is over for certain: a session's gap is added here."""
        while self._closing and self._waiting.get(self._closing[0][1:]) != self._closing[0][0]:
            heapq.heappop(self._closing)
        lasts = [self._closing[0][0]] if self._closing else []
        slots = np.flatnonzero(self._open)
        if len(slots):
            lasts.append(int(self._last_of.data[slots].min()))
        return min(lasts) + self._window.gap + 1 if lasts else None

    @property
    def has_changed(self) -> bool:
        """Whether a window has changed since its result was shown last (MAX_DELAY)."""
        return bool(self._changed)

    def overdue(self) -> WindowState | None:
        """Returns the results of all windows that changed since they were shown, closed or not (MAX_DELAY)."""
        self._index_all()
        windows: dict[tuple[int, int], _Window] = {}
        for group, start in sorted(self._changed):
            window = self._window_at(group, start)
            if window is not None and self._counts(window, self._last(window)):
                windows[group, window.start] = window
                self._set_out(window.slots[0], True)
        self._changed.clear()
        return self._state_of(list(windows.values()), []) if windows else None

    def spill(self, bytes_max: int, closed_until: int | None) -> None:
        """Moves the oldest segments out of memory until what stays is at most `bytes_max`, or less."""
        while (held := self.memory_bytes) > bytes_max:
            self._index_all()
            slots = np.flatnonzero(self._used)
            kept = len(slots) * (bytes_max * 3 // 4) // held
            self._evict(slots[np.argsort(self._window_of[slots], kind="stable")][: len(slots) - kept])

    def _evict(self, evicted: Slots) -> None:
        self._write(evicted)
        for slot in evicted.tolist():
            if self._open[slot]:
                self._wait_stored(int(self._group_of[slot]), int(self._window_of[slot]), int(self._last_of.data[slot]))
            floors, group = self._floors[int(self._input_of[slot])], int(self._group_of[slot])
            floors[group] = max(floors.get(group, _LEAST), int(self._window_of[slot]) + 1)
            self._release(slot)

    def restore(self, meta: dict[str, Any], closed_until: int | None) -> None:
        """Loads the groups, the segments that may still grow, and the newest one of each group and input."""
        self._newest_stored = meta["newest_stored"]
        last_of_line: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        self.groups.restore([(key, value) for key, value in self._store.items(GROUP_PREFIX)
                             if key.startswith(GROUP_PREFIX)])
        for key, value in self._store.items(_PREFIX):
            if not key.startswith(_PREFIX):
                break
            input, gid, start = _unpack(key)
            group = self.groups.number(gid)
            slot = self._adopted(key, value)
            if (closed_until is None or int(self._last_of.data[slot]) >= closed_until) and not self._at_once:
                self._wait(group, start, int(self._last_of.data[slot]))
                if self._delays:
                    self._changed.add((group, start))
            else:
                previous = last_of_line.get((input, group))
                last_of_line[input, group] = key, value
                if previous is not None:
                    self._forget(previous[0])
        if self._alone:
            self._find_tails(None)

    def validate(self) -> None:
        self._index_all()
        super().validate()
        for input, lines in enumerate(self._order):
            for group, starts in lines.items():
                assert starts == sorted(start for known, start in self._slots[input] if known == group)

    # -- one input, in order -----------------------------------------------------------------------------------

    def _appended(self, partials: pa.RecordBatch, groups: Slots) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Returns which partials extend the newest segment of their group or come behind it, as those of in-order rows.

        A group's partials are all of this kind or none is. The newest segment must be in memory.
        """
        self._make_room(len(self.groups))
        starts = partials.column(WINDOW_START.name).to_numpy()
        head = np.ones(len(groups), bool)
        head[1:] = groups[1:] != groups[:-1]
        good = head.copy()
        good[1:] |= starts[1:] > starts[:-1]
        tails = self._tails[groups]
        known = tails >= 0
        begin, reach = self._window_of[tails], self._last_of.data[tails] + self._window.gap
        good &= ~known | (starts >= begin)
        if self._window.kind == "session":
            # Behind the first, segments must stay apart from what the newest one reaches.
            good &= ~known | head | (starts > reach)
        if self._floors[0]:
            floors = self._floors[0]
            stored = np.array([group in floors for group in groups[head].tolist()], bool)
            good &= known | ~np.repeat(stored, np.diff(np.append(np.flatnonzero(head), len(groups))))
        if good.all() and head.sum() == len(np.unique(groups[head])):
            return good
        bad = np.zeros(len(self.groups), bool)
        bad[groups[~good]] = True
        bad |= np.bincount(groups[head], minlength=len(bad)) > 1
        return ~bad[groups]

    def _append(self, partials: pa.RecordBatch, groups: Slots, until: int | None) -> WindowState | None:
        """Takes partials that are `_appended`."""
        starts = partials.column(WINDOW_START.name).to_numpy()
        tails = self._tails[groups]
        if self._window.kind == "session":
            extends = (tails >= 0) & (starts <= self._last_of.data[tails] + self._window.gap)
        else:
            extends = (tails >= 0) & (starts == self._window_of[tails])
        slots = np.where(extends, tails, -1)
        fresh = np.flatnonzero(~extends)
        if len(fresh):
            slots[fresh] = self._take(groups[fresh], starts[fresh])
            self._unindexed.append((groups[fresh], starts[fresh], slots[fresh]))
        self._combine(slots, partials, slice(None))
        self._tails[groups] = slots  # the last of a group's partials is the newest
        last = self._last_of.data[slots]
        out, counts = self._out.data[slots], self._all_count(slots)
        shown = counts.copy() if self._at_once else counts & (last < until) if until is not None else np.zeros_like(out)
        if not self._at_once:
            self._open[slots] = True if until is None else last >= until
        if self._announces:
            opened = np.unique(slots[self._open[slots] & ~self._announced[slots]])
            self._announced[opened] = True
            if len(opened):
                self._opened.append(self._state_of_slots(opened, opened[:0]))
        gone = out & ~shown
        self._out.data[slots] = shown
        self._out.valid[slots] = True
        return self._state_of_slots(slots[shown], slots[gone]) if shown.any() or gone.any() else None

    def _close_alone(self, until: int) -> WindowState | None:
        """Does what `close_until` says where each segment is a window."""
        slots = np.flatnonzero(self._open)
        slots = slots[self._last_of.data[slots] < until]
        self._open[slots] = False
        shown = slots[self._all_count(slots) & ~self._out.data[slots]]
        self._out.data[shown] = True
        self._out.valid[shown] = True
        self._dirty[shown] = True
        return self._state_of_slots(shown, shown[:0]) if len(shown) else None

    def _all_count(self, slots: Slots) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Returns which segments are complete (event) and long enough."""
        counts: np.ndarray[Any, np.dtype[np.bool_]] = (
            self._last_of.data[slots] - self._window_of[slots] >= self._window.least)
        if self._ends_of is not None:
            counts &= self._ends_of.data[slots] > 0
        return counts

    def _state_of_slots(self, shown: Slots, gone: Slots) -> WindowState:
        """Returns the state of segments that are windows, then that of some whose results are to be deleted."""
        slots = np.concatenate([shown, gone])
        rows = self._rows[slots]
        rows[len(shown):] = 0
        columns = [column.take(slots) for column in self._columns[: len(self._fields)]]
        withdrawn = np.arange(len(shown), len(slots))
        for column in columns:
            column.clear(withdrawn)
        return WindowState(self.groups, self._group_of[slots], self._window_of[slots], rows, self._fields, columns)

    def _index_all(self) -> None:
        """Enters what was appended into the indexes that late rows and spilling need."""
        for groups, starts, slots in self._unindexed:
            keys = list(zip(groups.tolist(), starts.tolist(), strict=True))
            self._slots[0].update(zip(keys, slots.tolist(), strict=True))
            for group, start in keys:
                insort(self._order[0].setdefault(group, []), start)
        self._unindexed = []

    def _find_tails(self, partials: pa.RecordBatch | None) -> None:
        """Looks up the newest segments of the groups of some partials, or of all (None)."""
        self._make_room(len(self.groups))
        groups: Iterable[int] = range(len(self.groups))
        if partials is not None:
            numbers = self.groups.numbers(np.unique(partials.column(GROUP.name).to_numpy()))
            groups = numbers[numbers >= 0].tolist()
        for group in groups:
            starts = self._order[0].get(group)
            floor = self._floors[0].get(group)
            in_memory = starts and (floor is None or starts[-1] >= floor)
            self._tails[group] = self._slots[0][group, starts[-1]] if starts and in_memory else -1

    def _make_room(self, groups: int) -> None:
        if groups > len(self._tails):
            self._tails = np.concatenate([self._tails, np.full(max(groups, len(self._tails)), -1)])

    # -- segments ----------------------------------------------------------------------------------------------

    def _add(self, partials: pa.RecordBatch, input: int) -> list[_Window]:
        """Adds partials to the segments that start where they do."""
        if not partials.num_rows:
            return []
        groups = self.groups.intern(partials)
        slots = self._find(groups, partials.column(WINDOW_START.name).to_numpy(), input)
        self._combine(slots, partials, slice(None))
        return [_Window(group, int(self._window_of[slot]), (slot,))
                for group, slot in zip(groups.tolist(), slots.tolist(), strict=True)]

    def _combine(self, slots: Slots, partials: pa.RecordBatch, rows: Slots | slice) -> None:
        first_field = 3 + len(self.groups.key_fields)
        source = [Values.of(column) for column in partials.columns[first_field:]]
        self._rows[slots] += partials.column(ROWS.name).to_numpy()[rows]
        self._combine_columns(self._columns, slots, source, rows)
        self._dirty[slots] = True

    def _combine_columns(
        self, target: Sequence[Values], slots: Slots, source: Sequence[Values], rows: Slots | slice
    ) -> None:
        position = 0
        for accumulator, unite in zip(self._accumulators, self._merges, strict=True):
            end = position + len(accumulator.fields)
            combine(accumulator, target[position:end], slots, source[position:end], rows, unite)
            position = end

    def _stretches(self, voids: pa.RecordBatch) -> list[tuple[int, int, int]]:
        """Returns (group, first, last) of partials without rows; groups that never had any are left out."""
        groups = self.groups.numbers(voids.column(GROUP.name).to_numpy()).tolist()
        firsts, lasts = (voids.column(name).to_pylist() for name in (WINDOW_START.name, LAST_ROW))
        return [stretch for stretch in zip(groups, firsts, lasts, strict=True) if stretch[0] >= 0]

    def _remove(self, input: int, group: int, first: int, last: int, withdrawn: set[tuple[int, int]]) -> None:
        """Removes the segments that start in a stretch; those whose result is out go to `withdrawn`."""
        starts = self._order[input].get(group, [])
        for start in starts[bisect_left(starts, first) : bisect_right(starts, last)]:
            slot = self._slots[input][group, start]
            if self._out.data[slot]:
                withdrawn.add((group, start))
            else:
                self._void(slot)
            self._store.put_many([(self._slot_key(slot), None)])
            self._release(slot)

    # -- sessions ----------------------------------------------------------------------------------------------

    def _apply_sessions(
        self, partials: pa.RecordBatch, void: np.ndarray[Any, np.dtype[np.bool_]], input: int,
        withdrawn: set[tuple[int, int]],
    ) -> list[_Window]:
        touched: dict[int, list[tuple[int, int]]] = {}
        for group, first, last in self._stretches(partials.filter(pa.array(void))):
            touched.setdefault(group, []).append(self._withdraw(group, first, last, withdrawn))
            self._load_between(input, group, first, last)
            self._remove(input, group, first, last, withdrawn)
        added = partials.filter(pa.array(~void)) if void.any() else partials
        if added.num_rows:
            self._add_sessions(added, input, touched, withdrawn)
        windows = []
        for group, spans in touched.items():
            for first, last in _united(spans, self._window.gap):
                windows += self._windows_between(group, first, last)
        return windows

    def _add_sessions(self, added: pa.RecordBatch, input: int, touched: dict[int, list[tuple[int, int]]],
                      withdrawn: set[tuple[int, int]]) -> None:
        """Adds segments, merging those of this input that they bring within the gap of each other."""
        groups = self.groups.intern(added).tolist()
        starts = added.column(WINDOW_START.name).to_pylist()
        lasts = added.column(LAST_ROW).to_pylist()
        targets = np.empty(len(groups), np.int64)
        begin = 0
        taken: set[int] = set()
        for row, (group, start, last) in enumerate(zip(groups, starts, lasts, strict=True)):
            touched.setdefault(group, []).append(self._withdraw(group, start, last, withdrawn))
            slots = self._near(input, group, start, last)
            if len(slots) > 1 or not taken.isdisjoint(slots):
                # What was found so far has to be in place before its segments are merged or hit again.
                self._combine(targets[begin:row], added, np.arange(begin, row))
                begin, taken = row, set()
            slot = self._merged(slots) if slots else self._new_slot(group, start, input)
            if start < self._window_of[slot]:
                self._move(slot, start)
            targets[row] = slot
            taken.add(slot)
            # Later rows of this batch must see how far the segment reaches now.
            self._last_of.data[slot] = max(last, int(self._last_of.data[slot])) if slots else last
            self._last_of.valid[slot] = True
        self._combine(targets[begin:], added, np.arange(begin, len(groups)))

    def _near(self, input: int, group: int, first: int, last: int) -> list[int]:
        """Returns the slots of an input's segments within the gap of a stretch, in order."""
        gap = self._window.gap
        low = self._previous(input, group, first)
        high = min(last, _MOST - gap) + gap
        self._load_between(input, group, first, high)
        starts = self._order[input].get(group, [])
        slots = self._slots[input]
        found = [slots[group, start] for start in starts[bisect_left(starts, first) : bisect_right(starts, high)]]
        if low is not None and int(self._last_of.data[low]) + gap >= first:
            found.insert(0, low)
        return found

    def _previous(self, input: int, group: int, before: int) -> int | None:
        """Returns the slot of the newest segment that starts before a time, loading it if need be."""
        starts = self._order[input].get(group, [])
        place = bisect_left(starts, before)
        floor = self._floors[input].get(group)
        if floor is None or (place and starts[place - 1] >= floor):
            return self._slots[input][group, starts[place - 1]] if place else None
        prefix = _PREFIX + struct.pack(">HQ", input, self.groups.id(group))
        stored = self._store.last_before(self._key(min(before, floor), input, group), prefix)
        if stored is None:
            if before >= floor:
                del self._floors[input][group]
            return self._slots[input][group, starts[place - 1]] if place else None
        start = _unpack(stored[0])[2]
        if before >= floor:
            self._floors[input][group] = start
        if place and starts[place - 1] >= start:
            return self._slots[input][group, starts[place - 1]]
        return self._adopted(*stored)

    def _merged(self, slots: Sequence[int]) -> int:
        """Merges segments into the first of them."""
        target = slots[0]
        for other in slots[1:]:
            self._rows[target] += self._rows[other]
            self._combine_columns(self._columns, np.array([target]), self._columns, np.array([other]))
            self._store.put_many([(self._slot_key(other), None)])
            self._void(other)
            self._release(other)
        self._dirty[target] = True
        return target

    def _move(self, slot: int, start: int) -> None:
        """Lets a segment start earlier."""
        self._void(slot)
        input, group, old = int(self._input_of[slot]), int(self._group_of[slot]), int(self._window_of[slot])
        self._store.put_many([(self._slot_key(slot), None)])
        self._unlist(slot)
        del self._slots[input][group, old]
        self._slots[input][group, start] = slot
        self._window_of[slot] = start
        self._list(slot)
        self._dirty[slot] = True

    def _reach(self, group: int, first: int, last: int) -> tuple[int, int, list[int]]:
        """Returns the hull and the slots of all inputs' segments that are connected with a stretch."""
        while True:
            slots = [slot for input in range(self._inputs) for slot in self._near(input, group, first, last)]
            low = min((int(self._window_of[slot]) for slot in slots), default=first)
            high = max((int(self._last_of.data[slot]) for slot in slots), default=last)
            if low >= first and high <= last:
                return first, last, slots
            first, last = min(first, low), max(last, high)
            if self._inputs == 1:
                return first, last, slots

    def _withdraw(self, group: int, first: int, last: int, withdrawn: set[tuple[int, int]]) -> tuple[int, int]:
        """Notes the results that are out around a stretch as withdrawn; returns how far their windows reach."""
        first, last, slots = self._reach(group, first, last)
        for slot in slots:
            if self._out.data[slot]:
                withdrawn.add((group, int(self._window_of[slot])))
                self._set_out(slot, False)
        return first, last

    def _windows_between(self, group: int, first: int, last: int) -> list[_Window]:
        """Returns the windows that have a part within the gap of a stretch."""
        _, _, slots = self._reach(group, first, last)
        slots.sort(key=lambda slot: (int(self._window_of[slot]), slot))
        windows: list[list[int]] = []
        high = _LEAST
        for slot in slots:
            start = int(self._window_of[slot])
            if windows and start - high <= self._window.gap:
                windows[-1].append(slot)
            else:
                windows.append([slot])
                high = _LEAST
            high = max(high, int(self._last_of.data[slot]))
        return [_Window(group, int(self._window_of[members[0]]), tuple(members)) for members in windows]

    # -- results -----------------------------------------------------------------------------------------------

    def _window_at(self, group: int, time: int) -> _Window | None:
        if self._window.kind == "session":
            found = self._windows_between(group, time, time)
            return next((window for window in found if window.start <= time <= self._last(window)), None)
        self._load_between(0, group, time, time)
        slot = self._slots[0].get((group, time))
        return None if slot is None else _Window(group, time, (slot,))

    def _last(self, window: _Window) -> int:
        return max(int(self._last_of.data[slot]) for slot in window.slots)

    def _changes(
        self, windows: Sequence[_Window], withdrawn: set[tuple[int, int]], until: int | None
    ) -> WindowState | None:
        """Returns the relation `state` of touched windows whose results are to be written or deleted."""
        shown: list[_Window] = []
        for window in windows:
            last, leader = self._last(window), window.slots[0]
            closed = until is not None and last < until
            if self._announces:
                self._announce(window, closed=closed)
            if not closed and not self._at_once:
                self._wait(window.group, window.start, last)
                if self._delays:
                    self._changed.add((window.group, window.start))
            if (closed or self._at_once) and self._counts(window, last):
                shown.append(window)
                self._set_out(leader, True)
                self._changed.discard((window.group, window.start))
            elif self._out.data[leader] and not (self._delays and self._counts(window, last)):
                withdrawn.add((window.group, window.start))
                self._set_out(leader, False)
        gone = sorted(window for window in withdrawn if not self._is_out(*window))
        return self._state_of(shown, gone) if shown or gone else None

    def _is_out(self, group: int, start: int) -> bool:
        slots = (lookup.get((group, start)) for lookup in self._slots)
        return any(slot is not None and self._out.data[slot] for slot in slots)

    def _counts(self, window: _Window, last: int) -> bool:
        """Whether the window is complete (event) and long enough."""
        ended = self._ends_of is None or any(self._ends_of.data[slot] > 0 for slot in window.slots)
        return ended and last - window.start >= self._window.least

    def _wait(self, group: int, start: int, last: int) -> None:
        """Makes sure that the window is looked at when the watermark passes `last`; it may turn out to be longer."""
        if self._alone and not self._delays:
            self._open[self._slots[0][group, start]] = True
        else:
            self._wait_stored(group, start, last)

    def _wait_stored(self, group: int, start: int, last: int) -> None:
        known = self._waiting.get((group, start))
        if known is None or last < known:
            self._waiting[group, start] = last
            heapq.heappush(self._closing, (last, group, start))

    def _set_out(self, slot: int, out: bool) -> None:
        if bool(self._out.data[slot]) != out:
            self._out.data[slot] = out
            self._out.valid[slot] = True
            self._dirty[slot] = True

    def _state_of(self, windows: Sequence[_Window], gone: Sequence[tuple[int, int]]) -> pa.Table:
        """Returns the relation `state`: windows with what their segments hold together, then those without rows."""
        count = len(windows) + len(gone)
        rows = np.zeros(count, np.int64)
        columns = columns_for(self._fields, count)
        for rank in range(max((len(window.slots) for window in windows), default=0)):
            places = np.array([n for n, window in enumerate(windows) if len(window.slots) > rank], np.int64)
            slots = np.array([windows[n].slots[rank] for n in places.tolist()], np.int64)
            rows[places] += self._rows[slots]
            self._combine_columns(columns, places, self._columns, slots)
        groups = np.array([window.group for window in windows] + [group for group, _ in gone], np.int64)
        starts = np.array([window.start for window in windows] + [start for _, start in gone], np.int64)
        return WindowState(self.groups, groups, starts, rows, self._fields, columns)

    # -- slots and the store -----------------------------------------------------------------------------------

    def _load_between(self, input: int, group: int, first: int, last: int) -> None:
        """Brings what is stored of the segments that start in a stretch into memory."""
        floor = self._floors[input].get(group)
        if floor is None or first >= floor:
            return
        end = self._key(min(last, floor - 1), input, group) + b"\0"
        for key, value in self._store.between(self._key(first, input, group), end):
            self._adopted(key, value)
        if last >= floor - 1:
            self._floors[input][group] = first

    def _adopted(self, key: bytes, value: bytes) -> int:
        """Returns the slot of a stored segment; if it is in memory already that counts."""
        input, gid, start = _unpack(key)
        group = self.groups.number(gid)
        slot = self._slots[input].get((group, start))
        if slot is None:
            slot = self._new_slot(group, start, input)
            self._decode(slot, value)
        return slot

    def _forget(self, key: bytes) -> None:
        """Leaves a segment that was just loaded to the store."""
        input, gid, start = _unpack(key)
        group = self.groups.number(gid)
        self._release(self._slots[input][group, start])
        floors = self._floors[input]
        floors[group] = max(floors.get(group, _LEAST), start + 1)

    def _new_slot(self, group: int, start: int, input: int) -> int:
        slot = super()._new_slot(group, start, input)
        self._list(slot)
        return slot

    def _release(self, slot: int) -> None:
        group = int(self._group_of[slot])
        if group < len(self._tails) and self._tails[group] == slot:
            self._tails[group] = -1
        self._unlist(slot)
        super()._release(slot)

    def _list(self, slot: int) -> None:
        starts = self._order[int(self._input_of[slot])].setdefault(int(self._group_of[slot]), [])
        insort(starts, int(self._window_of[slot]))

    def _unlist(self, slot: int) -> None:
        starts = self._order[int(self._input_of[slot])][int(self._group_of[slot])]
        del starts[bisect_left(starts, int(self._window_of[slot]))]

    def _key(self, start: int, input: int, group: int) -> bytes:
        return _PREFIX + _KEY.pack(input, self.groups.id(group), start + _SIGN)


def _only(partials: pa.RecordBatch, chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.RecordBatch:
    return partials if chosen.all() else partials.filter(pa.array(chosen))


def segments_in(store: StateStore) -> Iterator[tuple[bytes, int, bytes]]:
    """Yields the stored segments of one task: their keys, which are the same in any task, group ids, and values."""
    for key, value in store.items(_PREFIX):
        if not key.startswith(_PREFIX):
            return
        yield key, _unpack(key)[1], value


def _unpack(key: bytes) -> tuple[int, int, int]:
    """Returns input, group id and start."""
    input, gid, start = _KEY.unpack(key[1:])
    return input, gid, start - _SIGN


def _united(spans: Iterable[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Returns the stretches with those within `gap` of each other as one."""
    united: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if united and first - united[-1][1] <= gap:
            united[-1] = united[-1][0], max(last, united[-1][1])
        else:
            united.append((first, last))
    return united
