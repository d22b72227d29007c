"""One connection of a client: its requests are read, routed and answered; knows nothing of what is answered.

Requests that a browser was lured into by a foreign page are refused, by the Origin that they come from and by the name
that they call this machine.
"""

from __future__ import annotations

import io
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from io import BufferedIOBase
from socketserver import StreamRequestHandler
from typing import Any

from penstock.common.admission import Admission
from penstock.common.bounded_server import shut
from penstock.common.clock import SystemClock
from penstock.common.errors import PenstockError
from penstock.common.logging import logger
from penstock.mnode.access.logins import Pass
from penstock.mnode.http.gathered_requests import Begun, SimpleRun
from penstock.mnode.http.hangups import HangUps
from penstock.mnode.http.http_body import RequestError, read_body
from penstock.mnode.http.http_deadlines import TimedReader, send
from penstock.mnode.http.http_head import HeadReader, RequestHead, answer_head
from penstock.mnode.http.http_messages import CutShort, HttpBounds, HttpRequest, Response, Route, TakenConnection
from penstock.mnode.http.json_answers import Call, document_answer, tell

_log = logger(__name__)
_monotonic = SystemClock.monotonic
_IDLE_S = 75.0
_PIECE_BYTES = 64 * 1024
_WRITE_S = 75.0
_GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"
_LINGER_S, _LINGER_BYTES = 1.0, 64 * 1024


