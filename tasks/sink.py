"""The sink task: turns result blocks into rate-limited, acknowledged write calls to the dnode."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.errors import InternalError
from penstock.tasks.base_task import BaseTask
from penstock.tasks.compute import GROUP, OPERATION
from penstock.tasks.destinations import Destinations
from penstock.tasks.inbox import Inbox
from penstock.tasks.messages import Barrier, Block, ResultChild, ResultWrite, TaskId, TaskStatus, Watermark
from penstock.tasks.queues import ChannelQueue
from penstock.tasks.rate import TokenBucket
from penstock.tasks.task import StreamDeployment, TaskEnvironment

_SMALLEST_WRITE = 64 * 1024


class SinkTask(BaseTask):
    """One sink task. At most one write is under way; what waits for it stays in the bounded input queue.

    Writes are upserts and deletes by (child table, time), so writing them again after a restart changes nothing.
    """

    def __init__(
        self, deployment: StreamDeployment, index: int, upstream: Sequence[TaskId], environment: TaskEnvironment
    ) -> None:
        super().__init__(TaskId(deployment.stream_id, "sink", index), deployment, environment)
        plan, settings = deployment.plan, deployment.settings
        self.input = ChannelQueue(settings.queue_bytes, list(upstream), environment.wake)
        self.output: ChannelQueue[TaskId] | None = None
        self._attempt = deployment.attempt
        self._inbox = Inbox(self.input)
        self._destinations = Destinations(plan.sink, plan.keys, self._computer)
        self._writer = environment.result_writer(self.id)
        now = self._clock.monotonic()
        calls, rate = settings.sink_calls_per_second, settings.sink_bytes_per_second
        # A burst of one: never more than the allowed calls in any second, evenly spaced under load.
        self._calls = TokenBucket(calls, 1.0, now)
        self._bytes = TokenBucket(rate, max(rate, 1.0), now)
        largest = settings.block_bytes_max if rate == 0 else max(_SMALLEST_WRITE, int(rate))
        self._write_bytes_max = min(settings.block_bytes_max, largest)
        self._ready: ResultWrite | None = None
        self._ready_bytes = 0
        self._writing: ResultWrite | None = None
        self._allowed_at: float | None = None
        self._barriers: deque[tuple[TaskId, Barrier]] = deque()
        self._rows_in = 0
        self._bytes_in = 0
        self._rows_out = 0
        self._bytes_out = 0
        self._writes = 0
        meta = self._store.restore(deployment.checkpoint_id)
        if meta is not None:
            self._writes = meta["writes"]

    # -- what the runtime calls ------------------------------------------------------------------------------

    def step(self) -> bool:
        progressed = self._handle_events()
        if self._writing is not None:
            if not self._writer.poll():
                self._tracker.enter("WRITING", "waits for the dnode to acknowledge a write")
                return progressed
            self._finish_write()
            progressed = True
        if self._ready is None and not self._barriers:
            progressed |= self._gather()
        if self._ready is not None:
            return self._try_write() or progressed
        if self._barriers:
            channel, barrier = self._barriers.popleft()
            if self._inbox.barrier(channel, barrier):
                # Everything before its barriers is written, and acknowledged by the dnode.
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
        """Takes blocks up to the size of one write, or up to a barrier, and makes a write of them."""
        blocks: list[pa.RecordBatch] = []
        size = 0
        taken_any = False
        while size < self._write_bytes_max and not self._barriers:
            taken = self._inbox.next()
            if taken is None:
                break
            taken_any = True
            channel, item = taken
            match item:
                case Block(data=data):
                    blocks.append(data)
                    size += data.nbytes
                case Barrier() as barrier:
                    self._barriers.append((channel, barrier))
                case Watermark():
                    continue
        if blocks:
            self._rows_in += sum(block.num_rows for block in blocks)
            self._bytes_in += size
            self._ready = self._write_of(blocks)
            self._ready_bytes = self._ready.rows.nbytes
        return taken_any

    def _write_of(self, blocks: list[pa.RecordBatch]) -> ResultWrite:
        batch = blocks[0] if len(blocks) == 1 else pa.concat_batches(blocks)
        batch = self._newest(batch)
        gids = self._destinations.learn(batch)
        places: dict[int, int] = {}
        children: list[ResultChild] = []
        for gid in gids:
            if gid not in places:
                places[gid] = len(children)
                children.append(self._destinations.child(gid))
        child = pa.array([places[gid] for gid in gids], pa.int32())
        names = ["_child", OPERATION.name]
        columns = [child, batch.column(OPERATION.name)]
        for n, column in enumerate(self._plan.sink.columns):
            names.append(column.name)
            values = batch.column(f"r{n}")
            wanted = column.type.arrow()
            columns.append(values if values.type == wanted else values.cast(wanted))
        rows = pa.RecordBatch.from_arrays(columns, names=names)
        rows = rows.filter(pc.is_valid(rows.column(2)))
        return ResultWrite(self.id.stream_id, self._attempt, self.id, self._plan.sink.target_uid, tuple(children), rows)

    def _newest(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows without those that later ones of the batch make void.

        Where the target's key has two parts, a window is the only row of its time, whatever its key was before.
        """
        if self._plan.sink.key_column is None:
            return _newest_per_key(batch)
        if self._plan.agg is None:
            return _newest_per_composite_key(batch)
        batch = _newest_per_key(batch)
        gone = pc.or_(pc.equal(batch.column(0), 1), pc.is_null(batch.column("r1")))
        return batch.set_column(0, OPERATION, pc.if_else(gone, pa.scalar(1, pa.uint8()), pa.scalar(2, pa.uint8())))

    def _try_write(self) -> bool:
        """Submits the write that is ready if both buckets allow it."""
        assert self._ready is not None
        now = self._clock.monotonic()
        at = max(self._calls.available_at(1, now), self._bytes.available_at(self._ready_bytes, now))
        if at > now:
            self._allowed_at = at
            self._tracker.enter("RATE_LIMITED", self._limit_text(now))
            return False
        if not (self._calls.try_take(1, now) and self._bytes.try_take(self._ready_bytes, now)):
            raise InternalError(f"{self.id}: a token bucket refused what it had promised")
        self._allowed_at = None
        self._writing, self._ready = self._ready, None
        self._tracker.enter("WRITING", "waits for the dnode to acknowledge a write")
        self._writer.submit(self._writing)
        return True

    def _limit_text(self, now: float) -> str:
        if self._bytes.available_at(self._ready_bytes, now) > now:
            return f"its rate limit of {self._settings.sink_bytes_per_second / 1e6:g} MB/s"
        return f"its limit of {self._settings.sink_calls_per_second:g} write calls per second"

    def _finish_write(self) -> None:
        assert self._writing is not None
        self._writes += 1
        self._rows_out += self._writing.rows.num_rows
        self._bytes_out += self._writing.rows.nbytes
        self._writing = None
        self._tracker.enter("RUNNING")

    def _state(self) -> Mapping[str, Any]:
        return {"writes": self._writes}


