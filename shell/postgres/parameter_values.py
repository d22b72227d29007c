"""Parameters of PostgreSQL's extended protocol: values by their OIDs, and `$1` replaced by literals."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache, partial
from typing import NoReturn

from penstock.common.errors import InvalidStatementError, InvalidValueError, NotSupportedError
from penstock.shell.api.parameter_binding import literal
from penstock.shell.postgres import result_values as types

PARAMETERS_MAX = 65_535
_TEXTS = (0, 18, 19, types.TEXT, types.JSON, 705, 1042, types.VARCHAR, 2950, 3802)
_PIECES = re.compile(
    r"""'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `[^`]*` | --[^\n]* | /\*.*?\*/ | \$(?P<number>\d{1,5})
      (?:(?=\s*::\s*(?P<type>double\s+precision|timestamp\s+with\s+time\s+zone|[a-z]\w*)))?""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE)
#: Of the types that a parameter is said to have by `$1::type`.
_CAST_OIDS = {
    "bool": types.BOOL, "boolean": types.BOOL, "bytea": types.BYTEA, "smallint": types.INT2, "int2": types.INT2,
    "int": types.INT4, "integer": types.INT4, "int4": types.INT4, "bigint": types.INT8, "int8": types.INT8,
    "real": types.FLOAT4, "float4": types.FLOAT4, "float8": types.FLOAT8, "double precision": types.FLOAT8,
    "numeric": types.NUMERIC, "decimal": types.NUMERIC, "date": types.DATE, "timestamptz": types.TIMESTAMPTZ,
    "timestamp with time zone": types.TIMESTAMPTZ, "timestamp": types.TIMESTAMP,
}
_SHORT_OFFSET = re.compile(r"[+-]\d\d$")
_DIGITS_MAX = 4000
_KEPT_COLUMNS_MAX = 64
_EPOCH, _EPOCH_DAY = datetime(2000, 1, 1, tzinfo=UTC), date(2000, 1, 1)


def parameter_types(text: str, given: Sequence[int]) -> tuple[int, ...]:
    """Returns the OIDs of `$1`, `$2`, ... outside of quotes and comments: those that the client has given, or else that
    of a cast in the text, or 0 if it may be any. Raises InvalidStatementError.
    """
    cast: dict[int, int] = {}
    for match in _PIECES.finditer(text):
        if match["number"]:
            name = " ".join((match["type"] or "").lower().split())
            cast[int(match["number"])] = cast.get(int(match["number"])) or _CAST_OIDS.get(name, 0)
    highest = max((len(given), *cast))
    if highest > PARAMETERS_MAX:
        raise InvalidStatementError(f"a statement has at most {PARAMETERS_MAX} parameters")
    known = (*given, *[0] * (highest - len(given)))
    return tuple(oid or cast.get(number, 0) for number, oid in enumerate(known, 1))


class ParameterText:
    """A text in which each `$n` outside of quotes and comments is to be replaced by a literal."""

    def __init__(self, text: str) -> None:
        pieces, start = [], 0
        self._numbers: list[int] = []
        for match in _PIECES.finditer(text):
            if match["number"] is not None:
                pieces.append(text[start:match.start()])
                self._numbers.append(int(match["number"]))
                start = match.end()
        self._lowest, self._highest = min(self._numbers, default=1), max(self._numbers, default=0)
        self._format = "%s".join(piece.replace("%", "%%") for piece in (*pieces, text[start:]))

    def filled(self, values: Sequence[object]) -> str:
        """Returns the text with the literal of the n-th value for each `$n`. Raises InvalidValueError."""
        if self._lowest < 1 or self._highest > len(values):
            number = 0 if self._lowest < 1 else self._highest
            raise InvalidValueError(f"{len(values)} parameters were given, and the statement has ${number}")
        return self._format % tuple([literal(values[number - 1]) for number in self._numbers])


def read_parameters(
    cells: Sequence[bytes | None], formats: Sequence[int], oids: Sequence[int]
) -> list[object]:
    """Returns the values of parameters. Raises InvalidValueError, NotSupportedError."""
    values: list[object] = []
    readers = _kept_readers if max(len(cells), len(formats), len(oids)) <= _KEPT_COLUMNS_MAX else _readers
    for cell, (reader, oid) in zip(cells, readers(tuple(formats), tuple(oids), len(cells)), strict=True):
        try:
            values.append(None if cell is None else reader(cell))
        except (ValueError, InvalidOperation, OverflowError, struct.error) as error:
            raise InvalidValueError(f"parameter ${len(values) + 1} cannot be read as its type (OID {oid})") from error
    return values


