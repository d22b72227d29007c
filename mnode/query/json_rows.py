"""Rows of a result as JSON, piece by piece, so that a large result isn't there twice."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.duckdb_types import is_plain, json_values, plain
from penstock.common.quantities import MIB
from penstock.common.responsiveness import one_at_a_time

_ROWS = 4096
_FEW_ROWS = 100
_BYTES = 16 * MIB
_INSTANT, _LOCAL_INSTANT = "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S%Ez"


@dataclass(frozen=True, slots=True)
class RowStyle:
    """How rows are written. `time_zone`: that of instants, an IANA name, None for numbers since the epoch in the unit
    of the column. `as_objects`: rows are objects, not arrays. `nested`: lists and structs are arrays and objects, not
    text.
    """

    time_zone: str | None = "UTC"
    as_objects: bool = False
    nested: bool = True


UTC_ROWS = RowStyle()


@dataclass(frozen=True, slots=True)
class JsonRows:
    """Some rows: `text` has them with commas between them; `nbytes` is what they take as Arrow."""

    rows: int
    nbytes: int
    text: bytes


def json_rows(batches: Iterable[pa.RecordBatch], style: RowStyle = UTC_ROWS) -> Iterator[JsonRows]:
    """Yields the rows as JSON, some thousand at a time, and no more than some megabytes if that is more than one.

    Instants are text, as RFC 3339 has it; binaries are hexadecimal, decimals text, NaN and infinity null.
    """
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS):
            for part in small_parts(batch.slice(start, _ROWS)):
                yield JsonRows(part.num_rows, part.nbytes, _text(part, style))


def small_parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yields a batch in parts of some megabytes, or of one row."""
    if batch.nbytes <= _BYTES or batch.num_rows <= 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from small_parts(batch.slice(0, half))
    yield from small_parts(batch.slice(half))


def _text(part: pa.RecordBatch, style: RowStyle) -> bytes:
    with one_at_a_time(unless=part.num_rows < _FEW_ROWS):
        rows: list[Any] = list(zip(*(_values(column, style) for column in part.columns), strict=True))
        if style.as_objects:
            rows = [dict(zip(part.schema.names, row, strict=True)) for row in rows]
        text = json.dumps(rows, ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False)
    return text[1:-1].encode()


def _values(column: pa.Array, style: RowStyle) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        return _instants(column, style.time_zone)
    if pa.types.is_floating(column.type):
        finite = pc.if_else(pc.is_finite(column), column, None)
        if pa.types.is_float32(column.type):  # 0.1, not 0.10000000149011612
            return [None if text is None else float(text) for text in finite.cast(pa.string()).to_pylist()]
        return finite.to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_decimal(column.type):
        return column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
    if not is_plain(column.type):
        return json_values(column) if style.nested else plain(column).to_pylist()
    values: list[Any] = column.to_pylist()
    return [None if value is None else value.hex() for value in values] if pa.types.is_binary(column.type) else values


def _instants(column: pa.Array, time_zone: str | None) -> list[Any]:
    if time_zone is None:
        return column.view(pa.int64()).to_pylist()  # type: ignore[no-any-return]
    if time_zone == "UTC":
        return pc.strftime(column, _INSTANT).to_pylist()  # type: ignore[no-any-return]
    local = pc.assume_timezone(column, "UTC").cast(pa.timestamp(column.type.unit, time_zone))
    return pc.strftime(local, _LOCAL_INSTANT).to_pylist()  # type: ignore[no-any-return]
