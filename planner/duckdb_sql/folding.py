"""Computes constant SQL while planning, so that bounds on time are known and bad literals are told early."""

from __future__ import annotations

import threading
from functools import cache

import duckdb

from penstock.common.closed_duckdb import is_broken, renew_small_duckdb_if_broken, small_duckdb
from penstock.common.errors import InvalidStatementError
from penstock.planner.duckdb_sql.duckdb_tree import Tree, render

_lock = threading.Lock()


def evaluate(tree: Tree) -> object:
    """Returns the value of a tree that reads no columns; raises InvalidStatementError where DuckDB fails on it."""
    sql = f"SELECT {render(tree)}"
    try:
        with _lock:
            try:
                row = _connection().execute(sql).fetchone()
            except (duckdb.FatalException, duckdb.InternalException):
                if not is_broken(_connection()):
                    raise
                # by this, or by what somebody else has computed
                _connection.cache_clear()
                renew_small_duckdb_if_broken()
                row = _connection().execute(sql).fetchone()
    except duckdb.Error as error:
        text = str(error).partition("Error: ")[2].splitlines()[0] or str(error)
        raise InvalidStatementError(text) from error
    return row[0]


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    return small_duckdb()
