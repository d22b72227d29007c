"""SQL of the values that make a stream's group, and of the number that names it; says nothing about tables."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.sql.types import FLOATS, DataType


def group_value(sql: str, type: DataType) -> str:
    """Returns SQL of the value as a group has it: -0.0 is 0.0, as in GROUP BY, though their texts differ."""
    return f"({sql} + 0::{type.duckdb()})" if type.kind in FLOATS else sql


def group_id(values: Iterable[tuple[str, DataType]]) -> str:
    """Returns SQL of a group's id, from the SQL and the types of the values that its rows share."""
    parts = ", ".join(f"coalesce({group_value(sql, type)}::VARCHAR, chr(0))" for sql, type in values)
    return f"md5_number_lower(concat_ws(chr(31), {parts}))"
