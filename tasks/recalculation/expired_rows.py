"""Rows that came too late for windows that rows define: they stay out of what is read back, by their keys on disk."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from penstock.tasks.compute.row_segments import TIME_COLUMN
from penstock.tasks.state.state_store import StateStore
from penstock.wal.record import AnyDelete, DeletePointsRecord

EXPIRED = b"x"
_BEHIND_ALL = b"y"
_ROW_KEY = struct.Struct(">cQQ")
_SIGN = 1 << 63

TimeRange = tuple[Sequence[int] | None, int, int]
"""Rows by their tables (None: of all), their first and their last time."""


class ExpiredRows:
    """The expired rows of one source task, by table and time."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._any = False

    def found(self) -> None:
        """The store that was restored has some."""
        self._any = True

    def add(self, rows: pa.Table) -> None:
        keys = zip(rows.column("_tuid").to_pylist(), rows.column(TIME_COLUMN).to_pylist(), strict=True)
        self._store.put_many((_row_key(tuid, ts), b"\1") for tuid, ts in keys)
        self._any = True

    def forget(self, ranges: Iterable[TimeRange]) -> None:
        """Has the rows of some ranges count from now on."""
        if not self._any:
            return
        for tuids, first, last in ranges:
            if tuids is None:
                keys = [key for key, _ in self._store.between(EXPIRED, _BEHIND_ALL)
                        if first <= _ROW_KEY.unpack(key)[2] - _SIGN <= last]
            else:
                keys = [key for tuid in tuids for key, _ in self._store.between(
                    _row_key(tuid, first), _row_key(tuid, last) + b"\0")]
            self._store.put_many((key, None) for key in keys)

    def forget_deleted(self, deletes: Sequence[AnyDelete]) -> None:
        """Has rows that come where others were deleted count."""
        for delete in deletes if self._any else ():
            if isinstance(delete, DeletePointsRecord):
                for tuid, times in delete.by_table():
                    keys = self._store.between(_row_key(tuid, int(times[0])), _row_key(tuid, int(times[-1])) + b"\0")
                    gone = {*times.tolist()}
                    self._store.put_many((key, None) for key, _ in keys if _ROW_KEY.unpack(key)[2] - _SIGN in gone)
            else:
                self.forget([(delete.tuids, delete.first_ts, delete.last_ts)])

    def removed_from(self, rows: pa.Table, first_ts: int, last_ts: int) -> pa.Table:
        """Returns stored rows of [first_ts, last_ts] without those that came expired."""
        if not self._any or not rows.num_rows:
            return rows
        tables = rows.column("_tuid").to_numpy()
        ts = rows.column(TIME_COLUMN).to_numpy()
        dropped = np.zeros(len(ts), bool)
        for tuid in np.unique(tables).tolist():
            keys = self._store.between(_row_key(tuid, first_ts), _row_key(tuid, last_ts) + b"\0")
            times = np.array([_ROW_KEY.unpack(key)[2] - _SIGN for key, _ in keys], np.int64)
            dropped |= (tables == tuid) & np.isin(ts, times)
        return rows.filter(pa.array(~dropped)) if dropped.any() else rows


def _row_key(tuid: int, ts: int) -> bytes:
    return _ROW_KEY.pack(EXPIRED, tuid, ts + _SIGN)
