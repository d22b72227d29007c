"""Deletes that hide stored rows: which rows of a sorted chunk a set of tombstones hides. Stores nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.vnode.store.sorted_keys import I64, U64, Bools, find_ranges

# What DuckDB can hold in a timestamp, in units of the Arrow type; wider ranges are cut to it.
_LIMITS = {"ms": 9_223_372_036_854_000, "us": 9_223_372_036_854_000_000, "ns": 9_223_372_036_854_000_000}


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Rows of `tuids` (None: of all) with first_ts <= ts <= last_ts and a smaller version are gone.

    `dropped`: the child tables themselves are gone, so that also older snapshots must not show the rows.
    """

    version: int
    tuids: tuple[int, ...] | None
    first_ts: int
    last_ts: int
    dropped: bool = False

    def hides_for(self, as_of: int) -> bool:
        """Tells whether a reader as of this version sees the effect."""
        return self.dropped or self.version <= as_of

    def touches(self, first_ts: int, last_ts: int) -> bool:
        return self.first_ts <= last_ts and self.last_ts >= first_ts


class TombstoneIndex:
    """An immutable set of tombstones, ready to be applied to sorted rows."""

    def __init__(self, tombstones: Sequence[Tombstone], base: TombstoneIndex | None = None) -> None:
        """Indexes `tombstones` on top of those of `base`."""
        self._base = base
        every = [t for t in tombstones if t.tuids is None]
        self._all = [(t.first_ts, t.last_ts, np.uint64(t.version)) for t in every]
        some = [(uid, t.first_ts, t.last_ts, t.version) for t in tombstones for uid in t.tuids or ()]
        columns = zip(*some, strict=True) if some else ((), (), (), ())
        tuid, first, last, version = columns
        self._tuid: U64 = np.array(tuid, np.uint64)
        self._first: I64 = np.array(first, np.int64)
        self._last: I64 = np.array(last, np.int64)
        self._version: U64 = np.array(version, np.uint64)

    def __bool__(self) -> bool:
        return bool(self._all) or len(self._tuid) > 0 or bool(self._base)

    def _near(self, tuid: U64, first_ts: int, last_ts: int) -> Bools:
        near: Bools = ((self._first <= last_ts) & (self._last >= first_ts)
                       & (self._tuid >= tuid[0]) & (self._tuid <= tuid[-1]))
        return near

    def hidden(self, tuid: U64, ts: I64, version: U64) -> Bools:
        """Returns which of the rows, sorted by (tuid, ts), are hidden."""
        hidden = np.zeros(len(tuid), np.bool_)
        if not len(tuid):
            return hidden
        if self._base is not None:
            hidden = self._base.hidden(tuid, ts, version)
        for first, last, limit in self._all:
            hidden |= (ts >= first) & (ts <= last) & (version < limit)
        near = self._near(tuid, int(ts.min()), int(ts.max())) if len(self._tuid) else None
        if near is not None and near.any():
            start, stop = find_ranges(tuid, ts, self._tuid[near], self._first[near], self._last[near])
            limits = self._version[near]
            for index in np.flatnonzero(stop > start).tolist():
                rows = slice(start[index], stop[index])
                hidden[rows] |= version[rows] < limits[index]
        return hidden


def file_schema(time_type: pa.DataType) -> pa.Schema:
    """Returns the columns of the files in which other readers find the deletes of a table."""
    return pa.schema([("_tuid", pa.uint64()), ("first_ts", time_type), ("last_ts", time_type), ("_ver", pa.uint64())])


def to_table(tombstones: Iterable[Tombstone], time_type: pa.DataType, children: Sequence[int]) -> pa.Table:
    """Returns the tombstones as `file_schema` rows, one per child table; `children` are all that this vnode has.

    Versions count per vnode: a row that meant "all tables" would hide rows of other vnodes from a common view.
    """
    limit = _LIMITS[time_type.unit]
    rows = [(uid, max(t.first_ts, -limit), min(t.last_ts, limit), t.version)
            for t in tombstones for uid in (children if t.tuids is None else t.tuids)]
    columns = list(zip(*rows, strict=True)) if rows else [()] * 4
    schema = file_schema(time_type)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
                    schema=schema)
