"""Publishes the deletes of a vnode's tables as files, in which readers of other processes find them."""

from __future__ import annotations

from penstock.vnode.store.parts import parquet_bytes
from penstock.vnode.store.table_state import TableState
from penstock.vnode.store.table_store import TableStore
from penstock.vnode.store.tombstones import Tombstones, to_table


class TombstoneFiles:
    """Which deletes of each table are published, and in which file. Guarded by the store's `lock`."""

    def __init__(self, store: TableStore) -> None:
        self._store = store
        self._published: dict[int, tuple[str, Tombstones]] = {}

    def publish(self, table: TableState) -> None:
        """Writes the deletes of a table when they have changed; the caller doesn't hold `lock`. Raises StorageError."""
        store = self._store
        with store.manifest_lock:
            with store.lock:
                current = table.persisted_tombstones(store.persisted)
                known = self._published.get(table.uid)
                if store.tables.get(table.uid) is not table or current == (known[1] if known else Tombstones()):
                    return
                name = store.files.new_name()
                children = table.newest.tuids.tolist()
                path = store.files.tombstones(table.uid) / name
            store.fs.write_atomic(path, parquet_bytes(to_table(current, table.time_type, children)))
            with store.lock:
                self._published[table.uid] = (name, current)
                if known is not None:
                    store.files.replace_tombstones(table.uid, known[0])

    def forget(self, table_uid: int) -> None:
        """Forgets a table that was dropped; the caller holds `lock`."""
        self._published.pop(table_uid, None)
