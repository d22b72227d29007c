"""The newest row of each child table, read from where the newest times are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.vnode.read.snapshot import Snapshot
from penstock.vnode.store.sorted_keys import I64, U64, Bools, run_starts, run_stops
from penstock.wal.record import TUID_COLUMN

_ROWS_AT_ONCE = 200_000
_FEW = 20


class NewestRows:
    """Reads the newest rows of one snapshot, if that is cheaper than to read all of them.

    One child table in twenty may be far behind, or have all of its rows read.
    """

    def __init__(self, snapshot: Snapshot, columns: Sequence[str], *, values: bool = False) -> None:
        """`values`: rows with NULLs aren't enough."""
        self._snapshot = snapshot
        self._columns = list(columns)
        self._time = snapshot.schema.names[0]
        self._wanted = list(dict.fromkeys((self._time, *columns)))
        self._values = values

    def read(self, tuids: U64, times: I64, likely: Bools) -> pa.Table | None:
        """Returns the row at each child table's newest time, or all of its rows: `_tuid` and the columns.

        `tuids` ascend, `times` are their newest ones, where a row is `likely` to be. None if it isn't cheaper.
        """
        if not len(tuids):
            return self._shown(self._snapshot.to_arrow(self._columns, pa.array(tuids)))
        if not likely.any():
            return None
        newest = self._at(tuids[likely], times[likely])
        if newest is None:
            return None
        enough = self._enough(newest, tuids, times)
        newest = newest.filter(pa.array(enough))
        others = tuids[~np.isin(tuids, newest.column(TUID_COLUMN).to_numpy())]
        if not len(others):
            return self._shown(newest)
        share = len(others) / len(tuids) * self._snapshot.row_count_estimate
        if _FEW * len(others) > len(tuids) or share > _ROWS_AT_ONCE:
            return None
        rows = self._snapshot.to_arrow(self._wanted, pa.array(others))
        return pa.concat_tables([self._shown(newest), self._shown(rows)])

    def _shown(self, rows: pa.Table) -> pa.Table:
        return rows.select([TUID_COLUMN, *self._columns])

    def _enough(self, rows: pa.Table, tuids: U64, times: I64) -> Bools:
        """Returns which rows are those at the newest times of their child tables, and say all that is needed."""
        of = rows.column(TUID_COLUMN).to_numpy()
        places = np.minimum(tuids.searchsorted(of), len(tuids) - 1)
        enough: Bools = (tuids[places] == of) & (times[places] == rows.column(self._time).cast(pa.int64()).to_numpy())
        if self._values:
            for name in self._columns:
                column = rows.column(name)
                if column.null_count:
                    enough &= column.is_valid().to_numpy()
        return enough

    def _at(self, tuids: U64, times: I64) -> pa.Table | None:
        """Returns the newest rows since about the newest times, sorted by child table; None if many are far behind."""
        since = self._since(times)
        recent = times >= since
        if _FEW * int((~recent).sum()) > len(tuids):
            return None
        pieces = []
        for some in (recent, ~recent):
            if some.any():
                asked = None if some.all() else pa.array(tuids[some])
                rows = self._snapshot.to_arrow(self._wanted, asked, int(times[some].min()))
                of = rows.column(TUID_COLUMN).to_numpy()
                last = run_stops(run_starts(of), len(of)) - 1 if len(of) else np.zeros(0, np.int64)
                pieces.append(rows.take(pa.array(last)))
        return pa.concat_tables(pieces).sort_by(TUID_COLUMN)

    def _since(self, times: I64) -> int:
        """Returns the oldest of the times since which about as many rows are there as are read at once."""
        ascending = np.unique(times)
        low, high = 0, len(ascending) - 1
        last = int(ascending[-1])
        while low < high:
            middle = (low + high) // 2
            span = self._snapshot.span(int(ascending[middle]), last)
            if span is not None and span.rows > _ROWS_AT_ONCE:
                low = middle + 1
            else:
                high = middle
        return int(ascending[low])
