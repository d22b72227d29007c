"""One connection of a client: its requests are read, routed and answered; knows nothing of what is answered.

Requests that a browser was lured into by a foreign page are refused, by the Origin that they come from and by the name
that they call this machine.
"""

from __future__ import annotations

import io
import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, unquote

from penstock.common.admission import Admission
from penstock.common.clock import SystemClock
from penstock.common.logging import logger
from penstock.mnode.http.hangups import HangUps
from penstock.mnode.http.http_body import RequestError, read_body
from penstock.mnode.http.http_deadlines import TimedReader
from penstock.mnode.http.http_messages import CutShort, HttpBounds, HttpRequest, Response, Route

_log = logger(__name__)
_monotonic = SystemClock.monotonic
_IDLE_S = 75.0
_WRITE_S = 75.0
_LINGER_S, _LINGER_BYTES = 1.0, 64 * 1024
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                               "connect-src 'self'; img-src data:",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Site:
    """What all connections of a port share.

    `routes`: by their paths; one that ends in a slash stands for all below it too. `any_name` tells whether requests
    may call this machine by any name.
    """

    routes: Mapping[str, Route]
    host: str
    any_name: Callable[[], bool]
    bounds: HttpBounds
    admission: Admission[int]
    hang_ups: HangUps

    @property
    def login_s(self) -> float:
        return self.bounds.connections.login_timeout_s

    def route(self, path: str) -> Route:
        """Returns what there is at a path. Raises RequestError."""
        found = self.routes.get(path) or self.routes.get(_folder_of(path))
        if found is None:
            raise RequestError(HTTPStatus.NOT_FOUND, "\n".join(["there are", *self.routes]))
        return found

    def require_own_page(self, headers: Mapping[str, str]) -> None:
        """Raises RequestError for what a foreign page has asked."""
        asked, origin = headers.get("host", ""), headers.get("origin")
        if not (self.any_name() or _is_us(asked, self.host)):
            raise RequestError(HTTPStatus.MISDIRECTED_REQUEST, "this is not who you asked for")
        if origin is not None and origin.partition("//")[2] != asked:
            raise RequestError(HTTPStatus.FORBIDDEN, "pages of others may not ask this")


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection, one after the other, on a thread of its own."""

    protocol_version = "HTTP/1.1"
    error_message_format, error_content_type = "%(message)s\n", "text/plain"
    disable_nagle_algorithm = True
    server_version, sys_version = "penstock", ""
    _waits_for_go = False
    _unread = False

    def __init__(self, site: Site, *arguments: Any) -> None:
        self._site = site
        super().__init__(*arguments)

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self._site.login_s)
        if isinstance(self.connection, ssl.SSLSocket):
            self.connection.do_handshake()
        self._timed = TimedReader(self.connection, _monotonic)
        self.rfile.close()
        self.rfile = io.BufferedReader(self._timed)

    def handle_one_request(self) -> None:
        self._timed.await_request(_IDLE_S, self._site.login_s)
        super().handle_one_request()

    def do_GET(self) -> None:
        headers = _by_name(self.headers)
        self._unread = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        try:
            response = self._answer(headers)
        except RequestError as error:
            response = Response(error.status, f"{error.text}\n".encode())
        except Exception:  # noqa: BLE001 - one request that fails must not take the others along
            _log.exception("%s could not be answered", _without_query(self.path))
            response = Response(HTTPStatus.INTERNAL_SERVER_ERROR, b"see the log\n")
        # Where a body wasn't read to its end, the next request can't be found.
        self.close_connection = self.close_connection or self._unread
        try:
            self._send(response)
        finally:
            self._site.hang_ups.forget(self.connection)
            close = getattr(response.content, "close", None)
            if close is not None:
                close()
        self._waits_for_go = False
        if self._unread:
            self._linger()

    do_POST = do_HEAD = do_GET

    def handle_expect_100(self) -> bool:
        """Lets the client wait until its body is wanted."""
        self._waits_for_go = True
        return True

    def _answer(self, headers: Mapping[str, str]) -> Response:
        self._site.require_own_page(headers)
        path, _, query = self.path.partition("?")
        route = self._site.route(path)
        if self.command not in route.methods:
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, f"{' or '.join(route.methods)} is\n".encode(),
                            headers={"Allow": ", ".join(route.methods)})
        return route.answer(HttpRequest(
            self.command, unquote(path), dict(parse_qsl(query, keep_blank_values=True)), headers,
            lambda size_max: self._read_body(headers, size_max), self.client_address[0], self._note_login,
            self._on_gone))

    def _on_gone(self, gone: Callable[[], None]) -> None:
        # Those of HTTP/1.0 may close their side once they have asked.
        if self.request_version != "HTTP/1.0":
            self._site.hang_ups.watch(self.connection, gone)

    def _note_login(self) -> None:
        self._site.admission.logged_in(id(self.request))

    def _read_body(self, headers: Mapping[str, str], size_max: int) -> bytes:
        if self._waits_for_go:
            super().handle_expect_100()
        self._timed.await_body(self._site.login_s, self._site.bounds.body_rate)
        try:
            body = read_body(self.rfile, headers, size_max)
        except OSError as error:
            raise RequestError(HTTPStatus.REQUEST_TIMEOUT, f"the body didn't come: {error}") from error
        self._unread = False
        return body

    def _send(self, response: Response) -> None:
        self.connection.settimeout(_WRITE_S)  # for each piece
        content = response.content
        chunked = self.request_version != "HTTP/1.0"
        if not isinstance(content, bytes) and not chunked:
            self.close_connection = True  # HTTP/1.0 knows no pieces: where the answer ends, the connection does
        self._send_headers(response, chunked=chunked)
        if self.command == "HEAD" or response.status == HTTPStatus.NO_CONTENT:
            return
        if isinstance(content, bytes):
            self.wfile.write(content)
        else:
            self._send_pieces(content, chunked=chunked)

    def _send_headers(self, response: Response, *, chunked: bool) -> None:
        self.send_response(response.status)
        for name, value in {**_HEADERS, **response.headers}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        if response.status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Type", response.content_type)
            if isinstance(response.content, bytes):
                self.send_header("Content-Length", str(len(response.content)))
            elif chunked:
                self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _send_pieces(self, pieces: Iterable[bytes], *, chunked: bool) -> None:
        def send(piece: bytes) -> None:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)

        try:
            for piece in filter(None, pieces):
                send(piece)
        except CutShort as short:
            # Without the last, empty piece no client takes the answer for whole.
            self.close_connection = True
            send(short.last)
            return
        if chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _linger(self) -> None:
        """Takes in a little of what wasn't read: if it were there at the end, the client might lose the answer."""
        shut(self.connection, socket.SHUT_WR)
        until = _monotonic() + _LINGER_S
        try:
            while (left_s := until - _monotonic()) > 0:
                self.connection.settimeout(left_s)
                if not self.connection.recv(_LINGER_BYTES):
                    return
        except OSError as error:
            _log.debug("a connection ended: %s", error)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        _log.debug("%s %s: %s", self.command, _without_query(getattr(self, "path", "")), code)

    def log_error(self, format: str, *args: object) -> None:
        # What is malformed may hold anything, also secrets.
        _log.debug("a request was malformed or took too long")


def shut(connection: socket.socket, how: int) -> None:
    """Ends one or both ways of a connection; one that is gone already is no error."""
    try:
        # Not the method of an SSLSocket, which would send what follows in clear.
        socket.socket.shutdown(connection, how)
    except OSError as error:
        _log.debug("a connection was gone already: %s", error)


def _without_query(path: str) -> str:
    return path.partition("?")[0]


def _by_name(headers: Message) -> dict[str, str]:
    """Returns headers by their names in lower case; one that was sent twice has both values, with a comma."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        found[name.lower()] = f"{found[name.lower()]}, {value}" if name.lower() in found else value
    return found


def _folder_of(path: str) -> str:
    """Returns the name of the place that stands for all below it, where `path` is one of them; "" at the top."""
    folder = path.rpartition("/")[0]
    return f"{folder}/" if folder else ""


def _is_us(asked: str, host: str) -> bool:
    """Tells whether a Host header names this machine by an address or by a name that no one else can give it."""
    name = asked.rpartition(":")[0] if asked.rpartition(":")[2].isdigit() else asked
    if name.lower() in ("localhost", host.lower()):
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
