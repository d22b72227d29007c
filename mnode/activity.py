"""Who is connected and which statements run now; for perf_connections and SHOW QUERIES."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from penstock.common.clock import Clock


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """One connection; times are milliseconds since the epoch."""

    id: int
    user: str
    login_ms: int
    last_access_ms: int


@dataclass(frozen=True, slots=True)
class RunningStatement:
    """One statement under way. `started_at` is monotonic seconds. `progress`: how far it is, where it says so."""

    id: int
    connection_id: int
    started_ms: int
    started_at: float
    text: str
    progress: str = ""
    user: str = ""


class Activity:
    """Thread-safe, and cheap enough for every statement."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._connections: dict[int, ConnectionInfo] = {}
        self._running: dict[int, RunningStatement] = {}
        self._of_thread = threading.local()

    def login(self, user: str) -> int:
        """Returns the id of a new connection."""
        now = self._clock.now_ms()
        with self._lock:
            number = next(self._numbers)
            self._connections[number] = ConnectionInfo(number, user, now, now)
            return number

    def logout(self, connection_id: int) -> None:
        """Forgets a connection; an unknown one is no error."""
        with self._lock:
            self._connections.pop(connection_id, None)

    @contextmanager
    def statement(self, connection_id: int, text: str, user: str) -> Iterator[None]:
        """Lists a statement while it runs."""
        now = self._clock.now_ms()
        with self._lock:
            number = next(self._numbers)
            self._running[number] = RunningStatement(
                number, connection_id, now, self._clock.monotonic(), text, user=user)
            known = self._connections.get(connection_id)
            if known is not None:
                self._connections[connection_id] = replace(known, last_access_ms=now)
        self._of_thread.statement = number
        try:
            yield
        finally:
            with self._lock:
                del self._running[number]

    def note_progress(self, text: str) -> None:
        """Says how far the statement is that the calling thread executes."""
        with self._lock:
            known = self._running.get(getattr(self._of_thread, "statement", 0))
            if known is not None:
                self._running[known.id] = replace(known, progress=text)

    def connections(self) -> list[ConnectionInfo]:
        with self._lock:
            return list(self._connections.values())

    def running(self) -> list[tuple[RunningStatement, int]]:
        """Returns the statements under way, each with the microseconds it has run."""
        now = self._clock.monotonic()
        with self._lock:
            return [(each, round((now - each.started_at) * 1e6)) for each in self._running.values()]
