"""The edge to ZooKeeper: performs what nodes ask of the cluster's registry, by kazoo, and answers each request once.

Under a root of its own the cluster has `record`, `lease` (ends with its session), `held-PROCESS-EPOCH` (created and
gone with the lease: a write there proves that the session which took the lease is alive) and `candidates/`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.common.clock import Clock
from penstock.common.errors import ConnectionFailedError, CorruptionError, LibraryMissingError
from penstock.common.logging import logger
from penstock.common.typed_json import TypedJson
from penstock.mnode.cluster.cluster_messages import Life
from penstock.mnode.cluster.cluster_registry import (
    NO_RECORD,
    Candidate,
    ClusterRecord,
    GiveUpLease,
    LeaseHolder,
    OfferCandidacy,
    ReadRegistry,
    RecordChange,
    RegistryAnswer,
    RegistryOutcome,
    RegistryRequest,
    RegistrySeen,
    RenewLease,
    TakeLease,
    WithdrawCandidacy,
)

_log = logger(__name__)
#: A record of a few nodes has some hundred bytes; what is larger isn't one.
_SIZE_MAX = 64 << 10
_RECORD = TypedJson(ClusterRecord)
_HOLDER = TypedJson(LeaseHolder)


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The session has ended, and with it lease and candidacy; a new one begins."""

    reason: str


RegistryEvent = RegistrySeen | RegistryAnswer | SessionLost


@dataclass(frozen=True, slots=True)
class ZookeeperSettings:
    """Where ZooKeeper is (`host:port,...`), the cluster's root there, seconds of a session, a request and a connect.

    `ca_file`, `certificate_file` and `key_file` (PEM): mutual TLS. `login`: `user:password`; only who has it can read
    or change what is under the root.
    """

    hosts: str
    root: str
    session_timeout_s: float
    request_timeout_s: float = 1.5
    connect_timeout_s: float = 10.0
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    login: str | None = None


