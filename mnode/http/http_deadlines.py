"""Reading from a client that may be slow on purpose: time runs per request, not per read."""

from __future__ import annotations

import io
import socket
from collections.abc import Callable


class TimedReader(io.RawIOBase):
    """What a client sends. Raises TimeoutError when the client has used up its time."""

    def __init__(self, connection: socket.socket, monotonic: Callable[[], float]) -> None:
        self._connection = connection
        self._monotonic = monotonic
        self._waits = False
        self._due = 0.0
        self._rate: float | None = None

    def await_request(self, idle_s: float, header_s: float) -> None:
        """Gives the client `idle_s` to begin its next request, and `header_s` from then on for the whole header."""
        self._due, self._rate = self._monotonic() + idle_s, None
        self._waits, self._header_s = True, header_s

    def await_body(self, grace_s: float, rate: float) -> None:
        """Gives the client `grace_s` from now on, and a second more for each `rate` bytes that have come."""
        self._due, self._rate = self._monotonic() + grace_s, rate
        self._waits = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # that is what it is given
        left_s = self._due - self._monotonic()
        if left_s <= 0:
            raise TimeoutError("it took too long")
        self._connection.settimeout(left_s)
        count = self._connection.recv_into(buffer)
        if self._waits:
            self._waits, self._due = False, self._monotonic() + self._header_s
        elif self._rate is not None:
            self._due += count / self._rate
        return count
