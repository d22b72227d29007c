"""Deletes of single times of child tables, of which there may be very many: as sorted columns."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa

from penstock.vnode.store.sorted_keys import (
    I64,
    TS_MAX,
    TS_MIN,
    U64,
    Bools,
    expand,
    find_ranges,
    in_key_order,
    kept_versions,
    key_order,
    last_not_above,
)

NEWEST = 2**64 - 1
_GROWTH = 4  # a run has at least so many times the points of the next one
_COLUMNS = 3
_BYTES = 8 * _COLUMNS  # of a point


@dataclass(frozen=True, slots=True)
class Extent:
    """Where rows may lie: both ends of each range are included. Of deletes, only those `behind` a version concern them.
    """

    first_ts: int = TS_MIN
    last_ts: int = TS_MAX
    first_tuid: int = 0
    last_tuid: int = NEWEST
    behind: int = 0


class PointRun:
    """Rows of child tables `tuid` at `ts` with smaller versions than `version` are gone.

    One length of at least 1, sorted by all three. Immutable; equal to itself alone.
    """

    __slots__ = ("_text", "max_ts", "max_version", "min_ts", "min_version", "ts", "tuid", "version")

    def __init__(self, tuid: U64, ts: I64, version: U64) -> None:
        self.tuid = tuid
        self.ts = ts
        self.version = version
        self.min_ts, self.max_ts = int(ts.min()), int(ts.max())
        self.min_version, self.max_version = int(version.min()), int(version.max())
        self._text: str | None = None

    @classmethod
    def of(cls, deletes: Sequence[tuple[U64, I64, int]]) -> PointRun:
        """Returns child tables and times of deletes of one version each, in the order of the versions, as one."""
        if len(deletes) == 1:
            tuids, times, version = deletes[0]
            return cls(tuids, times, np.full(len(tuids), version, np.uint64))
        tuid = np.concatenate([tuids for tuids, _, _ in deletes])
        ts = np.concatenate([times for _, times, _ in deletes])
        versions = np.repeat(np.array([version for _, _, version in deletes], np.uint64),
                             [len(tuids) for tuids, _, _ in deletes])
        order = key_order(tuid, ts, None, versions)
        return cls(tuid[order], ts[order], versions[order])

    def __len__(self) -> int:
        return len(self.tuid)

    def chosen(self, which: Bools) -> PointRun | None:
        """Returns some of the points; None if there are none, itself if all are chosen."""
        if which.all():
            return self
        return PointRun(self.tuid[which], self.ts[which], self.version[which]) if which.any() else None

    def merged(self, newer: PointRun) -> PointRun:
        """Returns the points of both."""
        if newer.min_version < self.max_version:
            tuid, ts = np.concatenate((self.tuid, newer.tuid)), np.concatenate((self.ts, newer.ts))
            version = np.concatenate((self.version, newer.version))
            order = key_order(tuid, ts, None, version)
            return PointRun(tuid[order], ts[order], version[order])
        _, place = find_ranges(self.tuid, self.ts, newer.tuid, newer.ts, newer.ts)
        return PointRun(np.insert(self.tuid, place, newer.tuid), np.insert(self.ts, place, newer.ts),
                        np.insert(self.version, place, newer.version))

    def hide(self, hidden: Bools, tuid: U64, ts: I64, version: U64, as_of: int) -> None:
        """Marks which of the rows, sorted by (tuid, ts), a reader as of a version finds deleted.

        Takes as long as it takes to look the fewer of points and rows up among the others.
        """
        if len(self) < len(tuid):
            seen = self.chosen(self.version <= np.uint64(as_of)) if self.max_version > as_of else self
            if seen is None:
                return
            newest = np.flatnonzero(kept_versions(seen.tuid, seen.ts, None, seen.version, None))
            points, limit = seen.tuid[newest], seen.version[newest]
            point, row = expand(*find_ranges(tuid, ts, points, seen.ts[newest], seen.ts[newest]))
            hidden[row[version[row] < limit[point]]] = True
            return
        first, behind = find_ranges(self.tuid, self.ts, tuid, ts, ts)
        if self.max_version > as_of:
            behind = last_not_above(self.version, first, behind, as_of)
        row = np.flatnonzero(behind > first)
        hidden[row[version[row] < self.version[behind[row] - 1]]] = True

    def near(self, extent: Extent, as_of: int) -> PointRun | None:
        """Returns the points in an extent that a reader as of a version sees; None if there are none."""
        if not (extent.behind < self.max_version and self.min_version <= as_of
                and self.min_ts <= extent.last_ts and extent.first_ts <= self.max_ts):
            return None
        start = int(self.tuid.searchsorted(np.uint64(extent.first_tuid), "left"))
        stop = int(self.tuid.searchsorted(np.uint64(extent.last_tuid), "right"))
        if start < stop and self.tuid[start] == self.tuid[stop - 1]:
            times = self.ts[start:stop]
            start, stop = (start + int(times.searchsorted(extent.first_ts, "left")),
                           start + int(times.searchsorted(extent.last_ts, "right")))
        if start >= stop:
            return None
        found = self
        if stop - start < len(self):
            found = PointRun(self.tuid[start:stop], self.ts[start:stop], self.version[start:stop])
        inside = np.ones(stop - start, np.bool_)
        if found.min_ts < extent.first_ts or extent.last_ts < found.max_ts:
            inside &= (found.ts >= extent.first_ts) & (found.ts <= extent.last_ts)
        if found.min_version <= extent.behind or as_of < found.max_version:
            inside &= (found.version > np.uint64(extent.behind)) & (found.version <= np.uint64(as_of))
        return found.chosen(inside)

    def needed(self, extents: Sequence[Extent], horizon: int) -> tuple[PointRun | None, int]:
        """Returns the points that rows in some extents, or readers as of a version before the newest ones, still need;
        and the newest version of those that nobody does, 0 if all are needed."""
        needed: Bools = self.version > np.uint64(horizon)
        for extent in extents:
            if extent.behind < self.max_version and not needed.all():
                needed |= ((self.version > np.uint64(extent.behind))
                           & (self.ts >= extent.first_ts) & (self.ts <= extent.last_ts)
                           & (self.tuid >= np.uint64(extent.first_tuid)) & (self.tuid <= np.uint64(extent.last_tuid)))
        idle = self.version[~needed]
        # Where a place was deleted again, who reads as of then or later goes by that.
        needed &= kept_versions(self.tuid, self.ts, None, self.version, horizon)
        return self.chosen(needed), int(idle.max()) if len(idle) else 0

    def to_text(self) -> str:
        """Returns the points as text, for `of_text`."""
        if self._text is None:
            near = np.diff(self.ts.view(np.uint64), prepend=np.uint64(0))
            content = b"".join(column.astype("<u8").tobytes() for column in (self.tuid, near, self.version))
            self._text = base64.b64encode(pa.compress(content, "zstd", asbytes=True)).decode()
        return self._text

    @classmethod
    def of_text(cls, count: int, text: str) -> PointRun:
        """Inverse of `to_text`, for so many points. Raises ValueError."""
        if count < 1:
            raise ValueError(f"{count} points")
        try:
            content = pa.decompress(base64.b64decode(text, validate=True), count * _BYTES, "zstd", asbytes=True)
        except OSError as error:
            raise ValueError(f"points cannot be decompressed: {error}") from error
        if len(content) != count * _BYTES:
            raise ValueError(f"{len(content)} bytes for {count} points")
        tuid, near, version = np.frombuffer(content, "<u8").reshape(_COLUMNS, count)
        ts = np.cumsum(near, dtype=np.uint64).view(np.int64)
        if not in_key_order(tuid, ts, None, version):
            raise ValueError("points are not in order")
        return cls(tuid, ts, version)


class PointDeletes:
    """The deletes of single times that a reader as of a version sees. Immutable.

    They are in a few runs, each much longer than the next; so new ones are cheap to add, and all are cheap to find.
    """

    __slots__ = ("_as_of", "_runs")

    def __init__(self, runs: tuple[PointRun, ...] = (), as_of: int = NEWEST) -> None:
        self._runs = runs
        self._as_of = as_of

    def __eq__(self, other: object) -> bool:
        """Tells whether they are surely the same; where others were added meanwhile, it may say no although they are.
        """
        return isinstance(other, PointDeletes) and self._runs == other._runs and self._as_of == other._as_of

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        """How many there are, those included that only readers as of newer versions see."""
        return sum(map(len, self._runs))

    def plus(self, newer: PointRun) -> PointDeletes:
        """Returns these and some newer ones."""
        runs = [*self._runs, newer]
        while len(runs) > 1 and len(runs[-2]) < _GROWTH * len(runs[-1]):
            runs[-2:] = [runs[-2].merged(runs[-1])]
        return PointDeletes(tuple(runs))

    def seen(self, as_of: int) -> PointDeletes:
        """Returns those that a reader as of a version sees."""
        if all(run.max_version <= as_of for run in self._runs):
            return self
        return PointDeletes(tuple(run for run in self._runs if run.min_version <= as_of), as_of)

    def hide(self, hidden: Bools, tuid: U64, ts: I64, version: U64) -> None:
        """Marks which of the rows, at least one, sorted by (tuid, ts), are deleted."""
        first, last, oldest = int(ts.min()), int(ts.max()), int(version.min())
        for run in self._runs:
            if (oldest < run.max_version and run.min_ts <= last and first <= run.max_ts
                    and run.tuid[0] <= tuid[-1] and tuid[0] <= run.tuid[-1]):
                run.hide(hidden, tuid, ts, version, self._as_of)

    def near(self, extent: Extent) -> Iterator[PointRun]:
        """Yields the points in an extent."""
        found = (run.near(extent, self._as_of) for run in self._runs)
        return (run for run in found if run is not None)

    def runs(self) -> Iterator[PointRun]:
        """Yields all of them."""
        return self.near(Extent())

    def needed(self, extents: Sequence[Extent], horizon: int) -> tuple[PointDeletes, int]:
        """See `PointRun.needed`."""
        if not self._runs:
            return self, 0
        every = reduce(PointRun.merged, self._runs)
        needed, idle = every.needed(extents, horizon)
        if needed is every:
            return self, 0
        return PointDeletes(() if needed is None else (needed,)), idle
