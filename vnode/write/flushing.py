"""The flush of a vnode: what is in memory and acknowledged goes into Parquet parts, and the MANIFEST lists them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.common.errors import StorageError
from penstock.vnode.store.delivery import Partition, Place
from penstock.vnode.store.manifest import LastTimes
from penstock.vnode.store.memtable import VERSION_COLUMN, Run, join_ranges
from penstock.vnode.store.part_writing import (
    resolved,
    rows_in,
    updates_left,
    write_last_times,
    write_parts,
)
from penstock.vnode.store.table_state import PartHandle, TableState
from penstock.vnode.store.table_store import TableStore
from penstock.vnode.store.tombstone_files import TombstoneFiles
from penstock.vnode.store.tombstones import Tombstones
from penstock.wal.record import TUID_COLUMN

_SMALL_FAMILY = 10_000  # up to so many child tables their newest times are stored at every flush
_RESTS = 10  # times as long as the last flush took, so that many tables with few rows take no more than a tenth
_FLUSHES_PER_TIMES = 16  # for more child tables; opening the vnode reads the keys of the parts written since


@dataclass(frozen=True, slots=True)
class _SealedTable:
    """What is flushed of one table; `times`: its newest times, if they are to be stored."""

    table: TableState
    runs: tuple[Run, ...]
    tombstones: Tombstones
    times: pa.Table | None
    places: dict[Partition, Place]


@dataclass(frozen=True, slots=True)
class _FlushJob:
    """What a flush writes: all tables as of version `persisted`, in the store's `generation`."""

    persisted: int
    horizon: int
    generation: int
    tables: tuple[_SealedTable, ...]


@dataclass(frozen=True, slots=True)
class _FlushedTable:
    """What a flush has written of one table. `collapsed`: older versions of rows are gone."""

    table: TableState
    parts: tuple[PartHandle, ...]
    last_times: LastTimes | None
    collapsed: bool
    places: dict[Partition, Place]


