"""What names can be."""

from __future__ import annotations

from penstock.common.errors import InvalidStatementError

NAME_BYTES = {"database": 64, "table": 192, "column": 64, "tag": 64, "stream": 192, "function": 64, "user": 23,
              "connection": 64, "ingest": 192, "view": 192}


def check_name(name: str, what: str) -> None:
    """Raises `InvalidStatementError` for a name that is empty, too long or has characters that names can't have."""
    if not name or name.isspace():
        raise InvalidStatementError(f"a {what} name must not be empty")
    size = len(name.encode())
    if size > NAME_BYTES[what]:
        raise InvalidStatementError(f"the {what} name {name[:20]}... has {size} bytes, at most {NAME_BYTES[what]} fit")
    if what != "column" and "." in name:
        raise InvalidStatementError(f"the {what} name {name!r} has a dot")
    if "/" in name and what == "database":
        raise InvalidStatementError(f"the database name {name!r} has a slash")
    if not name.isprintable():
        raise InvalidStatementError(f"the {what} name {name!r} has characters that cannot be printed")
