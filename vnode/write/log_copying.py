"""The log of a vnode in a cluster: copied from here, or copied to here and applied; bounded by what is acknowledged."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa

from penstock.common.errors import InvalidValueError, PenstockError, UnavailableError
from penstock.vnode.store.replaying import replay
from penstock.vnode.store.table_store import TableStore
from penstock.vnode.write.table_definitions import RESERVED_COLUMNS, TableDefinitions
from penstock.vnode.write.vnode_copy import VnodeCopySource
from penstock.wal.copied_log import CopiedLog
from penstock.wal.copied_records import CopiedRecords
from penstock.wal.reader import WalReader
from penstock.wal.record import Record, RowsRecord, key_columns_of


class LogCopying:
    """What other nodes of a cluster give to a vnode's log, or get from it. Thread-safe.

    While the vnode follows, all its records come from here, and its tables have them as soon as its log does. Readers,
    flushes and so all that is on disk for good stay behind what is acknowledged; so a cut costs the memtable alone.
    Methods raise StorageError, and CorruptionError where bytes are damaged.
    """

    def __init__(self, store: TableStore, definitions: TableDefinitions) -> None:
        self._store = store
        self._definitions = definitions
        self._lock = threading.Lock()
        self._reader: WalReader | None = None
        self._behind = False
        #: copies of records out of this log; where it begins
        self.copied = CopiedLog(store.wal, store.directory / "wal", store.fs, store.options.vgroup_id)

    def follow(self, reason: PenstockError) -> None:
        """From now on only copies are taken: other writes raise `reason`."""
        with self._lock, self._store.lock:
            self._store.wal.following = reason
            self._store.wal.set_level(1)  # who gives the copies says when they are to be synced
            self._close_reader()

    def lead(self) -> None:
        """From now on records are written here; what was copied is part of the tables."""
        with self._lock:
            self._catch_up()
            with self._store.lock:
                self._store.wal.following = None
                self._store.wal.set_level(self._store.options.wal_level)
                self._close_reader()

    @property
    def follows(self) -> bool:
        return self._store.wal.following is not None

    def set_cluster_wait(self, await_cluster: Callable[[int], None] | None) -> None:
        """Has every write wait, when it is in the log, until `await_cluster` returns for its version, or raises."""
        self._store.wal.await_cluster = await_cluster

    @property
    def floor(self) -> int:
        """The version up to which readers, or tables on disk, may have what the log has."""
        return max(self._store.persisted, self._store.wal.acknowledged_version)

    @property
    def written_version(self) -> int:
        return self._store.wal.written_version

    @property
    def synced_version(self) -> int:
        return self._store.wal.synced_version

    def append(self, records: CopiedRecords, before: Callable[[], None] = lambda: None) -> None:
        """Writes copies into the log and applies them; see `CopiedLog.append`."""
        with self._lock:
            if not self.follows:
                raise UnavailableError(f"vnode {self._store.options.vgroup_id} takes no copies: it is written to")
            self._catch_up()
            if self._reader is None:
                self._reader = WalReader(self._store.written_log(), self._store.wal.written_version + 1)
            self.copied.append(records, before)
            self._behind = True
            while found := self._reader.read():
                self._apply(found)
            self._behind = False

    def _apply(self, records: list[Record]) -> None:
        store = self._store
        for record in records:
            if isinstance(record, RowsRecord) and record.table_uid not in store.tables:
                self._define(record)
        with store.lock:
            replay(records, store.tables)

    def _define(self, record: RowsRecord) -> None:
        """Makes a table known of which the log brings the first rows before the catalog does."""
        if record.table_uid not in self._store.files.dropped:
            schema = record.batch.schema
            columns = pa.schema([column for column in schema if column.name not in RESERVED_COLUMNS])
            self._definitions.define(record.table_uid, columns, key_columns_of(schema))

    def _catch_up(self) -> None:
        """Rebuilds the tables if something has kept them from taking what is in the log."""
        if self._behind:
            with self._store.manifest_lock, self._store.lock:
                self._close_reader()
                self._store.reload()
            self._behind = False

    def sync(self) -> None:
        """Makes durable what is written."""
        self._store.wal.sync()

    def acknowledge(self, version: int) -> None:
        """Lets readers and flushes go on to a version, or as far as the tables are."""
        with self._lock:
            if not self._behind:
                self._store.wal.acknowledge(version)

    def cut(self, version: int) -> int:
        """Takes away what is behind a version, here and in the tables; returns how many records that were.

        See `CopiedLog.cut`. Raises InvalidValueError if tables on disk, or readers, have more.
        """
        store = self._store
        with self._lock, store.manifest_lock, store.lock:
            if version < self.floor:
                raise InvalidValueError(f"vnode {store.options.vgroup_id} holds what is acknowledged up to version "
                                        f"{self.floor}: it can't be cut to {version}")
            store.wal.commit_all()
            self._close_reader()
            count = self.copied.cut(version)
            if count:
                store.reload()
            return count

    def copy_files(self, owner: str) -> VnodeCopySource:
        """Begins to copy the vnode's files to another node; `owner` names who gets them. Raises StorageError."""
        return VnodeCopySource(self._store, owner)

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
