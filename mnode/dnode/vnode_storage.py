"""The vnodes as statements see them: tables by name and vgroup, opened from what the catalog says.

A vnode that cannot be opened keeps its error; only what touches it fails, and the rest of the engine works.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.common.config import Config
from penstock.common.errors import CorruptionError, PenstockError
from penstock.common.logging import logger
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_check import behind, orphans
from penstock.mnode.catalog.catalog_records import Unfinished
from penstock.mnode.catalog.waiting_children import WAITING_MAX
from penstock.mnode.dnode.shared_lock import SharedLock
from penstock.mnode.dnode.told_children import take_in_told
from penstock.mnode.dnode.whole_writes import WholeWrites
from penstock.sql.schema import Database, Table
from penstock.vnode.dnode import Dnode
from penstock.vnode.read.snapshot import Snapshot
from penstock.vnode.read.vnode_reader import LoggedRows
from penstock.vnode.store.sorted_keys import U64
from penstock.vnode.store.table_state import Row
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode
from penstock.vnode.write.vnode_writer import BegunWrite, Change, FewRows, WrittenRows
from penstock.wal.record import MetaRecord
from penstock.wal.writer import Recovery

_log = logger(__name__)


def storage_schema(table: Table) -> tuple[pa.Schema, int]:
    """Returns the physical columns of a super or normal table, and how many of them are the key."""
    fields = [pa.field(column.physical, column.type.arrow()) for column in table.stored_columns]
    return pa.schema(fields), 1 if table.key_column is None else 2


class Storage:
    """All vnodes of the engine. Thread-safe, as they are."""

    def __init__(self, dnode: Dnode, catalog: Catalog, config: Config, *, replicated: bool = False) -> None:
        """`replicated`: a cluster keeps copies of the logs, and acknowledges what is written to them."""
        self._dnode = dnode
        self._replicated = replicated
        #: told of each vnode that is opened, before anything is written to it
        self.on_open: Callable[[int, Vnode], None] = lambda vgroup_id, vnode: None
        self._catalog = catalog
        self._config = config
        self._lock = threading.Lock()
        #: held while the catalog has tables or columns that vnodes don't know yet
        self.defining = threading.Lock()
        self._placement = SharedLock()
        self._broken: dict[int, PenstockError] = {}
        #: writes to several vnodes that readers see at once
        self.whole_writes = WholeWrites(self.vnode)
        #: folders with rows or state that nothing in the catalog leads to, as of the start
        self.orphans: tuple[Path, ...] = ()

    @property
    def broken(self) -> dict[int, PenstockError]:
        """Why vnodes could not be opened, by vgroup id."""
        with self._lock:
            return dict(self._broken)

    def open_all(self) -> None:
        """Opens the vnodes of all databases and finishes what the catalog says is unfinished.

        What the catalog doesn't know stays as it is, and is told. Raises CorruptionError if a vnode has rows of tables
        that this catalog is too old to know.
        """
        removed = self._catalog.unfinished.of_kind("remove_vnode")
        for entry in removed:
            _log.info("vnode %d was dropped, or never finished, and is removed", entry.id)
            self._dnode.drop_vnode(entry.id)
        made = {entry.id for entry in self._catalog.unfinished.of_kind("make_vnode")}
        for database in self._catalog.databases():
            for vgroup_id in database.vgroup_ids:
                try:
                    if vgroup_id not in made:
                        self._require_files(database, vgroup_id)
                    self._reconcile(database, self._open(database, vgroup_id), vgroup_id)
                except PenstockError as error:
                    self._set_aside(database, vgroup_id, error)
        if not self._replicated:  # nodes of a cluster have what others have acknowledged
            take_in_told(self._catalog, self.told)
            if self._broken:
                # Their logs may tell of child tables that the catalog hasn't stored: these keep their ids.
                self._catalog.skip_ids(self._catalog.next_id + WAITING_MAX)
        for vgroup_id, vnode in self._dnode.vnodes().items():
            newest = vnode.reader.newest_uid()
            if newest >= self._catalog.next_id:
                raise behind(self._dnode.paths, f"vnode {vgroup_id} has rows of table {newest}, and the "
                                                f"catalog has given ids below {self._catalog.next_id} only")
        self._drop_tables([entry.id for entry in self._catalog.unfinished.of_kind("remove_table")])
        finished = [Unfinished("make_vnode", one) for one in made if one not in self._broken]
        self._catalog.unfinished.finish([*removed, *finished])
        present = {one: [*vnode.reader.table_uids(), *vnode.unknown_tables]
                   for one, vnode in self._dnode.vnodes().items()}
        self.orphans = tuple(orphans(self._dnode.paths, self._catalog, present))
        for path in self.orphans:
            _log.warning("%s is not in the catalog: it stays as it is, and nobody reads it; "
                         "penstock fsck --repair moves it out of the way", path)

    def _set_aside(self, database: Database, vgroup_id: int, error: PenstockError) -> None:
        _log.error("vnode %d of database %s cannot be used: %s", vgroup_id, database.name, error)
        with self._lock:
            self._broken[vgroup_id] = error

    def _require_files(self, database: Database, vgroup_id: int) -> None:
        directory = self._dnode.paths.vnode(vgroup_id)
        if not directory.is_dir():
            raise CorruptionError(f"{directory} is missing: its rows of database {database.name} can't be read",
                                  hint=f"restore it from a copy, or DROP DATABASE {database.name}")

    def _drop_tables(self, uids: Iterable[int]) -> None:
        """Forgets tables that aren't in the catalog any more in all vnodes; those that can't be used do it later."""
        for uid in uids:
            for vnode in self._dnode.vnodes().values():
                vnode.tables.drop(uid)
            if not self._broken:
                self._catalog.unfinished.finish([Unfinished("remove_table", uid)])

    def _open(self, database: Database, vgroup_id: int, behind: int | None = None) -> Vnode:
        """Opens a vnode, creating it when missing; `behind`: a new one whose log goes on behind this version."""
        vnode = self._dnode.open_vnode(vgroup_id, self._options(database, vgroup_id), behind)
        vnode.on_flush(self._catalog.settle)
        self.on_open(vgroup_id, vnode)
        return vnode

    def join(self, database: Database) -> None:
        """Opens the vnodes of a database as the catalog has it, or makes them. What can't be opened is set aside."""
        for vgroup_id in database.vgroup_ids:
            try:
                self._reconcile(database, self._open(database, vgroup_id), vgroup_id)
            except PenstockError as error:
                self._set_aside(database, vgroup_id, error)

    def replace(self, database: Database, vgroup_id: int, received: Path) -> None:
        """Puts files that another node has given in the place of a vnode; see `Dnode.replace_vnode`."""
        vnode = self._dnode.replace_vnode(vgroup_id, self._options(database, vgroup_id), received)
        self.on_open(vgroup_id, vnode)
        self._reconcile(database, vnode, vgroup_id)
        with self._lock:
            self._broken.pop(vgroup_id, None)

    def _options(self, database: Database, vgroup_id: int) -> VnodeOptions:
        options, config = database.options, self._config
        return VnodeOptions(
            vgroup_id=vgroup_id,
            wal_level=options.wal_level,
            wal_fsync_period_ms=options.wal_fsync_period_ms,
            wal_retention_period_s=options.wal_retention_period_s,
            wal_retention_size_kb=options.wal_retention_size_kb,
            segment_bytes=config.wal_segment_size,
            memtable_bytes=config.memtable_size,
            flush_interval_s=config.view_refresh_interval,
            compact_min_parts=config.compact_min_parts,
            part_grace_s=config.part_grace,
            wal_pin_max_bytes=config.wal_pin_max,
            replicated=self._replicated,
        )

    def _reconcile(self, database: Database, vnode: Vnode, vgroup_id: int) -> None:
        tables = self._tables_in(database, vgroup_id)
        for table in tables:
            vnode.tables.define(table.uid, *storage_schema(table))
            if database.cut_shares and table.kind == "super":
                self._give_away(vnode, vgroup_id, table)

    def _give_away(self, vnode: Vnode, vgroup_id: int, table: Table) -> None:
        """Forgets rows of child tables that live in another vnode by now."""
        here = vnode.reader.children_of(table.uid)
        elsewhere = np.array([child.uid for child in self._catalog.children(table.uid)
                              if child.vgroup_id != vgroup_id], np.uint64)
        gone = here[np.isin(here, elsewhere)]
        if len(gone):
            vnode.transfer.give_away(table.uid, gone)

    def _tables_in(self, database: Database, vgroup_id: int) -> list[Table]:
        normal = (table for table in self._catalog.tables(database.name, "normal") if table.vgroup_id == vgroup_id)
        staged = self._catalog.staged_tables(database.name)
        return [*self._catalog.tables(database.name, "super"), *normal, *staged]

    def vnode(self, vgroup_id: int) -> Vnode:
        """Returns an open vnode, or raises the error that kept it from opening."""
        error = self._broken.get(vgroup_id)
        if error is not None:
            raise type(error)(f"vnode {vgroup_id} cannot be used: {error.message}", code=error.code, hint=error.hint)
        return self._dnode.vnode(vgroup_id)

    # --- databases and tables ----------------------------------------------------------------------------------

    def add_database(self, database: Database) -> None:
        """Creates the vnodes of a new database."""
        for vgroup_id in database.vgroup_ids:
            self._open(database, vgroup_id)
        self._catalog.unfinished.finish(Unfinished("make_vnode", vgroup_id) for vgroup_id in database.vgroup_ids)

    def alter_database(self, database: Database) -> None:
        """Has the vnodes of a database go on with its options as they are now. Raises StorageError."""
        vnodes = self._dnode.vnodes()
        for vgroup_id in database.vgroup_ids:
            if vgroup_id in vnodes:
                vnodes[vgroup_id].set_options(self._options(database, vgroup_id))

    def drop_database(self, database: Database) -> None:
        """Deletes the vnodes of a database that isn't in the catalog any more."""
        for vgroup_id in database.vgroup_ids:
            with self._lock:
                self._broken.pop(vgroup_id, None)
        self.discard(database.vgroup_ids)

    def define_table(self, database: Database, table: Table) -> None:
        """Makes a super or normal table, or its new columns, known to its vnodes."""
        schema, key_columns = storage_schema(table)
        for vgroup_id in vgroups_of(database, table):
            self.vnode(vgroup_id).tables.define(table.uid, schema, key_columns)

    def drop_table(self, database: Database, table: Table) -> None:
        """Deletes all rows of a super or normal table that isn't in the catalog any more."""
        for vgroup_id in vgroups_of(database, table):
            self.vnode(vgroup_id).tables.drop(table.uid)
        self._catalog.unfinished.finish([Unfinished("remove_table", table.uid)])

    # --- splitting ---------------------------------------------------------------------------------------------

    def looking(self) -> AbstractContextManager[None]:
        """Keeps tables where they are while snapshots of several vnodes are taken."""
        return self._placement.shared()

    def moving(self) -> AbstractContextManager[None]:
        """Keeps away those who are `looking` while tables change their vnodes."""
        return self._placement.exclusive()

    def discard(self, vgroup_ids: Sequence[int]) -> None:
        """Removes vnodes that the catalog has noted as to be removed."""
        for vgroup_id in vgroup_ids:
            self._dnode.drop_vnode(vgroup_id)
        self._catalog.unfinished.finish(Unfinished("remove_vnode", vgroup_id) for vgroup_id in vgroup_ids)

    def found(self, database: Database, parent: int, vgroup_id: int, moving: Mapping[int, U64]) -> int:
        """Makes a vnode beside the database's, with the rows of child tables and normal tables of its parent's.

        `moving`: their uids by storage table. Returns the version at which its log begins, the parent's. The catalog
        has noted that it is to be removed, until `regroup` takes it. Nothing may be written meanwhile.
        """
        source = self.vnode(parent)
        source.sync()
        version = source.acknowledged_version
        vnode = self._open(database, vgroup_id, version)
        for table in (*self._catalog.tables(database.name, "super"), *self._catalog.staged_tables(database.name)):
            vnode.tables.define(table.uid, *storage_schema(table))
        for table_uid, tuids in moving.items():
            vnode.transfer.take_over(table_uid, source.transfer.hand_over(table_uid, tuids))
        return version

    def settle(self, database: Database) -> None:
        """Forgets in each vnode what has moved to another, as the catalog says by now.

        A vnode that can't must not be read any more: its rows would count twice. The next start tries again.
        """
        for vgroup_id in database.vgroup_ids:
            try:
                self._reconcile(database, self.vnode(vgroup_id), vgroup_id)
            except PenstockError as error:
                _log.error("vnode %d can't be used until the engine is started again: %s", vgroup_id, error)
                with self._lock:
                    self._broken[vgroup_id] = error

    def forget_dropped(self) -> None:
        """Forgets tables and child tables that the catalog doesn't have any more, in vnodes that followed their logs.

        No log tells that a table was dropped: who takes over from another node asks for this first. Nothing may be
        written meanwhile. Raises StorageError.
        """
        vnodes = self._dnode.vnodes()
        for database in self._catalog.databases():
            for vgroup_id in vnodes.keys() & {*database.vgroup_ids}:
                vnode = vnodes[vgroup_id]
                known = {table.uid: table for table in self._tables_in(database, vgroup_id)}
                for uid in vnode.reader.table_uids():
                    if uid not in known:
                        vnode.tables.drop(uid)
                    elif known[uid].kind == "super":
                        there = np.array([child.uid for child in self._catalog.children(uid)], np.uint64)
                        here = vnode.reader.children_of(uid)
                        vnode.tables.drop_children(uid, here[~np.isin(here, there)].tolist())

    # --- rows --------------------------------------------------------------------------------------------------

    def write(self, vgroup_id: int, table_uid: int, batch: pa.RecordBatch) -> int:
        """Upserts rows (`_tuid`, physical columns) and returns the version once it is acknowledged."""
        return self.vnode(vgroup_id).write(table_uid, batch)

    def begin_changes(self, vgroup_id: int, changes: Sequence[Change]) -> BegunWrite | None:
        """Begins to change tables in one vnode; all of it is seen at once."""
        writer = self.vnode(vgroup_id).writer
        if len(changes) > 1:
            return writer.begin_together(changes)
        for change in changes:
            if isinstance(change, FewRows):
                table_uid, columns, rows, partial, batch = change
                return (writer.begin_few(table_uid, columns, rows, partial=partial)
                        or writer.begin_write(table_uid, batch()))
            if isinstance(change, WrittenRows) and change.batch.num_rows:
                return writer.begin_write(change.table_uid, change.batch)
        return writer.begin_together(changes)

    def write_few(self, vgroup_id: int, table_uid: int, columns: Sequence[str], rows: Sequence[Row], *, partial: bool
                  ) -> bool:
        """Upserts a few rows and returns whether that would do; see `VnodeWriter.begin_few`."""
        begun = self.vnode(vgroup_id).writer.begin_few(table_uid, columns, rows, partial=partial)
        if begun is not None:
            begun.wait()
        return begun is not None

    def begin_few(self, vgroup_id: int, table_uid: int, columns: Sequence[str], rows: Sequence[Row], *, partial: bool
                  ) -> BegunWrite | None:
        """Begins what `write_few` does; None, with nothing written, also where it would be waited for long."""
        vnode = self.vnode(vgroup_id)
        return vnode.writer.begin_few(table_uid, columns, rows, partial=partial) if vnode.acknowledges_at_once else None

    def delete(
        self, database: Database, table: Table, uids: Sequence[int] | None, first_ts: int, last_ts: int
    ) -> None:
        """Deletes rows of a super or normal table in all of its vnodes; `uids` None: of all child tables."""
        for vgroup_id in vgroups_of(database, table):
            self.vnode(vgroup_id).delete(table.uid, uids, first_ts, last_ts)

    def begin_meta(self, vgroup_id: int, body: dict[str, Any]) -> BegunWrite:
        """Begins to put a META record into a vnode's WAL."""
        return self.vnode(vgroup_id).writer.begin_meta(body)

    def write_meta(self, vgroup_id: int, body: dict[str, Any], *, sync: bool = False) -> None:
        """Puts a META record into a vnode's WAL. `sync`: a power cut takes it from the log no more."""
        self.vnode(vgroup_id).write_meta(body)
        if sync:
            self.vnode(vgroup_id).sync()

    def told(self, vgroup_id: int, *operations: str) -> list[MetaRecord]:
        """Returns the META records that a vnode's parts are older than; none of one that can't be used."""
        return [] if vgroup_id in self._broken else self.vnode(vgroup_id).told(frozenset(operations))

    def flush(self, database: Database) -> None:
        """Writes everything acknowledged into Parquet parts."""
        for vgroup_id in database.vgroup_ids:
            self.vnode(vgroup_id).flush()

    def snapshot(self, vgroup_id: int, table_uid: int, *, as_of: int | None = None) -> Snapshot:
        """Returns a consistent view of one table in one vnode."""
        return self.vnode(vgroup_id).reader.snapshot(table_uid, as_of=as_of)

    # --- numbers -----------------------------------------------------------------------------------------------

    def wal_version(self, vgroup_id: int) -> int | None:
        """Returns the acknowledged version, or None for a vnode that cannot be used."""
        return None if vgroup_id in self._broken else self._dnode.vnode(vgroup_id).acknowledged_version

    def logged(self, vgroup_id: int, table_uid: int) -> LoggedRows | None:
        """Returns what a vnode's log has of a table, None if nobody can say. Waits for nobody."""
        vnode = self._dnode.find(vgroup_id)
        return None if vnode is None else vnode.reader.logged(table_uid)

    def problem(self, vgroup_id: int) -> str | None:
        """Returns what is wrong with a vnode, or None."""
        error = self._broken.get(vgroup_id) or self._dnode.problems.get(vgroup_id)
        return None if error is None else str(error)

    def recovery(self, vgroup_id: int) -> Recovery | None:
        """Returns what opening the log of a vnode found, or None for one that cannot be used."""
        return None if vgroup_id in self._broken else self._dnode.vnode(vgroup_id).recovery

    def acknowledged(self, vgroup_ids: Iterable[int]) -> tuple[tuple[int, int], ...]:
        """Returns what each vnode has acknowledged now: (vgroup id, version) pairs. `whole_writes` gives cuts."""
        return tuple((vgroup_id, self.vnode(vgroup_id).acknowledged_version) for vgroup_id in vgroup_ids)

    def durable_cut(self, vgroup_ids: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Returns the stream cut of now, which no power cut takes back any more: versions behind it are new ones.

        Else the log might begin again before the cut, and a stream would take new rows for those before it. Raises
        StorageError.
        """
        cut = self.acknowledged(vgroup_ids)
        for vgroup_id in vgroup_ids:
            self.vnode(vgroup_id).sync()
        return cut


def vgroups_of(database: Database, table: Table) -> tuple[int, ...]:
    """Returns where rows of a table can be."""
    return database.vgroup_ids if table.vgroup_id is None else (table.vgroup_id,)
