"""Answers HTTP on one port, from a table of paths; knows nothing of what it answers.

Requests that a browser was lured into by a foreign page are refused, by the Origin that they come from and by the name
that they call this machine.
"""

from __future__ import annotations

import io
import ipaddress
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote

from penstock.common.admission import Admission, ConnectionBounds, PortCounts
from penstock.common.clock import SystemClock
from penstock.common.errors import PenstockError, UnavailableError
from penstock.common.logging import logger
from penstock.common.tls import Tls
from penstock.mnode.http.hangups import HangUps
from penstock.mnode.http.http_body import RequestError, read_body
from penstock.mnode.http.http_deadlines import TimedReader

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
class Request:
    """What was asked. `path` and the values of `query` are decoded; names of `headers` are in lower case.

    `read_body` returns the body, unpacked, of at most as many bytes as it is told. Raises RequestError. `address` is
    where it comes from; `logged_in` is called once whoever asks has proved who it is. `on_gone` takes what is to be
    called, from another thread, when the client hangs up before it has its answer.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    read_body: Callable[[int], bytes]
    address: str = ""
    logged_in: Callable[[], None] = lambda: None
    on_gone: Callable[[Callable[[], None]], None] = lambda gone: None


@dataclass(frozen=True, slots=True)
class Answer:
    """What is said to it. Content that isn't bytes is sent piece by piece, as it is made.

    If it has `close`, that is called afterwards. What raises CutShort ends the answer where it is.
    """

    status: HTTPStatus
    content: bytes | Iterable[bytes] = b""
    content_type: str = "text/plain"
    headers: Mapping[str, str] = field(default_factory=dict)


class CutShort(Exception):
    """The rest of an answer that has begun can't be made. `last` is what is sent instead."""

    def __init__(self, last: bytes) -> None:
        super().__init__(last)
        self.last = last


class Place(Protocol):
    """What there is at one path: `answer` is called for each request by one of `methods`, by many threads at once."""

    @property
    def methods(self) -> tuple[str, ...]: ...

    def answer(self, request: Request) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Page:
    """Something to look at, made anew for each request."""

    content_type: str
    make: Callable[[], bytes]
    methods: tuple[str, ...] = ("GET",)

    def answer(self, request: Request) -> Answer:
        try:
            return Answer(HTTPStatus.OK, self.make(), self.content_type)
        except PenstockError as error:
            raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """How long and how often clients may keep a port busy.

    A TLS handshake, and the header of a request, may take as long as a login (`connections.login_timeout_s`); so may a
    body, and a second more for each `body_rate` bytes of it.
    """

    connections: ConnectionBounds
    body_rate: int


USUAL_BOUNDS = HttpBounds(ConnectionBounds(strangers=256, login_timeout_s=10.0, per_address=512, total=1024), 16 * 1024)


