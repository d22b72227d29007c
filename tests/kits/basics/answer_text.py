"""What a client got, as the text that golden sessions have. Imports nothing of Penstock: clients run beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any


def rows_text(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns the text of a result. Instants are aware, or in UTC."""
    return "\n".join([" | ".join(names), *(" | ".join(map(_value_text, row)) for row in rows)])


def change_text(statement: str, affected: int) -> str:
    """Returns the text of what a statement without rows has done."""
    return f"{affected} rows" if statement.startswith("INSERT") else "done"


def error_text(code: int, text: str) -> str:
    """Returns the text of an error, with TDengine's number."""
    return f"ERROR 0x{code:04X}: {text}"


def _value_text(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).lower()
        case datetime():
            return (value if value.tzinfo is None else value.astimezone(UTC)).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        case bytes():
            return value.hex()
        case Decimal():
            return str(value)
        case float():
            # Some clients have it as text that has gone through 32 bits.
            return f"{value:.6g}"
        case _:
            return str(value)
