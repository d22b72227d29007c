"""The lock of the catalog, under which nobody waits for other nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType


class CatalogLock:
    """A lock that its holder may take again; what must be waited for is waited for when it has been let go of.

    Else everybody who reads the catalog, to log in or to ask how the nodes are, would wait for nodes that are away.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._waiting: Callable[[], None] | None = None

    def when_free(self, wait: Callable[[], None]) -> None:
        """Has who holds the lock wait when he has let go of it; of several the last, which stands for those before.

        What `wait` raises comes out of the block that held the lock. If that raises something itself, nobody waits.
        """
        self._waiting = wait

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
                 ) -> None:
        self._depth -= 1
        wait = None
        if self._depth == 0:
            wait, self._waiting = self._waiting, None
        self._lock.release()
        if wait is not None and kind is None:
            wait()
