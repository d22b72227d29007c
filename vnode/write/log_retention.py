"""Deletes segments of a vnode's log that neither the store nor a pin nor the user's retention needs any more."""

from __future__ import annotations

import math

from penstock.vnode.store.table_store import TableStore
from penstock.wal.retention import RetentionPolicy, deletable, segment_infos
from penstock.wal.segment import segment_name

_INTERVAL_S = 5.0


class LogRetention:
    """Applies the retention of the log now and then. Called by one thread, without the store's `lock`."""

    def __init__(self, store: TableStore) -> None:
        self._store = store
        self._last = -math.inf

    def apply_if_due(self) -> None:
        """Deletes what isn't needed, if some time has passed since the last call that did. Raises StorageError."""
        now = self._store.clock.monotonic()
        if now - self._last >= _INTERVAL_S:
            self._last = now
            self._apply()

    def _apply(self) -> None:
        store, options = self._store, self._store.options
        directory = store.directory / "wal"
        with store.manifest_lock:
            with store.lock:
                persisted, pins = store.persisted, list(store.pins.values())
            policy = RetentionPolicy(options.wal_retention_period_s, options.wal_retention_size_kb,
                                     options.wal_pin_max_bytes)
            infos = segment_infos(store.fs, directory, store.wal.acknowledged_version)
            unneeded = deletable(infos, policy, now_ms=store.clock.now_ms(), persisted_version=persisted,
                                 pin_version=min(pins, default=None))
            if unneeded:
                store.wal.sync()  # a power cut must not leave a log that begins behind its end
            for segment in unneeded:
                store.fs.remove(directory / segment_name(segment.first_version))
