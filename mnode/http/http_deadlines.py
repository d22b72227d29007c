"""A client that may be slow on purpose: of its requests time runs per request, not per read.

Each call of the system costs a quick client more than what it asks for. That a wait ends is thus left to the system
itself where it can be, which it can't within TLS.
"""

from __future__ import annotations

import io
import math
import select
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any

from penstock.common.clock import SystemClock

_MS_PER_S, _US_PER_S = 1000, 1_000_000


def send(connection: socket.socket, data: bytes | bytearray, within_s: float) -> None:
    """Sends all. Raises OSError, TimeoutError if it takes too long."""
    if isinstance(connection, ssl.SSLSocket):
        before = connection.gettimeout()
        connection.settimeout(within_s)
        connection.sendall(data)
        connection.settimeout(before)
        return
    due: float | None = None
    left: bytes | bytearray | memoryview = data
    while (sent := _sent_at_once(connection, left)) < len(left):
        left = memoryview(left)[sent:]
        now = SystemClock.monotonic()
        due = now + within_s if due is None else due
        if due <= now or not _takes_more(connection, due - now):
            raise TimeoutError("it took too long")


def _sent_at_once(connection: socket.socket, data: bytes | bytearray | memoryview) -> int:
    # Not by the socket's own timeout, which is that of who reads from it meanwhile, too.
    try:
        return connection.send(data, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return 0


def _takes_more(connection: socket.socket, within_s: float) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLOUT)
    return bool(poll.poll(within_s * _MS_PER_S))


class TimedReader(io.RawIOBase):
    """What a client sends. Raises TimeoutError when the client has used up its time."""

    def __init__(self, connection: socket.socket, monotonic: Callable[[], float]) -> None:
        self._connection = connection
        self._wait_s: float | None = None
        if not isinstance(connection, ssl.SSLSocket):
            connection.settimeout(None)
        self._monotonic = monotonic
        self._waits = False
        self._idle_s = self._header_s = 0.0
        self._due = 0.0
        self._rate: float | None = None
        self._unread = b""
        self._rests = False

    def await_request(self, idle_s: float, header_s: float) -> None:
        """Gives the client `idle_s` to begin its next request, and `header_s` from then on for the whole header."""
        self._due, self._rate = self._monotonic() + idle_s, None
        self._waits, self._idle_s, self._header_s = True, idle_s, header_s

    def await_body(self, grace_s: float, rate: float) -> None:
        """Gives the client `grace_s` from now on, and a second more for each `rate` bytes that have come."""
        self._due, self._rate = self._monotonic() + grace_s, rate
        self._waits = False

    def unread(self, data: bytes) -> None:
        """Has somebody else's reading read again."""
        self._unread = data

    def holds(self, stream: io.BufferedReader[Any]) -> bool:
        """Tells whether a stream that reads from here has more than was taken from it."""
        self._rests = True
        try:
            return bool(stream.peek())
        finally:
            self._rests = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int | None:  # type: ignore[override]  # that is what it is given
        if self._rests:
            return None
        left_s = self._due - self._monotonic()
        if left_s <= 0:
            raise TimeoutError("it took too long")
        if self._unread:
            count = min(len(buffer), len(self._unread))
            buffer[:count], self._unread = self._unread[:count], self._unread[count:]
        else:
            count = self._received(buffer, left_s)
        if self._waits:
            self._waits, self._due = False, self._monotonic() + self._header_s
        elif self._rate is not None:
            self._due += count / self._rate
        return count

    def _received(self, buffer: memoryview, left_s: float) -> int:
        # Most requests come at once, so that there is nothing to be changed from one to the next.
        self._end_reading_after(self._idle_s if self._waits else left_s)
        try:
            return self._connection.recv_into(buffer)
        except BlockingIOError as error:
            raise TimeoutError("it took too long") from error

    def _end_reading_after(self, wait_s: float) -> None:
        if isinstance(self._connection, ssl.SSLSocket):
            self._connection.settimeout(wait_s)
        elif wait_s != self._wait_s:
            seconds, us = divmod(math.ceil(wait_s * _US_PER_S), _US_PER_S)
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", seconds, us))
            self._wait_s = wait_s
