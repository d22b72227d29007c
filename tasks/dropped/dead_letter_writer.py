"""Writes rows that a source task leaves out to the stream's DLQ table. Writing one again changes nothing."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.planner.streams.dead_letters import CONTENT_BYTES, MESSAGE_BYTES, dlq_columns
from penstock.planner.task_plans.column_names import CHILD, OPERATION
from penstock.planner.task_plans.stream_plan import DlqPlan, StreamPlan
from penstock.sql.types import UNITS_PER_SECOND, Precision
from penstock.tasks.protocol.messages import DeadRow, DroppedRow, ResultWrite, TaskId
from penstock.tasks.protocol.numbered_children import NumberedChildren, ResultChild
from penstock.tasks.protocol.result_writers import ResultWriter
from penstock.wal.record import RowsRecord

WAITING_MAX = 5_000
_ROWS_PER_WRITE = 1_000
_NUMBER_BITS = 24


class DeadLetters:
    """The writing side of one source task's DLQ. At most one write is under way."""

    def __init__(self, plan: DlqPlan, stream_id: int, stream: str, attempt: int, task: TaskId, vgroup_id: int,
                 precision: Precision, writer: ResultWriter) -> None:
        self._plan = plan
        self._stream_id = stream_id
        self._attempt = attempt
        self._task = task
        self._children = NumberedChildren.of([ResultChild(f"dlq_{stream_id:x}_{vgroup_id}", (stream, vgroup_id))])
        self._columns = dlq_columns(precision)
        self._per_ms = UNITS_PER_SECOND[precision] // 1_000
        self._writer = writer
        self._waiting: deque[DeadRow] = deque()
        self._submitted = 0

    @property
    def settled(self) -> bool:
        """Whether all rows are written and acknowledged."""
        return not self._waiting and self._writer.acknowledged() == self._submitted

    @property
    def full(self) -> bool:
        """Whether no more rows should be taken until some of those that wait are written."""
        return len(self._waiting) >= WAITING_MAX

    def add(self, rows: Iterable[DeadRow]) -> None:
        self._waiting.extend(rows)

    def step(self) -> bool:
        """Submits the next write, if none is under way; returns whether it did. Raises what a write failed with."""
        if not self._waiting or self._writer.acknowledged() < self._submitted:
            return False
        rows = [self._waiting.popleft() for _ in range(min(_ROWS_PER_WRITE, len(self._waiting)))]
        self._writer.submit(ResultWrite(self._stream_id, self._attempt, self._task, self._plan.target_uid,
                                        self._children, self._batch(rows)))
        self._submitted += 1
        return True

    def _batch(self, rows: Sequence[DeadRow]) -> pa.RecordBatch:
        values = [(row.row.ingest_time_ms * self._per_ms, row.id, row.row.ts, _text(row.table), row.row.reason,
                   _cut(row.message, MESSAGE_BYTES), row.row.version, row.attempts, "dead",
                   _text(row.content)) for row in rows]
        arrays = [pa.array(column, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.array(column, kind)
                  for column, kind in zip(zip(*values, strict=True), (c.type.arrow() for c in self._columns),
                                          strict=True)]
        count = len(rows)
        return pa.RecordBatch.from_arrays(
            [pa.array(np.zeros(count, np.int32)), pa.array(np.zeros(count, np.uint8)), *arrays],
            names=[CHILD, OPERATION, *(column.name for column in self._columns)])


def _text(text: str) -> str:
    """Returns a text that can be stored: halves of surrogate pairs are escaped."""
    return text.encode(errors="backslashreplace").decode()


def _cut(text: str, size: int) -> str:
    return text.encode(errors="backslashreplace")[:size].decode(errors="ignore")


def retried(row: DeadRow, message: str) -> DeadRow:
    """Returns a row that failed once more."""
    return replace(row, attempts=row.attempts + 1, message=message)


def dead_to_json(row: DeadRow) -> dict[str, Any]:
    return asdict(row)


def dead_from_json(value: dict[str, Any]) -> DeadRow:
    return DeadRow(**{**value, "row": DroppedRow(**value["row"])})


def dead_rows(
    rows: Sequence[DroppedRow], records: Sequence[RowsRecord], plan: StreamPlan, names: dict[int, str], message: str
) -> list[DeadRow]:
    """Returns rows with their content, which is looked up in the records that they came with.

    Of rows of no record, such as those from before the stream, only the key is known.
    """
    assert plan.dlq is not None
    by_version = {record.version: record.batch for record in records}
    found = []
    for row in rows:
        table = names.get(row.tuid, plan.source.table)
        batch = by_version.get(row.version)
        if batch is None:
            found.append(DeadRow(row, _id_of_key(row), table, message, _content_of_key(row, plan.dlq)))
            continue
        number = _place(row, batch, plan)
        content = content_of(_content(batch, number, plan.dlq))
        found.append(DeadRow(row, row.version << _NUMBER_BITS | number, table, message, content))
    return found


def _place(row: DroppedRow, batch: pa.RecordBatch, plan: StreamPlan) -> int:
    """Returns the number of a row in the record that it came with."""
    tuids, times = batch.column("_tuid").to_numpy(), batch.column(1).view(pa.int64()).to_numpy()
    places = np.flatnonzero((tuids == row.tuid) & (times == row.ts)).tolist()
    if row.key is not None:
        second = batch.column(2)
        places = [place for place in places if second[place].as_py() == row.key]
    return int(places[0])


def _content_of_key(row: DroppedRow, plan: DlqPlan) -> str:
    key = {plan.columns[0].name: row.ts}
    return content_of(key if row.key is None else {**key, plan.columns[1].name: row.key})


def content_of(values: dict[str, Any]) -> str:
    """Returns values as a DLQ table shows them: as JSON, without the last ones if they don't fit."""
    text = json.dumps(values, default=str, ensure_ascii=False)
    if len(text.encode()) <= CONTENT_BYTES:
        return text
    return content_of(dict(list(values.items())[:-1]))


def _id_of_key(row: DroppedRow) -> int:
    return _hashed(row.tuid, row.ts, row.key)


def id_of_result(table: str, ts: int) -> int:
    """Returns a number that tells a result from others, however often it is computed."""
    return _hashed(table, ts)


def _hashed(*parts: object) -> int:
    """Returns a number that no row of a record has."""
    return -1 - int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=7).digest(), "big")


def _content(batch: pa.RecordBatch, number: int, plan: DlqPlan) -> dict[str, object]:
    values: dict[str, object] = {}
    for column in plan.columns:
        if column.physical in batch.schema.names:
            value = batch.column(column.physical)[number]
            values[column.name] = value.value if isinstance(value, pa.TimestampScalar) else value.as_py()
    return values
