"""A consistent view of one table at one version: as Arrow rows for small reads, as DuckDB SQL for large ones."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from penstock.common.errors import InvalidStatementError, PenstockError
from penstock.vnode.read.row_places import RowPlaces, Values, having, rows_with, values_of
from penstock.vnode.read.snapshot_sql import SnapshotSql, SqlBuilder
from penstock.vnode.store.chunk_reader import ChosenRows, Chunk, KeyFilter, gather, resolve
from penstock.vnode.store.manifest import extent_of
from penstock.vnode.store.memtable import VERSION_COLUMN, Run, TimeRange, between
from penstock.vnode.store.parts import PartCache
from penstock.vnode.store.points import Extent
from penstock.vnode.store.sorted_keys import I64, TS_MAX, TS_MIN, U64, each_once, time_ranges
from penstock.vnode.store.table_state import TableState
from penstock.vnode.store.tombstones import Tombstone
from penstock.wal.record import TUID_COLUMN

_SPANS_MAX = 8
_LOOKED_AT_MAX = 200_000  # rows of parts


@dataclass(frozen=True, slots=True)
class RowCount:
    """How many rows there are, at least one, and their least and greatest time."""

    rows: int
    first_ts: int
    last_ts: int


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Where the rows of a range of time lie: none is outside of [first_ts, last_ts]; `rows` is an estimate."""

    first_ts: int
    last_ts: int
    rows: int


class SnapshotTooOldError(PenstockError):
    """A reader asked for a version whose replaced rows were collapsed already; it should have set a pin."""

    actor = "developer"


