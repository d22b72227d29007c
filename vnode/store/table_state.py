"""One storage table in memory: its runs, parts, deletes and newest times, and the verdict on rows to be written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.common.masks import all_set
from penstock.vnode.store.chunk_reader import Chunk, Found, find_existing, find_newest, has_row, stored_values
from penstock.vnode.store.delivery import Partition, Place, place_of
from penstock.vnode.store.manifest import LastTimes, PartInfo, TableManifest
from penstock.vnode.store.memtable import VERSION_COLUMN, Memtable, RowKey, Run, TimeRange, between, newest_times
from penstock.vnode.store.newest_times import NewestTimes
from penstock.vnode.store.parts import PartCache
from penstock.vnode.store.row_preparation import PreparedRows
from penstock.vnode.store.sorted_keys import (
    I64,
    TS_MIN,
    U64,
    Bools,
    Index,
    run_starts,
    run_stops,
    times_of,
    tuids_of,
)
from penstock.vnode.store.tombstones import TableDeletes, Tombstone, Tombstones
from penstock.wal.packed_rows import RowFormat, row_format
from penstock.wal.record import (
    CHANGE_COLUMN,
    LAST_COLUMN,
    TUID_COLUMN,
    AnyDelete,
    DeletePointsRecord,
    IngestOrigin,
    RowsRecord,
    with_key_columns,
)

APPEND, LATE, UPDATE = 0, 1, 2
KEY_TEXT = "#key"
"""What the second key column is called where rows go by a KEY in place of a time: see `sql.rows.keyed_rows`."""


Row = tuple[Any, ...]
"""The uid of a row's child table, its time as an integer, and the values of the other columns."""

_LOOKED_UP_MAX = 16  # rows, one by one; for more of them columns are cheaper

FewKeys = tuple[list[int], list[int]]
"""The uids of the child tables of a few rows, and their times."""


def _plain(column: pa.Array) -> pa.Array:
    """Returns times as integers, all else as it is."""
    return column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column


class PartHandle:
    """A part in use. A replaced part's file is deleted only after nobody holds its handle any more."""

    __slots__ = ("__weakref__", "info", "path")

    def __init__(self, info: PartInfo, path: Path) -> None:
        self.info = info
        self.path = path


@dataclass(frozen=True, slots=True)
class Decided:
    """Complete rows and the verdict: `_tuid`, all columns, and, unless all rows are appends, `change` and `last`.

    `last`: the newest time of the row's table before this write.
    """

    arrays: list[pa.Array]
    change: npt.NDArray[np.uint8] | None
    last: npt.NDArray[np.int64] | None
    updates: TimeRange | None


class PackedRows(NamedTuple):
    """A few complete rows in the order of their keys, none of which comes twice, and their packed form."""

    rows: Sequence[Row]
    packed: Sequence[bytes]


class PackedVerdict(NamedTuple):
    """What packed rows are: of each its change, as the log says it, and its form there; None: all are appends."""

    change: Sequence[int] | None
    in_log: Sequence[bytes]


_ALL_APPENDS = PackedVerdict(None, ())


def stored_form(batch: pa.RecordBatch) -> tuple[list[pa.Array], pa.Schema, TimeRange | None]:
    """Returns rows of the log as they are stored, without the verdict: arrays and their schema, to which versions are
    to be added, and in which range of times rows replace others."""
    names: list[str] = batch.schema.names
    updates: TimeRange | None = None
    arrays = batch.columns
    if names[-1] == LAST_COLUMN:
        updated = np.flatnonzero(arrays[-2].to_numpy() == UPDATE)
        if len(updated):
            times = arrays[1].view(pa.int64()).to_numpy()[updated]
            updates = (int(times.min()), int(times.max()))
        names, arrays = names[:-2], arrays[:-2]
    fields = [batch.schema.field(name) for name in names]
    return arrays, pa.schema([*fields, pa.field(VERSION_COLUMN, pa.uint64())]), updates


