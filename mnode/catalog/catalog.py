"""The catalog: databases, tables, child tables, streams, functions, users, connections, snodes; on disk and in memory.

It checks only its own invariants (names are free, things exist); what statements may do is decided in `ddl` and
`streams`. Every method that changes something is one durable transaction: when it returns, the change survives a power
cut; when it raises, nothing changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from penstock.common.connection import ExternalConnection
from penstock.common.errors import NotSupportedError
from penstock.common.responsiveness import uncollected
from penstock.mnode.catalog import catalog_codec as codec
from penstock.mnode.catalog import entry_kinds as kinds
from penstock.mnode.catalog.catalog_copying import CatalogCopying
from penstock.mnode.catalog.catalog_log import CatalogLog, EntryChange
from penstock.mnode.catalog.catalog_reader import CatalogReader
from penstock.mnode.catalog.catalog_records import Rebuilt, Regrouping, Unfinished
from penstock.mnode.catalog.catalog_store import (
    CHILDREN,
    DATABASES,
    FIRST_UID,
    MAP_BYTES,
    META,
    TABLES,
    VIEWS,
    CatalogEntry,
    CatalogStore,
    Counters,
)
from penstock.mnode.catalog.entry_kinds import DATABASE, VIEW
from penstock.mnode.catalog.schema_repository import SchemaRepository
from penstock.mnode.catalog.stream_repository import IngestRepository, SnodeRepository, StreamRepository
from penstock.mnode.catalog.table_index import TableIndex
from penstock.mnode.catalog.unfinished_work import UnfinishedWork
from penstock.mnode.catalog.user_repository import ConnectionRepository, FunctionRepository, UserRepository
from penstock.mnode.catalog.waiting_children import WaitingChildren
from penstock.sql.cuts import Cut
from penstock.sql.schema import ChildTable, Database, Table, UserFunction


class Catalog(TableIndex):
    """Implements `penstock.sql.schema.CatalogView`; safe for many threads.

    What there is of databases and tables it answers itself, from memory; `schema` changes them. Streams and the like
    are read and changed in their repositories. Raises what `CatalogStore` does.
    """

    def __init__(self, path: Path, *, map_bytes: int = MAP_BYTES, log: CatalogLog | None = None) -> None:
        """`log`: a cluster keeps copies of the changes; `close` closes it."""
        self._store = CatalogStore(path, map_bytes, log)
        super().__init__(self._store.lock)
        self._waiting = WaitingChildren(self._store)
        #: asks an external server for one of its tables; set by the engine
        self.describe_external: Callable[[str, str], Table] | None = None
        self.users = UserRepository(self._store)
        try:
            with uncollected():
                self._load(CatalogReader(self._store.entries))
        except BaseException:
            self._store.close()
            raise

    def refresh(self) -> None:
        """Reads all anew, since a log that is copied from another node has changed what is stored."""
        with self._store.lock:
            self._load(CatalogReader(self._store.entries))

    def apply_copied(self, changes: Iterable[EntryChange]) -> frozenset[bytes]:
        """Has memory follow what a copied log has changed on disk; returns in which stores that was.

        It takes as long as there are changes, and streams, users and the like; not as long as there are tables.
        """
        with self._store.lock:
            found = NetChanges(changes)
            if not follow_tables(self, found):
                self._load_tables(CatalogReader(self._store.entries))
            if not found.stores <= {META, DATABASES, TABLES, CHILDREN, VIEWS}:
                self._load_others(CatalogReader(self._store.entries))
        return found.stores

    def _load(self, reader: CatalogReader) -> None:
        self._load_tables(reader)
        self._load_others(reader)

    def _load_tables(self, reader: CatalogReader) -> None:
        index = TableIndex(self._store.lock)
        for database in reader.all(kinds.DATABASE):
            index.remember_database(database)
        tables: dict[int, Table] = {}
        for table, used in reader.all_tables():
            tables[table.uid] = table
            index.remember_table(table, used)
        for super_uid, found in reader.all_children().items():
            index.remember_children(tables[super_uid], found)
        for view in reader.all(kinds.VIEW):
            index.remember_view(view)
        self.become(index)

    def _load_others(self, reader: CatalogReader) -> None:
        store = self._store
        self.unfinished = UnfinishedWork(store, reader.all(kinds.UNFINISHED))
        self.users.become(reader.all(kinds.USER))
        self.users.lost = reader.users_lost()
        self.connections = ConnectionRepository(store, reader.all(kinds.CONNECTION), self.users)
        self.functions = FunctionRepository(store, reader.all(kinds.FUNCTION))
        self.snodes = SnodeRepository(store, reader.all(kinds.SNODE))
        self.ingests = IngestRepository(store, reader.all(kinds.INGEST), self.unfinished)
        self.schema = SchemaRepository(store, self, self.users, self.unfinished, self._waiting)
        damaged: dict[int, str] = {}
        self.streams = StreamRepository(
            store, reader.sound_streams(damaged), damaged, self, self.schema, self.unfinished)

    def close(self) -> None:
        """Stores what waits to be, and closes the files. Raises StorageError; then they are closed, too."""
        try:
            self.settle()
        finally:
            self._store.close()

    def abandon(self) -> None:
        """Closes the files as the death of the process would: nothing is stored any more."""
        self._store.close()

    def gather_children(self, settle_soon: Callable[[], None]) -> None:
        """From now on new child tables wait for others to be stored with; `settle_soon` has `settle` called.

        Whoever creates them must tell of them in the logs of their vnodes.
        """
        self._waiting.settle_soon = settle_soon

    def settle(self) -> None:
        """Stores the child tables that wait to be. Raises StorageError; then they still wait."""
        self._waiting.settle()

    def copying(self) -> CatalogCopying:
        """Returns what gives the log of this catalog to other nodes of a cluster, or takes it from them."""
        return CatalogCopying(self._store)

    def set_cluster_wait(self, await_cluster: Callable[[int], None] | None) -> None:
        """Has every transaction wait, when it is in the log, until `await_cluster` returns for its version, or raises.
        """
        self._store.await_cluster = await_cluster

    def skip_ids(self, used: int) -> None:
        """Gives no id up to `used` again: rows of them are in logs, though the catalog never got to know them."""
        with self._store.lock:
            if used >= self.next_id:
                with self._store.transaction() as write:
                    write.counters = replace(write.counters, next_id=used + 1)

    # --- what the planner asks besides ------------------------------------------------------------------------

    def function(self, name: str) -> UserFunction | None:
        return self.functions.named(name)

    def external_connection(self, name: str) -> ExternalConnection | None:
        record = self.connections.named(name)
        return None if record is None else record.connection

    def external_table(self, connection: str, name: str) -> Table:
        if self.describe_external is None:
            raise NotSupportedError("tables of external servers are read by a running engine only")
        return self.describe_external(connection, name)

    def external_connection_names(self) -> Iterable[str]:
        return self.connections.names()

    # --- the catalog as a whole --------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """How many transactions there were: what was written down about the catalog says as of which one."""
        return self._store.counters.generation

    @property
    def next_id(self) -> int:
        """The id that the next table, child table, stream or ingest gets: all that there are have lesser ones."""
        return self._store.counters.next_id

    @property
    def next_vgroup(self) -> int:
        """The id that the next vgroup gets."""
        return self._store.counters.next_vgroup

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever stored in it."""
        return self.generation == 0 and self.next_id == FIRST_UID and not (
            self.databases() or self.users.all() or self.connections.all())

    def entries(self) -> list[CatalogEntry]:
        """Returns all that is stored, as of one moment."""
        return self._store.entries.all()

    def on_change(self, changed: Callable[[], None]) -> None:
        """Has `changed` called after each transaction, with the catalog locked."""
        self._store.on_change = changed

    def regroup(self, wanted: Regrouping, begins: Mapping[int, Cut]) -> None:
        """Gives a database its new vgroups, and these their tables, in one step; the rows are there already.

        Streams that read them begin in a new vgroup where they began in the one whose tables it has got; those whose
        ids `begins` has begin there.
        """
        vgroup_ids = wanted.database.vgroup_ids
        with self._store.transaction() as write:
            write.reserve_vgroups(vgroup_ids)
            self.schema.put_database(write, wanted.database)
            self.schema.move_tables(write, wanted.moving)
            self.streams.begin_in_new_vgroups(write, wanted, begins)
            self.unfinished.forget(write, [Unfinished("remove_vnode", vgroup_id) for vgroup_id in vgroup_ids])

    def adopt(self, known: Rebuilt) -> None:
        """Takes over what the vnodes tell; the catalog must be opened again to show it.

        Attempts of streams go on far behind those that may have been given after the copy was made.
        """
        with self._store.transaction() as write:
            self.schema.adopt(write, known.databases, known.tables, known.children)
            self.streams.skip_attempts(write)
            self.ingests.skip_attempts(write)
            # A vnode that was to be removed when the copy was made may have been taken by a split since.
            self.unfinished.forget_vnodes(write)
            write.counters = Counters(known.next_id, known.next_vgroup, known.generation + 1)
            if known.users_lost:
                write.put(META, b"users_lost", True)


