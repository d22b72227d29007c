"""Parses the names of types, in definitions and behind CAST."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.tokens import TokenType

from penstock.sql.dialect.base_parser import BaseParser
from penstock.sql.tree.expression_nodes import TypeName
from penstock.sql.types import DataType, Kind, other_type

MAX_VARCHAR = 65_517
MAX_NCHAR = 16_379
MAX_DIGITS = 38
MAX_ARRAY = 10_000

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
    "BOOLEAN": Kind.BOOL, "REAL": Kind.FLOAT, "FLOAT4": Kind.FLOAT, "FLOAT8": Kind.DOUBLE, "INT1": Kind.TINYINT,
    "INT2": Kind.SMALLINT, "INT16": Kind.SMALLINT, "INT4": Kind.INT, "INT32": Kind.INT, "INT8": Kind.BIGINT,
    "INT64": Kind.BIGINT, "UINT8": Kind.UTINYINT, "UINT16": Kind.USMALLINT, "UINT32": Kind.UINT,
    "UINT64": Kind.UBIGINT, "BYTEA": Kind.VARBINARY, "BLOB": Kind.VARBINARY, "CHAR": Kind.VARCHAR,
    "VARBINARY": Kind.VARBINARY, "UTINYINT": Kind.UTINYINT, "USMALLINT": Kind.USMALLINT, "UINTEGER": Kind.UINT,
    "UBIGINT": Kind.UBIGINT, "DATETIME": Kind.TIMESTAMP, "TIMESTAMPTZ": Kind.TIMESTAMP,
    "TIMESTAMP_S": Kind.TIMESTAMP, "TIMESTAMP_MS": Kind.TIMESTAMP, "TIMESTAMP_US": Kind.TIMESTAMP,
    "TIMESTAMP_NS": Kind.TIMESTAMP,
}
#: DuckDB's types that have no name here, by the names that they may be given.
_OF_DUCKDB: dict[str, str] = {
    "DATE": "DATE", "TIME": "TIME", "TIMETZ": "TIME WITH TIME ZONE", "INTERVAL": "INTERVAL", "UUID": "UUID",
    "HUGEINT": "HUGEINT", "INT128": "HUGEINT", "UHUGEINT": "UHUGEINT", "BIT": "BIT", "BITSTRING": "BIT",
    "BIGNUM": "BIGNUM", "TIME_NS": "TIME_NS", "VARIANT": "VARIANT",
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
        """Parses a type to convert to: a text has any length, and types may be all that DuckDB and PostgreSQL have."""
        start = self.token.start
        return self.mark(TypeName(this=self._parse_any_type()), start)

    def _parse_any_type(self) -> DataType:
        kind, levels = self._parse_item_type(), 0
        while self.take("["):
            self.enter()
            levels += 1
            size = "" if self.at("]") else str(self.integer("the length of the array", minimum=1, maximum=MAX_ARRAY))
            self.expect("]")
            kind = other_type(f"{kind.duckdb_name()}[{size}]")
        self.leave(levels)
        return kind

    def _parse_item_type(self) -> DataType:
        word = self.word
        if word in ("STRUCT", "ROW", "MAP", "UNION", "ENUM") and self.peek() == "(":
            return self._parse_nested_type()
        if word in ("DECIMAL", "NUMERIC") and self.peek() != "(":
            self.advance()
            return DataType(Kind.DECIMAL, digits=18, scale=3)
        if word == "DOUBLE" and self.peek() == "PRECISION":
            self._advance(2)
            return DataType(Kind.DOUBLE)
        known = _OTHER_NAMES.get(word) if self.peek() != "(" else None
        if known is None and word not in _OF_DUCKDB:
            kind = self.parse_data_type()
        else:
            self.advance()
            kind = other_type(_OF_DUCKDB[word]) if known is None else DataType(known, length=_LENGTHS.get(known))
        if word in ("TIME", "TIMESTAMP") and self.at_any("WITH", "WITHOUT") and self.peek() == "TIME":
            zoned = self.advance().text.upper() == "WITH"
            self.expect("TIME", "ZONE")
            return other_type("TIME WITH TIME ZONE") if zoned and word == "TIME" else kind
        return kind

    def _parse_nested_type(self) -> DataType:
        word = self.advance().text.upper()
        parse = {"MAP": lambda: self._parse_any_type().duckdb_name(), "ENUM": self._parse_label}
        self.enter()
        parts = self.wrapped_csv(parse.get(word, self._parse_field))
        self.leave()
        if word == "MAP" and len(parts) != 2:
            raise self.fail("a MAP has a type of keys and one of values")
        return other_type(f"{'STRUCT' if word == 'ROW' else word}({', '.join(parts)})")

    def _parse_field(self) -> str:
        name = self.advance().text if self.at_type(TokenType.STRING) else self.name("a field")
        return f"{_quoted(name, chr(34))} {self._parse_any_type().duckdb_name()}"

    def _parse_label(self) -> str:
        return _quoted(self.string("a value"), "'")


def _quoted(text: str, mark: str) -> str:
    return f"{mark}{text.replace(mark, 2 * mark)}{mark}"
