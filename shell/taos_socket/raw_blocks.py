"""Rows of results as TDengine's clients read them: blocks of columns, little-endian.

A block is a head, then a type and a width for each column, then the lengths of their data, then the data itself: a bit
per row that says whether it is NULL and values, or, for texts, offsets and values with their lengths before them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.duckdb_types import texts
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.sql.types import DataType, Kind, Precision

TYPES: dict[Kind, int] = {
    Kind.NULL: 1, Kind.BOOL: 1, Kind.TINYINT: 2, Kind.SMALLINT: 3, Kind.INT: 4, Kind.BIGINT: 5, Kind.FLOAT: 6,
    Kind.DOUBLE: 7, Kind.VARCHAR: 8, Kind.TIMESTAMP: 9, Kind.NCHAR: 10, Kind.UTINYINT: 11, Kind.USMALLINT: 12,
    Kind.UINT: 13, Kind.UBIGINT: 14, Kind.JSON: 15, Kind.VARBINARY: 16, Kind.DECIMAL: 17, Kind.GEOMETRY: 20,
    Kind.OTHER: 8}
"""TDengine's number of each type. DuckDB's own have none, and are sent as texts, what is NULL alone as truth values."""

PRECISIONS: tuple[Precision, ...] = ("ms", "us", "ns")
_HEAD = struct.Struct("<IIIIIQ")
_VERSION, _HAS_COLUMNS = 1, 1 << 31
_LONGEST = 65_517
_WIDTHS = {Kind.VARCHAR: _LONGEST, Kind.VARBINARY: _LONGEST, Kind.GEOMETRY: _LONGEST, Kind.NCHAR: 16_379,
           Kind.JSON: 16_384, Kind.OTHER: _LONGEST}
_VARIABLE = frozenset(_WIDTHS)


def width_of(kind: DataType) -> int:
    """Returns the length of a column: bytes, characters of NCHAR; TDengine's largest for texts of any length."""
    return _WIDTHS[kind.kind] if kind.kind in _WIDTHS and kind.length is None else max(kind.width(), 1)


def precision_of(columns: Sequence[ResultColumn]) -> Precision:
    """Returns the finest precision of a result's instants, which all of them are sent in."""
    return max((column.type.precision for column in columns if column.type.kind is Kind.TIMESTAMP),
               key=PRECISIONS.index, default="ms")


def raw_block(batch: pa.RecordBatch, columns: Sequence[ResultColumn]) -> bytes:
    """Returns the block of some rows."""
    unit = precision_of(columns)
    schema, lengths, data = b"", b"", []
    for values, column in zip(batch.columns, columns, strict=True):
        kind = column.type
        width = width_of(kind)
        if kind.kind is Kind.DECIMAL:
            width = 16 << 24 | (kind.digits or 38) << 8 | (kind.scale or 0)
        schema += struct.pack("<bi", TYPES[kind.kind], width)
        before, written = _variable(values, kind.kind) if kind.kind in _VARIABLE else _fixed(values, kind, unit)
        lengths += struct.pack("<i", len(written))
        data += [before, written]
    body = b"".join([schema, lengths, *data, b"\0"])
    return _HEAD.pack(_VERSION, _HEAD.size + len(body), batch.num_rows, len(columns), _HAS_COLUMNS, 0) + body


def _fixed(values: pa.Array, kind: DataType, unit: Precision) -> tuple[bytes, bytes]:
    """Returns the bits of NULLs, and the values."""
    nulls = np.packbits(values.is_null().to_numpy(zero_copy_only=False)).tobytes()
    if kind.kind is Kind.DECIMAL:
        wide = pc.fill_null(values.cast(pa.decimal128(38, kind.scale or 0)), pa.scalar(0, pa.decimal128(38, 0)))
        return nulls, bytes(pa.concat_arrays([wide]).buffers()[1])[wide.offset * 16:][:16 * len(wide)]
    if kind.kind is Kind.TIMESTAMP:
        values = values.cast(pa.timestamp(unit)).view(pa.int64())
    elif kind.kind is Kind.NULL:
        values = pa.nulls(len(values), pa.bool_())
    filled = pc.fill_null(values, False if pa.types.is_boolean(values.type) else pa.scalar(0, values.type))
    return nulls, filled.to_numpy(zero_copy_only=False).tobytes()


def _variable(values: pa.Array, kind: Kind) -> tuple[bytes, bytes]:
    """Returns where each value begins, -1 for NULL, and the values; NCHAR has four bytes for each character.

    Texts that are longer than any that TDengine has are cut.
    """
    code = "utf-32-le" if kind is Kind.NCHAR else "utf-8"
    offsets, pieces, at = [], [], 0
    for value in (texts(values) if kind is Kind.OTHER else values).to_pylist():
        if value is None:
            offsets.append(-1)
            continue
        data = value.encode(code) if isinstance(value, str) else value
        if len(data) > _LONGEST:
            data = data[:_LONGEST].decode(code, "ignore").encode(code) if isinstance(value, str) else data[:_LONGEST]
        offsets.append(at)
        pieces += [len(data).to_bytes(2, "little"), data]
        at += 2 + len(data)
    return np.array(offsets, "<i4").tobytes(), b"".join(pieces)
