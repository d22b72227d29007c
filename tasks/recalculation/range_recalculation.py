"""RECALCULATE STREAM: computes a range of time again, window by window, from what the vnode's store holds now.

Works in bounded pieces beside the live flow. Each piece covers whole windows, so that what it sends can take the
place of all that its vnode had contributed to them, and windows that no row is in any more cease to exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.planner.duckdb_sql.interval_windows import end_of, latest_end, starts_between
from penstock.planner.task_plans.stream_plan import TimeWindows
from penstock.tasks.protocol.block_schema import WINDOW_START
from penstock.tasks.recalculation.store_range_reader import PieceReader, Reads, RowsWanted, Spans
from penstock.vnode.store.sorted_keys import TS_MAX


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows to compute again, all of [first, last]. Of INTERVAL windows exactly those that start in it count.

    `retries`: the piece is one for single rows that are tried once more.
    """

    first: int
    last: int
    rows: pa.Table
    retries: bool


class RangeRecalculation:
    """The ranges that one source task still has to compute again; part of its checkpoint."""

    def __init__(self, windows: TimeWindows | None, rows_wanted: RowsWanted, spans: Spans, reads: Reads) -> None:
        """`windows`: what is computed again as a whole; None: single rows are."""
        self._windows = windows
        self._grid = None if windows is None else windows.grid
        self._spans = spans
        self._reads = reads
        self._pieces = PieceReader(rows_wanted, spans)
        self._ranges: list[tuple[int, int, bool]] = []

    @property
    def pending(self) -> bool:
        return bool(self._ranges)

    def add(self, first_ts: int, last_ts: int) -> None:
        """Orders the windows that hold any instant of [first_ts, last_ts], or the rows in it."""
        if first_ts <= last_ts:
            self._ranges.append((first_ts, last_ts, False))

    def whole(self, first_ts: int, last_ts: int) -> tuple[int, int]:
        """Returns the range of the rows of all windows that hold any instant of [first_ts, last_ts]."""
        if self._windows is None:
            return first_ts, last_ts
        last = TS_MAX if last_ts == TS_MAX else self._end(self._bounds(last_ts)[-1][0]) - 1
        return self._bounds(first_ts)[0][0], last

    def add_retries(self, instants: Iterable[int]) -> None:
        """Orders the windows that hold the instants of rows that are tried once more, each once, or those rows."""
        seen: set[int] = set()
        for ts in instants:
            first = ts if self._windows is None else self._bounds(ts)[0][0]
            if first not in seen:
                seen.add(first)
                self._ranges.append((ts, ts, True))

    def next(self, as_of: int, newest: int | None) -> Piece | None:
        """Returns the next piece as of a version of the WAL; None if the range has nothing to offer.

        A range without an end goes up to the last row that there is, and to `newest`, the greatest event time that the
        task has seen: windows that are shown may have no rows any more.
        """
        first, last, retries = self._ranges[0]
        if last == TS_MAX:
            found = self._spans(first, last, as_of)
            known = (newest, None if found is None else found.last_ts)
            last = max([first, *(ts for ts in known if ts is not None)])
            self._ranges[0] = (first, last, retries)  # or it would chase the live flow
        following = self._next_rows if self._windows is None else self._next_windows
        return following(first, last, as_of, retries)

    def save(self) -> list[tuple[int, int, bool]]:
        return list(self._ranges)

    def restore(self, saved: Sequence[tuple[int, int, bool]]) -> None:
        self._ranges = [(first, last, retries) for first, last, retries in saved]

    # -- inside ------------------------------------------------------------------------------------------------

    def _next_rows(self, first: int, last: int, as_of: int, retries: bool) -> Piece | None:
        piece = self._pieces.next(first, last, as_of)
        if piece is None:
            self._ranges.pop(0)
            return None
        self._go_on(piece[1] + 1, last)
        rows = self._reads(*piece, as_of)
        self._pieces.observe(rows.num_rows)
        return Piece(*piece, rows, retries)

    def _next_windows(self, first: int, last: int, as_of: int, retries: bool) -> Piece:
        start = self._bounds(first)[0][0]
        final = self._bounds(last)[-1][0]
        found = self._pieces.next(start, self._end(final) - 1, as_of)
        # A piece ends with the last window that its last row is in; stretches without rows are covered too.
        until = final if found is None else min(final, max(self._bounds(found[1])[-1][0], start))
        until = final if self._end(until) > last else self._with_shorter(until, final)
        rows = self._reads(start, self._end(until) - 1, as_of)
        self._pieces.observe(rows.num_rows)
        # The earliest window that holds the instant at which this one ends is the next.
        self._go_on(self._end(until) if until < final else last + 1, last)
        return Piece(start, until, rows, retries)

    def _go_on(self, first: int, last: int) -> None:
        if first > last:
            self._ranges.pop(0)
        else:
            self._ranges[0] = (first, *self._ranges[0][1:])

    def _bounds(self, ts: int) -> list[tuple[int, int]]:
        assert self._windows is not None
        return self._windows.bounds(ts)

    def _end(self, start: int) -> int:
        """Returns until when there are rows of the windows that start at `start` or before."""
        assert self._grid is not None
        return latest_end(start, self._grid)

    def _with_shorter(self, until: int, final: int) -> int:
        """Returns the start of the last window, up to `final`, before the first that ends after all up to `until`."""
        assert self._grid is not None
        for following in starts_between(until, final + 1, self._grid):
            if end_of(following, self._grid) > self._end(until):
                return until
            until = following
        return until


def within(partials: pa.RecordBatch, piece: Piece) -> pa.RecordBatch:
    """Returns the partials of the windows that a piece covers."""
    starts = partials.column(WINDOW_START.name)
    return partials.filter(pc.and_(pc.greater_equal(starts, piece.first), pc.less_equal(starts, piece.last)))