class Snapshot:
    """All rows of one table as of one version. Immutable; its files stay readable while it lives."""

    def __init__(self, table: TableState, version: int, cache: PartCache) -> None:
        """Takes what a table holds now; see `of`."""
        self.table_uid = table.uid
        self.version = version
        self.schema = table.schema
        self._key_names: list[str] = table.schema.names[:table.key_columns]
        self._runs = [run for run in table.runs() if run.min_version <= version]
        self._parts = [part for part in table.parts if part.info.min_version <= version]
        self._tombstones = table.tombstones.seen(version)
        self._cache = cache
        self._forgotten = table.forgotten
        self._floor = table.floor

    @classmethod
    def of(cls, table: TableState, vgroup_id: int, version: int, cache: PartCache) -> Snapshot:
        """Returns the rows of a vnode's table as of a version. Raises SnapshotTooOldError.

        The caller holds the lock that guards the table.
        """
        if version < table.floor:
            raise SnapshotTooOldError(f"table {table.uid} of vnode {vgroup_id} can be read as of version "
                                      f"{table.floor} or later, not {version}")
        return cls(table, version, cache)

    @property
    def row_count_estimate(self) -> int:
        """An upper bound of the rows of the whole table: replaced and deleted ones may be counted too."""
        return sum(run.num_rows for run in self._runs) + sum(part.info.rows for part in self._parts)

    def span(self, first_ts: int, last_ts: int) -> TimeSpan | None:
        """Returns bounds and an estimated count of the rows with first_ts <= ts <= last_ts, None if there are none.

        Cheap: rows themselves aren't looked at, and replaced and deleted ones may be counted too.
        """
        pieces = [(run.min_ts, run.max_ts, run.num_rows) for run in self._runs]
        pieces += [(part.info.min_ts, part.info.max_ts, part.info.rows) for part in self._parts]
        inside = [(max(low, first_ts), min(high, last_ts), low, high, rows) for low, high, rows in pieces
                  if low <= last_ts and high >= first_ts]
        if not inside:
            return None
        count = sum(math.ceil(rows * (last - first + 1) / (high - low + 1)) for first, last, low, high, rows in inside)
        return TimeSpan(min(piece[0] for piece in inside), max(piece[1] for piece in inside), count)

    def written_since(self, version: int, most: int = 1) -> list[TimeRange]:
        """Returns ranges in which all times lie of rows that were written, and of deletes, behind a version.

        Of parts, whose rows aren't looked at, the whole ranges; of each run at most so many, as narrow as they may be.
        """
        ranges = [(part.info.min_ts, part.info.max_ts) for part in self._parts if part.info.max_version > version]
        for run in self._runs:
            if run.min_version > version and most == 1:
                ranges.append((run.min_ts, run.max_ts))
            elif run.max_version > version:
                ranges += time_ranges(run.ts[run.version > version], most)
        ranges += [(t.first_ts, t.last_ts) for t in self._tombstones.ranges if t.version > version]
        for points in self._tombstones.points.near(Extent(behind=version)):
            ranges += time_ranges(points.ts, most)
        return ranges

    def children_since(self, version: int) -> set[int] | None:
        """Returns the child tables of rows that were written, and of deletes, behind a version; None: any may be."""
        if version < self._forgotten:
            return None
        found: set[int] = set()
        for tombstone in self._tombstones.ranges:
            if tombstone.version > version:
                if tombstone.tuids is None:
                    return None
                found.update(tombstone.tuids)
        for points in self._tombstones.points.near(Extent(behind=version)):
            found.update(np.unique(points.tuid).tolist())
        chunks = self._chunks_since(version)
        if chunks is None:
            return None
        for chunk in chunks:
            found.update(np.unique(chunk.tuid[chunk.version > version]).tolist())
        return found

    def _chunks_since(self, version: int) -> list[Chunk] | None:
        """Returns what has rows that were written behind a version; None if these may lie among too many others."""
        chunks: list[Chunk] = [run for run in self._runs if run.max_version > version]
        parts = [part for part in self._parts if part.info.max_version > version]
        if sum(part.info.rows for part in parts) > _LOOKED_AT_MAX:
            return None
        for part in parts:
            chunks.extend(self._cache.row_groups(part.path, part.info, None, TS_MIN, TS_MAX))
        return chunks

    def changed_since(self, version: int, columns: Sequence[str], *, rewritten: bool, most: int) -> pa.Table | None:
        """Returns values of columns: of rows that were written behind a version, and what rows were that were deleted
        since, or, if `rewritten`, that were written again. Older values of such rows may be among them.

        None if that can't be told any more, or is of more than `most` rows.
        """
        deletes = [t for t in self._tombstones.ranges if t.version > version]
        if version < max(self._floor, self._forgotten) or any(t.tuids is None for t in deletes):
            return None
        newer = self._chunks_since(version)
        if newer is None:
            return None
        fields = [self.schema.field(name) for name in columns]
        found: list[pa.Table] = []
        tuids, firsts, lasts = _ranges_of(deletes)
        for points in self._tombstones.points.near(Extent(behind=version)):
            tuids.append(points.tuid)
            firsts.append(points.ts)
            lasts.append(points.ts)
        for chunk in newer:
            rows = np.flatnonzero((chunk.version > version) & (chunk.version <= self.version))
            found.append(values_of(chunk, rows, fields))
            if rewritten and chunk.updates is not None:
                rows = rows[(chunk.ts[rows] >= chunk.updates[0]) & (chunk.ts[rows] <= chunk.updates[1])]
                tuids.append(chunk.tuid[rows])
                firsts.append(chunk.ts[rows])
                lasts.append(chunk.ts[rows])
        gone = RowPlaces.of(np.concatenate(tuids), np.concatenate(firsts), np.concatenate(lasts))
        for chunk in self._chunks_at(gone):
            rows = gone.rows_of(chunk)
            found.append(values_of(chunk, rows[chunk.version[rows] <= version], fields))
        if sum(rows.num_rows for rows in found) > most:
            return None
        return pa.concat_tables([pa.schema(fields).empty_table(), *found])

    def ranges_of(self, tuid: int) -> list[TimeRange]:
        """Returns ranges of time in which rows of a child table lie: of each run, and of a row group of each part."""
        wanted = np.array([tuid], np.uint64)
        groups = [next(self._cache.row_groups(part.path, part.info, wanted, TS_MIN, TS_MAX), None)
                  for part in self._parts if part.info.min_tuid <= tuid <= part.info.max_tuid]
        filtered = KeyFilter(wanted)
        found = [chunk.ts[filtered.rows_of(chunk)] for chunk in [*groups, *self._runs] if chunk is not None]
        return [(int(times[0]), int(times[-1])) for times in found if len(times)]

    def counted(self, first_ts: int | None = None, last_ts: int | None = None) -> tuple[RowCount | None, Snapshot]:
        """Returns how many rows with first_ts <= ts <= last_ts are known without a look at them, and the other ones.

        Known are those of whole runs and parts that lie inside, of which none is replaced, deleted or newer. None is
        there if the count is None.
        """
        first = TS_MIN if first_ts is None else first_ts
        last = TS_MAX if last_ts is None else last_ts
        updates = [u for u in (*(p.info.updates for p in self._parts), *(r.updates for r in self._runs)) if u]

        def is_known(rows: Extent, newest: int) -> bool:
            return (first <= rows.first_ts and rows.last_ts <= last and newest <= self.version
                    and not any(_overlap(update, rows.first_ts, rows.last_ts) for update in updates)
                    and not self._tombstones.reach(rows))

        known: list[RowCount] = []
        rest = copy.copy(self)
        rest._parts, rest._runs = [], []
        for part in self._parts:
            info = part.info
            if is_known(extent_of(info), info.max_version):
                known.append(RowCount(info.rows, info.min_ts, info.max_ts))
            else:
                rest._parts.append(part)
        for run in self._runs:
            if is_known(_extent_of(run), run.max_version):
                known.append(RowCount(run.num_rows, run.min_ts, run.max_ts))
            else:
                rest._runs.append(run)
        return _in_all(known), rest

    def _columns(self, columns: Sequence[str] | None) -> list[str]:
        names: list[str] = list(self.schema.names if columns is None else columns)
        for name in names:
            if self.schema.get_field_index(name) < 0:
                raise InvalidStatementError(f"table {self.table_uid} stores no column {name}")
        return names

    def to_arrow(self, columns: Sequence[str] | None = None, tuids: pa.Array | None = None,
                 first_ts: int | None = None, last_ts: int | None = None) -> pa.Table:
        """Returns the rows sorted by (_tuid, ts): `_tuid`, the columns asked for (None: all), `_ver`.

        `tuids`: uint64 Arrow array of child tables, None for all. `first_ts`, `last_ts`: inclusive, in units of the
        table's precision, None for no bound. Raises InvalidStatementError for unknown columns, CorruptionError.
        """
        wanted = None if tuids is None else np.unique(np.asarray(tuids, dtype=np.uint64))
        first = TS_MIN if first_ts is None else first_ts
        last = TS_MAX if last_ts is None else last_ts
        return self._resolved(columns, self._chunks(wanted, first, last), KeyFilter(wanted, first, last), (first, last))

    def rows_at(self, columns: Sequence[str] | None, places: RowPlaces) -> pa.Table:
        """Returns the rows that lie at some places, as `to_arrow` does; it takes as long as these are many."""
        return self._resolved(columns, self._chunks_at(places), places)

    def rows_with(self, columns: Sequence[str], values: Values) -> pa.Table:
        """Returns the rows that have one of the values in each column, as `to_arrow` does."""
        chunks = self._chunks(None, TS_MIN, TS_MAX)
        found = list(zip(chunks, rows_with(chunks, values), strict=True))
        tuids = np.concatenate([np.zeros(0, np.uint64), *(chunk.tuid[rows] for chunk, rows in found)])
        times = np.concatenate([np.zeros(0, np.int64), *(chunk.ts[rows] for chunk, rows in found)])
        # Another version of such a row may be the newest.
        names = list(dict.fromkeys([*columns, *values]))
        rows = having(self._resolved(names, chunks, RowPlaces.of(tuids, times, times)), values)
        return rows.select([TUID_COLUMN, *columns, VERSION_COLUMN])

    def _resolved(self, columns: Sequence[str] | None, chunks: Sequence[Chunk], chosen: ChosenRows,
                  span: TimeRange = (TS_MIN, TS_MAX)) -> pa.Table:
        """Returns the chosen rows of chunks, of each key the newest; all of them lie in a range of time."""
        names = self._columns(columns)
        fields = [self.schema.field(name) for name in dict.fromkeys([*self._key_names, *names])]
        unique = not any(_overlap(chunk.updates, *span) for chunk in chunks)
        key_name = self._key_names[1] if len(self._key_names) == 2 else None
        rows = resolve(gather(chunks, chosen, fields), key_name, self._tombstones, as_of=self.version, pin=None,
                       unique=unique)
        return rows.select([TUID_COLUMN, *names, VERSION_COLUMN])

    def _chunks_at(self, places: RowPlaces) -> list[Chunk]:
        if not len(places.tuid):
            return []
        tuids, times = (places.tuid[:1], places.first) if places.are_of_one else (
            each_once(places.tuid), each_once(places.first))
        return self._chunks(tuids, int(places.first.min()), int(places.last.max()), times if places.are_times else None)

    def _chunks(self, tuids: U64 | None, first: int, last: int, times: I64 | None = None) -> list[Chunk]:
        if tuids is not None and not len(tuids):
            return []
        found: list[Chunk] = []
        low, high = (0, 2**64 - 1) if tuids is None else (int(tuids[0]), int(tuids[-1]))
        for part in self._parts:
            info = part.info
            if info.max_ts >= first and info.min_ts <= last and info.max_tuid >= low and info.min_tuid <= high:
                found.extend(self._cache.row_groups(part.path, info, tuids, first, last, times))
        found.extend(between(self._runs, first, last))
        return found

    def to_sql(self, columns: Sequence[str] | None = None, tuids: pa.Array | None = None,
               first_ts: int | None = None, last_ts: int | None = None,
               ranges: Sequence[tuple[str, int | None, int | None]] = (), *, epochs: bool = False) -> SnapshotSql:
        """Returns the same rows as `to_arrow`, unsorted, as DuckDB SQL over the parts and some Arrow tables.

        `ranges`: of timestamps among the columns; rows are left out whose value isn't between these, both included.
        `epochs`: timestamps are BIGINT in their own units, which DuckDB computes with several times faster.
        """
        names = self._columns(columns)
        first = TS_MIN if first_ts is None else first_ts
        last = TS_MAX if last_ts is None else last_ts
        sql = SqlBuilder(self.schema, self._key_names, names, self.version, (first, last), tuids, ranges,
                         epochs=epochs)
        parts = [p for p in self._parts if p.info.max_ts >= first and p.info.min_ts <= last]
        runs = between(self._runs, first, last)
        # Where keys may exist more than once: elsewhere nobody must look for the newest version of each.
        dirty = united([u for u in (*(p.info.updates for p in parts), *(r.updates for r in runs))
                        if u is not None and _overlap(u, first, last)])

        def reaches_out(low: int, high: int) -> bool:
            return not any(span[0] <= low and high <= span[1] for span in dirty)

        def reaches_in(low: int, high: int) -> bool:
            return any(_overlap(span, low, high) for span in dirty)

        sql.hide(self._tombstones, [*(extent_of(part.info) for part in parts), *map(_extent_of, runs)])
        clean_parts = [p for p in parts if not reaches_in(p.info.min_ts, p.info.max_ts)]
        clean_runs = [r for r in runs if not reaches_in(r.min_ts, r.max_ts)]
        dirty_parts = [p for p in parts if reaches_in(p.info.min_ts, p.info.max_ts)]
        dirty_runs = [r for r in runs if reaches_in(r.min_ts, r.max_ts)]
        cut_parts = [p for p in dirty_parts if reaches_out(p.info.min_ts, p.info.max_ts)]
        cut_runs = [r for r in dirty_runs if reaches_out(r.min_ts, r.max_ts)]
        selects = []
        if clean_parts or clean_runs or not dirty:
            selects.append(sql.rows(clean_parts, clean_runs))
        if cut_parts or cut_runs:
            selects.append(sql.rows(cut_parts, cut_runs, without=dirty))
        if dirty_parts or dirty_runs:
            selects.append(sql.rows(dirty_parts, dirty_runs, newest_in=dirty))
        return SnapshotSql("\nUNION ALL\n".join(selects), sql.tables, tuple(parts))


