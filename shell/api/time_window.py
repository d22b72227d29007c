"""Reads a database cut by cut: a window has exactly the rows that were written between two cuts."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.common.closing import Closing


class TimeWindow(Closing):
    """The rows written to a database after the cut `first` and up to the cut `last`. `str()` returns a clause for FROM:

    `connection.execute(f"SELECT * FROM meters {window}")`. Close it after use, or use it in a `with` block. Until then,
    its rows stay readable as they were at `last`.
    """

    def __init__(self, first: str, last: str, begin: Callable[[str], TimeWindow], release: Callable[[], None]) -> None:
        """`begin` makes the window that follows a cut, `release` lets go of the rows."""
        self.first = first
        self.last = last
        self._begin = begin
        self._release: Callable[[], None] | None = release
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return f"BETWEEN CUT '{self.first}' AND '{self.last}'"

    def next(self) -> TimeWindow:
        """Returns the window from the end of this one to the current cut, and closes this one."""
        following = self._begin(self.last)
        self.close()
        return following

    def close(self) -> None:
        """Releases the rows. May be called twice."""
        with self._lock:
            release, self._release = self._release, None
        if release is not None:
            release()
