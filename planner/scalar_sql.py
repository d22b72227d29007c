"""Names and literals in DuckDB SQL text."""

from __future__ import annotations

LIMIT = "limit: "
"""What the text of an error() begins with that says that a statement went beyond a bound."""


def quote_text(text: str) -> str:
    """Returns the text as a SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def quote_name(name: str) -> str:
    """Returns the name as a SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
