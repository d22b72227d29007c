"""Which windows defined by rows have opened, and which of these no longer exist: for notifications."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.tasks.window.segment_index import SegmentIndex
from penstock.tasks.window.segment_slots import SegmentSlots
from penstock.tasks.window.window_state import WindowState


@dataclass(frozen=True, slots=True)
class SegmentWindow:
    """A window: the slots of its segments in order of their starts; it starts where the first of them does."""

    group: int
    start: int
    slots: tuple[int, ...]


class OpenedWindows:
    """`wanted`: whether anybody wants to know. A segment is announced while its slot stands for an open window."""

    def __init__(self, slots: SegmentSlots, index: SegmentIndex, *, wanted: bool) -> None:
        self.wanted = wanted
        self._slots = slots
        self._index = index
        self._opened: list[WindowState] = []
        self._retracted: set[tuple[int, int]] = set()

    def add(self, states: WindowState) -> None:
        self._opened.append(states)

    def take(self) -> tuple[list[WindowState], list[tuple[int, int]]]:
        """Returns and forgets the windows that have opened, and (group, start) of those that are none any more."""
        opened, self._opened = self._opened, []
        gone = sorted(window for window in self._retracted if not self._is_known(*window))
        self._retracted.clear()
        return opened, gone

    def is_new(self, window: SegmentWindow) -> bool:
        """Notes that a window is open; segments that have become a part of it are no windows any more."""
        self.absorb(window)
        leader = window.slots[0]
        if self._slots.announced[leader]:
            return False
        self._slots.announced[leader] = True
        return True

    def absorb(self, window: SegmentWindow) -> None:
        """Notes that segments behind a window's first are no windows of their own."""
        for slot in window.slots[1:]:
            self.void(slot, window.start)

    def void(self, slot: int, start: int | None = None) -> None:
        """Notes that what a segment was announced as is no window any more, unless one starts there (`start`)."""
        if self.wanted and self._slots.announced[slot]:
            self._slots.announced[slot] = False
            if self._slots.start_of[slot] != start:
                self._retracted.add((int(self._slots.group_of[slot]), int(self._slots.start_of[slot])))

    def _is_known(self, group: int, start: int) -> bool:
        """Whether a window that starts there is announced, or its result is out: of those nothing is said here."""
        return any(self._slots.announced[slot] or self._slots.out.data[slot]
                   for slot in self._index.slots_at(group, start))
