"""Computes constant SQL while planning, so that bounds on time are known and bad literals are told early."""

from __future__ import annotations

import threading

import duckdb

from penstock.common.errors import InvalidStatementError, Position

_local = threading.local()


def evaluate(sql: str, position: Position | None = None) -> object:
    """Returns the value of SQL that reads no columns; raises InvalidStatementError where DuckDB fails on it."""
    if not hasattr(_local, "connection"):
        _local.connection = duckdb.connect(":memory:", config={"threads": 1})
    try:
        row = _local.connection.execute(f"SELECT {sql}").fetchone()
    except duckdb.Error as error:
        text = str(error).partition("Error: ")[2].splitlines()[0] or str(error)
        raise InvalidStatementError(text, position=position) from error
    return row[0]
