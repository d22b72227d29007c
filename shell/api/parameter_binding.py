"""Python values as SQL literals, and `?` parameters replaced by them. It doesn't parse SQL, only skips quotes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from itertools import islice, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.errors import InvalidStatementError, InvalidValueError
from penstock.sql.dialect.literals import zone
from penstock.sql.tree.expression_nodes import quote_string

Row = Sequence[object]
"""The parameters of one execution."""

_MULTI_ROW_BYTES = 512 * 1024
_ROWS_AT_ONCE = 256
_KEPT, _KEPT_TEXT_MAX = 512, 4096  # statements that are taken apart once, however often they are executed
_ONE_ROW_INSERT = re.compile(r"\s*insert\s.*\bvalues\s*(?P<row>\([^()]*\))\s*;?\s*", re.IGNORECASE | re.DOTALL)
_PIECES = re.compile(
    r"""'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `[^`]*` | --[^\n]* | /\*.*?\*/ | (?P<mark>\?)""",
    re.VERBOSE | re.DOTALL)


def literal(value: object, time_zone: str | None = None) -> str:
    """Returns a literal that reads back as the value. Naive datetimes are local times of the session.

    `time_zone` is the session's: a naive datetime with fold=1, the second of two, can't be had without it.
    """
    if type(value) is int or (type(value) is float and math.isfinite(value)):  # no subclasses: as most values are
        return repr(value)
    if isinstance(value, np.datetime64):  # which has no Python value where it has nanoseconds
        return "NULL" if np.isnat(value) else f"'{_text_of_datetime64(value)}'"
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()  # a NumPy or Arrow-like scalar
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | Decimal):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidValueError(f"{value} cannot be stored", hint="use None for a missing value")
        return repr(value)
    if isinstance(value, str):
        return quote_string(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"'\\x{bytes(value).hex()}'"
    if isinstance(value, datetime):
        return f"'{_instant(value, time_zone)}'" if value == value else "NULL"
    if isinstance(value, date):
        return f"'{value.isoformat()} 00:00:00'"
    raise InvalidValueError(f"a {type(value).__name__} cannot be a parameter")


def _text_of_datetime64(value: np.datetime64) -> str:
    """Returns a local time to the second, or finer."""
    unit = np.datetime_data(value)[0]
    if unit in ("ps", "fs", "as"):
        raise InvalidValueError(f"{value} is more precise than a timestamp", hint="astype('datetime64[ns]')")
    return str(value if unit in ("s", "ms", "us", "ns") else value.astype("datetime64[s]"))


def _instant(value: datetime, time_zone: str | None) -> str:
    """Returns a datetime as SQL reads it, where offsets have no seconds, and the first of two equal times counts."""
    if value.tzinfo is None and value.fold:
        if time_zone is None:
            raise InvalidValueError(f"{value} with fold=1 needs a time zone", hint="give it a tzinfo")
        value = value.replace(tzinfo=zone(time_zone))
    if value.tzinfo is not None:
        try:
            value = value.astimezone(UTC)
        except OverflowError as error:
            raise InvalidValueError(f"{value} is too far away for a timestamp") from error
    return value.isoformat(sep=" ")


class _Template:
    """A statement, or a part of one, with each `?` outside of quotes and comments to be replaced by a literal."""

    def __init__(self, text: str) -> None:
        pieces, start = [], 0
        for match in _PIECES.finditer(text):
            if match["mark"] is not None:
                pieces.append(text[start:match.start()])
                start = match.end()
        self.marks = len(pieces)
        self._format = "%s".join(piece.replace("%", "%%") for piece in (*pieces, text[start:]))

    def filled(self, parameters: Sequence[object], time_zone: str | None = None) -> str:
        """Returns the text with literals. Raises InvalidStatementError if they are too many or too few."""
        if self.marks > len(parameters):
            raise InvalidStatementError(f"the statement has more than {len(parameters)} parameters (?)")
        if self.marks < len(parameters):
            raise InvalidStatementError(f"{len(parameters)} parameters were given, the statement has {self.marks} (?)")
        return self._format % tuple(map(literal, parameters, repeat(time_zone)))

    def filled_rows(self, rows: Sequence[Row], time_zone: str | None) -> list[str]:
        """Returns what `filled` does for each of some rows. Values of a column mostly are of one type."""
        if not self.marks or {*map(len, rows)} != {self.marks}:
            return [self.filled(row, time_zone) for row in rows]
        columns = [_literals(column, time_zone) for column in zip(*rows, strict=True)]
        return list(map(self._format.__mod__, zip(*columns, strict=True)))


def _literals(values: Sequence[object], time_zone: str | None) -> Iterator[str]:
    kinds = {*map(type, values)}
    plain = kinds == {int} or (kinds == {float} and all(map(math.isfinite, values)))  # type: ignore[arg-type]
    return map(repr, values) if plain else map(literal, values, repeat(time_zone))


def bind(statement: str, parameters: Sequence[object], time_zone: str | None = None) -> str:
    """Returns the statement with each `?` outside of quotes and comments replaced by a literal, as `literal` says."""
    return _taken_apart(statement).whole.filled(parameters, time_zone)


def count_marks(statement: str) -> int:
    """Returns how many `?` outside of quotes and comments a statement has."""
    return _taken_apart(statement).whole.marks


def bind_rows(statement: str, rows: Iterable[Row], time_zone: str | None = None) -> Iterator[str]:
    """Yields the statements that execute `statement` with each row; an INSERT of one row becomes few of many."""
    parts = _taken_apart(statement)
    if parts.row is None:
        for row in rows:
            yield parts.whole.filled(row, time_zone)
        return
    texts, size = [parts.head], len(parts.head)
    left = iter(rows)
    while some := list(islice(left, _ROWS_AT_ONCE)):
        for text in parts.row.filled_rows(some, time_zone):
            if size + len(text) > _MULTI_ROW_BYTES and len(texts) > 1:
                yield "".join(texts)
                texts, size = [parts.head], len(parts.head)
            texts.append(text)
            size += len(text)
    if len(texts) > 1:
        yield "".join(texts)


@dataclass(frozen=True, slots=True)
class _Parts:
    """A statement; of an INSERT of one row also what is before its row, and the row."""

    whole: _Template
    head: str = ""
    row: _Template | None = None


def _taken_apart(statement: str) -> _Parts:
    return _kept_parts(statement) if len(statement) <= _KEPT_TEXT_MAX else _parts(statement)


def _parts(statement: str) -> _Parts:
    whole, match = _Template(statement), _ONE_ROW_INSERT.fullmatch(statement)
    if match is None or "?" not in match["row"] or "?" in statement[:match.start("row")]:
        return _Parts(whole)
    return _Parts(whole, statement[:match.start("row")], _Template(match["row"]))


_kept_parts = lru_cache(maxsize=_KEPT)(_parts)


def parameter_rows(batch: pa.RecordBatch) -> list[Row]:
    """Returns rows of parameters that come as Arrow data; naive timestamps are local times of the session."""
    columns = [_parameter_values(column) for column in batch.columns]
    return list(zip(*columns, strict=True)) if columns else []


def _parameter_values(column: pa.Array) -> list[Any]:
    kind = column.type
    if not pa.types.is_timestamp(kind):
        values: list[Any] = column.to_pylist()
        return values
    # As texts, since no datetime has nanoseconds.
    text = column.cast(pa.timestamp(kind.unit)).cast(pa.string())
    texts: list[Any] = (text if kind.tz is None else pc.binary_join_element_wise(text, "+00:00", "")).to_pylist()
    return texts
