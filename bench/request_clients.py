"""Clients that send one request after the other over connections of their own: one thread and bare sockets, so that
they cost little.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

_PIECE = 1 << 16
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_FRAME_HEADER, _FRAME_MAX = 9, 16_384


class Client(Protocol):
    """One connection's side of a protocol."""

    def connect(self, port: int) -> socket.socket:
        """Returns a connection to a port of this machine."""

    def begin(self) -> bytes:
        """Returns what is sent before the first request."""

    def request(self) -> bytes | None:
        """Returns the next request; None if there are no more."""

    def received(self, data: bytes) -> tuple[bool, bytes]:
        """Returns whether the answer is complete, and what must be sent for it. Raises ValueError if it is wrong."""


def http_request(head: str, body: str) -> bytes:
    """Returns a request whose `head` lacks the body's length."""
    data = body.encode()
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


@dataclass(slots=True, eq=False)
class HttpClient:
    """Sends one request of HTTP after the other."""

    requests: Iterator[bytes]
    _answer: bytes = b""

    def connect(self, port: int) -> socket.socket:
        return _connected(port)

    def begin(self) -> bytes:
        return b""

    def request(self) -> bytes | None:
        return next(self.requests, None)

    def received(self, data: bytes) -> tuple[bool, bytes]:
        self._answer += data
        head, end, body = self._answer.partition(b"\r\n\r\n")
        if not end:
            return False, b""
        lower = head.lower()
        if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 204")):
            raise ValueError(self._answer.decode())
        if b"chunked" in lower:
            complete = body.endswith(b"0\r\n\r\n")
        else:
            length = lower.partition(b"content-length:")[2].partition(b"\r\n")[0]
            complete = len(body) >= int(length or b"0")
        if complete:
            self._answer = b""
        return complete, b""


@dataclass(slots=True, eq=False)
class GrpcClient:
    """Makes calls of one method; a call is one or more messages, and is over with the end of its stream."""

    headers: Sequence[tuple[str, str]]
    calls: Iterator[Sequence[bytes]]
    _stream: int = -1
    _pending: bytes = b""
    _answered: bool = False

    def connect(self, port: int) -> socket.socket:
        return _connected(port)

    def begin(self) -> bytes:
        return _HTTP2_PREFACE + _frame(_SETTINGS, 0, 0, b"") + _frame(
            _WINDOW_UPDATE, 0, 0, (1 << 30).to_bytes(4, "big"))

    def request(self) -> bytes | None:
        call = next(self.calls, None)
        if call is None:
            return None
        self._stream += 2
        fields = b"".join(b"\x00" + _text(name) + _text(value) for name, value in self.headers)
        data = b"".join(b"\x00" + len(message).to_bytes(4, "big") + message for message in call)
        last = (len(data) - 1) // _FRAME_MAX * _FRAME_MAX
        return b"".join([
            _frame(_HEADERS, _END_HEADERS, self._stream, fields),
            *(_frame(_DATA, 0, self._stream, data[at:at + _FRAME_MAX]) for at in range(0, last, _FRAME_MAX)),
            _frame(_DATA, _END_STREAM, self._stream, data[last:])])

    def received(self, data: bytes) -> tuple[bool, bytes]:
        self._pending += data
        complete, answers = False, b""
        while len(self._pending) >= _FRAME_HEADER:
            end = _FRAME_HEADER + int.from_bytes(self._pending[:3], "big")
            if len(self._pending) < end:
                break
            kind, flags = self._pending[3], self._pending[4]
            body, self._pending = self._pending[_FRAME_HEADER:end], self._pending[end:]
            if kind == _GOAWAY:
                raise ValueError(body.decode("latin-1"))
            if kind in (_SETTINGS, _PING) and not flags & _ACK:
                answers += _frame(kind, _ACK, 0, body if kind == _PING else b"")
            self._answered = self._answered or kind == _DATA
            if kind == _HEADERS and flags & _END_STREAM:
                if not self._answered:  # a call that fails has no answer but its status
                    raise ValueError(body.decode("latin-1"))
                complete, self._answered = True, False
        return complete, answers


@dataclass(slots=True, eq=False)
class PostgresClient:
    """Executes statements with parameters, of these OIDs and as text; each is prepared before it is executed first.

    `log_in` returns a connection of psycopg's to a port.
    """

    log_in: Callable[[int], Any]
    types: Sequence[int]
    executions: Iterator[tuple[str, Sequence[str]]]
    _logged_in: Any = None
    _names: dict[str, bytes] = field(default_factory=dict)
    _pending: bytes = b""

    def connect(self, port: int) -> socket.socket:
        self._logged_in = self.log_in(port)
        return socket.socket(fileno=os.dup(self._logged_in.fileno()))

    def begin(self) -> bytes:
        return b""

    def request(self) -> bytes | None:
        execution = next(self.executions, None)
        if execution is None:
            self._logged_in.close()
            return None
        text, parameters = execution
        sent = b""
        if text not in self._names:
            self._names[text] = b"s%d\0" % len(self._names)
            sent = _message(b"P", self._names[text], text.encode(), struct.pack(
                f"!xH{len(self.types)}I", len(self.types), *self.types))
        values = [len(value).to_bytes(4, "big") + value for value in map(str.encode, parameters)]
        return sent + b"".join((
            _message(b"B", b"\0", self._names[text], struct.pack("!HH", 0, len(values)), *values, b"\0\0"),
            _message(b"D", b"P\0"), _message(b"E", b"\0", bytes(4)), _message(b"S")))

    def received(self, data: bytes) -> tuple[bool, bytes]:
        self._pending += data
        while len(self._pending) > 4:
            end = 1 + int.from_bytes(self._pending[1:5], "big")
            if len(self._pending) < end:
                break
            message, self._pending = self._pending[:end], self._pending[end:]
            if message[:1] == b"E":
                raise ValueError(message.decode(errors="replace"))
            if message[:1] == b"Z":
                return True, b""
        return False, b""


def _message(kind: bytes, *parts: bytes) -> bytes:
    return kind + (sum(map(len, parts)) + 4).to_bytes(4, "big") + b"".join(parts)


def _connected(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def _text(text: str) -> bytes:
    """Returns a text as HPACK has it: its length, in one byte up to 126, and itself."""
    data = text.encode()
    if len(data) < 0x7F:
        return bytes((len(data),)) + data
    return bytes((0x7F, len(data) - 0x7F)) + data  # up to 254


def drive(connections: Mapping[Client, socket.socket]) -> list[float]:
    """Sends all requests of all clients, each waiting for its answer, and returns the µs that each request took. The
    connections are closed then.
    """
    taken: list[float] = []
    sent: dict[Client, float] = {}
    with selectors.DefaultSelector() as selector:
        for client, connection in connections.items():
            sent[client] = time.perf_counter()
            connection.sendall(client.begin() + (client.request() or b""))
            selector.register(connection, selectors.EVENT_READ, client)
        while selector.get_map():
            for key, _ in selector.select():
                sock, client = key.fileobj, key.data
                assert isinstance(sock, socket.socket)
                data = sock.recv(_PIECE)
                if not data:
                    raise ConnectionError(f"the server has closed a connection after {len(taken)} requests")
                complete, answer = client.received(data)
                if complete:
                    now = time.perf_counter()
                    taken.append((now - sent[client]) * 1e6)
                    sent[client] = now
                    following = client.request()
                    if following is None:
                        selector.unregister(sock)
                        sock.close()
                        continue
                    answer += following
                if answer:
                    sock.sendall(answer)
    return taken
