"""The CREATE TABLE statement for Arrow columns. It maps types only; names are checked when the statement runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.errors import InvalidStatementError, InvalidValueError
from penstock.sql.rows.arrow_encodings import plain
from penstock.sql.tree.statements import ColumnDefinition, CreateTable, Name
from penstock.sql.types import DataType, Kind

_SHORTEST = 16
_LONGEST = {"column": 65_517, "tag": 16_382}
_KINDS: dict[pa.DataType, Kind] = {
    pa.bool_(): Kind.BOOL, pa.int8(): Kind.TINYINT, pa.int16(): Kind.SMALLINT, pa.int32(): Kind.INT,
    pa.int64(): Kind.BIGINT, pa.uint8(): Kind.UTINYINT, pa.uint16(): Kind.USMALLINT, pa.uint32(): Kind.UINT,
    pa.uint64(): Kind.UBIGINT, pa.float16(): Kind.FLOAT, pa.float32(): Kind.FLOAT, pa.float64(): Kind.DOUBLE,
    pa.date32(): Kind.TIMESTAMP, pa.date64(): Kind.TIMESTAMP,
}


def create_table(name: Name, rows: pa.Table, tags: Sequence[str] = ()) -> CreateTable:
    """Returns CREATE TABLE for the columns of `rows`.

    The first timestamp becomes the first column and so the key. Text gets a length with room for twice the longest
    value at most. With `tags`, names of columns, it is a super table, and `tbname` is none of its columns. Raises
    InvalidStatementError if there is no timestamp or a tag isn't there, InvalidValueError for types that have no
    counterpart.
    """
    lacking = next((tag for tag in tags if tag not in rows.column_names), None)
    if lacking is not None:
        raise InvalidStatementError(f"there is no column {lacking} for a tag")
    if bool(tags) != ("tbname" in rows.column_names):
        raise InvalidStatementError("a column tbname and tags make a super table: give both or none of them")
    columns = [column for column in rows.column_names if column != "tbname" and column not in tags]
    key = next((column for column in columns if pa.types.is_timestamp(rows.schema.field(column).type)), None)
    if key is None:
        raise InvalidStatementError("no column is a timestamp, which the first column of a table must be")
    columns.sort(key=lambda column: column != key)
    return CreateTable(name, tuple(_definition(rows, column, "column") for column in columns),
                       tuple(_definition(rows, tag, "tag") for tag in tags))


def _definition(rows: pa.Table, name: str, what: str) -> ColumnDefinition:
    return ColumnDefinition(name, _type(rows.column(name), name, what))


def _type(values: pa.ChunkedArray, name: str, what: str) -> DataType:
    arrived = values.type
    values = plain(values)
    kind = values.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
        values = values.cast(kind)
    known = Kind.TIMESTAMP if pa.types.is_timestamp(kind) else _KINDS.get(kind)
    if known is not None:
        return DataType(known)
    if pa.types.is_decimal(kind) and kind.precision <= 38 and kind.scale >= 0:
        return DataType(Kind.DECIMAL, digits=kind.precision, scale=kind.scale)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return DataType(Kind.VARCHAR if text else Kind.VARBINARY, room_for(values, pc.binary_length, _LONGEST[what]))
    raise InvalidValueError(
        f"column {name}: there is no SQL type for Arrow's {arrived}",
        hint="cast it to what makes a BOOL, an integer, FLOAT, DOUBLE, DECIMAL, TIMESTAMP, VARCHAR or VARBINARY")


def room_for(values: pa.ChunkedArray, length: Callable[[pa.ChunkedArray], pa.ChunkedArray], limit: int) -> int:
    """Returns the length of a column that the values fit into: twice that of the longest at most, and up to `limit` if
    that isn't longer. `length` gives theirs, in bytes or characters.
    """
    longest: int = pc.max(length(values)).as_py() or 1
    return min(max(_SHORTEST, 1 << (longest - 1).bit_length()), max(longest, limit))
