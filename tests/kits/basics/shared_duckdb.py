"""One DuckDB for all queries of a test process: to open one, and above all to close it, takes longer than to ask it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import duckdb
import pyarrow as pa

_DATABASE = duckdb.connect()


@contextmanager
def duckdb_with(tables: Mapping[str, pa.Table]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that has tables by their names. Nobody else sees these, nor temporary tables that it makes."""
    with _DATABASE.cursor() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        yield connection
