"""The task of a stream of any query whose results leave Penstock: what differs from what was sent is sent."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.arrow_data import one_array
from penstock.planner.task_plans.column_names import CHILD, OPERATION
from penstock.sql.rows.keyed_rows import equal_values, key_texts
from penstock.sql.schema import Column
from penstock.tasks.external.emit.external_writers import ExternalWriter
from penstock.tasks.flow.outbox import Outbox
from penstock.tasks.operators.stream_task import TaskEnvironment
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import CheckpointCommitted, ResultWrite, Resume, TaskEvent, TaskId, UseConnection
from penstock.tasks.protocol.numbered_children import NumberedChildren
from penstock.tasks.protocol.refreshing import AnswerRequest, Refreshed, RefreshRequest
from penstock.tasks.protocol.result_writers import TransactionalWriter
from penstock.tasks.protocol.task_status import ConnectionHealth, ConnectionStatus, TaskProgress, TaskStatus
from penstock.tasks.refresh.refresh_task import RefreshTask, rest_after
from penstock.tasks.state.stored_values import pack_batch, unpack_batch

_PREFIX, _PREFIX_END = b"row/", b"row0"
_PARTS = 1 << 10
"""What was sent is stored in so many parts, by hash of the KEY: a checkpoint stores those that have changed."""
_WRITE_ROWS = 10_000
_NO_CHILDREN = NumberedChildren()

_Numbers = npt.NDArray[np.int64]


class EmitTask(RefreshTask):
    """Keeps the rows that it has sent, and with each checkpoint sends where the newest answer differs from them.

    Rows leave once their checkpoint is valid. So whatever is killed when, the task knows all that the target may have,
    and takes back what the answer has no more.
    """

    def __init__(
        self, deployment: StreamDeployment, index: int, upstream: Sequence[TaskId], environment: TaskEnvironment
    ) -> None:
        columns = deployment.plan.sink.columns
        self._deployment = deployment
        self._connection = deployment.connection
        self._columns = columns
        self._schema = pa.schema([(column.name, column.type.arrow()) for column in columns])
        self._sent = _SentRows(columns, pa.RecordBatch.from_arrays(
            [pa.array([], field.type) for field in self._schema], schema=self._schema), np.zeros(0, np.int64))
        self._changed_parts: set[int] = set()  # of what was sent, since the last checkpoint
        self._newest: pa.RecordBatch | None = None  # the last answer, while it isn't compared
        self._submitted = self._acknowledged = 0
        self._delivered_before = 0  # rows, by other options of the connection
        super().__init__(deployment, index, upstream, environment)

    def _restore(self, checkpoint_id: int | None) -> None:
        writer = self._environment.external_writer(self.id, self._deployment, self._store)
        assert isinstance(writer, TransactionalWriter)
        self._external: ExternalWriter = writer
        self._transactions: TransactionalWriter = writer
        meta = self._restore_store(checkpoint_id)
        if meta is not None:
            self._external.restore(meta["external"])
            stored = [unpack_batch(value, self._schema, f"part {key!r} of what was sent")
                      for key, value in self._store.between(_PREFIX, _PREFIX_END)]
            if stored:
                rows = pa.concat_batches(stored)
                self._sent = _SentRows(self._columns, rows, _parts_of(_keys_of(self._columns, rows)))
        self._transactions.recover(checkpoint_id)

    # -- what the runtime calls ------------------------------------------------------------------------------

    def step(self) -> bool:
        acknowledged = self._external.acknowledged()
        progressed, self._acknowledged = acknowledged > self._acknowledged, acknowledged
        return super().step() or progressed

    def _rest(self) -> None:
        outage = self._external.outage
        if outage is None:
            super()._rest()
        else:
            self._tracker.enter("RETRYING", str(outage))

    def next_deadline(self) -> float | None:
        return min((at for at in (super().next_deadline(), self._external.next_try) if at is not None), default=None)

    def status(self) -> TaskStatus:
        outage, connection = self._external.outage, self._connection
        health = None
        if connection is not None and (outage is not None or (
                self._rows_out > self._delivered_before and not self._external.undelivered)):
            health = ConnectionHealth(connection.name, connection.version, "" if outage is None else str(outage))
        return self._status(TaskProgress(self._rows_in, self._rows_out),
                            connection=ConnectionStatus(None if outage is None else outage.since_ms, health))

    @property
    def _table_bytes(self) -> int:
        return self._sent.nbytes

    @property
    def _has_unwritten(self) -> bool:
        return super()._has_unwritten or self._newest is not None or self._external.undelivered

    def close(self) -> None:
        self._external.close()
        super().close()

    # -- answers, and what of them is sent -----------------------------------------------------------------------

    def _ask(self, request: RefreshRequest) -> pa.Table:
        return self._environment.ask(AnswerRequest(self.id.stream_id, self._attempt))

    def _done(self, answer: pa.Table, took: float) -> Refreshed:
        self._newest = pa.RecordBatch.from_arrays(
            [one_array(answer.column(field.name)) for field in self._schema], schema=self._schema)
        return Refreshed(0, rest_after(took))

    def _send_differences(self) -> None:
        """Hands over where the newest answer differs from what was sent, unless too much waits for the target."""
        if self._newest is None or self._acknowledged < self._submitted:
            return
        newest, self._newest = self._newest, None
        difference = self._sent.compared(newest)
        self._sent = difference.sent
        self._changed_parts |= difference.parts
        for operation, rows in ((1, difference.gone), (0, difference.changed)):
            for first in range(0, rows.num_rows, _WRITE_ROWS):
                part = rows.slice(first, _WRITE_ROWS)
                head = [pa.array(np.zeros(part.num_rows, np.int32)),
                        pa.array(np.full(part.num_rows, operation, np.uint8))]
                self._external.submit(ResultWrite(
                    self.id.stream_id, self._attempt, self.id, self._plan.sink.target_uid, _NO_CHILDREN,
                    pa.RecordBatch.from_arrays([*head, *part.columns], names=[CHILD, OPERATION, *self._schema.names])))
                self._submitted += 1
                self._rows_out += part.num_rows

    def _checkpoint(self, checkpoint_id: int, outbox: Outbox | None, version: int | None = None) -> None:
        self._send_differences()
        self._transactions.prepare(checkpoint_id)
        super()._checkpoint(checkpoint_id, outbox, version)

    def _state(self) -> Mapping[str, Any]:
        stored: list[tuple[bytes, bytes | None]] = []
        for part in sorted(self._changed_parts):
            rows = self._sent.of_part(part)
            stored.append((_PREFIX + part.to_bytes(2, "big"), pack_batch(rows) if rows.num_rows else None))
        self._store.put_many(stored)
        self._changed_parts.clear()
        return {"external": self._external.save()}

    def _handle(self, event: TaskEvent) -> None:
        super()._handle(event)
        match event:
            case CheckpointCommitted(checkpoint_id):
                self._transactions.commit(checkpoint_id)
            case UseConnection(connection) if connection.name == self._plan.sink.database:
                self._external.use(connection)
                self._connection, self._delivered_before = connection, self._rows_out
            case Resume():
                self._external.try_now()


@dataclass(frozen=True, slots=True)
class _Difference:
    """What is to be sent, in which parts of what was sent it lies, and what was sent then."""

    gone: pa.RecordBatch
    changed: pa.RecordBatch
    parts: frozenset[int]
    sent: _SentRows


class _SentRows:
    """Rows that a target has, or is about to have, told apart by their KEY. `parts`: where each of them is stored."""

    def __init__(self, columns: Sequence[Column], rows: pa.RecordBatch, parts: _Numbers) -> None:
        self._columns = columns
        self._rows = rows
        self._keys = _keys_of(columns, rows)
        self._parts = parts
        self._order: _Numbers | None = None

    @property
    def nbytes(self) -> int:
        return int(self._rows.nbytes + self._keys.nbytes + self._parts.nbytes)

    def compared(self, wanted: pa.RecordBatch) -> _Difference:
        keys = _keys_of(self._columns, wanted)
        places = pc.index_in(keys, value_set=self._keys)
        known = places.is_valid().to_numpy(zero_copy_only=False)
        counterparts = self._rows.take(places)
        same = known.copy()
        for new, old in zip(wanted.columns, counterparts.columns, strict=True):
            same &= equal_values(new, old)
        changed = ~same
        gone = pc.invert(pc.is_in(self._keys, value_set=keys)).to_numpy(zero_copy_only=False)
        parts = np.zeros(wanted.num_rows, np.int64)
        parts[known] = self._parts[places.drop_null().to_numpy()]
        parts[~known] = _parts_of(keys.filter(pa.array(~known)))
        touched = frozenset([*parts[changed].tolist(), *self._parts[gone].tolist()])
        return _Difference(self._rows.filter(pa.array(gone)), wanted.filter(pa.array(changed)), touched,
                           _SentRows(self._columns, wanted, parts))

    def of_part(self, part: int) -> pa.RecordBatch:
        if self._order is None:
            self._order = np.argsort(self._parts, kind="stable")
            self._parts_in_order = self._parts[self._order]
        first, stop = np.searchsorted(self._parts_in_order, [part, part + 1])
        return self._rows.take(pa.array(self._order[first:stop]))


def _keys_of(columns: Sequence[Column], rows: pa.RecordBatch) -> pa.StringArray:
    keys = [column for column in columns if column.primary_key]
    return key_texts([rows.column(key.name) for key in keys], [key.type.kind for key in keys])


def _parts_of(keys: pa.StringArray) -> _Numbers:
    return np.array([zlib.crc32(key) % _PARTS for key in keys.cast(pa.binary()).to_pylist()], np.int64)
