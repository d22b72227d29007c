"""Asks DuckDB while planning: for the values of constants, so that bounds on time are known and bad literals are told
early, and for the types of its own functions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any

import duckdb

from penstock.common.closed_duckdb import is_broken, renew_small_duckdb_if_broken, small_duckdb
from penstock.common.errors import InvalidStatementError
from penstock.planner.duckdb_sql.duckdb_tree import Tree, render

_REMEMBERED, _SHORT = 1024, 4096
"""Of how many statements types are remembered, and how long these may be."""
_NO_SUCH_CALL = ("No function matches", "Macro ", "Cannot deduce", "Could not choose", "Cannot compare values",
                 "Cannot concatenate types")
"""How DuckDB begins to say that there is none: it goes on with what there is, as it is inside."""
_NO_CONVERSION = "Unimplemented type for cast"
_FORMS = 6
_SOME_VALUES = ("0", "[]", "{}", "2000-01-01", "00:00:00", "00000000-0000-0000-0000-000000000000")
"""Texts of which each type can read one."""
_lock = threading.Lock()


def evaluate(tree: Tree) -> object:
    """Returns the value of a tree that reads no columns; raises InvalidStatementError where DuckDB fails on it."""
    sql = f"SELECT {render(tree)}"
    try:
        row = _asked(lambda connection: connection.execute(sql).fetchone())
    except duckdb.Error as error:
        raise _refused(error) from error
    return row[0]


def type_over(tree: Tree, columns: Mapping[str, str]) -> str | None:
    """Returns DuckDB's name of the type of a call, None if there is no such call. Nothing is computed.

    `columns`: the DuckDB types of the columns that it reads. Raises InvalidStatementError for constants that can't be,
    and for columns where there must be constants.
    """
    row = "".join(f", CAST(NULL AS {type_name}) AS {name}" for name, type_name in columns.items())
    sql = f"SELECT {render(tree)} FROM (SELECT 1{row})"
    return _type_of(sql) if len(sql) <= _SHORT else _type_of.__wrapped__(sql)


def is_implemented(tree: Tree, columns: Mapping[str, str]) -> bool:
    """Whether DuckDB has the conversions that an expression asks of columns of such types: it would say so for values
    only. Where no value of a type is known, it is taken to have them.

    Raises InvalidStatementError for constants that can't be converted.
    """
    row = "".join(f", {_some_value(type_name)} AS {name}" for name, type_name in columns.items())
    error = _error_of(f"SELECT {render(tree)} FROM (SELECT 1{row})")
    if error is None or error.message.startswith(_NO_CONVERSION):
        return error is None
    if not columns:
        raise InvalidStatementError(error.message)
    return True


def _some_value(type_name: str) -> str:
    return f"coalesce({', '.join(f'TRY_CAST({text!r} AS {type_name})' for text in _SOME_VALUES)})"


@lru_cache(maxsize=_REMEMBERED)
def _error_of(sql: str) -> InvalidStatementError | None:
    try:
        _asked(lambda connection: connection.execute(sql).to_arrow_table())  # Python doesn't hold all values
    except duckdb.Error as error:
        return _refused(error)
    return None


@lru_cache(maxsize=_REMEMBERED)
def _type_of(sql: str) -> str | None:
    try:
        return str(_asked(lambda connection: connection.sql(sql).types[0]))
    except duckdb.Error as error:
        refused = _refused(error)
        if refused.message.startswith(_NO_SUCH_CALL):
            return None
        raise refused from error


@cache
def aggregate_names() -> frozenset[str]:
    """Returns the names of DuckDB's aggregates."""
    found = _asked(lambda connection: connection.execute(
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'aggregate'").fetchall())
    return frozenset(name for name, in found)


def forms_of(name: str) -> list[str]:
    """Returns some calls of a function of DuckDB's with the types that they take, or a macro's parameters: short ones.
    """
    found = _asked(lambda connection: connection.execute(
        "SELECT DISTINCT list_transform(parameters, lambda p, i: coalesce(parameter_types[i], p)), varargs || '...' "
        "FROM duckdb_functions() WHERE lower(function_name) = ?", [name]).fetchall())
    forms = [f"{name}({', '.join([*taken, *([more] if more else [])])})" for taken, more in found]
    return sorted(forms, key=lambda form: (len(form), form))[:_FORMS]


def _refused(error: duckdb.Error) -> InvalidStatementError:
    return InvalidStatementError(str(error).partition("Error: ")[2].splitlines()[0] or str(error))


def _asked(ask: Callable[[duckdb.DuckDBPyConnection], Any]) -> Any:
    with _lock:
        try:
            return ask(_connection())
        except (duckdb.FatalException, duckdb.InternalException):
            if not is_broken(_connection()):
                raise
            # by this, or by what somebody else has computed
            _connection.cache_clear()
            renew_small_duckdb_if_broken()
            return ask(_connection())


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    return small_duckdb()
