"""Arrow columns as lists of Python values, timestamps as naive datetimes in a time zone."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.duckdb_types import plain
from penstock.common.result_texts import texts_of_results

_UTC = ("UTC", "Etc/UTC")


def column_values(column: pa.Array | pa.ChunkedArray, time_zone: str) -> list[Any]:
    """Returns the values. A timestamp that no `datetime` can hold comes as an integer of the column's unit; what else
    Python has no value for, such as a far date, as text.
    """
    if not pa.types.is_timestamp(column.type):
        with texts_of_results():
            return _plain_values(column)
    try:
        local: list[Any] = _local(column, time_zone).to_pylist()
    except (ValueError, OverflowError):
        return [_one(column, row, time_zone) for row in range(len(column))]
    return local


def _plain_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        return [_value(*each) for each in zip(column, plain(column).to_pylist(), strict=True)]
    return values


def _value(scalar: pa.Scalar, text: str | None) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return text


def _local(column: pa.Array | pa.ChunkedArray, time_zone: str) -> pa.Array | pa.ChunkedArray:
    micros = column.cast(pa.timestamp("us", column.type.tz), safe=False) if column.type.unit == "ns" else column
    if time_zone in _UTC:
        return micros
    return pc.local_timestamp(pc.assume_timezone(micros, "UTC").cast(pa.timestamp(micros.type.unit, time_zone)))


def _one(column: pa.Array | pa.ChunkedArray, row: int, time_zone: str) -> Any:
    part = column.slice(row, 1)
    try:
        return _local(part, time_zone).to_pylist()[0]
    except (ValueError, OverflowError):
        return part.cast(pa.int64()).to_pylist()[0]
