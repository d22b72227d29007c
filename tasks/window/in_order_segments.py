"""The fast path of segments: one input whose rows come in order, where each segment is a window, all in columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.planner.task_plans.stream_plan import RowWindow
from penstock.tasks.compute.accumulators import Slots
from penstock.tasks.compute.group_index import GroupIndex
from penstock.tasks.protocol.block_schema import WINDOW_START
from penstock.tasks.window.opened_windows import OpenedWindows
from penstock.tasks.window.segment_index import SegmentIndex
from penstock.tasks.window.segment_slots import SegmentSlots
from penstock.tasks.window.window_state import WindowState

Bools = np.ndarray[Any, np.dtype[np.bool_]]


class InOrderSegments:
    """Extends the newest segments of groups, and closes all that are over. `at_once`: results are out from the first
    row on."""

    def __init__(self, slots: SegmentSlots, index: SegmentIndex, groups: GroupIndex, opened: OpenedWindows,
                 window: RowWindow, *, at_once: bool, lasting: bool = False) -> None:
        self._slots = slots
        self._index = index
        self._groups = groups
        self._opened = opened
        self._window = window
        self._at_once = at_once
        self._open_for = window.gap if lasting else 0
        #: the next row of a group may join its newest state, however much later it is
        self._tails_grow = lasting and window.kind == "state"

    def grows(self, slot: int) -> bool:
        """Whether the next row of the group in order may join a segment, whatever the time."""
        return self._tails_grow and int(self._index.tails[self._slots.group_of[slot]]) == slot

    def may_be_open(self, slot: int) -> bool:
        """Whether a segment may still be one that `grows`, or was when the checkpoint was taken that it is from."""
        return self._tails_grow and not self._slots.out.data[slot]

    def follow(self, partials: pa.RecordBatch, groups: Slots) -> Bools:
        """Returns which partials extend the newest segment of their group or come behind it, as those of in-order rows.

        A group's partials are all of this kind or none is. The newest segment must be in memory.
        """
        self._index.make_room()
        starts = partials.column(WINDOW_START.name).to_numpy()
        head = np.ones(len(groups), bool)
        head[1:] = groups[1:] != groups[:-1]
        good = head.copy()
        good[1:] |= starts[1:] > starts[:-1]
        tails = self._index.tails[groups]
        known = tails >= 0
        begin, reach = self._slots.start_of[tails], self._slots.last_of.data[tails] + self._window.gap
        good &= ~known | (starts >= begin)
        if self._window.kind == "session":
            # Behind the first, segments must stay apart from what the newest one reaches.
            good &= ~known | head | (starts > reach)
        stored = self._index.are_stored(groups[head])
        if stored is not None:
            good &= known | ~np.repeat(stored, np.diff(np.append(np.flatnonzero(head), len(groups))))
        if good.all() and head.sum() == len(np.unique(groups[head])):
            return good
        bad = np.zeros(len(self._groups), bool)
        bad[groups[~good]] = True
        bad |= np.bincount(groups[head], minlength=len(bad)) > 1
        return ~bad[groups]

    def append(self, partials: pa.RecordBatch, groups: Slots, until: int | None) -> WindowState | None:
        """Takes partials that `follow`; returns the results that change. `until`: the watermark."""
        table = self._slots
        starts = partials.column(WINDOW_START.name).to_numpy()
        tails = self._index.tails[groups]
        if self._window.kind == "session":
            extends = (tails >= 0) & (starts <= table.last_of.data[tails] + self._window.gap)
        else:
            extends = (tails >= 0) & (starts == table.start_of[tails])
        slots = np.where(extends, tails, -1)
        fresh = np.flatnonzero(~extends)
        if len(fresh):
            slots[fresh] = self._index.append(groups[fresh], starts[fresh])
        table.add(slots, partials, slice(None), 3 + len(self._groups.key_fields))
        self._index.tails[groups] = slots  # the last of a group's partials is the newest
        out, counts = table.out.data[slots], self._count(slots)
        over = np.zeros_like(out) if until is None else self._over(slots, until)
        shown = counts.copy() if self._at_once else counts & over
        if not self._at_once:
            table.open[slots] = ~over
        if self._opened.wanted:
            opened = np.unique(slots[table.open[slots] & ~table.announced[slots]])
            table.announced[opened] = True
            if len(opened):
                self._opened.add(self._state_of(opened, opened[:0]))
        gone = out & ~shown
        table.out.data[slots] = shown
        table.out.valid[slots] = True
        return self._state_of(slots[shown], slots[gone]) if shown.any() or gone.any() else None

    def close(self, until: int) -> WindowState | None:
        """Returns the results of the windows that the new watermark closes."""
        table = self._slots
        slots = np.flatnonzero(table.open)
        slots = slots[self._over(slots, until)]
        table.open[slots] = False
        shown = slots[self._count(slots) & ~table.out.data[slots]]
        table.out.data[shown] = True
        table.out.valid[shown] = True
        table.dirty[shown] = True
        return self._state_of(shown, shown[:0]) if len(shown) else None

    def _over(self, slots: Slots, until: int) -> Bools:
        """Returns which segments the watermark closes."""
        over: Bools = self._slots.last_of.data[slots] + self._open_for < until
        return over & (self._index.tails[self._slots.group_of[slots]] != slots) if self._tails_grow else over

    def _count(self, slots: Slots) -> Bools:
        """Returns which segments are complete (event) and long enough."""
        table = self._slots
        counts: Bools = table.last_of.data[slots] - table.start_of[slots] >= self._window.least
        if table.ends_of is not None:
            counts &= table.ends_of.data[slots] > 0
        return counts

    def _state_of(self, shown: Slots, gone: Slots) -> WindowState:
        """Returns the state of segments that are windows, then that of some whose results are to be deleted."""
        table = self._slots
        slots = np.concatenate([shown, gone])
        rows = table.rows[slots]
        rows[len(shown):] = 0
        columns = [column.take(slots) for column in table.columns[: len(table.fields)]]
        withdrawn = np.arange(len(shown), len(slots))
        for column in columns:
            column.clear(withdrawn)
        return WindowState(self._groups, table.group_of[slots], table.start_of[slots], rows, table.fields, columns)
