"""The agg task of INTERVAL windows: combines partials into windows, and emits results as the trigger says."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.masks import all_set, any_set
from penstock.planner.duckdb_sql.interval_windows import EVER_START
from penstock.tasks.compute.accumulators import Slots
from penstock.tasks.compute.kernel_vectors import Bools
from penstock.tasks.compute.partial_columns import PartialColumns, PartialsBlock
from penstock.tasks.protocol.block_schema import ADD, OPENED, OPERATION, ROWS, UPSERT, WINDOW_START
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import Block, ReadBack, Retract, RetractEnd
from penstock.tasks.window.agg_task import AggTask
from penstock.tasks.window.held_windows import HeldWindows
from penstock.tasks.window.result_index import WITHDRAWN, ResultIndex
from penstock.tasks.window.window_fill import Filler
from penstock.tasks.window.window_pages import Times
from penstock.tasks.window.window_state import WindowState
from penstock.tasks.window.window_table import Touched, WindowTable, united

_FEW_WINDOWS = 8  # are quickly looked at one by one
_SHOW_OPEN = ("at_once", "max_delay")  # triggers


class WindowAggTask(AggTask):
    """One agg task of a stream with INTERVAL windows."""

    _table: WindowTable
    _table_kind: type[WindowTable] = WindowTable

    def _set_up(self, inputs: int, deployment: StreamDeployment) -> None:
        super()._set_up(inputs, deployment)
        self._table = self._table_kind(self._agg, self._plan.grouping.keys, inputs, self._store, self._functions)
        self._open: set[int] = set()
        #: the groups of open windows, by their starts, of which those who are notified were told
        self._announced: dict[int, set[int]] = {}
        # The state of windows that end by then is gone.
        self._forgotten_until: int | None = None
        self._merged: list[Touched] = []
        self._held = HeldWindows(inputs, self._table.step, self._is_forgotten)
        # Windows to ask the sources for.
        self._missing: list[int] = []
        self._following: deque[Iterator[pa.RecordBatch]] = deque()
        self._filler = None
        if self._agg.fill is not None:
            withdrawn = ResultIndex(self._store, prefix=WITHDRAWN) if deployment.attempt > 1 else None
            self._filler = Filler(self._agg.fill, self._table.grid, self._plan.grouping.keys, self._schema,
                                  self._store, self._computer, self._results_of, withdrawn=withdrawn)
            self._filler.problem = self._plan.sink.problem

    def _begin(self) -> None:
        if self._plan.sink.single:
            # Its row is there before any other is.
            source = self._plan.source
            gid = source.keep_tuid if source.group_is_table and source.keep_tuid is not None else 0
            self._emit(np.array([EVER_START]), self._table.groups.intern_ids(np.array([gid], np.uint64), lambda _: ()))

    def _merge_block(self, block: Block, input: int) -> None:
        until = self._forgotten_until
        if isinstance(block, PartialsBlock) and (until is None or block.oldest >= until):
            self._merge_columns(block.columns(), ADD, input)
        else:
            super()._merge_block(block, input)

    def _merge(self, data: pa.RecordBatch, input: int) -> None:
        operation = data.column(OPERATION.name)[0].as_py()
        data = self._remembered(data, operation, input)
        if data.num_rows:
            self._merge_columns(PartialColumns.of(data.select(data.schema.names[1:])), operation, input)

    def _merge_columns(self, partials: PartialColumns, operation: int, input: int) -> None:
        touched = self._table.merge(partials, operation, input)
        if operation == ADD:
            self._count_reopened(partials.rows, touched, self._upstream[input].index)
        self._merged.append(touched)

    def _remembered(self, data: pa.RecordBatch, operation: int, input: int) -> pa.RecordBatch:
        """Returns partials without those of windows whose state is gone.

        With IGNORE EXPIRED 0 their sources are asked for all that is in such a window, these rows included. With IGNORE
        EXPIRED 1 its result stays, and rows added to it are late: a source leaves out what is older than DELETE_MARK by
        its own vnode's time, but time goes on without idle vnodes. Windows that sources compute again come back.
        """
        until = self._forgotten_until
        if until is None or self._held.replaces(input):
            return data
        starts = data.column(WINDOW_START.name).to_numpy()
        if int(starts.min()) >= until:
            return data
        gone = self._table.ends(starts) <= until
        if self._plan.recalls:
            gone[gone] = ~self._held.returned(starts[gone], input)
        if not gone.any():
            return data
        lost = data.filter(pa.array(gone))
        if operation == ADD:
            late = self._late_kept if self._plan.recalls else self._late_forgotten
            late[self._upstream[input].index] += int(lost.column(ROWS.name).to_numpy().sum())
        if self._plan.recalls:
            groups = self._table.groups.intern(lost.select(lost.schema.names[1:]))
            self._want(starts[gone], groups)
        return data.filter(pa.array(~gone))

    def _want(self, starts: Times, groups: Slots) -> None:
        """Notes (window, group)s that have changed and whose windows' state is gone."""
        touched: dict[int, set[int]] = {}
        for start, group in zip(starts.tolist(), groups.tolist(), strict=True):
            touched.setdefault(start, set()).add(group)
        self._missing += self._held.want(touched)

    def _go_on(self) -> bool:
        asks = bool(self._missing)
        if asks:
            # Neighbouring windows are read together.
            ranges: list[tuple[int, int]] = []
            for start in sorted(self._missing):
                if ranges and start <= self._table.end(ranges[-1][1]):
                    ranges[-1] = ranges[-1][0], start
                else:
                    ranges.append((start, start))
            self._missing = []
            self._environment.read_back(ReadBack(self.id, tuple(ranges)))
        return self._follow() or asks

    def _waits_for(self) -> str:
        count = len(self._held.wanted) if self._held.any else 0
        return f"waits for {count} forgotten window{'' if count == 1 else 's'} to be read back" if count else ""

    def _is_forgotten(self, start: int) -> bool:
        return self._forgotten_until is not None and self._table.end(start) <= self._forgotten_until

    def _show_merged(self) -> None:
        if self._merged:
            parts, self._merged = self._merged, []
            if self._shows_closed_alone and not self._held.any:
                parts = [self._closed(part) for part in parts]
            touched = united(parts)
            if len(touched.starts):
                self._show(touched)
        self._table.spill(self._settings.state_memory_bytes, self._closed_until)

    @property
    def _shows_closed_alone(self) -> bool:
        """Whether nobody is to know which groups of open windows have changed."""
        return self._plan.trigger not in _SHOW_OPEN and not self._plan.announces_windows

    def _closed(self, touched: Touched) -> Touched:
        """Returns what was touched in closed windows; notes the others as open."""
        until, starts = self._closed_until, touched.starts
        is_open = np.ones(len(starts), bool) if until is None else self._table.ends(starts) > until
        self._open.update(starts[is_open].tolist())
        return touched.of_windows(~is_open)

    def _count_reopened(self, rows: Slots, touched: Touched, vnode: int) -> None:
        """Counts the rows of partials that came after their windows had closed. `vnode`: their own, by its place."""
        until = self._closed_until
        if until is None:
            return
        closed = self._table.ends(touched.starts) <= until
        if any_set(closed):
            self._late_kept[vnode] += int(rows[closed[touched.which]].sum())

    def _show(self, touched: Touched, *, ordered: bool = False) -> None:
        """Emits what changed in windows, as the trigger says; closed ones at once if their change was `ordered`."""
        until = self._closed_until
        starts = touched.starts
        shown = np.ones(len(starts), bool)
        if self._held.any:
            shown = np.array([not self._held.hold(start, touched.groups_of(place))
                              for place, start in enumerate(starts.tolist())], bool)
        still_open = shown if until is None else shown & (self._table.ends(starts) > until)
        self._open.update(starts[still_open].tolist())
        if self._plan.announces_windows:
            self._emit_opened(touched, still_open)
        emitted = shown
        if self._plan.trigger != "at_once":
            emitted = self._not_delayed(touched, shown, still_open, ordered=ordered)
        if all_set(emitted):
            self._emit(starts[touched.which], touched.groups)
        elif emitted.any():
            chosen = emitted[touched.which]
            self._emit(starts[touched.which[chosen]], touched.groups[chosen])

    def _not_delayed(self, touched: Touched, shown: Bools, still_open: Bools, *, ordered: bool) -> Bools:
        """Returns which of the windows that are shown are emitted now; notes those that a delay holds back."""
        closed = shown & ~still_open
        delayed = np.zeros(len(shown), bool)
        if self._plan.trigger == "max_delay":
            delayed = still_open
        elif self._plan.trigger == "continuous_window_close" and not ordered:
            delayed = closed
        now = self._clock.monotonic()
        for place in np.flatnonzero(delayed).tolist():
            self._delayed.touch(int(touched.starts[place]), touched.groups_of(place).tolist(), now)
        return closed & ~delayed

    def _emit_opened(self, touched: Touched, still_open: Bools) -> None:
        """Sends on which windows have opened, for those who are notified."""
        chosen = still_open[touched.which]
        starts, groups = touched.starts[touched.which[chosen]], touched.groups[chosen]
        fresh = []
        for place, (start, group) in enumerate(zip(starts.tolist(), groups.tolist(), strict=True)):
            announced = self._announced.setdefault(start, set())
            if group not in announced:
                announced.add(group)
                fresh.append(place)
        if fresh:
            results = self._final.compute(self._table.state(starts[fresh], groups[fresh]))
            # A window whose only row was deleted before it was told of hasn't opened.
            self._announce(results.filter(pc.equal(results.column(0), UPSERT)), OPENED)

    def _close_windows(self) -> None:
        """Emits the windows that the new watermark closes, unless they were emitted at once."""
        until = self._closed_until
        assert until is not None
        if len(self._open) <= _FEW_WINDOWS and all(self._table.end(start) > until for start in self._open):
            return
        opened = np.fromiter(self._open, np.int64, len(self._open))
        ready = np.sort(opened[self._table.ends(opened) <= until]).tolist()
        self._open.difference_update(ready)
        for start in ready:
            self._announced.pop(start, None)
        if self._plan.trigger != "at_once":
            for some in self._table.portions(ready, self._settings.state_memory_bytes):
                self._emit_windows([(start, None) for start in some])
                self._table.spill(self._settings.state_memory_bytes, until)
            if self._delayed.windows():
                for start in ready:
                    self._delayed.discard(start)

    def _next_closing(self) -> int | None:
        lateness = self._plan.policies.time.lateness
        return min((self._table.end(start) + lateness for start in self._open), default=None)

    def _emit_delayed(self) -> None:
        self._emit_windows(self._delayed.take())

    def _replace(self, signal: Retract | RetractEnd, input: int) -> None:
        if isinstance(signal, Retract):
            first, last = signal.first, signal.last
            self._held.clear(input, first, last, self._table.clear(first, last, input))
            return
        settled = self._held.settle(input)
        starts = np.array(list(settled), np.int64)
        sizes = [len(groups) for groups in settled.values()]
        if len(starts):
            touched = Touched(starts, np.repeat(np.arange(len(starts)), sizes), np.concatenate([*settled.values()]))
            self._show(touched, ordered=True)

    def _follow(self) -> bool:
        """Sends one chunk of what follows the results that were sent last; nothing else is emitted before."""
        if not self._following:
            return False
        chunk = next(self._following[0], None)
        if chunk is None:
            self._following.popleft()
        else:
            self._route(chunk)
            self._outbox.flush()
        return True

    # -- results -----------------------------------------------------------------------------------------------

    def _emit_windows(self, windows: Sequence[tuple[int, Slots | None]]) -> None:
        """Emits some groups of windows, or all (None); the oldest window first."""
        whole = [start for start, groups in windows if groups is None]
        parts = [(start, some) for start, some in windows if some is not None]
        if not parts:
            self._emit_state(self._table.state_of_all(whole))
            return
        places, groups = self._table.members(whole)
        starts = np.array(whole, np.int64)[places]
        sizes = [len(some) for _, some in parts]
        starts = np.concatenate([starts, np.repeat(np.array([start for start, _ in parts]), sizes)])
        groups = np.concatenate([groups, *(some for _, some in parts)])
        order = np.argsort(starts, kind="stable")
        self._emit(starts[order], groups[order])

    def _emit(self, starts: Times, groups: Slots) -> None:
        """Emits the results of (window, group)s."""
        if len(starts):
            self._emit_state(self._table.state(starts, groups))

    def _emit_state(self, state: WindowState) -> None:
        if not len(state):
            return
        results = self._final.compute(state)
        if self._filler is not None:
            results, following = self._filler.take(results, state.starts.tolist())
            self._following.append(following)
        self._route(results, state.groups)
        self._table.drop_empty(state.starts)

    def _results_of(self, windows: Sequence[tuple[int, int]]) -> pa.RecordBatch:
        """Returns the result rows of (group id, start) pairs as the state has them now, in their order."""
        groups = self._table.groups.numbers([gid for gid, _ in windows])
        return self._final.compute(self._table.state(np.array([start for _, start in windows], np.int64), groups))

    # -- checkpoints -----------------------------------------------------------------------------------------

    def _state(self) -> Mapping[str, Any]:
        self._forget_old_windows()
        if self._filler is not None:
            self._filler.save()
        return {**super()._state(), "late": self._late(), "forgotten_until": self._forgotten_until,
                "held": self._held.save(self._table.groups.id)}

    def _forget_old_windows(self) -> None:
        """Drops the state of closed windows that are older than DELETE_MARK."""
        if not self._plan.forgets:
            return
        times = [until for until in (self._forgettable_until(), self._forgotten_until) if until is not None]
        is_in_part = self._held.forget()
        if times:
            waiting = self._delayed.windows()
            self._forgotten_until = max(times)
            self._table.forget(self._forgotten_until, lambda start: start in waiting or is_in_part(start))

    def _forgettable_until(self) -> int | None:
        until, policies = self._closed_until, self._plan.policies
        return None if until is None else min(until, until + policies.closing_delay - policies.delete_mark)

    def _restore(self, meta: dict[str, Any]) -> None:
        self._table.restore(meta["table"], self._closed_until)
        self._open = set(self._table.starts())
        if self._plan.announces_windows:
            # Who is notified was told of them before the checkpoint.
            whole = sorted(self._open)
            for place, group in zip(*(each.tolist() for each in self._table.members(whole)), strict=True):
                self._announced.setdefault(whole[place], set()).add(group)
        self._forgotten_until = meta["forgotten_until"]
        self._held.restore(meta["held"], self._table.groups.numbers)
        self._missing = self._held.wanted
        now = self._clock.monotonic()
        if self._plan.trigger == "max_delay":
            for start in self._open:
                self._delayed.touch(start, None, now)
        for start, gids in meta["late"]:
            self._delayed.touch(start, self._table.groups.numbers(gids).tolist(), now)

    def _late(self) -> list[tuple[int, list[int]]]:
        """Returns what changed in closed windows and wasn't emitted yet: it can't be told from the windows' state."""
        if self._plan.trigger != "continuous_window_close":
            return []
        return [(start, [self._table.groups.id(group) for group in sorted(groups)])
                for start, groups in self._delayed.windows().items() if groups is not None]
