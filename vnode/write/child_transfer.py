"""Moves child tables from one vnode to another, as the halves of a vgroup that is split need it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.common.errors import UnavailableError
from penstock.vnode.store.delivery import Partition, Place
from penstock.vnode.store.manifest import PartInfo
from penstock.vnode.store.part_writing import write_last_times, write_parts
from penstock.vnode.store.parts import PartReader
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN, U64
from penstock.vnode.store.table_loading import load_newest_times
from penstock.vnode.store.table_state import PartHandle
from penstock.vnode.store.table_store import TableStore
from penstock.vnode.store.tombstone_files import TombstoneFiles
from penstock.vnode.store.tombstones import Tombstones
from penstock.vnode.write.table_definitions import TableDefinitions


@dataclass(frozen=True, slots=True)
class HandOver:
    """Child tables of one storage table on their way from a vnode to another. `newest_times`: `tuid`, `ts`.

    `parts`, to be gone through once: the rows, all of their versions, of each part, and what the part is like.
    """

    schema: pa.Schema
    key_columns: int
    tombstones: Tombstones
    floor: int
    newest_times: pa.Table
    places: dict[Partition, Place]
    parts: Iterator[tuple[pa.Table, PartInfo]]


class ChildTransfer:
    """Gives child tables away and takes others over. Nothing may be written to them meanwhile.

    Parts are read and written under the store's `manifest_lock`; `lock` is held only to install them.
    """

    def __init__(self, store: TableStore, definitions: TableDefinitions, tombstone_files: TombstoneFiles,
                 flush: Callable[[], None]) -> None:
        self._store = store
        self._definitions = definitions
        self._tombstone_files = tombstone_files
        self._flush = flush

    def hand_over(self, table_uid: int, tuids: U64) -> HandOver:
        """Returns all that the vnode knows of child tables, for `take_over`.

        Raises StorageError if rows that are in memory can't be written into parts.
        """
        self._flush_all()
        with self._store.lock:
            table = self._store.table(table_uid)
            newest = table.newest
            moving = np.isin(newest.tuids, tuids)
            times = pa.table({"tuid": newest.tuids[moving], "ts": newest.times[moving]})
            parts, places = table.parts, dict(table.places)
        low, high = (int(tuids.min()), int(tuids.max())) if len(tuids) else (1, 0)
        near = [part for part in parts if part.info.min_tuid <= high and part.info.max_tuid >= low]
        return HandOver(table.schema, table.key_columns, table.tombstones, table.floor, times, places,
                        (_rows_of(part, tuids, among=True) for part in near))

    def take_over(self, table_uid: int, given: HandOver) -> None:
        """Takes child tables of another vnode, whose log was where this one's begins: rows keep their versions.

        Nothing of them gets into the log. Raises StorageError, CorruptionError; then the vnode is of no use.
        """
        store = self._store
        self._definitions.define(table_uid, given.schema, given.key_columns)
        with store.manifest_lock:
            table = store.table(table_uid)
            handles: list[PartHandle] = []
            for rows, info in given.parts:
                if rows.num_rows:
                    handles += write_parts(store, table, [rows], info.purged_version, info.updates)
            last = write_last_times(store, table_uid, given.newest_times, store.persisted)
            with store.lock:
                table.parts, table.last_times, table.floor = tuple(handles), last, given.floor
                table.places, table.stored_places = dict(given.places), dict(given.places)
                load_newest_times(table, store.folder / "last", store.cache, store.fs)
                table.take_deletes(given.tombstones)
                store.save()
        self._tombstone_files.publish(table)

    def give_away(self, table_uid: int, tuids: U64) -> None:
        """Forgets child tables that another vnode has taken over; their rows here were their last ones.

        No delete says so: it would hide the rows from readers of other processes wherever they are.
        """
        store = self._store
        self._flush_all()
        with store.manifest_lock:
            table = store.table(table_uid)
            with store.lock:
                left = ~np.isin(table.newest.tuids, tuids)
                times = pa.table({"tuid": table.newest.tuids[left], "ts": table.newest.times[left]})
            old = [part for part in table.parts if np.isin(self._tuids_of(part), tuids).any()]
            new: list[PartHandle] = []
            for part in old:
                rows, info = _rows_of(part, tuids, among=False)
                if rows.num_rows:
                    new += write_parts(store, table, [rows], info.purged_version, info.updates)
            last = write_last_times(store, table_uid, times, store.persisted)
            with store.lock:
                before = table.parts, table.last_times

                def undo() -> None:
                    table.parts, table.last_times = before
                    store.files.replace_parts(table_uid, new)

                with store.saving(undo):
                    table.parts = (*(part for part in table.parts if part not in old), *new)
                    table.last_times = last
                table.newest.forget(tuple(tuids.tolist()))
                store.files.replace_parts(table_uid, old, new)
                store.files.replace_last_times(table_uid, before[1])

    def _flush_all(self) -> None:
        self._flush()
        store = self._store
        if store.persisted < store.wal.last_version:
            raise UnavailableError(f"vnode {store.options.vgroup_id} has rows that its cluster hasn't acknowledged",
                                   hint="try again")

    def _tuids_of(self, part: PartHandle) -> U64:
        return np.concatenate([group.tuid for group in
                               self._store.cache.row_groups(part.path, part.info, None, TS_MIN, TS_MAX)])


def _rows_of(part: PartHandle, tuids: U64, *, among: bool) -> tuple[pa.Table, PartInfo]:
    """Returns the rows of a part that are `among` those of the child tables, or the others."""
    reader = PartReader(part.path, part.info)
    groups = (pa.Table.from_batches([run.data]).filter(pa.array(np.isin(run.tuid, tuids) == among))
              for run in reader.row_groups())
    return pa.concat_tables([reader.schema.empty_table(), *groups]), part.info
