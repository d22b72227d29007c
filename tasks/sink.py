"""The sink task: turns result blocks into rate-limited, acknowledged write calls to the dnode."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.common.errors import InternalError
from penstock.tasks.base_task import BaseTask
from penstock.tasks.destinations import Destinations
from penstock.tasks.inbox import Inbox
from penstock.tasks.messages import (
    Barrier,
    Block,
    CheckpointCommitted,
    ResultWrite,
    TaskEvent,
    TaskId,
    TaskStatus,
    Watermark,
)
from penstock.tasks.queues import ChannelQueue
from penstock.tasks.rate import TokenBucket
from penstock.tasks.result_rows import ResultRows
from penstock.tasks.task import StreamDeployment, TaskEnvironment, TransactionalWriter

_SMALLEST_WRITE = 64 * 1024
_CALLS_AT_ONCE = 10  # this part of a second's calls
# One that the dnode performs and one on its way to it; more would only keep results from being merged.
_WRITES_UNDER_WAY = 2


class SinkTask(BaseTask):
    """One sink task. Few writes are under way; what waits for them stays in the bounded input queue.

    Writes are upserts and deletes by (child table, time), so writing them again after a restart changes nothing; a
    writer for which that isn't so takes them in transactions. They are performed in their order, and none behind one
    that failed.
    """

    def __init__(
        self, deployment: StreamDeployment, index: int, upstream: Sequence[TaskId], environment: TaskEnvironment
    ) -> None:
        super().__init__(TaskId(deployment.stream_id, "sink", index), deployment, environment)
        plan, settings = deployment.plan, deployment.settings
        self.input = ChannelQueue(settings.queue_bytes, list(upstream), environment.wake)
        self.output: ChannelQueue[TaskId] | None = None
        self._attempt = deployment.attempt
        self._inbox = Inbox(self.input, aligned=plan.guarantee == "exactly_once")
        self._destinations = Destinations(plan.sink, plan.keys, self._computer)
        self._result_rows = ResultRows(plan.sink, plan.agg is not None)
        self._writer = environment.result_writer(self.id)
        self._transactions = self._writer if isinstance(self._writer, TransactionalWriter) else None
        self._commits_with_checkpoints = plan.guarantee == "exactly_once"
        now = self._clock.monotonic()
        calls, rate = settings.sink_calls_per_second, settings.sink_bytes_per_second
        # Evenly spaced under load; otherwise results that come at nearly the same time needn't wait for each other.
        self._calls = TokenBucket(calls, max(1.0, calls / _CALLS_AT_ONCE), now)
        self._bytes = TokenBucket(rate, max(rate, 1.0), now)
        largest = settings.block_bytes_max if rate == 0 else max(_SMALLEST_WRITE, int(rate))
        self._write_bytes_max = min(settings.block_bytes_max, largest)
        self._blocks: list[pa.RecordBatch] = []
        self._blocks_bytes = 0
        self._ready: ResultWrite | None = None
        self._ready_bytes = 0
        self._writing: deque[tuple[int, int]] = deque()  # rows and bytes of each write under way
        self._allowed_at: float | None = None
        self._barriers: deque[tuple[TaskId, Barrier]] = deque()
        self._rows_in = 0
        self._bytes_in = 0
        self._rows_out = 0
        self._bytes_out = 0
        self._writes = 0
        self._acknowledged = 0  # by this attempt's writer
        meta = self._restore_store(deployment.checkpoint_id)
        if meta is not None:
            self._writes = meta["writes"]
        if self._transactions is not None:
            self._transactions.recover(deployment.checkpoint_id)

    # -- what the runtime calls ------------------------------------------------------------------------------

    def step(self) -> bool:
        progressed = self._handle_events()
        progressed |= self._finish_writes()
        if len(self._writing) == _WRITES_UNDER_WAY:
            self._tracker.enter("WRITING", "waits for the dnode to acknowledge a write")
            return progressed
        if self._ready is None and not self._barriers:
            progressed |= self._gather()
        if self._blocks or self._ready is not None:
            return self._try_write() or progressed
        if self._writing:
            self._tracker.enter("WRITING", "waits for the dnode to acknowledge a write")
            return progressed
        if self._barriers:
            channel, barrier = self._barriers.popleft()
            if self._inbox.barrier(channel, barrier):
                # Everything before its barriers is written, and acknowledged by the dnode.
                if self._transactions is not None and self._commits_with_checkpoints:
                    self._transactions.prepare(barrier.checkpoint_id)
                self._checkpoint(barrier.checkpoint_id, None)
            return True
        if not progressed:
            if self._inbox.aligning:
                waiting = ", ".join(str(channel) for channel in self._inbox.waiting_for())
                self._tracker.enter("ALIGNING", f"waits for the barrier of {waiting}")
            else:
                self._tracker.enter("IDLE", "nothing in its input queue")
        return progressed

    def next_deadline(self) -> float | None:
        return self._allowed_at

    def status(self) -> TaskStatus:
        return self._status(None, rows_in=self._rows_in, rows_out=self._rows_out, bytes_in=self._bytes_in,
                            bytes_out=self._bytes_out)

    # -- gathering and writing -------------------------------------------------------------------------------

    def _gather(self) -> bool:
        """Takes blocks up to the size of one write, or up to a barrier; returns whether it took anything."""
        taken_any = False
        while self._blocks_bytes < self._write_bytes_max and not self._barriers:
            taken = self._inbox.next()
            if taken is None:
                break
            taken_any = True
            channel, item = taken
            match item:
                case Block(data=data, nbytes=size):
                    self._blocks.append(data)
                    self._blocks_bytes += size
                    self._rows_in += data.num_rows
                    self._bytes_in += size
                case Barrier() as barrier:
                    self._barriers.append((channel, barrier))
                case Watermark():
                    continue
        return taken_any

    def _make_ready(self) -> ResultWrite:
        """Makes one write of all blocks that were taken."""
        places = [self._destinations.learn(block) for block in self._blocks]
        rows = self._result_rows.of(self._blocks, places)
        self._blocks, self._blocks_bytes = [], 0
        self._ready_bytes = rows.nbytes
        return ResultWrite(self.id.stream_id, self._attempt, self.id, self._plan.sink.target_uid,
                           self._destinations.children, rows)

    def _try_write(self) -> bool:
        """Submits a write if both buckets allow it. Blocks are merged only then, so that later ones come along."""
        now = self._clock.monotonic()
        at = self._calls.available_at(1, now)
        if at <= now:
            self._ready = self._ready or self._make_ready()
            at = self._bytes.available_at(self._ready_bytes, now)
        if at > now:
            self._allowed_at = at
            self._tracker.enter("RATE_LIMITED", self._limit_text(now))
            return False
        if not (self._calls.try_take(1, now) and self._bytes.try_take(self._ready_bytes, now)):
            raise InternalError(f"{self.id}: a token bucket refused what it had promised")
        self._allowed_at = None
        assert self._ready is not None
        write, self._ready = self._ready, None
        self._writing.append((write.rows.num_rows, self._ready_bytes))
        self._ready_bytes = 0
        self._writer.submit(write)
        return True

    def _limit_text(self, now: float) -> str:
        if self._bytes.available_at(self._ready_bytes, now) > now:
            return f"its rate limit of {self._settings.sink_bytes_per_second / 1e6:g} MB/s"
        return f"its limit of {self._settings.sink_calls_per_second:g} write calls per second"

    def _finish_writes(self) -> bool:
        """Counts the writes that were acknowledged since the last call; returns whether there were any."""
        acknowledged = self._writer.acknowledged()
        if acknowledged == self._acknowledged:
            return False
        for _ in range(acknowledged - self._acknowledged):
            rows, size = self._writing.popleft()
            self._writes += 1
            self._rows_out += rows
            self._bytes_out += size
        self._acknowledged = acknowledged
        if self._transactions is not None and not self._commits_with_checkpoints:
            self._transactions.commit_writes()
        self._tracker.enter("RUNNING")
        return True

    def _handle(self, event: TaskEvent) -> None:
        super()._handle(event)
        if isinstance(event, CheckpointCommitted) and self._transactions is not None:
            self._transactions.commit(event.checkpoint_id)

    def _abandon(self, checkpoint_id: int) -> None:
        self._inbox.abandon(checkpoint_id)

    def _state(self) -> Mapping[str, Any]:
        return {"writes": self._writes}
