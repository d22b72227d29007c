"""One connection of PostgreSQL's protocol: its socket, TLS, the login, and what its messages are answered with."""

from __future__ import annotations

import secrets
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from socketserver import BaseRequestHandler
from typing import Any

from penstock.common.bounded_server import shut
from penstock.common.errors import InternalError, NotFoundError, PenstockError, UnauthenticatedError
from penstock.common.logging import logger
from penstock.common.passwords import PasswordHash, ScramVerifier
from penstock.mnode.access.audit_log import Origin
from penstock.mnode.access.logins import Logins
from penstock.mnode.access.roles import OWNER, Identity
from penstock.mnode.access.session import SessionState
from penstock.mnode.engine import Engine
from penstock.mnode.http.gathered_requests import Begun, SimpleRun
from penstock.mnode.http.hangups import HangUps
from penstock.mnode.http.http_deadlines import send
from penstock.shell.postgres import backend
from penstock.shell.postgres import frontend as messages
from penstock.shell.postgres.catalog_queries import CatalogQueries
from penstock.shell.postgres.conversation import Conversation, Phase
from penstock.shell.postgres.error_reports import report
from penstock.shell.postgres.frontend import ProtocolError
from penstock.shell.postgres.postgres_session import PostgresSession
from penstock.shell.postgres.scram_exchange import MECHANISM, NONCE_BYTES, ScramExchange
from penstock.shell.postgres.statement_text import StatementText, split_statements

_log = logger(__name__)
_WRITE_S = 75.0
_READ_BYTES, _WRITE_BYTES = 64 * 1024, 64 * 1024
_SECRET_BYTES = 4
_SIMPLE_STEPS = 3  # Bind, Describe, Execute
#: What needs no rights.
_ASK_NOTHING = (messages.Bind, messages.Close, messages.Sync, messages.Flush)
#: Databases that clients ask for who name none: then none is in use.
_NO_DATABASES = ("", "postgres", "penstock", "template1")


class _GoneError(Exception):
    """The client has hung up, or has said that it goes."""


@dataclass(frozen=True, slots=True)
class PostgresSite:
    """What all connections of the port share.

    `logged_in`, `encrypted` take note of that for a connection's first socket; `register` gives the process number by
    which a secret's statements are cancelled, as `cancel` does; `unregister` takes it back.
    """

    engine: Engine
    logins: Logins
    tls: ssl.SSLContext | None
    hang_ups: HangUps
    catalog: CatalogQueries
    logged_in: Callable[[socket.socket], None]
    encrypted: Callable[[socket.socket, socket.socket], None]
    register: Callable[[int, bytes], None]
    unregister: Callable[[int], None]
    cancel: Callable[[int, bytes], None]


