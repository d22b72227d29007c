"""A connection to whichever node of a cluster is active, also when that is another one later."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa

from penstock.common.clock import Clock, SystemClock
from penstock.common.errors import (
    CancelledError,
    InvalidValueError,
    NoAnswerError,
    NotActiveError,
    PenstockError,
    ReplicasMissingError,
    UnavailableError,
)
from penstock.mnode.access.session import Result, SessionState
from penstock.shell.flight_sql.client import SETS, RemoteEngine
from penstock.shell.flight_sql.host_look import Connect, HostLook, is_active

T = TypeVar("T")

_HOST = re.compile(r"\[([^\]]+)\](?::(\d{1,5}))?|([^:\s]+)(?::(\d{1,5}))?|([^\s\[\]]*:[^\s\[\]]*:[^\s\[\]]*)")
#: What does no harm when it is done twice: reading, and rows with times of their own, which are upserts.
_READS = re.compile(r"\s*(SELECT|SHOW|DESCRIBE|DESC|EXPLAIN|USE|SET|WITH)\b", re.IGNORECASE)
_INSERTS = re.compile(r"\s*INSERT\b", re.IGNORECASE)
_OTHER_EACH_TIME = re.compile(r"\b(NOW|TODAY|SELECT|FILE)\b", re.IGNORECASE)
_PATIENCE_S = 60.0
_LOOK_S = 5.0
_REST_S = 1.5  # one that says nothing must not keep the next look from finding the one that has just taken over
_PAUSE_S = 0.25


def read_hosts(text: str, port: int) -> list[tuple[str, int]]:
    """Returns hosts and ports of `alpha,beta:8816,[::1]:8817`; `port` for those without. Raises InvalidValueError."""
    found = []
    for one in text.split(","):
        host = _HOST.fullmatch(one.strip())
        if host is None:
            raise InvalidValueError(f"{one.strip()!r} is neither a host nor host:port")
        found.append((host[1] or host[3] or host[5], int(host[2] or host[4] or port)))
    return found


def may_be_repeated(text: str) -> bool:
    """Tells whether a statement, done twice, leaves what it leaves done once."""
    if _READS.match(text) is not None:
        return True
    return _INSERTS.match(text) is not None and _OTHER_EACH_TIME.search(text) is None


class SeveralHosts:
    """What `RemoteEngine` is for one host. One statement at a time is under way when the node changes.

    A statement that a node has refused for not being active is done at the one that is. One whose answer was lost is
    done again if that does no harm; else NoAnswerError says that nobody knows what became of it. Whoever looks for the
    active node gives up after a minute, with UnavailableError.
    """

    def __init__(self, hosts: Sequence[tuple[str, int]], connect: Connect, clock: Clock | None = None,
                 silence_s: float | None = None) -> None:
        """`silence_s`: when an answer takes longer, all nodes are asked, by connections of their own, who is active;
        the node is given up if another one is, or it doesn't answer. None: it is waited for.
        """
        self._hosts = list(hosts)
        self._silence_s = silence_s
        self._calls: dict[int, float] = {}
        self._lost: RemoteEngine | None = None
        self._watcher: threading.Thread | None = None
        self._connect = connect
        self._clock = clock or SystemClock()
        self._never = threading.Event()
        self._closed = threading.Event()
        self._time_zone: str | None = None
        self._settings: dict[str, str] = {}
        self._engine: RemoteEngine | None = None
        self._engine = self._find(None)

    def execute(self, text: str, state: SessionState) -> Result:
        """Executes one statement and returns its rows, or how much it changed."""
        result = self._at_the_active(state, lambda engine: engine.execute(text, state), again=may_be_repeated(text))
        if (sets := SETS.match(text)) is not None:
            self._settings[sets[1].lower()] = text
        return result

    def insert_arrow(self, table: str, rows: pa.Table, state: SessionState, *, first_row: int = 0) -> Result:
        """Inserts an Arrow table into a table; see `Cursor.insert_arrow`."""
        return self._at_the_active(
            state, lambda engine: engine.insert_arrow(table, rows, state, first_row=first_row), again=True)

    def ingest_lines(self, data: bytes, database: str, precision: str, state: SessionState) -> int:
        """Raises NotSupportedError: Flight SQL doesn't know line protocol."""
        return self._at_the_active(
            state, lambda engine: engine.ingest_lines(data, database, precision, state), again=False)

    def cancel(self) -> None:
        """Ends the statements that are under way; they raise CancelledError."""
        if self._engine is not None:
            self._engine.cancel()

    def set_time_zone(self, name: str) -> None:
        self._time_zone = name
        if self._engine is not None:
            self._engine.set_time_zone(name)

    def close(self) -> None:
        """Ends the session at the server, if that still answers, and the connection."""
        self._closed.set()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _at_the_active(self, state: SessionState, call: Callable[[RemoteEngine], T], *, again: bool) -> T:
        until = self._clock.monotonic() + _PATIENCE_S
        while True:
            engine = self._engine
            if engine is None:
                engine = self._engine = self._find(state.database, until)
            try:
                return self._watched(engine, call)
            except NotActiveError as error:
                self._leave(engine)
                self._check(until, error)
            except NoAnswerError as error:
                self._leave(engine, answers=False)
                if not again:
                    raise NoAnswerError(
                        f"{error.message}: it is unknown whether the statement was executed",
                        hint="check this before you repeat it; the next statement goes to the active node") from error
                self._check(until, error)
            except ReplicasMissingError as error:
                if not again or self._still_active(engine):
                    raise
                self._leave(engine)
                self._check(until, error)

    def _watched(self, engine: RemoteEngine, call: Callable[[RemoteEngine], T]) -> T:
        """Returns what a call returns. Raises NoAnswerError, too, if the node has ceased to answer meanwhile."""
        if self._silence_s is not None and self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="penstock-host-watch", daemon=True)
            self._watcher.start()
        this = threading.get_ident()
        self._calls[this] = time.monotonic()
        try:
            return call(engine)
        except CancelledError as error:
            if self._lost is not engine:
                raise
            raise NoAnswerError("the node no longer answers") from error
        finally:
            del self._calls[this]

    def _watch(self) -> None:
        """Gives up a node that takes long with an answer when another one is active, or it answers nobody else either.
        """
        assert self._silence_s is not None
        while not self._closed.wait(self._silence_s):
            engine, began = self._engine, min(list(self._calls.values()), default=None)
            if engine is None or began is None or time.monotonic() - began < self._silence_s:
                continue
            if self._is_lost(self._hosts[0]) and self._engine is engine:
                self._lost = engine
                engine.let_go()

    def _is_lost(self, host: tuple[str, int]) -> bool:
        """Tells whether another node is active, or this one can't be reached any more."""
        look = HostLook(self._hosts, self._connect)
        try:
            found = look.active(_LOOK_S)
        except PenstockError:
            return False
        finally:
            look.end()
        if found is not None:
            found[1].close()
            return found[0] != host
        return host in look.silent or isinstance(look.problem, NoAnswerError)

    def _leave(self, engine: RemoteEngine, *, answers: bool = True) -> None:
        """Gives up a node, which was the first of the hosts; it is the last one to be asked now."""
        self._engine = None
        self._hosts.append(self._hosts.pop(0))
        if answers:
            engine.close()
        else:
            engine.let_go()

    def _check(self, until: float, error: PenstockError) -> None:
        """Raises `error` when there was time enough to find another node."""
        self._clock.wait(self._never, _PAUSE_S)
        if self._clock.monotonic() >= until:
            raise error

    def _still_active(self, engine: RemoteEngine) -> bool:
        try:
            return self._watched(engine, is_active)
        except UnavailableError:
            return False

    def _find(self, database: str | None, until: float | None = None) -> RemoteEngine:
        """Returns a session with the active node. Raises UnavailableError, or why a host refuses."""
        problem: PenstockError | None = None
        end = self._clock.monotonic() + _PATIENCE_S if until is None else until
        while True:
            look = HostLook(self._hosts, self._connect)
            try:
                found = look.active(_LOOK_S, _REST_S)
            finally:
                look.end()
            if found is not None:
                host, engine = found
                try:
                    engine.resume(database, self._time_zone, list(self._settings.values()))
                except UnavailableError as error:
                    problem = error
                else:
                    self._hosts.remove(host)
                    self._hosts.insert(0, host)
                    return engine
            problem = look.problem or problem
            if self._clock.monotonic() >= end:
                names = ", ".join(f"{host}:{port}" for host, port in self._hosts)
                raise UnavailableError(f"none of {names} is the active node of a cluster",
                                       hint=None if problem is None else str(problem))
            self._clock.wait(self._never, _PAUSE_S)
