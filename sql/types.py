"""SQL data types: names, limits, and what they are in Arrow and DuckDB."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

import pyarrow as pa

from penstock.common.duckdb_types import arrow_type
from penstock.common.errors import InvalidStatementError, Position

Precision = Literal["ms", "us", "ns"]

UNITS_PER_SECOND: dict[Precision, int] = {"ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


class Kind(StrEnum):
    """The kinds of TDengine types (tdengine.md 5.2). BINARY is VARCHAR."""

    TIMESTAMP = "TIMESTAMP"
    BOOL = "BOOL"
    TINYINT = "TINYINT"
    SMALLINT = "SMALLINT"
    INT = "INT"
    BIGINT = "BIGINT"
    UTINYINT = "TINYINT UNSIGNED"
    USMALLINT = "SMALLINT UNSIGNED"
    UINT = "INT UNSIGNED"
    UBIGINT = "BIGINT UNSIGNED"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    VARCHAR = "VARCHAR"
    NCHAR = "NCHAR"
    VARBINARY = "VARBINARY"
    GEOMETRY = "GEOMETRY"
    JSON = "JSON"
    DECIMAL = "DECIMAL"
    NULL = "NULL"
    OTHER = "OTHER"
    """A type of DuckDB's that has no name here: see `OtherType`."""


SIGNED = (Kind.TINYINT, Kind.SMALLINT, Kind.INT, Kind.BIGINT)
UNSIGNED = (Kind.UTINYINT, Kind.USMALLINT, Kind.UINT, Kind.UBIGINT)
INTEGERS = SIGNED + UNSIGNED
FLOATS = (Kind.FLOAT, Kind.DOUBLE)
STRINGS = (Kind.VARCHAR, Kind.NCHAR)

_ARROW: dict[Kind, pa.DataType] = {
    Kind.BOOL: pa.bool_(),
    Kind.TINYINT: pa.int8(),
    Kind.SMALLINT: pa.int16(),
    Kind.INT: pa.int32(),
    Kind.BIGINT: pa.int64(),
    Kind.UTINYINT: pa.uint8(),
    Kind.USMALLINT: pa.uint16(),
    Kind.UINT: pa.uint32(),
    Kind.UBIGINT: pa.uint64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.VARCHAR: pa.string(),
    Kind.NCHAR: pa.string(),
    Kind.VARBINARY: pa.binary(),
    Kind.GEOMETRY: pa.binary(),
    Kind.JSON: pa.string(),
    Kind.NULL: pa.null(),
}

_DUCKDB: dict[Kind, str] = {
    # Timestamps are BIGINT (units of the database's precision since the epoch) inside all compiled SQL: integer
    # arithmetic is what TDengine does, and DuckDB's three timestamp types would each need their own functions.
    Kind.TIMESTAMP: "BIGINT",
    Kind.BOOL: "BOOLEAN",
    Kind.TINYINT: "TINYINT",
    Kind.SMALLINT: "SMALLINT",
    Kind.INT: "INTEGER",
    Kind.BIGINT: "BIGINT",
    Kind.UTINYINT: "UTINYINT",
    Kind.USMALLINT: "USMALLINT",
    Kind.UINT: "UINTEGER",
    Kind.UBIGINT: "UBIGINT",
    Kind.FLOAT: "FLOAT",
    Kind.DOUBLE: "DOUBLE",
    Kind.VARCHAR: "VARCHAR",
    Kind.NCHAR: "VARCHAR",
    Kind.VARBINARY: "BLOB",
    Kind.GEOMETRY: "BLOB",
    Kind.JSON: "VARCHAR",
    Kind.NULL: "INTEGER",
}


