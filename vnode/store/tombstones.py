"""Deletes that hide stored rows: which rows of a sorted chunk they hide. Stores nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.vnode.store.points import Extent, PointDeletes, PointRun
from penstock.vnode.store.sorted_keys import I64, U64, Bools, find_ranges

# What DuckDB can hold in a timestamp, in units of the Arrow type; wider ranges are cut to it.
_LIMITS = {"ms": 9_223_372_036_854_000, "us": 9_223_372_036_854_000_000, "ns": 9_223_372_036_854_000_000}
_RECENT_RANGES = 256
_RECENT_POINTS = 4096


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

    def reaches(self, extent: Extent) -> bool:
        """Tells whether rows in an extent may be hidden."""
        return (self.version > extent.behind and self.touches(extent.first_ts, extent.last_ts)
                and (self.tuids is None or any(extent.first_tuid <= tuid <= extent.last_tuid for tuid in self.tuids)))

    @property
    def is_of_points(self) -> bool:
        """Whether it is one of those of which there may be very many."""
        return bool(self.tuids) and self.first_ts == self.last_ts and not self.dropped


class _RangeIndex:
    """An immutable set of tombstones, ready to be applied to sorted rows."""

    def __init__(self, tombstones: Sequence[Tombstone], base: _RangeIndex | None = None) -> None:
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

    def _near(self, tuid: U64, first_ts: int, last_ts: int) -> Bools:
        near: Bools = ((self._first <= last_ts) & (self._last >= first_ts)
                       & (self._tuid >= tuid[0]) & (self._tuid <= tuid[-1]))
        return near

    def hide(self, hidden: Bools, tuid: U64, ts: I64, version: U64) -> None:
        """Marks which of the rows, at least one, sorted by (tuid, ts), are hidden."""
        if self._base is not None:
            self._base.hide(hidden, tuid, ts, version)
        for first, last, limit in self._all:
            hidden |= (ts >= first) & (ts <= last) & (version < limit)
        near = self._near(tuid, int(ts.min()), int(ts.max())) if len(self._tuid) else None
        if near is not None and near.any():
            start, stop = find_ranges(tuid, ts, self._tuid[near], self._first[near], self._last[near])
            limits = self._version[near]
            for index in np.flatnonzero(stop > start).tolist():
                rows = slice(start[index], stop[index])
                hidden[rows] |= version[rows] < limits[index]


class Tombstones:
    """All deletes of a table that a reader sees: a few `ranges`, oldest first, and `points`. Immutable.

    A delete of a single time is among the points; one of child tables that were dropped is a range.
    """

    __slots__ = ("_index", "points", "ranges")

    def __init__(self, ranges: tuple[Tombstone, ...] = (), points: PointDeletes | None = None,
                 index: _RangeIndex | None = None) -> None:
        """`index`: that of the ranges, if there is one already."""
        self.ranges = ranges
        self.points = PointDeletes() if points is None else points
        self._index = index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tombstones) and self.ranges == other.ranges and self.points == other.points

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.ranges) + len(self.points)

    def hidden(self, tuid: U64, ts: I64, version: U64) -> Bools:
        """Returns which of the rows, sorted by (tuid, ts), are hidden."""
        hidden = np.zeros(len(tuid), np.bool_)
        if len(tuid):
            if self.ranges:
                if self._index is None:
                    self._index = _RangeIndex(self.ranges)
                self._index.hide(hidden, tuid, ts, version)
            self.points.hide(hidden, tuid, ts, version)
        return hidden

    def hide(self, tuid: int, ts: int, version: int) -> bool:
        """Tells whether one row is hidden."""
        return bool(self.hidden(
            np.array([tuid], np.uint64), np.array([ts], np.int64), np.array([version], np.uint64))[0])

    def seen(self, as_of: int) -> Tombstones:
        """Returns those that a reader as of a version sees."""
        points = self.points.seen(as_of)
        if next((t.version for t in reversed(self.ranges) if not t.dropped), 0) > as_of:
            return Tombstones(tuple(t for t in self.ranges if t.hides_for(as_of)), points)
        return self if points is self.points else Tombstones(self.ranges, points, self._index)

    def reach(self, extent: Extent) -> bool:
        """Tells whether rows in an extent may be hidden."""
        return any(t.reaches(extent) for t in self.ranges) or any(True for _ in self.points.near(extent))

    def count_until(self, version: int) -> int:
        """Returns how many are no newer than a version."""
        return sum(t.version <= version for t in self.ranges) + sum(map(len, self.points.seen(version).runs()))

    def needed(self, extents: Sequence[Extent], horizon: int) -> tuple[Tombstones, int]:
        """Returns those that rows in some extents, or readers as of versions before newer ones, still need.

        And the newest version of the others, 0 if all are needed. All readers are as of `horizon` or later.
        """
        ranges = tuple(t for t in self.ranges if t.version > horizon or any(map(t.reaches, extents)))
        points, idle = self.points.needed(extents, horizon)
        if len(ranges) < len(self.ranges):
            kept = {*ranges}
            idle = max(idle, *(t.version for t in self.ranges if t not in kept))
        return Tombstones(ranges, points), idle


class TableDeletes:
    """The deletes of a table as they come. Guarded by what guards the table."""

    def __init__(self) -> None:
        self._ranges: list[Tombstone] = []
        self._points = PointDeletes()
        self._recent: list[tuple[U64, I64, int]] = []  # points behind those
        self._recent_count = 0
        self._told_ranges: tuple[Tombstone, ...] = ()  # as of when they were last asked for
        self._told: Tombstones | None = Tombstones()
        self._index: _RangeIndex | None = None
        self._base: tuple[int, _RangeIndex] | None = None  # over so many of the oldest ranges

    def __len__(self) -> int:
        return len(self._ranges) + len(self._points) + self._recent_count

    def add_range(self, tombstone: Tombstone) -> None:
        self._ranges.append(tombstone)
        self._told = self._index = None

    def add_points(self, tuids: U64, times: I64, version: int) -> None:
        """Adds deletes of single times, at least one, sorted by both, of one version."""
        self._recent.append((tuids, times, version))
        self._recent_count += len(tuids)
        self._told = None
        if self._recent_count > _RECENT_POINTS:
            self._settle()

    def _settle(self) -> None:
        """Brings recent points among the others: those that come one by one many at once."""
        if self._recent:
            self._points = self._points.plus(PointRun.of(self._recent))
            self._recent, self._recent_count = [], 0

    def add_points_of(self, tombstones: Tombstones) -> None:
        """Adds the points of others."""
        self._settle()
        for run in tombstones.points.runs():
            self._points = self._points.plus(run)
        self._told = None

    def replace(self, tombstones: Tombstones) -> None:
        """Forgets all for others."""
        self._ranges, self._points = list(tombstones.ranges), tombstones.points
        self._recent, self._recent_count = [], 0
        self._told_ranges, self._told = tombstones.ranges, tombstones
        self._index = self._base = None

    @property
    def told(self) -> Tombstones:
        """All of them. Ranges may be many, too, and are copied when there are new ones: not for each write."""
        if self._told is None:
            self._settle()
            if len(self._told_ranges) != len(self._ranges):
                self._told_ranges = tuple(self._ranges)
            self._told = Tombstones(self._told_ranges, self._points, self._indexed())
        return self._told

    def _indexed(self) -> _RangeIndex | None:
        """Returns all ranges, ready to be applied; the base is kept over many, since building it takes long."""
        if self._index is None and self._ranges:
            if self._base is None or len(self._ranges) - self._base[0] > _RECENT_RANGES:
                self._base = (len(self._ranges), _RangeIndex(self._ranges))
            count, base = self._base
            self._index = _RangeIndex(self._ranges[count:], base) if count < len(self._ranges) else base
        return self._index


def file_schema(time_type: pa.DataType) -> pa.Schema:
    """Returns the columns of the files in which other readers find the deletes of a table."""
    return pa.schema([("_tuid", pa.uint64()), ("first_ts", time_type), ("last_ts", time_type), ("_ver", pa.uint64())])


def to_table(tombstones: Tombstones, time_type: pa.DataType, children: Sequence[int]) -> pa.Table:
    """Returns the tombstones as `file_schema` rows, one per child table; `children` are all that this vnode has.

    Versions count per vnode: a row that meant "all tables" would hide rows of other vnodes from a common view.
    """
    limit = _LIMITS[time_type.unit]
    rows = [(uid, max(t.first_ts, -limit), min(t.last_ts, limit), t.version)
            for t in tombstones.ranges for uid in (children if t.tuids is None else t.tuids)]
    columns = list(zip(*rows, strict=True)) if rows else [()] * 4
    schema = file_schema(time_type)
    found = [pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
                      schema=schema)]
    for run in tombstones.points.runs():
        first, last = (pa.array(times).view(time_type)
                       for times in (np.maximum(run.ts, -limit), np.minimum(run.ts, limit)))
        found.append(pa.table([pa.array(run.tuid), first, last, pa.array(run.version)], schema=schema))
    return pa.concat_tables(found).combine_chunks()
