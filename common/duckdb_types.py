"""Types of DuckDB's that the dialect has no name for, in results: as Arrow, as text and as JSON."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as types

if TYPE_CHECKING:
    import duckdb

_REMEMBERED = 1024
_AS_TEXT = re.compile(r"\b(BIT|BIGNUM|ENUM|GEOMETRY|TIME WITH TIME ZONE|TIME_NS|UHUGEINT|UNION|UUID|VARIANT)\b")
"""Those that Arrow has no type for, or that lose something there."""
_PLAIN = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_string, types.is_binary,
          types.is_large_string, types.is_large_binary, types.is_timestamp, types.is_null)


@lru_cache(maxsize=_REMEMBERED)
def arrow_type(name: str) -> pa.DataType:
    """Returns the Arrow type that results have for a type that DuckDB calls so; text is what Arrow has none for."""
    if _AS_TEXT.search(name):
        return pa.string()
    with _small_duckdb() as connection:
        return connection.sql(f"SELECT CAST(NULL AS {name})").to_arrow_table().schema.field(0).type


def is_plain(kind: pa.DataType) -> bool:
    """Whether it is the Arrow type of a type of the dialect."""
    return any(holds(kind) for holds in _PLAIN)


def plain(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Returns the column if its type is plain, else its values as DuckDB writes them."""
    return column if is_plain(column.type) else _computed(column, "CAST(a AS VARCHAR)")


def texts(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Returns the values of a type of DuckDB's own as it writes them."""
    return plain(column).cast(pa.string())


def json_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Returns the values as `json.dumps` takes them: lists and objects, what JSON has no type for as text, and NULL for
    numbers that aren't finite.
    """
    texts = _computed(column, "CAST(to_json(a) AS VARCHAR)").to_pylist()
    return [None if text is None else json.loads(text, parse_constant=lambda _: None) for text in texts]


def _computed(column: pa.Array | pa.ChunkedArray, expression: str) -> pa.Array | pa.ChunkedArray:
    """Returns an expression over the column `a`, in as many chunks as the column has."""
    with _small_duckdb() as connection:
        connection.register("given", pa.table({"a": column}))
        whole = connection.sql(f"SELECT {expression} FROM given").to_arrow_table().column(0)
    return whole if isinstance(column, pa.ChunkedArray) else whole.combine_chunks()


def _small_duckdb() -> duckdb.DuckDBPyConnection:
    from penstock.common.closed_duckdb import small_duckdb  # whoever only asks a server needn't wait for DuckDB

    return small_duckdb()
