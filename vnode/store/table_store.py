"""The table store of one vnode, which its writers, readers, flush and compaction share: tables, MANIFEST, and locks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.common.clock import Clock
from penstock.common.errors import NotFoundError, StorageError, UnavailableError
from penstock.common.fs import Fs
from penstock.vnode.store import manifest as manifests
from penstock.vnode.store.manifest import Manifest
from penstock.vnode.store.parts import PartCache
from penstock.vnode.store.store_files import StoreFiles
from penstock.vnode.store.table_loading import load_tables
from penstock.vnode.store.table_state import TableState
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.wal.log import WrittenLogFiles
from penstock.wal.writer import WalWriter


class TableStore:
    """What a vnode knows in memory, and the MANIFEST that says which of its files are valid.

    `lock` guards all attributes, the tables and what they hold, and the order of the log: who enqueues a record
    holds it until the tables have the record, too. Every write waits for it, so nobody waits for the log or writes
    parts while holding it; two rare steps do, going back after a refused write and closing. The MANIFEST and the
    schema files of a table are written under it, since what they say must not change meanwhile.

    `manifest_lock` is held by whoever replaces the MANIFEST, from what it is computed from until it is valid: one
    flush, compaction, change of a table or first pin at a time. It may be held for long, while parts are written.
    Writes and snapshots never take it, unless the memtable is so full that the writer must flush.

    Who needs both takes `manifest_lock` first; nobody waits for it while holding `lock`. The log and the cache of
    parts have locks of their own, below these.
    """

    def __init__(self, directory: Path, options: VnodeOptions, *, fs: Fs, clock: Clock, wal: WalWriter,
                 manifest: Manifest) -> None:
        self.lock = threading.RLock()
        self.manifest_lock = threading.RLock()
        self.directory = directory
        self.folder = directory / "store"
        self.options = options
        self.fs = fs
        self.clock = clock
        self.wal = wal
        # What one flush wrote fits twice: who goes through a part piece by piece decodes it once.
        self.cache = PartCache(2 * options.memtable_bytes)
        self.files = StoreFiles(self.folder, manifest, fs=fs, clock=clock)
        self.tables: dict[int, TableState] = {}
        #: the version up to which all rows are in parts
        self.persisted = manifest.persisted_version
        #: the version that each reader of older versions needs, by its name
        self.pins: dict[str, int] = dict(manifest.pins)
        #: how often the tables went back to what was acknowledged
        self.generation = 0
        self.closed = False
        self._doubtful = False

    def load(self, manifest: Manifest) -> None:
        """Rebuilds all tables from the MANIFEST and the log behind it. Raises CorruptionError."""
        self.tables = load_tables(self.folder, manifest, self.cache, self.fs, self.written_log())

    def written_log(self) -> WrittenLogFiles:
        """Returns the log for a reader of all that is written."""
        return WrittenLogFiles(self.directory / "wal", self.fs, lambda: self.wal.written_end)

    def reload(self) -> None:
        """Goes back to what is in the log; the caller holds `lock`. Raises CorruptionError."""
        self.generation += 1
        self.load(self.manifest())

    def require_writable(self) -> None:
        """Raises unless writes are possible; goes back to the acknowledged state after a refused write.

        The caller holds `lock`.
        """
        if self.closed:
            raise UnavailableError(f"vnode {self.options.vgroup_id} is closed")
        if self.wal.failed is not None:
            raise self.wal.failed
        if self.wal.refused is not None:
            self.wal.take_back()
            self.reload()
            self.wal.reset()

    def table(self, table_uid: int) -> TableState:
        """Returns a table. Raises NotFoundError."""
        table = self.tables.get(table_uid)
        if table is None:
            raise NotFoundError(f"vnode {self.options.vgroup_id} has no table {table_uid}")
        return table

    def horizon(self, persisted: int) -> int:
        """Returns the oldest version that a reader may ask for once rows up to `persisted` are in parts."""
        return min([persisted, *self.pins.values()])

    # The MANIFEST

    def manifest(self) -> Manifest:
        """Returns what the MANIFEST is to say; the caller holds `lock`."""
        tables = {uid: table.entry(self.persisted) for uid, table in self.tables.items()}
        return Manifest(self.options.vgroup_id, self.persisted, self.files.next_number, tables, dict(self.pins),
                        tuple(sorted(self.files.dropped)))

    def save(self) -> None:
        """Replaces the MANIFEST by what the tables are now; the caller holds both locks.

        Raises StorageError. Then the old or the new one is on disk: no file goes that either needs.
        """
        self._doubtful = True
        manifests.save(self.fs, self.folder, self.manifest())
        self._doubtful = False

    @contextmanager
    def saving(self, undo: Callable[[], object]) -> Iterator[None]:
        """Saves what the block changes. Raises StorageError; then `undo` has taken the change back."""
        try:
            yield
            self.save()
        except StorageError:
            undo()
            raise

    def save_if_doubtful(self) -> None:
        """Writes the MANIFEST again if nobody knows which one is on disk. Raises StorageError."""
        with self.manifest_lock, self.lock:
            if self._doubtful:
                self.save()

    def delete_replaced(self) -> None:
        """Deletes files that aren't valid any more, once readers of other processes had time to let them go."""
        with self.manifest_lock, self.lock:
            if not self._doubtful:
                self.files.delete_replaced(self.options.part_grace_s, self.tables, self.cache.forget)

    # Pins

    def set_pin(self, owner: str, version: int) -> None:
        """Keeps row versions, and the log, for a reader as of `version` or later. Raises StorageError."""
        with self.lock:
            if owner in self.pins:
                self.pins[owner] = version  # saved with the next flush: an older pin only keeps more
                return
        # A first pin must survive a crash, and must not come while rows are being collapsed without regard to it.
        with self.manifest_lock, self.lock, self.saving(lambda: self.pins.pop(owner)):
            self.pins[owner] = version

    def release_pin(self, owner: str) -> None:
        """Forgets a pin; on disk with the next flush."""
        with self.lock:
            self.pins.pop(owner, None)
