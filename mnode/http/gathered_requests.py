"""Simple requests of many connections, answered together: they are read, written into the log and acknowledged by one
thread, as many at a time as have come.

A thread per connection wakes up for each request, and waits for the interpreter at each call of the system. Here both
happen once for all that have come meanwhile. Whatever isn't simple goes back to the connection's own thread.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from penstock.common.bounded_server import shut
from penstock.common.clock import SystemClock
from penstock.common.errors import InternalError, PenstockError
from penstock.common.logging import logger

_log = logger(__name__)
_monotonic = SystemClock.monotonic
_READ_BYTES = 64 * 1024
_CAN_GATHER = hasattr(select, "epoll")
_IN_A_ROW, _IN_A_ROW_MAX = 8, 1024
_MOMENT_S = 0.01


class Begun(Protocol):
    """A write that has its place in the log and isn't acknowledged yet. `wait` raises PenstockErrors."""

    def wait(self) -> int: ...


class Gathered(Protocol):
    """One connection. Both are called by the gathering thread, while the connection's own rests; they wait for nobody.
    """

    def begin(self, data: bytes) -> Begun | None:
        """Begins what a request asks for. None, with nothing written, if the connection's own thread must answer; it
        finds there what has come.
        """

    def conclude(self, error: PenstockError | None) -> tuple[bytes | bytearray, bool]:
        """Returns the answer once the write is acknowledged or refused, and whether the next request may come here."""


class SimpleRun:
    """When a connection's requests are answered together with others': after some simple ones in a row, and after more
    of them where that didn't last.
    """

    def __init__(self, never: bool) -> None:
        """`never`: they can't be, as within TLS."""
        self._never = never or not _CAN_GATHER
        self._count, self._wanted = 0, _IN_A_ROW
        #: how many were answered so, since `goes_on` said so
        self.answered = 0

    def goes_on(self, *, simple: bool) -> bool:
        """Takes note of a request, and tells whether the next one is to be answered together with others'."""
        self._count = self._count + 1 if simple else 0
        return self._count >= self._wanted and not self._never

    def over(self) -> None:
        """One came that wasn't simple."""
        self._wanted = _IN_A_ROW if self.answered >= self._wanted else min(2 * self._wanted, _IN_A_ROW_MAX)
        self._count = self.answered = 0


class _RestingConnection:
    __slots__ = ("answering", "came", "connection", "gathered", "returned", "unsent")

    def __init__(self, connection: socket.socket, gathered: Gathered) -> None:
        self.connection = connection
        self.gathered = gathered
        self.came = _monotonic()
        self.answering = False
        self.unsent: bytes | bytearray = b""
        self.returned = threading.Event()