@dataclass(frozen=True, slots=True)
class DataType:
    """A type with its parameters.

    `length` is the declared length of VARCHAR/VARBINARY/GEOMETRY (bytes) and NCHAR (characters), else None.
    `digits`, `scale` are DECIMAL's. `precision` is set for TIMESTAMP: that of the database it lives in.
    """

    kind: Kind
    length: int | None = None
    digits: int | None = None
    scale: int | None = None
    precision: Precision = "ms"

    def with_precision(self, precision: Precision) -> DataType:
        """Returns the type as it is in a database of this precision, which matters to times alone."""
        fits = self.kind is not Kind.TIMESTAMP or self.precision == precision
        return self if fits else replace(self, precision=precision)

    @property
    def is_numeric(self) -> bool:
        return self.kind in INTEGERS or self.kind in FLOATS or self.kind in (Kind.DECIMAL, Kind.BOOL)

    @property
    def is_integer(self) -> bool:
        return self.kind in INTEGERS

    @property
    def is_string(self) -> bool:
        return self.kind in STRINGS

    def arrow(self) -> pa.DataType:
        """Returns the Arrow type that columns of this type have in the WAL, in parts and in results."""
        if self.kind is Kind.TIMESTAMP:
            return pa.timestamp(self.precision)
        if self.kind is Kind.DECIMAL:
            return pa.decimal128(self.digits or 38, self.scale or 0)
        return _ARROW[self.kind]

    def duckdb(self) -> str:
        """Returns the DuckDB type of values of this type in compiled SQL (timestamps are BIGINT there)."""
        if self.kind is Kind.DECIMAL:
            return f"DECIMAL({self.digits or 38}, {self.scale or 0})"
        return _DUCKDB[self.kind]

    def duckdb_name(self) -> str:
        """Returns what DuckDB calls a type of such values where instants are its own timestamps."""
        return "TIMESTAMP" if self.kind is Kind.TIMESTAMP else self.duckdb()

    def sql(self) -> str:
        """Returns the type as DESCRIBE and SHOW CREATE print it, for example `VARCHAR(20)` or `INT UNSIGNED`."""
        if self.kind is Kind.DECIMAL:
            return f"DECIMAL({self.digits or 38},{self.scale or 0})"
        return f"{self.kind}({self.length})" if self.length is not None else str(self.kind)

    def name_of_kind(self) -> str:
        """Returns the name of the type without its parameters."""
        return str(self.kind)

    def width(self) -> int:
        """Returns the bytes that DESCRIBE prints as the length of the column."""
        if self.kind is Kind.NCHAR:
            return self.length or 0
        if self.length is not None:
            return self.length
        if self.kind is Kind.DECIMAL:
            return 16 if (self.digits or 38) > 18 else 8
        if self.kind is Kind.JSON:
            return 4095
        widths = {Kind.BOOL: 1, Kind.TINYINT: 1, Kind.UTINYINT: 1, Kind.SMALLINT: 2, Kind.USMALLINT: 2,
                  Kind.INT: 4, Kind.UINT: 4, Kind.FLOAT: 4}
        return widths.get(self.kind, 8)


@dataclass(frozen=True, slots=True)
class OtherType(DataType):
    """A type of DuckDB's that the dialect has no name for: of values in queries and of columns of their results, never
    of columns of tables. `name` is what DuckDB calls it, such as `BIGINT[]`.
    """

    name: str = ""

    def duckdb(self) -> str:
        return self.name

    def sql(self) -> str:
        return self.name

    def name_of_kind(self) -> str:
        return self.name

    def arrow(self) -> pa.DataType:
        """Returns the Arrow type of columns of results; text is what Arrow has no type for."""
        return arrow_type(self.name)


BIGINT = DataType(Kind.BIGINT)
UBIGINT = DataType(Kind.UBIGINT)
INT = DataType(Kind.INT)
DOUBLE = DataType(Kind.DOUBLE)
BOOL = DataType(Kind.BOOL)
VARCHAR = DataType(Kind.VARCHAR)
NULL = DataType(Kind.NULL)


def other_type(name: str) -> OtherType:
    """Returns the type that DuckDB calls so."""
    return OtherType(Kind.OTHER, name=name)


def timestamp(precision: Precision = "ms") -> DataType:
    """Returns the TIMESTAMP type of a database with this precision."""
    return DataType(Kind.TIMESTAMP, precision=precision)


def check_stored(kind: DataType, position: Position | None = None) -> None:
    """Raises InvalidStatementError if no column of a table, nor a group of a stream, can be of the type."""
    if kind.kind is Kind.OTHER:
        raise InvalidStatementError(f"there are no columns of the type {kind.sql()}", position=position,
                                    hint="write CAST(... AS VARCHAR), or take a part of it")
