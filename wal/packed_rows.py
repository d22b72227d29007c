"""Single rows as the log holds them: fixed structs one behind the other, packed row by row, read back by columns.

An Arrow batch costs hundreds of bytes and dozens of calls whether it has one row or a thousand. Devices write one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

PackedValue = int | float | bool | None

_CODES: dict[pa.DataType, tuple[str, str]] = {
    pa.bool_(): ("B", "u1"), pa.int8(): ("b", "i1"), pa.int16(): ("h", "<i2"), pa.int32(): ("i", "<i4"),
    pa.int64(): ("q", "<i8"), pa.uint8(): ("B", "u1"), pa.uint16(): ("H", "<u2"), pa.uint32(): ("I", "<u4"),
    pa.uint64(): ("Q", "<u8"), pa.float32(): ("f", "<f4"), pa.float64(): ("d", "<f8"),
    **{pa.timestamp(unit): ("q", "<i8") for unit in ("s", "ms", "us", "ns")}}
_NULL_MAP = "_nulls"


class RowFormat:
    """How rows of one schema are packed: the values little-endian without gaps, then a bit per column that is NULL.

    Where no row of a record has NULL, the log leaves these bits out.
    """

    def __init__(self, schema: pa.Schema, codes: Sequence[tuple[str, str]]) -> None:
        """Use `row_format`."""
        self._schema = schema
        self._zeros = (0,) * len(codes)
        map_bytes = (len(codes) + 7) // 8
        self._struct = struct.Struct("<" + "".join(code for code, _ in codes) + f"{map_bytes}s")
        self._no_nulls = bytes(map_bytes)
        fields = [(f"{place}", kind) for place, (_, kind) in enumerate(codes)]
        self._plain_type = np.dtype(fields)
        self._type = np.dtype([*fields, (_NULL_MAP, "u1", (map_bytes,))])

    @property
    def row_bytes(self) -> int:
        """Bytes of a row with its bits for NULL."""
        return self._type.itemsize

    def pack(self, row: Sequence[PackedValue]) -> bytes:
        """Returns a row, one value per column. Raises struct.error for values that don't fit their column."""
        if None not in row:
            return self._struct.pack(*row, self._no_nulls)
        bits = sum(1 << place for place, value in enumerate(row) if value is None)
        values = [zero if value is None else value for value, zero in zip(row, self._zeros, strict=True)]
        return self._struct.pack(*values, bits.to_bytes(len(self._no_nulls), "little"))

    def without_null_maps(self, rows: bytes) -> bytes | None:
        """Returns packed rows without their bits for NULL; None if one has NULL."""
        size, width = self._type.itemsize, self._plain_type.itemsize
        if len(rows) == size:
            return rows[:width] if rows.endswith(self._no_nulls) else None
        if any(rows[start + width:start + size] != self._no_nulls for start in range(0, len(rows), size)):
            return None
        return b"".join([rows[start:start + width] for start in range(0, len(rows), size)])

    def count(self, nbytes: int, *, null_maps: bool) -> int:
        """Returns how many rows so many bytes are. Raises ValueError if they aren't whole rows."""
        rows, rest = divmod(nbytes, (self._type if null_maps else self._plain_type).itemsize)
        if rest:
            raise ValueError(f"{nbytes} bytes are no whole number of rows")
        return rows

    def unpack(self, rows: bytes | pa.Buffer, *, null_maps: bool) -> pa.RecordBatch:
        """Returns packed rows as columns; `null_maps`: whether they have their bits for NULL."""
        packed = np.frombuffer(rows, self._type if null_maps else self._plain_type)
        nulls = np.unpackbits(packed[_NULL_MAP], axis=1, bitorder="little") if null_maps else None
        if nulls is not None and not nulls.any():
            nulls = None
        arrays = [_column(np.ascontiguousarray(packed[f"{place}"]), field.type,
                          None if nulls is None else nulls[:, place].astype(np.bool_))
                  for place, field in enumerate(self._schema)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


@lru_cache(maxsize=1024)
def row_format(schema: pa.Schema) -> RowFormat | None:
    """Returns how rows of a schema are packed, or None if they can't be: a column's values differ in length."""
    codes = [_CODES.get(field.type) for field in schema]
    known = [code for code in codes if code is not None]
    return RowFormat(schema, known) if len(known) == len(codes) else None


def _column(values: npt.NDArray[np.generic], kind: pa.DataType, nulls: npt.NDArray[np.bool_] | None) -> pa.Array:
    if kind == pa.bool_():
        return pa.array(values != 0, mask=nulls)
    array = pa.array(values, mask=nulls)
    return array if array.type == kind else array.view(kind)