class PostgresConnection(BaseRequestHandler):
    """Serves one client, on a thread of its own, until one of both ends it."""

    def __init__(self, site: PostgresSite, *arguments: Any) -> None:
        self._site = site
        super().__init__(*arguments)

    def setup(self) -> None:
        self._socket: socket.socket = self.request
        self._socket.settimeout(None)  # who isn't logged in is cut off in time, and others may be idle
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._conversation = Conversation(self._site.engine.config.request_size_max)
        self._out = bytearray()
        #: what the thread has yet to answer, or to raise, that was found while it rested
        self._held: Any = None
        self._origin = Origin("postgres", self.client_address[0])

    def handle(self) -> None:
        try:
            startup = self._begin()
            if startup is not None:
                identity, stored = self._log_in(startup.parameters.get("user", ""))
                self._serve(startup, identity, stored)
        except _GoneError:
            _log.debug("a client has gone")
        except PenstockError as error:
            # What is malformed may hold anything, also secrets: it isn't logged.
            self._out += report(error, fatal=True).encoded()
            self._flush()
        except OSError as error:
            _log.debug("a connection broke: %s", error)

    # --- reading and writing -------------------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        self._out += data
        if len(self._out) >= _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._out:
            send(self._socket, self._out, _WRITE_S)
            self._out = bytearray()

    def _next(self) -> Any:
        """Returns the client's next message; before it waits for one, it sends what there is. Raises _GoneError."""
        message, self._held = self._held, None
        if isinstance(message, PenstockError):
            raise message
        while message is None and (message := self._conversation.next()) is None:
            self._flush()
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise _GoneError
            self._conversation.receive(data)
        if isinstance(message, messages.Terminate):
            raise _GoneError
        return message

    # --- until the login -----------------------------------------------------------------------------------------

    def _begin(self) -> messages.Startup | None:
        """Returns the client's startup message; None if it only wanted something cancelled."""
        asked = 0
        while True:
            message = self._next()
            if isinstance(message, messages.CancelRequest):
                self._site.cancel(message.process, message.secret)
                return None
            if isinstance(message, messages.Startup):
                if self._site.tls is not None and not isinstance(self._socket, ssl.SSLSocket):
                    raise UnauthenticatedError("this server requires TLS", hint="connect with sslmode=require")
                return message
            asked += 1
            if asked > 2:
                raise ProtocolError("encryption was requested too often")
            self._answer_encryption(by_tls=message.by_tls)

    def _answer_encryption(self, *, by_tls: bool) -> None:
        if not by_tls or self._site.tls is None or isinstance(self._socket, ssl.SSLSocket):
            self._send(backend.STAY_PLAIN)
            return
        self._conversation.encrypted()
        self._send(backend.ENCRYPT)
        self._flush()
        encrypted = self._site.tls.wrap_socket(self._socket, server_side=True, do_handshake_on_connect=False)
        self._site.encrypted(self.request, encrypted)
        self._socket = encrypted
        encrypted.do_handshake()

    def _log_in(self, user: str) -> tuple[Identity, PasswordHash | None]:
        """Returns who this is, and the password's hash that it was shown for. Raises UnauthenticatedError,
        LoginDelayedError.
        """
        logins = self._site.logins
        if logins.lets_everybody_in:
            return OWNER, None
        with logins.noting(self._origin) as note:
            verifier = logins.verifier_for(user)
            self._conversation.asked_for_login()
            identity = self._by_scram(user, verifier)
            note(identity.name)
        return identity, logins.password_of(identity)

    def _by_scram(self, user: str, verifier: ScramVerifier) -> Identity:
        self._send(backend.ask_scram(MECHANISM))
        exchange = ScramExchange.begin(self._next().data, verifier, secrets.token_bytes(NONCE_BYTES))
        self._send(backend.scram_goes_on(exchange.reply()))
        proof, exchanged = exchange.read_final(self._next().data)
        identity = self._site.logins.check_proof(
            user, verifier, lambda: verifier.fits(proof, exchanged), self._origin.address)
        self._send(backend.scram_ends(exchange.end(exchanged)))
        return identity

    # --- after it ------------------------------------------------------------------------------------------------

    def _serve(self, startup: messages.Startup, identity: Identity, stored: PasswordHash | None) -> None:
        engine = self._site.engine
        self._site.logged_in(self.request)
        number, secret = engine.activity.login(identity.name), secrets.token_bytes(_SECRET_BYTES)
        self._site.register(number, secret)
        try:
            state = SessionState(
                engine.config.timezone, None, identity, number, origin=self._origin, ansi_quotes=True)
            session = PostgresSession(engine, state, self._site.catalog, self._send, self._on_cancel)
            self._greet(startup, session, number, secret)
            self._session = session
            self._renew = partial(self._site.logins.renew, identity, stored)
            self._run = SimpleRun(never=isinstance(self._socket, ssl.SSLSocket))
            is_simple = False
            while True:
                message = self._next()
                if not isinstance(message, _ASK_NOTHING):
                    state.identity = self._renew()
                if isinstance(message, messages.Execute):
                    is_simple = session.is_insert(message)
                self._answer(session, message)
                if isinstance(message, messages.Sync):
                    if self._run.goes_on(simple=is_simple) and self._conversation.is_all_taken:
                        self._gather()
                    is_simple = False
        finally:
            self._site.hang_ups.forget(self._socket)
            self._site.unregister(number)
            engine.activity.logout(number)

    def _gather(self) -> None:
        """Has INSERTs of prepared statements answered together with others', until something else comes."""
        self._flush()
        self._out[:0] = self._site.engine.gathered.serve(self._socket, self)
        self._run.over()

    def begin(self, data: bytes) -> Begun | None:
        """Does what `Gathered` says."""
        self._conversation.receive(data)
        session = self._session
        for _ in range(_SIMPLE_STEPS):
            message = self._held = self._come()
            if session.is_insert(message):
                session.state.identity = self._renew()
                if isinstance(message, messages.Execute):
                    begun = session.begin_insert(message.portal)
                    self._held = message if begun is None else None
                    return begun
            elif not isinstance(message, messages.Bind):
                return None
            self._held = None
            self._answer(session, message)
        return None

    def conclude(self, error: PenstockError | None) -> tuple[bytearray, bool]:
        """Does what `Gathered` says."""
        session = self._session
        if not self._tried(partial(session.conclude_insert, error)):
            self._conversation.failed()
        self._held = self._come()
        is_over = isinstance(self._held, messages.Sync)
        if is_over:
            self._answer(session, self._held)
            self._held = None
        self._run.answered += 1
        out, self._out = self._out, bytearray()
        return out, is_over and self._conversation.is_all_taken

    def _come(self) -> Any:
        """Returns the next message that has come, or what is wrong with it; None if there is none."""
        try:
            return self._conversation.next()
        except PenstockError as error:
            return error

    def _greet(self, startup: messages.Startup, session: PostgresSession, number: int, secret: bytes) -> None:
        parameters = startup.parameters
        unknown = [name for name in parameters if name.startswith("_pq_.")]
        if startup.minor or unknown:
            self._send(backend.negotiate_version(unknown))
        database = parameters.get("database", "")
        if database not in _NO_DATABASES:
            try:
                session.use(database)
            except NotFoundError:
                if database != parameters.get("user"):  # which is what clients take who are told no database
                    raise
        session.take_options(parameters)
        self._site.hang_ups.forget(self._socket)
        self._send(backend.LOGIN_DONE)
        for name, value in session.settings.reported():
            self._send(backend.parameter_status(name, value))
        self._send(backend.key_data(number, secret))
        self._conversation.logged_in()
        self._ready(session)

    def _ready(self, session: PostgresSession) -> None:
        self._send(backend.ready(in_transaction=session.in_transaction))

    def _on_cancel(self, cancel: Callable[[], None]) -> None:
        # Whoever sends more meanwhile is watched too: only hanging up counts.
        self._site.hang_ups.watch(self._socket, cancel)

    def _answer(self, session: PostgresSession, message: Any) -> None:
        try:
            if isinstance(message, messages.SimpleQuery):
                self._simple_query(session, message.text)
            elif self._conversation.phase is Phase.COPY:
                self._copy(session, message)
            else:
                self._extended(session, message)
        finally:
            self._site.hang_ups.forget(self._socket)

    def _simple_query(self, session: PostgresSession, text: str) -> None:
        statements = split_statements(text)
        if not statements:
            self._send(backend.EMPTY_QUERY)
        for statement in statements:
            if not self._tried(partial(session.run, statement), statement):
                break
            if session.copies_in:
                self._conversation.copy_begun(simple=True)
                self._flush()
                while self._conversation.phase is Phase.COPY:
                    self._copy(session, self._next())
        self._ready(session)

    def _copy(self, session: PostgresSession, message: Any) -> None:
        is_done = isinstance(message, messages.CopyDone)
        if isinstance(message, messages.CopyFail):
            session.end_copy()
            fine = self._tried(lambda: _fail_copy(message.reason))
        else:
            data = message.data if isinstance(message, messages.CopyData) else b""
            fine = self._tried(lambda: session.copy_piece(data, is_last=is_done))
        if is_done or not fine:
            session.end_copy()
            self._conversation.copy_ended(failed=not fine)

    def _extended(self, session: PostgresSession, message: Any) -> None:
        if isinstance(message, messages.Sync):
            session.sync()
            self._ready(session)
        elif isinstance(message, messages.Flush):
            self._flush()
        elif not self._tried(partial(session.step, message), session.sent_text(message)):
            self._conversation.failed()
        elif session.copies_in:
            self._conversation.copy_begun(simple=False)

    def _tried(self, step: Callable[[], None], statement: StatementText | None = None) -> bool:
        """Performs something that may fail, and tells the client if it does; returns whether it was fine."""
        try:
            step()
        except UnauthenticatedError:
            raise
        except PenstockError as error:
            self._send(report(error, statement).encoded())
            return False
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - one statement that fails must not end the connection
            _log.exception("a statement could not be executed")
            self._send(report(InternalError.of(error)).encoded())
            return False
        return True

    def finish(self) -> None:
        with suppress(OSError):
            self._flush()
        shut(self._socket, socket.SHUT_WR)


def _fail_copy(reason: str) -> None:
    raise ProtocolError(f"the client has ended COPY: {reason}")