class NetChanges:
    """What many changes, one after the other, come to: of each entry, whether it is there afterwards, and as what."""

    def __init__(self, changes: Iterable[EntryChange]) -> None:
        #: by store and key what is stored now, None if nothing is
        self.after: dict[tuple[bytes, bytes], bytes | None] = {}
        #: what was stored before all of them
        self.before: dict[tuple[bytes, bytes], bytes | None] = {}
        for change in changes:
            self.before.setdefault((change.store, change.key), change.before)
            self.after[change.store, change.key] = change.after
        self.stores = frozenset(store for store, _ in self.after)

    def of(self, store: bytes) -> Iterable[tuple[bytes, bytes | None]]:
        """Yields the keys that have changed in a store, with what is stored now."""
        return ((key, data) for (of, key), data in self.after.items() if of == store)


def follow_tables(index: TableIndex, changes: NetChanges) -> bool:
    """Has an index follow; called with its lock held. False if it must be made anew, since tables replace others.

    What goes goes first: its names may belong to something else by now. Raises CorruptionError.
    """
    tables = {int.from_bytes(key, "big"): None if data is None else codec.table_from_json(codec.unseal(data))
              for key, data in changes.of(TABLES)}
    if any(_replaces(index.table_by_uid(uid), None if found is None else found[0]) for uid, found in tables.items()):
        return False
    databases = {key.decode(): None if data is None else DATABASE.json.decode(codec.unseal(data))
                 for key, data in changes.of(DATABASE.store)}
    children = _children(changes)
    views = {int.from_bytes(key, "big"): None if data is None else VIEW.json.decode(codec.unseal(data))
             for key, data in changes.of(VIEW.store)}
    _forget(index, databases, [uid for uid, found in tables.items() if found is None], children)
    for known in index.views():
        if known.uid in views:
            index.forget_view(known)
    for database in databases.values():
        if database is not None:
            index.remember_database(database)
    for view in views.values():
        if view is not None:
            index.remember_view(view)
    for found in tables.values():
        if found is not None:
            index.remember_table(*found)
    for super_uid, those in children.items():
        parent = index.table_by_uid(super_uid)
        if parent is not None:
            index.remember_children(parent, [child for child in those.values() if child is not None])
    return True


