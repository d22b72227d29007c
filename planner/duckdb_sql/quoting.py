"""Names in DuckDB SQL text, and how its errors begin."""

from __future__ import annotations

LIMIT = "limit: "
"""What the text of an error() begins with that says that a statement went beyond a bound."""


def quote_name(name: str) -> str:
    """Returns the name as a SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
