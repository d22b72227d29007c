"""What clients of PostgreSQL's protocol are sent: messages to bytes. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

_NULL = b"\xff\xff\xff\xff"

Cell = bytes | None


def _message(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return kind + (len(body) + 4).to_bytes(4, "big") + body


def _text(text: str) -> bytes:
    # A zero byte ends a text.
    return text.replace("\0", "").encode(errors="replace") + b"\0"


# --- logins ------------------------------------------------------------------------------------------------------

ENCRYPT, STAY_PLAIN = b"S", b"N"
LOGIN_DONE = _message(b"R", struct.pack("!I", 0))


def ask_scram(mechanism: str) -> bytes:
    """Asks for a login by SCRAM."""
    return _message(b"R", struct.pack("!I", 10), _text(mechanism), b"\0")


def scram_goes_on(data: bytes) -> bytes:
    """The server's first message of SCRAM."""
    return _message(b"R", struct.pack("!I", 11), data)


def scram_ends(data: bytes) -> bytes:
    """The server's last message of SCRAM."""
    return _message(b"R", struct.pack("!I", 12), data)


def key_data(process: int, secret: bytes) -> bytes:
    """What the client needs to have its statements cancelled."""
    return _message(b"K", struct.pack("!I", process & 0xFFFF_FFFF), secret)


def parameter_status(name: str, value: str) -> bytes:
    """Tells a setting of the session."""
    return _message(b"S", _text(name), _text(value))


def negotiate_version(options: Sequence[str]) -> bytes:
    """Says that version 3.0 is spoken here, and which of the client's options aren't known."""
    return _message(b"v", struct.pack("!II", 0, len(options)), *map(_text, options))


# --- answers -----------------------------------------------------------------------------------------------------

PARSE_COMPLETE = _message(b"1")
BIND_COMPLETE = _message(b"2")
CLOSE_COMPLETE = _message(b"3")
NO_DATA = _message(b"n")
PORTAL_SUSPENDED = _message(b"s")
EMPTY_QUERY = _message(b"I")
COPY_DONE = _message(b"c")
_READY, _READY_IN_TRANSACTION = _message(b"Z", b"I"), _message(b"Z", b"T")


def ready(*, in_transaction: bool) -> bytes:
    """Says that the next statement may come."""
    return _READY_IN_TRANSACTION if in_transaction else _READY


@lru_cache(maxsize=64)
def complete(tag: str) -> bytes:
    """Says that a statement is done, with what it did."""
    return _message(b"C", _text(tag))


@dataclass(frozen=True, slots=True)
class ResultField:
    """A column of a result: OID of its type, bytes of its values (-1: any), modifier, 0: text or 1: binary."""

    name: str
    type_oid: int
    size: int = -1
    modifier: int = -1
    format: int = 0


def row_description(fields: Sequence[ResultField]) -> bytes:
    """Tells the columns of the rows that follow."""
    return _message(b"T", struct.pack("!H", len(fields)), *(
        _text(each.name) + struct.pack("!IHIhih", 0, 0, each.type_oid, each.size, each.modifier, each.format)
        for each in fields))


def parameter_description(types: Sequence[int]) -> bytes:
    """Tells the OIDs of a statement's parameters."""
    return _message(b"t", struct.pack(f"!H{len(types)}I", len(types), *types))


def data_rows(columns: Sequence[Sequence[Cell]], rows: int) -> bytes:
    """Returns rows, given by their columns."""
    head = len(columns).to_bytes(2, "big")
    if not columns:
        return _message(b"D", head) * rows
    cells = ([_NULL if cell is None else len(cell).to_bytes(4, "big") + cell for cell in column] for column in columns)
    return b"".join(_message(b"D", head, *row) for row in zip(*cells, strict=True))


def copy_in(columns: int) -> bytes:
    """Asks for the rows of COPY ... FROM STDIN, as text."""
    return _message(b"G", _copy_format(columns))


def copy_out(columns: int) -> bytes:
    """Says that the rows of COPY ... TO STDOUT follow, as text."""
    return _message(b"H", _copy_format(columns))


def _copy_format(columns: int) -> bytes:
    return struct.pack(f"!bH{columns}H", 0, columns, *([0] * columns))


def copy_data(data: bytes) -> bytes:
    """A piece of the rows of COPY ... TO STDOUT."""
    return _message(b"d", data)


@dataclass(frozen=True, slots=True)
class ClientReport:
    """An error or a notice. `position` counts the characters of the statement from 1."""

    severity: str
    sqlstate: str
    message: str
    hint: str | None = None
    position: int | None = None

    def encoded(self) -> bytes:
        """Returns it as a message: of an error, or of a notice if it is none."""
        fields: Mapping[str, str | None] = {
            "S": self.severity, "V": self.severity, "C": self.sqlstate, "M": self.message, "H": self.hint,
            "P": None if self.position is None else str(self.position)}
        parts: Iterable[bytes] = (name.encode() + _text(value) for name, value in fields.items() if value)
        return _message(b"E" if self.severity in ("ERROR", "FATAL") else b"N", *parts, b"\0")
