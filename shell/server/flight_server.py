"""Flight over gRPC: who calls, what the calls carry, how errors, bounds and calls that nobody waits for are handled.

gRPC itself refuses messages above the bound before they are in memory, and calls above the number of threads. Of
connections it only bounds the number in all, roughly; a guard looks after the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import grpc

from penstock.common.admission import ConnectionBounds
from penstock.common.clock import Clock
from penstock.common.errors import CancelledError, InternalError, PenstockError, UnavailableError
from penstock.common.logging import logger
from penstock.common.port_guard import PortGuard, read_peer
from penstock.mnode.access.audit_log import Origin
from penstock.mnode.access.logins import Logins, read_basic
from penstock.mnode.access.roles import OWNER, Identity
from penstock.mnode.query.activity import OnCancel
from penstock.shell.flight_sql import protobuf_messages
from penstock.shell.flight_sql.endpoint import LAG, SERVICE, UNIX, address
from penstock.shell.flight_sql.failures import DETAILS, code_of, encode, text_of
from penstock.shell.flight_sql.protobuf_messages import make, read
from penstock.shell.server.client_sessions import Sessions
from penstock.shell.server.flight_service import ACTIONS, FlightSql

_log = logger(__name__)
_AUTHORIZATION = "authorization"
_CLOSE_GRACE_S = 2.0
_KEEPALIVE_MS = 60_000
_BURST = 2
"""How many times the connections that are allowed gRPC takes, so that there is room between two looks of the guard."""


@dataclass(frozen=True, slots=True)
class FlightBounds:
    """What clients may do at most: bytes of one message to the server, calls at once, connections."""

    message_bytes: int
    calls: int
    connections: ConnectionBounds


@dataclass(frozen=True, slots=True)
class FlightAddress:
    """Where clients find the server. A `port` of 0 is any free one.

    `certificate`: PEM chain and key; without it there is no TLS. `socket`: where the owner comes in without a login.
    """

    host: str
    port: int
    certificate: tuple[bytes, bytes] | None = None
    socket: Path | None = None


class FlightSqlServer:
    """Serves until `close`."""

    def __init__(
        self, flight_sql: FlightSql, logins: Logins, sessions: Sessions, at: FlightAddress, bounds: FlightBounds,
        clock: Clock,
    ) -> None:
        """Raises UnavailableError if the port or the socket can't be had."""
        self._sessions = sessions
        self.socket = at.socket
        self._server = grpc.server(
            ThreadPoolExecutor(bounds.calls, thread_name_prefix="flight-sql"), maximum_concurrent_rpcs=bounds.calls,
            options=[("grpc.max_receive_message_length", bounds.message_bytes), ("grpc.max_send_message_length", -1),
                     # Two servers must not share a port without knowing of each other.
                     ("grpc.so_reuseport", 0),
                     ("grpc.max_allowed_incoming_connections", _BURST * (bounds.connections.total or 0)),
                     # For what comes before HTTP/2, that of TLS included.
                     ("grpc.server_handshake_timeout_ms", round(1000 * bounds.connections.login_timeout_s)),
                     # The calls of clients whose machine is gone must not last.
                     ("grpc.keepalive_time_ms", _KEEPALIVE_MS), ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS)])
        calls = _Calls(flight_sql, logins, sessions)
        self._server.add_generic_rpc_handlers((calls.handlers(),))
        try:
            if at.certificate is None:
                self.port = self._server.add_insecure_port(address(at.host, at.port))
            else:
                chain, key = at.certificate
                self.port = self._server.add_secure_port(
                    address(at.host, at.port), grpc.ssl_server_credentials([(key, chain)]))
        except RuntimeError as error:
            raise UnavailableError(f"port {at.port} of {at.host} can't be opened",
                                   hint="another engine or program has it; choose another flightPort") from error
        if at.socket is not None:
            _add_socket(self._server, at.socket)
        self.guard = calls.guard = PortGuard("Flight SQL", self.port, bounds.connections, clock)
        self._server.start()

    def close(self) -> None:
        """Takes no more calls, gives those under way a moment to end, and closes the sessions."""
        stopped = self._server.stop(_CLOSE_GRACE_S)
        self._sessions.close()
        stopped.wait()
        self.guard.close()


def _add_socket(server: grpc.Server, path: Path) -> None:
    """Makes the server listen on a socket file that is the owner's from its first moment on.

    gRPC doesn't tell who is at the other end: the file's mode decides who gets there.
    """
    before = os.umask(0o177)
    try:
        server.add_insecure_port(f"{UNIX}{path}")
    except RuntimeError as error:
        raise UnavailableError(
            f"the socket {path} can't be opened",
            hint="a path has 107 bytes at most, and the folder must be there: choose another socketPath") from error
    finally:
        os.umask(before)