class HttpDoor:
    """Serves `places` by their paths until `close`; a path that ends in a slash stands for all below it too."""

    def __init__(
        self,
        host: str,
        port: int,
        places: Mapping[str, Place],
        *,
        bounds: HttpBounds = USUAL_BOUNDS,
        tls: Tls | None = None,
        any_name: Callable[[], bool] = lambda: False,
    ) -> None:
        """A `port` of 0 is any free one. `any_name` tells whether requests may call this machine by any name, since
        something that foreign pages don't have is needed for an answer.

        Raises UnavailableError if the port can't be had, ConfigError if `tls` is none.
        """
        context = None if tls is None else tls.context()
        try:
            self._server = _Server((host, port), _handler(places, host, any_name, bounds), context, bounds)
        except OSError as error:
            raise UnavailableError(f"port {port} of {host} can't be opened: {error.strerror}",
                                   hint="another engine or program has it; choose another one") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="http door", daemon=True,
                                        kwargs={"poll_interval": 0.1})
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def counts(self) -> PortCounts:
        """Returns how many are connected, and how many were sent away."""
        return self._server.admission.counts()

    def close(self) -> None:
        """Takes no more requests; who is being answered is cut off when the process ends."""
        self._server.shutdown()
        self._server.server_close()
        self._server.hang_ups.close()
        self._server.hang_up()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """A thread per connection. Who is one too many is cut off, whatever it waits for."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext | None,
        bounds: HttpBounds,
    ) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._open: dict[int, socket.socket] = {}
        self.admission: Admission[int] = Admission(bounds.connections)
        self.hang_ups = HangUps()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        if self._context is not None:
            # The handshake is the handler's thread's: one slow client must not keep the others waiting.
            connection = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def verify_request(self, request: Any, client_address: Any) -> bool:
        with self._lock:
            self._open[id(request)] = request
        self.admission.opened(id(request), client_address[0], _monotonic())
        self.service_actions()
        with self._lock:
            return id(request) in self._open

    def service_actions(self) -> None:
        """Cuts off who must go; called after each connection, and every now and then."""
        now = _monotonic()
        for key in self.admission.over(now):
            with self._lock:
                connection = self._open.pop(key, None)
                if connection is not None:
                    _shut(connection, socket.SHUT_RDWR)
        if (text := self.admission.report(now)) is not None:
            _log.warning("connections to port %d were closed: %s", self.server_address[1], text)

    def shutdown_request(self, request: Any) -> None:
        self.admission.closed(id(request))
        with self._lock:
            self._open.pop(id(request), None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if isinstance(sys.exc_info()[1], OSError):
            _log.debug("a connection broke", exc_info=True)
        else:
            _log.exception("a request could not be handled")

    def hang_up(self) -> None:
        """Lets connections end with the answer that they wait for."""
        with self._lock:
            for connection in self._open.values():
                _shut(connection, socket.SHUT_RD)


def _handler(
    places: Mapping[str, Place], host: str, any_name: Callable[[], bool], bounds: HttpBounds
) -> type[BaseHTTPRequestHandler]:
    login_s = bounds.connections.login_timeout_s

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        error_message_format, error_content_type = "%(message)s\n", "text/plain"
        disable_nagle_algorithm = True
        server_version, sys_version = "penstock", ""
        _waits_for_go = False
        _unread = False

        def setup(self) -> None:
            super().setup()
            self.connection.settimeout(login_s)
            if isinstance(self.connection, ssl.SSLSocket):
                self.connection.do_handshake()
            self._timed = TimedReader(self.connection, _monotonic)
            self.rfile.close()
            self.rfile = io.BufferedReader(self._timed)

        def handle_one_request(self) -> None:
            self._timed.await_request(_IDLE_S, login_s)
            super().handle_one_request()

        def do_GET(self) -> None:
            headers = _by_name(self.headers)
            self._unread = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
            try:
                answer = self._answer(headers)
            except RequestError as error:
                answer = Answer(error.status, f"{error.text}\n".encode())
            except Exception:  # noqa: BLE001 - one request that fails must not take the others along
                _log.exception("%s could not be answered", _without_query(self.path))
                answer = Answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"see the log\n")
            # Where a body wasn't read to its end, the next request can't be found.
            self.close_connection = self.close_connection or self._unread
            try:
                self._send(answer)
            finally:
                self.server.hang_ups.forget(self.connection)  # type: ignore[attr-defined]
                close = getattr(answer.content, "close", None)
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

        def _answer(self, headers: Mapping[str, str]) -> Answer:
            asked, origin = headers.get("host", ""), headers.get("origin")
            if not (any_name() or _is_us(asked, host)):
                raise RequestError(HTTPStatus.MISDIRECTED_REQUEST, "this is not who you asked for")
            if origin is not None and origin.partition("//")[2] != asked:
                raise RequestError(HTTPStatus.FORBIDDEN, "pages of others may not ask this")
            path, _, query = self.path.partition("?")
            place = places.get(path) or places.get(_folder_of(path))
            if place is None:
                raise RequestError(HTTPStatus.NOT_FOUND, "\n".join(["there are", *places]))
            if self.command not in place.methods:
                return Answer(HTTPStatus.METHOD_NOT_ALLOWED, f"{' or '.join(place.methods)} is\n".encode(),
                              headers={"Allow": ", ".join(place.methods)})
            return place.answer(Request(
                self.command, unquote(path), dict(parse_qsl(query, keep_blank_values=True)), headers,
                lambda size_max: self._read_body(headers, size_max), self.client_address[0], self._note_login,
                self._on_gone))

        def _on_gone(self, gone: Callable[[], None]) -> None:
            # Those of HTTP/1.0 may close their side once they have asked.
            if self.request_version != "HTTP/1.0":
                self.server.hang_ups.watch(self.connection, gone)  # type: ignore[attr-defined]

        def _note_login(self) -> None:
            self.server.admission.logged_in(id(self.request))  # type: ignore[attr-defined]

        def _read_body(self, headers: Mapping[str, str], size_max: int) -> bytes:
            if self._waits_for_go:
                super().handle_expect_100()
            self._timed.await_body(login_s, bounds.body_rate)
            try:
                body = read_body(self.rfile, headers, size_max)
            except OSError as error:
                raise RequestError(HTTPStatus.REQUEST_TIMEOUT, f"the body didn't come: {error}") from error
            self._unread = False
            return body

        def _send(self, answer: Answer) -> None:
            self.connection.settimeout(_WRITE_S)  # for each piece
            content = answer.content
            chunked = self.request_version != "HTTP/1.0"
            if not isinstance(content, bytes) and not chunked:
                self.close_connection = True  # HTTP/1.0 knows no pieces: where the answer ends, the connection does
            self.send_response(answer.status)
            for name, value in {**_HEADERS, **answer.headers}.items():
                self.send_header(name, value)
            if self.close_connection:
                self.send_header("Connection", "close")
            if answer.status != HTTPStatus.NO_CONTENT:
                self.send_header("Content-Type", answer.content_type)
                if isinstance(content, bytes):
                    self.send_header("Content-Length", str(len(content)))
                elif chunked:
                    self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            if self.command == "HEAD" or answer.status == HTTPStatus.NO_CONTENT:
                return
            if isinstance(content, bytes):
                self.wfile.write(content)
                return
            try:
                for piece in filter(None, content):
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            except CutShort as short:
                # Without the last, empty piece no client takes the answer for whole.
                self.close_connection = True
                self.wfile.write(b"%x\r\n%b\r\n" % (len(short.last), short.last) if chunked else short.last)
                return
            if chunked:
                self.wfile.write(b"0\r\n\r\n")

        def _linger(self) -> None:
            """Takes in a little of what wasn't read: if it were there at the end, the client might lose the answer."""
            _shut(self.connection, socket.SHUT_WR)
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

    return Handler


def _without_query(path: str) -> str:
    return path.partition("?")[0]


def _folder_of(path: str) -> str:
    """Returns the name of the place that stands for all below it, where `path` is one of them; "" at the top."""
    folder = path.rpartition("/")[0]
    return f"{folder}/" if folder else ""


def _by_name(headers: Message) -> dict[str, str]:
    """Returns headers by their names in lower case; one that was sent twice has both values, with a comma."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        found[name.lower()] = f"{found[name.lower()]}, {value}" if name.lower() in found else value
    return found


def _shut(connection: socket.socket, how: int) -> None:
    try:
        # Not the method of an SSLSocket, which would send what follows in clear.
        socket.socket.shutdown(connection, how)
    except OSError as error:
        _log.debug("a connection was gone already: %s", error)


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