class ZookeeperRegistry:
    """One process's connection with ZooKeeper. `tell` is called with events, from threads of kazoo and of `poll`."""

    def __init__(self, settings: ZookeeperSettings, process: int, clock: Clock,
                 tell: Callable[[RegistryEvent], None]) -> None:
        """Raises LibraryMissingError."""
        self._settings = settings
        self._process = process
        self._clock = clock
        self._tell = tell
        self._lock = threading.Lock()
        self._pending: dict[int, tuple[float, RecordChange | RenewLease]] = {}
        self._number = 0
        #: why what ZooKeeper has can't be used; "" if it can
        self.problem = ""
        self._client = _client(settings)
        _refuse_short_sessions(self._client, settings.session_timeout_s, self._too_short)

    def start(self) -> None:
        """Connects, and makes the root. Raises ConnectionFailedError without ZooKeeper, or long enough sessions."""
        from kazoo.exceptions import KazooException
        from kazoo.handlers.threading import KazooTimeoutError

        try:
            self._client.start(timeout=self._settings.connect_timeout_s)
            self._client.ensure_path(self._path("candidates"))
        except BaseException as error:
            self._client.stop()
            if not isinstance(error, KazooTimeoutError | KazooException):
                raise
            raise ConnectionFailedError(
                self.problem or f"ZooKeeper at {self._settings.hosts} doesn't answer: {error}") from error
        self._client.add_listener(self._state_changed)

    def close(self) -> None:
        """Ends the session at once, and with it the lease."""
        self._client.remove_listener(self._state_changed)
        self._client.stop()
        self._client.close()

    def ask(self, request: RegistryRequest) -> None:
        """Performs a request; what comes of it is told later."""
        now = self._clock.monotonic()
        match request:
            case ReadRegistry():
                if self._client.connected:
                    self._read(now)
            case OfferCandidacy() | WithdrawCandidacy():
                if self._client.connected:
                    self._note_candidacy(request)
            case _:
                self._change(now, request)

    def poll(self) -> None:
        """Tells of requests that weren't answered in time. Call it a few times a second."""
        before = self._clock.monotonic() - self._settings.request_timeout_s
        with self._lock:
            late = [number for number, (sent_at, _) in self._pending.items() if sent_at <= before]
        for number in late:
            self._answer(number, RegistryOutcome.UNKNOWN, NO_RECORD)

    # --- reading -------------------------------------------------------------------------------------------------

    def _read(self, sent_at: float) -> None:
        from kazoo.exceptions import KazooException

        parts = [self._client.get_async(self._path("lease"), watch=self._lease_changed),
                 self._client.get_async(self._path("record")),
                 self._client.get_children_async(self._path("candidates"))]

        def read(_: Any) -> None:
            try:
                lease, record, names = (self._part(part) for part in parts)
            except KazooException:
                return
            try:
                seen = RegistrySeen(
                    None if record is None else _decoded(_RECORD, record[0], "record"),
                    NO_RECORD if record is None else record[1].version,
                    None if lease is None else _decoded(_HOLDER, lease[0], "lease"),
                    tuple(found for name in names or () if (found := _candidate(name)) is not None), sent_at)
            except CorruptionError as error:
                self._note_problem(error.message)
                return
            self.problem = ""
            self._tell(seen)

        parts[-1].rawlink(read)  # one connection answers in the order of what it is asked

    def _lease_changed(self, _: Any) -> None:
        """The lease has ended, or the connection: who waits for it hears of that at once."""
        if self._client.connected:
            self._read(self._clock.monotonic())

    @staticmethod
    def _part(part: Any) -> Any:
        from kazoo.exceptions import NoNodeError

        try:
            return part.get(timeout=0)
        except NoNodeError:
            return None

    # --- writing -------------------------------------------------------------------------------------------------

    def _note_candidacy(self, request: OfferCandidacy | WithdrawCandidacy) -> None:
        def replace_own(found: Any) -> None:
            names = found.get(timeout=0) if found.successful() else []
            wanted = None
            if isinstance(request, OfferCandidacy):
                one = request.candidate
                wanted = f"{one.life.node}.{one.life.number}.{one.length}.{self._process}"
            for name in names:
                if name.endswith(f".{self._process}") and name != wanted:
                    self._client.delete_async(self._path("candidates", name))
            if wanted is not None and wanted not in names:
                self._client.create_async(self._path("candidates", wanted), b"", ephemeral=True)

        self._client.get_children_async(self._path("candidates")).rawlink(replace_own)

    def _change(self, now: float, request: RecordChange | RenewLease) -> None:
        with self._lock:
            self._number += 1
            number = self._number
            self._pending[number] = (now, request)
        if not self._client.connected:
            self._answer(number, RegistryOutcome.UNKNOWN, NO_RECORD)
            return
        if isinstance(request, RenewLease):
            result = self._client.set_async(self._held(request.epoch), b"")
        else:
            result = self._transaction(request).commit_async()
        result.rawlink(lambda done: self._changed(number, request, done))

    def _transaction(self, request: RecordChange) -> Any:
        transaction = self._client.transaction()
        data = json.dumps(_RECORD.encode(request.record)).encode()
        if request.version == NO_RECORD:
            transaction.create(self._path("record"), data)
        else:
            transaction.set_data(self._path("record"), data, version=request.version)
        if isinstance(request, TakeLease):
            if request.replaces:
                transaction.delete(self._path("lease"))
            transaction.create(self._path("lease"), json.dumps(_HOLDER.encode(request.holder)).encode(), ephemeral=True)
            transaction.create(self._held(request.record.epoch), b"", ephemeral=True)
        elif isinstance(request, GiveUpLease):
            transaction.delete(self._held(request.record.epoch))
            transaction.delete(self._path("lease"))
        return transaction

    def _changed(self, number: int, request: RecordChange | RenewLease, done: Any) -> None:
        from kazoo.exceptions import KazooException, NoNodeError, RolledBackError, RuntimeInconsistency

        if not done.successful():
            refused = isinstance(done.exception, NoNodeError)
            self._answer(number, RegistryOutcome.REFUSED if refused else RegistryOutcome.UNKNOWN, NO_RECORD)
            return
        results = done.get(timeout=0)
        if isinstance(request, RenewLease):
            self._answer(number, RegistryOutcome.DONE, NO_RECORD)
            return
        errors = [one for one in results if isinstance(one, Exception)]
        if not errors:
            version = 0 if request.version == NO_RECORD else results[0].version
            self._answer(number, RegistryOutcome.DONE, version)
            return
        known = all(isinstance(one, KazooException) for one in errors) and any(
            not isinstance(one, RolledBackError | RuntimeInconsistency) for one in errors)
        self._answer(number, RegistryOutcome.REFUSED if known else RegistryOutcome.UNKNOWN, NO_RECORD)

    def _answer(self, number: int, outcome: RegistryOutcome, version: int) -> None:
        with self._lock:
            sent_at, request = self._pending.pop(number, (0.0, None))
        if request is not None:
            self._tell(RegistryAnswer(request, outcome, version, sent_at))

    def _too_short(self, session_s: float) -> None:
        self._note_problem(
            f"ZooKeeper at {self._settings.hosts} ends sessions after {session_s:g} s, and sessionTimeout is "
            f"{self._settings.session_timeout_s:g} s: make that smaller, or ZooKeeper's maxSessionTimeout larger")
        # The session that there was lasts no longer now, either: what was counted on it isn't had.
        self._tell(SessionLost("a server of ZooKeeper ends sessions sooner"))

    def _note_problem(self, problem: str) -> None:
        if self.problem != problem:
            _log.error("%s", problem)
        self.problem = problem

    # --- the rest ------------------------------------------------------------------------------------------------

    def _state_changed(self, state: str) -> None:
        from kazoo.client import KazooState

        if state == KazooState.LOST:
            self._tell(SessionLost("the session with ZooKeeper has ended"))

    def _path(self, *names: str) -> str:
        return "/".join((self._settings.root.rstrip("/"), *names))

    def _held(self, epoch: int) -> str:
        return self._path(f"held-{self._process}-{epoch}")


