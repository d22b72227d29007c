"""Columns of Arrow tables come in chunks; what takes one array is given one here."""

from __future__ import annotations

import pyarrow as pa


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Returns a column as one array, without a copy if it has one chunk; an empty one if it has none."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
