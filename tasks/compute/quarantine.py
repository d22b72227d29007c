"""Stored rows that a stream leaves out for good: they are from the future, or can't be computed.

Their keys are remembered on disk, so that what is read back from the vnode's store for recalculation lacks them too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.planner.task_plans.stream_plan import SourcePlan
from penstock.tasks.protocol.messages import RowKey
from penstock.tasks.state.state_store import StateStore
from penstock.wal.record import AnyDelete, DeletePointsRecord

_PREFIX = b"q"
_KEY = struct.Struct(">cQQ")
_SIGN = 1 << 63
_BEHIND_ALL = b"\xff"  # no text in UTF-8 has such a byte


class Quarantine:
    """The rows that one source task leaves out, by their keys, each since a version of the WAL.

    False while there are none. What a block of the WAL takes out of it counts as out as of before the block, until
    `settle` ends the block.
    """

    def __init__(self, store: StateStore, source: SourcePlan) -> None:
        self._store = store
        self._source = source
        self._leaving: dict[bytes, int] = {}
        self._any = bool(store.between(_PREFIX, bytes([_PREFIX[0] + 1])))

    def __bool__(self) -> bool:
        return self._any

    def add(self, keys: Iterable[tuple[RowKey, int]]) -> None:
        """Remembers rows to be left out, each since the version that it is given with."""
        for key, version in keys:
            packed = _packed(key)
            if self._leaving.pop(packed, None) is None and self._store.get_many([packed]) == [None]:
                self._store.put_many([(packed, version.to_bytes(8, "big"))])
            self._any = True

    def release(self, keys: Iterable[RowKey], version: int) -> None:
        """Forgets rows as of a version: they were written once more, and count from then on."""
        self._leaving.update((_packed(key), version) for key in keys)

    def forget(self, keys: Iterable[RowKey]) -> None:
        """Forgets rows, for reads as of any version."""
        self._store.put_many((_packed(key), None) for key in keys)

    def release_deleted(self, deletes: Sequence[AnyDelete]) -> None:
        """Forgets rows that are gone from the source."""
        for delete in deletes if self._any else ():
            self._leaving.update((key, delete.version) for key, since in self._in_range(delete)
                                 if since < delete.version)

    def settle(self) -> None:
        """Ends a block: what it has released is forgotten for reads as of before it, too."""
        if self._leaving:
            self._store.put_many((key, None) for key in self._leaving)
            self._leaving = {}

    def holds(self, rows: pa.Table, as_of: int | None = None) -> npt.NDArray[np.bool_]:
        """Returns which of the relation `rows` are left out, as of a version (None: before what the block releases)."""
        found = np.zeros(rows.num_rows, bool)
        if not self._any or not rows.num_rows:
            return found
        tuids, ts = rows.column("_tuid").to_numpy(), rows.column(self._source.time_column).to_numpy()
        second = None if self._source.key_column is None else rows.column(self._source.key_column)
        first, last = int(ts.min()), int(ts.max())
        for tuid in np.unique(tuids).tolist():
            keys = {key for key, since in self._between(tuid, first, last)
                    if as_of is None or since <= as_of < self._leaving.get(key, as_of + 1)}
            times = np.array([_KEY.unpack_from(key)[2] - _SIGN for key in keys], np.int64)
            if not len(times):
                continue
            near = (tuids == tuid) & np.isin(ts, times)
            if second is not None:
                for row in np.flatnonzero(near).tolist():
                    near[row] = _packed((tuid, int(ts[row]), second[row].as_py())) in keys
            found |= near
        return found

    def _between(self, tuid: int, first: int, last: int) -> list[tuple[bytes, int]]:
        return [(key, int.from_bytes(since, "big")) for key, since in self._store.between(
            _packed((tuid, first, None)), _packed((tuid, last, None)) + _BEHIND_ALL)]

    def _in_range(self, delete: AnyDelete) -> Iterator[tuple[bytes, int]]:
        if isinstance(delete, DeletePointsRecord):
            for tuid, times in delete.by_table():
                gone = {*times.tolist()}
                yield from ((key, since) for key, since in self._between(tuid, int(times[0]), int(times[-1]))
                            if _KEY.unpack_from(key)[2] - _SIGN in gone)
            return
        if delete.tuids is not None:
            for tuid in delete.tuids:
                yield from self._between(tuid, delete.first_ts, delete.last_ts)
            return
        for key, since in self._store.between(_PREFIX, bytes([_PREFIX[0] + 1])):
            if delete.first_ts <= _KEY.unpack_from(key)[2] - _SIGN <= delete.last_ts:
                yield key, int.from_bytes(since, "big")


def keys_of(rows: pa.Table, source: SourcePlan) -> list[RowKey]:
    """Returns the keys of the relation `rows`."""
    tuids = rows.column("_tuid").to_pylist()
    seconds = [None] * len(tuids) if source.key_column is None else rows.column(source.key_column).to_pylist()
    return list(zip(tuids, rows.column(source.time_column).to_pylist(), seconds, strict=True))


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


def _packed(key: RowKey) -> bytes:
    tuid, ts, second = key
    return _KEY.pack(_PREFIX, tuid, ts + _SIGN) + (b"" if second is None else str(second).encode())
