"""Windows whose results wait for a timer: MAX_DELAY's open windows, CONTINUOUS_WINDOW_CLOSE's late changes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from penstock.tasks.compute.accumulators import Slots


class Delayed:
    """Collects changed windows; all are due `period_s` after the first of them was changed (monotonic time)."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._windows: dict[int, set[int] | None] = {}
        self.deadline: float | None = None

    def touch(self, start: int, groups: Iterable[int] | None, now: float) -> None:
        """Notes that these groups of a window (None: all of them) have changed."""
        known = self._windows.get(start, set())
        self._windows[start] = None if known is None or groups is None else known.union(groups)
        if self.deadline is None:
            self.deadline = now + self._period_s

    def discard(self, start: int) -> None:
        """Forgets a window: all of it was sent."""
        self._windows.pop(start, None)
        if not self._windows:
            self.deadline = None

    def due(self, now: float) -> bool:
        return self.deadline is not None and self.deadline <= now

    def take(self) -> list[tuple[int, Slots | None]]:
        """Returns and forgets all windows, oldest first."""
        taken = [(start, None if groups is None else np.array(sorted(groups), np.int64))
                 for start, groups in sorted(self._windows.items())]
        self._windows = {}
        self.deadline = None
        return taken

    def windows(self) -> dict[int, set[int] | None]:
        """Returns what waits: groups per window start."""
        return self._windows
