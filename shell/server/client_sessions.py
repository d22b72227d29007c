"""What each client has at the server between its calls: a connection with its database, and prepared statements."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from penstock.common.clock import Clock
from penstock.common.errors import NotFoundError, UnavailableError
from penstock.mnode.access.audit_log import Origin
from penstock.mnode.access.roles import Identity
from penstock.mnode.access.session import Result
from penstock.mnode.query.query_runner import OpenQuery
from penstock.shell.api.dbapi import Connection
from penstock.shell.api.parameter_binding import Row

SESSIONS_MAX = 1000
_PREPARED_MAX = 1000
_RESULTS_MAX = 16
_ID_BYTES = 8

T = TypeVar("T")


@dataclass(slots=True)
class Prepared:
    """A statement with `?` for its parameters, and the parameters that were sent last."""

    text: str
    parameters: Row = ()


class ClientSession:
    """One client's side of the server; safe for many threads, since a client may call several times at once."""

    def __init__(self, connection: Connection, now: float) -> None:
        self.connection = connection
        self.used_at = now
        self.calls = 0
        self._lock = threading.Lock()
        self._prepared: OrderedDict[bytes, Prepared] = OrderedDict()
        self._results: OrderedDict[bytes, Result] = OrderedDict()
        self._running: dict[bytes, OpenQuery] = {}

    def prepare(self, text: str) -> bytes:
        """Returns the handle of a prepared statement; the oldest one goes when there are too many."""
        return self._keep(self._prepared, Prepared(text), _PREPARED_MAX)

    def prepared(self, handle: bytes) -> Prepared:
        """Returns a prepared statement. Raises NotFoundError."""
        with self._lock:
            found = self._prepared.get(handle)
        if found is None:
            raise NotFoundError("there is no such prepared statement",
                                hint="it was closed, or the server has been started again")
        return found

    def forget(self, handle: bytes) -> None:
        """Closes a prepared statement; one that isn't there is no error."""
        with self._lock:
            self._prepared.pop(handle, None)

    def hold(self, result: Result) -> bytes:
        """Keeps rows until they are fetched, by the handle that is returned; the oldest ones go when nobody comes."""
        return self._keep(self._results, result, _RESULTS_MAX)

    def take(self, handle: bytes) -> Result:
        """Returns rows that are held, and holds them no longer. Raises NotFoundError."""
        with self._lock:
            found = self._results.pop(handle, None)
        if found is None:
            raise NotFoundError("this result is no longer available", hint="a result can be fetched once")
        return found

    @contextmanager
    def running(self, handle: bytes, query: OpenQuery) -> Iterator[None]:
        """Lets `cancel` find a query while it runs."""
        with self._lock:
            self._running[handle] = query
        try:
            yield
        finally:
            with self._lock:
                self._running.pop(handle, None)

    def cancel(self, handle: bytes) -> None:
        """Cancels a query that runs. Raises NotFoundError."""
        with self._lock:
            query = self._running.get(handle)
        if query is None:
            raise NotFoundError("this query doesn't run")
        query.cancel()

    def close(self) -> None:
        """Ends everything that runs, and the connection."""
        with self._lock:
            running = list(self._running.values())
        for query in running:
            query.cancel()
        self.connection.close()

    def _keep(self, kept: OrderedDict[bytes, T], one: T, most: int) -> bytes:
        handle = new_handle()
        with self._lock:
            kept[handle] = one
            while len(kept) > most:
                kept.popitem(last=False)
        return handle


class Sessions:
    """The sessions by the clients' keys. Those that nobody uses for a while are closed, and the idlest when there are
    too many.
    """

    def __init__(
        self, connect: Callable[[Identity], Connection], clock: Clock, idle_s: float, most: int = SESSIONS_MAX
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._idle_s = idle_s
        self._most = most
        self._lock = threading.Lock()
        self._closed = False
        #: the one that was used last at the end
        self._sessions: OrderedDict[str, ClientSession] = OrderedDict()

    @contextmanager
    def use(self, key: str, identity: Identity, origin: Origin) -> Iterator[ClientSession]:
        """Gives a client's session for one call, a new one if it has none. Raises UnavailableError."""
        now = self._clock.monotonic()
        with self._lock:
            if self._closed:
                raise UnavailableError("the server is closing")
            session = self._sessions.get(key)
            if session is None:
                session = self._sessions[key] = ClientSession(self._connect(identity), now)
            self._sessions.move_to_end(key)
            session.used_at = now
            session.calls += 1
            over = self._take_over(now)
        session.connection.session.identity = identity
        session.connection.session.origin = origin
        for old in over:
            old.close()
        try:
            yield session
        finally:
            with self._lock:
                session.calls -= 1

    def end(self, key: str) -> None:
        """Closes a client's session; one that isn't there is no error."""
        with self._lock:
            session = self._sessions.pop(key, None)
        if session is not None:
            session.close()

    def close(self) -> None:
        """Closes all sessions, and opens no more."""
        with self._lock:
            self._closed = True
            sessions = list(self._sessions.values())
            self._sessions.clear()
        for session in sessions:
            session.close()

    def __len__(self) -> int:
        return len(self._sessions)

    def _take_over(self, now: float) -> list[ClientSession]:
        """Takes out the sessions that have been idle for too long, or longest when there are too many."""
        def are_fine(idlest: ClientSession) -> bool:
            return idlest.used_at + self._idle_s > now and len(self._sessions) <= self._most

        over: list[ClientSession] = []
        if are_fine(next(iter(self._sessions.values()))):  # as with nearly every call
            return over
        for key, session in list(self._sessions.items()):
            if are_fine(session):
                break
            if session.calls == 0:
                over.append(self._sessions.pop(key))
        return over


def new_handle() -> bytes:
    """Returns a handle that nobody can guess."""
    return secrets.token_bytes(_ID_BYTES)
