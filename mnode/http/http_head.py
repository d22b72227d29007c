"""The head of a request, from its first line to the empty one, and the head of an answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from io import BufferedIOBase

from penstock.common.clock import SystemClock
from penstock.mnode.http.http_body import RequestError

_LINE_MAX, _HEADERS_MAX = 64 * 1024, 100
_FIRST_LINE = re.compile(rb"([A-Za-z]{1,32}) ([!-~\x80-\xff]+) HTTP/([0-9])\.([0-9])\r?\n")
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]++):([^\r\n\0]*+)\r?\n")
_clock = SystemClock()


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What is asked. Names of `headers` are in lower case; one that was sent twice has both values, with a comma."""

    method: str
    target: str
    is_old: bool  #: HTTP/1.0, which knows no chunks
    headers: Mapping[str, str]

    @property
    def path(self) -> str:
        """What is before the question mark."""
        return self.target.partition("?")[0]

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
        raise RequestError(HTTPStatus.BAD_REQUEST, "this is no request of HTTP/1.1")
    if found[3] != b"1":
        raise RequestError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "HTTP/1.1 is spoken here")
    headers = _read_headers(stream)
    if headers is None:
        return None
    return RequestHead(found[1].decode(), found[2].decode("latin-1"), found[4] == b"0", headers)


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


def answer_head(status: HTTPStatus, *headers: Mapping[str, str]) -> bytes:
    """Returns the head of an answer, with the empty line."""
    first = f"HTTP/1.1 {status.value} {status.phrase}\r\nServer: penstock\r\nDate: {_date(_clock.now_ms() // 1000)}\r\n"
    lines = [f"{name}: {value}\r\n" for some in headers for name, value in some.items()]
    return "".join((first, *lines, "\r\n")).encode("latin-1")


@lru_cache(maxsize=1)
def _date(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)
