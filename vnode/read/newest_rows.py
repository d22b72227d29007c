"""The newest row of each child table, read from where the newest times are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.vnode.read.snapshot import Snapshot
from penstock.vnode.store.sorted_keys import I64, U64, run_starts, run_stops
from penstock.wal.record import TUID_COLUMN

_ROWS_AT_ONCE = 200_000
_BEHIND_SHARE = 20


def read_newest_rows(snapshot: Snapshot, columns: Sequence[str], tuids: U64, times: I64) -> pa.Table | None:
    """Returns the row at each child table's newest time, sorted by child table: `_tuid` and the columns.

    `tuids` ascend, `times` are their newest ones. Few rows are read if most child tables are about as far; None if that
    isn't so, and a read of the whole table costs as much. None, too, if the row of a time isn't there any more.
    """
    if not len(tuids):
        return snapshot.to_arrow(columns, pa.array(tuids)).select([TUID_COLUMN, *columns])
    time = snapshot.schema.names[0]
    wanted = list(dict.fromkeys((time, *columns)))
    since = _since(snapshot, times)
    recent = times >= since
    if _BEHIND_SHARE * int((~recent).sum()) > len(tuids):
        return None
    pieces = []
    for some in (recent, ~recent):
        if some.any():
            rows = snapshot.to_arrow(wanted, None if some.all() else pa.array(tuids[some]), int(times[some].min()))
            of = rows.column(TUID_COLUMN).to_numpy()
            newest = run_stops(run_starts(of), len(of)) - 1 if len(of) else np.zeros(0, np.int64)
            found = rows.take(pa.array(newest))
            if some.all() and len(newest) != len(tuids):
                # Those that weren't asked for, or are new since the times were read.
                found = found.filter(pa.array(np.isin(of[newest], tuids)))
            pieces.append(found)
    found = pa.concat_tables(pieces).sort_by(TUID_COLUMN)
    there = found.column(TUID_COLUMN).to_numpy(), found.column(time).cast(pa.int64()).to_numpy()
    if len(found) != len(tuids) or not ((there[0] == tuids).all() and (there[1] == times).all()):
        return None
    return found.select([TUID_COLUMN, *columns])


def _since(snapshot: Snapshot, times: I64) -> int:
    """Returns the oldest of the times since which about as many rows are there as are read at once."""
    ascending = np.unique(times)
    low, high = 0, len(ascending) - 1
    last = int(ascending[-1])
    while low < high:
        middle = (low + high) // 2
        span = snapshot.span(int(ascending[middle]), last)
        if span is not None and span.rows > _ROWS_AT_ONCE:
            low = middle + 1
        else:
            high = middle
    return int(ascending[low])
