"""The head of a request, from its first line to the empty one, and the head of an answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from io import BufferedIOBase, BufferedReader, BytesIO
from typing import Any
from urllib.parse import parse_qsl, unquote

from penstock.common.clock import SystemClock
from penstock.mnode.http.http_body import RequestError

_LINE_MAX, _HEADERS_MAX = 64 * 1024, 100
_FIRST_LINE = re.compile(rb"([A-Za-z]{1,32}) ([!-~\x80-\xff]+) HTTP/([0-9])\.([0-9])\r?\n")
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]++):([^\r\n\0]*+)\r?\n")
_END = b"\r\n\r\n"
_NOT_PLAIN = {"connection", "content-encoding", "expect", "transfer-encoding", "upgrade"}
_KEPT, _KEPT_BYTES_MAX = 8, 2048
_ALWAYS = "".join(f"{name}: {value}\r\n" for name, value in {
    "Server": "penstock",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                               "connect-src 'self'; img-src data:",
    "X-Content-Type-Options": "nosniff",
}.items())
_clock = SystemClock()


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What is asked. Names of `headers` are in lower case; one that was sent twice has both values, with a comma.

    `place` is what is before the question mark, as it was sent; `path` and the values of `query` are decoded.
    """

    method: str
    place: str
    path: str
    query: Mapping[str, str]
    is_old: bool  #: HTTP/1.0, which knows no chunks
    headers: Mapping[str, str]

    @property
    def plain_size(self) -> int | None:
        """How many bytes of body come right behind it, as they are, and another request then; None if it isn't so."""
        length = self.headers.get("content-length", "")
        if self.is_old or not _NOT_PLAIN.isdisjoint(self.headers) or not (length.isascii() and length.isdigit()):
            return None
        return int(length)

    @property
    def keeps_open(self) -> bool:
        """Whether the client wants to send more requests."""
        wish = self.headers.get("connection", "").lower()
        return wish == "keep-alive" if self.is_old else wish != "close"

    @property
    def has_body(self) -> bool:
        return "transfer-encoding" in self.headers or self.headers.get("content-length", "0") != "0"

    @property
    def waits_for_go(self) -> bool:
        """Whether the client holds its body back until it is told to go on."""
        return not self.is_old and self.headers.get("expect", "").lower() == "100-continue"


def read_head(stream: BufferedIOBase) -> RequestHead | None:
    """Returns the next request's head, None if the client has hung up before its end.

    Raises RequestError; then the rest of the stream means nothing.
    """
    line = stream.readline(_LINE_MAX + 1)
    if len(line) > _LINE_MAX:
        raise RequestError(HTTPStatus.REQUEST_URI_TOO_LONG, f"the first line has more than {_LINE_MAX} bytes")
    if not line.endswith(b"\n"):
        return None
    found = _FIRST_LINE.fullmatch(line)
    if found is None:
        raise RequestError(HTTPStatus.BAD_REQUEST, "this is not an HTTP/1.1 request")
    if found[3] != b"1":
        raise RequestError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.1 is supported")
    headers = _read_headers(stream)
    if headers is None:
        return None
    before, _, query = found[2].decode("latin-1").partition("?")
    place = f"/{before.lstrip('/')}"
    return RequestHead(found[1].decode(), place, unquote(place), dict(parse_qsl(query, keep_blank_values=True)),
                       found[4] == b"0", headers)


class HeadReader:
    """Reads the heads of one connection's requests; what comes again byte by byte, as most do, is known already."""

    def __init__(self, stream: BufferedReader[Any]) -> None:
        self._stream = stream
        self._known: dict[bytes, RequestHead] = {}

    def read(self) -> RequestHead | None:
        """Does what `read_head` does."""
        head, size = self.find(self._stream.peek())
        if head is None:
            return read_head(self._stream)
        self._stream.read(size)
        return head

    def find(self, waiting: bytes) -> tuple[RequestHead | None, int]:
        """Returns the head that bytes begin with, and its size; None if it isn't as most are. Raises RequestError."""
        size = waiting.find(_END) + len(_END)
        if not len(_END) <= size <= _KEPT_BYTES_MAX:
            return None, 0
        data = waiting[:size]
        head = self._known.get(data)
        if head is None:
            alone = BytesIO(data)
            head = read_head(alone)
            if head is None or alone.tell() != size:  # its lines end otherwise, and this is another's end
                return None, 0
            if len(self._known) == _KEPT:
                self._known.clear()
            self._known[data] = head
        return head, size


def _read_headers(stream: BufferedIOBase) -> dict[str, str] | None:
    """Returns all headers, None if the client has hung up meanwhile."""
    headers: dict[str, str] = {}
    for _ in range(_HEADERS_MAX + 1):
        line = stream.readline(_LINE_MAX + 1)
        if line in (b"\r\n", b"\n"):
            return headers
        if len(line) > _LINE_MAX:
            raise RequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a header has more than {_LINE_MAX} bytes")
        if not line.endswith(b"\n"):
            return None
        found = _HEADER.fullmatch(line)
        if found is None:
            raise RequestError(HTTPStatus.BAD_REQUEST, "a header is malformed")
        name, value = found[1].decode().lower(), found[2].strip(b" \t").decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    raise RequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"there are more than {_HEADERS_MAX} headers")


def answer_head(status: HTTPStatus, headers: tuple[tuple[str, str], ...]) -> bytes:
    """Returns the head of an answer, with the empty line."""
    return _answer_head(status, headers, _clock.now_ms() // 1000)


@lru_cache(maxsize=16)
def _answer_head(status: HTTPStatus, headers: tuple[tuple[str, str], ...], seconds: int) -> bytes:
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
    return (f"HTTP/1.1 {status.value} {status.phrase}\r\nDate: {formatdate(seconds, usegmt=True)}\r\n{_ALWAYS}"
            f"{lines}\r\n").encode("latin-1")
