"""What the state stores of one worker keep in memory before it goes to LMDB: one bound for all of them."""

from __future__ import annotations

import threading

DEFAULT_BYTES = 128 * 1024 * 1024


class StateCache:
    """Counts bytes. A store may hold as much as is then still free: a busy one leaves room for the others.

    Thread-safe: each stream has a thread of its own.
    """

    def __init__(self, limit_bytes: int = DEFAULT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._lock = threading.Lock()

    def take(self, held: int, more: int) -> bool:
        """Books `more` bytes for a store that holds `held`, and returns True; or returns False if they are too many."""
        with self._lock:
            if held + more > self.limit_bytes - self.used_bytes - more:
                return False
            self.used_bytes += more
            return True

    def give_back(self, nbytes: int) -> None:
        with self._lock:
            self.used_bytes -= nbytes
