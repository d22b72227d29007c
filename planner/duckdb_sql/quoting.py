"""Names in DuckDB SQL text, and how its errors begin.

DuckDB takes names for the same whose letters from A to Z differ in case only. So names with capitals have others there,
which tell where the capitals are: `Ab` is `Ab^1`. All other names are as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa

LIMIT = "limit: "
"""What the text of an error() begins with that says that a statement went beyond a bound."""

_CAPITALS = re.compile("[A-Z]")
_MARK = re.compile(r"\^[0-9a-f]+\Z")
_NAMES = 4096
"""How many names are kept that were met before."""


@lru_cache(maxsize=_NAMES)
def duckdb_name(name: str) -> str:
    """Returns what DuckDB calls a column or relation: two names are never the same to it."""
    capitals = sum(1 << found.start() for found in _CAPITALS.finditer(name))
    return f"{name}^{capitals:x}" if capitals or _MARK.search(name) else name


def own_name(name: str) -> str:
    """Returns the name that `duckdb_name` was given."""
    return _MARK.sub("", name)


@lru_cache(maxsize=_NAMES)
def quote_name(name: str) -> str:
    """Returns the name as a SQL identifier that is what `duckdb_name` says."""
    return quote_stored(duckdb_name(name))


def quote_stored(name: str) -> str:
    """Returns the name as a SQL identifier as it is: that of a function, or of a column of a store's files."""
    return '"' + name.replace('"', '""') + '"'


def for_duckdb(table: pa.Table) -> pa.Table:
    """Returns the table with the names that SQL has for its columns."""
    names = renamed(table.column_names)
    return table if names is None else table.rename_columns(names)


def renamed(names: Sequence[str]) -> list[str] | None:
    """Returns what DuckDB calls columns, None if all are called as they are."""
    found = [duckdb_name(name) for name in names]
    return None if found == list(names) else found


def from_duckdb(table: pa.Table) -> pa.Table:
    """Returns a table that DuckDB gave with the names that its columns have elsewhere."""
    names = table.column_names
    return table.rename_columns([own_name(name) for name in names]) if any("^" in name for name in names) else table
