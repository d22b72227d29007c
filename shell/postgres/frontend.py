"""What clients of PostgreSQL's protocol send, version 3: bytes to messages. Pure; bounds are checked before sizes are
believed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from penstock.common.errors import PenstockError

STARTUP_MAX = 10_000
"""Bytes of the first message, and of each until somebody has logged in: as PostgreSQL bounds it."""
_CANCEL, _TLS, _GSS = 80_877_102, 80_877_103, 80_877_104
_PROTOCOL_3 = 3
_REPEATED = b"DESH"  # what is the same around each execution
_KEPT, _KEPT_BYTES_MAX = 256, 64


class ProtocolError(PenstockError):
    """Bytes that no client of the protocol may send; the connection ends."""


@dataclass(frozen=True, slots=True)
class Encryption:
    """Asks whether the connection can be encrypted, by TLS or by GSSAPI."""

    by_tls: bool


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Asks to end what another connection computes; `secret` is what that one was given."""

    process: int
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Startup:
    """Who wants what: `user`, `database` and settings. `minor`: of the protocol's version."""

    parameters: Mapping[str, str]
    minor: int = 0


@dataclass(frozen=True, slots=True)
class Password:
    """A password, or a message of SCRAM."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SimpleQuery:
    """Statements to be executed, with semicolons between them."""

    text: str


@dataclass(frozen=True, slots=True)
class Parse:
    """Prepares a statement; `types` are the OIDs of its first parameters, 0 where the client doesn't say."""

    name: str
    text: str
    types: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Bind:
    """Makes a portal of a prepared statement; formats are 0 for text, 1 for binary: one for all, or one each."""

    portal: str
    statement: str
    parameter_formats: tuple[int, ...]
    parameters: tuple[bytes | None, ...] = field(repr=False)
    result_formats: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DescribeRequest:
    """Asks for the columns of a prepared statement or of a portal."""

    is_portal: bool
    name: str


@dataclass(frozen=True, slots=True)
class Execute:
    """Executes a portal, for at most `rows_max` rows; 0: for all."""

    portal: str
    rows_max: int


@dataclass(frozen=True, slots=True)
class Close:
    """Forgets a prepared statement or a portal."""

    is_portal: bool
    name: str


@dataclass(frozen=True, slots=True)
class Sync:
    """Ends a series of messages; what fails before it skips to it."""


@dataclass(frozen=True, slots=True)
class Flush:
    """Asks for what has been answered so far."""


@dataclass(frozen=True, slots=True)
class CopyData:
    """A piece of the rows of COPY ... FROM STDIN."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class CopyDone:
    """All rows have come."""


@dataclass(frozen=True, slots=True)
class CopyFail:
    """The client has no more rows, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """The client goes."""


First = Encryption | CancelRequest | Startup
Message = (Password | SimpleQuery | Parse | Bind | DescribeRequest | Execute | Close | Sync | Flush | CopyData
           | CopyDone | CopyFail | Terminate)


def read_first(body: bytes) -> First:
    """Returns the message that a connection begins with, without its length. Raises ProtocolError."""
    fields = _Fields(body)
    code = fields.number(4)
    if code in (_TLS, _GSS):
        return Encryption(code == _TLS)
    if code == _CANCEL:
        return CancelRequest(fields.number(4), fields.rest())
    if code >> 16 != _PROTOCOL_3:
        raise ProtocolError(f"version {code >> 16}.{code & 0xFFFF} of the protocol is not supported; only 3.x is")
    parameters: dict[str, str] = {}
    while name := fields.text():
        parameters[name] = fields.text()
    return Startup(parameters, code & 0xFFFF)


def read_message(kind: int, body: bytes) -> Message:
    """Returns the message of a kind, a byte, from what follows its length. Raises ProtocolError."""
    return (_kept_message if kind in _REPEATED and len(body) <= _KEPT_BYTES_MAX else _read)(kind, body)


def _read(kind: int, body: bytes) -> Message:
    reader = _READERS.get(kind)
    if reader is None:
        raise ProtocolError(f"there is no message of kind {chr(kind)!r}")
    fields = _Fields(body)
    message = reader(fields)
    fields.end()
    return message


_kept_message = lru_cache(maxsize=_KEPT)(_read)


class _Fields:
    """Takes the fields of one message, in order. Raises ProtocolError where they don't fit it."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "big", signed=signed)

    def count(self) -> int:
        return self.number(2)

    def take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._body):
            raise ProtocolError("a message is shorter than it says")
        found = self._body[self._at:end]
        self._at = end
        return found

    def text(self) -> str:
        end = self._body.find(b"\0", self._at)
        if end < 0:
            raise ProtocolError("a text in a message has no end")
        found = self._body[self._at:end]
        self._at = end + 1
        return decoded(found)

    def numbers(self, size: int) -> tuple[int, ...]:
        """Takes a count, and so many numbers."""
        count = self.count()
        if not count:
            return ()
        data = self.take(count * size)
        return struct.unpack(f"!{count}{'h' if size == 2 else 'I'}", data)

    def values(self) -> tuple[bytes | None, ...]:
        found: list[bytes | None] = []
        count, body, at = self.count(), self._body, self._at
        for _ in range(count):
            start = at + 4
            size = int.from_bytes(body[at:start], "big", signed=True)
            at = start if size == -1 else start + size
            if size < -1 or at > len(body):
                raise ProtocolError("a message is shorter than it says")
            found.append(None if size == -1 else body[start:at])
        self._at = at
        return tuple(found)

    def is_portal(self) -> bool:
        kind = self.take(1)
        if kind not in (b"P", b"S"):
            raise ProtocolError(f"{kind!r} is neither a portal nor a statement")
        return kind == b"P"

    def rest(self) -> bytes:
        return self.take(len(self._body) - self._at)

    def end(self) -> None:
        if self._at != len(self._body):
            raise ProtocolError("a message is longer than what it says")


def decoded(data: bytes) -> str:
    """Returns text that came from a client. Raises ProtocolError."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a text is not UTF-8: {error.reason}", hint="set client_encoding to UTF8") from error


_READERS: dict[int, Callable[[_Fields], Message]] = {
    ord("p"): lambda fields: Password(fields.rest()),
    ord("Q"): lambda fields: SimpleQuery(fields.text()),
    ord("P"): lambda fields: Parse(fields.text(), fields.text(), fields.numbers(4)),
    ord("B"): lambda fields: Bind(
        fields.text(), fields.text(), fields.numbers(2), fields.values(), fields.numbers(2)),
    ord("D"): lambda fields: DescribeRequest(fields.is_portal(), fields.text()),
    ord("E"): lambda fields: Execute(fields.text(), max(0, fields.number(4, signed=True))),
    ord("C"): lambda fields: Close(fields.is_portal(), fields.text()),
    ord("S"): lambda fields: Sync(),
    ord("H"): lambda fields: Flush(),
    ord("d"): lambda fields: CopyData(fields.rest()),
    ord("c"): lambda fields: CopyDone(),
    ord("f"): lambda fields: CopyFail(fields.text()),
    ord("X"): lambda fields: Terminate(),
}
