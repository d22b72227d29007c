"""Arrow data as those want it who take it: columns of tables as one array, rows as a stream of bytes."""

from __future__ import annotations

import pyarrow as pa


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Returns a column as one array, without a copy if it has one chunk; an empty one if it has none."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def to_ipc(rows: pa.RecordBatch) -> pa.Buffer:
    """Returns rows, with their schema, as a stream of Arrow's IPC format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue()


def from_ipc(data: bytes | pa.Buffer) -> pa.RecordBatch:
    """Returns the rows that `to_ipc` was given. Raises ArrowException, OSError, EOFError for other bytes."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()
