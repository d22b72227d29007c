"""SQL of the values that make a stream's group, and of the number that names it; says nothing about tables."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.sql.types import FLOATS, STRINGS, DataType

# NULL, the escape character and the separator: as part of a text they are written as two characters.
_NULL, _ESCAPE, _SEPARATOR = "chr(0)", "chr(30)", "chr(31)"


def group_value(sql: str, type: DataType) -> str:
    """Returns SQL of the value as a group has it: -0.0 is 0.0, as in GROUP BY, though their texts differ."""
    return f"({sql} + 0::{type.duckdb()})" if type.kind in FLOATS else sql


def group_id(values: Iterable[tuple[str, DataType]]) -> str:
    """Returns SQL of a group's id, from the SQL and the types of the values that its rows share."""
    parts = ", ".join(f"coalesce({_text(sql, type)}, {_NULL})" for sql, type in values)
    return f"md5_number_lower(concat_ws({_SEPARATOR}, {parts}))"


def _text(sql: str, type: DataType) -> str:
    """Returns SQL of a value as a text that has none of the marks in it."""
    text = f"{group_value(sql, type)}::VARCHAR"
    if type.kind in STRINGS:
        for place, mark in enumerate((_ESCAPE, _SEPARATOR, _NULL)):
            text = f"replace({text}, {mark}, {_ESCAPE} || '{place}')"
    return text
