"""FILL_HISTORY: hands a source task the rows from before its stream, in ascending event time, resumable.

History is what the vnode's store held at the stream's start cut. Once it is read the task goes on with the WAL behind
the cut, so no row is lost and none counts twice. The cursor is part of the task's checkpoint.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.common.clock import Clock
from penstock.planner.task_plans.stream_plan import History
from penstock.tasks.protocol.task_status import HistoryProgress
from penstock.tasks.recalculation.store_range_reader import PieceReader, Reads, RowsWanted, Spans
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN


class HistoryReader:
    """Reads one vnode's share of a stream's history. `as_of` is the WAL version of the stream's start cut."""

    def __init__(
        self, history: History, as_of: int, rows_wanted: RowsWanted, spans: Spans, reads: Reads, clock: Clock
    ) -> None:
        self.as_of = as_of
        self._low = TS_MIN if history.first_ts is None else history.first_ts
        self._high = TS_MAX if history.last_ts is None else history.last_ts
        self._spans = spans
        self._reads = reads
        self._pieces = PieceReader(rows_wanted, spans)
        self._clock = clock
        self._bounds: tuple[int, int] | None = None
        self._next = self._low
        self._rows = 0
        self.done = False
        self._began: tuple[float, int] | None = None

    def read(self) -> pa.Table | None:
        """Returns the next rows as the relation `rows`, maybe none in this stretch; None once all were read."""
        if self._bounds is None:
            found = self._spans(self._low, self._high, self.as_of) if self._low <= self._high else None
            self._bounds = (self._low, self._low) if found is None else (found.first_ts, found.last_ts)
            self.done = found is None
        if self._began is None:
            self._began = self._clock.monotonic(), self._next
        piece = None if self.done else self._pieces.next(self._next, self._bounds[1], self.as_of)
        if piece is None:
            self.done = True
            return None
        first, last = piece
        rows = self._reads(first, last, self.as_of)
        self._pieces.observe(rows.num_rows)
        self._rows += rows.num_rows
        self._next = last + 1
        self.done = self._next > self._bounds[1]
        return rows

    def progress(self) -> HistoryProgress:
        """Returns how far it is; the time left is an estimate from the pace of this attempt."""
        if self._bounds is None:
            return HistoryProgress(None, None, None, self._rows, 0.0, None, self.done)
        first, last = self._bounds
        reached = min(max(self._next, first), last + 1)
        share = 1.0 if self.done else (reached - first) / (last - first + 1)
        remaining_ms = None
        if self._began is not None and not self.done:
            seconds = self._clock.monotonic() - self._began[0]
            covered = reached - max(self._began[1], first)
            if covered > 0:
                remaining_ms = round(1000 * seconds * (last + 1 - reached) / covered)
        return HistoryProgress(first, last, reached - 1 if self._rows else None, self._rows, share, remaining_ms,
                               self.done)

    def save(self) -> dict[str, Any]:
        return {"bounds": self._bounds, "next": self._next, "rows": self._rows, "done": self.done,
                "as_of": self.as_of}

    def restore(self, saved: dict[str, Any]) -> None:
        bounds = saved["bounds"]
        self._bounds = None if bounds is None else (bounds[0], bounds[1])
        self._next, self._rows, self.done, self.as_of = saved["next"], saved["rows"], saved["done"], saved["as_of"]
