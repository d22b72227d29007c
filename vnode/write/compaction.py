"""The compaction of a vnode: parts of like size are merged, and rows that nobody can see any more are left out."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.vnode.store.manifest import extent_of
from penstock.vnode.store.memtable import join_ranges
from penstock.vnode.store.merging import in_key_order
from penstock.vnode.store.part_writing import resolved, rows_in, updates_left, write_parts
from penstock.vnode.store.parts import MAX_PART_ROWS, PartReader
from penstock.vnode.store.table_state import PartHandle, TableState
from penstock.vnode.store.table_store import TableStore
from penstock.vnode.store.tombstone_files import TombstoneFiles

_TIER_BITS = 3  # parts of a tier have up to 8 times the rows of the tier below
_MAX_TOMBSTONES = 2000  # beyond that, parts are rewritten without the hidden rows before their tier is full
_MERGED_BYTES = 64 << 20  # held of the parts that are being merged


class Compactor:
    """Merges parts table by table. Takes the store's locks; parts are read and written under `manifest_lock` alone."""

    def __init__(self, store: TableStore, tombstone_files: TombstoneFiles) -> None:
        self._store = store
        self._tombstone_files = tombstone_files

    def compact(self, *, full: bool = False) -> int:
        """Merges what is worth it, or with `full` all parts of each table; returns how many parts were replaced.

        Raises StorageError, CorruptionError; then nothing has changed.
        """
        replaced = 0
        with self._store.manifest_lock:
            with self._store.lock:
                self._store.require_writable()
                tables = list(self._store.tables.values())
            for table in tables:
                chosen = list(table.parts) if full else self._choose(table)
                if len(chosen) > 1 or (chosen and _improvable(table, chosen[0])):
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
            if len(tiers[tier]) >= self._store.options.compact_min_parts:
                return chosen
        horizon = self._store.horizon(self._store.persisted)
        # Those that a reader of older versions holds up would only have the same rows written again and again.
        if table.tombstone_count > _MAX_TOMBSTONES and table.tombstones.count_until(horizon) > _MAX_TOMBSTONES:
            return [part for part in table.parts if _improvable(table, part)]
        return next(([part] for part in table.parts if _holds_replaced_rows(table, part, horizon)), [])

    def _merge(self, table: TableState, chosen: Sequence[PartHandle]) -> None:
        store = self._store
        with store.lock:
            horizon = store.horizon(store.persisted)
            tombstones = table.persisted_tombstones(store.persisted)
        readers = [PartReader(part.path, part.info) for part in chosen]
        names = dict.fromkeys(name for part in chosen for name in part.info.columns)
        types = {f.name: f for reader in readers for f in reader.schema}
        fields = [types[name] for name in names]
        updates = join_ranges([part.info.updates for part in chosen])
        unique = updates is None
        rows = (piece for runs in in_key_order([reader.row_groups() for reader in readers], _MERGED_BYTES)
                for piece in resolved(runs, fields, table.key_name, tombstones, horizon, unique=unique))
        left = updates_left(updates, [part for part in table.parts if part not in chosen],
                            collapsed=max(part.info.max_version for part in chosen) <= horizon)
        self._install(table, chosen, write_parts(store, table, rows, horizon, left), horizon)

    def _install(self, table: TableState, old: Sequence[PartHandle], new: Sequence[PartHandle], horizon: int) -> None:
        """Makes the merged parts valid instead of the old ones, in the MANIFEST and in memory."""
        store = self._store
        with store.lock:
            before = table.parts, table.floor

            def undo() -> None:
                table.parts, table.floor = before
                store.files.replace_parts(table.uid, new)

            with store.saving(undo):
                table.parts = (*(part for part in table.parts if part not in old), *new)
                if rows_in(new) < rows_in(old):
                    table.floor = max(table.floor, horizon)
            store.files.replace_parts(table.uid, old, new)

    def _drop_applied_tombstones(self, table: TableState) -> None:
        """Forgets deletes that no file, valid or replaced, needs any more."""
        store = self._store
        with store.lock:
            replaced = store.files.replaced_parts(table.uid)
            if replaced is None:
                return
            extents = [extent_of(info) for info in (*(part.info for part in table.parts), *replaced)]
            before = table.tombstones
            needed, forgotten = before.needed(extents, store.horizon(store.persisted))
            if needed == before:
                return
            with store.saving(lambda: table.set_tombstones(before)):
                table.set_tombstones(needed, forgotten)
        self._tombstone_files.publish(table)


def _improvable(table: TableState, part: PartHandle) -> bool:
    """Tells whether a part may have rows that nobody can see."""
    return part.info.updates is not None or table.tombstones.reach(extent_of(part.info))


def _holds_replaced_rows(table: TableState, part: PartHandle, horizon: int) -> bool:
    """Tells whether a part has rows that are replaced by others of its own, as no reader needs them any more.

    It is written again by itself, once: queries would have to look for the newest version of all its keys.
    """
    info = part.info
    if info.updates is None or info.max_version > horizon or info.rows > MAX_PART_ROWS // 2:
        return False
    left = updates_left(info.updates, [other for other in table.parts if other is not part], collapsed=True)
    return left is None or 2 * (left[1] - left[0]) < info.updates[1] - info.updates[0]
