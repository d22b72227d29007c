"""Rows of a result as JSON arrays, piece by piece, so that a large result isn't there twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.responsiveness import one_at_a_time
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.sql.types import DataType, Kind

_ROWS = 4096
_FEW_ROWS = 100
_INSTANT, _LOCAL_INSTANT = "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S%Ez"


@dataclass(frozen=True, slots=True)
class RowStyle:
    """How rows are written. `time_zone`: that of instants, an IANA name, None for numbers since the epoch in the unit
    of the column. `as_objects`: rows are objects, not arrays.
    """

    time_zone: str | None = "UTC"
    as_objects: bool = False


UTC_ROWS = RowStyle()


def column_meta(columns: Sequence[ResultColumn], width: Callable[[DataType], int]) -> list[list[str | int]]:
    """Returns name, type and length of each column; `width` gives the last."""
    return [[column.name, str(column.type.kind), width(column.type)] for column in columns]


def json_rows(
    columns: Sequence[ResultColumn], batches: Iterable[pa.RecordBatch], style: RowStyle = UTC_ROWS
) -> Iterator[bytes]:
    """Yields the rows as JSON with commas between them, some thousand at a time.

    Instants are text, as RFC 3339 has it; binaries are hexadecimal, decimals text, NaN and infinity null.
    """
    names = [column.name for column in columns]
    comma = ""
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS):
            part = batch.slice(start, _ROWS)
            with one_at_a_time(unless=part.num_rows < _FEW_ROWS):
                values = [_values(part.column(place), column.type, style) for place, column in enumerate(columns)]
                rows: list[Any] = list(zip(*values, strict=True))
                if style.as_objects:
                    rows = [dict(zip(names, row, strict=True)) for row in rows]
                text = json.dumps(rows, ensure_ascii=False, separators=(",", ":"),
                                  allow_nan=False, check_circular=False)
            yield (comma + text[1:-1]).encode()
            comma = ",\n"


def _values(column: pa.Array, kind: DataType, style: RowStyle) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        return _instants(column, style.time_zone)
    if pa.types.is_floating(column.type):
        finite = pc.if_else(pc.is_finite(column), column, None)
        if kind.kind is Kind.FLOAT:  # 0.1, not 0.10000000149011612
            return [None if text is None else float(text) for text in finite.cast(pa.string()).to_pylist()]
        return finite.to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_decimal(column.type):
        return column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
    values: list[Any] = column.to_pylist()
    return [None if value is None else value.hex() for value in values] if pa.types.is_binary(column.type) else values


def _instants(column: pa.Array, time_zone: str | None) -> list[Any]:
    if time_zone is None:
        return column.view(pa.int64()).to_pylist()  # type: ignore[no-any-return]
    if time_zone == "UTC":
        return pc.strftime(column, _INSTANT).to_pylist()  # type: ignore[no-any-return]
    local = pc.assume_timezone(column, "UTC").cast(pa.timestamp(column.type.unit, time_zone))
    return pc.strftime(local, _LOCAL_INSTANT).to_pylist()  # type: ignore[no-any-return]
