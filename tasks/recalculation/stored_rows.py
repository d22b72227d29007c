"""What a source task reads back from its vnode's store: the relation `rows`, without rows that it has dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.planner.task_plans.stream_plan import StreamPlan
from penstock.tasks.compute.lateness import source_rows
from penstock.tasks.compute.quarantine import keys_of
from penstock.tasks.dropped.computable_rows import ComputableRows
from penstock.tasks.operators.stream_task import TaskEnvironment
from penstock.tasks.protocol.messages import RowKey
from penstock.tasks.protocol.store_requests import RowsRequest, SpanRequest
from penstock.tasks.recalculation.recent_rows import RecentRows
from penstock.vnode.read.snapshot import TimeSpan

ReadRows = Callable[[pa.Array | None, int, int, int], pa.Table]
"""(tuids or None, first_ts, last_ts, as_of) -> the relation `rows` of the vnode's store at that WAL version."""


class StoredRows:
    """The rows of one vnode's store, each read as of a version of its WAL.

    `recent`: those of them that are in memory as well, unfiltered.
    `unseen`: the versions, (first, last], whose rows the stream has never seen. Windows that rows define can't have
    them; others only lack those from before the stream, but for those that are `brought_in`: with a time in
    [first, last], up to a version. `rewritten`: while rows that are read back are tried as well, the keys that the
    block writes; else None.
    """

    def __init__(
        self, plan: StreamPlan, environment: TaskEnvironment, vgroup_id: int, computable: ComputableRows,
        start_version: int, recent: RecentRows,
    ) -> None:
        self._plan = plan
        self._source = plan.source
        self._environment = environment
        self._vgroup_id = vgroup_id
        self._computable = computable
        self._quarantine = computable.dropped.quarantine
        self.recent = recent
        before = [(0, start_version)] if plan.source.history is None else []
        self._from_before = tuple(before)
        self.unseen: list[tuple[int, int]] = before
        self.brought_in: list[tuple[int, int, int]] = []
        self.rewritten: frozenset[RowKey] | None = None

    def read(self, tuids: pa.Array | None, first_ts: int, last_ts: int, as_of: int) -> pa.Table:
        """Returns rows without those that are dropped for good."""
        return self.counting(self._stored(tuids, first_ts, last_ts, as_of), as_of)

    def read_at(self, tuids: npt.NDArray[np.uint64], ts: npt.NDArray[np.int64], as_of: int) -> pa.Table:
        """Returns rows of child tables at some times, of each at one, without those that are dropped for good."""
        if self._source.keep_tuid is not None:
            own = tuids == self._source.keep_tuid
            tuids, ts = tuids[own], ts[own]
        first, last = (int(ts.min()), int(ts.max())) if len(ts) else (0, 0)
        return self.counting(self._kept(self._environment.ask(RowsRequest(
            self._vgroup_id, self._source.storage_uid, pa.array(tuids), first, last, as_of, pa.array(ts)))), as_of)

    def seen(self, tuids: pa.Array, first_ts: int, last_ts: int, as_of: int) -> pa.Table:
        """Returns rows that the stream has seen, without those that are dropped for good."""
        return self._without_held(self._stored(tuids, first_ts, last_ts, as_of, self.unseen), as_of)

    def counting(self, rows: pa.Table, as_of: int) -> pa.Table:
        """Returns rows, as they are stored as of a version, without those that are dropped for good."""
        return self.tried(self._without_held(rows, as_of))

    def tried(self, rows: pa.Table) -> pa.Table:
        """Returns rows without those that can't be computed, if a block is being tried row by row."""
        return rows if self.rewritten is None else self._computable.of(rows, self.rewritten)

    def read_range(self, first_ts: int, last_ts: int, as_of: int) -> pa.Table:
        return self.read(None, first_ts, last_ts, as_of)

    def read_piece(self, first_ts: int, last_ts: int, as_of: int) -> pa.Table:
        """Returns what `read` does, and those rows that are to be tried once more."""
        rows = self._stored(None, first_ts, last_ts, as_of)
        held = self._quarantine.holds(rows, as_of)
        places = np.flatnonzero(held)
        for place, key in zip(places.tolist(), keys_of(rows.take(places), self._source), strict=True):
            held[place] = key not in self._computable.dropped.retries
        return rows.filter(pa.array(~held)) if held.any() else rows

    def bring_in(self, first_ts: int, last_ts: int, version: int) -> None:
        """Has rows from before the stream count that are in a range of time, up to a version.

        Windows that rows define go on without them: where they end depends on rows outside the range.
        """
        if self._from_before and self._plan.row_window is None:
            self.brought_in = [(first, last, until) for first, last, until in self.brought_in
                               if not first_ts <= first <= last <= last_ts]
            self.brought_in.append((first_ts, last_ts, version))

    def time_span(self, first_ts: int, last_ts: int, as_of: int) -> TimeSpan | None:
        """Returns where rows of a range lie, and about how many they are; None: there are none."""
        answer = self._environment.ask(
            SpanRequest(self._vgroup_id, self._source.storage_uid, first_ts, last_ts, as_of))
        return TimeSpan(**answer.to_pylist()[0]) if answer.num_rows else None

    def _without_held(self, rows: pa.Table, as_of: int) -> pa.Table:
        held = self._quarantine.holds(rows, as_of)
        return rows.filter(pa.array(~held)) if held.any() else rows

    def _stored(self, tuids: pa.Array | None, first_ts: int, last_ts: int, as_of: int,
                left_out: Sequence[tuple[int, int]] | None = None) -> pa.Table:
        if self._source.keep_tuid is not None:
            tuids = pa.array([self._source.keep_tuid], pa.uint64())
        return self._kept(self._environment.ask(RowsRequest(
            self._vgroup_id, self._source.storage_uid, tuids, first_ts, last_ts, as_of)), left_out)

    def _kept(self, stored: pa.Table, left_out: Sequence[tuple[int, int]] | None = None) -> pa.Table:
        """Returns rows that the stream is to count."""
        if left_out is None:
            left_out = self._from_before if self._plan.row_window is None else self.unseen
        versions = stored.column("_ver").to_numpy()
        kept = np.ones(len(versions), bool)
        for first, last in left_out:
            kept &= (versions <= first) | (versions > last)
        rows = source_rows(stored, self._plan)
        if kept.all():
            return rows
        ts = rows.column(self._source.time_column).to_numpy()
        for first, last, version in self.brought_in:
            kept |= (ts >= first) & (ts <= last) & (versions <= version)
        return rows.filter(pa.array(kept))
