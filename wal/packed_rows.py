"""Single rows as the log holds them: structs one behind the other, packed row by row, read back by columns.

An Arrow batch costs hundreds of bytes and dozens of calls whether it has one row or a thousand. Devices write one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numpy.lib.stride_tricks import sliding_window_view

PackedValue = int | float | bool | str | bytes | None

_CODES: dict[pa.DataType, tuple[str, str]] = {
    pa.bool_(): ("B", "u1"), pa.int8(): ("b", "i1"), pa.int16(): ("h", "<i2"), pa.int32(): ("i", "<i4"),
    pa.int64(): ("q", "<i8"), pa.uint8(): ("B", "u1"), pa.uint16(): ("H", "<u2"), pa.uint32(): ("I", "<u4"),
    pa.uint64(): ("Q", "<u8"), pa.float32(): ("f", "<f4"), pa.float64(): ("d", "<f8"),
    **{pa.timestamp(unit): ("q", "<i8") for unit in ("s", "ms", "us", "ns")},
    pa.string(): ("I", "<u4"), pa.binary(): ("I", "<u4")}  # how many bytes
_TEXTS = frozenset({pa.string(), pa.binary()})
_NULL_MAP = "_nulls"


class RowFormat:
    """How rows of one schema are packed.

    First come the values, little-endian without gaps, with the length of each text in its place. Then comes a bit per
    column, set for NULL; the log leaves these bits out where no row of a record has NULL. The bytes of texts come last.
    """

    def __init__(self, schema: pa.Schema, codes: Sequence[tuple[str, str]]) -> None:
        """Use `row_format`."""
        self._schema = schema
        self._texts = [place for place, field in enumerate(schema) if field.type in _TEXTS]
        self._zeros = (0,) * len(codes)
        map_bytes = (len(codes) + 7) // 8
        self._struct = struct.Struct("<" + "".join(code for code, _ in codes) + f"{map_bytes}s")
        self._no_nulls = bytes(map_bytes)
        fields = [(f"{place}", kind) for place, (_, kind) in enumerate(codes)]
        self._plain_type = np.dtype(fields)
        self._type = np.dtype([*fields, (_NULL_MAP, "u1", (map_bytes,))])
        self._width, self._plain_width = self._type.itemsize, self._plain_type.itemsize
        self._lengths = struct.Struct("<" + "".join(
            "I" if place in self._texts else f"{np.dtype(kind).itemsize}x" for place, (_, kind) in enumerate(codes)))

    def pack(self, row: Sequence[PackedValue]) -> bytes:
        """Returns a row, one value per column.

        Raises struct.error for values that don't fit their column, UnicodeEncodeError for text that is none.
        """
        if self._texts:
            return self._pack_texts(row)
        if None not in row:
            return self._struct.pack(*row, self._no_nulls)
        return self._pack_nulls(row, row)

    def _pack_texts(self, row: Sequence[PackedValue]) -> bytes:
        values = list(row)
        texts = []
        for place in self._texts:
            value = row[place]
            if value is not None:
                text = value.encode() if isinstance(value, str) else value
                assert isinstance(text, bytes)
                texts.append(text)
                values[place] = len(text)
        fixed = self._pack_nulls(row, values) if None in row else self._struct.pack(*values, self._no_nulls)
        return fixed + b"".join(texts)

    def _pack_nulls(self, row: Sequence[PackedValue], values: Sequence[PackedValue]) -> bytes:
        bits = sum(1 << place for place, value in enumerate(row) if value is None)
        filled = [zero if value is None else value for value, zero in zip(values, self._zeros, strict=True)]
        return self._struct.pack(*filled, bits.to_bytes(len(self._no_nulls), "little"))

    def without_null_maps(self, rows: Sequence[bytes]) -> bytes | None:
        """Returns packed rows, one behind the other, without their bits for NULL; None if one has NULL."""
        size, width = self._width, self._plain_width
        if len(rows) == 1:
            row = rows[0]
            return row[:width] + row[size:] if row[width:size] == self._no_nulls else None
        plain = [row[:width] + row[size:] for row in rows if row[width:size] == self._no_nulls]
        return b"".join(plain) if len(plain) == len(rows) else None

    def sizes(self, rows: pa.Buffer, *, null_maps: bool) -> list[int]:
        """Returns how many bytes each row has of those that stand one behind the other.

        Raises ValueError if they aren't whole rows.
        """
        width, end = self._width if null_maps else self._plain_width, len(rows)
        if not self._texts:
            count, rest = divmod(end, width)
            if rest:
                raise ValueError(f"{end} bytes are no whole number of rows")
            return [width] * count
        sizes, start = [], 0
        while start < end:
            size = width + sum(self._lengths.unpack_from(rows, start)) if start + width <= end else width
            start += size
            sizes.append(size)
        if start > end:
            raise ValueError(f"{end} bytes are no whole number of rows")
        return sizes

    def unpack(self, rows: bytes | pa.Buffer, sizes: Sequence[int], *, null_maps: bool) -> pa.RecordBatch:
        """Returns packed rows of these sizes as columns; `null_maps`: whether they have their bits for NULL."""
        kind = self._type if null_maps else self._plain_type
        data = np.frombuffer(rows, np.uint8)
        starts = np.cumsum([0, *sizes])[:-1] if self._texts else np.empty(0, np.int64)
        if len(data) == len(sizes) * kind.itemsize:
            packed = data.view(kind)
        else:
            packed = sliding_window_view(data, kind.itemsize)[starts].view(kind)[:, 0]
        nulls = np.unpackbits(packed[_NULL_MAP], axis=1, bitorder="little") if null_maps else None
        if nulls is not None and not nulls.any():
            nulls = None
        text_starts = starts + kind.itemsize
        arrays = []
        for place, field in enumerate(self._schema):
            values = np.ascontiguousarray(packed[f"{place}"])
            missing = None if nulls is None else nulls[:, place].astype(np.bool_)
            if field.type in _TEXTS:
                lengths = values.astype(np.int64)
                arrays.append(_texts(data, text_starts, lengths, field.type, missing))
                text_starts = text_starts + lengths
            else:
                arrays.append(_column(values, field.type, missing))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


@lru_cache(maxsize=1024)
def row_format(schema: pa.Schema) -> RowFormat | None:
    """Returns how rows of a schema are packed, or None if they can't be."""
    codes = [_CODES.get(field.type) for field in schema]
    known = [code for code in codes if code is not None]
    return RowFormat(schema, known) if len(known) == len(codes) else None


def _column(values: npt.NDArray[np.generic], kind: pa.DataType, nulls: npt.NDArray[np.bool_] | None) -> pa.Array:
    if kind == pa.bool_():
        return pa.array(values != 0, mask=nulls)
    array = pa.array(values, mask=nulls)
    return array if array.type == kind else array.view(kind)


def _texts(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64],
           kind: pa.DataType, nulls: npt.NDArray[np.bool_] | None) -> pa.Array:
    """Returns the texts that stand at `starts`."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    valid = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(
        kind, len(lengths), [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data[places])])
