"""Arrow data on its way in: whatever has Arrow's interface, as tables of bounded size."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from penstock.common import errors
from penstock.sql.tree.expression_nodes import quote_identifier

ArrowData = Any
"""A `pyarrow` Table, RecordBatch or RecordBatchReader, a pandas DataFrame, or what has Arrow's C interface."""

_PIECE_ROWS = 1 << 20
_PIECE_BYTES = 64 << 20


def arrow_tables(data: ArrowData) -> Iterator[pa.Table]:
    """Yields Arrow data as tables: a reader's in pieces of about a million rows or 64 MiB, everything else at once."""
    if not isinstance(data, pa.RecordBatchReader):
        try:
            yield data if isinstance(data, pa.Table) else pa.table(data)
        except (TypeError, pa.ArrowInvalid) as error:
            raise errors.InvalidValueError(f"{type(data).__name__} is not Arrow data: {error}") from error
        return
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in data:
        pending.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _PIECE_ROWS or size >= _PIECE_BYTES:
            yield pa.Table.from_batches(pending)
            pending, rows, size = [], 0, 0
    yield pa.Table.from_batches(pending, data.schema)


@contextmanager
def spooled(data: ArrowData) -> Iterator[pa.Table]:
    """Gives Arrow data as one table; what a reader has, in a file that is mapped into memory meanwhile."""
    if not isinstance(data, pa.RecordBatchReader):
        yield next(arrow_tables(data))
        return
    with tempfile.NamedTemporaryFile(prefix="penstock-ingest-") as file:
        with pa.ipc.new_stream(pa.PythonFile(file, mode="w"), data.schema) as writer:
            for batch in data:
                writer.write_batch(batch)
        file.flush()
        with pa.memory_map(file.name) as source:
            yield pa.ipc.open_stream(source).read_all()


def quoted_table(name: str, database: str | None) -> str:
    """Returns the name of a table, of a database if it isn't the one in use, as SQL takes it."""
    table = quote_identifier(name)
    return table if database is None else f"{quote_identifier(database)}.{table}"
