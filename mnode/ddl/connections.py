"""The registry of connections to external servers: CREATE, ALTER, DROP and TEST CONNECTION, and whether they work.

Who uses a connection asks for it here, opened, each time that it deploys something, and tells how it went.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace
from typing import Literal

from penstock.common.clock import Clock
from penstock.common.connection import ExternalConnection, OpenedConnection, checked_kind, checked_options, opened
from penstock.common.errors import AlreadyExistsError, ConnectionFailedError, InUseError, NotFoundError, PenstockError
from penstock.common.suggestions import did_you_mean
from penstock.mnode.access.session import Result, rows_result
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_records import ConnectionRecord
from penstock.mnode.ddl.name_rules import check_name
from penstock.sql.tree.statements import AlterConnection, CreateConnection, DropConnection, TestConnection
from penstock.sql.types import DOUBLE, DataType, Kind
from penstock.tasks.protocol.task_status import ConnectionHealth, TaskStatus

Probe = Callable[[OpenedConnection, float], str]
"""(connection, seconds it may take): connects and returns what was found there, or raises an ExternalSystemError."""

_GRACE_S = 2.0
"""So much longer than its timeout a probe may take before it is given up."""
_TEXT = DataType(Kind.VARCHAR)


@dataclass(frozen=True, slots=True)
class Health:
    """How the last test or use went. `since_ms` None: never tried since the engine started or the options changed."""

    state: Literal["OK", "FAILED", "UNTESTED"] = "UNTESTED"
    reason: str = ""
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ExternalConnectionInfo:
    """A connection as SHOW CONNECTIONS has it. `used_by`: such as `stream s`."""

    connection: ExternalConnection
    created_ms: int
    used_by: tuple[str, ...]
    health: Health


class Connections:
    """Executes the statements about connections. `test` and `note` may be called by many threads at the same time."""

    def __init__(
        self, catalog: Catalog, clock: Clock, environ: Mapping[str, str], read_text: Callable[[str], str], probe: Probe
    ) -> None:
        self._catalog = catalog
        self._clock = clock
        self._environ = environ
        self._read_text = read_text
        self._probe = probe
        self._lock = threading.Lock()
        #: by connection: the version, and by user ("" for TEST CONNECTION) how it fares
        self._health: dict[str, tuple[int, dict[str, Health]]] = {}
        self._watchers: list[Callable[[ExternalConnection], None]] = []

    # --- statements --------------------------------------------------------------------------------------------

    def create(self, statement: CreateConnection) -> Result:
        """Raises InvalidStatementError that lists all options that are wrong. Nothing is connected to."""
        name = statement.name
        check_name(name, "connection")
        kind = checked_kind(statement.kind)
        options = checked_options(kind, statement.options)
        if self._catalog.connections.named(name) is not None:
            if statement.if_not_exists:
                return Result()
            raise AlreadyExistsError(f"connection {name} already exists", hint="use ALTER CONNECTION")
        self._catalog.connections.put(ConnectionRecord(ExternalConnection(name, kind, options), self._clock.now_ms()))
        return Result()

    def alter(self, statement: AlterConnection) -> Result:
        """Changes options; who uses the connection opens it again."""
        record = self._record(statement.name)
        changes = dict(statement.options)
        known = record.connection
        given = [(name, value) for name, value in known.options if name not in changes]
        given += [(name, value) for name, value in statement.options if value is not None]
        options = checked_options(known.kind, given)
        changed = replace(known, options=options, version=known.version + 1)
        self._catalog.connections.put(replace(record, connection=changed))
        for altered in self._watchers:
            altered(changed)
        return Result()

    def drop(self, statement: DropConnection) -> Result:
        """Raises InUseError that names the users."""
        name = statement.name
        if statement.if_exists and self._catalog.connections.named(name) is None:
            return Result()
        record = self._record(name)
        users = self.users_of(name)
        if users:
            raise InUseError(f"connection {name} is in use by {', '.join(users)}", hint="drop them first")
        self._catalog.connections.drop(record)
        with self._lock:
            self._health.pop(name, None)
        return Result()

    def test(self, statement: TestConnection) -> Result:
        """Connects and returns one row: connection, state, ms, detail. Only an unknown name is an error."""
        connection = self._record(statement.name).connection
        started = self._clock.monotonic()
        problem: PenstockError | None = None
        try:
            detail = self._probed(self.open(connection.name))
        except PenstockError as error:
            problem, detail = error, problem_text(error)
        took_ms = (self._clock.monotonic() - started) * 1000
        self.note(connection, problem)
        return rows_result((("connection", _TEXT), ("state", _TEXT), ("ms", DOUBLE), ("detail", _TEXT)),
                           [(connection.name, "OK" if problem is None else "FAILED", round(took_ms, 1), detail)])

    # --- who uses them -----------------------------------------------------------------------------------------

    def find(self, name: str) -> ExternalConnection:
        """Returns a connection. Raises NotFoundError."""
        return self._record(name).connection

    def open(self, name: str) -> OpenedConnection:
        """Returns a connection with its secrets as they are now. Raises NotFoundError, SecretMissingError."""
        return opened(self.find(name), self._environ, self._read_text)

    def open_for(self, user: str, name: str) -> OpenedConnection:
        """Returns a connection as `open` does, and notes what keeps it from being opened."""
        connection = self.find(name)
        try:
            return self.open(name)
        except PenstockError as error:
            self.note(connection, error, user)
            raise

    def users_of(self, name: str) -> tuple[str, ...]:
        """Returns what uses a connection, each with what it is: `stream s`."""
        streams = (f"stream {stream.name}" for stream in self._catalog.streams.all() if name in stream.uses.connections)
        ingests = (f"ingest {ingest.name}" for ingest in self._catalog.ingests.all() if ingest.connection == name)
        return (*streams, *ingests)

    def watch(self, altered: Callable[[ExternalConnection], None]) -> None:
        """Has `altered` called behind each ALTER CONNECTION with what the connection is now.

        The statement's thread calls it, and no other statement changes anything meanwhile: it must not wait long.
        """
        self._watchers.append(altered)

    def note(
        self, connection: ExternalConnection | OpenedConnection, problem: PenstockError | None, user: str = ""
    ) -> None:
        """Notes how a test or, with `user`, a use of a connection went, unless its options have changed since."""
        self._note(connection.name, connection.version, user, "" if problem is None else problem_text(problem))

    def note_health(self, user: str, contact: ConnectionHealth) -> None:
        """Notes how the tasks of a stream or an ingest fare, unless the connection's options have changed since."""
        self._note(contact.connection, contact.version, user, contact.problem)

    def _note(self, name: str, version: int, user: str, problem: str) -> None:
        known = self._catalog.connections.named(name)
        if known is None or known.connection.version != version:
            return
        state: Literal["OK", "FAILED"] = "FAILED" if problem else "OK"
        with self._lock:
            of_version, users = self._health.get(name, (version, {}))
            if of_version != version:
                users = {}
            before = users.get(user)
            since = self._clock.now_ms() if before is None or before.state != state else before.since_ms
            # What is in use says more than an earlier test.
            kept = {each: health for each, health in users.items() if each or not user}
            self._health[name] = version, {**kept, user: Health(state, problem, since)}

    def infos(self) -> list[ExternalConnectionInfo]:
        """Returns all connections, in order of creation."""
        with self._lock:
            health = dict(self._health)
        infos = []
        for record in self._catalog.connections.all():
            connection = record.connection
            users = self.users_of(connection.name)
            version, fares = health.get(connection.name, (0, {}))
            known = [last for user, last in fares.items()
                     if version == connection.version and (not user or user in users)]
            infos.append(ExternalConnectionInfo(connection, record.created_ms, users, _worst(known)))
        return infos

    # --- inside ------------------------------------------------------------------------------------------------

    def _record(self, name: str) -> ConnectionRecord:
        record = self._catalog.connections.named(name)
        if record is None:
            raise NotFoundError(f"connection {name} does not exist", hint=did_you_mean(
                name, (other.connection.name for other in self._catalog.connections.all())))
        return record

    def _probed(self, connection: OpenedConnection) -> str:
        """Probes on a thread of its own: a library that hangs, in a name server's answer say, is left behind."""
        answer: Future[str] = Future()

        def run() -> None:
            try:
                answer.set_result(self._probe(connection, connection.timeout_s))
            except BaseException as error:  # noqa: BLE001 - it is raised again by whoever waits for the answer
                answer.set_exception(error)

        threading.Thread(target=run, name=f"penstock-test-{connection.name}", daemon=True).start()
        try:
            return answer.result(connection.timeout_s + _GRACE_S)
        except FutureTimeout:
            raise ConnectionFailedError(f"no answer within {connection.options['timeout']}") from None


def _worst(fares: Sequence[Health]) -> Health:
    """Returns how a connection is: FAILED for as long as anybody can't use it, as who noticed last."""
    return max((each for each in fares), key=lambda each: (each.state == "FAILED", each.since_ms or 0),
               default=Health())


def report_health(
    statuses: Iterable[TaskStatus], told: dict[str, ConnectionHealth], tell: Callable[[ConnectionHealth], None]
) -> None:
    """Tells how a stream or an ingest fares with each of its connections, where that isn't what was `told` last.

    That is what keeps one of its tasks from it, if any.
    """
    worst: dict[str, ConnectionHealth] = {}
    for status in statuses:
        contact = status.connection.health
        if contact is not None and (contact.connection not in worst
                                    or (contact.problem and not worst[contact.connection].problem)):
            worst[contact.connection] = contact
    for name, contact in worst.items():
        if told.get(name) != contact:
            told[name] = contact
            tell(contact)


def problem_text(problem: PenstockError) -> str:
    """Returns what is wrong with a connection in one line, hint included."""
    return f"{problem.message} ({problem.hint})" if problem.hint else problem.message
