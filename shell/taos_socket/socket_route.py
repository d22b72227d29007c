"""WebSocket on a path of an HTTP port: takes connections over, and bounds what they send before and after logins."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from http import HTTPStatus

from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from penstock.common.clock import SystemClock
from penstock.common.logging import logger
from penstock.mnode.access.session import SessionState
from penstock.mnode.engine import Engine
from penstock.mnode.http.http_messages import HttpRequest, Response, Route, TakenConnection
from penstock.mnode.http.http_sessions import HttpSessions, basic, by_token
from penstock.shell.taos_socket.socket_session import SocketSession

_log = logger(__name__)
_monotonic = SystemClock.monotonic
_STRANGER_BYTES = 64 * 1024
_QUIET_S = 60.0
"""After so long without a message a client is asked whether it is there; it has as long to answer."""

#: The library's own says what is sent, passwords included.
_SILENT = logging.Logger("websockets", logging.CRITICAL + 1)
_MALFORMED = 1007


def socket_routes(engine: Engine, time_zone: str, size_max: int, login_s: float) -> dict[str, Route]:
    """Returns the paths that clients ask for; see `SocketRoute`."""
    return dict.fromkeys(("/ws", "/rest/ws"), SocketRoute(engine, time_zone, size_max, login_s))


class SocketRoute:
    """The path that TDengine's newer connectors ask for."""

    methods = ("GET",)

    def __init__(self, engine: Engine, time_zone: str, size_max: int, login_s: float) -> None:
        """`size_max`: bytes of a message after the login; `login_s`: how long a client may take for that."""
        self._engine = engine
        self._sessions = HttpSessions(engine.logins, time_zone)
        self._size_max = size_max
        self._login_s = login_s

    def answer(self, request: HttpRequest) -> Response:
        """Agrees on WebSocket, and takes the connection over."""
        handshake = ServerProtocol(logger=_SILENT)
        agreed = handshake.accept(Request(request.path, Headers(request.headers)))
        if agreed.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            return Response(HTTPStatus(agreed.status_code), bytes(agreed.body), headers={"Upgrade": "websocket"})
        handshake.send_response(agreed)
        # One that has read no handshake itself would wait for it.
        protocol = ServerProtocol(state=State.OPEN, max_size=_STRANGER_BYTES, logger=_SILENT)

        def log_in(user: str, password: str) -> SessionState:
            token = request.query.get("token")
            state = self._sessions.open(request, None, by_token(token) if token else basic(user, password))
            protocol.max_message_size = self._size_max
            return state

        session = SocketSession(self._engine, log_in, request.on_gone)
        conversation = _Conversation(protocol, session, self._login_s)
        return Response(HTTPStatus.SWITCHING_PROTOCOLS,
                        takeover=lambda connection: conversation.hold(connection, handshake.data_to_send()))


class _Conversation:
    """One connection's messages, whole ones, in their order."""

    def __init__(self, protocol: ServerProtocol, session: SocketSession, login_s: float) -> None:
        self._protocol = protocol
        self._session = session
        self._due = _monotonic() + login_s
        self._message = bytearray()
        self._is_text = False

    def hold(self, connection: TakenConnection, greeting: Iterable[bytes]) -> None:
        """Answers messages, after the greeting, until one of both ends the connection."""
        try:
            connection.send(b"".join(greeting))
            is_asked = False
            while not self._protocol.close_expected():
                logged_in = self._session.is_logged_in
                data = None
                try:
                    data = connection.receive(_QUIET_S if logged_in else self._due - _monotonic())
                except TimeoutError:
                    if is_asked or not logged_in:
                        return
                    is_asked = True
                    self._protocol.send_ping(b"")
                else:
                    is_asked = False
                    self._take(data)
                self._send(connection.send)
                # Without data the client has hung up, perhaps in the middle of a message.
                if self._session.is_refused or data == b"":
                    return
        finally:
            self._session.close()

    def _take(self, data: bytes) -> None:
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for frame in self._protocol.events_received():
            if isinstance(frame, Frame) and frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                self._take_frame(frame)

    def _take_frame(self, frame: Frame) -> None:
        if frame.opcode is not Opcode.CONT:
            self._message, self._is_text = bytearray(), frame.opcode is Opcode.TEXT
        self._message += frame.data
        if not frame.fin:
            return
        try:
            answer: str | bytes = (self._session.answer(self._message.decode()) if self._is_text
                                   else self._session.answer_binary(bytes(self._message)))
        except (ValueError, RecursionError):
            _log.debug("a message was malformed")
            self._protocol.fail(_MALFORMED, "a message was malformed")
            return
        if isinstance(answer, str):
            self._protocol.send_text(answer.encode())
            if self._session.is_refused:
                self._protocol.send_close()
        else:
            self._protocol.send_binary(answer)

    def _send(self, send: Callable[[bytes], None]) -> None:
        data = b"".join(self._protocol.data_to_send())
        if data:
            send(data)