def _readers(formats: tuple[int, ...], oids: tuple[int, ...], count: int
             ) -> tuple[tuple[Callable[[bytes], object], int], ...]:
    """Returns what reads each of so many parameters, and its OID."""
    known = (*oids, *[0] * (count - len(oids)))
    return tuple((_reader(types.format_at(formats, place), oid, place + 1), oid)
                 for place, oid in enumerate(known[:count]))


_kept_readers = lru_cache(maxsize=256)(_readers)


def _reader(form: int, oid: int, number: int) -> Callable[[bytes], object]:
    reader = _read_text if oid in _TEXTS else (_BINARY if form == 1 else _TEXT).get(oid)
    return reader or partial(_refuse_type, oid, number)


def _refuse_type(oid: int, number: int, cell: bytes) -> NoReturn:
    raise NotSupportedError(f"parameter ${number} has an unsupported type (OID {oid})")


def _read_text(cell: bytes) -> str:
    return cell.decode()


def _read_time(cell: bytes) -> str:
    text = cell.decode()
    return f"{text}:00" if _SHORT_OFFSET.search(text) and ":" in text else text


def _read_bool(cell: bytes) -> bool:
    text = cell.decode().strip().lower()
    if text in ("t", "true", "1", "on", "yes", "y"):
        return True
    if text in ("f", "false", "0", "off", "no", "n"):
        return False
    raise ValueError(text)


def _read_bytes(cell: bytes) -> bytes:
    if cell.startswith(b"\\x"):
        return bytes.fromhex(cell[2:].decode())
    return re.sub(rb"\\(\\|[0-3][0-7]{2})",
                  lambda match: b"\\" if match[1] == b"\\" else bytes([int(match[1], 8)]), cell)


def _unpacked(form: str) -> Callable[[bytes], object]:
    unpack = struct.Struct(form).unpack
    return lambda cell: unpack(cell)[0]


def _read_numeric(cell: bytes) -> Decimal:
    """Reads digits to the base of 10 000: their number, the power of the first, sign, scale, digits."""
    count, weight, sign, scale = struct.unpack("!HhHH", cell[:8])
    if sign not in (0, 0x4000):
        raise ValueError("not a finite number")
    digits = struct.unpack(f"!{count}H", cell[8:])
    zeros = 4 * (weight - count + 1) + scale
    if 4 * count + abs(zeros) > _DIGITS_MAX:
        raise ValueError("too many digits")
    # Integers and exact Decimals: arithmetic of Decimals would round to 28 digits.
    number = sum(digit * 10_000 ** (count - 1 - place) for place, digit in enumerate(digits))
    number = number * 10 ** zeros if zeros >= 0 else number // 10 ** -zeros
    return Decimal((1 if sign else 0, tuple(map(int, str(number))), -scale))


def _read_instant(cell: bytes) -> str:
    return (_EPOCH + timedelta(microseconds=struct.unpack("!q", cell)[0])).isoformat(sep=" ")


def _read_local_time(cell: bytes) -> str:
    return (_EPOCH + timedelta(microseconds=struct.unpack("!q", cell)[0])).replace(tzinfo=None).isoformat(sep=" ")


_TEXT: dict[int, Callable[[bytes], object]] = {
    types.BOOL: _read_bool, types.BYTEA: _read_bytes, types.INT8: int, types.INT2: int, types.INT4: int,
    types.OID: int, types.FLOAT4: lambda cell: float(cell.decode()), types.FLOAT8: lambda cell: float(cell.decode()),
    types.NUMERIC: lambda cell: Decimal(cell.decode()), types.TIMESTAMP: _read_time, types.TIMESTAMPTZ: _read_time,
    types.DATE: lambda cell: date.fromisoformat(cell.decode()),
}
_BINARY: dict[int, Callable[[bytes], object]] = {
    types.BOOL: _unpacked("!?"), types.BYTEA: bytes, types.INT8: _unpacked("!q"), types.INT2: _unpacked("!h"),
    types.INT4: _unpacked("!i"), types.OID: _unpacked("!I"), types.FLOAT4: _unpacked("!f"),
    types.FLOAT8: _unpacked("!d"), types.NUMERIC: _read_numeric, types.TIMESTAMP: _read_local_time,
    types.TIMESTAMPTZ: _read_instant,
    types.DATE: lambda cell: _EPOCH_DAY + timedelta(days=struct.unpack("!i", cell)[0]),
}
