"""The task of an ingest: reads messages of some partitions, makes rows of them, and has the dnode write these."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.common.connection import OpenedConnection
from penstock.common.errors import PenstockError
from penstock.tasks.dropped.dead_letter_writer import DeadLetters
from penstock.tasks.external.connectors.consumers import avro_reader
from penstock.tasks.external.connectors.incoming_messages import Consumer, MessageBatch, MessagePosition, Positions
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.ingest.message_mapping import MessageMapper, Refused
from penstock.tasks.operators.base_task import ROWS_TOTAL, BaseTask
from penstock.tasks.operators.stream_task import TaskEnvironment
from penstock.tasks.protocol.deployment import IngestDeployment
from penstock.tasks.protocol.messages import (
    Block,
    CheckpointCommitted,
    DeadRow,
    Delivered,
    DroppedRow,
    Pause,
    ResultWrite,
    Resume,
    StartCheckpoint,
    TaskEvent,
    TaskId,
    UseConnection,
)
from penstock.tasks.protocol.store_requests import NamesRequest
from penstock.tasks.protocol.task_status import (
    ConnectionHealth,
    ConnectionStatus,
    IngestProgress,
    LateRows,
    TaskProgress,
    TaskStatus,
)

_WRITES_UNDER_WAY = 2
_POLL_MESSAGES = 20_000
_WRITE_MESSAGES = 20_000
_WRITE_ARRAYS = 200
_IDLE_POLL_S = 0.01
_HOLD_AFTER_S = 1.0
"""So long a full queue may last before the source is told to send nothing; it is not for every moment of it."""
_RETRY_S = (0.5, 30.0)
"""How long is waited, at first and at most, before a consumer is opened again that couldn't be."""
_SHOWN_BYTES = 200
_NO_DATA = pa.record_batch([pa.nulls(0, pa.uint8())], names=["_"])


@dataclass(frozen=True, slots=True)
class MessageBlock(Block):
    """Messages, as the input queue of an ingest's task holds them; `data` is not used."""

    batch: MessageBatch | None = None


@dataclass(slots=True)
class _Handled:
    """Messages that were read and handed on: `write` is the number of the last write that they need."""

    batch: MessageBatch
    write: int
    dead: bool
    rows: int


