"""Requests, responses, and what there is at a path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol

from penstock.common.admission import ConnectionBounds
from penstock.common.errors import PenstockError
from penstock.mnode.access.logins import Pass
from penstock.mnode.http.http_body import RequestError


@dataclass(slots=True)  # to make a frozen one takes three times as long
class HttpRequest:
    """What was asked. `path` and the values of `query` are decoded; names of `headers` are in lower case.

    `read_body` returns the body, unpacked, of at most as many bytes as it is told. Raises RequestError. `address` is
    where it comes from; `logged_in` is called once whoever asks has proved who it is. `on_gone` takes what is to be
    called, from another thread, when the client hangs up before it has its answer. `passes`: what earlier requests of
    the same connection were let in by, by their credentials; `only_known`: nothing else lets anybody in, since finding
    out takes long.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    read_body: Callable[[int], bytes]
    address: str = ""
    logged_in: Callable[[], None] = lambda: None
    on_gone: Callable[[Callable[[], None]], None] = lambda gone: None
    passes: dict[str | None, Pass] = field(default_factory=dict)
    only_known: bool = False


@dataclass(frozen=True, slots=True)
class TakenConnection:
    """A connection that isn't HTTP's any more.

    `receive` returns what comes within some seconds, b"" when the client has hung up; `send` takes bytes to it. Both
    raise OSError, TimeoutError if it takes too long.
    """

    receive: Callable[[float], bytes]
    send: Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Response:
    """What is said to it. Content that isn't bytes is sent piece by piece, as it is made.

    `takeover` has the connection instead, and says everything itself. If content has `close`, that is called
    afterwards. What raises CutShort ends the answer where it is. `delay_s`: how long who asks waits for it, for
    those who come too often.
    """

    status: HTTPStatus
    content: bytes | Iterable[bytes] = b""
    content_type: str = "text/plain"
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    takeover: Callable[[TakenConnection], None] | None = None


class CutShort(Exception):
    """The rest of an answer that has begun can't be made. `last` is what is sent instead."""

    def __init__(self, last: bytes) -> None:
        super().__init__(last)
        self.last = last


class Route(Protocol):
    """What there is at one path: `answer` is called for each request by one of `methods`, by many threads at once."""

    @property
    def methods(self) -> tuple[str, ...]: ...

    def answer(self, request: HttpRequest) -> Response: ...


@dataclass(frozen=True, slots=True)
class Page:
    """Something to look at, made anew for each request."""

    content_type: str
    make: Callable[[], bytes]
    methods: tuple[str, ...] = ("GET",)

    def answer(self, request: HttpRequest) -> Response:
        try:
            return Response(HTTPStatus.OK, self.make(), self.content_type)
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