class TableState:
    """The newest state of one table in a vnode. Guarded by `TableStore.lock`."""

    def __init__(self, uid: int, schema: pa.Schema, key_columns: int) -> None:
        self.uid = uid
        self.memtable = Memtable()
        self.sealed: tuple[Run, ...] = ()
        self.parts: tuple[PartHandle, ...] = ()
        self._deletes = TableDeletes()
        self.forgotten = 0  # nobody knows any more of some deletes up to this version
        self.floor = 0
        self.last_times: LastTimes | None = None
        self.flushes_since_times = 0  # parts written since `last_times`
        self.newest = NewestTimes()
        self.places: dict[Partition, Place] = {}  # of ingests
        self.stored_places: dict[Partition, Place] = {}  # as of what the parts hold
        self._noted_places: list[tuple[int, Partition, Place]] = []  # by their versions, since then
        #: the newest version of the log with rows or deletes of the table, and how many rows it has had since the table
        #: was loaded; replaced as a whole, so that it may be read without the lock
        self.logged = (0, 0)
        self.set_schema(schema, key_columns)

    @classmethod
    def stored(cls, entry: TableManifest, folder: Path) -> TableState:
        """Returns a table as the MANIFEST has it, its parts in `folder`; without newest times and deletes."""
        table = cls(entry.table_uid, entry.schema, entry.key_columns)
        table.parts = tuple(PartHandle(part, folder / part.name) for part in entry.parts)
        table.floor = entry.floor
        table.last_times = entry.last_times
        table.places, table.stored_places = dict(entry.places), dict(entry.places)
        return table

    def entry(self, persisted: int) -> TableManifest:
        """Returns what the MANIFEST says of the table when it holds all rows up to version `persisted` in parts."""
        return TableManifest(self.uid, self.schema, self.key_columns, tuple(part.info for part in self.parts),
                             self.persisted_tombstones(persisted), self.last_times, self.floor, self.stored_places)

    def persisted_tombstones(self, persisted: int) -> Tombstones:
        """Returns the deletes that count for parts with the rows up to version `persisted`."""
        return self.tombstones.seen(persisted)

    def replay(self, record: RowsRecord | AnyDelete) -> None:
        """Does again what a record of the log says."""
        if isinstance(record, RowsRecord):
            arrays, schema, updates = stored_form(record.batch)
            self.append(arrays, schema, record.version, updates, record.batch.nbytes)
            if record.origin is not None:
                self.note_place(record.origin, record.version)
        elif isinstance(record, DeletePointsRecord):
            self.delete_points(record.tuids, record.times, record.version)
        else:
            self.delete(Tombstone(record.version, record.tuids, record.first_ts, record.last_ts))

    def note_place(self, origin: IngestOrigin, version: int) -> None:
        """Keeps in mind how far an ingest is: rows of it were written, as a version."""
        partition, place = place_of(origin)
        self.places[partition] = place
        self._noted_places.append((version, partition, place))

    def places_at(self, version: int) -> dict[Partition, Place]:
        """Returns how far ingests were as of a version that the parts don't have all of yet."""
        places = dict(self.stored_places)
        places.update((partition, place) for noted, partition, place in self._noted_places if noted <= version)
        return {partition: place for partition, place in places.items() if partition in self.places}

    def set_stored_places(self, places: dict[Partition, Place], version: int) -> None:
        """The parts hold all rows up to a version."""
        self.stored_places = places
        self._noted_places = [noted for noted in self._noted_places if noted[0] > version]

    def set_schema(self, schema: pa.Schema, key_columns: int) -> None:
        """Sets the columns that writes are completed to."""
        self.memtable.settle()
        self.schema = schema.remove_metadata()
        self.key_columns = key_columns
        fields = [pa.field(TUID_COLUMN, pa.uint64()), *self.schema]
        self.wal_schema = with_key_columns(pa.schema(fields), key_columns)
        verdict = [pa.field(CHANGE_COLUMN, pa.uint8()), pa.field(LAST_COLUMN, pa.int64())]
        self.change_schema = with_key_columns(pa.schema([*fields, *verdict]), key_columns)
        self.run_schema = pa.schema([*fields, pa.field(VERSION_COLUMN, pa.uint64())])
        self.row_schema = pa.schema(fields)
        self.column_names = tuple(self.schema.names)
        self.columns = dict(zip(self.column_names, self.schema.types, strict=True))  # is replaced, not changed
        # Which rows by a KEY are new is never looked up.
        packs = self.key_name != KEY_TEXT
        self.row_format = row_format(self.wal_schema) if packs else None
        self._change_format = row_format(self.change_schema) if packs else None

    @property
    def key_name(self) -> str | None:
        """The second key column of a composite key, or None."""
        name: str | None = self.schema.names[1] if self.key_columns == 2 else None
        return name

    @property
    def time_type(self) -> pa.DataType:
        return self.schema.field(0).type

    @property
    def tombstones(self) -> Tombstones:
        """All deletes."""
        return self._deletes.told

    @property
    def tombstone_count(self) -> int:
        return len(self._deletes)

    def set_tombstones(self, tombstones: Tombstones, forgotten: int = 0) -> None:
        """Replaces the deletes. `forgotten`: the newest version of those that nobody knows of any more."""
        self.forgotten = max(self.forgotten, forgotten)
        self._deletes.replace(tombstones)

    def runs(self) -> tuple[Run, ...]:
        """Returns all runs, oldest first."""
        return (*self.sealed, *self.memtable.runs)

    def _find_newest(self, rows: PreparedRows, positions: npt.NDArray[np.intp], cache: PartCache) -> tuple[
            list[Chunk], Found]:
        """Returns where the newest stored versions of the keys at `positions` are, and the chunks that this counts in.

        Mostly rows are written again that are still in memory, where all is newer than in parts: these are read only
        for the keys that aren't.
        """
        key_values = rows.second_key(positions) if self.key_columns == 2 else None
        tuid, ts = rows.tuid[positions], rows.ts[positions]
        first, last = int(ts.min()), int(ts.max())
        chunks = self._runs_between(first, last)
        found = find_newest(chunks, self.tombstones, tuid, ts, self.key_name, key_values)
        if not found.exists.all():
            chunks = self._row_groups(cache, tuid[run_starts(tuid)], first, last) + chunks
            found = find_newest(chunks, self.tombstones, tuid, ts, self.key_name, key_values)
        return chunks, found

    def exist(self, tuids: U64, times: I64, cache: PartCache) -> Bools:
        """Returns at which places, sorted by child table and time, there is a row, with whatever second key."""
        there: Bools = times <= self.newest.of(tuids)[0]
        if there.any():
            there[there] = self._are_there(tuids[there], times[there], None, cache)
        return there

    def _are_there(self, tuid: U64, ts: I64, key_values: pa.Array | None, cache: PartCache) -> Bools:
        """Returns which of some sorted keys exist; without `key_values` all rows at a time are alike."""
        found = find_existing(self._runs_between(int(ts.min()), int(ts.max())), self.tombstones, tuid, ts,
                              self.key_name, key_values)
        others = (~found).nonzero()[0]
        if len(others) and self.parts:
            tuid, ts = tuid[others], ts[others]
            chunks = self._row_groups(cache, tuid[run_starts(tuid)], int(ts.min()), int(ts.max()))
            found[others] = find_existing(chunks, self.tombstones, tuid, ts, self.key_name,
                                          None if key_values is None else key_values.take(pa.array(others)))
        return found

    def _runs_between(self, first_ts: int, last_ts: int) -> list[Chunk]:
        return [*between(self.sealed, first_ts, last_ts), *self.memtable.runs_between(first_ts, last_ts)]

    def _row_groups(self, cache: PartCache, tuids: U64, first_ts: int, last_ts: int) -> list[Chunk]:
        """Returns what of parts may hold rows of `tuids` (sorted) in the time range, oldest parts first."""
        found: list[Chunk] = []
        low, high = int(tuids[0]), int(tuids[-1])
        for part in self.parts:
            info = part.info
            if info.max_ts >= first_ts and info.min_ts <= last_ts and info.max_tuid >= low and info.min_tuid <= high:
                found.extend(cache.row_groups(part.path, info, tuids, first_ts, last_ts))
        return found

    def decide(self, rows: PreparedRows, cache: PartCache) -> Decided:
        """Completes partial rows from what is stored, and tells appends, late rows and updates apart."""
        newest, certain = self.newest.of(rows.tuid[rows.starts])
        if all_set(rows.ts[rows.starts] > newest):
            return Decided(self._fill_nulls(rows), None, None, None)
        if len(rows.starts) < rows.num_rows:
            sizes = run_stops(rows.starts, rows.num_rows) - rows.starts
            newest, certain = newest.repeat(sizes), certain.repeat(sizes)
        positions = (rows.ts <= newest).nonzero()[0]
        if not len(positions):
            return Decided(self._fill_nulls(rows), None, None, None)
        ts, before = rows.ts[positions], newest[positions]
        # Where every late row rewrites its table's newest row, which is known to be there, nothing is to be looked up.
        # Rows that go by a KEY lie anywhere, and many of them are written at a time: to find out which of them are new
        # would take far longer than to write them. Each of them may be there.
        complete = not any(column is None for column in rows.columns)
        sure = complete and (
            self.key_name == KEY_TEXT or (self.key_columns == 1 and all_set((ts == before) & certain[positions])))
        arrays: list[pa.Array]
        if sure:
            exists = np.ones(len(positions), np.bool_)
            arrays = self._fill_nulls(rows)
        elif complete:
            exists = self._are_there(rows.tuid[positions], ts,
                                     rows.second_key(positions) if self.key_columns == 2 else None, cache)
            arrays = self._fill_nulls(rows)
        else:
            chunks, found = self._find_newest(rows, positions, cache)
            exists = found.exists
            place: npt.NDArray[np.int64] = np.zeros(rows.num_rows, np.int64)
            place[positions] = np.arange(len(positions))
            absent = np.ones(rows.num_rows, np.bool_)
            absent[positions] = ~exists
            arrays = [rows.tuid_column]
            for column, field in zip(rows.columns, self.schema, strict=True):
                if column is None:
                    column = stored_values(chunks, found, field.name, field.type)
                    column = column.take(pa.array(place, mask=absent))
                arrays.append(column)
        change = np.zeros(rows.num_rows, np.uint8)
        change[positions] = np.where(exists, UPDATE, LATE)
        last = np.full(rows.num_rows, TS_MIN, np.int64)
        last[positions] = before
        changed = ts[exists]
        updates = (int(changed.min()), int(changed.max())) if len(changed) else None
        return Decided(arrays, change, last, updates)

    def _fill_nulls(self, rows: PreparedRows) -> list[pa.Array]:
        return [rows.tuid_column, *(pa.nulls(rows.num_rows, type_) if column is None else column
                                    for column, type_ in zip(rows.columns, self.columns.values(), strict=True))]

    def schema_in_log(self, decided: Decided) -> pa.Schema:
        """Returns the schema in which the log holds rows."""
        return self.wal_schema if decided.change is None else self.change_schema

    def wal_batch(self, decided: Decided, schema: pa.Schema) -> pa.RecordBatch:
        """Returns the rows as the log holds them, in the schema that `schema_in_log` says."""
        verdict = [] if decided.change is None else [pa.array(decided.change), pa.array(decided.last)]
        return pa.RecordBatch.from_arrays([*decided.arrays, *verdict], schema=schema)

    def decide_on_few(self, rows: pa.RecordBatch) -> tuple[Decided, FewKeys] | None:
        """Does what `prepare` and `decide` do, for a few rows about which that is known without a look at any.

        Returns the rows' keys, too; None for those that need these: they lack columns or have others, or see
        `NewestTimes.verdict_on`.
        """
        times = rows.columns[1] if rows.num_columns > 1 else None
        if self.key_columns > 1 or times is None or not rows.schema.equals(self.row_schema) or (
                rows.columns[0].null_count or times.null_count):
            return None
        tuids, ts = tuids_of(rows.columns[0]).tolist(), times_of(times).tolist()
        before = self.newest.verdict_on(tuids, ts)
        if before is None:
            return None
        if before.times is None:
            return Decided(rows.columns, None, None, None), (tuids, ts)
        last = np.array(before.times)
        rewritten = last != TS_MIN
        changed = [time for time in before.times if time != TS_MIN]
        change = np.where(rewritten, np.uint8(UPDATE), np.uint8(APPEND))
        return Decided(rows.columns, change, last, (min(changed), max(changed))), (tuids, ts)

    def append_few(self, rows: pa.RecordBatch, keys: FewKeys, version: int, updates: TimeRange | None, nbytes: int
                   ) -> None:
        """Adds rows to the memtable that `decide_on_few` has decided on, with the keys that it has returned."""
        self.memtable.append_few(rows, version, updates, nbytes)
        self._note_logged(version, rows.num_rows)
        self.newest.taken(*keys)

    def append(self, arrays: list[pa.Array], run_schema: pa.Schema, version: int, updates: TimeRange | None,
               nbytes: int, starts: Index | None = None) -> None:
        """Adds complete rows, sorted by key, to the memtable; `arrays` are `_tuid` and the columns.

        `nbytes`: about what they take. `starts`: where the rows of each child table begin, if that is known.
        """
        versions = np.full(len(arrays[0]), version, np.uint64)
        run = Run.of(pa.RecordBatch.from_arrays([*arrays, pa.array(versions)], schema=run_schema), updates, versions)
        self.append_run(run, nbytes, starts)
        self._note_logged(version, run.num_rows)

    def append_run(self, run: Run, nbytes: int, starts: Index | None = None) -> None:
        """Adds a run to the memtable; see `append`."""
        self.memtable.append(run, nbytes)
        self.newest.written(*newest_times(run.tuid, run.ts, starts))

    def rows_of(self, batch: pa.RecordBatch) -> list[Row] | None:
        """Returns the rows of a batch, NULL for columns that it lacks; None if they can't be packed as they are."""
        if self.row_format is None:
            return None
        columns: list[pa.Array | None] = batch.columns
        if not batch.schema.equals(self.row_schema):
            given = dict(zip(batch.schema.names, columns, strict=True))
            columns = [given.pop(field.name, None) for field in self.row_schema]
            if given or any(column is not None and column.type != field.type
                            for column, field in zip(columns, self.row_schema, strict=True)):
                return None
        if any(column is None or column.null_count for column in columns[:2]):
            return None
        nothing = [None] * batch.num_rows
        values = [nothing if column is None else _plain(column).to_pylist() for column in columns]
        return list(zip(*values, strict=True))

    def packed(self, rows: Sequence[Row]) -> PackedRows | None:
        """Returns complete rows in packed form; None if they have none, lack a key, or have one twice.

        Raises what `RowFormat.pack` does.
        """
        if self.row_format is None or (self.key_columns == 2 and any(row[2] is None for row in rows)):
            return None
        if len(rows) > 1:
            by_key = {self._key(row): row for row in rows}
            if len(by_key) < len(rows):
                return None
            rows = [by_key[key] for key in sorted(by_key)]
            return PackedRows(rows, [self.row_format.pack(row) for row in rows])
        return PackedRows(rows, [self.row_format.pack(rows[0])])

    def _key(self, row: Row) -> RowKey:
        return row[:self.key_columns + 1]

    def decide_on_packed(self, rows: PackedRows, cache: PartCache, *, partial: bool) -> PackedVerdict | None:
        """Does what `decide` does, row by row.

        `partial`: columns that rows don't have keep what is stored. None where that counts, or many are to be looked
        up.
        """
        for row in rows.rows:
            last = self.newest.get(row[0])
            if last is not None and row[1] <= last:
                return self._decide_on_late(rows, cache, partial=partial)
        return _ALL_APPENDS

    def _decide_on_late(self, rows: PackedRows, cache: PartCache, *, partial: bool) -> PackedVerdict | None:
        """Does so where some rows aren't appends."""
        newest = [self.newest.get(row[0]) for row in rows.rows]
        late = [place for place, last in enumerate(newest) if last is not None and rows.rows[place][1] <= last]
        if len(late) > _LOOKED_UP_MAX or self._change_format is None:
            return None
        change = [APPEND] * len(newest)
        for place in late:
            change[place] = UPDATE if self._is_there(self._key(rows.rows[place]), cache) else LATE
        if partial and UPDATE in change:
            return None
        return PackedVerdict(change, [
            self._change_format.pack((*row, kind, TS_MIN if kind == APPEND else last))
            for row, kind, last in zip(rows.rows, change, newest, strict=True)])

    def _is_there(self, key: RowKey, cache: PartCache) -> bool:
        """Tells whether a row exists, without making columns of rows that are still packed."""
        tuid, ts, *second = key
        tombstones = self.tombstones
        version = self.memtable.packed_version(key)
        if version is not None:
            return not (tombstones and tombstones.hide(tuid, ts, version))
        arguments = tombstones, tuid, ts, self.key_name, second[0] if second else None
        if any(has_row(run, *arguments) for run in (*self.memtable.unpacked_between(ts, ts), *self.sealed)):
            return True
        return any(has_row(group, *arguments) for part in self.parts if part.info.may_hold(tuid, ts)
                   for group in cache.row_groups_at(part.path, part.info, tuid, ts))

    def packed_in_log(self, rows: PackedRows, verdict: PackedVerdict) -> tuple[pa.Schema, Sequence[bytes], RowFormat]:
        """Returns packed rows as the log holds them: their schema there, they themselves, and their format."""
        if verdict.change is None:
            assert self.row_format is not None
            return self.wal_schema, rows.packed, self.row_format
        assert self._change_format is not None
        return self.change_schema, verdict.in_log, self._change_format

    def append_packed(self, rows: PackedRows, verdict: PackedVerdict, version: int) -> None:
        """Adds rows to the memtable that `decide_on_packed` has decided on."""
        assert self.row_format is not None
        changes, key_end = verdict.change, self.key_columns + 1
        for place, (row, data) in enumerate(zip(rows.rows, rows.packed, strict=True)):
            change = APPEND if changes is None else changes[place]
            self.memtable.append_packed(data, row[:key_end], version, self.row_format, change == UPDATE)
            if change == APPEND or row[1] == self.newest.get(row[0]):
                self.newest.appended(row[0], row[1])
        self._note_logged(version, len(rows.rows))

    def note_replayed(self, version: int) -> None:
        """The log has rows of the table up to a version."""
        self._note_logged(version, 0)

    def _note_logged(self, version: int, rows: int) -> None:
        self.logged = (version, self.logged[1] + rows)

    def delete(self, tombstone: Tombstone) -> None:
        """Hides rows. The newest times stay: a row is an append only if it is newer than all before."""
        tuids = None if tombstone.tuids is None else np.array(tombstone.tuids, np.uint64)
        if tuids is not None and tombstone.is_of_points:
            times = np.full(len(tuids), tombstone.first_ts, np.int64)
            self._deletes.add_points(np.sort(tuids), times, tombstone.version)
        else:
            self._deletes.add_range(tombstone)
        self._note_deleted(tuids, tombstone.version)
        if tombstone.dropped and tombstone.tuids is not None:
            self.newest.forget(tombstone.tuids)

    def delete_points(self, tuids: U64, times: I64, version: int) -> None:
        """Hides rows of child tables at one time each: at least one of both, sorted by both."""
        self._deletes.add_points(tuids, times, version)
        self._note_deleted(tuids[run_starts(tuids)], version)

    def take_deletes(self, tombstones: Tombstones) -> None:
        """Hides what was deleted before the table was loaded."""
        for tombstone in tombstones.ranges:
            self.delete(tombstone)
        self._deletes.add_points_of(tombstones)
        for run in tombstones.points.runs():
            self._note_deleted(run.tuid[run_starts(run.tuid)], run.max_version)

    def _note_deleted(self, tuids: U64 | None, version: int) -> None:
        self._note_logged(max(version, self.logged[0]), 0)
        self.newest.deleted(tuids)