class IngestTask(BaseTask):
    """One task of an ingest, with its share of the partitions.

    Its position in a partition is behind the last message that is in the vnodes' logs, or left out for good. From a
    checkpoint on it reads again what it may not have written; the vnodes leave out what they have. A source that can't
    go back gets to know of each message that is done with, and sends the others again if it can.
    """

    def __init__(self, deployment: IngestDeployment, index: int, environment: TaskEnvironment) -> None:
        super().__init__(TaskId(deployment.stream_id, "source", index), deployment, environment)
        plan = self._plan = deployment.plan
        self._deployment = deployment
        self.input: ChannelQueue[TaskId] = ChannelQueue(self._settings.queue_bytes, [self.id], environment.wake)
        self.output: ChannelQueue[TaskId] | None = None
        self._paused = deployment.paused
        self._consumer: Consumer | None = None
        self._problem: PenstockError | None = None
        self._retry_at: float | None = None
        self._retry_s = _RETRY_S[0]
        self._full_since: float | None = None
        self._held = False
        self._rest: MessageBatch | None = None  # of a block, what a message is in the way of
        self._stuck = ""
        self._handled: deque[_Handled] = deque()
        self._submitted = self._acknowledged = 0
        self._checkpoints: deque[int] = deque()
        self._begun = 0
        self._positions: dict[str, MessagePosition] = {}
        self._noted: dict[int, dict[str, MessagePosition]] = {}
        self._polled: deque[MessageBatch] = deque()
        self._rows_in = self._rows_before = 0
        self._bytes_in = self._rows_out = self._errors = self._unknown = self._messages = 0
        self._last_refused = ""
        meta = self._restore_store(deployment.checkpoint_id)
        if meta is not None:
            self._restore(meta)
        # Where "latest" is must be known for good before anything of it is written.
        self._may_read = not plan.from_latest or bool(self._positions)
        try:
            self._mapper = MessageMapper(
                plan, self._clock.now_ms, avro_reader(plan.schema) if plan.format == "avro" else None,
                self._foreign_names)
        except PenstockError:
            self._release()
            raise
        self._writer = environment.result_writer(self.id)
        self._dead = None if plan.dlq is None else DeadLetters(
            plan.dlq, deployment.stream_id, deployment.name, self._attempt, self.id, index, plan.precision,
            environment.result_writer(self.id))

    def _foreign_names(self, names: Sequence[str]) -> Sequence[str]:
        found: list[str] = self._environment.ask(
            NamesRequest(self._plan.target_uid, tuple(names))).column(0).to_pylist()
        return found

    def _restore(self, meta: Mapping[str, Any]) -> None:
        self._rows_before = meta[ROWS_TOTAL] or 0
        self._positions = {name: MessagePosition(*position) for name, *position in meta["positions"]}
        self._bytes_in, self._rows_out, self._errors, self._unknown = meta["counts"]
        self._messages = meta["messages"]
        self._last_refused = meta["last_refused"]

    # -- what the runtime calls ------------------------------------------------------------------------------

    def step(self) -> bool:
        progressed = self._handle_events()
        if self._dead is not None:
            progressed |= self._dead.step()
        progressed |= self._finish()
        if self._checkpoints:
            if self._handled:
                self._tracker.enter("WRITING", "waits for the dnode to acknowledge rows, before a checkpoint")
                return progressed
            checkpoint_id = self._checkpoints.popleft()
            self._checkpoint(checkpoint_id, None)
            self._noted[checkpoint_id] = dict(self._positions)
            return True
        if self._paused:
            self._hold(True)
            self._tracker.enter("PAUSED", "paused by PAUSE INGEST")
            return progressed
        if self._stuck:
            self._hold(True)
            self._tracker.enter("FAILED", self._stuck)
            return progressed
        consumer = self._opened()
        if consumer is None:
            return progressed
        progressed |= self._read(consumer)
        if self._submitted - self._acknowledged < _WRITES_UNDER_WAY and not (
                self._dead is not None and self._dead.full):
            progressed |= self._work()
        self._enter_state(progressed)
        return progressed

    def next_deadline(self) -> float | None:
        if self._paused or self._stuck:
            return None
        return self._retry_at if self._consumer is None else self._clock.monotonic() + _IDLE_POLL_S

    def status(self) -> TaskStatus:
        lag = None if self._consumer is None else self._consumer.lag()
        return self._status(
            TaskProgress(self._rows_in, self._rows_out, self._bytes_in), late=LateRows(error_rows=self._errors),
            ingest=IngestProgress(self._messages, lag, self._unknown, self._last_refused),
            connection=ConnectionStatus(health=self._health()))

    def _health(self) -> ConnectionHealth | None:
        connection, state = self._deployment.connection, self._tracker.current
        if state.name == "RETRYING":
            return ConnectionHealth(connection.name, connection.version, state.reason)
        if self._paused or self._consumer is None or not self._consumer.reached():
            return None
        return ConnectionHealth(connection.name, connection.version)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        super().close()

    # -- reading ---------------------------------------------------------------------------------------------

    def _opened(self) -> Consumer | None:
        """Returns the consumer; None while there is none, which is tried again later."""
        if self._consumer is not None:
            return self._consumer
        now = self._clock.monotonic()
        if self._retry_at is not None and now < self._retry_at:
            return None
        try:
            self._consumer = self._environment.open_consumer(self._deployment, self.id.index, dict(self._positions))
        except PenstockError as error:
            self._problem = error
            self._retry_at = now + self._retry_s
            self._retry_s = min(2 * self._retry_s, _RETRY_S[1])
            self._tracker.enter("RETRYING", _text_of(error))
            return None
        self._retry_at, self._retry_s, self._problem = None, _RETRY_S[0], None
        return self._consumer

    def _read(self, consumer: Consumer) -> bool:
        """Fills the input queue; returns whether anything came."""
        came = False
        if not self._polled:
            self._polled.extend(consumer.poll(_POLL_MESSAGES))
        while self._polled and self._may_read:
            batch = self._polled[0]
            if not self.input.try_put(self.id, MessageBlock(_NO_DATA, batch.nbytes, batch)):
                break
            self._polled.popleft()
            came = True
        self._regulate()
        return came

    def _regulate(self) -> None:
        """Has the source send nothing once the queue has been full for a while, and send again when there is room."""
        if not self._polled:
            self._full_since = None
            self._hold(False)
            return
        now = self._clock.monotonic()
        self._full_since = now if self._full_since is None else self._full_since
        if now - self._full_since >= _HOLD_AFTER_S:
            self._hold(True)

    def _hold(self, held: bool) -> None:
        if self._consumer is not None and held != self._held:
            self._consumer.hold(held)
            self._held = held

    def _enter_state(self, progressed: bool) -> None:
        problem = None if self._consumer is None else self._consumer.problem()
        if problem is not None and not progressed:
            self._tracker.enter("RETRYING", _text_of(problem))
        elif self._consumer is not None and not self._consumer.reached():
            self._tracker.enter("STARTING", f"waits for {self._deployment.connection.name} to answer")
        elif not self._may_read:
            self._tracker.enter("STARTING", "waits for the checkpoint that notes where it begins")
        elif self._handled and not progressed:
            self._tracker.enter("WRITING", "waits for the dnode to acknowledge a write")
        elif progressed:
            self._tracker.enter("RUNNING")
        elif not self._handled:
            self._tracker.enter("IDLE", "nothing has come that isn't written")

    # -- writing ---------------------------------------------------------------------------------------------

    def _work(self) -> bool:
        """Makes one write of what was read; returns whether there was anything."""
        batch, self._rest = self._rest, None
        if batch is None:
            item = self.input.take(self.id)
            if not isinstance(item, MessageBlock) or item.batch is None:
                return False
            batch = item.batch
        limit = _WRITE_MESSAGES if self._plan.array is None else _WRITE_ARRAYS
        if len(batch) > limit:
            batch, self._rest = batch.part(0, limit), batch.part(limit, len(batch))
        self._convert(batch)
        return True

    def _convert(self, batch: MessageBatch) -> None:
        converted = self._mapper.convert(batch)
        if converted.refused and self._plan.on_error == "fail":
            first = converted.refused[0]
            rest = batch.part(first.place, len(batch))
            self._last_refused = f"{_where(batch, first.place)}: {first.reason}"
            self._stuck = f"{self._last_refused}; ALTER INGEST ... ON_ERROR SKIP or DLQ leaves such messages out"
            self._rest = rest if self._rest is None else _joined(rest, self._rest)
            batch = batch.part(0, first.place)
            if not len(batch):
                return
            converted = self._mapper.convert(batch)
        for refused in converted.refused:
            self._leave_out(batch, refused)
        rows = converted.rows
        if rows.num_rows:
            delivered = (Delivered(batch.partition, batch.segment)
                         if self._consumer is not None and self._consumer.replays else None)
            self._writer.submit(ResultWrite(self.id.stream_id, self._attempt, self.id, self._plan.target_uid,
                                            self._mapper.children, rows, delivered))
            self._submitted += 1
        self._messages += len(batch)
        self._unknown += converted.unknown
        self._rows_in += rows.num_rows
        self._bytes_in += batch.nbytes
        self._handled.append(_Handled(batch, self._submitted, bool(converted.refused), rows.num_rows))

    def _leave_out(self, batch: MessageBatch, refused: Refused) -> None:
        where = _where(batch, refused.place)
        self._errors += 1
        self._last_refused = f"{where}: {refused.reason}: {_shown(_content(batch, refused))}"
        if self._dead is not None:
            self._dead.add([self._dead_row(batch, refused, where)])

    def _dead_row(self, batch: MessageBatch, refused: Refused, where: str) -> DeadRow:
        """Returns the line of the DLQ for a message; the same message gives the same line again."""
        place = refused.place
        offset, at_ms, content = batch.offsets[place], batch.times_ms[place], _content(batch, refused)
        element = () if refused.element is None else (refused.element,)
        name = repr((batch.partition, batch.segment, offset, *element)).encode()
        number = int.from_bytes(hashlib.blake2b(name, digest_size=7).digest(), "big")
        row = DroppedRow(0, at_ms * self._per_ms, 0, "error", offset, at_ms)
        return DeadRow(row, number, batch.topic(place)[:190], f"{where}: {refused.reason}", _text(content))

    @property
    def _per_ms(self) -> int:
        return {"ms": 1, "us": 1_000, "ns": 1_000_000}[self._plan.precision]

    def _finish(self) -> bool:
        """Notes what is in the logs by now; returns whether anything is. Raises what a write failed with."""
        self._acknowledged = self._writer.acknowledged()
        finished = False
        while self._handled and self._handled[0].write <= self._acknowledged and not (
                self._handled[0].dead and self._dead is not None and not self._dead.settled):
            handled = self._handled.popleft()
            batch = handled.batch
            self._rows_out += handled.rows
            if self._consumer is not None:
                if self._consumer.replays:
                    self._positions[batch.partition] = MessagePosition(batch.segment, batch.next_offset, batch.mark)
                self._consumer.done(batch)
            finished = True
        return finished

    # -- checkpoints and events ------------------------------------------------------------------------------

    def _handle(self, event: TaskEvent) -> None:
        match event:
            case StartCheckpoint(checkpoint_id):
                if checkpoint_id > self._begun:
                    self._begun = checkpoint_id
                    self._checkpoints.append(checkpoint_id)
            case Pause():
                self._paused = True
            case Resume():
                self._paused = False
                self._stuck = ""
                self._retry_at = None
                if self._consumer is not None and self._consumer.problem() is not None:
                    self._reopen(self._deployment.connection)
            case UseConnection(connection):
                self._reopen(connection)
            case CheckpointCommitted(checkpoint_id):
                super()._handle(event)
                self._note_committed(checkpoint_id)
            case _:
                super()._handle(event)

    def _reopen(self, connection: OpenedConnection) -> None:
        """Reads by other options from now on; what wasn't handed on yet comes again."""
        self._deployment = replace(self._deployment, connection=connection)
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        self._polled.clear()
        self._rest = None
        while self.input.take(self.id) is not None:
            pass
        self._retry_at, self._retry_s, self._held = None, _RETRY_S[0], False

    def _note_committed(self, checkpoint_id: int) -> None:
        positions = self._noted.pop(checkpoint_id, None)
        for older in [one for one in self._noted if one < checkpoint_id]:
            del self._noted[older]
        if positions and self._consumer is not None:
            self._may_read = True
            self._consumer.committed(positions)

    def _abandon(self, checkpoint_id: int) -> None:
        if checkpoint_id in self._checkpoints:
            self._checkpoints.remove(checkpoint_id)
        self._noted.pop(checkpoint_id, None)

    def _begin_partitions(self, begun: Positions) -> None:
        """Notes where partitions begin, those that do so anew when all that came of them before is written."""
        all_written = not self._polled and self._rest is None and not self.input.used_bytes
        for partition, position in begun.items():
            known = self._positions.get(partition)
            if known is None:
                self._positions[partition] = position
            elif position.segment > known.segment and all_written:
                self._positions[partition] = position
                self._last_refused = (f"partition {partition} was made anew, and is read from its beginning: what came "
                                      f"in the one before from offset {known.offset} on was not read")

    @property
    def _rows_total(self) -> int:
        return self._rows_before + self._rows_in

    def _state(self) -> Mapping[str, Any]:
        if self._consumer is not None:
            self._begin_partitions(self._consumer.begun())
        return {"positions": [[name, *position] for name, position in self._positions.items()],
                "counts": [self._bytes_in, self._rows_out, self._errors, self._unknown],
                "messages": self._messages, "last_refused": self._last_refused}


