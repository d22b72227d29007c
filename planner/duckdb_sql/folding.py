"""Computes constant SQL while planning, so that bounds on time are known and bad literals are told early."""

from __future__ import annotations

import threading
from functools import cache

import duckdb

from penstock.common.closed_duckdb import small_duckdb
from penstock.common.errors import InvalidStatementError
from penstock.planner.duckdb_sql.duckdb_tree import Tree, render

_lock = threading.Lock()


def evaluate(tree: Tree) -> object:
    """Returns the value of a tree that reads no columns; raises InvalidStatementError where DuckDB fails on it."""
    try:
        with _lock:
            row = _connection().execute(f"SELECT {render(tree)}").fetchone()
    except duckdb.Error as error:
        text = str(error).partition("Error: ")[2].splitlines()[0] or str(error)
        raise InvalidStatementError(text) from error
    return row[0]


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    return small_duckdb()
