"""One DuckDB for all queries of a test process: to open one, and above all to close it, takes longer than to ask it."""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import pyarrow as pa

_DATABASE = duckdb.connect()


def query(sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """Returns the rows of a query over tables by their names, which nobody else sees."""
    with _DATABASE.cursor() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return connection.sql(sql).to_arrow_table()
