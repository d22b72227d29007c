"""Results as PostgreSQL's clients read them: types as OIDs, columns of Arrow as text or in binary."""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.duckdb_types import plain, texts
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.shell.postgres.backend import Cell, ResultField
from penstock.sql.types import DataType, Kind

BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID, JSON = 16, 17, 20, 21, 23, 25, 26, 114
FLOAT4, FLOAT8, VARCHAR, DATE, TIME, TIMESTAMP, TIMESTAMPTZ = 700, 701, 1043, 1082, 1083, 1114, 1184
INTERVAL, NUMERIC, UUID = 1186, 1700, 2950
POSTGRES_EPOCH_US = 946_684_800_000_000
"""Microseconds from 1970 to 2000, from which PostgreSQL counts."""
_EPOCH_DAYS = 10_957
_INFINITE_DAYS = {2**31 - 1: 2**31 - 1, -(2**31) + 1: -(2**31)}
"""Dates that are infinite, as Arrow and as PostgreSQL have them."""
_MODIFIER_EXTRA = 4


@dataclass(frozen=True, slots=True)
class PostgresType:
    """A type as PostgreSQL has it: OID, name, bytes of a value (-1: any)."""

    oid: int
    name: str
    size: int = -1


_SMALL, _WHOLE, _BIG = PostgresType(INT2, "int2", 2), PostgresType(INT4, "int4", 4), PostgresType(INT8, "int8", 8)
_VARCHAR, _BYTEA = PostgresType(VARCHAR, "varchar"), PostgresType(BYTEA, "bytea")
#: Unsigned integers are the next wider ones.
TYPES: dict[Kind, PostgresType] = {
    Kind.TIMESTAMP: PostgresType(TIMESTAMPTZ, "timestamptz", 8), Kind.BOOL: PostgresType(BOOL, "bool", 1),
    Kind.TINYINT: _SMALL, Kind.SMALLINT: _SMALL, Kind.INT: _WHOLE, Kind.BIGINT: _BIG,
    Kind.UTINYINT: _SMALL, Kind.USMALLINT: _WHOLE, Kind.UINT: _BIG, Kind.UBIGINT: PostgresType(NUMERIC, "numeric"),
    Kind.FLOAT: PostgresType(FLOAT4, "float4", 4), Kind.DOUBLE: PostgresType(FLOAT8, "float8", 8),
    Kind.VARCHAR: _VARCHAR, Kind.NCHAR: _VARCHAR, Kind.VARBINARY: _BYTEA, Kind.GEOMETRY: _BYTEA,
    Kind.JSON: PostgresType(JSON, "json"), Kind.DECIMAL: PostgresType(NUMERIC, "numeric"),
    Kind.NULL: PostgresType(TEXT, "text"),
}
_OTHERS = {
    "DATE": PostgresType(DATE, "date", 4), "TIME": PostgresType(TIME, "time", 8),
    "INTERVAL": PostgresType(INTERVAL, "interval", 16), "UUID": PostgresType(UUID, "uuid", 16),
    "HUGEINT": PostgresType(NUMERIC, "numeric"), "UHUGEINT": PostgresType(NUMERIC, "numeric"),
}
"""DuckDB's own types that PostgreSQL has, too; values of others, such as structs, are text."""
_ARRAYS = {
    "BOOLEAN[]": PostgresType(1000, "_bool"), "SMALLINT[]": PostgresType(1005, "_int2"),
    "INTEGER[]": PostgresType(1007, "_int4"), "BIGINT[]": PostgresType(1016, "_int8"),
    "FLOAT[]": PostgresType(1021, "_float4"), "DOUBLE[]": PostgresType(1022, "_float8"),
    "VARCHAR[]": PostgresType(1009, "_text"),
}
"""Lists that are arrays."""
_ELEMENTS = {1000: BOOL, 1005: INT2, 1007: INT4, 1016: INT8, 1021: FLOAT4, 1022: FLOAT8, 1009: TEXT}
"""OIDs of arrays, and of what is in them."""


