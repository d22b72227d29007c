"""The agg task: combines partials of all its source tasks into windows, and emits results as the trigger says."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.sql.types import UNITS_PER_SECOND
from penstock.tasks.accumulators import Slots
from penstock.tasks.base_task import BaseTask
from penstock.tasks.compute import OPERATION, ROWS, WINDOW_START, result_schema
from penstock.tasks.delayed import Delayed
from penstock.tasks.destinations import Destinations
from penstock.tasks.fill import Filler
from penstock.tasks.held_windows import HeldWindows
from penstock.tasks.inbox import Inbox
from penstock.tasks.messages import Barrier, Block, Cleared, End, Settled, TaskId, TaskStatus, Watermark
from penstock.tasks.outbox import Outbox
from penstock.tasks.queues import ChannelQueue
from penstock.tasks.result_index import WITHDRAWN, ResultIndex
from penstock.tasks.task import StreamDeployment, TaskEnvironment
from penstock.tasks.watermarks import Watermarks
from penstock.tasks.window_table import ADD, WindowTable


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
        self._units_per_second = UNITS_PER_SECOND[plan.source.precision]
        self._inbox = Inbox(self.input, aligned=plan.guarantee == "exactly_once")
        self._outbox = Outbox(self.output, settings.block_bytes_max)
        self._table = self._open_table(len(upstream))
        self._upstream = tuple(upstream)
        self._inputs = {channel: n for n, channel in enumerate(upstream)}
        self._watermarks = Watermarks(len(upstream))
        self._destinations = Destinations(plan.sink, plan.keys, self._computer)
        self._schema = result_schema(plan.keys, plan.result_fields)
        self._open: set[int] = set()
        self._held = HeldWindows()
        # Per input that is idle: since when (monotonic seconds) its vnode has been quiet.
        self._quiet_since: dict[int, float] = {}
        self._ahead: frozenset[TaskId] = frozenset()
        self._delayed = Delayed(plan.period_ms / 1000)
        self._following: deque[Iterator[pa.RecordBatch]] = deque()
        self._filler = None
        if plan.fill is not None:
            withdrawn = ResultIndex(self._store, prefix=WITHDRAWN) if deployment.attempt > 1 else None
            self._filler = Filler(plan.fill, self._table.grid, plan.keys, self._schema, ResultIndex(self._store),
                                  self._computer, self._results_of, withdrawn=withdrawn)
        self._late_kept = 0
        self._rows_in = 0
        self._bytes_in = 0
        meta = self._restore_store(deployment.checkpoint_id)
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
        taken = self._inbox.next(self._ahead)
        if taken is None and self._idle_until() <= self._clock.monotonic():
            self._advance_by_clock()
            return True
        if taken is None:
            if self._inbox.aligning:
                waiting = ", ".join(str(channel) for channel in self._inbox.waiting_for())
                self._tracker.enter("ALIGNING", f"waits for the barrier of {waiting}")
            elif self._ahead:
                waiting = ", ".join(str(channel) for channel in sorted(self._ahead))
                self._tracker.enter("IDLE", f"holds back {waiting}, which is ahead by more than MAX_SKEW")
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
            case Watermark() as watermark:
                self._hear_time(self._inputs[channel], watermark)
            case Barrier(checkpoint_id) as barrier:
                if self._inbox.barrier(channel, barrier):
                    self._checkpoint(checkpoint_id, self._outbox)
            case Cleared(first, last):
                source = self._inputs[channel]
                self._held.clear(source, first, last, self._table.clear(first, last, source))
            case Settled():
                self._show(self._held.settle(self._inputs[channel]))
            case End():
                self._hear_time(self._inputs[channel], Watermark(None, idle=True))
        self._outbox.flush()
        return True

    def next_deadline(self) -> float | None:
        if self._outbox.blocked_channel is not None:
            return None
        deadlines = [at for at in (self._delayed.deadline, self._idle_until()) if at is not None and at != math.inf]
        return min(deadlines, default=None)

    def status(self) -> TaskStatus:
        return self._status(
            self.output, rows_in=self._rows_in, rows_out=self._outbox.rows_out, bytes_in=self._bytes_in,
            bytes_out=self._outbox.bytes_out, watermark=self._watermarks.current, late_kept=self._late_kept,
            held_back_by=tuple(self._upstream[n].index for n in self._watermarks.holding_back())
            if len(self._upstream) > 1 else (),
            windows_open=self._table.slots_used, state_bytes=self._table.memory_bytes + self._store.used_bytes)

    # -- windows ---------------------------------------------------------------------------------------------

    # -- time ------------------------------------------------------------------------------------------------

    def _hear_time(self, input: int, watermark: Watermark) -> None:
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
        skew = self._plan.time.max_skew
        if skew is not None:
            self._ahead = frozenset(self._upstream[input] for input in self._watermarks.ahead(skew))

    def _idle_until(self) -> float:
        """Returns when the clock closes the next window, because all vnodes are idle; infinity if it doesn't."""
        if not self._plan.time.close_when_idle or not self._watermarks.all_idle:
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

    def _next_closing(self) -> int | None:
        """Returns the least watermark that closes a window, None if none is open."""
        lateness = self._plan.time.lateness
        return min((self._table.end(start) + lateness for start in self._open), default=None)

    @property
    def _closed_until(self) -> int | None:
        """Windows that end by then are closed; None: none is."""
        current = self._watermarks.current
        return None if current is None else current - self._plan.time.lateness

    def _open_table(self, inputs: int) -> WindowTable:
        return WindowTable(self._agg, self._plan.keys, inputs, self._store, self._functions)

    def _merge(self, data: pa.RecordBatch, input: int) -> None:
        operation = data.column(OPERATION.name)[0].as_py()
        touched = self._table.merge(data.select(data.schema.names[1:]), operation, input)
        if operation == ADD:
            self._count_reopened(data, touched)
        self._show({start: groups for start, groups in touched.items() if not self._held.hold(start, groups)})
        self._table.spill(self._settings.state_memory_bytes, self._closed_until)

    def _count_reopened(self, data: pa.RecordBatch, touched: Iterable[int]) -> None:
        """Counts the rows that came after their windows had closed."""
        until = self._closed_until
        closed = [start for start in touched if until is not None and self._table.end(start) <= until]
        if closed:
            mask = pc.is_in(data.column(WINDOW_START.name), pa.array(closed, pa.int64()))
            self._late_kept += pc.sum(data.column(ROWS.name).filter(mask)).as_py() or 0

    def _show(self, touched: Mapping[int, Slots]) -> None:
        """Emits what changed in windows, as the trigger says."""
        until = self._closed_until
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
        until = self._closed_until
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
        sinks = self._destinations.sinks_of(self._destinations.learn(results), len(channels))
        for n, channel in enumerate(channels):
            self._outbox.send(channel, results.filter(pa.array(sinks == n)))

    # -- checkpoints -----------------------------------------------------------------------------------------

    def _abandon(self, checkpoint_id: int) -> None:
        self._inbox.abandon(checkpoint_id)

    def _state(self) -> Mapping[str, Any]:
        self._forget_old_windows()
        if self._filler is not None:
            self._filler.save()
        return {"table": self._table.save(), "watermarks": self._watermarks.save(), "late": self._late(),
                "late_kept": self._late_kept}

    def _forget_old_windows(self) -> None:
        """Drops the state of closed windows that are older than DELETE_MARK."""
        until = self._closed_until
        if until is not None:
            self._table.forget(min(until, until + self._plan.closing_delay - self._plan.delete_mark))

    def _restore(self, meta: dict[str, Any]) -> None:
        self._watermarks.restore(meta["watermarks"])
        # How long the engine was down isn't known: quiet vnodes are quiet from now on.
        self._quiet_since = dict.fromkeys(self._watermarks.idle_inputs(), self._clock.monotonic())
        self._hold_back()
        self._late_kept = meta.get("late_kept", 0)
        self._table.restore(meta["table"], self._closed_until)
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
