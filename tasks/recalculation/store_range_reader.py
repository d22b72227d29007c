"""Reads a range of time from a vnode's store in bounded pieces, oldest first."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from penstock.vnode.read.snapshot import TimeSpan

_GROWTH_MAX = 16

Spans = Callable[[int, int, int], TimeSpan | None]
"""(first_ts, last_ts, as_of) -> where there are rows."""
RowsWanted = Callable[[], int]
"""() -> about how many rows a piece should have now, 1 or more."""
Reads = Callable[[int, int, int], pa.Table]
"""(first_ts, last_ts, as_of) -> the relation `rows`."""


class PieceReader:
    """Finds the next piece of a range: about `rows_wanted` rows, or fewer; empty stretches are stepped over.

    Pieces are sized by an estimate that assumes even density. After a nearly empty piece the next one is wider, up to a
    bound: what is held in memory stays in proportion to `rows_wanted`.
    """

    def __init__(self, rows_wanted: RowsWanted, spans: Spans) -> None:
        self._rows_wanted = rows_wanted
        self._spans = spans
        self._growth = 1

    def next(self, first_ts: int, last_ts: int, as_of: int) -> tuple[int, int] | None:
        """Returns the bounds of the first piece of [first_ts, last_ts] as of a version; None: no rows are left."""
        rest = self._spans(first_ts, last_ts, as_of)
        if rest is None:
            return None
        first, last = rest.first_ts, rest.last_ts
        wanted = self._rows_wanted() * self._growth
        end = last if rest.rows <= wanted else min(last, first + max(1, (last - first + 1) * wanted // rest.rows) - 1)
        while end > first:
            found = self._spans(first, end, as_of)
            if found is None or found.rows <= 2 * wanted:
                break
            end = first + (end - first) // 2
        return first, end

    def observe(self, rows: int) -> None:
        """Takes note of how many rows the last piece had."""
        self._growth = min(_GROWTH_MAX, self._growth * 2) if rows * 4 < self._rows_wanted() else 1
