"""One vnode: its log and its table store, and the parts that write, read, flush, compact and move what is in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.common.clock import Clock
from penstock.common.errors import CorruptionError, PenstockError
from penstock.common.fs import Fs
from penstock.vnode.read.snapshot import Snapshot
from penstock.vnode.read.vnode_reader import LoggedRows, VnodeReader, VnodeStats
from penstock.vnode.store import manifest as manifests
from penstock.vnode.store.delivery import IngestDelivery, Places
from penstock.vnode.store.manifest import Manifest
from penstock.vnode.store.sorted_keys import U64
from penstock.vnode.store.table_state import Row
from penstock.vnode.store.table_store import TableStore
from penstock.vnode.store.tombstone_files import TombstoneFiles
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.write.child_transfer import ChildTransfer
from penstock.vnode.write.compaction import Compactor
from penstock.vnode.write.flushing import Flusher
from penstock.vnode.write.log_copying import LogCopying
from penstock.vnode.write.log_retention import LogRetention
from penstock.vnode.write.table_definitions import TableDefinitions
from penstock.vnode.write.vnode_writer import BegunWrite, Change, VnodeWriter
from penstock.wal.reader import WalReader
from penstock.wal.record import MetaRecord
from penstock.wal.writer import Recovery, WalOptions, WalWriter, begin_log


class Vnode:
    """All methods are thread-safe; `TableStore` says which lock guards what. Starts no threads: see `Dnode`."""

    def __init__(self, store: TableStore) -> None:
        """Goes on with a store whose tables are loaded; see `open`."""
        self._store = store
        self._wal = store.wal
        self._tombstone_files = TombstoneFiles(store)
        self._tables = TableDefinitions(store, self._tombstone_files)
        self._flusher = Flusher(store, self._tombstone_files)
        self._compactor = Compactor(store, self._tombstone_files)
        self._retention = LogRetention(store)
        self._writer = VnodeWriter(store, self._flusher.flush)
        self._reader = VnodeReader(store)
        #: gives the log to other nodes of a cluster, or takes it from them
        self.copying = LogCopying(store, self._tables)
        #: moves child tables to another vnode, or takes them from there
        self.transfer = ChildTransfer(store, self._tables, self._tombstone_files, self._flusher.flush)

    # Life

    @classmethod
    def open(cls, directory: Path, options: VnodeOptions, *, fs: Fs, clock: Clock) -> Vnode:
        """Opens a vnode, creating it when missing: cuts the log's torn tail and rebuilds the memtable from the log.

        Raises CorruptionError when acknowledged data cannot be read, StorageError when the system refuses.
        """
        folder = directory / "store"
        for name in ("parts", "tombstones", "last"):
            fs.make_dirs(folder / name)
        manifest = manifests.load(fs, folder, options.vgroup_id)
        if manifest is not None:
            # A crash may have come between its rename and the sync of the directory. What only the MANIFEST before it
            # needs is deleted from here on, so that one must not come back.
            fs.fsync_dir(folder)
        log_options = WalOptions(options.vgroup_id, options.wal_level, options.segment_bytes)
        persisted = 0 if manifest is None else manifest.persisted_version
        wal = WalWriter.open(directory / "wal", log_options, fs=fs, clock=clock,
                             acknowledged=persisted if options.replicated else None)
        try:
            if manifest is None:
                manifest = _first_manifest(folder, options.vgroup_id, wal, fs)
            if wal.written_version < manifest.persisted_version:
                raise CorruptionError(
                    f"the log in {directory / 'wal'} ends at version {wal.written_version}, but the parts hold "
                    f"rows up to {manifest.persisted_version}", hint="restore the log from a copy")
            store = TableStore(directory, options, fs=fs, clock=clock, wal=wal, manifest=manifest)
            store.files.adopt(manifest)
            store.load(manifest)
            vnode = cls(store)
            for table in store.tables.values():
                vnode._tombstone_files.publish(table)
        except PenstockError:
            wal.close()
            raise
        return vnode

    @staticmethod
    def begin(directory: Path, options: VnodeOptions, version: int, *, fs: Fs, clock: Clock) -> None:
        """Makes the files of a vnode without rows whose log goes on behind a version; `open` opens it.

        What is to become part of another vnode's rows keeps its versions so: see `ChildTransfer.take_over`.
        """
        begin_log(directory / "wal", fs, clock, vgroup_id=options.vgroup_id, version=version)
        fs.make_dirs(directory / "store")
        manifests.save(fs, directory / "store", Manifest(options.vgroup_id, version))

    @property
    def directory(self) -> Path:
        return self._store.directory

    @property
    def recovery(self) -> Recovery:
        """What opening the log found: bytes cut off, acknowledged versions lost to a power cut (level 1)."""
        return self._wal.recovery

    def set_options(self, options: VnodeOptions) -> None:
        """Goes on with other options for the log, from the next write and the next round of upkeep on.

        Raises StorageError if what was written before can't be made as durable as they say.
        """
        before, self._store.options = self._store.options, options
        if options.wal_level != before.wal_level and not self.copying.follows:
            self._wal.set_level(options.wal_level)

    def maintain(self) -> None:
        """Does what is due: flush by size or age, sync, compaction, WAL retention, deletion of replaced files."""
        with self._store.lock:
            if self._store.closed:
                return
            due = self._flusher.is_due()
        self._wal.sync_if_due(self._store.options.wal_fsync_period_ms / 1000)
        self._store.save_if_doubtful()
        if due:
            self.flush()
            self.compact()
        self._store.delete_replaced()
        self._retention.apply_if_due()

    def close(self, *, flush: bool = True) -> None:
        """Flushes and closes; nothing may be written afterwards. Raises StorageError when the flush fails."""
        if self._store.closed:
            return
        try:
            if flush and self._wal.failed is None:
                self.flush()
        finally:
            with self._store.manifest_lock, self._store.lock:
                self._store.closed = True
                self._wal.close()

    # Tables

    def define_table(self, table_uid: int, schema: pa.Schema, key_columns: int) -> None:
        """Makes a storage table known, or gives it its newest columns; the same call again changes nothing.

        `schema`: the physical columns, the primary timestamp first; `key_columns`: 1, or 2 for a composite key.
        Raises InvalidStatementError when the key or the type of a column would change.
        """
        self._tables.define(table_uid, schema, key_columns)

    def drop_table(self, table_uid: int) -> None:
        """Forgets a table and all its rows; an unknown table is no error."""
        self._tables.drop(table_uid)

    def drop_children(self, table_uid: int, tuids: Sequence[int]) -> None:
        """Removes all rows of child tables for every reader, also for older snapshots; their uids never come back."""
        self._tables.drop_children(table_uid, tuids)

    @property
    def table_uids(self) -> list[int]:
        """The storage tables that the vnode knows."""
        return self._reader.table_uids()

    @property
    def unknown_tables(self) -> list[int]:
        """Tables that the MANIFEST doesn't know and nobody dropped, but which have files: they stay as they are."""
        return self._store.files.unknown_tables

    @property
    def newest_uid(self) -> int:
        """The greatest uid among its storage tables and the child tables that it has, or had, rows of."""
        return self._reader.newest_uid()

    def children_of(self, table_uid: int) -> U64:
        """Returns the child tables that the vnode has, or had, rows of, ascending."""
        return self._reader.children_of(table_uid)

    # Writing

    def write(self, table_uid: int, batch: pa.RecordBatch, *, ingest_time_ms: int | None = None,
              delivery: IngestDelivery | None = None) -> int:
        """Upserts rows and returns the version of their record once it is acknowledged.

        `batch`: `_tuid` uint64, the key columns, any of the other columns. For rows whose key exists, columns that
        are not in the batch keep their stored value, else they are NULL. Of equal keys in the batch the last wins.
        An empty batch writes nothing. Of a `delivery`, which tells where each row comes from, only rows are written
        that the table doesn't have in this vnode: what is delivered again leaves no trace.
        Raises NotFoundError, InvalidStatementError, InvalidValueError, StorageError.
        """
        if batch.num_rows == 0:
            self._store.table(table_uid)
            return self._wal.acknowledged_version
        return self._writer.begin_write(table_uid, batch, ingest_time_ms, delivery).wait()

    def begin_write(self, table_uid: int, batch: pa.RecordBatch, delivery: IngestDelivery | None = None) -> BegunWrite:
        """Begins what `write` does with some rows: who waits for the last of several writes waits for the log once.

        Raises as `write` does.
        """
        return self._writer.begin_write(table_uid, batch, None, delivery)

    def places(self, table_uid: int) -> Places:
        """Returns how far a table has got what ingests deliver."""
        with self._store.lock:
            return dict(self._store.table(table_uid).places)

    def write_few(self, table_uid: int, columns: Sequence[str], rows: Sequence[Row], *, partial: bool = False
                  ) -> int | None:
        """Upserts a few rows at a fraction of what `write` costs; returns the version once it is acknowledged.

        Each row has the uid of its child table, its time as an integer, and the values of all other `columns`.
        `partial`: of some columns these aren't given, and NULL; where a row is there already, they keep what is stored.
        Returns None, and writes nothing, where only `write` will do: the table has other columns by now, or what is
        stored counts; many rows are older than the newest of their child table; a key comes twice, or is NULL. Raises
        struct.error for a value that doesn't fit its column, UnicodeEncodeError for text that is none, NotFoundError,
        StorageError.
        """
        begun = self._writer.begin_few(table_uid, columns, rows, partial=partial, delivery=None)
        return None if begun is None else begun.wait()

    def begin_few(self, table_uid: int, columns: Sequence[str], rows: Sequence[Row], *, partial: bool = False,
                  delivery: IngestDelivery | None = None) -> BegunWrite | None:
        """Begins what `write_few` does; see `begin_write`. None also for a `delivery` of which some rows are here."""
        return self._writer.begin_few(table_uid, columns, rows, partial=partial, delivery=delivery)

    @property
    def acknowledges_at_once(self) -> bool:
        """Whether writes wait neither for a disk nor for a cluster."""
        return self._store.options.wal_level < 2 and self._wal.await_cluster is None

    def delete(self, table_uid: int, tuids: Sequence[int] | None, first_ts: int, last_ts: int) -> int:
        """Deletes the rows of `tuids` (None: all) with first_ts <= ts <= last_ts and returns the record's version."""
        return self._writer.begin_delete(table_uid, tuids, first_ts, last_ts).wait()

    def begin_delete(
        self, table_uid: int, tuids: Sequence[int] | None, first_ts: int, last_ts: int
    ) -> BegunWrite:
        """Begins what `delete` does; see `begin_write`."""
        return self._writer.begin_delete(table_uid, tuids, first_ts, last_ts)

    def begin_together(self, changes: Sequence[Change]) -> BegunWrite | None:
        """Begins to write and to delete rows of some tables, in this order: all of it or nothing is seen and kept.

        Readers see none of it until it is acknowledged as a whole, and a crash leaves all or nothing. Of rows to be
        deleted only those are that were there before. None, with nothing written, where there is nothing to do. Who
        else writes to the vnode waits meanwhile. Raises as `write` does; then nothing is written.
        """
        return self._writer.begin_together(changes)

    def told(self, operations: frozenset[str]) -> list[MetaRecord]:
        """Returns the META records of some operations behind what the parts hold."""
        reader = WalReader(self._store.written_log(), self._store.persisted + 1)
        try:
            return reader.pass_over(operations)
        finally:
            reader.close()

    def write_meta(self, body: dict[str, Any]) -> int:
        """Puts a META record into the log, in order with the rows, and returns its version."""
        return self._writer.begin_meta(body).wait()

    def begin_meta(self, body: dict[str, Any]) -> BegunWrite:
        """Begins what `write_meta` does; see `begin_write`."""
        return self._writer.begin_meta(body)

    def write_time_mark(self, writer: str, ts_ms: int) -> int:
        """Puts a TIME_MARK record into the log and returns its version."""
        return self._writer.write_time_mark(writer, ts_ms)

    def forget_ingest(self, ingest: int) -> None:
        """Forgets how far an ingest is that will never write again; on disk with the next flush."""
        self._writer.forget_ingest(ingest)

    def sync(self) -> None:
        """Makes everything acknowledged durable. Raises StorageError; then the log takes no writes any more."""
        self._wal.sync()

    # Reading

    @property
    def acknowledged_version(self) -> int:
        return self._wal.acknowledged_version

    @property
    def oldest_version(self) -> int:
        """The first version that the log still has."""
        return self._reader.oldest_version()

    def last_ts(self, tuid: int) -> int | None:
        """Returns the greatest ts ever written to a child table (deleted rows count too), or None."""
        return self._reader.last_ts(tuid)

    def newest_rows(
        self, table_uid: int, columns: Sequence[str], tuids: U64 | None = None, *, values: bool = False,
        as_of: int | None = None,
    ) -> pa.Table | None:
        """Returns `_tuid` and columns of each child table's newest row; `tuids`: of these only.

        Of some it returns all rows: where the newest one was deleted, and with `values` where that has NULLs. None
        where this takes as long as to read the whole table: if that is so of many, or many are far behind. `as_of`, and
        what is raised, is that of `snapshot`.
        """
        return self._reader.newest_rows(table_uid, columns, tuids, values, as_of)

    def snapshot(self, table_uid: int, *, as_of: int | None = None) -> Snapshot:
        """Returns a view of a table as of a version (None: everything acknowledged).

        Raises NotFoundError, InvalidValueError for a version that isn't acknowledged, SnapshotTooOldError when
        older rows of the table were collapsed (a pin at or before `as_of` prevents that).
        """
        return self._reader.snapshot(table_uid, as_of)

    def logged(self, table_uid: int) -> LoggedRows | None:
        """Returns what the log has of a table, None if there is no such table. Waits for nobody."""
        return self._reader.logged(table_uid)

    def stats(self) -> VnodeStats:
        """Returns sizes and versions."""
        return self._reader.stats()

    def verify(self) -> None:
        """Reads every part and checks it against the MANIFEST. Raises CorruptionError naming the file."""
        self._reader.verify()

    # Keeping

    def set_pin(self, owner: str, version: int) -> None:
        """Keeps the log from `version` on, and row versions that a reader as of `version` or later needs.

        Pins survive a restart; a moved one may come back as it was at the last flush. Raises StorageError.
        """
        self._store.set_pin(owner, version)

    def release_pin(self, owner: str) -> None:
        """Forgets a pin; an unknown owner is no error.

        Nothing is written, so that letting go cannot fail: after a crash the pin may be back until its owner, or
        the start of the engine, lets go again.
        """
        self._store.release_pin(owner)

    def on_flush(self, prepare: Callable[[], None]) -> None:
        """Has `prepare` called before each flush is valid: behind that, `told` has no records up to there.

        What it raises ends the flush.
        """
        self._flusher.prepare = prepare

    def flush(self) -> None:
        """Writes everything acknowledged into parts. Raises StorageError; then nothing has changed."""
        self._flusher.flush()

    def compact(self, *, full: bool = False) -> int:
        """Merges parts of like size, takes out replaced and deleted rows, and returns how many parts were replaced.

        `full` merges all parts of each table. Raises StorageError, CorruptionError; then nothing has changed.
        """
        return self._compactor.compact(full=full)


def _first_manifest(folder: Path, vgroup_id: int, wal: WalWriter, fs: Fs) -> Manifest:
    """Writes the MANIFEST of a new vnode. Raises CorruptionError if it isn't new."""
    if wal.written_version or fs.list(folder / "parts"):
        raise CorruptionError(f"{folder / manifests.NAME} is missing, but the vnode has data",
                              hint="restore the file from a copy of the vnode")
    manifest = Manifest(vgroup_id)
    manifests.save(fs, folder, manifest)
    return manifest
