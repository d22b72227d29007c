"""One vnode: its log, its table store, and the writes, deletes and snapshots over both. Starts no threads."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.common.clock import Clock
from penstock.common.errors import (
    CorruptionError,
    InvalidStatementError,
    InvalidValueError,
    NotFoundError,
    PenstockError,
    StorageError,
    UnavailableError,
)
from penstock.common.fs import Fs
from penstock.vnode import manifest as manifests
from penstock.vnode.delivery import Delivery, Partition, Place
from penstock.vnode.ingest import Prepared, prepare
from penstock.vnode.keys import TS_MAX, TS_MIN, U64
from penstock.vnode.manifest import SCHEMA_FILE, LastTimes, Manifest, PartInfo, TableManifest
from penstock.vnode.memtable import VERSION_COLUMN, Run, TimeRange, join_ranges, newest_times
from penstock.vnode.merging import in_key_order
from penstock.vnode.parts import (
    MAX_PART_ROWS,
    ROW_GROUP_ROWS,
    PartCache,
    PartReader,
    PartWriter,
    parquet_bytes,
)
from penstock.vnode.snapshot import Snapshot
from penstock.vnode.source import cut, gather, resolve
from penstock.vnode.table import PartHandle, TableState
from penstock.vnode.tombstones import Tombstone, TombstoneIndex, file_schema, to_table
from penstock.wal.log import LogFiles
from penstock.wal.reader import WalReader
from penstock.wal.record import CHANGE_COLUMN, LAST_COLUMN, TUID_COLUMN, DeleteRecord, RowsRecord, crc32c
from penstock.wal.retention import RetentionPolicy, deletable, segment_infos
from penstock.wal.segment import list_segments, segment_name
from penstock.wal.writer import Recovery, Ticket, WalWriter

_SMALL_FAMILY = 10_000  # up to so many child tables their newest times are stored at every flush
_FLUSHES_PER_TIMES = 16  # for more child tables; opening the vnode reads the keys of the parts written since
_TIER_BITS = 3  # parts of a tier have up to 8 times the rows of the tier below
_MAX_TOMBSTONES = 2000  # beyond that, parts are rewritten without the hidden rows before their tier is full
_MERGED_BYTES = 64 << 20  # held of the parts that are being merged
_RETENTION_INTERVAL_S = 5.0
_STALL_FACTOR = 4  # a memtable of so many times its bound makes the writer flush


@dataclass(frozen=True, slots=True)
class VnodeOptions:
    """How one vnode keeps its data. `flush_interval_s`: how stale the Parquet files may be for other readers.

    `wal_pin_max_bytes`: how much log a stream that lags may hold back before it is left behind.
    """

    vgroup_id: int
    wal_level: int = 1
    wal_fsync_period_ms: int = 3000
    wal_retention_period_s: int = 3600
    wal_retention_size_kb: int = 0
    segment_bytes: int = 64 << 20
    memtable_bytes: int = 64 << 20
    flush_interval_s: float = 2.0
    compact_min_parts: int = 8
    part_grace_s: float = 60.0
    wal_pin_max_bytes: int | None = 8 << 30


@dataclass(frozen=True, slots=True)
class VnodeStats:
    """Counters of one vnode since it was opened, and its sizes now."""

    acknowledged_version: int
    synced_version: int
    persisted_version: int
    memtable_rows: int
    memtable_bytes: int
    parts: int
    part_rows: int
    part_bytes: int
    wal_segments: int
    wal_bytes: int
    tables: int
    child_tables: int
    tombstones: int
    rows_written: int
    flushes: int
    compactions: int
    pins: dict[str, int]


@dataclass(frozen=True, slots=True)
class HandOver:
    """Child tables of one storage table on their way from a vnode to another. `newest_times`: `tuid`, `ts`.

    `parts`, to be gone through once: the rows, all of their versions, of each part, and what the part is like.
    """

    schema: pa.Schema
    key_columns: int
    tombstones: tuple[Tombstone, ...]
    floor: int
    newest_times: pa.Table
    places: dict[Partition, Place]
    parts: Iterator[tuple[pa.Table, PartInfo]]


@dataclass(frozen=True, slots=True)
class _Replaced:
    """A file that is no longer valid, but may be open in a reader of another process."""

    path: Path
    since: float
    handle: weakref.ReferenceType[PartHandle] | None
    table_uid: int
    info: PartInfo | None


class Vnode:
    """All methods are thread-safe. Writes of one vnode are ordered by its lock; commits wait outside of it."""

    def __init__(self, directory: Path, options: VnodeOptions, *, fs: Fs, clock: Clock, wal: WalWriter,
                 manifest: Manifest) -> None:
        self._directory = directory
        self._store = directory / "store"
        self._options = options
        self._fs = fs
        self._clock = clock
        self._wal = wal
        # What one flush wrote fits twice: who goes through a part piece by piece decodes it once.
        self._cache = PartCache(2 * options.memtable_bytes)
        self._lock = threading.RLock()
        # Serialises what replaces the MANIFEST; taken before `_lock` where both are needed.
        self._store_lock = threading.RLock()
        self._tables: dict[int, TableState] = {}
        self._persisted = manifest.persisted_version
        self._next_file = manifest.next_file
        self._pins: dict[str, int] = dict(manifest.pins)
        self._replaced: list[_Replaced] = []
        self._dropped: set[int] = set(manifest.dropped)
        #: tables that the MANIFEST doesn't know and nobody dropped, but which have files: they stay as they are
        self.unknown_tables: list[int] = []
        self._tombstone_files: dict[int, tuple[str, tuple[Tombstone, ...]]] = {}
        self._generation = 0
        self._last_flush = clock.monotonic()
        self._last_retention = -math.inf
        self._rows_written = self._flushes = self._compactions = 0
        self._doubtful = False
        self._closed = False

    @classmethod
    def open(cls, directory: Path, options: VnodeOptions, *, fs: Fs, clock: Clock) -> Vnode:
        """Opens a vnode, creating it when missing: cuts the log's torn tail and rebuilds the memtable from the log.

        Raises CorruptionError when acknowledged data cannot be read, StorageError when the system refuses.
        """
        store = directory / "store"
        for name in ("parts", "tombstones", "last"):
            fs.make_dirs(store / name)
        manifest = manifests.load(fs, store, options.vgroup_id)
        if manifest is not None:
            # A crash may have come between its rename and the sync of the directory. What only the MANIFEST before it
            # needs is deleted from here on, so that one must not come back.
            fs.fsync_dir(store)
        wal = WalWriter.open(directory / "wal", fs, clock, vgroup_id=options.vgroup_id, level=options.wal_level,
                             segment_bytes=options.segment_bytes)
        try:
            if manifest is None:
                if wal.acknowledged_version or fs.list(store / "parts"):
                    raise CorruptionError(f"{store / manifests.NAME} is missing, but the vnode has data",
                                          hint="restore the file from a copy of the vnode")
                manifest = Manifest(options.vgroup_id)
                manifests.save(fs, store, manifest)
            if wal.acknowledged_version < manifest.persisted_version:
                raise CorruptionError(
                    f"the log in {directory / 'wal'} ends at version {wal.acknowledged_version}, but the parts hold "
                    f"rows up to {manifest.persisted_version}", hint="restore the log from a copy")
            vnode = cls(directory, options, fs=fs, clock=clock, wal=wal, manifest=manifest)
            vnode._adopt_files(manifest)
            vnode._load(manifest)
            for table in vnode._tables.values():
                vnode._publish_tombstones(table)
        except PenstockError:
            wal.close()
            raise
        return vnode

    @staticmethod
    def begin(directory: Path, options: VnodeOptions, version: int, *, fs: Fs, clock: Clock) -> None:
        """Makes the files of a vnode without rows whose log goes on behind a version; `open` opens it.

        What is to become part of another vnode's rows keeps its versions so: see `take_over`.
        """
        WalWriter.begin(directory / "wal", fs, clock, vgroup_id=options.vgroup_id, version=version)
        fs.make_dirs(directory / "store")
        manifests.save(fs, directory / "store", Manifest(options.vgroup_id, version))

    @property
    def directory(self) -> Path:
        return self._directory

    def set_options(self, options: VnodeOptions) -> None:
        """Goes on with other options for the log, from the next write and the next round of upkeep on.

        Raises StorageError if what was written before can't be made as durable as they say.
        """
        before, self._options = self._options, options
        if options.wal_level != before.wal_level:
            self._wal.set_level(options.wal_level)

    @property
    def recovery(self) -> Recovery:
        """What opening the log found: bytes cut off, acknowledged versions lost to a power cut (level 1)."""
        return self._wal.recovery

    # Loading

    def _adopt_files(self, manifest: Manifest) -> None:
        """Checks that every part is there, and lists left-over files for deletion."""
        valid: dict[Path, int] = {}
        for table in manifest.tables.values():
            for part in table.parts:
                valid[self._part_path(table.table_uid, part.name)] = part.size
            if table.last_times is not None:
                valid[self._store / "last" / table.last_times.name] = -1
        for path, size in valid.items():
            try:
                found = self._fs.size(path)
            except FileNotFoundError as error:
                raise CorruptionError(f"{path} is missing, but the MANIFEST lists it") from error
            if size not in (-1, found):
                raise CorruptionError(f"{path} has {found} bytes instead of {size}")
        now = self._clock.monotonic()
        self.unknown_tables = manifests.unknown_tables(self._fs, self._store, manifest)
        for kind in ("parts", "tombstones"):
            for uid in filter(str.isdigit, self._fs.list(self._store / kind)):
                if int(uid) in self.unknown_tables:
                    continue
                for name in self._fs.list(self._store / kind / uid):
                    path = self._store / kind / uid / name
                    if name.startswith("0") and path.suffix == ".parquet":
                        self._next_file = max(self._next_file, int(path.stem) + 1)
                    if path not in valid and name != SCHEMA_FILE:
                        self._replaced.append(_Replaced(path, now, None, int(uid), None))
                if int(uid) not in manifest.tables:
                    self._remove_folders(int(uid))
        for table_uid in manifest.dropped:
            self._forget_dropped(table_uid)
        for name in self._fs.list(self._store):
            if name.endswith(".tmp"):
                self._fs.remove(self._store / name)
        for name in self._fs.list(self._store / "last"):
            if self._store / "last" / name not in valid:
                self._fs.remove(self._store / "last" / name)

    def _load(self, manifest: Manifest) -> None:
        """Rebuilds all tables from the MANIFEST and the log behind it."""
        self._tables = {}
        for entry in manifest.tables.values():
            table = TableState.stored(entry, self._parts(entry.table_uid))
            self._load_newest(table)
            for tombstone in entry.tombstones:
                table.delete(tombstone)
            self._tables[entry.table_uid] = table
        reader = WalReader(LogFiles(self._directory / "wal", self._fs), manifest.persisted_version + 1)
        try:
            while records := reader.read():
                for record in records:
                    # A table that isn't there was dropped later.
                    if isinstance(record, RowsRecord | DeleteRecord) and record.table_uid in self._tables:
                        self._tables[record.table_uid].replay(record)
        finally:
            reader.close()

    def _load_newest(self, table: TableState) -> None:
        known = 0
        if table.last_times is not None:
            path = self._store / "last" / table.last_times.name
            content = self._fs.read(path)
            if table.last_times.crc not in (None, crc32c(content)):
                raise CorruptionError(f"{path} is damaged: its checksum does not fit",
                                      hint="penstock fsck --repair has it made again from the parts")
            try:
                stored = pq.read_table(pa.BufferReader(content))
            except (OSError, pa.ArrowInvalid) as error:
                raise CorruptionError(f"{path} is damaged: {error}") from error
            stored = stored.sort_by("tuid")
            table.newest.stored(stored.column("tuid").to_numpy(), stored.column("ts").to_numpy())
            known = table.last_times.version
        for part in table.parts:
            if part.info.max_version > known:
                for group in self._cache.row_groups(part.path, part.info, None, TS_MIN, TS_MAX):
                    table.newest.stored(*newest_times(group.tuid, group.ts))

    def _ready(self) -> None:
        """Raises unless writes are possible; goes back to the acknowledged state after a refused write."""
        if self._closed:
            raise UnavailableError(f"vnode {self._options.vgroup_id} is closed")
        if self._wal.failed is not None:
            raise self._wal.failed
        if self._wal.refused is not None:
            self._wal.take_back()
            self._generation += 1
            self._load(self._manifest(self._persisted))
            self._wal.reset()

    # Tables

    def define_table(self, table_uid: int, schema: pa.Schema, key_columns: int) -> None:
        """Makes a storage table known, or gives it its newest columns; the same call again changes nothing.

        `schema`: the physical columns, the primary timestamp first; `key_columns`: 1, or 2 for a composite key.
        Raises InvalidStatementError when the key or the type of a column would change.
        """
        schema = pa.schema([(field.name, field.type) for field in schema])
        if key_columns not in (1, 2) or len(schema) < key_columns or not pa.types.is_timestamp(schema.field(0).type):
            raise InvalidStatementError(f"table {table_uid} needs a timestamp first and 1 or 2 key columns")
        reserved = {TUID_COLUMN, VERSION_COLUMN, CHANGE_COLUMN, LAST_COLUMN} & set(schema.names)
        if reserved or len(set(schema.names)) != len(schema):
            raise InvalidStatementError(f"table {table_uid} has reserved or repeated column names: {schema.names}")
        with self._store_lock, self._lock:
            self._ready()
            if table_uid in self.unknown_tables:
                raise CorruptionError(
                    f"{self._store} has files of table {table_uid} that its MANIFEST doesn't know",
                    hint="restore the MANIFEST that belongs to them; penstock fsck --repair sets them aside")
            table = self._tables.get(table_uid)
            if table is not None:
                if table.schema.equals(schema) and table.key_columns == key_columns:
                    return
                self._check_evolution(table, schema, key_columns)
            before = None if table is None else (table.schema, table.key_columns)
            if table is None:
                table = self._tables[table_uid] = TableState(table_uid, schema, key_columns)
            else:
                table.set_schema(schema, key_columns)
            try:
                self._write_schema_files(table)
                self._save(self._manifest(self._persisted))
            except StorageError:
                if before is None:
                    del self._tables[table_uid]
                else:
                    table.set_schema(*before)
                raise

    def _check_evolution(self, table: TableState, schema: pa.Schema, key_columns: int) -> None:
        keys = [(f.name, f.type) for f in table.schema][:table.key_columns]
        if key_columns != table.key_columns or [(f.name, f.type) for f in schema][:key_columns] != keys:
            raise InvalidStatementError(f"the key of table {table.uid} cannot change")
        for field in schema:
            index = table.schema.get_field_index(field.name)
            if index >= 0 and table.schema.field(index).type != field.type:
                raise InvalidStatementError(f"column {field.name} of table {table.uid} cannot change its type from "
                                            f"{table.schema.field(index).type} to {field.type}")

    def _write_schema_files(self, table: TableState) -> None:
        """Writes files without rows, so that other readers' globs always match and know all columns."""
        for kind, schema in (("parts", table.run_schema), ("tombstones", file_schema(table.time_type))):
            directory = self._store / kind / str(table.uid)
            self._fs.make_dirs(directory)
            self._fs.write_atomic(directory / SCHEMA_FILE, parquet_bytes(schema.empty_table()))

    def drop_table(self, table_uid: int) -> None:
        """Forgets a table and all its rows; an unknown table is no error."""
        with self._store_lock, self._lock:
            self._ready()
            table = self._tables.pop(table_uid, None)
            if table is None:
                return
            self._dropped.add(table_uid)
            try:
                self._save(self._manifest(self._persisted))
            except StorageError:
                self._tables[table_uid] = table
                self._dropped.discard(table_uid)
                raise
            self._replace_parts(table, table.parts, ())
            now = self._clock.monotonic()
            kinds = (self._store / "parts" / str(table_uid), self._store / "tombstones" / str(table_uid))
            for directory in kinds:
                known = {entry.path for entry in self._replaced}
                self._replaced.extend(
                    _Replaced(directory / name, now, None, table_uid, None)
                    for name in self._fs.list(directory) if directory / name not in known)
            self._tombstone_files.pop(table_uid, None)
            self._replace_times(table_uid, table.last_times)

    def _replace_times(self, table_uid: int, times: LastTimes | None) -> None:
        if times is not None:
            # No reader of another process has it.
            self._replaced.append(_Replaced(self._store / "last" / times.name, -math.inf, None, table_uid, None))

    def drop_children(self, table_uid: int, tuids: Sequence[int]) -> None:
        """Removes all rows of child tables for every reader, also for older snapshots; their uids never come back."""
        if not tuids:
            return
        with self._store_lock, self._lock:
            self._ready()
            table = self._table(table_uid)
            before = table.tombstones
            table.delete(Tombstone(self._wal.last_version + 1, tuple(sorted(set(tuids))), TS_MIN, TS_MAX, True))
            try:
                self._save(self._manifest(self._persisted))
            except StorageError:
                table.set_tombstones(before)
                raise
        self._publish_tombstones(table)

    # Moving child tables to another vnode

    @property
    def newest_uid(self) -> int:
        """The greatest uid among its storage tables and the child tables that it has, or had, rows of."""
        with self._lock:
            return max((int(uid) for table in self._tables.values()
                        for uid in (table.uid, *table.newest.tuids[-1:])), default=0)

    @property
    def table_uids(self) -> list[int]:
        """The storage tables that the vnode knows."""
        with self._lock:
            return list(self._tables)

    def children_of(self, table_uid: int) -> U64:
        """Returns the child tables that the vnode has, or had, rows of, ascending."""
        with self._lock:
            return self._table(table_uid).newest.tuids.copy()

    def hand_over(self, table_uid: int, tuids: U64) -> HandOver:
        """Returns all that the vnode knows of child tables, for `take_over`; nothing may be written meanwhile.

        Raises StorageError if rows that are in memory can't be written into parts.
        """
        self.flush()
        with self._lock:
            table = self._table(table_uid)
            newest = table.newest
            moving = np.isin(newest.tuids, tuids)
            times = pa.table({"tuid": newest.tuids[moving], "ts": newest.times[moving]})
            parts, places = table.parts, dict(table.places)
        low, high = (int(tuids.min()), int(tuids.max())) if len(tuids) else (1, 0)
        near = [part for part in parts if part.info.min_tuid <= high and part.info.max_tuid >= low]
        return HandOver(table.schema, table.key_columns, table.tombstones, table.floor, times, places,
                        (self._rows_of(part, tuids, among=True) for part in near))

    def take_over(self, table_uid: int, given: HandOver) -> None:
        """Takes child tables of another vnode, whose log was where this one's begins: rows keep their versions.

        Nothing of them gets into the log. Raises StorageError, CorruptionError; then the vnode is of no use.
        """
        self.define_table(table_uid, given.schema, given.key_columns)
        with self._store_lock:
            table = self._table(table_uid)
            handles: list[PartHandle] = []
            for rows, info in given.parts:
                if rows.num_rows:
                    handles += self._write_parts(table, [rows], info.purged_version, info.updates)
            last = self._write_times(table, given.newest_times, self._persisted)
            with self._lock:
                table.parts, table.last_times, table.floor = tuple(handles), last, given.floor
                table.places, table.stored_places = dict(given.places), dict(given.places)
                self._load_newest(table)
                for tombstone in given.tombstones:
                    table.delete(tombstone)
                self._save(self._manifest(self._persisted))
        self._publish_tombstones(table)

    def give_away(self, table_uid: int, tuids: U64) -> None:
        """Forgets child tables that another vnode has taken over; their rows here were their last ones.

        No delete says so: it would hide the rows from readers of other processes wherever they are.
        """
        self.flush()
        with self._store_lock:
            table = self._table(table_uid)
            with self._lock:
                left = ~np.isin(table.newest.tuids, tuids)
                times = pa.table({"tuid": table.newest.tuids[left], "ts": table.newest.times[left]})
            old = [part for part in table.parts if np.isin(self._tuids_of(part), tuids).any()]
            new: list[PartHandle] = []
            for part in old:
                rows, info = self._rows_of(part, tuids, among=False)
                if rows.num_rows:
                    new += self._write_parts(table, [rows], info.purged_version, info.updates)
            last = self._write_times(table, times, self._persisted)
            with self._lock:
                before = table.parts, table.last_times
                table.parts = (*(part for part in table.parts if part not in old), *new)
                table.last_times = last
                try:
                    self._save(self._manifest(self._persisted))
                except StorageError:
                    table.parts, table.last_times = before
                    self._replace_parts(table, new, ())
                    raise
                table.newest.forget(tuple(tuids.tolist()))
                self._replace_parts(table, old, new)
                self._replace_times(table.uid, before[1])

    def _tuids_of(self, part: PartHandle) -> U64:
        return np.concatenate([group.tuid for group in
                               self._cache.row_groups(part.path, part.info, None, TS_MIN, TS_MAX)])

    def _rows_of(self, part: PartHandle, tuids: U64, *, among: bool) -> tuple[pa.Table, PartInfo]:
        """Returns the rows of a part that are `among` those of the child tables, or the others."""
        reader = PartReader(part.path, part.info)
        groups = (pa.Table.from_batches([run.data]).filter(pa.array(np.isin(run.tuid, tuids) == among))
                  for run in reader.row_groups())
        return pa.concat_tables([reader.schema.empty_table(), *groups]), part.info

    def _table(self, table_uid: int) -> TableState:
        table = self._tables.get(table_uid)
        if table is None:
            raise NotFoundError(f"vnode {self._options.vgroup_id} has no table {table_uid}")
        return table

    # Writing

    def write(self, table_uid: int, batch: pa.RecordBatch, *, ingest_time_ms: int | None = None,
              delivery: Delivery | None = None) -> int:
        """Upserts rows and returns the version of their record once it is acknowledged.

        `batch`: `_tuid` uint64, the key columns, any of the other columns. For rows whose key exists, columns that
        are not in the batch keep their stored value, else they are NULL. Of equal keys in the batch the last wins.
        An empty batch writes nothing. Of a `delivery`, which tells where each row comes from, only rows are written
        that the table doesn't have in this vnode: what is delivered again leaves no trace.
        Raises NotFoundError, InvalidStatementError, InvalidValueError, StorageError.
        """
        table = self._table(table_uid)
        if batch.num_rows == 0:
            return self.acknowledged_version
        schema = table.schema
        rows = prepare(batch, schema, table.key_columns)
        with self._lock:
            self._ready()
            table = self._table(table_uid)
            again = delivery is not None and not delivery.is_new_to(table.places)
            if delivery is not None and again:
                batch, delivery = delivery.cut(batch, table.places)
            if again or table.schema is not schema:
                rows = prepare(batch, table.schema, table.key_columns)
            ticket = self._enqueue(table, rows, ingest_time_ms, delivery) if rows.num_rows else None
            stalled = table.memtable.num_bytes > _STALL_FACTOR * self._options.memtable_bytes
        if ticket is None:
            # Whoever has written these rows may still wait for the log.
            self._wal.commit_all()
            return self.acknowledged_version
        self._wal.commit(ticket)
        if stalled:
            self.flush()
        return ticket.version

    def _enqueue(
        self, table: TableState, rows: Prepared, ingest_time_ms: int | None, delivery: Delivery | None
    ) -> Ticket:
        """Puts rows into the memtable and on their way into the log."""
        decided = table.decide(rows, self._cache)
        now = self._clock.now_ms() if ingest_time_ms is None else ingest_time_ms
        origin = None if delivery is None else delivery.origin
        ticket = self._wal.enqueue_rows(table.uid, table.wal_batch(decided), now, origin)
        table.append(decided.arrays, table.run_schema, ticket.version, decided.updates, ticket.size, rows.starts)
        if origin is not None:
            table.note_place(origin)
        self._rows_written += rows.num_rows
        return ticket

    def delete(self, table_uid: int, tuids: Sequence[int] | None, first_ts: int, last_ts: int) -> int:
        """Deletes the rows of `tuids` (None: all) with first_ts <= ts <= last_ts and returns the record's version."""
        uids = None if tuids is None else tuple(sorted(set(tuids)))
        with self._lock:
            self._ready()
            table = self._table(table_uid)
            ticket = self._wal.enqueue_delete(table_uid, uids, first_ts, last_ts, self._clock.now_ms())
            if first_ts <= last_ts and (uids is None or uids):
                table.delete(Tombstone(ticket.version, uids, first_ts, last_ts))
        self._wal.commit(ticket)
        return ticket.version

    def write_meta(self, body: dict[str, Any]) -> int:
        """Puts a META record into the log, in order with the rows, and returns its version."""
        with self._lock:
            self._ready()
            ticket = self._wal.enqueue_meta(body, self._clock.now_ms())
        self._wal.commit(ticket)
        return ticket.version

    def write_time_mark(self, writer: str, ts_ms: int) -> int:
        """Puts a TIME_MARK record into the log and returns its version."""
        with self._lock:
            self._ready()
            ticket = self._wal.enqueue_time_mark(writer, ts_ms, self._clock.now_ms())
        self._wal.commit(ticket)
        return ticket.version

    def forget_ingest(self, ingest: int) -> None:
        """Forgets how far an ingest is that will never write again; on disk with the next flush."""
        with self._lock:
            for table in self._tables.values():
                for partition in [one for one in table.places if one[0] == ingest]:
                    del table.places[partition]

    # Reading

    @property
    def acknowledged_version(self) -> int:
        return self._wal.acknowledged_version

    def last_ts(self, tuid: int) -> int | None:
        """Returns the greatest ts ever written to a child table (deleted rows count too), or None."""
        with self._lock:
            for table in self._tables.values():
                newest = table.newest.get(tuid)
                if newest is not None:
                    return newest
        return None

    def snapshot(self, table_uid: int, *, as_of: int | None = None) -> Snapshot:
        """Returns a view of a table as of a version (None: everything acknowledged).

        Raises NotFoundError, InvalidValueError for a version that isn't acknowledged, SnapshotTooOldError when
        older rows of the table were collapsed (a pin at or before `as_of` prevents that).
        """
        with self._lock:
            table = self._table(table_uid)
            newest = self._wal.acknowledged_version
            version = newest if as_of is None else as_of
            if version > newest:
                raise InvalidValueError(f"version {version} of vnode {self._options.vgroup_id} is not acknowledged; "
                                        f"the newest is {newest}")
            return Snapshot.of(table, self._options.vgroup_id, version, self._cache)

    @property
    def oldest_version(self) -> int:
        """The first version that the log still has."""
        return min(list_segments(self._fs, self._directory / "wal"), default=1)

    # Pins

    def set_pin(self, owner: str, version: int) -> None:
        """Keeps the log from `version` on, and row versions that a reader as of `version` or later needs.

        Pins survive a restart; a moved one may come back as it was at the last flush.
        """
        with self._lock:
            if owner in self._pins:
                self._pins[owner] = version  # saved with the next flush: an older pin only keeps more
                return
        # A first pin must survive a crash, and must not come while rows are being collapsed without regard to it.
        with self._store_lock, self._lock:
            self._pins[owner] = version
            try:
                self._save(self._manifest(self._persisted))
            except StorageError:
                del self._pins[owner]
                raise

    def release_pin(self, owner: str) -> None:
        """Forgets a pin; an unknown owner is no error.

        Nothing is written, so that letting go cannot fail: after a crash the pin may be back until its owner, or
        the start of the engine, lets go again.
        """
        with self._lock:
            self._pins.pop(owner, None)  # forgotten on disk with the next flush

    # Store

    def _parts(self, table_uid: int) -> Path:
        return self._store / "parts" / str(table_uid)

    def _part_path(self, table_uid: int, name: str) -> Path:
        return self._parts(table_uid) / name

    def _new_name(self) -> str:
        name = f"{self._next_file:012d}.parquet"
        self._next_file += 1
        return name

    def _table_manifest(self, table: TableState, persisted: int) -> TableManifest:
        tombstones = tuple(t for t in table.tombstones if t.dropped or t.version <= persisted)
        return TableManifest(table.uid, table.schema, table.key_columns, tuple(p.info for p in table.parts), tombstones,
                             table.last_times, table.floor, table.stored_places)

    def _manifest(self, persisted: int) -> Manifest:
        tables = {uid: self._table_manifest(table, persisted) for uid, table in self._tables.items()}
        return Manifest(self._options.vgroup_id, persisted, self._next_file, tables, dict(self._pins),
                        tuple(sorted(self._dropped)))

    def _save(self, manifest: Manifest) -> None:
        """Replaces the MANIFEST. When that fails, the old or the new one is on disk: nothing goes that either needs."""
        self._doubtful = True
        manifests.save(self._fs, self._store, manifest)
        self._doubtful = False

    def _horizon(self, persisted: int) -> int:
        """The oldest version that a reader may ask for."""
        return min([persisted, *self._pins.values()])

    def flush(self) -> None:
        """Writes everything acknowledged into parts. Raises StorageError; then nothing has changed."""
        with self._store_lock:
            with self._lock:
                self._ready()
                persisted = self._wal.last_version
                self._last_flush = self._clock.monotonic()
                if persisted == self._persisted:
                    return
                generation = self._generation
                horizon = self._horizon(persisted)
                work = []
                for table in self._tables.values():
                    table.sealed = tuple(table.memtable.take_all())
                    work.append((table, table.sealed, table.tombstones, self._times_to_store(table),
                                 dict(table.places)))
            results: list[_Flushed] = []
            done = False
            try:
                self._wal.commit_all()
                self._wal.sync()
                results.extend(self._flush_table(table, runs, tombstones, times, places, persisted, horizon)
                               for table, runs, tombstones, times, places in work)
                self._install(persisted, generation, results)
                done = True
            finally:
                if not done:
                    with self._lock:
                        for table, *_ in work:
                            table.memtable.put_back(table.sealed)
                            table.sealed = ()
                        for result in results:
                            self._replace_parts(result.table, result.parts, ())
            for result in results:
                self._publish_tombstones(result.table)
            self._flushes += 1

    def sync(self) -> None:
        """Makes everything acknowledged durable. Raises StorageError; then the log takes no writes any more."""
        self._wal.sync()

    def _times_to_store(self, table: TableState) -> pa.Table | None:
        """Returns the newest times when they shall be stored: always for few tables, else only now and then."""
        if not table.sealed:
            return None
        if len(table.newest) > _SMALL_FAMILY and table.flushes_since_times < _FLUSHES_PER_TIMES:
            table.flushes_since_times += 1
            return None
        table.flushes_since_times = 0
        return pa.table({"tuid": table.newest.tuids.copy(), "ts": table.newest.times.copy()})

    def _flush_table(self, table: TableState, runs: tuple[Run, ...], tombstones: tuple[Tombstone, ...],
                     times: pa.Table | None, places: dict[Partition, Place], persisted: int, horizon: int
                     ) -> _Flushed:
        parts: tuple[PartHandle, ...] = ()
        collapsed = False
        if runs:
            known = {f.name: f for run in runs for f in run.data.schema}
            fields = [f for f in known.values() if f.name not in (TUID_COLUMN, VERSION_COLUMN)]
            updates = join_ranges([run.updates for run in runs])
            rows = self._resolved(table, runs, fields, tombstones, horizon, unique=updates is None)
            parts = self._write_parts(table, rows, horizon, updates)
            collapsed = _rows_in(parts) < sum(run.num_rows for run in runs)
        last = table.last_times if times is None else self._write_times(table, times, persisted)
        return _Flushed(table, parts, last, collapsed, places)

    def _resolved(self, table: TableState, runs: Sequence[Run], fields: Sequence[pa.Field],
                  tombstones: Sequence[Tombstone], horizon: int, *, unique: bool) -> Iterator[pa.Table]:
        """Yields the rows of all runs sorted by key, without what no reader as of `horizon` or later can see.

        They come in pieces of some child tables each: what one takes in memory serves the next, and the caches.
        """
        effective = TombstoneIndex([t for t in tombstones if t.hides_for(horizon)])
        for selection in cut(runs, ROW_GROUP_ROWS):
            yield resolve(gather(runs, selection, fields), table.key_name, effective, as_of=2**64 - 1, pin=horizon,
                          unique=unique)

    def _write_parts(self, table: TableState, pieces: Iterable[pa.Table], purged: int,
                     updates: TimeRange | None) -> tuple[PartHandle, ...]:
        handles: list[PartHandle] = []

        def finish(writer: PartWriter) -> None:
            with self._lock:
                name = self._new_name()
            info = writer.finish(self._fs, self._store / "parts" / str(table.uid), name, purged_version=purged,
                                 updates=updates)
            handles.append(PartHandle(info, self._part_path(table.uid, name)))

        try:
            writer = PartWriter()
            for rows in pieces:
                while rows.num_rows:
                    fitting = rows.slice(0, MAX_PART_ROWS - writer.num_rows)
                    rows = rows.slice(fitting.num_rows)
                    writer.add(fitting)
                    if writer.num_rows == MAX_PART_ROWS:
                        finish(writer)
                        writer = PartWriter()
            if writer.num_rows:
                finish(writer)
        except StorageError:
            with self._lock:
                self._replace_parts(table, handles, ())
            raise
        return tuple(handles)

    def _write_times(self, table: TableState, times: pa.Table, version: int) -> LastTimes:
        with self._lock:
            name = f"{table.uid}-{self._new_name()}"
        content = parquet_bytes(times)
        self._fs.write_atomic(self._store / "last" / name, content)
        return LastTimes(name, version, crc32c(content))

    def _install(self, persisted: int, generation: int, results: Sequence[_Flushed]) -> None:
        """Makes the result of a flush valid, in the MANIFEST and in memory."""
        with self._lock:
            if generation != self._generation:
                raise StorageError("the flush was overtaken by a refused write", hint="it is tried again")
            before = [(r.table.parts, r.table.last_times, r.table.floor, r.table.stored_places) for r in results]
            for result in results:
                table = result.table
                table.parts = (*table.parts, *result.parts)
                table.last_times = result.last_times
                table.stored_places = result.places
                if result.collapsed:
                    table.floor = max(table.floor, self._horizon(persisted))
            try:
                self._save(self._manifest(persisted))
            except StorageError:
                for result, (parts, last, floor, places) in zip(results, before, strict=True):
                    result.table.parts, result.table.last_times, result.table.floor = parts, last, floor
                    result.table.stored_places = places
                raise
            self._persisted = persisted
            for result, (_, last, *_) in zip(results, before, strict=True):
                result.table.sealed = ()
                if last != result.table.last_times:
                    self._replace_times(result.table.uid, last)

    def _publish_tombstones(self, table: TableState) -> None:
        """Writes the deletes for readers of other processes, when they changed."""
        with self._store_lock:
            with self._lock:
                current = tuple(t for t in table.tombstones if t.dropped or t.version <= self._persisted)
                known = self._tombstone_files.get(table.uid)
                if self._tables.get(table.uid) is not table or current == (known[1] if known else ()):
                    return
                name = self._new_name()
                children = table.newest.tuids.tolist()
            directory = self._store / "tombstones" / str(table.uid)
            self._fs.write_atomic(directory / name, parquet_bytes(to_table(current, table.time_type, children)))
            with self._lock:
                self._tombstone_files[table.uid] = (name, current)
                if known is not None:
                    self._replaced.append(
                        _Replaced(directory / known[0], self._clock.monotonic(), None, table.uid, None))

    # Compaction

    def compact(self, *, full: bool = False) -> int:
        """Merges parts of like size, takes out replaced and deleted rows, and returns how many parts were replaced.

        `full` merges all parts of each table. Raises StorageError, CorruptionError; then nothing has changed.
        """
        replaced = 0
        with self._store_lock:
            with self._lock:
                self._ready()
                tables = list(self._tables.values())
            for table in tables:
                chosen = list(table.parts) if full else self._choose(table)
                if len(chosen) > 1 or (chosen and self._improvable(table, chosen[0])):
                    self._merge(table, chosen)
                    replaced += len(chosen)
                self._drop_applied_tombstones(table)
        return replaced

    def _choose(self, table: TableState) -> list[PartHandle]:
        tiers: dict[int, list[PartHandle]] = {}
        for part in table.parts:
            if part.info.rows < MAX_PART_ROWS // 2:
                tiers.setdefault(max(part.info.rows, 1).bit_length() // _TIER_BITS, []).append(part)
        chosen: list[PartHandle] = []
        for tier in sorted(tiers):
            chosen += tiers[tier]
            # Only a full tier is merged, or the same rows would be written again and again; strays below come along.
            if len(tiers[tier]) >= self._options.compact_min_parts:
                return chosen
        if len(table.tombstones) > _MAX_TOMBSTONES:
            return [part for part in table.parts if self._improvable(table, part)]
        return []

    def _improvable(self, table: TableState, part: PartHandle) -> bool:
        info = part.info
        return info.updates is not None or any(
            t.version > max(info.purged_version, info.min_version) and t.touches(info.min_ts, info.max_ts)
            for t in table.tombstones)

    def _merge(self, table: TableState, chosen: Sequence[PartHandle]) -> None:
        with self._lock:
            horizon = self._horizon(self._persisted)
            tombstones = tuple(t for t in table.tombstones if t.dropped or t.version <= self._persisted)
        readers = [PartReader(part.path, part.info) for part in chosen]
        names = dict.fromkeys(name for part in chosen for name in part.info.columns)
        types = {f.name: f for reader in readers for f in reader.schema}
        fields = [types[name] for name in names]
        updates = join_ranges([part.info.updates for part in chosen])
        unique = updates is None
        rows = (piece for runs in in_key_order([reader.row_groups() for reader in readers], _MERGED_BYTES)
                for piece in self._resolved(table, runs, fields, tombstones, horizon, unique=unique))
        if updates is not None and not self._older_elsewhere(table, chosen, updates, horizon):
            updates = None
        parts = self._write_parts(table, rows, horizon, updates)
        with self._lock:
            before = table.parts, table.floor
            table.parts = (*(p for p in table.parts if p not in chosen), *parts)
            if _rows_in(parts) < _rows_in(chosen):
                table.floor = max(table.floor, horizon)
            try:
                self._save(self._manifest(self._persisted))
            except StorageError:
                table.parts, table.floor = before
                self._replace_parts(table, parts, ())
                raise
            self._replace_parts(table, chosen, parts)
            self._compactions += 1

    def _older_elsewhere(self, table: TableState, chosen: Sequence[PartHandle], updates: TimeRange,
                         horizon: int) -> bool:
        """Tells whether a key in the range of updates may still exist in another part, or twice in the new one."""
        if any(p.info.min_ts <= updates[1] and p.info.max_ts >= updates[0] for p in table.parts if p not in chosen):
            return True
        return horizon < max((p.info.max_version for p in chosen), default=0)

    def _replace_parts(self, table: TableState, old: Sequence[PartHandle], new: Sequence[PartHandle]) -> None:
        now = self._clock.monotonic()
        self._replaced.extend(_Replaced(part.path, now, weakref.ref(part), table.uid, part.info)
                              for part in old if part not in new)

    def _drop_applied_tombstones(self, table: TableState) -> None:
        """Forgets deletes that no file, valid or replaced, needs any more."""
        with self._lock:
            horizon = self._horizon(self._persisted)
            infos = [part.info for part in table.parts]
            infos += [r.info for r in self._replaced if r.table_uid == table.uid and r.info is not None]
            if any(r.table_uid == table.uid and r.info is None and r.path.parent.parent.name == "parts"
                   for r in self._replaced):
                return
            needed = tuple(t for t in table.tombstones if self._needed(t, infos, horizon))
            if needed == table.tombstones:
                return
            before = table.tombstones
            table.set_tombstones(needed)
            try:
                self._save(self._manifest(self._persisted))
            except StorageError:
                table.set_tombstones(before)
                raise
        self._publish_tombstones(table)

    def _needed(self, tombstone: Tombstone, infos: Sequence[PartInfo], horizon: int) -> bool:
        if tombstone.version > horizon:
            return True
        return any(info.min_version < tombstone.version and info.purged_version < tombstone.version
                   and tombstone.touches(info.min_ts, info.max_ts) for info in infos)

    # Upkeep

    def maintain(self) -> None:
        """Does what is due: flush by size or age, sync, compaction, WAL retention, deletion of replaced files."""
        with self._lock:
            if self._closed:
                return
            pending = sum(table.memtable.num_bytes for table in self._tables.values())
            behind = self._wal.acknowledged_version > self._persisted
            age = self._clock.monotonic() - self._last_flush
            due = behind and (age >= self._options.flush_interval_s or pending >= self._options.memtable_bytes)
        self._wal.sync_if_due(self._options.wal_fsync_period_ms / 1000)
        with self._store_lock, self._lock:
            if self._doubtful:
                self._save(self._manifest(self._persisted))
        if due:
            self.flush()
            self.compact()
        self._delete_replaced()
        now = self._clock.monotonic()
        if now - self._last_retention >= _RETENTION_INTERVAL_S:
            self._last_retention = now
            self._apply_retention()

    def _delete_replaced(self) -> None:
        now = self._clock.monotonic()
        with self._store_lock, self._lock:
            if self._doubtful:
                return
            kept = []
            for entry in self._replaced:
                held = entry.handle is not None and entry.handle() is not None
                if held or now - entry.since < self._options.part_grace_s:
                    kept.append(entry)
                    continue
                self._cache.forget(entry.path)
                self._fs.remove(entry.path)
            gone = {entry.table_uid for entry in self._replaced} - {entry.table_uid for entry in kept}
            self._replaced = kept
            for uid in gone - self._tables.keys():
                self._remove_folders(uid)

    def _remove_folders(self, table_uid: int) -> None:
        """Removes the folders of a table that is gone, with the files of its schema if a crash has left them."""
        for kind in ("parts", "tombstones"):
            folder = self._store / kind / str(table_uid)
            if self._fs.list(folder) == [SCHEMA_FILE]:
                self._fs.remove(folder / SCHEMA_FILE)
            if not self._fs.list(folder):
                self._fs.remove_dir(folder)
        self._forget_dropped(table_uid)

    def _forget_dropped(self, table_uid: int) -> None:
        """Lets the next MANIFEST forget a dropped table that has no files any more."""
        folders = [self._store / kind / str(table_uid) for kind in ("parts", "tombstones")]
        if not any(self._fs.list(folder) for folder in folders):
            self._dropped.discard(table_uid)

    def _apply_retention(self) -> None:
        options = self._options
        directory = self._directory / "wal"
        with self._store_lock:
            with self._lock:
                persisted, pins = self._persisted, list(self._pins.values())
            policy = RetentionPolicy(options.wal_retention_period_s, options.wal_retention_size_kb,
                                     options.wal_pin_max_bytes)
            infos = segment_infos(self._fs, directory, self._wal.acknowledged_version)
            pin = min(pins, default=None)
            unneeded = deletable(infos, policy, now_ms=self._clock.now_ms(), persisted_version=persisted,
                                 pin_version=pin)
            if unneeded:
                self._wal.sync()  # a power cut must not leave a log that begins behind its end
            for segment in unneeded:
                self._fs.remove(directory / segment_name(segment.first_version))

    def stats(self) -> VnodeStats:
        """Returns sizes and counters."""
        infos = segment_infos(self._fs, self._directory / "wal", self._wal.acknowledged_version)
        with self._lock:
            tables = list(self._tables.values())
            parts = [part.info for table in tables for part in table.parts]
            runs = [run for table in tables for run in table.runs()]
            return VnodeStats(
                acknowledged_version=self._wal.acknowledged_version, synced_version=self._wal.synced_version,
                persisted_version=self._persisted, memtable_rows=sum(r.num_rows for r in runs),
                memtable_bytes=sum(r.data.nbytes for r in runs), parts=len(parts),
                part_rows=sum(p.rows for p in parts), part_bytes=sum(p.size for p in parts),
                wal_segments=len(infos), wal_bytes=sum(s.size for s in infos), tables=len(tables),
                child_tables=sum(len(t.newest) for t in tables), tombstones=sum(len(t.tombstones) for t in tables),
                rows_written=self._rows_written, flushes=self._flushes, compactions=self._compactions,
                pins=dict(self._pins))

    def verify(self) -> None:
        """Reads every part and checks it against the MANIFEST. Raises CorruptionError naming the file."""
        with self._lock:
            parts = [part for table in self._tables.values() for part in table.parts]
        for part in parts:
            rows = sum(group.num_rows for group in PartReader(part.path, part.info).row_groups())
            if rows != part.info.rows:
                raise CorruptionError(f"part {part.path} doesn't have the {part.info.rows} rows of the MANIFEST")

    def close(self, *, flush: bool = True) -> None:
        """Flushes and closes; nothing may be written afterwards. Raises StorageError when the flush fails."""
        if self._closed:
            return
        try:
            if flush and self._wal.failed is None:
                self.flush()
        finally:
            with self._store_lock, self._lock:
                self._closed = True
                self._wal.close()


def _rows_in(parts: Sequence[PartHandle]) -> int:
    return sum(part.info.rows for part in parts)


@dataclass(frozen=True, slots=True)
class _Flushed:
    table: TableState
    parts: tuple[PartHandle, ...]
    last_times: LastTimes | None
    collapsed: bool
    places: dict[Partition, Place]
