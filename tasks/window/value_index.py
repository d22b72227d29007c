"""Where a result column has values: found from any window to the nearest one, over any number of NULLs.

Kept are only the windows where NULLs begin and where they end. So a column without NULLs costs nothing, and a long run
of them takes one step.
"""

from __future__ import annotations

import struct

from penstock.tasks.state.state_store import StateStore
from penstock.tasks.window.result_index import EDGES, ResultIndex


class ValueIndex:
    """Which windows of a `ResultIndex` have a value in one column. Call `save` along with that of the windows."""

    def __init__(self, store: StateStore, windows: ResultIndex, place: int) -> None:
        self._store = store
        self._windows = windows
        self._prefix = EDGES + struct.pack(">H", place)
        # Windows with NULL behind one with a value (or first of all), and with a value behind one with NULL.
        self._begins, self._ends = (ResultIndex(store, prefix=self._prefix + kind) for kind in (b"b", b"e"))
        self._has_nulls: bool | None = None

    @property
    def has_nulls(self) -> bool:
        """Whether any window has had NULL."""
        if self._has_nulls is None:
            self._has_nulls = self._store.neighbour(self._prefix, self._prefix, forward=True) is not None
        return self._has_nulls

    def note(self, gid: int, start: int, null: bool | None, *, fresh: bool) -> bool:
        """Notes what a window has, None if it is gone; the index of windows knows already.

        `fresh`: it wasn't there before. Returns whether windows with NULL beside it take another value now.
        """
        had_value = not fresh and not self._is_null(gid, start)
        before, after = self._windows.before(gid, start), self._windows.after(gid, start)
        prior = before is not None and self._is_null(gid, before)
        following = after is not None and self._is_null(gid, after)
        self._mark(gid, start, prior if null is None else null, prior)
        if after is not None:
            self._mark(gid, after, following, prior if null is None else null)
        return had_value or null is False

    def nearest(self, gid: int, start: int, *, forward: bool) -> int | None:
        """Returns the nearest window with a value after this one, or before it, or None."""
        found = self._windows.after(gid, start) if forward else self._windows.before(gid, start)
        if found is None or not self._is_null(gid, found):
            return found
        if forward:
            return self._ends.after(gid, found)
        begin = found if self._begins.has(gid, found) else self._begins.before(gid, found)
        return None if begin is None else self._windows.before(gid, begin)

    def save(self) -> None:
        """Hands what changed to the store."""
        self._begins.save()
        self._ends.save()

    def _is_null(self, gid: int, start: int) -> bool:
        if not self.has_nulls:
            return False
        begin, end = (start if index.has(gid, start) else index.before(gid, start)
                      for index in (self._begins, self._ends))
        return begin is not None and (end is None or end < begin)

    def _mark(self, gid: int, start: int, null: bool, prior: bool) -> None:
        for index, marked in ((self._begins, null and not prior), (self._ends, prior and not null)):
            if marked:
                index.add(gid, start)
                self._has_nulls = True
            elif index.has(gid, start):
                index.remove(gid, start)
