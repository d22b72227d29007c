"""Reading a database cut by cut: each window has exactly the rows that were written between two cuts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType


class TimeWindow:
    """What was written to a database after `first` and up to `last`, two stream cuts as text; `str()` is for FROM:

    `connection.execute(f"SELECT * FROM meters {window}")`. Close it when it is read, or use it in a `with` block: until
    then its rows stay readable as they were at `last`, whatever is written meanwhile.
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
        """Returns the window from the end of this one up to now, and closes this one."""
        following = self._begin(self.last)
        self.close()
        return following

    def close(self) -> None:
        """Lets go of the rows; closing twice is allowed."""
        with self._lock:
            release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> TimeWindow:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
