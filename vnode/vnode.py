"""One vnode: its log and its table store, and the parts that write, read, flush, compact and move what is in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.common.clock import Clock
from penstock.common.errors import CorruptionError, PenstockError
from penstock.common.fs import Fs
from penstock.vnode.read.vnode_reader import VnodeReader
from penstock.vnode.store import manifest as manifests
from penstock.vnode.store.delivery import IngestDelivery, Places
from penstock.vnode.store.manifest import Manifest
from penstock.vnode.store.table_store import TableStore
from penstock.vnode.store.tombstone_files import TombstoneFiles
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.write.child_transfer import ChildTransfer
from penstock.vnode.write.compaction import Compactor
from penstock.vnode.write.flushing import Flusher
from penstock.vnode.write.log_copying import LogCopying
from penstock.vnode.write.log_retention import LogRetention
from penstock.vnode.write.table_definitions import TableDefinitions
from penstock.vnode.write.vnode_writer import VnodeWriter
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
        self.tables = TableDefinitions(store, self._tombstone_files)
        self._flusher = Flusher(store, self._tombstone_files)
        self._compactor = Compactor(store, self._tombstone_files)
        self._retention = LogRetention(store)
        self.writer = VnodeWriter(store, self._flusher.flush)
        self.reader = VnodeReader(store)
        #: gives the log to other nodes of a cluster, or takes it from them
        self.copying = LogCopying(store, self.tables)
        #: moves child tables to another vnode, or takes them from there
        self.transfer = ChildTransfer(store, self.tables, self._tombstone_files, self._flusher.flush)

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

    @property
    def unknown_tables(self) -> list[int]:
        """Tables that the MANIFEST doesn't know and nobody dropped, but which have files: they stay as they are."""
        return self._store.files.unknown_tables

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
        return self.writer.begin_write(table_uid, batch, delivery, ingest_time_ms).wait()

    def places(self, table_uid: int) -> Places:
        """Returns how far a table has got what ingests deliver."""
        with self._store.lock:
            return dict(self._store.table(table_uid).places)

    @property
    def acknowledges_at_once(self) -> bool:
        """Whether writes wait neither for a disk nor for a cluster."""
        return self._store.options.wal_level < 2 and self._wal.await_cluster is None

    def delete(self, table_uid: int, tuids: Sequence[int] | None, first_ts: int, last_ts: int) -> int:
        """Deletes the rows of `tuids` (None: all) with first_ts <= ts <= last_ts and returns the record's version."""
        return self.writer.begin_delete(table_uid, tuids, first_ts, last_ts).wait()

    def told(self, operations: frozenset[str]) -> list[MetaRecord]:
        """Returns the META records of some operations behind what the parts hold."""
        reader = WalReader(self._store.written_log(), self._store.persisted + 1)
        try:
            return reader.pass_over(operations)
        finally:
            reader.close()

    def write_meta(self, body: dict[str, Any]) -> int:
        """Puts a META record into the log, in order with the rows, and returns its version."""
        return self.writer.begin_meta(body).wait()

    def sync(self) -> None:
        """Makes everything acknowledged durable. Raises StorageError; then the log takes no writes any more."""
        self._wal.sync()

    # Reading

    @property
    def acknowledged_version(self) -> int:
        return self._wal.acknowledged_version

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
