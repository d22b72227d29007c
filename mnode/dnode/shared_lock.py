"""A lock that many hold at the same time, or one alone: that one waits until nobody else holds it any more."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


class SharedLock(AbstractContextManager[None]):
    """Free at first. Whoever holds it must not ask for it again, but a thread that holds it alone may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._holders = 0
        self._alone = False
        self._thread = 0

    def shared(self) -> AbstractContextManager[None]:
        """Waits while one holds it alone; none does while the block runs."""
        return self  # single rows come this way: to make an object for each takes longer than to hold the lock

    def __enter__(self) -> None:
        with self._lock:
            if self._alone and self._thread != threading.get_ident():
                self._changed.wait_for(lambda: not self._alone)
            self._holders += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._holders -= 1
            if self._alone:
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lets nobody have it any more and waits until all have let go; then the block runs, alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._alone = True
            self._changed.wait_for(lambda: self._holders == 0)
            self._thread = threading.get_ident()
        try:
            yield
        finally:
            with self._changed:
                self._alone, self._thread = False, 0
                self._changed.notify_all()