def _replaces(before: Table | None, after: Table | None) -> bool:
    """Whether a table takes another one's place, or will, or is called otherwise now."""
    if any(table is not None and table.replaces is not None for table in (before, after)):
        return True
    return before is not None and after is not None and (before.database, before.name) != (after.database, after.name)


def _children(changes: NetChanges) -> dict[int, dict[int, ChildTable | None]]:
    """Returns by super table and uid what its child tables are now."""
    found: dict[int, dict[int, ChildTable | None]] = {}
    for key, data in changes.of(CHILDREN):
        those = found.setdefault(int.from_bytes(key[:8], "big"), {})
        those.update(dict.fromkeys(_members(key, changes.before[CHILDREN, key])))
        those.update(_members(key, data))
    return found


def _members(key: bytes, data: bytes | None) -> dict[int, ChildTable]:
    """Returns the child tables in an entry of many."""
    return {} if data is None else {child.uid: child for child in codec.children_of_batch(key, codec.unseal(data))}


def _forget(index: TableIndex, databases: dict[str, Database | None], gone: list[int],
            children: dict[int, dict[int, ChildTable | None]]) -> None:
    for name, database in databases.items():
        before = index.user_database(name)
        if before is not None and (database is None or database.create_time_ms != before.create_time_ms
                                   or not {*before.vgroup_ids} <= {*database.vgroup_ids}):
            index.forget_database(name)
    for uid in gone:
        table = index.table_by_uid(uid)
        if table is not None:
            index.drop_table(table)
    for super_uid, those in children.items():
        parent = index.table_by_uid(super_uid)
        stale = [known for uid, child in those.items()
                 if (known := index.child_by_uid(super_uid, uid)) is not None and _moves(known, child)]
        if parent is not None and stale:
            index.forget_children(parent, stale)


def _moves(before: ChildTable, after: ChildTable | None) -> bool:
    """Whether who has found a child table must look it up anew."""
    return after is None or (before.name, before.vgroup_id) != (after.name, after.vgroup_id)
