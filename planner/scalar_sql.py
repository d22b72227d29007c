"""Small pieces of DuckDB SQL text that the expression compiler is made of; it knows no types and no statements."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable

_SIMPLE = re.compile(r'(\w+\.|"[^"]*"\.)*("[^"]*"|\w+)|CAST\(-?\d+ AS \w+\)|-?[\d.]+(e0)?')


LIMIT = "limit: "
"""What the text of an error() begins with that says that a statement went beyond a bound."""


def quote_text(text: str) -> str:
    """Returns the text as a SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def quote_name(name: str) -> str:
    """Returns the name as a SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def integer_literal(value: int, sql_type: str = "BIGINT") -> str:
    """Returns an integer literal of a SQL type."""
    return f"CAST({value} AS {sql_type})"


def let(sql: str, body: Callable[[str], str]) -> str:
    """Returns `body` applied to the value of `sql`, which is written and computed once.

    Without it, nesting functions whose SQL needs their argument twice would double the text at every level.
    """
    if _SIMPLE.fullmatch(sql):
        return body(sql)
    name = f"v{zlib.crc32(sql.encode()):08x}"
    return f"list_transform([{sql}], lambda {name}: {body(name)})[1]"


def let_all(values: tuple[str, ...], body: Callable[..., str]) -> str:
    """Like `let`, for several values: `body` gets one name per value."""
    if all(_SIMPLE.fullmatch(sql) for sql in values):
        return body(*values)
    name = f"v{zlib.crc32(repr(values).encode()):08x}"
    fields = ", ".join(f"'f{index}': {sql}" for index, sql in enumerate(values))
    names = [f"{name}.f{index}" for index in range(len(values))]
    return f"list_transform([{{{fields}}}], lambda {name}: {body(*names)})[1]"
