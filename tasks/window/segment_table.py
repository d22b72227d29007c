"""The windows an agg task keeps where rows define them, and which results are out.

With one input a segment is a window. Sessions of several inputs are merged where they are within the gap. A window's
result is out if the target table holds a row for it; what is out always follows from the segments, the watermark and
the trigger alone: `apply` and `close_until` say how to get there.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.planner.task_plans.stream_plan import LAST_ROW, Field, RowWindow, Trigger, WindowsPlan
from penstock.tasks.compute.accumulators import columns_for
from penstock.tasks.compute.function_runtime import UserFunctions
from penstock.tasks.compute.group_index import GroupIndex
from penstock.tasks.protocol.block_schema import GROUP, ROWS, WINDOW_START
from penstock.tasks.state.state_store import StateStore
from penstock.tasks.window.in_order_segments import Bools, InOrderSegments
from penstock.tasks.window.opened_windows import OpenedWindows, SegmentWindow
from penstock.tasks.window.segment_index import SegmentIndex
from penstock.tasks.window.segment_slots import SegmentSlots
from penstock.tasks.window.session_segments import SessionSegments, Stretches
from penstock.tasks.window.window_state import WindowState


class SegmentTable:
    """All segments of one agg task; those of several `inputs` may make up one window."""

    def __init__(self, plan: WindowsPlan, trigger: Trigger, keys: Sequence[Field], inputs: int, store: StateStore,
                 functions: UserFunctions | None = None, *, announces: bool = False, lasting: bool = False) -> None:
        """`functions` has the users' aggregates of the plan, if any. `announces`: `announced` says what opens.
        `lasting`: a window closes once no row in order can join it, though time may have passed its last one."""
        assert isinstance(plan.windows, RowWindow)
        self._window = plan.windows
        #: so long behind its last row a window may be joined by another one
        self._open_for = plan.windows.gap if lasting else 0
        self._at_once = trigger == "at_once"
        self._delays = trigger == "max_delay"
        self._alone = inputs == 1
        self.groups = GroupIndex(keys)
        self._slots = SegmentSlots(plan, functions)
        self._index = SegmentIndex(self._slots, self.groups, inputs, store)
        self._opened = OpenedWindows(self._slots, self._index, wanted=announces)
        self._sessions = SessionSegments(self._slots, self._index, self.groups, self._opened, self._window.gap)
        self._in_order = InOrderSegments(
            self._slots, self._index, self.groups, self._opened, self._window, at_once=self._at_once, lasting=lasting)
        self._changed: set[tuple[int, int]] = set()
        self._closing: list[tuple[int, int, int]] = []
        self._waiting: dict[tuple[int, int], int] = {}

    # -- what the agg task calls -------------------------------------------------------------------------------

    def apply(
        self, partials: pa.RecordBatch, input: int, until: int | None, *, replayed: bool
    ) -> list[WindowState]:
        """Takes partials of one input and returns the results that change.

        A partial with 0 rows makes the segments of its group from `_wstart` to `_wlast` void. One with fewer than 0
        names a start for which an earlier attempt may have written a result. `replayed`: it may have done so for any
        window that is touched. `until`: the watermark. A returned state with `rows` 0 says that the window's result is
        to be deleted.
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
        appended = self._in_order.follow(_only(partials, plain), groups)
        plain[plain] = appended
        states = []
        if appended.any():
            states.append(self._in_order.append(_only(partials, plain), groups[appended], until))
        if not plain.all():
            others = _only(partials, ~plain)
            states.append(self._apply(others, input, until, replayed=False))
            self._find_tails(others)
        return [state for state in states if state is not None]

    def _apply(self, partials: pa.RecordBatch, input: int, until: int | None, *, replayed: bool) -> WindowState | None:
        """Takes any partials, one by one."""
        self._index.index_all()
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
            touched = self._apply_sessions(partials, void, input, withdrawn, replayed=replayed)
        else:
            if void.any():
                for group, first, last in self._stretches(partials.filter(pa.array(void))):
                    self._remove(input, group, first, last, withdrawn)
                partials = partials.filter(pa.array(~void))
            touched = self._add(partials, input)
        if replayed:
            withdrawn.update((window.group, int(self._slots.start_of[slot]))
                             for window in touched for slot in window.slots)
        return self._changes(touched, withdrawn, until)

    def announced(self) -> tuple[list[WindowState], WindowState | None]:
        """Returns the windows that have opened since the last call, and those that had opened and are none any more.

        The results that changed meanwhile must have been sent before: of those nothing is said here.
        """
        opened, gone = self._opened.take()
        return opened, self._state_of([], gone) if gone else None

    def close_until(self, until: int) -> list[WindowState]:
        """Returns the results of the windows that the new watermark closes."""
        found = [self._in_order.close(until)] if self._alone and not self._delays else []
        windows: dict[tuple[int, int], SegmentWindow] = {}
        if self._closing and self._closing[0][0] < until:
            self._index.index_all()
        while self._closing and self._closing[0][0] < until:
            last, group, start = heapq.heappop(self._closing)
            if self._waiting.get((group, start)) != last:
                continue
            del self._waiting[group, start]
            window = self._window_at(group, start)
            if window is not None and (
                not self._slots.out.data[window.slots[0]] or (group, window.start) in self._changed
            ):
                windows[group, window.start] = window
        found.append(self._changes(list(windows.values()), set(), until))
        return [state for state in found if state is not None]

    def next_closing(self) -> int | None:
        """Returns the least watermark at which a window is over for certain: a session's gap is added here."""
        while self._closing and self._waiting.get(self._closing[0][1:]) != self._closing[0][0]:
            heapq.heappop(self._closing)
        lasts = [self._closing[0][0]] if self._closing else []
        slots = np.flatnonzero(self._slots.open)
        if len(slots):
            lasts.append(int(self._slots.last_of.data[slots].min()) + self._open_for)
        return min(lasts) - self._open_for + self._window.gap + 1 if lasts else None

    @property
    def has_changed(self) -> bool:
        """Whether a window has changed since its result was shown last (MAX_DELAY)."""
        return bool(self._changed)

    def overdue(self) -> WindowState | None:
        """Returns the results of all windows that changed since they were shown, closed or not (MAX_DELAY)."""
        self._index.index_all()
        windows: dict[tuple[int, int], SegmentWindow] = {}
        for group, start in sorted(self._changed):
            window = self._window_at(group, start)
            if window is not None and self._counts(window, self._last(window)):
                windows[group, window.start] = window
                self._slots.set_out(window.slots[0], True)
        self._changed.clear()
        return self._state_of(list(windows.values()), []) if windows else None

    # -- memory and checkpoints --------------------------------------------------------------------------------

    @property
    def slots_used(self) -> int:
        return self._slots.used

    @property
    def memory_bytes(self) -> int:
        return self._slots.memory_bytes

    def spill(self, bytes_max: int, closed_until: int | None) -> None:
        """Moves the oldest segments out of memory until what stays is at most `bytes_max`, or less."""
        while (held := self.memory_bytes) > bytes_max:
            self._index.index_all()
            slots = np.flatnonzero(self._slots.used_slots)
            kept = len(slots) * (bytes_max * 3 // 4) // held
            oldest = slots[np.argsort(self._slots.start_of[slots], kind="stable")][: len(slots) - kept]
            self._index.write(oldest)
            for slot in oldest.tolist():
                if self._slots.open[slot]:
                    self._wait_stored(*self._place_of(slot), int(self._slots.last_of.data[slot]) + self._open_for)
                self._index.evict(slot)

    def save(self) -> dict[str, Any]:
        """Hands everything that changed since the last call to the store; returns what `restore` needs besides."""
        return {"newest_stored": self._index.save()}

    def restore(self, meta: dict[str, Any], closed_until: int | None) -> None:
        """Loads the groups, the segments that may still grow, and the newest one of each group and input."""
        self._index.restore(meta["newest_stored"])
        newest: dict[tuple[int, int], int] = {}
        for key, value in self._index.stored():
            slot = self._index.adopted(key, value)
            (group, start), last = self._place_of(slot), int(self._slots.last_of.data[slot]) + self._open_for
            if not self._at_once and (
                    closed_until is None or last >= closed_until or self._in_order.may_be_open(slot)):
                self._wait(group, start, last)
                if self._delays:
                    self._changed.add((group, start))
                continue
            line = int(self._slots.input_of[slot]), group
            if line in newest:
                self._index.evict(newest[line])
            newest[line] = slot
        if self._alone:
            self._find_tails(None)

    def validate(self) -> None:
        """Raises InternalError if the index and the slots disagree."""
        self._index.index_all()
        self._index.validate()

    # -- segments ----------------------------------------------------------------------------------------------

    def _find_tails(self, partials: pa.RecordBatch | None) -> None:
        """Looks up the newest segments of the groups of some partials, or of all (None)."""
        if partials is None:
            self._index.find_tails(None)
            return
        numbers = self.groups.numbers(np.unique(partials.column(GROUP.name).to_numpy()))
        self._index.find_tails(numbers[numbers >= 0].tolist())

    def _place_of(self, slot: int) -> tuple[int, int]:
        return int(self._slots.group_of[slot]), int(self._slots.start_of[slot])

    def _add(self, partials: pa.RecordBatch, input: int) -> list[SegmentWindow]:
        """Adds partials to the segments that start where they do."""
        if not partials.num_rows:
            return []
        groups = self.groups.intern(partials)
        slots = self._index.find(groups, partials.column(WINDOW_START.name).to_numpy(), input)
        self._slots.add(slots, partials, slice(None), 3 + len(self.groups.key_fields))
        return [SegmentWindow(group, int(self._slots.start_of[slot]), (slot,))
                for group, slot in zip(groups.tolist(), slots.tolist(), strict=True)]

    def _stretches(self, voids: pa.RecordBatch) -> list[tuple[int, int, int]]:
        """Returns (group, first, last) of partials without rows; groups that never had any are left out."""
        groups = self.groups.numbers(voids.column(GROUP.name).to_numpy()).tolist()
        firsts, lasts = (voids.column(name).to_pylist() for name in (WINDOW_START.name, LAST_ROW))
        return [stretch for stretch in zip(groups, firsts, lasts, strict=True) if stretch[0] >= 0]

    def _remove(self, input: int, group: int, first: int, last: int, withdrawn: set[tuple[int, int]]) -> None:
        """Removes the segments that start in a stretch; those whose result is out go to `withdrawn`."""
        self._index.load_between(input, group, first, last)
        for slot in self._index.starting_in(input, group, first, last):
            if self._slots.out.data[slot]:
                withdrawn.add(self._place_of(slot))
            else:
                self._opened.void(slot)
            self._index.remove(slot)

    def _apply_sessions(
        self, partials: pa.RecordBatch, void: Bools, input: int, withdrawn: set[tuple[int, int]], *, replayed: bool
    ) -> list[SegmentWindow]:
        touched: Stretches = {}
        for group, first, last in self._stretches(partials.filter(pa.array(void))):
            touched.setdefault(group, []).append(self._sessions.withdraw(
                group, first, last, withdrawn, replayed=replayed))
            self._remove(input, group, first, last, withdrawn)
        added = partials.filter(pa.array(~void)) if void.any() else partials
        if added.num_rows:
            self._sessions.add(added, input, touched, withdrawn, replayed=replayed)
        return self._sessions.windows_of(touched)

    # -- windows and results -----------------------------------------------------------------------------------

    def _window_at(self, group: int, time: int) -> SegmentWindow | None:
        if self._window.kind == "session":
            found = self._sessions.windows_between(group, time, time)
            return next((window for window in found if window.start <= time <= self._last(window)), None)
        self._index.load_between(0, group, time, time)
        slot = self._index.slot(0, group, time)
        return None if slot is None else SegmentWindow(group, time, (slot,))

    def _last(self, window: SegmentWindow) -> int:
        return max(int(self._slots.last_of.data[slot]) for slot in window.slots)

    def _changes(
        self, windows: Sequence[SegmentWindow], withdrawn: set[tuple[int, int]], until: int | None
    ) -> WindowState | None:
        """Returns the relation `state` of touched windows whose results are to be written or deleted."""
        shown: list[SegmentWindow] = []
        for window in windows:
            last, leader = self._last(window), window.slots[0]
            closed = until is not None and last + self._open_for < until and not self._in_order.grows(leader)
            if self._opened.wanted:
                self._announce(window, closed=closed)
            if not closed and not self._at_once:
                self._wait(window.group, window.start, last + self._open_for)
                if self._delays:
                    self._changed.add((window.group, window.start))
            if (closed or self._at_once) and self._counts(window, last):
                shown.append(window)
                self._slots.set_out(leader, True)
                self._changed.discard((window.group, window.start))
            elif self._slots.out.data[leader] and not (self._delays and self._counts(window, last)):
                withdrawn.add((window.group, window.start))
                self._slots.set_out(leader, False)
        gone = sorted(place for place in withdrawn
                      if not any(self._slots.out.data[slot] for slot in self._index.slots_at(*place)))
        return self._state_of(shown, gone) if shown or gone else None

    def _announce(self, window: SegmentWindow, *, closed: bool) -> None:
        if closed:
            self._opened.absorb(window)
        elif self._opened.is_new(window):
            self._opened.add(self._state_of([window], []))

    def _counts(self, window: SegmentWindow, last: int) -> bool:
        """Whether the window is complete (event) and long enough."""
        ends_of = self._slots.ends_of
        ended = ends_of is None or any(ends_of.data[slot] > 0 for slot in window.slots)
        return ended and last - window.start >= self._window.least

    def _wait(self, group: int, start: int, last: int) -> None:
        """Makes sure that the window is looked at when the watermark passes `last`; it may turn out to be longer."""
        if self._alone and not self._delays:
            slot = self._index.slot(0, group, start)
            assert slot is not None
            self._slots.open[slot] = True
        else:
            self._wait_stored(group, start, last)

    def _wait_stored(self, group: int, start: int, last: int) -> None:
        known = self._waiting.get((group, start))
        if known is None or last < known:
            self._waiting[group, start] = last
            heapq.heappush(self._closing, (last, group, start))

    def _state_of(self, windows: Sequence[SegmentWindow], gone: Sequence[tuple[int, int]]) -> WindowState:
        """Returns the relation `state`: windows with what their segments hold together, then those without rows."""
        count, table = len(windows) + len(gone), self._slots
        rows = np.zeros(count, np.int64)
        columns = columns_for(table.fields, count)
        for rank in range(max((len(window.slots) for window in windows), default=0)):
            places = np.array([n for n, window in enumerate(windows) if len(window.slots) > rank], np.int64)
            slots = np.array([windows[n].slots[rank] for n in places.tolist()], np.int64)
            rows[places] += table.rows[slots]
            table.combine(columns, places, table.columns, slots)
        groups = np.array([window.group for window in windows] + [group for group, _ in gone], np.int64)
        starts = np.array([window.start for window in windows] + [start for _, start in gone], np.int64)
        return WindowState(self.groups, groups, starts, rows, table.fields, columns)


def _only(partials: pa.RecordBatch, chosen: Bools) -> pa.RecordBatch:
    return partials if chosen.all() else partials.filter(pa.array(chosen))
