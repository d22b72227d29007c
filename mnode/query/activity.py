"""Who is connected, to which ports, and which statements run now, for ins_ports, perf_connections and SHOW QUERIES; and
how statements are ended.

A statement is ended where it computes: in DuckDB, which is interrupted, between two batches of rows, and while it waits
for its turn. What it changes it changes whole or not at all.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from penstock.common.admission import PortCounts
from penstock.common.clock import Clock
from penstock.common.errors import (
    CancelledError,
    LimitExceededError,
    NotFoundError,
    PenstockError,
    PermissionDeniedError,
)
from penstock.common.quantities import seconds_text

_AGAIN_S = 0.05
_IDLE_S = 3600.0
_CLOSE_LOOKS = 1000

OnCancel = Callable[[Callable[[], None]], None]
"""Takes what is to be called when nobody waits for a statement's answer any more."""


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """One connection; times are milliseconds since the epoch."""

    id: int
    user: str
    login_ms: int
    last_access_ms: int


class Running:
    """One statement under way. Safe for many threads.

    `started_at` is monotonic seconds. `progress`: how far it is, where it says so. `user`: who sent it. `served`:
    whether that was by one of the engine's doors, not in its own process. `timeout_s`: how long it may compute; 0 is
    unlimited.
    """

    def __init__(
        self, number: int = 0, connection_id: int = 0, user: str = "", started_ms: int = 0, started_at: float = 0.0,
        text: str = "", on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_change` is called when the statement begins to compute, and when it is to end."""
        self.id = number
        self.connection_id = connection_id
        self.user = user
        self.started_ms = started_ms
        self.started_at = started_at
        self.text = text
        self.progress = ""
        self.served = False
        self.timeout_s = 0.0
        # Whether it only reads system tables: that takes little, and must work when memory is short.
        self.looks_inside = False
        self._on_change = on_change
        self._lock = threading.Lock()
        self._error: PenstockError | None = None
        self._interrupts: list[Callable[[], None]] = []

    @property
    def computes(self) -> bool:
        """Whether there is anything that `end` ends now."""
        return bool(self._interrupts)

    @property
    def is_to_end(self) -> bool:
        return self._error is not None

    def check(self) -> None:
        """Raises what the statement is to end with, if it is."""
        error = self._error
        if error is not None:
            # A new one each time: several threads may raise it.
            raise type(error)(error.message, code=error.code, hint=error.hint)

    def hold(self, interrupt: Callable[[], None]) -> None:
        """Has `interrupt` called, maybe several times, when the statement is to end. Raises what `check` does."""
        with self._lock:
            self._interrupts.append(interrupt)
        self._on_change()
        try:
            self.check()
        except PenstockError:
            self.let_go(interrupt)
            raise

    def let_go(self, interrupt: Callable[[], None]) -> None:
        """Takes back what `hold` was given."""
        with self._lock:
            self._interrupts = [each for each in self._interrupts if each != interrupt]

    def end(self, error: PenstockError) -> None:
        """Ends the statement with this error; the first one counts."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
        self.interrupt()
        self._on_change()

    def cancel(self) -> None:
        """Ends the statement since nobody waits for it."""
        self.end(CancelledError("the statement was cancelled"))

    def interrupt(self) -> None:
        """Interrupts what computes."""
        with self._lock:
            interrupts = list(self._interrupts)
        for interrupt in interrupts:
            interrupt()


@dataclass(frozen=True, slots=True)
class PortInfo:
    """A port that is open, and what is connected to it."""

    port: int
    purpose: str
    counts: PortCounts


class Activity:
    """Thread-safe, and cheap enough for every statement."""

    def __init__(self, clock: Clock, timeout_s: float = 0.0) -> None:
        """`timeout_s`: how long a statement may take that computes; 0 is unlimited."""
        self._clock = clock
        self._timeout_s = timeout_s
        self._ports: dict[int, tuple[str, Callable[[], PortCounts]]] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._connections: dict[int, ClientInfo] = {}
        self._accessed_ms: dict[int, int] = {}
        self._running: dict[int, Running] = {}
        self._of_thread = threading.local()
        self._wake = threading.Event()
        self._closed = False
        self._watching = False

    def port_opened(self, port: int, purpose: str, counts: Callable[[], PortCounts]) -> None:
        """Takes note of a port that is open from now on."""
        self._ports[port] = purpose, counts

    def ports(self) -> list[PortInfo]:
        """Returns the ports that are open."""
        return [PortInfo(port, purpose, counts()) for port, (purpose, counts) in sorted(self._ports.items())]

    def login(self, user: str) -> int:
        """Returns the id of a new connection."""
        now = self._clock.now_ms()
        with self._lock:
            number = next(self._numbers)
            self._connections[number] = ClientInfo(number, user, now, now)
            return number

    def logout(self, connection_id: int) -> None:
        """Forgets a connection and ends its statements; an unknown one is no error."""
        with self._lock:
            self._connections.pop(connection_id, None)
            self._accessed_ms.pop(connection_id, None)
        self.end_connection(connection_id)

    def note_access(self, connection_id: int) -> None:
        """Takes note that a connection does something now that isn't worth being listed."""
        if connection_id in self._connections:  # one that is gone leaves nothing behind
            self._accessed_ms[connection_id] = self._clock.now_ms()

    def _note_access(self, connection_id: int, now_ms: int) -> None:
        if connection_id in self._connections:  # one that is gone leaves nothing behind
            self._accessed_ms[connection_id] = now_ms

    @contextmanager
    def statement(self, connection_id: int, text: str, user: str = "", on_cancel: OnCancel | None = None, *,
                  served: bool = False, timeout_s: float = 0.0) -> Iterator[Running]:
        """Lists a statement while it runs. `on_cancel` is told how to end it. `timeout_s`: how long it may compute, if
        that is less than others may; 0: as long as they.
        """
        now = self._clock.now_ms()
        with self._lock:
            number = next(self._numbers)
            running = self._running[number] = Running(
                number, connection_id, user, now, self._clock.monotonic(), text, self._changed)
            self._note_access(connection_id, now)
        running.served = served
        running.timeout_s = min(filter(None, (timeout_s, self._timeout_s)), default=0.0)
        if timeout_s and self._watching:
            self._wake.set()  # who watches may wait for longer than that
        outer = getattr(self._of_thread, "statement", None)
        self._of_thread.statement = running
        try:
            if on_cancel is not None:
                on_cancel(running.cancel)
            yield running
        finally:
            self._of_thread.statement = outer
            with self._lock:
                del self._running[number]

    def current(self) -> Running:
        """Returns the statement that the calling thread executes; an unlisted one if it executes none."""
        return getattr(self._of_thread, "statement", None) or Running()

    def note_progress(self, text: str) -> None:
        """Says how far the statement is that the calling thread executes."""
        self.current().progress = text

    def connections(self) -> list[ClientInfo]:
        with self._lock:
            return [replace(known, last_access_ms=self._accessed_ms.get(number, known.last_access_ms))
                    for number, known in self._connections.items()]

    def running(self) -> list[tuple[Running, int]]:
        """Returns the statements under way, each with the microseconds it has run."""
        now = self._clock.monotonic()
        return [(each, round((now - each.started_at) * 1e6)) for each in self._all()]

    # --- ending --------------------------------------------------------------------------------------------------

    def kill(self, number: int, user: str, *, of_anybody: bool) -> None:
        """Ends a statement for a user. Raises NotFoundError, PermissionDeniedError for that of somebody else."""
        with self._lock:
            found = self._running.get(number)
        if found is None:
            raise NotFoundError(f"no statement {number:x} runs", hint="SHOW QUERIES lists them")
        if found.user != user and not of_anybody:
            raise PermissionDeniedError(f"statement {number:x} is another user's", hint="admins may end it")
        found.end(CancelledError(f"the statement was ended by KILL QUERY of user {user}"))

    def end_connection(self, connection_id: int) -> None:
        """Ends what a connection's statements compute."""
        for running in self._all():
            if running.connection_id == connection_id:
                running.cancel()

    def end_computing(self, error: PenstockError, *, sparing_lookers: bool = False) -> int:
        """Ends all statements that compute, or all but those that only look inside; returns how many."""
        found = [running for running in self._all()
                 if running.computes and not (sparing_lookers and running.looks_inside)]
        for running in found:
            running.end(error)
        return len(found)

    def close(self) -> None:
        """Ends what computes, and waits for that, though not for long; later statements are not watched."""
        self._closed = True
        self.end_computing(CancelledError("the engine is closing"))
        self._wake.set()
        never = threading.Event()
        for _ in range(_CLOSE_LOOKS):
            if not any(running.computes for running in self._all()):
                return
            never.wait(_AGAIN_S / 10)

    def _all(self) -> list[Running]:
        with self._lock:
            return list(self._running.values())

    def _changed(self) -> None:
        """Has somebody look at the statements from now on, or at once where one is to end."""
        if not self._watching:
            with self._lock:
                if self._watching or self._closed:
                    return
                self._watching = True
            threading.Thread(target=self._watch, name="penstock-statements", daemon=True).start()
        elif any(running.is_to_end for running in self._all()):
            self._wake.set()

    def _watch(self) -> None:
        """Ends statements in time. One that is to end is interrupted until it does: DuckDB forgets an interruption
        that comes just before it begins.
        """
        while not self._closed or self._ending():
            wait_s = self._timeout_s or _IDLE_S
            now = self._clock.monotonic()
            for running in self._all():
                left_s = running.started_at + running.timeout_s - now if running.timeout_s else _IDLE_S
                if left_s <= 0 and running.computes:
                    running.end(LimitExceededError(
                        f"the query took longer than {seconds_text(running.timeout_s)}",
                        hint="raise queryTimeout, in the configuration or with SET"))
                wait_s = min(wait_s, max(left_s, _AGAIN_S))
            for running in self._ending():
                running.interrupt()
                wait_s = _AGAIN_S
            self._wake.wait(wait_s)
            self._wake.clear()

    def _ending(self) -> list[Running]:
        return [running for running in self._all() if running.is_to_end and running.computes]
