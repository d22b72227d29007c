"""The agg task: takes the partials of all its source tasks and sends results on. What windows are, subclasses know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.common.errors import InternalError
from penstock.tasks.base_task import BaseTask
from penstock.tasks.compute import result_schema
from penstock.tasks.delayed import Delayed
from penstock.tasks.destinations import Destinations
from penstock.tasks.final_stage import FinalStage
from penstock.tasks.inbox import Inbox
from penstock.tasks.messages import Barrier, Block, Cleared, End, Settled, TaskId, TaskStatus, Watermark
from penstock.tasks.outbox import Outbox
from penstock.tasks.queues import ChannelQueue
from penstock.tasks.task import StreamDeployment, TaskEnvironment
from penstock.tasks.watermarks import Watermarks


class Table(Protocol):
    """The windows of an agg task, as far as all kinds of them are alike."""

    @property
    def slots_used(self) -> int: ...

    @property
    def memory_bytes(self) -> int: ...

    def save(self) -> dict[str, Any]: ...

    def restore(self, meta: dict[str, Any], closed_until: int | None) -> None: ...


class AggTask(BaseTask):
    """One agg task of a windowed stream. `upstream` are its source tasks, `downstream` the sink tasks it may feed.

    Subclasses set up their `_table` before anything is restored, and everything that `_restore` needs.
    """

    _table: Table

    def __init__(
        self,
        deployment: StreamDeployment,
        index: int,
        upstream: Sequence[TaskId],
        downstream: Sequence[TaskId],
        environment: TaskEnvironment,
    ) -> None:
        super().__init__(TaskId(deployment.stream_id, "agg", index), deployment, environment)
        plan, settings = deployment.plan, deployment.settings
        assert plan.agg is not None
        self.input = ChannelQueue(settings.queue_bytes, list(upstream), environment.wake)
        self.output: ChannelQueue[TaskId] = ChannelQueue(settings.queue_bytes, list(downstream), environment.wake)
        self._agg = plan.agg
        self._inbox = Inbox(self.input)
        self._outbox = Outbox(self.output, settings.block_bytes_max)
        self._inputs = {channel: n for n, channel in enumerate(upstream)}
        self._watermarks = Watermarks(len(upstream))
        self._destinations = Destinations(plan.sink, plan.keys, self._computer)
        self._schema = result_schema(plan.keys, plan.result_fields)
        self._final = FinalStage(plan.agg, self._schema, self._computer)
        self._delayed = Delayed(plan.period_ms / 1000)
        self._rows_in = 0
        self._bytes_in = 0
        self._set_up(len(upstream))
        meta = self._store.restore(deployment.checkpoint_id)
        if meta is not None:
            self._watermarks.restore(meta["watermarks"])
            self._restore(meta)

    # -- what the runtime calls ------------------------------------------------------------------------------

    def step(self) -> bool:
        progressed = self._handle_events()
        if not self._outbox.flush():
            self._tracker.enter("BACKPRESSURED", "its output queue is full", str(self._outbox.blocked_channel))
            return progressed
        if self._go_on():
            return True
        if self._delayed.due(self._clock.monotonic()):
            self._emit_delayed()
            self._outbox.flush()
            return True
        taken = self._inbox.next()
        if taken is None:
            if self._inbox.aligning:
                waiting = ", ".join(str(channel) for channel in self._inbox.waiting_for())
                self._tracker.enter("ALIGNING", f"waits for the barrier of {waiting}")
            else:
                self._tracker.enter("IDLE", "nothing in its input queue")
            return progressed
        channel, item = taken
        self._tracker.enter("RUNNING")
        match item:
            case Block(data=data):
                self._rows_in += data.num_rows
                self._bytes_in += data.nbytes
                self._merge(data, self._inputs[channel])
            case Watermark(ts, idle):
                if self._watermarks.update(self._inputs[channel], ts, idle):
                    self._close_windows()
            case Barrier(checkpoint_id) as barrier:
                if self._inbox.barrier(channel, barrier):
                    self._checkpoint(checkpoint_id, self._outbox)
            case Cleared() | Settled():
                self._replace(item, self._inputs[channel])
            case End():
                self._watermarks.update(self._inputs[channel], None, True)
        self._outbox.flush()
        return True

    def next_deadline(self) -> float | None:
        return self._delayed.deadline if self._outbox.blocked_channel is None else None

    def status(self) -> TaskStatus:
        return self._status(
            self.output, rows_in=self._rows_in, rows_out=self._outbox.rows_out, bytes_in=self._bytes_in,
            bytes_out=self._outbox.bytes_out, watermark=self._watermarks.current,
            windows_open=self._table.slots_used, state_bytes=self._table.memory_bytes + self._store.used_bytes)

    # -- what subclasses do ------------------------------------------------------------------------------------

    def _set_up(self, inputs: int) -> None:
        """Makes the table for so many inputs."""
        raise NotImplementedError

    def _restore(self, meta: dict[str, Any]) -> None:
        """Takes over what a checkpoint holds; the watermarks are known."""
        raise NotImplementedError

    def _merge(self, data: pa.RecordBatch, input: int) -> None:
        """Takes a block of partials."""
        raise NotImplementedError

    def _close_windows(self) -> None:
        """The watermark has moved on."""
        raise NotImplementedError

    def _emit_delayed(self) -> None:
        """The time that results wait for is over."""
        raise NotImplementedError

    def _replace(self, signal: Cleared | Settled, input: int) -> None:
        """A source puts something else in the place of what it sent; only sources of INTERVAL windows do."""
        raise InternalError(f"{self.id} was told of {signal}")

    def _go_on(self) -> bool:
        """Sends some of what is still to be sent before anything else; returns whether there was anything."""
        return False

    # -- sending -----------------------------------------------------------------------------------------------

    def _route(self, results: pa.RecordBatch) -> None:
        channels = self.output.channels
        if len(channels) == 1:
            self._outbox.send(channels[0], results)
            return
        gids = self._destinations.learn(results)
        sinks = {gid: self._destinations.sink_of(gid, len(channels)) for gid in set(gids)}
        places = np.array([sinks[gid] for gid in gids])
        for n, channel in enumerate(channels):
            self._outbox.send(channel, results.filter(pa.array(places == n)))
