"""Sessions: segments of all inputs that lie within the gap of each other make up one window, and may be merged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from penstock.planner.task_plans.stream_plan import LAST_ROW
from penstock.tasks.compute.group_index import GroupIndex
from penstock.tasks.protocol.block_schema import WINDOW_START
from penstock.tasks.window.opened_windows import OpenedWindows, SegmentWindow
from penstock.tasks.window.segment_index import TIME_MAX, TIME_MIN, SegmentIndex
from penstock.tasks.window.segment_slots import SegmentSlots

Stretches = dict[int, list[tuple[int, int]]]
"""(first, last) time of what was touched, per group."""


class SessionSegments:
    """Adds and removes segments of sessions, whose gap is `gap`."""

    def __init__(
        self, slots: SegmentSlots, index: SegmentIndex, groups: GroupIndex, opened: OpenedWindows, gap: int
    ) -> None:
        self._slots = slots
        self._index = index
        self._groups = groups
        self._opened = opened
        self._gap = gap

    def add(self, added: pa.RecordBatch, input: int, touched: Stretches, withdrawn: set[tuple[int, int]], *,
            replayed: bool) -> None:
        """Adds segments, merging those of this input that they bring within the gap of each other."""
        slots, first_field = self._slots, 3 + len(self._groups.key_fields)
        groups = self._groups.intern(added).tolist()
        starts = added.column(WINDOW_START.name).to_pylist()
        lasts = added.column(LAST_ROW).to_pylist()
        targets = np.empty(len(groups), np.int64)
        begin = 0
        taken: set[int] = set()
        for row, (group, start, last) in enumerate(zip(groups, starts, lasts, strict=True)):
            touched.setdefault(group, []).append(self.withdraw(group, start, last, withdrawn, replayed=replayed))
            near = self._near(input, group, start, last)
            if len(near) > 1 or not taken.isdisjoint(near):
                # What was found so far has to be in place before its segments are merged or hit again.
                slots.add(targets[begin:row], added, np.arange(begin, row), first_field)
                begin, taken = row, set()
            slot = self._merged(near) if near else self._index.add(group, start, input)
            if start < slots.start_of[slot]:
                self._opened.void(slot)
                self._index.move(slot, start)
            targets[row] = slot
            taken.add(slot)
            # Later rows of this batch must see how far the segment reaches now.
            slots.last_of.data[slot] = max(last, int(slots.last_of.data[slot])) if near else last
            slots.last_of.valid[slot] = True
        slots.add(targets[begin:], added, np.arange(begin, len(groups)), first_field)

    def withdraw(self, group: int, first: int, last: int, withdrawn: set[tuple[int, int]], *, replayed: bool
                 ) -> tuple[int, int]:
        """Notes the results that are out around a stretch as withdrawn; returns how far their windows reach.

        `replayed`: an earlier attempt may have let out any of them, after the checkpoint that the segments are from.
        """
        first, last, slots = self._reach(group, first, last)
        for slot in slots:
            if replayed or self._slots.out.data[slot]:
                withdrawn.add((group, int(self._slots.start_of[slot])))
                self._slots.set_out(slot, False)
        return first, last

    def windows_of(self, touched: Stretches) -> list[SegmentWindow]:
        """Returns the windows that have a part in what was touched."""
        return [window for group, spans in touched.items() for first, last in _united(spans, self._gap)
                for window in self.windows_between(group, first, last)]

    def windows_between(self, group: int, first: int, last: int) -> list[SegmentWindow]:
        """Returns the windows that have a part within the gap of a stretch."""
        _, _, slots = self._reach(group, first, last)
        slots.sort(key=lambda slot: (int(self._slots.start_of[slot]), slot))
        windows: list[list[int]] = []
        high = TIME_MIN
        for slot in slots:
            start = int(self._slots.start_of[slot])
            if windows and start - high <= self._gap:
                windows[-1].append(slot)
            else:
                windows.append([slot])
                high = TIME_MIN
            high = max(high, int(self._slots.last_of.data[slot]))
        return [SegmentWindow(group, int(self._slots.start_of[members[0]]), tuple(members)) for members in windows]

    def _near(self, input: int, group: int, first: int, last: int) -> list[int]:
        """Returns the slots of an input's segments within the gap of a stretch, in order."""
        low = self._index.previous(input, group, first)
        high = min(last, TIME_MAX - self._gap) + self._gap
        self._index.load_between(input, group, first, high)
        found = self._index.starting_in(input, group, first, high)
        if low is not None and int(self._slots.last_of.data[low]) + self._gap >= first:
            found.insert(0, low)
        return found

    def _reach(self, group: int, first: int, last: int) -> tuple[int, int, list[int]]:
        """Returns the hull and the slots of all inputs' segments that are connected with a stretch."""
        while True:
            slots = [slot for input in self._index.inputs for slot in self._near(input, group, first, last)]
            low = min((int(self._slots.start_of[slot]) for slot in slots), default=first)
            high = max((int(self._slots.last_of.data[slot]) for slot in slots), default=last)
            if low >= first and high <= last:
                return first, last, slots
            first, last = min(first, low), max(last, high)
            if len(self._index.inputs) == 1:
                return first, last, slots

    def _merged(self, slots: Sequence[int]) -> int:
        """Merges segments into the first of them."""
        target, table = slots[0], self._slots
        for other in slots[1:]:
            table.rows[target] += table.rows[other]
            table.combine(table.columns, np.array([target]), table.columns, np.array([other]))
            self._opened.void(other)
            self._index.remove(other)
        table.dirty[target] = True
        return target


def _united(spans: Iterable[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Returns the stretches with those within `gap` of each other as one."""
    united: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if united and first - united[-1][1] <= gap:
            united[-1] = united[-1][0], max(last, united[-1][1])
        else:
            united.append((first, last))
    return united
