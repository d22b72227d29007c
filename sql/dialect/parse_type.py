"""Parses the names of types, in definitions and behind CAST."""

from __future__ import annotations

from sqlglot import exp

from penstock.sql.dialect.base_parser import BaseParser
from penstock.sql.tree.expression_nodes import TypeName
from penstock.sql.types import DataType, Kind

MAX_VARCHAR = 65_517
MAX_NCHAR = 16_379
MAX_DIGITS = 38

_SIMPLE_TYPES: dict[str, Kind] = {
    "TIMESTAMP": Kind.TIMESTAMP, "BOOL": Kind.BOOL, "TINYINT": Kind.TINYINT, "SMALLINT": Kind.SMALLINT,
    "INT": Kind.INT, "INTEGER": Kind.INT, "BIGINT": Kind.BIGINT, "FLOAT": Kind.FLOAT, "DOUBLE": Kind.DOUBLE,
    "JSON": Kind.JSON,
}
_UNSIGNED: dict[Kind, Kind] = {
    Kind.TINYINT: Kind.UTINYINT, Kind.SMALLINT: Kind.USMALLINT, Kind.INT: Kind.UINT, Kind.BIGINT: Kind.UBIGINT,
}
_SIZED_TYPES: dict[str, tuple[Kind, int]] = {
    "VARCHAR": (Kind.VARCHAR, MAX_VARCHAR), "BINARY": (Kind.VARCHAR, MAX_VARCHAR), "NCHAR": (Kind.NCHAR, MAX_NCHAR),
    "VARBINARY": (Kind.VARBINARY, MAX_VARCHAR), "GEOMETRY": (Kind.GEOMETRY, MAX_VARCHAR),
}
_LENGTHS = dict(_SIZED_TYPES.values())
#: What CAST takes as well, without a length.
_OTHER_NAMES: dict[str, Kind] = {
    "VARCHAR": Kind.VARCHAR, "BINARY": Kind.VARCHAR, "NCHAR": Kind.NCHAR, "TEXT": Kind.VARCHAR, "STRING": Kind.VARCHAR,
    "BOOLEAN": Kind.BOOL, "REAL": Kind.FLOAT, "FLOAT4": Kind.FLOAT, "FLOAT8": Kind.DOUBLE, "INT2": Kind.SMALLINT,
    "INT4": Kind.INT, "INT8": Kind.BIGINT, "BYTEA": Kind.VARBINARY,
}
_TYPE_WORDS = (*_SIMPLE_TYPES, *_SIZED_TYPES, "DECIMAL", "NUMERIC")


class TypeParser(BaseParser):
    """Types."""

    def parse_data_type(self) -> DataType:
        """Parses a type such as `INT UNSIGNED` or `VARCHAR(20)`. Raises SqlSyntaxError."""
        word = self.take_any(*_TYPE_WORDS)
        if word is None:
            raise self.fail("a data type is expected")
        if word in ("DECIMAL", "NUMERIC"):
            return self._parse_decimal()
        if word in _SIZED_TYPES:
            kind, maximum = _SIZED_TYPES[word]
            self.expect("(")
            length = self.integer("the length of the type", minimum=1, maximum=maximum)
            self.expect(")")
            return DataType(kind, length=length)
        kind = _SIMPLE_TYPES[word]
        if kind in _UNSIGNED and self.take("UNSIGNED"):
            kind = _UNSIGNED[kind]
        return DataType(kind)

    def _parse_decimal(self) -> DataType:
        self.expect("(")
        digits = self.integer("the number of digits", minimum=1, maximum=MAX_DIGITS)
        scale = self.integer("the scale", maximum=digits) if self.take(",") else 0
        self.expect(")")
        return DataType(Kind.DECIMAL, digits=digits, scale=scale)

    def parse_cast_type(self) -> exp.Expression:
        """Parses a type to convert to: a text has any length, and types may have the names that PostgreSQL has."""
        start = self.token.start
        kind = _OTHER_NAMES.get(self.word)
        if kind is not None and self.peek() != "(":
            self.advance()
            target = DataType(kind, length=_LENGTHS[kind]) if kind in _LENGTHS else DataType(kind)
        elif self.word == "DOUBLE" and self.peek() == "PRECISION":
            self.advance()
            self.advance()
            target = DataType(Kind.DOUBLE)
        else:
            target = self.parse_data_type()
        return self.mark(TypeName(this=target), start)
