"""SQL types of Penstock as SQLAlchemy's, and SQLAlchemy's as SQL of Penstock."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from sqlalchemy import exc, types
from sqlalchemy.sql import compiler

from penstock.sql.types import FLOATS, INTEGERS, Kind

UNBOUNDED = 4096
"""Bytes of texts and bytes whose type has no length: 15 such columns fit into the 64 KiB of a row."""
_DECIMAL_DIGITS, _DECIMAL_SCALE = 38, 10
_FLOAT_BITS = 24


class SizedInteger(types.Integer):
    """An integer of the size and sign that its SQL type names, such as `TINYINT UNSIGNED`."""

    __visit_name__ = "sized_integer"

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"SizedInteger({str(self.kind)!r})"


class StoredTime(types.DateTime):
    """A timestamp; a parameter that is selected comes back as text."""

    def result_processor(self, dialect: Any, coltype: object) -> Callable[[Any], Any]:
        return lambda value: dt.datetime.fromisoformat(value) if isinstance(value, str) else value


class StoredDay(types.Date):
    """A date, stored as the timestamp at which it begins."""

    def result_processor(self, dialect: Any, coltype: object) -> Callable[[Any], Any]:
        instant = StoredTime().result_processor(dialect, coltype)

        def day(value: Any) -> Any:
            found = instant(value)
            return found.date() if isinstance(found, dt.datetime) else found

        return day


class Exact(types.Numeric[Any]):
    """A decimal, also where arithmetic has made a double of it."""

    def result_processor(self, dialect: Any, coltype: object) -> Callable[[Any], Any]:
        def number(value: Any) -> Any:
            if value is None:
                return None
            if not self.asdecimal:
                return float(value)
            # Digits of a double beyond the scale are no digits of the number.
            return Decimal(f"{value:.{self._effective_decimal_return_scale}f}") if isinstance(value, float) else \
                Decimal(value)

        return number


COLUMN_TYPES: dict[Any, Any] = {
    types.Date: StoredDay, types.TIMESTAMP: types.TIMESTAMP, types.DateTime: StoredTime, types.Float: types.Float,
    types.Numeric: Exact,
}

_SIMPLE: dict[Kind, types.TypeEngine[Any]] = {
    Kind.TIMESTAMP: types.TIMESTAMP(), Kind.BOOL: types.BOOLEAN(), Kind.SMALLINT: types.SMALLINT(),
    Kind.INT: types.INTEGER(), Kind.BIGINT: types.BIGINT(), Kind.JSON: types.JSON(), Kind.NULL: types.NullType(),
}


def reflected_type(name: str, width: int, digits: int | None, scale: int | None) -> types.TypeEngine[Any]:
    """Returns the type of a column that cursors describe so: its SQL type, bytes or characters, digits and scale."""
    kind = Kind(name)
    if kind in FLOATS:
        return types.FLOAT() if kind is Kind.FLOAT else types.DOUBLE()
    if kind is Kind.VARCHAR:
        return types.VARCHAR(width)
    if kind is Kind.NCHAR:
        return types.NCHAR(width)
    if kind in (Kind.VARBINARY, Kind.GEOMETRY):
        return types.VARBINARY(width)
    if kind is Kind.DECIMAL:
        return types.DECIMAL(digits, scale)
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    assert kind in INTEGERS, kind
    return SizedInteger(name)


def written(text: str) -> Callable[..., str]:
    """Returns a method that gives a text, whatever it is asked about."""
    return lambda compiler, *of, **how: text


class TypeCompiler(compiler.GenericTypeCompiler):
    """SQLAlchemy's types as SQL. Raises CompileError for those that have no counterpart."""

    def visit_sized_integer(self, type_: SizedInteger, **kw: Any) -> str:
        return str(type_.kind)

    visit_INTEGER, visit_BOOLEAN, visit_JSON = written("INT"), written("BOOL"), written("JSON")
    visit_REAL, visit_DOUBLE = written("FLOAT"), written("DOUBLE")
    visit_TEXT, visit_uuid = written(f"VARCHAR({UNBOUNDED})"), written("VARCHAR(36)")
    visit_TIMESTAMP = visit_DATETIME = visit_DATE = written("TIMESTAMP")
    visit_DOUBLE_PRECISION, visit_CLOB, visit_UUID = visit_DOUBLE, visit_TEXT, visit_uuid

    def visit_float(self, type_: Any, **kw: Any) -> str:
        return self.visit_FLOAT(type_) if type_.precision is not None else "DOUBLE"

    def visit_FLOAT(self, type_: Any, **kw: Any) -> str:
        return "FLOAT" if (type_.precision or 0) <= _FLOAT_BITS else "DOUBLE"

    def visit_DECIMAL(self, type_: Any, **kw: Any) -> str:
        if type_.precision is None:
            return f"DECIMAL({_DECIMAL_DIGITS},{_DECIMAL_SCALE})"
        return f"DECIMAL({type_.precision},{type_.scale or 0})"

    visit_NUMERIC = visit_DECIMAL

    def visit_TIME(self, type_: Any, **kw: Any) -> str:
        raise exc.CompileError("Penstock has no type for times of day: keep them as text, or as a number")

    def visit_VARCHAR(self, type_: Any, **kw: Any) -> str:
        return f"VARCHAR({type_.length or UNBOUNDED})"

    visit_CHAR = visit_VARCHAR

    def visit_NVARCHAR(self, type_: Any, **kw: Any) -> str:
        return f"NCHAR({type_.length or UNBOUNDED // 4})"

    visit_NCHAR = visit_unicode = visit_unicode_text = visit_NVARCHAR

    def visit_VARBINARY(self, type_: Any, **kw: Any) -> str:
        return f"VARBINARY({type_.length or UNBOUNDED})"

    visit_BINARY = visit_BLOB = visit_large_binary = visit_VARBINARY

    def visit_enum(self, type_: Any, **kw: Any) -> str:
        return self.visit_NCHAR(type_)  # its length counts characters