def _ranges_of(tombstones: Sequence[Tombstone]) -> tuple[list[U64], list[I64], list[I64]]:
    """Returns the child tables, first and last times of deletes."""
    rows = [(tuid, t.first_ts, t.last_ts) for t in tombstones for tuid in t.tuids or ()]
    tuids, firsts, lasts = zip(*rows, strict=True) if rows else ((), (), ())
    return [np.array(tuids, np.uint64)], [np.array(firsts, np.int64)], [np.array(lasts, np.int64)]


def _extent_of(run: Run) -> Extent:
    return Extent(run.min_ts, run.max_ts, int(run.tuid[0]), int(run.tuid[-1]), run.min_version)


def _in_all(counts: Sequence[RowCount]) -> RowCount | None:
    if not counts:
        return None
    return RowCount(sum(count.rows for count in counts), min(count.first_ts for count in counts),
                    max(count.last_ts for count in counts))


def united(spans: Sequence[TimeRange], most: int = _SPANS_MAX) -> list[TimeRange]:
    """Returns ascending ranges that cover all these, at most so many: those with the least between them become one."""
    found: list[TimeRange] = []
    for low, high in sorted(spans):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    if len(found) > most:
        gaps = sorted((after[0] - before[1], place) for place, (before, after) in enumerate(pairwise(found), 1))
        kept = sorted(place for _, place in gaps[len(gaps) - most + 1:])
        found = [(found[start][0], found[stop - 1][1])
                 for start, stop in zip([0, *kept], [*kept, len(found)], strict=True)]
    return found


def _overlap(span: TimeRange | None, first: int, last: int) -> bool:
    return span is not None and span[0] <= last and span[1] >= first
