"""Rows that a stream leaves out for good although they are stored: from the future, or such that can't be computed.

Their keys are remembered on disk, so that what is read back from the vnode's store for recalculation lacks them too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.tasks.state_store import StateStore
from penstock.wal.record import DeleteRecord

_PREFIX = b"q"
_KEY = struct.Struct(">cQQ")
_SIGN = 1 << 63


class Quarantine:
    """The keys (table id, primary timestamp) that one source task leaves out. False while there are none."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._any = bool(store.between(_PREFIX, bytes([_PREFIX[0] + 1])))

    def __bool__(self) -> bool:
        return self._any

    def add(self, keys: Iterable[tuple[int, int]]) -> None:
        """Remembers rows to be left out."""
        packed = [(_key(tuid, ts), b"\1") for tuid, ts in keys]
        self._store.put_many(packed)
        self._any = self._any or bool(packed)

    def release(self, keys: Iterable[tuple[int, int]]) -> None:
        """Forgets rows: they were written once more, and count from now on."""
        self._store.put_many((_key(tuid, ts), None) for tuid, ts in keys)

    def forget(self, deletes: Sequence[DeleteRecord]) -> None:
        """Forgets rows that are gone from the source."""
        if not self._any:
            return
        for delete in deletes:
            if delete.tuids is None:
                keys = [key for key, _ in self._store.between(_PREFIX, bytes([_PREFIX[0] + 1]))
                        if delete.first_ts <= _KEY.unpack(key)[2] - _SIGN <= delete.last_ts]
            else:
                keys = [key for tuid in delete.tuids for key, _ in self._store.between(
                    _key(tuid, delete.first_ts), _key(tuid, delete.last_ts) + b"\0")]
            self._store.put_many((key, None) for key in keys)

    def holds(self, tuids: npt.NDArray[np.uint64], ts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Returns which of the rows are left out."""
        found = np.zeros(len(ts), bool)
        if not self._any or not len(ts):
            return found
        first, last = int(ts.min()), int(ts.max())
        for tuid in np.unique(tuids).tolist():
            keys = self._store.between(_key(tuid, first), _key(tuid, last) + b"\0")
            times = np.array([_KEY.unpack(key)[2] - _SIGN for key, _ in keys], np.int64)
            if len(times):
                found |= (tuids == tuid) & np.isin(ts, times)
        return found

    def without(self, rows: pa.Table, time_column: str) -> pa.Table:
        """Returns stored rows without those that are left out; `time_column` is that of the primary timestamp."""
        if not self._any:
            return rows
        gone = self.holds(rows.column("_tuid").to_numpy(), rows.column(time_column).cast(pa.int64()).to_numpy())
        return rows.filter(pa.array(~gone)) if gone.any() else rows


class TableTimes:
    """The newest event time of tables that have quarantined rows: what the vnode says of them counts those too."""

    def __init__(self) -> None:
        self._newest: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._newest)

    def watch(self, watched: Iterable[int], tuids: npt.NDArray[np.uint64], ts: npt.NDArray[np.int64]) -> None:
        """Goes by the rows of a record, and of those that follow, for the `watched` tables.

        Until there is one, no row of such a table is older than another.
        """
        for tuid in watched:
            mine = ts[tuids == tuid]
            self._newest[tuid] = max(self._newest.get(tuid, -_SIGN), int(mine.max()) if len(mine) else -_SIGN)

    def correct(self, tuids: npt.NDArray[np.uint64], ts: npt.NDArray[np.int64],
                last: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns `last` (the newest time of each row's table before the rows' record) as the stream has seen it."""
        last = last.copy()
        for tuid, newest in self._newest.items():
            mine = tuids == tuid
            if mine.any():
                last[mine] = newest
                self._newest[tuid] = max(newest, int(ts[mine].max()))
        return last

    def save(self) -> list[list[int]]:
        return [[tuid, newest] for tuid, newest in self._newest.items()]

    def restore(self, saved: Any) -> None:
        self._newest = dict(saved)


def _key(tuid: int, ts: int) -> bytes:
    return _KEY.pack(_PREFIX, tuid, ts + _SIGN)