def _newest_per_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the rows with only the last one per (group, time); the order of the others is kept."""
    gids = batch.column(GROUP.name).to_numpy()
    times = batch.column("r0").to_numpy(zero_copy_only=False)
    order = np.lexsort((np.arange(len(gids)), times, gids))
    last = np.ones(len(order), bool)
    last[:-1] = (gids[order][1:] != gids[order][:-1]) | (times[order][1:] != times[order][:-1])
    if last.all():
        return batch
    return batch.take(pa.array(np.sort(order[last])))


def _newest_per_composite_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the rows with only the last one per (group, time, key); a delete voids what is before it at its time."""
    deleted: dict[tuple[int, int], int] = {}
    kept: dict[tuple[int, int, object], int] = {}
    keys = zip(batch.column(GROUP.name).to_pylist(), batch.column("r0").cast(pa.int64()).to_pylist(),
               batch.column("r1").to_pylist(), batch.column(OPERATION.name).to_pylist(), strict=True)
    for row, (gid, ts, key, operation) in enumerate(keys):
        if operation == 1:
            deleted[gid, ts] = row
        elif key is not None:
            kept[gid, ts, key] = row
    rows = [row for (gid, ts, _), row in kept.items() if row > deleted.get((gid, ts), -1)]
    return batch.take(pa.array(sorted([*rows, *deleted.values()]), pa.int64()))
