"""The catalog in a cluster: its log is copied from here, or copied to here and applied, or cut and taken back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.common.errors import InternalError, InvalidValueError, PenstockError
from penstock.mnode.catalog.catalog_log import CatalogLog, EntryChange
from penstock.mnode.catalog.catalog_store import CatalogStore
from penstock.wal.copied_log import CopiedLog
from penstock.wal.copied_records import CopiedRecords


class CatalogCopying:
    """What other nodes of a cluster give to the catalog's log, or get from it. Thread-safe.

    Copied records are applied when they are synced: what the catalog has is never lost by a power cut of its log. Who
    holds a `Catalog` in memory opens it anew. Methods raise StorageError, and CorruptionError where bytes are damaged.
    """

    def __init__(self, store: CatalogStore) -> None:
        """`store` has a log."""
        if store.log is None:
            raise InternalError("a catalog without a log can't be copied")
        self._store = store
        self._lock = threading.Lock()
        self.log: CatalogLog = store.log
        self._holds = 0
        #: how often something was taken back
        self.cuts = 0

    def follow(self, reason: PenstockError) -> None:
        """From now on only copies are taken: transactions raise `reason`.

        Those that wait for the cluster, perhaps with the catalog locked, are not waited for.
        """
        with self._lock:
            self.log.follow(reason)

    def lead(self) -> None:
        """From now on transactions are written here; all that was copied is part of the catalog."""
        with self._lock, self._store.lock:
            self.log.lead()
            self._store.catch_up()

    def lead_again(self) -> None:
        """Does what `lead` does where nothing was copied since `follow`, and so waits for no transaction."""
        with self._lock:
            self.log.lead()

    @property
    def copied(self) -> CopiedLog:
        """Copies of records, out of the log."""
        return self.log.copied

    @property
    def written_version(self) -> int:
        return self.log.writer.written_version

    @property
    def synced_version(self) -> int:
        return self.log.writer.synced_version

    @property
    def floor(self) -> int:
        """The version up to which others may have seen what the catalog is; what is trimmed away is below it."""
        return max(self.log.writer.acknowledged_version, self.log.copied.begin - 1)

    def append(self, records: CopiedRecords, before: Callable[[], None] = lambda: None) -> None:
        """Writes copies into the log; see `CopiedLog.append`."""
        with self._lock:
            if self.log.writer.following is None:
                raise InvalidValueError("the catalog takes no copies: it is written to")
            self.log.copied.append(records, before)

    def sync(self) -> None:
        """Makes durable what is written, and applies it."""
        with self._lock, self._store.lock:
            self.log.writer.sync()
            self._store.catch_up()

    def applied_behind(self, version: int) -> Iterator[EntryChange]:
        """Yields what the catalog has of what was written behind a version, oldest first."""
        for number, changes in self.log.changes_behind(version):
            if number > self.synced_version:
                return
            yield from changes

    def acknowledge(self, version: int) -> None:
        """The cluster never takes back what there is up to a version."""
        self.log.writer.acknowledge(version)

    def trim(self, needed_from: int | None) -> None:
        """Bounds the log; see `CatalogLog.trim`. What may be taken back yet stays, and all stays while it is copied."""
        with self._lock:
            if not self._holds:
                self.log.trim(min(self.floor, self._store.logged_version), needed_from)

    def begin_copy(self, folder: Path) -> int:
        """Copies the catalog's file to a new folder, as of one moment; from now on the log is kept, until `end_copy`.

        Returns a version that the copy has, behind which a node that has it may need the log. Raises StorageError.
        """
        with self._lock:
            self._holds += 1
            version = min(self.floor, self._store.logged_version)
        try:
            self._store.copy_to(folder)
        except BaseException:
            self.end_copy()
            raise
        return version

    def end_copy(self) -> None:
        """The log need not be kept any more for one copy."""
        with self._lock:
            self._holds -= 1

    def cut(self, version: int) -> int:
        """Takes away, and back, what is behind a version; returns how many transactions that were.

        See `CopiedLog.cut`. Raises InvalidValueError if others may have seen them.
        """
        with self._lock, self._store.lock:
            if version < self.floor:
                raise InvalidValueError(f"the catalog's changes are acknowledged up to version {self.floor}: "
                                        f"they can't be cut to {version}")
            undone = [change for _, changes in self.log.changes_behind(version) for change in changes]
            # A crash behind this has the changes done again by the next start, and cut again by the cluster.
            self._store.set_entries(
                [EntryChange(one.store, one.key, one.after, one.before) for one in reversed(undone)], version)
            self.cuts += 1
            return self.log.copied.cut(version)
