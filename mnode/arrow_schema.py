"""The SQL that makes a table for Arrow columns. Knows types only: the statement finds out what the names are worth."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.errors import InvalidStatementError, InvalidValueError

_SHORTEST = 16
_LONGEST = {"column": 65_517, "tag": 16_382}
_TYPES: dict[pa.DataType, str] = {
    pa.bool_(): "BOOL", pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT", pa.int64(): "BIGINT",
    pa.uint8(): "TINYINT UNSIGNED", pa.uint16(): "SMALLINT UNSIGNED", pa.uint32(): "INT UNSIGNED",
    pa.uint64(): "BIGINT UNSIGNED", pa.float16(): "FLOAT", pa.float32(): "FLOAT", pa.float64(): "DOUBLE",
    pa.date32(): "TIMESTAMP", pa.date64(): "TIMESTAMP",
}


def create_table_sql(name: str, rows: pa.Table, tags: Sequence[str] = ()) -> str:
    """Returns CREATE TABLE for the columns of `rows`; `name` is quoted already.

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
    text = f"CREATE TABLE {name} ({', '.join(_definition(rows, column, 'column') for column in columns)})"
    return f"{text} TAGS ({', '.join(_definition(rows, tag, 'tag') for tag in tags)})" if tags else text


def quoted(name: str) -> str:
    """Returns a name in back-quotes. `InvalidStatementError` if it has one itself."""
    if "`" in name:
        raise InvalidStatementError(f"the name {name!r} has a back-quote")
    return f"`{name}`"


def _definition(rows: pa.Table, name: str, what: str) -> str:
    return f"{quoted(name)} {_sql_type(rows.column(name), name, what)}"


def _sql_type(values: pa.ChunkedArray, name: str, what: str) -> str:
    kind = values.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
        values = values.cast(kind)
    known = _TYPES.get(kind)
    if known is not None:
        return known
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP"
    if pa.types.is_decimal(kind) and kind.precision <= 38 and kind.scale >= 0:
        return f"DECIMAL({kind.precision},{kind.scale})"
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        longest = pc.max(pc.binary_length(values.cast(pa.large_string()) if text else values)).as_py() or 1
        length = min(max(_SHORTEST, 1 << (longest - 1).bit_length()), max(longest, _LONGEST[what]))
        return f"{'VARCHAR' if text else 'VARBINARY'}({length})"
    raise InvalidValueError(f"column {name}: there is no SQL type for Arrow's {kind}")