class GatheredRequests:
    """Thread-safe."""

    def __init__(self, together: Callable[[], AbstractContextManager[object]]) -> None:
        """`together` is held while writes are begun and acknowledged."""
        self._together = together
        self._lock = threading.Lock()
        self._guests: dict[int, _RestingConnection] = {}
        self._epoll: select.epoll | None = None
        self._wake: int | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def serve(self, connection: socket.socket, gathered: Gathered, idle_s: float | None = None) -> bytes | bytearray:
        """Answers a connection's requests as long as they are simple; returns what of the last answer wasn't sent.

        Called by the connection's own thread, which reads what comes from then on. Raises TimeoutError if nothing came
        for `idle_s`.
        """
        guest = _RestingConnection(connection, gathered)
        descriptor = connection.fileno()
        with self._lock:
            if self._closed or descriptor < 0:
                return b""
            self._guests[descriptor] = guest
            self._started().register(descriptor, select.EPOLLIN)
        while not guest.returned.wait(idle_s and max(_MOMENT_S, guest.came + idle_s - _monotonic())):
            with self._lock:
                is_idle = not guest.answering and idle_s is not None and guest.came + idle_s <= _monotonic()
                if is_idle and not guest.returned.is_set():
                    self._give_back(guest)
                    raise TimeoutError("no request came")
        return guest.unsent

    def close(self) -> None:
        """Gives all connections back to their threads."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
            if self._wake is not None:
                os.eventfd_write(self._wake, 1)
        if thread is not None:
            thread.join()

    def _started(self) -> select.epoll:
        if self._epoll is None:
            self._epoll, self._wake = select.epoll(), os.eventfd(0, os.EFD_CLOEXEC)
            self._epoll.register(self._wake, select.EPOLLIN)
            self._thread = threading.Thread(target=self._run, name="gathered requests", daemon=True)
            self._thread.start()
        return self._epoll

    def _give_back(self, guest: _RestingConnection) -> None:
        """Lets the connection's thread go on; the caller holds `_lock`."""
        assert self._epoll is not None
        descriptor = guest.connection.fileno()
        self._epoll.unregister(descriptor)
        del self._guests[descriptor]
        guest.returned.set()

    def _run(self) -> None:
        assert self._epoll is not None
        assert self._wake is not None
        while True:
            events = self._epoll.poll()
            with self._lock:
                if self._closed:
                    for left in list(self._guests.values()):
                        self._give_back(left)
                    self._epoll.close()
                    os.close(self._wake)
                    return
                guests = [guest for descriptor, _ in events if (guest := self._guests.get(descriptor)) is not None]
                for guest in guests:
                    guest.answering = True
            try:
                leaving = self._answer(guests)
            except Exception:  # noqa: BLE001 - whoever comes next must be answered
                _log.exception("requests could not be answered together")
                leaving = guests
                for guest in guests:
                    shut(guest.connection, socket.SHUT_RDWR)
            now = _monotonic()
            with self._lock:
                for guest in guests:
                    guest.answering, guest.came = False, now
                for guest in leaving:
                    self._give_back(guest)

    def _answer(self, guests: Sequence[_RestingConnection]) -> list[_RestingConnection]:
        """Answers what has come; returns those whose threads must go on."""
        leaving: list[_RestingConnection] = []
        asked = [(guest, data) for guest in guests if (data := _received(guest, leaving))]
        begun: list[tuple[_RestingConnection, Begun]] = []
        with self._together():
            for guest, data in asked:
                write = _begun(guest, data)
                if write is None:
                    leaving.append(guest)
                else:
                    begun.append((guest, write))
            # The first one that waits has the log written for all of them.
            outcomes = [(guest, _outcome(write)) for guest, write in begun]
        leaving += [guest for guest, error in outcomes if not _answered(guest, error)]
        return leaving


def _received(guest: _RestingConnection, leaving: list[_RestingConnection]) -> bytes:
    try:
        data = guest.connection.recv(_READ_BYTES, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""
    except OSError:
        data = b""
    if not data:  # its thread will see that, too
        leaving.append(guest)
    return data


def _begun(guest: _RestingConnection, data: bytes) -> Begun | None:
    try:
        return guest.gathered.begin(data)
    except Exception as error:  # noqa: BLE001 - its thread comes upon it again, and says so
        _log.debug("a request isn't simple: %s", type(error).__name__)  # the rest may hold secrets
        return None


def _outcome(write: Begun) -> PenstockError | None:
    try:
        write.wait()
    except PenstockError as error:
        return error
    except Exception as error:  # noqa: BLE001 - the others must have their answers
        _log.exception("a write could not be acknowledged")
        return InternalError.of(error)
    return None


def _answered(guest: _RestingConnection, error: PenstockError | None) -> bool:
    """Sends an answer; returns whether the next request may come here."""
    try:
        answer, stays = guest.gathered.conclude(error)
        guest.unsent = answer[guest.connection.send(answer, socket.MSG_DONTWAIT):]
    except BlockingIOError:
        guest.unsent, stays = answer, False
    except OSError:
        return False  # its thread will see that, too
    except Exception:  # noqa: BLE001 - the others must have their answers
        _log.exception("a request could not be answered")
        shut(guest.connection, socket.SHUT_RDWR)
        return False
    return stays and not guest.unsent
