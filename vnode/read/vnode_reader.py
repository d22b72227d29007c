"""What can be asked of a vnode: snapshots of its tables, newest times, which tables it has, sizes, and a check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.common.errors import CorruptionError, InvalidValueError
from penstock.vnode.read.newest_rows import NewestRows
from penstock.vnode.read.snapshot import Snapshot
from penstock.vnode.store.parts import PartReader
from penstock.vnode.store.sorted_keys import U64
from penstock.vnode.store.table_state import TableState
from penstock.vnode.store.table_store import TableStore
from penstock.wal.retention import segment_infos
from penstock.wal.segment import list_segments


@dataclass(frozen=True, slots=True)
class VnodeStats:
    """How far a vnode is, in versions of its log, and how much it holds now. `pins`: versions by owner."""

    synced_version: int
    persisted_version: int
    memtable_rows: int
    parts: int
    part_rows: int
    wal_segments: int
    tombstones: int
    pins: dict[str, int]


class LoggedRows(NamedTuple):
    """What the log of a vnode has of one table.

    `version`: the newest with rows or deletes of it; `rows`: how many rows it has had since counting began, of which
    `life` is another one each time. Readers see versions up to `acknowledged`.
    """

    version: int
    rows: int
    acknowledged: int
    life: object


class VnodeReader:
    """Answers from memory under the store's `lock`, briefly; snapshots and the check read files without it."""

    def __init__(self, store: TableStore) -> None:
        self._store = store

    def snapshot(self, table_uid: int, *, as_of: int | None = None) -> Snapshot:
        """Returns a view of a table as of a version (None: everything acknowledged).

        Raises NotFoundError, InvalidValueError for a version that isn't acknowledged, SnapshotTooOldError when
        older rows of the table were collapsed (a pin at or before `as_of` prevents that).
        """
        with self._store.lock:
            return self._snapshot(self._store.table(table_uid), as_of)

    def _snapshot(self, table: TableState, as_of: int | None) -> Snapshot:
        store = self._store
        vgroup_id, newest = store.options.vgroup_id, store.wal.acknowledged_version
        version = newest if as_of is None else as_of
        if version > newest:
            raise InvalidValueError(f"version {version} of vnode {vgroup_id} is not acknowledged; the newest is "
                                    f"{newest}")
        return Snapshot.of(table, vgroup_id, version, store.cache)

    def newest_rows(
        self, table_uid: int, columns: Sequence[str], tuids: U64 | None = None, *, values: bool = False,
        as_of: int | None = None,
    ) -> pa.Table | None:
        """Returns `_tuid` and columns of each child table's newest row; `tuids`: of these only.

        Of some it returns all rows: where the newest one was deleted, and with `values` where that has NULLs. None
        where this takes as long as to read the whole table: if that is so of many, or many are far behind. `as_of`, and
        what is raised, is that of `snapshot`.
        """
        store = self._store
        with store.lock:
            table = store.table(table_uid)
            of = (table.newest.tuids if tuids is None else tuids[np.isin(tuids, table.newest.tuids)]).copy()
            times, _ = table.newest.of(of)
            likely = table.newest.likely(of)
            snapshot = self._snapshot(table, as_of)
        return NewestRows(snapshot, columns, values=values).read(of, times, likely)

    def last_ts(self, tuid: int) -> int | None:
        """Returns the greatest ts ever written to a child table (deleted rows count too), or None."""
        with self._store.lock:
            for table in self._store.tables.values():
                newest = table.newest.get(tuid)
                if newest is not None:
                    return newest
        return None

    def logged(self, table_uid: int) -> LoggedRows | None:
        """Returns what the log has of a table, None if there is no such table. Waits for nobody."""
        table = self._store.tables.get(table_uid)
        return None if table is None else LoggedRows(*table.logged, self._store.wal.acknowledged_version, table)

    def newest_uid(self) -> int:
        """Returns the greatest uid among the tables and the child tables that it has, or had, rows of; 0 without."""
        with self._store.lock:
            return max((int(uid) for table in self._store.tables.values()
                        for uid in (table.uid, *table.newest.tuids[-1:])), default=0)

    def table_uids(self) -> list[int]:
        """Returns the storage tables."""
        with self._store.lock:
            return list(self._store.tables)

    def children_of(self, table_uid: int) -> U64:
        """Returns the child tables that the vnode has, or had, rows of, ascending."""
        with self._store.lock:
            return self._store.table(table_uid).newest.tuids.copy()

    def oldest_version(self) -> int:
        """Returns the first version that the log still has."""
        return min(list_segments(self._store.fs, self._store.directory / "wal"), default=1)

    def stats(self) -> VnodeStats:
        """Returns sizes and versions."""
        store = self._store
        infos = segment_infos(store.fs, store.directory / "wal", store.wal.acknowledged_version)
        with store.lock:
            tables = list(store.tables.values())
            parts = [part.info for table in tables for part in table.parts]
            return VnodeStats(
                synced_version=store.wal.synced_version, persisted_version=store.persisted,
                memtable_rows=sum(run.num_rows for table in tables for run in table.runs()), parts=len(parts),
                part_rows=sum(part.rows for part in parts), wal_segments=len(infos),
                tombstones=sum(table.tombstone_count for table in tables), pins=dict(store.pins))

    def verify(self) -> None:
        """Reads every part and checks it against the MANIFEST. Raises CorruptionError naming the file."""
        with self._store.lock:
            parts = [part for table in self._store.tables.values() for part in table.parts]
        for part in parts:
            rows = sum(group.num_rows for group in PartReader(part.path, part.info).row_groups())
            if rows != part.info.rows:
                raise CorruptionError(f"part {part.path} doesn't have the {part.info.rows} rows of the MANIFEST")
