"""The sink task: turns result blocks into rate-limited, acknowledged writes, to the dnode or to an external target."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.common.errors import InternalError
from penstock.tasks.compute.id_table import Numbers
from penstock.tasks.external.emit.async_sink_writer import Outage
from penstock.tasks.external.emit.external_writers import ExternalWriter
from penstock.tasks.flow.inbox import Inbox
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.flow.token_bucket import TokenBucket, burst
from penstock.tasks.operators.base_task import ComputingTask
from penstock.tasks.operators.destinations import Destinations
from penstock.tasks.operators.stream_task import TaskEnvironment
from penstock.tasks.protocol.block_schema import OPENED, OPERATION
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import (
    Barrier,
    Block,
    CheckpointCommitted,
    ResultWrite,
    Resume,
    StartCheckpoint,
    TaskEvent,
    TaskId,
    UseConnection,
    Watermark,
)
from penstock.tasks.protocol.result_writers import QuietWriter, ResultWriter, TransactionalWriter
from penstock.tasks.protocol.task_status import (
    ConnectionHealth,
    ConnectionStatus,
    LateRows,
    NotifyCounts,
    StateSize,
    TaskProgress,
    TaskStatus,
)
from penstock.tasks.sink.calculating_writer import CalculatingWriter
from penstock.tasks.sink.in_flight_results import InFlightResults
from penstock.tasks.sink.new_tables import NewTables
from penstock.tasks.sink.refused_results import RefusedResults, dead_letters_of
from penstock.tasks.sink.result_rows import ResultRows

_SMALLEST_WRITE = 64 * 1024
#: Of so few, Arrow takes longer to find out exactly how many they are than a sink to make them ready.
_FEW_BYTES = 8 * 1024
# Evenly spaced under load; otherwise results that come at nearly the same time needn't wait for each other.
_CALLS_AT_ONCE_S = 0.1
_BYTES_AT_ONCE_S = 1.0
# One that the dnode performs and one on its way to it; more would only keep results from being merged.
_WRITES_UNDER_WAY = 2
_PATIENCE_S = 0.25
"""How long a checkpoint may wait for results to be written, before they become part of it instead."""
_IN_FLIGHT_QUEUES = 4
"""With as much as so many queues hold set aside, a checkpoint takes no more but waits until some of it is written."""


class SinkTask(ComputingTask):
    """One sink task. Few writes are under way; what waits for them stays in the bounded input queue.

    Writes are upserts and deletes by (child table, time), so writing them again after a restart changes nothing; a
    writer for which that isn't so takes them in transactions. They are performed in their order, and none behind one
    that failed.

    A checkpoint covers what is before its barriers: that is written by then. What a rate limit and full queues keep
    from being written soon becomes part of the sink's state instead, and is written as time allows. So a checkpoint
    takes as long as reading the queues, not as long as writing what is in them.
    """

    def __init__(
        self, deployment: StreamDeployment, index: int, upstream: Sequence[TaskId], environment: TaskEnvironment
    ) -> None:
        super().__init__(TaskId(deployment.stream_id, "sink", index), deployment, environment)
        plan, settings = deployment.plan, deployment.settings
        self.input = ChannelQueue(settings.queue_bytes, list(upstream), environment.wake)
        self.output: ChannelQueue[TaskId] | None = None
        self._attempt = deployment.attempt
        self._inbox = Inbox(self.input, aligned=plan.policies.guarantee == "exactly_once")
        self._destinations = Destinations(plan.sink, plan.grouping.keys, self._computer)
        self._result_rows = ResultRows(plan.sink, plan.sends_partials, each=plan.calculation is not None)
        self._refused = RefusedResults(plan, deployment.name, self._destinations.children,
                                       lambda: dead_letters_of(self.id, deployment, environment.result_writer(self.id)))
        self._external: ExternalWriter | None = None
        self._connection = deployment.connection
        self._delivered_before = 0  # rows, by other options of the connection
        if plan.sink.external is not None:
            self._external = environment.external_writer(self.id, deployment, self._store)
        self._notifier = None if plan.notify is None else environment.notifier(self.id, deployment)
        self._writer: ResultWriter = self._external or environment.result_writer(self.id)
        self._teller = self._notifier if plan.calculation is None else None  # else its writer tells
        if plan.calculation is not None:
            self._writer = CalculatingWriter(self.id, self._attempt, self._writer, environment, self._notifier)
        # It must be told of all that both of them say.
        self._quiet = self._writer if isinstance(self._writer, QuietWriter) and self._notifier is None else None
        if self._quiet is not None:
            self._quiet.wake_at(math.inf)
        self._transactions = self._writer if isinstance(self._writer, TransactionalWriter) else None
        self._commits_with_checkpoints = plan.policies.guarantee == "exactly_once" or plan.emits_at_checkpoints
        now = self._clock.monotonic()
        calls, rate = settings.sink_calls_per_second, settings.sink_bytes_per_second
        self._calls = TokenBucket(calls, burst(calls, _CALLS_AT_ONCE_S), now)
        self._bytes = TokenBucket(rate, burst(rate, _BYTES_AT_ONCE_S), now)
        # A new child table costs the dnode, and all streams of the vnode, more than many rows. Where groups come from
        # tables their number has a bound; where they don't, a stream could keep everybody busy with nothing else.
        makes_tables = plan.grouping.by_values and self._external is None and not plan.sink.keyed
        self._tables = NewTables(settings.sink_tables_share if makes_tables else 1.0, now)
        self._new_tables = 0  # in `_blocks`, at most
        self._rest: Block | None = None  # of the last block, with more new tables than one write may have
        self._blocks: list[pa.RecordBatch] = []  # taken for a write that isn't under way yet
        self._blocks_bytes = 0
        self._ready: ResultWrite | None = None
        self._ready_bytes = 0
        self._writing: deque[tuple[int, int, int]] = deque()  # rows, bytes and new tables of each write under way
        self._allowed_at: float | None = None
        self._barriers: deque[tuple[TaskId, Barrier]] = deque()
        self._in_flight = InFlightResults(self._store)
        self._in_flight_bytes_max = _IN_FLIGHT_QUEUES * settings.queue_bytes
        # The checkpoint that is under way, and when it has waited for long enough; whether it sets results aside.
        self._begun: tuple[int, float] | None = None
        self._stores_in_flight = False
        # A checkpoint whose barriers are all in while writes from before them are under way.
        self._due: int | None = None
        self._rows_in = self._rows_out = self._bytes_in = self._bytes_out = 0
        self._writes = 0
        self._acknowledged = 0  # by this attempt's writer
        self._restore(deployment.checkpoint_id)

    def _restore(self, checkpoint_id: int | None) -> None:
        """Goes back to a checkpoint, with what it holds in flight and what the writer was doing."""
        meta = self._restore_store(checkpoint_id)
        if meta is not None:
            self._writes = meta["writes"]
            self._in_flight.restore(meta["aside"])
            if "refused" in meta:
                self._refused.restore(meta["refused"])
            self.input.reserve(self._in_flight.nbytes)
            if self._external is not None:
                self._external.restore(meta["external"])
        if self._transactions is not None:
            self._transactions.recover(checkpoint_id)

    # -- what the runtime calls ------------------------------------------------------------------------------

    def step(self) -> bool:
        progressed = self._handle_events()
        progressed |= self._finish_writes()
        progressed |= self._refused.step()
        progressed |= self._work()
        if not progressed and self._overdue:
            progressed = self._store_in_flight()
        # What is set aside takes the place of what would fill the queue; but a barrier must get through.
        awaited = self._begun[0] if self._begun is not None and self._stores_in_flight else 0
        progressed |= self.input.reserve(self._in_flight.nbytes, awaited)
        outage = self._outage
        if not progressed and outage is not None:
            self._tracker.enter("RETRYING", str(outage))
        elif not progressed and not self._blocks and not self._writing:
            if self._inbox.aligning:
                waiting = ", ".join(str(channel) for channel in self._inbox.waiting_for())
                self._tracker.enter("ALIGNING", f"waits for the barrier of {waiting}")
            else:
                self._tracker.enter("IDLE", "nothing in its input queue")
        return progressed

    def _work(self) -> bool:
        """Takes and writes results, and makes checkpoints, as far as writes and rates let it."""
        if len(self._writing) == _WRITES_UNDER_WAY or (self._writing and self._due is not None):
            return self._await_write()
        if self._refused.full or (self._due is not None and not self._refused.settled):
            return False  # what refuses to be written is part of no checkpoint until the DLQ has it
        if self._due is not None:
            self._complete(self._due)
            return True
        taken = self._gather() if self._ready is None and not self._barriers else False
        if self._blocks:
            return self._try_write() or taken
        if self._writing:
            if self._barriers:
                return self._await_write() or taken
            self._enter_writing()
            return taken
        if self._barriers:
            channel, barrier = self._barriers.popleft()
            if self._inbox.barrier(channel, barrier):
                self._due = barrier.checkpoint_id
                if self._refused.settled:
                    self._complete(self._due)
            return True
        return taken

    def _await_write(self) -> bool:
        """Does nothing more until the next write is acknowledged; returns whether it is already."""
        self._allowed_at = None  # else a rate that allows more meanwhile would wake it all the time
        if self._quiet is not None and self._quiet.wake_at(self._acknowledged + 1):
            return True
        self._enter_writing()
        return False

    def _enter_writing(self) -> None:
        if self._outage is None:
            whom = "the dnode" if self._external is None else self._plan.sink.text
            self._tracker.enter("WRITING", f"waits for {whom} to acknowledge a write")

    @property
    def _outage(self) -> Outage | None:
        """Why what it writes, or has to tell of, isn't taken; None: it is."""
        external = None if self._external is None else self._external.outage
        return external or (None if self._notifier is None else self._notifier.outage)

    def next_deadline(self) -> float | None:
        patient = None if self._begun is None or self._overdue else self._begun[1]
        retries = [None if each is None else each.next_try for each in (self._external, self._notifier)]
        return min((at for at in (self._allowed_at, patient, *retries) if at is not None), default=None)

    def status(self) -> TaskStatus:
        outage = None if self._external is None else self._external.outage
        return self._status(
            TaskProgress(self._rows_in, self._rows_out, self._bytes_in, self._bytes_out),
            connection=ConnectionStatus(None if outage is None else outage.since_ms, self._health(outage)),
            late=LateRows(refused_rows=self._refused.count), dropped=self._refused.sample,
            notified=NotifyCounts() if self._notifier is None else self._notifier.counts)

    @property
    def _in_flight_bytes(self) -> int:
        return self._in_flight.nbytes

    def _size(self) -> StateSize:
        """What was sent is kept for looks at the stream, within a bound of its own: no STATE_LIMIT is for that."""
        size, recorded = super()._size(), 0 if self._external is None else self._external.recorded_bytes
        return size._replace(bytes=max(0, (size.bytes or 0) - recorded))

    def _health(self, outage: Outage | None) -> ConnectionHealth | None:
        if self._connection is None or (outage is None and self._rows_out <= self._delivered_before):
            return None
        return ConnectionHealth(self._connection.name, self._connection.version, "" if outage is None else str(outage))

    def close(self) -> None:
        for way_out in (self._external, self._notifier):
            if way_out is not None:
                way_out.close()
        super().close()

    def _apply_rates(self) -> None:
        now, settings = self._clock.monotonic(), self._settings
        calls, rate = settings.sink_calls_per_second, settings.sink_bytes_per_second
        self._calls.change(calls, burst(calls, _CALLS_AT_ONCE_S), now)
        self._bytes.change(rate, burst(rate, _BYTES_AT_ONCE_S), now)
        self._allowed_at = None

    @property
    def _write_bytes_max(self) -> int:
        """How large one write should be: a second's worth, where that isn't very little."""
        rate, largest = self._settings.sink_bytes_per_second, self._settings.block_bytes_max
        return largest if rate == 0 else min(largest, max(_SMALLEST_WRITE, int(rate)))

    # -- gathering and writing -------------------------------------------------------------------------------

    def _gather(self) -> bool:
        """Takes blocks up to the size of one write, or up to a barrier; returns whether it took anything."""
        taken_any = False
        enough = self._write_bytes_max
        while self._blocks_bytes < enough and not self._barriers:
            if self._rest is not None:
                if self._blocks:
                    break
                rest, self._rest = self._rest, None
                self._add(rest)
                taken_any = True
                continue
            oldest = self._in_flight.take()
            if oldest is not None:
                self._add(Block(oldest))
                taken_any = True
                continue
            taken = self._inbox.next()
            if taken is None:
                break
            taken_any = True
            channel, item = taken
            match item:
                case Block() as block:
                    self._note_taken(block)
                    self._add(block)
                case Barrier() as barrier:
                    self._barriers.append((channel, barrier))
                case Watermark():
                    continue
        return taken_any

    def _add(self, block: Block) -> None:
        """Adds rows to those of the next write, up to the one that would bring too many new child tables."""
        if not self._tables.unlimited:
            first = self._destinations.first_of_new(block.data)
            room = max(0, self._tables.at_once - self._new_tables)  # it may have become less
            if len(first) > room:
                end = int(first[room])
                self._rest = block.part(end, block.data.num_rows - end)
                block = block.part(0, end)
            self._new_tables += min(len(first), room)
        if block.data.num_rows:
            self._blocks.append(block.data)
            self._blocks_bytes += block.nbytes

    def _note_taken(self, block: Block) -> None:
        self._rows_in += block.rows
        self._bytes_in += block.nbytes

    def _make_ready(self) -> ResultWrite:
        """Makes one write of all blocks that were taken."""
        places = [self._destinations.intern(block) for block in self._blocks]
        blocks = self._blocks
        if self._teller is not None:
            for block, place in zip(blocks, places, strict=True):
                self._teller.take(block, place, self._destinations.children)
        if self._plan.announces_windows and self._plan.calculation is None:
            blocks, places = _results_only(blocks, places)
        rows = self._result_rows.of(blocks, places, self._destinations.problems, self._refused.take)
        size = rows.get_total_buffer_size()
        self._ready_bytes = size if size <= _FEW_BYTES else rows.nbytes
        return ResultWrite(self.id.stream_id, self._attempt, self.id, self._plan.sink.target_uid,
                           self._destinations.children, rows)

    def _try_write(self) -> bool:
        """Submits a write if all buckets allow it. Blocks are merged only then, so that later ones come along."""
        now = self._clock.monotonic()
        at = max(self._calls.available_at(1, now), self._tables.available_at(self._new_tables, now))
        if at == math.inf:
            return self._await_write()
        if at <= now:
            self._ready = self._ready or self._make_ready()
            at = self._bytes.available_at(self._ready_bytes, now)
        if at > now:
            self._allowed_at = at
            self._tracker.enter("RATE_LIMITED", self._limit_text(now))
            return False
        if not (self._calls.try_take(1, now) and self._bytes.try_take(self._ready_bytes, now)):
            raise InternalError(f"{self.id}: a token bucket refused what it had promised")
        assert self._ready is not None
        write = self._ready
        self._writing.append((write.rows.num_rows, self._ready_bytes, self._new_tables))
        self._tables.submitted(self._new_tables, now)
        self._forget_blocks()
        if self._teller is not None:
            self._teller.submit()
        self._writer.submit(write)
        return True

    def _forget_blocks(self) -> None:
        """The blocks that were taken are on their way, or set aside."""
        self._blocks, self._blocks_bytes = [], 0
        self._ready, self._ready_bytes, self._new_tables = None, 0, 0
        self._allowed_at = None

    def _limit_text(self, now: float) -> str:
        if self._bytes.available_at(self._ready_bytes, now) > now:
            return f"its rate limit of {self._settings.sink_bytes_per_second / 1e6:g} MB/s"
        if self._tables.available_at(self._new_tables, now) > now:
            return f"its share of {self._tables.share:.0%} of the time for new child tables"
        return f"its limit of {self._settings.sink_calls_per_second:g} write calls per second"

    def _finish_writes(self) -> bool:
        """Counts the writes that were acknowledged since the last call; returns whether there were any."""
        acknowledged = self._writer.acknowledged()
        if self._notifier is not None:
            acknowledged = min(acknowledged, self._notifier.acknowledged())
        if acknowledged == self._acknowledged:
            return False
        for _ in range(acknowledged - self._acknowledged):
            rows, size, tables = self._writing.popleft()
            self._tables.acknowledged(tables, self._clock.monotonic())
            self._writes += 1
            self._rows_out += rows
            self._bytes_out += size
        self._acknowledged = acknowledged
        if self._transactions is not None and not self._commits_with_checkpoints:
            self._transactions.commit_writes()
        self._tracker.enter("RUNNING")
        return True

    # -- checkpoints -----------------------------------------------------------------------------------------

    @property
    def _overdue(self) -> bool:
        """Whether a checkpoint has waited long enough for results to be written."""
        return self._begun is not None and self._clock.monotonic() >= self._begun[1]

    def _store_in_flight(self) -> bool:
        """Takes what is before the barriers of a checkpoint into the state, as much as one step should.

        Returns whether there was anything.
        """
        assert self._begun is not None
        # Once begun it goes on to the barriers: no more than the queues of the stream hold can be before them.
        self._stores_in_flight |= self._in_flight.nbytes <= self._in_flight_bytes_max
        size = 0
        while self._stores_in_flight and size < self._settings.block_bytes_max:
            taken = self._barriers.popleft() if self._barriers else self._inbox.next_before(self._begun[0])
            if taken is None:
                return size > 0
            channel, item = taken
            match item:
                case Block(data=data) as block:
                    self._in_flight.add(data)
                    self._note_taken(block)
                    size += block.nbytes
                case Barrier() as barrier:
                    if self._inbox.barrier(channel, barrier):
                        self._due = barrier.checkpoint_id
                        return True
                case Watermark():
                    continue
        return size > 0

    def _complete(self, checkpoint_id: int) -> None:
        """Makes the checkpoint durable: everything before its barriers is written and acknowledged, or set aside."""
        self._in_flight.put_back(self._blocks if self._rest is None else [*self._blocks, self._rest.data])
        self._rest = None
        self._forget_blocks()
        if self._transactions is not None and self._commits_with_checkpoints:
            self._transactions.prepare(checkpoint_id)
        self._checkpoint(checkpoint_id, None)
        self._end_checkpoint()

    def _end_checkpoint(self) -> None:
        self._begun = self._due = None
        self._stores_in_flight = False

    def _handle(self, event: TaskEvent) -> None:
        super()._handle(event)
        match event:
            case StartCheckpoint(checkpoint_id) if not self._inbox.is_over(checkpoint_id):
                self._begun = checkpoint_id, self._clock.monotonic() + _PATIENCE_S
            case CheckpointCommitted(checkpoint_id) if self._transactions is not None:
                self._transactions.commit(checkpoint_id)
            case UseConnection(connection) if (
                self._external is not None and connection.name == self._plan.sink.database
            ):
                self._external.use(connection)
                self._connection, self._delivered_before = connection, self._rows_out
            case Resume():
                for way_out in (self._external, self._notifier):
                    if way_out is not None:
                        way_out.try_now()

    def _abandon(self, checkpoint_id: int) -> None:
        self._inbox.abandon(checkpoint_id)
        if self._begun is not None and self._begun[0] <= checkpoint_id:
            self._end_checkpoint()

    @property
    def _has_unwritten(self) -> bool:
        return bool(self._in_flight) or (self._external is not None and self._external.undelivered)

    def _state(self) -> Mapping[str, Any]:
        external = {} if self._external is None else {"external": self._external.save()}
        refused = {"refused": self._refused.save()} if self._refused.count else {}
        return {"writes": self._writes, "aside": self._in_flight.save(), **refused, **external}


def _results_only(
    blocks: Sequence[pa.RecordBatch], places: Sequence[Numbers]
) -> tuple[list[pa.RecordBatch], list[Numbers]]:
    """Returns the rows of blocks, and their places, without those that only tell of windows."""
    results: list[pa.RecordBatch] = []
    of_results: list[Numbers] = []
    for block, place in zip(blocks, places, strict=True):
        written = block.column(OPERATION.name).to_numpy() < OPENED
        whole = bool(written.all())
        results.append(block if whole else block.filter(pa.array(written)))
        of_results.append(place if whole else place[written])
    return results, of_results
