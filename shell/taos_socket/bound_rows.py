"""Parameters of prepared statements as TDengine's clients send them: columns of values for each table."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.common.errors import InvalidValueError, NotSupportedError
from penstock.sql.rows.constants import shorten

_TABLES_MAX, _COLUMNS_MAX = 1 << 20, 1 << 15
_FIXED: dict[int, str] = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f4", 7: "<f8", 9: "<i8", 11: "u1",
                          12: "<u2", 13: "<u4", 14: "<u8"}
_TEXTS, _BYTES, _BOOL = frozenset({8, 10, 15}), frozenset({16, 18, 20}), 1


@dataclass(frozen=True, slots=True)
class BoundTable:
    """What was bound for one table: `name` is "" where none was; a tag is an array of one value."""

    name: str
    tags: tuple[pa.Array, ...]
    columns: tuple[pa.Array, ...]


def read_bound(data: bytes) -> list[BoundTable]:
    """Returns what a message binds. Raises InvalidValueError if it is malformed, NotSupportedError for other types."""
    try:
        return _read(memoryview(data))
    except (struct.error, pa.ArrowInvalid, UnicodeDecodeError, IndexError) as error:
        raise InvalidValueError(f"the bound values are malformed: {error}") from error


def _read(data: memoryview) -> list[BoundTable]:
    size, tables, tags, columns, names_at, tags_at, columns_at = struct.unpack_from("<7I", data)
    if size != len(data) or tables > _TABLES_MAX or max(tags, columns) > _COLUMNS_MAX:
        raise InvalidValueError("the bound values are malformed: wrong sizes")
    names = _names(data[names_at:], tables) if names_at else iter([""] * tables)
    tag_values = _groups(data[tags_at:], tables, tags) if tags_at else iter([()] * tables)
    column_values = _groups(data[columns_at:], tables, columns) if columns_at else iter([()] * tables)
    return [BoundTable(*parts) for parts in zip(names, tag_values, column_values, strict=True)]


def _names(data: memoryview, tables: int) -> Iterator[str]:
    lengths = struct.unpack_from(f"<{tables}H", data)
    at = 2 * tables
    for length in lengths:
        name = bytes(_piece(data, at, length)).rstrip(b"\0")
        if not _is_utf8(name):
            raise InvalidValueError(f"the table name {name!r} is not valid UTF-8")
        yield name.decode()
        at += length


def _groups(data: memoryview, tables: int, count: int) -> Iterator[tuple[pa.Array, ...]]:
    """Yields `count` columns for each table."""
    at = 4 * tables
    for _ in range(tables):
        columns = []
        for place in range(count):
            [size] = struct.unpack_from("<I", data, at)
            try:
                columns.append(_column(_piece(data, at, size)))
            except InvalidValueError as error:
                raise InvalidValueError(f"bound column {place + 1}, {error.message}", hint=error.hint) from error
            at += size
        if len({len(column) for column in columns}) > 1:
            raise InvalidValueError("the columns that were bound have different numbers of rows")
        yield tuple(columns)


def _column(data: memoryview) -> pa.Array:
    _, kind, rows = struct.unpack_from("<3I", data)
    nulls = np.frombuffer(_piece(data, 12, rows), np.bool_)
    at = 12 + rows
    has_lengths = data[at]
    at += 1
    lengths = np.zeros(rows, np.int64)
    if has_lengths:
        lengths = np.where(nulls, 0, np.frombuffer(_piece(data, at, 4 * rows), "<i4"))
        at += 4 * rows
    [size] = struct.unpack_from("<I", data, at)
    values = _piece(data, at + 4, size)
    if kind in _FIXED:
        return _fixed(values, kind, rows, nulls)
    if kind not in _TEXTS | _BYTES:
        raise NotSupportedError(f"TDengine's type {kind} can't be bound", hint="bind it as a text")
    if (lengths < 0).any() or lengths.sum() != size:
        raise InvalidValueError("the bound values are malformed: lengths don't fit")
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype("<i4")
    validity = pa.py_buffer(np.packbits(~nulls, bitorder="little").tobytes())
    array = pa.Array.from_buffers(pa.binary(), rows, [validity, pa.py_buffer(offsets.tobytes()),
                                                      pa.py_buffer(bytes(values))])
    if kind in _BYTES:
        return array
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        row, text = next((row, text) for row, text in enumerate(array.to_pylist()) if not _is_utf8(text))
        raise InvalidValueError(f"row {row + 1}: {shorten(str(text))} is not valid UTF-8") from None


def _is_utf8(text: bytes | None) -> bool:
    try:
        return text is None or bool(text.decode()) or not text
    except UnicodeDecodeError:
        return False


def _fixed(values: memoryview, kind: int, rows: int, nulls: np.ndarray) -> pa.Array:
    dtype = np.dtype(_FIXED[kind])
    if not len(values) and nulls.all():
        plain = np.zeros(rows, dtype)
    else:
        plain = np.frombuffer(_piece(values, 0, rows * dtype.itemsize), dtype)
    return pa.array(plain.astype(np.bool_) if kind == _BOOL else plain, mask=nulls)


def _piece(data: memoryview, start: int, size: int) -> memoryview:
    if start + size > len(data):
        raise InvalidValueError("the bound values are malformed: they end too early")
    return data[start:start + size]