class _Calls:
    """The methods of the service, each as bytes in and bytes out."""

    def __init__(self, flight_sql: FlightSql, logins: Logins, sessions: Sessions) -> None:
        self._flight_sql = flight_sql
        self._logins = logins
        self._sessions = sessions
        self.guard: PortGuard

    def handlers(self) -> Any:
        """Returns the methods as gRPC wants them."""
        return grpc.method_handlers_generic_handler(SERVICE, {
            "Handshake": grpc.stream_stream_rpc_method_handler(_guarded_stream(self._handshake)),
            "GetFlightInfo": grpc.unary_unary_rpc_method_handler(_guarded(self._get_flight_info)),
            "GetSchema": grpc.unary_unary_rpc_method_handler(_guarded(self._get_schema)),
            "DoGet": grpc.unary_stream_rpc_method_handler(_guarded_stream(self._do_get)),
            # It has one answer always, which goes out together with the end of the call.
            "DoPut": grpc.stream_unary_rpc_method_handler(_guarded(self._do_put)),
            "DoAction": grpc.unary_stream_rpc_method_handler(_guarded_stream(self._do_action)),
            "ListActions": grpc.unary_stream_rpc_method_handler(_guarded_stream(self._list_actions)),
        })

    def _handshake(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        header = _header(context)
        user, password = read_basic(header.partition(" ")[2]) if header else ("", "")
        peer = str(context.peer())
        origin = _origin(peer)
        with self._logins.noting(origin) as note:
            if header is None and peer.startswith(UNIX):
                token = self._logins.login_owner()
            else:
                token = self._logins.login(user, password, origin.address)
                self.guard.logged_in(peer)
            note(token.user)
        context.send_initial_metadata([(_AUTHORIZATION, f"Bearer {token.text}")])
        yield make("HandshakeResponse").SerializeToString()

    def _get_flight_info(self, request: bytes, context: Any) -> bytes:
        with self._session(context) as session:
            info = self._flight_sql.info(session, read("FlightDescriptor", request), _canceller(context))
            return bytes(info.SerializeToString())

    def _get_schema(self, request: bytes, context: Any) -> bytes:
        with self._session(context) as session:
            return bytes(self._flight_sql.schema(session, read("FlightDescriptor", request)).SerializeToString())

    def _do_get(self, request: bytes, context: Any) -> Iterator[bytes]:
        with self._session(context) as session:
            lag_s = self._flight_sql.lag_s
            if lag_s is not None:
                context.set_trailing_metadata([(LAG, f"{lag_s:.3f}")])
            yield from self._flight_sql.rows(session, read("Ticket", request), _canceller(context))

    def _do_put(self, requests: Iterator[bytes], context: Any) -> bytes:
        with self._session(context) as session:
            result = self._flight_sql.put(session, whole(requests, context), _canceller(context))
            return bytes(result.SerializeToString())

    def _do_action(self, request: bytes, context: Any) -> Iterator[bytes]:
        action = read("Action", request)
        key, identity, origin = self._caller(context)
        if action.type == "CloseSession":
            self._sessions.end(key)
            body = make("CloseSessionResult", status=protobuf_messages.SESSION_CLOSED).SerializeToString()
        else:
            with self._sessions.use(key, identity, origin) as session:
                body = self._flight_sql.act(session, action.type, action.body)
        if body is not None:
            yield make("Result", body=body).SerializeToString()

    def _list_actions(self, request: bytes, context: Any) -> Iterator[bytes]:
        self._caller(context)
        for name, description in ACTIONS.items():
            yield make("ActionType", type=name, description=description).SerializeToString()

    def _session(self, context: Any) -> Any:
        return self._sessions.use(*self._caller(context))

    def _caller(self, context: Any) -> tuple[str, Identity, Origin]:
        """Returns the key of the caller's session, who it is, and where. Raises UnauthenticatedError.

        A token is a session; without one it is the user of a connection.
        """
        peer, header = str(context.peer()), _header(context)
        by_socket, origin = peer.startswith(UNIX), _origin(peer)
        if by_socket and header is None:
            return peer, OWNER, origin
        with self._logins.noting(origin, header or "") as note:
            identity = self._logins.authorize(header, origin.address)
            note(identity.name)
        if not by_socket:
            self.guard.logged_in(peer)
        scheme, _, token = (header or "").partition(" ")
        return token if scheme.lower() == "bearer" else f"{peer} {identity.name}", identity, origin


@lru_cache(maxsize=1024)
def _origin(peer: str) -> Origin:
    """Returns where a peer is, as gRPC writes it."""
    if peer.startswith(UNIX):
        return Origin("socket")
    found = read_peer(peer)
    return Origin("flight", "" if found is None else found[0])


def _canceller(context: Any) -> OnCancel:
    """Returns what has a statement ended when its call does: the client is gone then, or has its answer."""

    def on_cancel(cancel: Callable[[], None]) -> None:
        if not context.add_callback(cancel):
            cancel()

    return on_cancel


def _header(context: Any) -> str | None:
    return next((value for key, value in context.invocation_metadata() if key == _AUTHORIZATION), None)


def whole(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
    """Yields a client's messages; raises CancelledError where they end because the client is gone."""
    try:
        yield from requests
    except grpc.RpcError as error:
        raise CancelledError("the client is gone") from error
    if not context.is_active():
        raise CancelledError("the client is gone")


def _guarded(method: Callable[[Any, Any], bytes]) -> Callable[[Any, Any], bytes]:
    """Returns the method with errors told as gRPC does it."""

    def call(request: Any, context: Any) -> bytes:
        try:
            return method(request, context)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, the client is told and the server lives on
            _refuse(context, error)

    return call


def _guarded_stream(method: Callable[[Any, Any], Iterator[bytes]]) -> Callable[[Any, Any], Iterator[bytes]]:
    """Returns the method, which yields its answers, with errors told as gRPC does it."""

    def call(request: Any, context: Any) -> Iterator[bytes]:
        try:
            yield from method(request, context)
        except Exception as error:  # noqa: BLE001
            _refuse(context, error)

    return call


def _refuse(context: Any, error: Exception) -> NoReturn:
    if not isinstance(error, PenstockError):
        _log.error("a call failed", exc_info=error)
        error = InternalError(f"{type(error).__name__}: {error}")
    context.set_trailing_metadata([(DETAILS, encode(error))])
    context.abort(code_of(error), text_of(error))
    raise error  # abort never returns