def _client(settings: ZookeeperSettings) -> Any:
    try:
        from kazoo.client import KazooClient
        from kazoo.security import make_digest_acl
    except ImportError as error:
        raise LibraryMissingError("a cluster needs the Python package kazoo",
                                  hint="pip install 'penstock[cluster]'") from error
    options: dict[str, Any] = {}
    if settings.ca_file is not None:
        options |= {"use_ssl": True, "ca": settings.ca_file, "certfile": settings.certificate_file,
                    "keyfile": settings.key_file, "verify_certs": True}
    if settings.login is not None:
        user, _, password = settings.login.partition(":")
        options |= {"auth_data": [("digest", settings.login)],
                    "default_acl": [make_digest_acl(user, password, all=True)]}
    return KazooClient(settings.hosts, timeout=settings.session_timeout_s,
                       connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": 1.0}, **options)


def _refuse_short_sessions(client: Any, wanted_s: float, tell: Callable[[float], None]) -> None:
    """Has each connection dropped, before anything is asked by it, whose session ZooKeeper may end sooner than wanted.

    The active node would count on its lease for longer than it has it. kazoo keeps the time that was agreed on to
    itself; what it returns inside are two thirds of that, in milliseconds.
    """
    from kazoo.exceptions import ConnectionDropped

    connect = client._connection._connect

    def connect_checked(*where: Any) -> Any:
        read_ms, connect_ms = connect(*where)
        session_ms = round(read_ms * 1.5)
        if session_ms < int(wanted_s * 1000):  # so kazoo asks for it
            tell(session_ms / 1000)
            raise ConnectionDropped(f"sessions are ended after {session_ms} ms")
        return read_ms, connect_ms

    client._connection._connect = connect_checked


def _decoded(kind: TypedJson[Any], data: bytes, name: str) -> Any:
    """Raises CorruptionError for what no node has written."""
    try:
        if len(data) > _SIZE_MAX:
            raise ValueError(f"{len(data)} bytes")
        return kind.decode(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"what ZooKeeper has as the cluster's {name} isn't one: {error}") from error


def _candidate(name: str) -> Candidate | None:
    parts = name.split(".")
    if len(parts) != 4 or not all(part.isdecimal() and len(part) <= 20 for part in parts):
        return None
    node, life, length, _ = map(int, parts)
    return Candidate(Life(node, life), length)