def postgres_type(kind: DataType) -> PostgresType:
    """Returns the type as PostgreSQL has it."""
    if kind.kind is not Kind.OTHER:
        return TYPES[kind.kind]
    return _OTHERS.get(kind.sql()) or _ARRAYS.get(kind.sql(), TYPES[Kind.NULL])


def modifier_of(kind: DataType) -> int:
    """Returns the modifier of a type: the length of a text, the digits of a decimal; -1 where it has none."""
    if kind.kind in (Kind.VARCHAR, Kind.NCHAR) and kind.length:
        return kind.length + _MODIFIER_EXTRA
    if kind.kind is Kind.DECIMAL:
        return ((kind.digits or 38) << 16 | (kind.scale or 0)) + _MODIFIER_EXTRA
    return -1


def result_fields(columns: Sequence[ResultColumn], formats: Sequence[int] = ()) -> list[ResultField]:
    """Returns how columns are told. `formats`: none, one for all, or one each."""
    return [_field(column, place, formats) for place, column in enumerate(columns)]


def _field(column: ResultColumn, place: int, formats: Sequence[int]) -> ResultField:
    kind = postgres_type(column.type)
    return ResultField(column.name, kind.oid, kind.size, modifier_of(column.type), format_at(formats, place))


def format_at(formats: Sequence[int], place: int) -> int:
    """Returns the format of the value at a place: 0 for text, 1 for binary."""
    if not formats:
        return 0
    return formats[place] if len(formats) > 1 and place < len(formats) else formats[0]


def cells_of(
    batch: pa.RecordBatch, columns: Sequence[ResultColumn], fields: Sequence[ResultField], time_zone: str
) -> list[list[Cell]]:
    """Returns the values of a batch, column by column; times as text are in `time_zone`."""
    return [_binary(values, column.type, field.type_oid) if field.format else text_cells(values, column.type, time_zone)
            for values, column, field in zip(batch.columns, columns, fields, strict=True)]


def text_cells(values: pa.Array, kind: DataType, time_zone: str) -> list[Cell]:
    """Returns values as PostgreSQL writes them in text."""
    if values.type == pa.null():
        return [None] * len(values)
    if pa.types.is_binary(values.type):
        return [None if value is None else b"\\x" + value.hex().encode() for value in values.to_pylist()]
    if kind.kind is Kind.BOOL:
        return [None if value is None else b"t" if value else b"f" for value in values.to_pylist()]
    if kind.kind is Kind.TIMESTAMP:
        return _encoded(_times(values, time_zone))
    if kind.sql() in _ARRAYS:
        return _encoded(None if value is None else _array(value) for value in values.to_pylist())
    if kind.kind is Kind.OTHER:
        ours, theirs = _WRITTEN.get(kind.sql(), ("", ""))
        written = texts(values)
        return _encoded((pc.replace_substring(written, ours, theirs) if ours else written).to_pylist())
    written = values.cast(pa.string()).to_pylist()
    if pa.types.is_floating(values.type):
        return _encoded(_FLOATS.get(text, text) for text in written)
    return _encoded(written)


_WRITTEN = {"DATE": (" (BC)", " BC"), "INTERVAL": ("month", "mon")}
"""What PostgreSQL writes otherwise."""
_FLOATS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _array(values: Iterable[object]) -> str:
    return "{" + ",".join("NULL" if value is None else _element(value) for value in values) + "}"


def _element(value: object) -> str:
    text = ("f", "t")[value] if isinstance(value, bool) else str(value)
    if re.fullmatch(r"[\w.+-]+", text) and text.upper() != "NULL":
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _encoded(written: Iterable[str | None]) -> list[Cell]:
    return [None if text is None else text.encode() for text in written]


