"""Penstock: a SQL stream engine for time series.

`penstock.connect(path)` opens a data directory with an embedded engine, and `penstock.connect(host=...)` connects to
`penstock serve`. Both return a DB-API 2 connection (PEP 249). `penstock.duckdb(path)` returns a DuckDB connection with
views over the tables of a data directory, also while an engine writes to it. The import has no other effects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "1.0.0"

apilevel = "2.0"
threadsafety = 2
paramstyle = "qmark"

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.shell.api.dbapi import (
        BINARY,
        DATETIME,
        NUMBER,
        ROWID,
        STRING,
        Binary,
        Connection,
        Cursor,
        DatabaseError,
        DataError,
        Date,
        DateFromTicks,
        Error,
        IntegrityError,
        InterfaceError,
        InternalError,
        NotSupportedError,
        OperationalError,
        ProgrammingError,
        Time,
        TimeFromTicks,
        Timestamp,
        TimestampFromTicks,
        Warning,
    )
    from penstock.shell.api.row_writer import Writer

__all__ = [
    "BINARY", "DATETIME", "NUMBER", "ROWID", "STRING", "Binary", "Connection", "Cursor", "DataError",
    "DatabaseError", "Date", "DateFromTicks", "Error", "IntegrityError", "InterfaceError", "InternalError",
    "NotSupportedError", "OperationalError", "ProgrammingError", "Time", "TimeFromTicks", "Timestamp",
    "TimestampFromTicks", "Warning", "Writer", "__version__", "apilevel", "connect", "duckdb", "ingest_lines",
    "paramstyle", "threadsafety",
]


def connect(
    path: str = "./penstock-data",
    config: Any = None,
    *,
    host: str | None = None,
    port: int | None = None,
    user: str | None = None,
    password: str | None = None,
    tls_roots: str | None = None,
) -> Connection:
    """Returns a DB-API 2 connection to the data directory `path`, and starts an embedded engine if none is open.

    `config` is a `penstock.common.config.Config`, the path of a configuration file, a mapping of keys to values, or
    None for the defaults. Raises `DataDirectoryInUseError` if another process has the directory open.

    With `host`, it connects to `penstock serve`; see `penstock.shell.api.dbapi.connect`.
    """
    from penstock.shell.api.dbapi import connect as open_connection

    return open_connection(path, config, host=host, port=port, user=user, password=password, tls_roots=tls_roots)


def ingest_lines(
    path_or_connection: str | Connection,
    lines: str | bytes | Iterable[str | bytes],
    *,
    database: str,
    precision: str = "ns",
) -> int:
    """Writes lines of InfluxDB's line protocol and returns their number; see `Connection.ingest_lines`."""
    from penstock.shell.api.dbapi import ingest_lines as ingest

    return ingest(path_or_connection, lines, database=database, precision=precision)


def __getattr__(name: str) -> Any:
    """Gives `penstock.Writer` and PEP 249's names without importing them before they are used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock.shell.api import dbapi, row_writer

    return getattr(row_writer if name == "Writer" else dbapi, name)


def duckdb(path: str = "./penstock-data") -> Any:
    """Returns a DuckDB connection with a view per table of the data directory `path`; needs no engine."""
    from pathlib import Path

    from penstock.common.paths import DataPaths
    from penstock.vnode.read.views import open_duckdb

    return open_duckdb(DataPaths(Path(path)))
