"""The operator between source and sink tasks: merges the blocks of its source tasks and emits results by time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.common.errors import InternalError
from penstock.sql.types import UNITS_PER_SECOND
from penstock.tasks.compute.group_index import GroupIndex
from penstock.tasks.compute.id_table import Numbers
from penstock.tasks.flow.inbox import Inbox
from penstock.tasks.flow.outbox import Outbox
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.flow.watermarks import Watermarks
from penstock.tasks.operators.base_task import ComputingTask
from penstock.tasks.operators.delayed_results import Delayed
from penstock.tasks.operators.group_sinks import GroupSinks
from penstock.tasks.operators.stream_task import TaskEnvironment
from penstock.tasks.protocol.block_schema import result_schema
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import Barrier, Block, End, Retract, RetractEnd, TaskId, Watermark
from penstock.tasks.protocol.task_status import LateRows, TaskProgress, TaskStatus, TimeStatus


class WindowedOperator(ComputingTask):
    """`upstream` are its source tasks, `downstream` the sink tasks it may feed. Subclasses know what it computes."""

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
        self.input = ChannelQueue(settings.queue_bytes, list(upstream), environment.wake)
        self.output: ChannelQueue[TaskId] = ChannelQueue(settings.queue_bytes, list(downstream), environment.wake)
        self._units_per_second = UNITS_PER_SECOND[plan.source.precision]
        self._inbox = Inbox(self.input, aligned=plan.policies.guarantee == "exactly_once")
        self._outbox = Outbox(self.output, settings.block_bytes_max)
        self._upstream = tuple(upstream)
        self._inputs = {channel: n for n, channel in enumerate(upstream)}
        self._watermarks = Watermarks(len(upstream))
        self._sinks = GroupSinks(plan.sink, plan.grouping.keys, self._computer, len(downstream))
        self._schema = result_schema(plan.grouping.keys, plan.result_fields)
        # Per input that is idle: since when (monotonic seconds) its vnode has been quiet.
        self._quiet_since: dict[int, float] = {}
        self._ahead: frozenset[TaskId] = frozenset()
        self._delayed = Delayed(0)
        self._late_kept = dict.fromkeys((task.index for task in upstream), 0)
        self._late_forgotten = dict.fromkeys((task.index for task in upstream), 0)
        self._rows_in = 0
        self._bytes_in = 0
        self._set_up(len(upstream), deployment)
        meta = self._restore_store(deployment.checkpoint_id)
        if meta is not None:
            self._watermarks.restore(meta["watermarks"])
            # How long the engine was down isn't known: quiet vnodes are quiet from now on.
            self._quiet_since = dict.fromkeys(self._watermarks.idle_inputs(), self._clock.monotonic())
            self._hold_back()
            self._late_kept.update(meta["late_rows_kept"])
            self._late_forgotten.update(meta["late_rows_forgotten"])
            self._restore(meta)
        else:
            self._begin()

    # -- what the runtime calls ------------------------------------------------------------------------------

    def step(self) -> bool:
        progressed = self._handle_events()
        if not self._outbox.flush():
            self._tracker.enter("BACKPRESSURED", "what it has sent isn't taken", self._outbox.blocked_channel)
            return progressed
        if self._go_on():
            return True
        if self._delayed.due(self._clock.monotonic()):
            self._emit_delayed()
            self._outbox.flush()
            return True
        taken = self._inbox.next(self._ahead)
        if taken is None and self._catch_up():
            self._outbox.flush()
            return True
        if taken is None and self._idle_until() <= self._clock.monotonic():
            self._advance_by_clock()
            return True
        if taken is None:
            if self._inbox.aligning:
                waiting = ", ".join(str(channel) for channel in self._inbox.waiting_for())
                self._tracker.enter("ALIGNING", f"waits for the barrier of {waiting}")
            elif self._ahead:
                waiting = ", ".join(str(channel) for channel in sorted(self._ahead))
                slowest = self._upstream[self._watermarks.holding_back()[0]]
                self._tracker.enter("IDLE", f"holds back {waiting}, which is ahead by more than MAX_SKEW", slowest)
            else:
                self._tracker.enter("IDLE", self._waits_for() or "nothing in its input queue")
            return progressed
        channel, item = taken
        self._tracker.enter("RUNNING")
        match item:
            case Block() as block:
                self._take_blocks(channel, block)
            case Watermark() as watermark:
                self._on_watermark(self._inputs[channel], watermark)
            case Barrier(checkpoint_id) as barrier:
                if self._inbox.barrier(channel, barrier):
                    self._checkpoint(checkpoint_id, self._outbox)
            case Retract() | RetractEnd():
                self._replace(item, self._inputs[channel])
            case End():
                self._on_watermark(self._inputs[channel], Watermark(None, idle=True))
        self._outbox.flush()
        return True

    def next_deadline(self) -> float | None:
        if self._outbox.blocked_channel is not None:
            return None
        deadlines = [at for at in (self._delayed.deadline, self._idle_until()) if at is not None and at != math.inf]
        return min(deadlines, default=None)

    def status(self) -> TaskStatus:
        return self._status(
            TaskProgress(self._rows_in, self._outbox.rows_out, self._bytes_in, self._outbox.bytes_out), self.output,
            time=TimeStatus(
                self._watermarks.current,
                held_back_by=tuple(self._upstream[n].index for n in self._watermarks.holding_back())
                if len(self._upstream) > 1 else ()),
            late=LateRows(sum(self._late_forgotten.values()), tuple(self._late_forgotten.items()),
                          tuple(self._late_kept.items())))

    def _take_blocks(self, channel: TaskId, block: Block) -> None:
        """Merges a block and one of each other channel that has one, and shows at once what they changed.

        Mostly the new times of their senders stand right behind them, and are heard in the same step.
        """
        channels: list[TaskId] = []
        taken: tuple[TaskId, Block] | None = channel, block
        while taken is not None:
            channel, block = taken
            channels.append(channel)
            self._rows_in += block.rows
            self._bytes_in += block.nbytes
            self._merge_block(block, self._inputs[channel])
            taken = self._inbox.next_block(self._ahead, channels)
        self._show_merged()
        for channel in channels:
            if not self._outbox.flush() or self._go_on():
                return
            behind = self._inbox.time_behind(channel)
            if behind is not None:
                self._on_watermark(self._inputs[channel], behind)

    # -- time ------------------------------------------------------------------------------------------------

    def _on_watermark(self, input: int, watermark: Watermark) -> None:
        if watermark.idle:
            self._quiet_since[input] = self._clock.monotonic() - watermark.quiet_s
        else:
            self._quiet_since.pop(input, None)
        advanced = self._watermarks.update(input, watermark.ts, watermark.idle)
        self._hold_back()
        if advanced:
            self._close_windows()

    def _hold_back(self) -> None:
        """Notes which inputs are not read for now; their queues fill up, and their sources are backpressured."""
        skew = self._plan.policies.time.max_skew
        if skew is not None:
            self._ahead = frozenset(self._upstream[input] for input in self._watermarks.ahead(skew))

    def _idle_until(self) -> float:
        """Returns when the clock closes the next window, because all vnodes are idle; infinity if it doesn't."""
        if not self._plan.policies.time.close_when_idle or not self._watermarks.all_idle:
            return math.inf
        closing = self._next_closing()
        if closing is None:
            return math.inf
        return max((self._quiet_since[input] + (closing - ts) / self._units_per_second
                    for input, ts in self._watermarks.known().items()), default=math.inf)

    def _advance_by_clock(self) -> None:
        """Lets time go on by as much as all vnodes have been quiet.

        No row is judged by it, so a restart, which may come to another instant, changes no result.
        """
        now, closing = self._clock.monotonic(), self._next_closing()
        assert closing is not None
        reached = min(ts + math.floor((now - self._quiet_since[input]) * self._units_per_second)
                      for input, ts in self._watermarks.known().items())
        # Seconds are rounded: what is due must be closed.
        if self._watermarks.advance(max(reached, closing)):
            self._close_windows()
            self._outbox.flush()

    @property
    def _closed_until(self) -> int | None:
        """Windows that end by then are closed; None: none is."""
        current = self._watermarks.current
        return None if current is None else current - self._plan.policies.time.lateness

    # -- what subclasses do ------------------------------------------------------------------------------------

    def _set_up(self, inputs: int, deployment: StreamDeployment) -> None:
        """Makes what the subclass needs for so many inputs; the store isn't restored yet."""
        raise NotImplementedError

    @property
    def _groups(self) -> GroupIndex:
        """The groups that it has results of."""
        raise NotImplementedError

    def _own_state(self) -> Mapping[str, Any]:
        """Hands what changed to the store; returns the rest of what a restart needs besides the time."""
        raise NotImplementedError

    def _restore(self, meta: dict[str, Any]) -> None:
        """Takes over what a checkpoint holds; the watermarks are known."""
        raise NotImplementedError

    def _begin(self) -> None:
        """Does what is to be done before anything has come; there is no checkpoint."""

    def _merge_block(self, block: Block, input: int) -> None:
        """Takes a block."""
        self._merge(block.data, input)

    def _merge(self, data: pa.RecordBatch, input: int) -> None:
        """Takes the rows of a block."""
        raise NotImplementedError

    def _show_merged(self) -> None:
        """Emits what was merged since the last call, as the trigger says; subclasses may do so in `_merge` instead."""

    def _close_windows(self) -> None:
        """The watermark has moved on."""
        raise NotImplementedError

    def _next_closing(self) -> int | None:
        """Returns the least watermark that closes a window, None if none is open."""
        raise NotImplementedError

    def _emit_delayed(self) -> None:
        """The time that results wait for is over."""
        raise NotImplementedError

    def _replace(self, signal: Retract | RetractEnd, input: int) -> None:
        """A source puts something else in the place of what it sent; only sources of INTERVAL windows do."""
        raise InternalError(f"{self.id} was told of {signal}")

    def _waits_for(self) -> str:
        """Returns what besides its input the task waits for, as reasons have it, "" for nothing."""
        return ""

    def _go_on(self) -> bool:
        """Sends some of what is still to be sent before anything else; returns whether there was anything."""
        return False

    def _catch_up(self) -> bool:
        """Does what could wait while there was something to take; returns whether there was anything."""
        return False

    # -- sending and checkpoints -------------------------------------------------------------------------------

    def _route(self, results: pa.RecordBatch, groups: Numbers | None = None) -> None:
        """Sends results on, each to the sink task of its group. `groups`: the numbers that their groups have here."""
        channels = self.output.channels
        if len(channels) == 1:
            self._outbox.send(channels[0], results)
            return
        index = self._groups
        if groups is None:
            groups = index.intern(results)

        def columns_of(some: Numbers) -> list[pa.Array]:
            return [pa.array(index.ids(some)), *index.key_columns(some)]

        self._outbox.spread(self._sinks.of(groups, len(index), index.numbers, columns_of), results)

    def _abandon(self, checkpoint_id: int) -> None:
        self._inbox.abandon(checkpoint_id)

    def _state(self) -> Mapping[str, Any]:
        return {**self._own_state(), "watermarks": self._watermarks.save(),
                "late_rows_kept": list(self._late_kept.items()),
                "late_rows_forgotten": list(self._late_forgotten.items())}
