"""Results as they leave Penstock: named rows, and events whose ids stay the same when they are sent again."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.planner.streams.external_sink import avro_schema
from penstock.planner.task_plans.column_names import OPERATION
from penstock.planner.task_plans.external_rows import DELETED, IDENTITY, external_columns, key_names
from penstock.planner.task_plans.stream_plan import SinkPlan
from penstock.sql.schema import Column
from penstock.sql.types import UNITS_PER_SECOND, Kind
from penstock.tasks.protocol.messages import ResultWrite
from penstock.tasks.protocol.numbered_children import NumberedChildren

UPSERT, DELETE = "upsert", "delete"
_DIGEST_BYTES = 12


@dataclass(frozen=True, slots=True)
class ResultEvent:
    """One result, or one that ceased to exist, as a message of its own.

    `key`: the values of the group, or the KEY by name, `values`: all columns by name (of a delete only those that name
    it). `id` is the same whenever the same comes again.
    """

    id: str
    operation: str
    key: tuple[Any, ...] | dict[str, Any]
    values: dict[str, Any]

    @property
    def named(self) -> dict[str, Any]:
        """The event's columns as they leave: operation and id first."""
        return {OPERATION: self.operation, IDENTITY: self.id, **self.values}


class ExternalRows:
    """Makes external rows of the writes of one sink task."""

    def __init__(self, sink: SinkPlan, stream: str) -> None:
        """`stream`: its name, which is part of every id."""
        self._sink = sink
        self._stream = stream
        self._tags = len(sink.tags)
        self.columns = external_columns(sink)
        self.schema = pa.schema([
            pa.field(OPERATION, pa.uint8()),
            *(pa.field(column.name, column.type.arrow()) for column in self.columns)])
        self.time_place = None if sink.by_key else self._tags
        """Which of the columns is the results' time; None: they have none, but a KEY."""
        self._of_delete = len(key_names(sink)) if sink.by_key else self._tags + 1
        self._tag_arrays: list[pa.Array] = []
        self._children = 0

    def of(self, write: ResultWrite) -> pa.RecordBatch:
        """Returns the rows of a write: `_op` (0 upsert, 1 delete of all at this time), then `columns`."""
        children = write.rows.column(0)
        if len(write.children) != self._children:
            self._tag_arrays = self._tags_of(write.children)
            self._children = len(write.children)
        operations = pa.array((write.rows.column(1).to_numpy() == DELETED).astype(np.uint8))
        tags = [values.take(children) for values in self._tag_arrays]
        rest = [write.rows.column(column.name) for column in self.columns[self._tags:]]
        return pa.RecordBatch.from_arrays([operations, *tags, *rest], schema=self.schema)

    def events(self, rows: pa.RecordBatch) -> Iterator[ResultEvent]:
        """Yields the events of rows that `of` made."""
        names = [column.name for column in self.columns]
        columns = [plain_values(rows.column(n), column) for n, column in enumerate(self.columns, 1)]
        for operation, *values in zip(rows.column(0).to_pylist(), *columns, strict=True):
            word, kept = (DELETE, values[:self._of_delete]) if operation else (UPSERT, values)
            found = dict(zip(names, kept, strict=False))
            digest = hashlib.blake2b(json_text([self._stream, word, found]).encode(), digest_size=_DIGEST_BYTES)
            key = dict(zip(names, values[:self._of_delete], strict=False)) if self._sink.by_key else values[:self._tags]
            yield ResultEvent(digest.hexdigest(), word, key if isinstance(key, dict) else tuple(key), found)

    def named(self, rows: pa.RecordBatch) -> pa.Table:
        """Returns rows for a file: `_op` and `_id` as text, then the columns; of a delete only those that name it."""
        events = list(self.events(rows))
        deleted = pa.array(rows.column(0).to_numpy() == DELETED)
        none = pa.scalar(None)
        arrays = [rows.column(n) if n <= self._of_delete or not any(deleted.to_pylist())
                  else pa.compute.if_else(deleted, none.cast(rows.column(n).type), rows.column(n))
                  for n in range(1, rows.num_columns)]
        return pa.table([pa.array([event.operation for event in events], pa.string()),
                         pa.array([event.id for event in events], pa.string()), *arrays],
                        names=[OPERATION, IDENTITY, *(column.name for column in self.columns)])

    def plain(self, rows: pa.RecordBatch) -> pa.Table:
        """Returns rows as `named`, with values as text formats have them."""
        names = [OPERATION, IDENTITY, *(column.name for column in self.columns)]
        found = [event.named for event in self.events(rows)]
        return pa.table({name: pa.array([event.get(name) for event in found]) for name in names})

    @property
    def avro_schema(self) -> dict[str, Any]:
        return avro_schema(self._sink)

    def records(self, rows: pa.RecordBatch) -> Iterator[tuple[ResultEvent, dict[str, Any]]]:
        """Yields the events of rows, each with its record of Avro: times are numbers, bytes are bytes."""
        names = [column.name for column in self.columns]
        columns = [_native_values(rows.column(n), column) for n, column in enumerate(self.columns, 1)]
        for event, *values in zip(self.events(rows), *columns, strict=True):
            found = dict(zip(names, values, strict=True)) if event.operation == UPSERT else {
                name: value for name, value in zip(names, values, strict=True) if name in event.values}
            yield event, {OPERATION: event.operation, IDENTITY: event.id, **found}

    def _tags_of(self, children: NumberedChildren) -> list[pa.Array]:
        arrays = []
        for n, tag in enumerate(self._sink.tags):
            values, kind = children.tags[n], tag.type.arrow()
            integers = tag.type.kind is Kind.TIMESTAMP
            arrays.append(pa.array(values, pa.int64()).cast(kind) if integers else pa.array(values, kind))
        return arrays


def json_text(value: object) -> str:
    """Returns compact JSON of values as `ResultEvent` has them."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _native_values(values: pa.Array, column: Column) -> list[Any]:
    if column.type.kind is Kind.TIMESTAMP:
        return list(values.view(pa.int64()).to_pylist())
    if column.type.kind is Kind.UBIGINT:
        return [None if one is None else Decimal(one) for one in values.to_pylist()]
    return list(values.to_pylist())


def plain_values(values: pa.Array, column: Column) -> list[Any]:
    """Returns values as JSON and CSV have them: times as text in UTC, bytes in base64, what isn't finite as None."""
    match column.type.kind:
        case Kind.TIMESTAMP:
            per_second = UNITS_PER_SECOND[column.type.precision]
            return [None if one is None else time_text(one, per_second) for one in values.view(pa.int64()).to_pylist()]
        case Kind.FLOAT | Kind.DOUBLE:
            return [None if one is None or not math.isfinite(one) else one for one in values.to_pylist()]
        case Kind.VARBINARY | Kind.GEOMETRY:
            return [None if one is None else base64.b64encode(one).decode() for one in values.to_pylist()]
        case Kind.DECIMAL:
            return [str(one) if isinstance(one, Decimal) else None for one in values.to_pylist()]
    return list(values.to_pylist())


def time_text(units: int, per_second: int) -> str:
    """Returns an instant as `2024-01-31T12:00:00.000Z`, with as many digits as the precision has."""
    seconds, rest = divmod(units, per_second)
    digits = len(str(per_second)) - 1
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:0{digits}d}Z"