def _times(values: pa.Array, time_zone: str) -> list[str | None]:
    """Returns times with the offset of a zone, in microseconds at most, since the type has no more."""
    micros = values.cast(pa.timestamp("us"), safe=False) if values.type.unit == "ns" else values
    if time_zone == "UTC":
        return pc.binary_join_element_wise(micros.cast(pa.string()), "+00", "").to_pylist()  # type: ignore[no-any-return]
    local = pc.strftime(micros.cast(pa.timestamp(micros.type.unit, "UTC")).cast(
        pa.timestamp(micros.type.unit, time_zone)), "%Y-%m-%d %H:%M:%S%z")
    with_colon = pc.replace_substring_regex(local, r"(\d\d)(\d\d)$", r"\1:\2")
    return pc.replace_substring_regex(with_colon, ":00$", "").to_pylist()  # type: ignore[no-any-return]


def _binary(values: pa.Array, kind: DataType, oid: int) -> list[Cell]:
    if kind.kind is Kind.TIMESTAMP:
        micros = values.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).to_pylist()
        return [None if value is None else _LONG(value - POSTGRES_EPOCH_US) for value in micros]
    pack = _PACKERS.get(oid, _text_bytes)
    return [None if value is None else pack(value) for value in _packable(values, oid).to_pylist()]


def _packable(values: pa.Array, oid: int) -> pa.Array:
    if oid == DATE:
        return values.cast(pa.int32())
    if oid == TIME:
        return values.cast(pa.int64())
    return values if oid == INTERVAL or oid in _ELEMENTS else plain(values)


def _days(value: int) -> bytes:
    return struct.pack("!i", _INFINITE_DAYS.get(value, value - _EPOCH_DAYS))


def _interval(value: pa.MonthDayNano) -> bytes:
    return struct.pack("!qii", value.nanoseconds // 1000, value.days, value.months)


def _array_packer(element: int) -> Callable[[Any], bytes]:
    """Returns what writes an array: dimensions, whether there are NULLs, type; of each dimension length and first
    number; and the values behind their lengths.
    """
    def packed(values: list[Any]) -> bytes:
        pack = _PACKERS.get(element, _text_bytes)
        cells = [_NULL if value is None else struct.pack("!i", len(cell := pack(value))) + cell for value in values]
        dimensions = struct.pack("!ii", len(cells), 1) if cells else b""
        return struct.pack("!iii", len(cells) > 0, _NULL in cells, element) + dimensions + b"".join(cells)

    return packed


_NULL = struct.pack("!i", -1)


def _text_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def numeric_bytes(value: Decimal | int) -> bytes:
    """Returns digits to the base of 10 000: their number, the power of the first, sign, scale, digits."""
    sign, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int), "columns have finite numbers"
    scale = max(0, -exponent)
    number = int("".join(map(str, digits))) * 10 ** (exponent + scale) * 10 ** (-scale % 4)  # whole groups of four
    groups: list[int] = []
    while number:
        number, group = divmod(number, 10_000)
        groups.insert(0, group)
    weight = len(groups) - 1 - (scale + 3) // 4
    return struct.pack(
        f"!HhHH{len(groups)}H", len(groups), weight if groups else 0, 0x4000 if sign else 0, scale, *groups)


_LONG: Callable[[int], bytes] = struct.Struct("!q").pack
_PACKERS: dict[int, Callable[[Any], bytes]] = {
    BOOL: struct.Struct("!?").pack, INT2: struct.Struct("!h").pack, INT4: struct.Struct("!i").pack, INT8: _LONG,
    FLOAT4: struct.Struct("!f").pack, FLOAT8: struct.Struct("!d").pack,
    NUMERIC: numeric_bytes, DATE: _days, TIME: _LONG, INTERVAL: _interval, UUID: lambda text: uuid.UUID(text).bytes,
    **{array: _array_packer(element) for array, element in _ELEMENTS.items()},
}
