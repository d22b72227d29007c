"""Rows in Arrow tables and Parquet files, in pieces of a size that can be written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.common.errors import InvalidStatementError, InvalidValueError, NotFoundError, StorageError

SLICE_ROWS = 1 << 20


def slices(rows: pa.Table, first_row: int = 0) -> Iterator[tuple[int, pa.Table]]:
    """Yields (number of the first row, counted from `first_row`; rows): pieces that are one Arrow array per column."""
    for start in range(0, max(rows.num_rows, 1), SLICE_ROWS):
        yield first_row + start, rows.slice(start, SLICE_ROWS)


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of batches with the same columns in pieces of some `SLICE_ROWS`."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= SLICE_ROWS:
            yield pa.concat_batches(held)
            held, rows = [], 0
    if held:
        yield pa.concat_batches(held)


def read_parquet(path: Path, names: tuple[str, ...] | None) -> pa.Table:
    """Returns a Parquet file's columns, all of them or those named. Raises NotFoundError, InvalidValueError."""
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            lacking = next((name for name in names or () if name not in file.schema_arrow.names), None)
            if lacking is not None:
                raise InvalidStatementError(f"{path} has no column {lacking}",
                                            hint=f"it has {', '.join(file.schema_arrow.names)}")
            return file.read(columns=None if names is None else list(names))
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {path}") from error
    except pa.ArrowInvalid as error:
        raise InvalidValueError(f"{path} is not a Parquet file that can be read: {error}") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error}") from error
