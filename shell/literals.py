"""Python values as SQL literals, and `?` parameters replaced by them. It doesn't parse SQL, only skips quotes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal

from penstock.common.errors import InvalidValueError
from penstock.sql.dialect import quote_string

_PIECES = re.compile(
    r"""'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `[^`]*` | --[^\n]* | /\*.*?\*/ | (?P<mark>\?)""",
    re.VERBOSE | re.DOTALL)


def literal(value: object) -> str:
    """Returns a literal that reads back as the value. Naive datetimes are local times of the session."""
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()  # a NumPy or Arrow-like scalar
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | Decimal):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidValueError(f"{value} cannot be stored", hint="use None for a missing value")
        return repr(value)
    if isinstance(value, str):
        return quote_string(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"'\\x{bytes(value).hex()}'"
    if isinstance(value, datetime):
        return f"'{value.isoformat(sep=' ')}'"
    if isinstance(value, date):
        return f"'{value.isoformat()} 00:00:00'"
    raise InvalidValueError(f"a {type(value).__name__} cannot be a parameter")


def bind(statement: str, parameters: Sequence[object]) -> str:
    """Returns the statement with each `?` outside of quotes and comments replaced by a literal."""
    remaining = iter(parameters)
    used = 0

    def replacement(match: re.Match[str]) -> str:
        nonlocal used
        if match["mark"] is None:
            return match[0]
        used += 1
        if used > len(parameters):
            raise InvalidValueError(f"the statement has more than {len(parameters)} parameters (?)")
        return literal(next(remaining))

    text = _PIECES.sub(replacement, statement)
    if used != len(parameters):
        raise InvalidValueError(f"{len(parameters)} parameters were given, the statement has {used} (?)")
    return text