def _text_of(error: PenstockError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


def _where(batch: MessageBatch, place: int) -> str:
    """Returns where a message is, as people look for it."""
    if batch.segment and batch.segment == batch.topic(place):  # a file
        return f"{batch.segment}, byte {batch.offsets[place]}"
    if batch.receipts:
        return f"topic {batch.topic(place)}"
    return f"partition {batch.partition}, offset {batch.offsets[place]}"


def _content(batch: MessageBatch, refused: Refused) -> bytes:
    return batch.values[refused.place] if refused.content is None else refused.content


def _joined(first: MessageBatch, second: MessageBatch) -> MessageBatch:
    """Returns two parts of one batch that follow each other as one."""
    topics = first.topics if isinstance(first.topics, str) else [*first.topics, *second.topics]
    keys = None if first.keys is None or second.keys is None else [*first.keys, *second.keys]
    return MessageBatch(first.partition, first.segment, [*first.offsets, *second.offsets],
                        [*first.values, *second.values], [*first.times_ms, *second.times_ms], topics, keys,
                        [*first.receipts, *second.receipts], second.end, first.timed and second.timed)


def _shown(content: bytes) -> str:
    text = _text(content[:_SHOWN_BYTES])
    return text if len(content) <= _SHOWN_BYTES else f"{text}..."


def _text(content: bytes) -> str:
    """Returns a message as text; bytes that are none are escaped."""
    return content[:7_900].decode(errors="backslashreplace")[:7_900]