@dataclass(frozen=True, slots=True)
class Site:
    """What all connections of a port share.

    `routes`: by their paths; one that ends in a slash stands for all below it too, one that ends in `/*/` for all two
    levels below. `any_name` tells whether requests may call this machine by any name.
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

    def place(self, path: str) -> str | None:
        """Returns under which name of `routes` a path is, None if there is nothing."""
        if path in self.routes:
            return path
        folder = _folder_of(path)
        if folder in self.routes:
            return folder
        wide = f"{_folder_of(folder[:-1])}*/"
        return wide if wide in self.routes else None

    def route(self, place: str | None) -> Route:
        """Returns what there is under a name of `place`. Raises RequestError."""
        if place is None:
            known = ", ".join(self.routes)
            raise RequestError(HTTPStatus.NOT_FOUND, f"unknown path; known paths: {known}")
        return self.routes[place]

    def require_own_page(self, headers: Mapping[str, str]) -> None:
        """Raises RequestError for what a foreign page has asked."""
        asked, origin = headers.get("host", ""), headers.get("origin")
        if not (self.any_name() or _is_us(asked, self.host)):
            raise RequestError(HTTPStatus.MISDIRECTED_REQUEST, "unknown host name")
        if origin is not None and origin.partition("//")[2] != asked:
            raise RequestError(HTTPStatus.FORBIDDEN, "requests from pages of other sites are refused")


class Handler(StreamRequestHandler):
    """Answers the requests of one connection, one after the other, on a thread of its own."""

    disable_nagle_algorithm = True

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
        self.rfile = self._stream = io.BufferedReader(self._timed)
        self._heads = HeadReader(self._stream)
        self._passes: dict[str | None, Pass] = {}
        self._run = SimpleRun(isinstance(self.connection, ssl.SSLSocket))
        self._begun: tuple[Call, Response] | None = None

    def handle(self) -> None:
        stays_open = True
        while stays_open:
            self._timed.await_request(_IDLE_S, self._site.login_s)
            try:
                head = self._heads.read()
            except RequestError as error:
                # What is malformed may hold anything, also secrets: it isn't logged.
                _log.debug("a request was malformed")
                self._send(_refusal(error), None, stays_open=False)
                self._linger()
                return
            stays_open = head is not None and self._handle(head)
            if stays_open and head is not None:
                self._gather(self._simple_call(head))

    # --- simple requests -----------------------------------------------------------------------------------------

    def _simple_call(self, head: RequestHead) -> Call | None:
        """Returns what answers a request that may be simple."""
        call = self._site.routes.get(self._site.place(head.place) or "")
        if not isinstance(call, Call) or call.simple is None or head.method not in call.methods:
            return None
        return None if head.plain_size is None else call

    def _gather(self, call: Call | None) -> None:
        """Has requests answered together with others' after enough simple ones, until one comes that isn't simple.

        `call`: what answers the last one if it was simple.
        """
        if not self._run.goes_on(simple=call is not None) or call is None or call.simple is None \
                or self._timed.holds(self._stream):
            return
        unsent = call.simple[0].serve(self.connection, self, _IDLE_S)
        self._run.over()
        if unsent:
            self._write(unsent)

    def begin(self, data: bytes) -> Begun | None:
        """Does what `Gathered` says."""
        self._timed.unread(data)
        head, size = self._heads.find(data)
        call = None if head is None else self._simple_call(head)
        if head is None or call is None or call.simple is None or head.plain_size != len(data) - size:
            return None
        self._site.require_own_page(head.headers)
        found = call.simple[1](HttpRequest(
            head.method, head.path, head.query, head.headers, lambda size_max: _within(data[size:], size_max),
            passes=self._passes, only_known=True))
        if found is None:
            return None
        self._timed.unread(b"")
        self._begun = call, found[1]
        return found[0]

    def conclude(self, error: PenstockError | None) -> tuple[bytes, bool]:
        """Does what `Gathered` says."""
        assert self._begun is not None
        call, response = self._begun
        if error is not None:
            response = call.refusal(error)
        assert isinstance(response.content, bytes)
        self._run.answered += 1
        return _head_of(response, is_old=False, stays_open=True) + response.content, True

    # --- all requests --------------------------------------------------------------------------------------------

    def _handle(self, head: RequestHead) -> bool:
        """Answers a request, and returns whether there can be another one."""
        body = _Body(head, self._site, self.rfile, self._timed, self.connection)
        place = self._site.place(head.place)
        try:
            response = self._answer(head, body, place)
        except RequestError as error:
            response = _refusal(error)
        except Exception:  # noqa: BLE001 - one request that fails must not take the others along
            _log.exception("%s could not be answered", place or "nowhere")  # what follows it may be secret
            response = _refusal(RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, "see the log"))
        _log.debug("%s %s: %d", head.method, place or "nowhere", response.status)
        if response.delay_s:
            _pause(response.delay_s)  # the connection counts as a stranger's meanwhile, of which there may be few
        if response.takeover is not None:
            self._hand_over(response.takeover)
            return False
        try:
            # Where a body wasn't read to its end, the next request can't be found.
            stays_open = self._send(response, head, stays_open=head.keeps_open and not body.is_unread)
        finally:
            self._site.hang_ups.forget(self.connection)
            close = getattr(response.content, "close", None)
            if close is not None:
                close()
        if body.is_unread:
            self._linger()
        return stays_open

    def _hand_over(self, takeover: Callable[[TakenConnection], None]) -> None:
        """Has somebody else hold the conversation, until it ends."""
        def receive(wait_s: float) -> bytes:
            self._timed.await_request(wait_s, wait_s)
            return self.rfile.read1(_PIECE_BYTES)

        try:
            takeover(TakenConnection(receive, self._write))
        finally:
            self._site.hang_ups.forget(self.connection)

    def _answer(self, head: RequestHead, body: _Body, place: str | None) -> Response:
        self._site.require_own_page(head.headers)
        route = self._site.route(place)
        if head.method not in route.methods:
            refused = RequestError(HTTPStatus.METHOD_NOT_ALLOWED, f"this path takes {' or '.join(route.methods)}")
            return replace(_refusal(refused), headers={"Allow": ", ".join(route.methods)})
        return route.answer(HttpRequest(
            head.method, head.path, head.query, head.headers, body.read, self.client_address[0], self._note_login,
            lambda gone: self._on_gone(head, gone), self._passes))

    def _on_gone(self, head: RequestHead, gone: Callable[[], None]) -> None:
        # Those of HTTP/1.0 may close their side once they have asked.
        if not head.is_old:
            self._site.hang_ups.watch(self.connection, gone)

    def _note_login(self) -> None:
        self._site.admission.logged_in(id(self.request))

    def _send(self, response: Response, head: RequestHead | None, *, stays_open: bool) -> bool:
        """Sends an answer, and returns whether the connection can stay open."""
        content, is_old = response.content, head is not None and head.is_old
        whole, empty = isinstance(content, bytes), response.status == HTTPStatus.NO_CONTENT
        stays_open = stays_open and (whole or not is_old)  # without chunks, where the connection ends, the answer does
        first = _head_of(response, is_old=is_old, stays_open=stays_open)
        if empty or (head is not None and head.method == "HEAD"):
            self._write(first)
        elif isinstance(content, bytes):
            self._write(first + content)  # at once: each writing wakes the client
        else:
            return self._send_pieces(first, content, chunked=not is_old) and stays_open
        return stays_open

    def _send_pieces(self, first: bytes, pieces: Iterable[bytes], *, chunked: bool) -> bool:
        """Sends an answer as it is made, `first` with its first piece; returns whether it is whole."""
        try:
            for piece in filter(None, pieces):
                self._write(first + (b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece))
                first = b""
        except CutShort as short:
            # Without the last, empty piece no client takes the answer for whole.
            self._write(first + (b"%x\r\n%b\r\n" % (len(short.last), short.last) if chunked else short.last))
            return False
        self._write(first + (b"0\r\n\r\n" if chunked else b""))
        return True

    def _write(self, piece: bytes | bytearray) -> None:
        send(self.connection, piece, _WRITE_S)

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


class _Body:
    """The body of one request, of which the client may wait to be told to send it."""

    def __init__(
        self, head: RequestHead, site: Site, stream: BufferedIOBase, timed: TimedReader, connection: socket.socket
    ) -> None:
        self._head = head
        self._bounds = site.bounds
        self._stream = stream
        self._timed = timed
        self._connection = connection
        #: whether some of it is still to come
        self.is_unread = head.has_body

    def read(self, size_max: int) -> bytes:
        """Returns it, unpacked. Raises RequestError."""
        if self._head.waits_for_go:
            send(self._connection, _GO_ON, _WRITE_S)
        self._timed.await_body(self._bounds.connections.login_timeout_s, self._bounds.body_rate)
        try:
            body = read_body(self._stream, self._head.headers, size_max)
        except OSError as error:
            raise RequestError(HTTPStatus.REQUEST_TIMEOUT, f"the body could not be read: {error}") from error
        self.is_unread = False
        return body


def _within(body: bytes, size_max: int) -> bytes:
    if len(body) > size_max:
        raise RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the body is too large")
    return body


def _head_of(response: Response, *, is_old: bool, stays_open: bool) -> bytes:
    """Returns the head of an answer."""
    headers = list(response.headers.items())
    if not stays_open:
        headers.append(("Connection", "close"))
    if response.status != HTTPStatus.NO_CONTENT:
        headers.append(("Content-Type", response.content_type))
        if isinstance(response.content, bytes):
            headers.append(("Content-Length", str(len(response.content))))
        elif not is_old:
            headers.append(("Transfer-Encoding", "chunked"))
    return answer_head(response.status, tuple(headers))


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def _refusal(error: RequestError) -> Response:
    return document_answer(error.status, tell(error.status, error))


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
