"""Computes constant SQL while planning, so that bounds on time are known and bad literals are told early."""

from __future__ import annotations

import threading
from functools import cache

import duckdb

from penstock.common.closed_duckdb import SMALL_BYTES, DuckdbBounds, closed_duckdb
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


def planning_duckdb() -> duckdb.DuckDBPyConnection:
    """Returns a connection for what planning computes over tables; whoever asks for it closes it."""
    with _lock:
        return _connection().cursor()


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    """Returns the process's DuckDB for planning.

    Threads share it. After a fork, such as the one that starts Spark's Java, Python destroys in the child what is local
    to other threads, and destroying a DuckDB there crashes the child.
    """
    return closed_duckdb(DuckdbBounds(SMALL_BYTES))
