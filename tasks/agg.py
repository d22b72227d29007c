"""The agg task: combines partials of all its source tasks into windows, and emits results as the trigger says."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.tasks.accumulators import Slots
from penstock.tasks.base_task import BaseTask
from penstock.tasks.compute import OPERATION, WINDOW_START, result_schema
from penstock.tasks.delayed import Delayed
from penstock.tasks.destinations import Destinations
from penstock.tasks.fill import Filler
from penstock.tasks.held_windows import HeldWindows
from penstock.tasks.inbox import Inbox
from penstock.tasks.messages import Barrier, Block, Cleared, End, Settled, TaskId, TaskStatus, Watermark
from penstock.tasks.outbox import Outbox
from penstock.tasks.queues import ChannelQueue
from penstock.tasks.result_index import ResultIndex
from penstock.tasks.task import StreamDeployment, TaskEnvironment
from penstock.tasks.watermarks import Watermarks
from penstock.tasks.window_table import WindowTable


class AggTask(BaseTask):
    """One agg task of a windowed stream. `upstream` are its source tasks, `downstream` the sink tasks it may feed."""

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
        self._table = self._open_table(len(upstream))
        self._inputs = {channel: n for n, channel in enumerate(upstream)}
        self._watermarks = Watermarks(len(upstream))
        self._destinations = Destinations(plan.sink, plan.keys, self._computer)
        self._schema = result_schema(plan.keys, plan.result_fields)
        self._open: set[int] = set()
        self._held = HeldWindows()
        self._delayed = Delayed(plan.period_ms / 1000)
        self._following: deque[Iterator[pa.RecordBatch]] = deque()
        self._filler = None
        if plan.fill is not None:
            self._filler = Filler(plan.fill, self._table.grid, plan.keys, self._schema, ResultIndex(self._store),
                                  self._computer, self._results_of)
        self._rows_in = 0
        self._bytes_in = 0
        meta = self._store.restore(deployment.checkpoint_id)
        if meta is not None:
            self._restore(meta)

    # -- what the runtime calls ------------------------------------------------------------------------------

    def step(self) -> bool:
        progressed = self._handle_events()
        if not self._outbox.flush():
            self._tracker.enter("BACKPRESSURED", "its output queue is full", str(self._outbox.blocked_channel))
            return progressed
        if self._following:
            self._send_following()
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
            case Cleared(first, last):
                source = self._inputs[channel]
                self._held.clear(source, first, last, self._table.clear(first, last, source))
            case Settled():
                self._show(self._held.settle(self._inputs[channel]))
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

    # -- windows ---------------------------------------------------------------------------------------------

    def _open_table(self, inputs: int) -> WindowTable:
        return WindowTable(self._agg, self._plan.keys, inputs, self._store, self._functions)

    def _merge(self, data: pa.RecordBatch, input: int) -> None:
        operation = data.column(OPERATION.name)[0].as_py()
        touched = self._table.merge(data.select(data.schema.names[1:]), operation, input)
        self._show({start: groups for start, groups in touched.items() if not self._held.hold(start, groups)})
        self._table.spill(self._settings.state_memory_bytes, self._watermarks.current)

    def _show(self, touched: Mapping[int, Slots]) -> None:
        """Emits what changed in windows, as the trigger says."""
        until = self._watermarks.current
        trigger, now = self._plan.trigger, self._clock.monotonic()
        emitted: list[tuple[int, Slots | None]] = []
        for start, groups in touched.items():
            closed = until is not None and self._table.end(start) <= until
            if not closed:
                self._open.add(start)
            if trigger == ("continuous_window_close" if closed else "max_delay"):
                self._delayed.touch(start, groups.tolist(), now)
            elif trigger == "at_once" or closed:
                emitted.append((start, groups))
        self._emit(emitted)

    def _close_windows(self) -> None:
        """Emits the windows that the new watermark closes, unless they were emitted at once."""
        until = self._watermarks.current
        assert until is not None
        ready = sorted(start for start in self._open if self._table.end(start) <= until)
        self._open.difference_update(ready)
        if self._plan.trigger != "at_once":
            self._emit([(start, None) for start in ready])
            for start in ready:
                self._delayed.discard(start)

    def _emit_delayed(self) -> None:
        self._emit(self._delayed.take())

    def _emit(self, windows: Sequence[tuple[int, Slots | None]]) -> None:
        if not windows:
            return
        state = pa.concat_tables([self._table.state(start, groups) for start, groups in windows])
        results = self._computer.run(self._agg.final_sql, self._schema, state=state)
        self._route(results)
        if self._filler is not None:
            self._following.append(self._filler.take(results, state.column(WINDOW_START.name).to_pylist()))
        for start, _ in windows:
            self._table.drop_empty(start)

    def _send_following(self) -> None:
        """Sends one chunk of what follows the results that were sent last; nothing else is emitted before."""
        chunk = next(self._following[0], None)
        if chunk is None:
            self._following.popleft()
            return
        self._route(chunk)
        self._outbox.flush()

    def _results_of(self, windows: Sequence[tuple[int, int]]) -> pa.RecordBatch:
        """Returns the result rows of (group id, start) pairs as the state has them now, in their order."""
        by_start: dict[int, list[int]] = {}
        for gid, start in windows:
            by_start.setdefault(start, []).append(gid)
        state = pa.concat_tables([self._table.state(start, self._table.groups_of(gids))
                                  for start, gids in by_start.items()])
        results = self._computer.run(self._agg.final_sql, self._schema, state=state)
        places = {window: row for row, window in enumerate(
            (gid, start) for start, gids in by_start.items() for gid in gids)}
        return results.take(pa.array([places[window] for window in windows], pa.int64()))

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

    # -- checkpoints -----------------------------------------------------------------------------------------

    def _state(self) -> Mapping[str, Any]:
        self._forget_old_windows()
        if self._filler is not None:
            self._filler.save()
        return {"table": self._table.save(), "watermarks": self._watermarks.save(), "late": self._late()}

    def _forget_old_windows(self) -> None:
        """Drops the state of closed windows that are older than DELETE_MARK."""
        until = self._watermarks.current
        if until is not None:
            self._table.forget(min(until, until + self._plan.watermark - self._plan.delete_mark))

    def _restore(self, meta: dict[str, Any]) -> None:
        self._watermarks.restore(meta["watermarks"])
        self._table.restore(meta["table"], self._watermarks.current)
        self._open = set(self._table.starts())
        now = self._clock.monotonic()
        if self._plan.trigger == "max_delay":
            for start in self._open:
                self._delayed.touch(start, None, now)
        for start, gids in meta["late"]:
            self._delayed.touch(start, self._table.groups_of(gids).tolist(), now)

    def _late(self) -> list[tuple[int, list[int]]]:
        """Returns what changed in closed windows and wasn't emitted yet: it can't be told from the windows' state."""
        if self._plan.trigger != "continuous_window_close":
            return []
        return [(start, self._table.gids_of(sorted(groups)))
                for start, groups in self._delayed.windows().items() if groups is not None]