class Flusher:
    """Flushes all tables at once. Takes the store's locks; parts are written under `manifest_lock` alone."""

    def __init__(self, store: TableStore, tombstone_files: TombstoneFiles) -> None:
        self._store = store
        self._tombstone_files = tombstone_files
        self._last_flush = store.clock.monotonic()  # guarded by `lock`
        #: called before a flush is valid
        self.prepare: Callable[[], None] = lambda: None
        self._took = 0.0

    def is_due(self) -> bool:
        """Tells whether something is in memory for too long, or too much."""
        store = self._store
        with store.lock:
            if store.wal.acknowledged_version <= store.persisted:
                return False
            age = store.clock.monotonic() - self._last_flush
            pending = sum(table.memtable.num_bytes for table in store.tables.values())
            due = age >= max(store.options.flush_interval_s, self._took * _RESTS)
            return due or pending >= store.options.memtable_bytes

    def flush(self) -> None:
        """Writes everything acknowledged into parts. Raises StorageError; then nothing has changed."""
        with self._store.manifest_lock:
            begun = self._store.clock.monotonic()
            self._settle()
            job = self._seal()
            if job is None:
                return
            flushed: list[_FlushedTable] = []
            done = False
            try:
                self._store.wal.commit_all()
                self._store.wal.sync()
                for sealed in job.tables:
                    flushed.append(self._write(sealed, job))
                self.prepare()
                self._install(job, flushed)
                done = True
            finally:
                if not done:
                    self._take_back(job, flushed)
            for result in flushed:
                self._tombstone_files.publish(result.table)
            self._took = self._store.clock.monotonic() - begun

    def _settle(self) -> None:
        """Unpacks rows table by table: who writes meanwhile doesn't wait for all of them."""
        with self._store.lock:
            tables = list(self._store.tables.values())
        for table in tables:
            with self._store.lock:
                table.memtable.settle()

    def _seal(self) -> _FlushJob | None:
        """Closes all memtables, so that writes go on in new ones; None if all is in parts already."""
        store = self._store
        with store.lock:
            store.require_writable()
            written = store.wal.last_version
            persisted = store.wal.acknowledged_version if store.wal.bounded else written
            self._last_flush = store.clock.monotonic()
            if persisted <= store.persisted:
                return None
            for table in store.tables.values():
                memtable = table.memtable
                table.sealed = tuple(memtable.take_all() if persisted == written else memtable.take_until(persisted))
            # Newest times of what the cluster hasn't acknowledged may be taken back: they aren't stored.
            tables = tuple(_SealedTable(table, table.sealed, table.tombstones,
                                        _times_to_store(table) if persisted == written else None,
                                        table.places_at(persisted)) for table in store.tables.values())
            return _FlushJob(persisted, store.horizon(persisted), store.generation, tables)

    def _write(self, sealed: _SealedTable, job: _FlushJob) -> _FlushedTable:
        table, runs = sealed.table, sealed.runs
        parts: tuple[PartHandle, ...] = ()
        collapsed = False
        if runs:
            known = {f.name: f for run in runs for f in run.data.schema}
            fields = [f for f in known.values() if f.name not in (TUID_COLUMN, VERSION_COLUMN)]
            updates = join_ranges([run.updates for run in runs])
            rows = resolved(runs, fields, table.key_name, sealed.tombstones, job.horizon, unique=updates is None)
            newest = max(run.max_version for run in runs)
            left = updates_left(updates, table.parts, collapsed=newest <= job.horizon)
            parts = write_parts(self._store, table, rows, job.horizon, left)
            collapsed = rows_in(parts) < sum(run.num_rows for run in runs)
        last = table.last_times
        if sealed.times is not None:
            last = write_last_times(self._store, table.uid, sealed.times, job.persisted)
        return _FlushedTable(table, parts, last, collapsed, sealed.places)

    def _install(self, job: _FlushJob, flushed: Sequence[_FlushedTable]) -> None:
        """Makes the result of a flush valid, in the MANIFEST and in memory."""
        store = self._store
        with store.lock:
            if job.generation != store.generation:
                raise StorageError("the flush was overtaken by a refused write", hint="it is tried again")
            before = [(f.table.parts, f.table.last_times, f.table.floor, f.table.stored_places) for f in flushed]
            persisted = store.persisted

            def undo() -> None:
                store.persisted = persisted
                for result, (parts, last, floor, places) in zip(flushed, before, strict=True):
                    result.table.parts, result.table.last_times, result.table.floor = parts, last, floor
                    result.table.stored_places = places

            with store.saving(undo):
                store.persisted = job.persisted
                for result in flushed:
                    table = result.table
                    table.parts = (*table.parts, *result.parts)
                    table.last_times = result.last_times
                    table.stored_places = result.places
                    if result.collapsed:
                        table.floor = max(table.floor, store.horizon(job.persisted))
            for result, (_, last, *_) in zip(flushed, before, strict=True):
                result.table.sealed = ()
                result.table.set_stored_places(result.places, job.persisted)
                if last != result.table.last_times:
                    store.files.replace_last_times(result.table.uid, last)

    def _take_back(self, job: _FlushJob, flushed: Sequence[_FlushedTable]) -> None:
        """Goes back to what was before a flush that has failed."""
        with self._store.lock:
            for sealed in job.tables:
                sealed.table.memtable.put_back(sealed.table.sealed)
                sealed.table.sealed = ()
            for result in flushed:
                self._store.files.replace_parts(result.table.uid, result.parts)


def _times_to_store(table: TableState) -> pa.Table | None:
    """Returns the newest times when they shall be stored: always for few tables, else only now and then."""
    if not table.sealed:
        return None
    if len(table.newest) > _SMALL_FAMILY and table.flushes_since_times < _FLUSHES_PER_TIMES:
        table.flushes_since_times += 1
        return None
    table.flushes_since_times = 0
    return pa.table({"tuid": table.newest.tuids.copy(), "ts": table.newest.times.copy()})
