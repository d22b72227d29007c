"""The tables of NEXMark in Penstock and in DuckDB, and whether both have the same answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from bench.nexmark import TABLES, Tables, side_input
from bench.nexmark_queries import QUESTIONS

DATABASE = "nexmark"
_TIME = pa.timestamp("us")
_TOLERANCE = 1e-9
_EXACT = ("VARCHAR", "TIMESTAMP")


def create_tables(execute: Callable[[str], Any], database: str = DATABASE) -> None:
    """Creates the database with its tables, all of them empty, and uses it."""
    execute(f"CREATE DATABASE {database} VGROUPS 1 KEEP 36500d PRECISION 'us'")
    execute(f"USE {database}")
    for name, columns in TABLES.items():
        execute(f"CREATE TABLE {name} ({columns})")
    execute("CREATE TABLE side_input (key BIGINT PRIMARY KEY, value VARCHAR(10))")


def with_arrival(rows: pa.Table, arrived_us: int) -> pa.Table:
    """Returns rows as DuckDB is to have them."""
    return rows.append_column("arrived", pa.repeat(pa.scalar(arrived_us, _TIME), rows.num_rows))


class Oracle:
    """DuckDB with the rows of all tables, `with_arrival`; closes with `close`."""

    def __init__(self, tables: Tables) -> None:
        self._connection = duckdb.connect()
        self._connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        for name, rows in {**tables, "side_input": side_input()}.items():
            self._connection.register(name, rows)

    def columns(self, number: int) -> list[str]:
        """Returns what the columns of the answer to a query are called."""
        return list(self._connection.sql(QUESTIONS[number].answer).columns)

    def difference(self, number: int, found: pa.Table) -> str | None:
        """Returns what is different in the answer to a query, or None; rows may be in any order."""
        wanted = self._connection.sql(QUESTIONS[number].answer)
        kinds = {name: _kind(str(kind)) for name, kind in zip(wanted.columns, wanted.types, strict=True)}
        return difference(self._sorted(found, kinds), self._sorted(wanted.to_arrow_table(), kinds))

    def close(self) -> None:
        self._connection.close()

    def _sorted(self, rows: pa.Table, kinds: Mapping[str, str]) -> pa.Table:
        columns = ", ".join(f'CAST("{name}" AS {kind}) AS "{name}"' for name, kind in kinds.items())
        first = [name for name, kind in kinds.items() if kind in _EXACT]
        order = ", ".join(f'"{name}"' for name in [*first, *(name for name in kinds if name not in first)])
        return self._connection.from_arrow(rows).project(columns).order(order).to_arrow_table()


def difference(found: pa.Table, wanted: pa.Table) -> str | None:
    """Returns what is different of two sorted tables of the same columns, or None; numbers may differ by 1e-9."""
    if found.num_rows != wanted.num_rows:
        return f"{found.num_rows} rows instead of {wanted.num_rows}"
    same = np.ones(found.num_rows, bool)
    for name in wanted.column_names:
        one, other = (table.column(name).to_numpy() for table in (found, wanted))
        same &= (np.isclose(one, other, rtol=_TOLERANCE, atol=0, equal_nan=True)
                 if wanted.schema.field(name).type == pa.float64() else one == other)
    if same.all():
        return None
    row = int(np.flatnonzero(~same)[0])
    return (f"{int((~same).sum())} of {found.num_rows} rows, the first: {found.slice(row, 1).to_pylist()[0]} "
            f"instead of {wanted.slice(row, 1).to_pylist()[0]}")


def _kind(kind: str) -> str:
    return next((exact for exact in _EXACT if kind.startswith(exact)), "DOUBLE")
