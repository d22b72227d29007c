"""The catalog: databases, tables, child tables, streams, functions, users, connections, snodes; in LMDB and memory.

It checks only its own invariants (names are free, things exist); what statements may do is decided in `ddl` and
`streams`. It is the one module of the mnode that imports lmdb. Every method that changes something is one durable
transaction: when it returns, the change survives a power cut; when it raises, nothing changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import lmdb

from penstock.common.connection import Connection
from penstock.common.errors import (
    AlreadyExistsError,
    CorruptionError,
    InternalError,
    NotFoundError,
    NotSupportedError,
    StorageError,
)
from penstock.common.fs import shortage
from penstock.common.passwords import PasswordHash
from penstock.common.placement import Cut, owner, place
from penstock.common.private import FILE_MODE, make_private
from penstock.mnode.catalog import catalog_codec as codec
from penstock.mnode.catalog import system_schema
from penstock.sql.rights import GrantObject, Right, Role
from penstock.sql.schema import ChildTable, Column, Database, DatabaseOptions, Table, TagValue, UserFunction

FORMAT_VERSION = 1
FIRST_UID = 1000
"""Uids below are those of system tables."""
_MAP_BYTES = 4 * 1024**3
_ATTEMPTS_SKIPPED = 1000  # more than a copy can be behind: what an attempt has fenced must not come again

_META, _DATABASES, _TABLES, _CHILDREN, _STREAMS, _SNODES, _FUNCTIONS, _USERS, _CONNECTIONS, _INGESTS, _UNFINISHED = (
    b"meta", b"databases", b"tables", b"children", b"streams", b"snodes", b"functions", b"users", b"connections",
    b"ingests", b"unfinished")
_STORES = (_META, _DATABASES, _TABLES, _CHILDREN, _STREAMS, _SNODES, _FUNCTIONS, _USERS, _CONNECTIONS, _INGESTS,
           _UNFINISHED)

WantedState = Literal["running", "paused", "stopped"]

UnfinishedKind = Literal["make_vnode", "remove_vnode", "remove_table", "remove_stream"]


@dataclass(frozen=True, slots=True, order=True)
class Unfinished:
    """Files that are to be made or removed because a statement said so: noted before, forgotten once it is done.

    Nothing else may remove files that hold rows or state. `id`: of a vgroup, a storage table, a stream or an ingest.
    """

    kind: UnfinishedKind
    id: int

    @property
    def key(self) -> bytes:
        return f"{self.kind}/{self.id}".encode()


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry as it is stored, with its checksum."""

    store: bytes
    key: bytes
    value: bytes

    @property
    def generation(self) -> int | None:
        """What it says of the catalog's generation, if it is the entry that does."""
        return int(codec.unseal(self.value)) if (self.store, self.key) == (_META, b"generation") else None


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A checkpoint of a stream that has a name and is kept."""

    name: str
    checkpoint_id: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class TableRead:
    """A table that a stream reads: a super or a normal table, of which `child_uid` may be the only child that counts.

    `columns`: the physical names of those that it uses.
    """

    uid: int
    child_uid: int | None = None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PauseCause:
    """Why a stream is paused, if not by its owner. `connection`: the one that can't be reached, if that is why."""

    text: str
    connection: str | None = None


@dataclass(frozen=True, slots=True)
class AskedStream:
    """What the owner of a stream asked for: the statement, and what it was meant in, for when it is planned again.

    `database` and `time_zone` are those of the session, `created_ms` is its time. `defaults`: what the options about
    time meant that the statement left out, by the names of `TimeDefaults`.
    """

    text: str
    database: str | None
    time_zone: str
    created_ms: int
    defaults: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamUses:
    """What a stream couldn't do without, as its plan says; known also where that can't be read.

    `reading`: the table that it reads, and a second one that it joins, or looks up in. `functions` are the names of the
    users' functions that it calls, `connections` those of the connections that it uses. `outside_table` is the table
    that it looks up in as it was, if it is of a server outside.
    """

    reading: tuple[TableRead, ...] = ()
    functions: tuple[str, ...] = ()
    connections: tuple[str, ...] = ()
    dlq: tuple[str, str] | None = None
    outside_table: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream as it was created, and what its owner wants of it.

    `start_cut` holds (vgroup id, WAL version) pairs: what came later belongs to the stream. `created_target` tells that
    the result table was made by this stream. `attempt` is the newest one started. `pause`: why it is paused, if not by
    its owner. `replaces`: the id of the stream whose place this one takes once it has caught up. Checkpoint ids up to
    `last_checkpoint_id` were used for what isn't kept any more. `plan`: what it computes, as `mnode.stored_plan` has
    it; None for streams of versions that didn't keep it.
    """

    id: int
    name: str
    asked: AskedStream
    target_uid: int
    created_target: bool
    start_cut: tuple[tuple[int, int], ...]
    uses: StreamUses = StreamUses()
    attempt: int = 0
    wanted: WantedState = "running"
    pause: PauseCause | None = None
    savepoints: tuple[Savepoint, ...] = ()
    last_checkpoint_id: int = 0
    replaces: int | None = None
    plan: str | None = None

    @property
    def source_uids(self) -> tuple[int, ...]:
        """The tables that the stream reads: one, or two that it joins."""
        return tuple(read.uid for read in self.uses.reading)

    @property
    def source_uid(self) -> int:
        """The table that the stream reads, or that of a join's left side."""
        return self.uses.reading[0].uid

    def reads(self, table: Table) -> bool:
        """Whether it reads rows of this table, and couldn't go on without it."""
        return any(read.uid == table.storage_uid and (table.kind != "child" or read.child_uid == table.uid)
                   for read in self.uses.reading)

    def reads_column(self, table: Table, physical: str) -> bool:
        """Whether it reads this column of a table."""
        return any(read.uid == table.uid and physical in read.columns for read in self.uses.reading)


@dataclass(frozen=True, slots=True)
class IngestRecord:
    """An ingest as it was created, and what its owner wants of it; fields as in `StreamRecord`.

    Its id is of the same series as those of streams. `tasks`: how many it was given; what they have read stays theirs.
    """

    id: int
    name: str
    text: str
    database: str | None
    time_zone: str
    target_uid: int
    connection: str
    created_ms: int
    tasks: int
    dlq: tuple[str, str] | None = None
    attempt: int = 0
    wanted: WantedState = "running"
    wanted_reason: str = ""


@dataclass(frozen=True, slots=True)
class Snode:
    """A place for agg tasks and checkpoint backups that is not a vnode."""

    id: int
    dnode_id: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class UserRecord:
    """A user; of the password only a hash is kept."""

    name: str
    role: Role
    password: PasswordHash
    created_ms: int
    granted: tuple[Right, ...] = ()


@dataclass(frozen=True, slots=True)
class ConnectionRecord:
    """A connection to a server outside; its secrets are references."""

    connection: Connection
    created_ms: int


@dataclass(frozen=True, slots=True)
class Regrouping:
    """A database with more vgroups than it has, and what moves into them.

    `parents`: whose tables each vgroup has had, by its place in `database.vgroup_ids`. `moving`: by the new vgroup and
    the storage table, the uids of child tables, or that of a normal table itself.
    """

    database: Database
    parents: tuple[int, ...]
    moving: Mapping[int, Mapping[int, Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What the vnodes tell beyond a copy of the catalog. `children`: by super table, all that it has.

    `tables`: all of these databases, each with the storage names that its columns ever had.
    """

    databases: Sequence[Database]
    tables: Sequence[tuple[Table, Sequence[str]]]
    children: Mapping[int, Sequence[ChildTable]]
    next_id: int
    next_vgroup: int
    generation: int
    users_lost: bool


class _Namespace:
    """Everything of one database by name, in memory."""

    __slots__ = ("children", "tables")

    def __init__(self) -> None:
        self.tables: dict[str, int] = {}
        self.children: dict[str, tuple[int, ChildTable]] = {}


def stable_vgroup(database: Database, table: str) -> int:
    """Returns the vgroup that a table of this name is placed on: the same on every machine, until vgroups are split."""
    name, shares = f"{database.name}.{table}", database.cut_shares
    return database.vgroup_ids[owner(name, shares) if shares else place(name, len(database.vgroup_ids))]


def physical_name(name: str, taken: Iterable[str]) -> str:
    """Returns a storage name for a new column that was never given in its table before.

    DuckDB compares names without case, and some names are those of our own columns (`_tuid`, `_ver`, ...): both
    clashes are avoided here once instead of everywhere.
    """
    used = {other.lower() for other in taken} | {"_tuid", "_ver", "_change", "tbname"}
    if name.lower() not in used:
        return name
    number = 2
    while f"{name.lower()}_{number}" in used:
        number += 1
    return f"{name}_{number}"


def write_entries(path: Path, entries: Iterable[Entry]) -> None:
    """Makes a new catalog of entries as they are stored."""
    make_private(path)
    with lmdb.open(str(path), map_size=_MAP_BYTES, max_dbs=len(_STORES), subdir=True, mode=FILE_MODE) as env:
        stores = {name: env.open_db(name) for name in _STORES}
        with env.begin(write=True) as transaction:
            for entry in entries:
                transaction.put(entry.key, entry.value, db=stores[entry.store])


#: `Table.replaces` of the result table of a stream that isn't created yet
NO_TABLE = 0


class Catalog:
    """Implements `penstock.sql.schema.CatalogView`; safe for many threads.

    Reads never wait for a disk: they come from memory. `StorageError` if LMDB is full or the disk is;
    `CorruptionError` if stored values fail their checksum or are of a newer format.
    """

    def __init__(self, path: Path, *, map_bytes: int = _MAP_BYTES) -> None:
        make_private(path)
        self._path = path
        self._lock = threading.RLock()
        try:
            self._env = lmdb.open(str(path), map_size=map_bytes, max_dbs=len(_STORES), subdir=True,
                                  mode=FILE_MODE)
            self._stores = {name: self._env.open_db(name) for name in _STORES}
        except lmdb.Error as error:
            raise CorruptionError(f"the catalog {path} cannot be opened: {error}") from error
        #: asks a server outside for one of its tables; set by the engine
        self.describe_outside: Callable[[str, str], Table] | None = None
        self._databases: dict[str, Database] = {}
        self._namespaces: dict[str, _Namespace] = {}
        #: what belongs to tables that no name leads to yet, by their uids
        self._staged: dict[int, _Namespace] = {}
        self._tables: dict[int, Table] = {}
        self._used_names: dict[int, tuple[str, ...]] = {}
        self._children: dict[int, dict[int, ChildTable]] = {}
        self._moves = 0
        self._children_lists: dict[int, tuple[ChildTable, ...]] = {}
        self._streams: dict[int, StreamRecord] = {}
        #: streams whose entry cannot be read, by id: they are set aside, and everything else works
        self.damaged_streams: dict[int, str] = {}
        self._snodes: dict[int, Snode] = {}
        self._functions: dict[str, UserFunction] = {}
        self._users: dict[str, UserRecord] = {}
        self._connections: dict[str, ConnectionRecord] = {}
        self._ingests: dict[int, IngestRecord] = {}
        self._unfinished: set[Unfinished] = set()
        #: counts transactions: what was written down about the catalog says as of which one
        self.generation = 0
        #: called after each transaction, with the catalog locked
        self.on_change: Callable[[], None] = lambda: None
        self._users_lost = False
        self._next_id = FIRST_UID
        self._next_vgroup = 2  # TDengine's vgroup 1 is the mnode's; users know their first as 2
        try:
            self._load()
        except lmdb.Error as error:
            self._env.close()
            raise StorageError(f"the catalog {self._path} cannot be opened: {error}",
                               hint="check free space and the disk") from error
        except BaseException:
            self._env.close()
            raise

    def close(self) -> None:
        """Closes the files; everything is durable already."""
        with self._lock:
            self._env.close()

    # --- what the planner asks ---------------------------------------------------------------------------------

    def database(self, name: str) -> Database | None:
        return self._databases.get(name) or system_schema.database(name)

    def table(self, database: str, name: str) -> Table | None:
        namespace = self._namespaces.get(database)
        if namespace is None:
            return system_schema.table(database, name)
        uid = namespace.tables.get(name)
        if uid is not None:
            return self._tables.get(uid)
        found = namespace.children.get(name)
        if found is None:
            return None
        super_uid, child = found
        parent = self._tables.get(super_uid)
        return None if parent is None else child_as_table(parent, child)

    def table_names(self, database: str) -> Iterable[str]:
        namespace = self._namespaces.get(database)
        if namespace is None:
            return system_schema.table_names(database)
        with self._lock:
            some = [name for name, _ in zip(namespace.children, range(1000), strict=False)]
            return [*namespace.tables, *some]

    def children(self, super_uid: int) -> tuple[ChildTable, ...]:
        """Returns the child tables of a super table, or the one entry of a normal table, in order of creation."""
        known = self._children_lists.get(super_uid)
        if known is not None:
            return known
        with self._lock:
            table = self._tables.get(super_uid)
            if table is not None and table.kind == "normal":
                assert table.vgroup_id is not None
                known = (ChildTable(table.uid, table.name, table.vgroup_id, (), table.create_time_ms),)
            else:
                known = tuple(self._children.get(super_uid, {}).values())
            self._children_lists[super_uid] = known
            return known

    def function(self, name: str) -> UserFunction | None:
        return self._functions.get(name)

    # --- further reads -----------------------------------------------------------------------------------------

    def databases(self) -> tuple[Database, ...]:
        """Returns the users' databases, in order of creation."""
        with self._lock:
            return tuple(sorted(self._databases.values(), key=lambda database: database.vgroup_ids))

    def database_names(self) -> list[str]:
        return [*self._databases, *system_schema.DATABASES]

    def tables(self, database: str, kind: Literal["super", "normal"]) -> list[Table]:
        """Returns the super or the normal tables of a database, in order of creation."""
        with self._lock:
            namespace = self._namespaces.get(database)
            uids = sorted(namespace.tables.values()) if namespace is not None else []
            return [self._tables[uid] for uid in uids if self._tables[uid].kind == kind]

    def staged_tables(self, database: str) -> list[Table]:
        """Returns the tables of a database that are going to take the place of others."""
        with self._lock:
            return [self._tables[uid] for uid in sorted(self._staged) if self._tables[uid].database == database]

    def table_by_uid(self, uid: int) -> Table | None:
        """Returns the super or normal table with this uid."""
        return self._tables.get(uid)

    def child(self, database: str, name: str) -> tuple[int, ChildTable] | None:
        """Returns (uid of the super table, child table), or None."""
        namespace = self._namespaces.get(database)
        return namespace.children.get(name) if namespace is not None else None

    def children_beside(self, parent: Table) -> Mapping[str, tuple[int, ChildTable]]:
        """Returns what `child` finds where this super table has its children: by name, as it is at any time."""
        if parent.replaces is None and parent.database not in self._namespaces:
            return {}
        return self._namespace_of(parent).children

    def child_of(self, parent: Table, name: str) -> ChildTable | None:
        """Returns the child table of this name that a super table has."""
        found = self._namespace_of(parent).children.get(name)
        return found[1] if found is not None and found[0] == parent.uid else None

    def child_by_uid(self, super_uid: int, uid: int) -> ChildTable | None:
        return self._children.get(super_uid, {}).get(uid)

    @property
    def moves(self) -> int:
        """How often child tables were dropped or moved: while it stays, one that was found is still there."""
        return self._moves

    def child_count(self, super_uid: int) -> int:
        return len(self._children.get(super_uid, ()))

    def used_physical_names(self, uid: int) -> tuple[str, ...]:
        """Returns every storage name that a column of the table has or ever had."""
        return self._used_names.get(uid, ())

    def streams(self) -> tuple[StreamRecord, ...]:
        with self._lock:
            return tuple(self._streams.values())

    def stream(self, name: str) -> StreamRecord | None:
        return next((stream for stream in self.streams() if stream.name == name), None)

    def stream_by_id(self, stream_id: int) -> StreamRecord | None:
        return self._streams.get(stream_id)

    def ingests(self) -> tuple[IngestRecord, ...]:
        with self._lock:
            return tuple(self._ingests[ingest_id] for ingest_id in sorted(self._ingests))

    def ingest(self, name: str) -> IngestRecord | None:
        return next((ingest for ingest in self.ingests() if ingest.name == name), None)

    def ingest_by_id(self, ingest_id: int) -> IngestRecord | None:
        return self._ingests.get(ingest_id)

    def functions(self) -> tuple[UserFunction, ...]:
        """Returns the users' functions, in order of creation."""
        with self._lock:
            return tuple(sorted(self._functions.values(), key=lambda function: function.uid))

    def user(self, name: str) -> UserRecord | None:
        return self._users.get(name)

    def users(self) -> tuple[UserRecord, ...]:
        """Returns the users, in order of creation."""
        with self._lock:
            return tuple(sorted(self._users.values(), key=lambda user: (user.created_ms, user.name)))

    def connection(self, name: str) -> ConnectionRecord | None:
        return self._connections.get(name)

    def outside(self, name: str) -> Connection | None:
        record = self._connections.get(name)
        return None if record is None else record.connection

    def outside_table(self, connection: str, name: str) -> Table:
        if self.describe_outside is None:
            raise NotSupportedError("tables of servers outside are read by a running engine only")
        return self.describe_outside(connection, name)

    def outside_names(self) -> Iterable[str]:
        return list(self._connections)

    def connections(self) -> tuple[ConnectionRecord, ...]:
        """Returns the connections to servers outside, in order of creation."""
        with self._lock:
            return tuple(sorted(self._connections.values(), key=lambda kept: (kept.created_ms, kept.connection.name)))

    def snodes(self) -> tuple[Snode, ...]:
        with self._lock:
            return tuple(self._snodes.values())

    @property
    def next_id(self) -> int:
        """The id that the next table, child table, stream or ingest gets: all that there are have lesser ones."""
        return self._next_id

    @property
    def next_vgroup(self) -> int:
        """The id that the next vgroup gets."""
        return self._next_vgroup

    @property
    def users_lost(self) -> bool:
        """Whether it was built again without its users, and has none since."""
        return self._users_lost and not self._users

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever stored in it."""
        return self.generation == 0 and self._next_id == FIRST_UID and not (
            self._databases or self._users or self._connections)

    def entries(self) -> list[Entry]:
        """Returns all that is stored, as of one moment."""
        with self._env.begin() as transaction:
            found = []
            for name, store in self._stores.items():
                with transaction.cursor(db=store) as cursor:
                    found += [Entry(name, bytes(key), bytes(value)) for key, value in cursor]
            return found

    # --- what is not finished ----------------------------------------------------------------------------------

    def unfinished(self, kind: UnfinishedKind) -> tuple[Unfinished, ...]:
        """Returns what a crash may have kept from being finished, and the next start finishes."""
        with self._lock:
            return tuple(sorted(one for one in self._unfinished if one.kind == kind))

    def begin_vnodes(self, vgroup_ids: Sequence[int]) -> None:
        """Notes that vnodes are being made which are to be removed again unless `regroup` takes them."""
        with self._transaction() as write:
            known = [Unfinished("remove_vnode", vgroup_id) for vgroup_id in vgroup_ids]
            following = max(self._next_vgroup, *(vgroup_id + 1 for vgroup_id in vgroup_ids))
            write.put(_META, b"next_vgroup", following)
            self._note(write, known)
            write.commit()
            self._next_vgroup = following

    def finish(self, done: Iterable[Unfinished]) -> None:
        """Forgets what has been done."""
        with self._lock:
            known = self._unfinished.intersection(done)
            if not known:
                return
            with self._transaction() as write:
                self._forget_unfinished(write, known)
                write.commit()

    def _note(self, write: _Write, entries: Iterable[Unfinished]) -> None:
        noted = set(entries)
        for entry in noted:
            write.put(_UNFINISHED, entry.key, codec.dataclass_to_json(entry))
        write.afterwards.append(lambda: self._unfinished.update(noted))

    def _forget_unfinished(self, write: _Write, entries: Iterable[Unfinished]) -> None:
        gone = set(entries)
        for entry in gone:
            write.delete(_UNFINISHED, entry.key)
        write.afterwards.append(lambda: self._unfinished.difference_update(gone))

    def adopt(self, known: Rebuilt) -> None:
        """Takes over what the vnodes tell; the catalog must be opened again to show it.

        Attempts of streams go on far behind those that may have been given after the copy was made.
        """
        with self._transaction() as write:
            for database in known.databases:
                write.put(_DATABASES, database.name.encode(), codec.database_to_json(database))
                for table in self._tables_of(database.name) if database.name in self._namespaces else ():
                    write.delete(_TABLES, codec.key(table.uid))
                    for uid in self._children.get(table.uid, ()):
                        write.delete(_CHILDREN, codec.key(table.uid, uid))
            for table, used in known.tables:
                write.put(_TABLES, codec.key(table.uid), codec.table_to_json(table, used))
            for table_uid, children in known.children.items():
                for uid in self._children.get(table_uid, ()):
                    write.delete(_CHILDREN, codec.key(table_uid, uid))
                for child in children:
                    write.put(_CHILDREN, codec.key(table_uid, child.uid), codec.child_to_json(child))
            for stream in self._streams.values():
                write.put(_STREAMS, codec.key(stream.id), codec.dataclass_to_json(
                    replace(stream, attempt=stream.attempt + _ATTEMPTS_SKIPPED)))
            for ingest in self._ingests.values():
                write.put(_INGESTS, codec.key(ingest.id), codec.dataclass_to_json(
                    replace(ingest, attempt=ingest.attempt + _ATTEMPTS_SKIPPED)))
            # A vnode that was to be removed when the copy was made may have been taken by a split since.
            self._forget_unfinished(write, [one for one in self._unfinished if one.kind.endswith("_vnode")])
            write.put(_META, b"next_id", known.next_id)
            write.put(_META, b"next_vgroup", known.next_vgroup)
            if known.users_lost:
                write.put(_META, b"users_lost", True)
            self.generation = known.generation
            write.generation = known.generation + 1
            write.commit()

    # --- databases ---------------------------------------------------------------------------------------------

    def create_database(self, name: str, options: DatabaseOptions, now_ms: int) -> Database:
        """Returns the new database with its vgroups. `AlreadyExistsError` if the name is taken."""
        with self._transaction() as write:
            if self.database(name) is not None:
                raise AlreadyExistsError(f"database {name} already exists", code=0x0381)
            first = self._next_vgroup
            database = Database(name, options, tuple(range(first, first + options.vgroups)), now_ms)
            write.put(_META, b"next_vgroup", first + options.vgroups)
            write.put(_DATABASES, name.encode(), codec.database_to_json(database))
            self._note(write, [Unfinished("make_vnode", vgroup_id) for vgroup_id in database.vgroup_ids])
            write.commit()
            self._next_vgroup = first + options.vgroups
            self._databases[name] = database
            self._namespaces[name] = _Namespace()
            return database

    def alter_database(self, name: str, options: DatabaseOptions) -> Database:
        with self._transaction() as write:
            database = replace(self._require_database(name), options=options)
            write.put(_DATABASES, name.encode(), codec.database_to_json(database))
            write.commit()
            self._databases[name] = database
            return database

    def regrouping(self, name: str, cut: Cut) -> Regrouping:
        """Returns what a database is like once its shares are cut; changes nothing."""
        with self._lock:
            known = self._require_database(name)
            more = len(cut.shares) - len(known.vgroup_ids)
            ids = (*known.vgroup_ids, *range(self._next_vgroup, self._next_vgroup + more))
            database = replace(known, options=replace(known.options, vgroups=len(ids)), vgroup_ids=ids,
                               cut_shares=cut.shares)
            moving: dict[int, dict[int, list[int]]] = {}
            for table in self._tables_of(name):
                for child in self.children(table.uid):
                    vgroup_id = stable_vgroup(database, child.name)
                    if vgroup_id != child.vgroup_id:
                        moving.setdefault(vgroup_id, {}).setdefault(table.uid, []).append(child.uid)
            return Regrouping(database, cut.parents, moving)

    def regroup(self, wanted: Regrouping) -> None:
        """Gives a database its new vgroups, and these their tables, in one step; the rows are there already.

        Streams that read them begin in a new vgroup where they began in the one whose tables it has got.
        """
        with self._transaction() as write:
            database = wanted.database
            ids = database.vgroup_ids
            parents = {vgroup_id: ids[parent] for vgroup_id, parent in zip(ids, wanted.parents, strict=True)}
            tables: list[Table] = []
            children: dict[int, list[ChildTable]] = {}
            for vgroup_id, moving in wanted.moving.items():
                for table_uid, uids in moving.items():
                    table = self._tables[table_uid]
                    if table.kind == "normal":
                        tables.append(replace(table, vgroup_id=vgroup_id))
                    else:
                        children.setdefault(table_uid, []).extend(
                            replace(self._children[table_uid][uid], vgroup_id=vgroup_id) for uid in uids)
            streams = [replace(stream, start_cut=tuple((vgroup_id, dict(stream.start_cut)[parents[vgroup_id]])
                                                       for vgroup_id in ids))
                       for stream in self._streams.values()
                       if (source := self._tables.get(stream.source_uid)) is not None
                       and source.database == database.name]
            write.put(_META, b"next_vgroup", max(self._next_vgroup, ids[-1] + 1))
            write.put(_DATABASES, database.name.encode(), codec.database_to_json(database))
            for table in tables:
                write.put(_TABLES, codec.key(table.uid), codec.table_to_json(table, self._used_names[table.uid]))
            for table_uid, members in children.items():
                for child in members:
                    write.put(_CHILDREN, codec.key(table_uid, child.uid), codec.child_to_json(child))
            for stream in streams:
                write.put(_STREAMS, codec.key(stream.id), codec.dataclass_to_json(stream))
            self._forget_unfinished(write, [Unfinished("remove_vnode", vgroup_id) for vgroup_id in ids])
            write.commit()
            self._next_vgroup = max(self._next_vgroup, ids[-1] + 1)
            self._databases[database.name] = database
            for table in tables:
                self._remember_table(table, self._used_names[table.uid])
                self._children_lists.pop(table.uid, None)
            for table_uid, members in children.items():
                self._remember_children(self._tables[table_uid], members)
            self._streams.update((stream.id, stream) for stream in streams)
            self._moves += 1

    def drop_database(self, name: str) -> Database:
        """Removes a database with all of its tables; the caller removes their data."""
        with self._transaction() as write:
            database = self._require_database(name)
            write.delete(_DATABASES, name.encode())
            uids = [table.uid for table in self._tables_of(name)]
            for uid in uids:
                write.delete(_TABLES, codec.key(uid))
                for child in self._children.get(uid, ()):
                    write.delete(_CHILDREN, codec.key(uid, child))
            users = self._take_grants(write, lambda on: on.kind == "table" and on.database == name)
            self._forget_unfinished(write, [Unfinished("make_vnode", one) for one in database.vgroup_ids])
            self._note(write, [Unfinished("remove_vnode", one) for one in database.vgroup_ids])
            write.commit()
            self._users.update(users)
            del self._databases[name]
            del self._namespaces[name]
            for uid in uids:
                self._forget_table(uid)
            return database

    # --- tables ------------------------------------------------------------------------------------------------

    def create_table(
        self,
        database: str,
        name: str,
        columns: Sequence[Column],
        tags: Sequence[Column],
        *,
        super_table: bool,
        now_ms: int,
        comment: str | None = None,
        ttl_days: int = 0,
        replaces: int | None = None,
    ) -> Table:
        """Returns the new super or normal table; the `physical` names given are ignored and assigned here.

        With `replaces`, the uid of the table of this name, the new one has no name until `replace_stream`; with
        NO_TABLE until `create_stream`.
        """
        with self._transaction() as write:
            owner = self._require_database(database)
            if not replaces:
                self._require_free(database, name)
            uid = self._next_id
            used: list[str] = []
            table = Table(
                uid, database, name, "super" if super_table else "normal",
                tuple(_with_physical(columns, used)), tuple(_with_physical(tags, used)),
                vgroup_id=None if super_table else stable_vgroup(owner, name),
                create_time_ms=now_ms, comment=comment, ttl_days=ttl_days, replaces=replaces,
            )
            write.put(_META, b"next_id", uid + 1)
            write.put(_TABLES, codec.key(uid), codec.table_to_json(table, used))
            write.commit()
            self._next_id = uid + 1
            self._remember_table(table, used)
            return table

    def replace_table(self, table: Table, children_tags: Mapping[int, tuple[TagValue, ...]] | None = None) -> Table:
        """Stores a changed schema of a super or normal table under the next schema version.

        `children_tags` gives the new tag values of all children, for added and dropped tags.
        """
        with self._transaction() as write:
            if table.uid not in self._tables:
                raise NotFoundError(f"table {table.name} does not exist", code=0x2603)
            changed = replace(table, schema_version=table.schema_version + 1)
            used = list(self._used_names[table.uid])
            used += [c.physical for c in (*table.columns, *table.tags) if c.physical not in used]
            write.put(_TABLES, codec.key(table.uid), codec.table_to_json(changed, used))
            children = self._children.get(table.uid, {})
            updated = {uid: replace(children[uid], tag_values=values)
                       for uid, values in (children_tags or {}).items()}
            for child in updated.values():
                write.put(_CHILDREN, codec.key(table.uid, child.uid), codec.child_to_json(child))
            write.commit()
            self._remember_table(changed, used)
            self._remember_children(changed, updated.values())
            return changed

    def drop_table(self, uid: int) -> Table:
        """Removes a super table with its children, or a normal table; the caller removes their data."""
        with self._transaction() as write:
            table = self._tables.get(uid)
            if table is None:
                raise NotFoundError("the table does not exist", code=0x2603)
            self._delete_table(write, table)
            users = self._take_grants(write, _is_on(table))
            write.commit()
            self._users.update(users)
            self._forget_named(table)
            return table

    # --- child tables ------------------------------------------------------------------------------------------

    def create_children(
        self, super_uid: int, children: Sequence[tuple[str, tuple[TagValue, ...]]], now_ms: int
    ) -> list[ChildTable]:
        """Returns the new child tables, placed on vgroups by their names. All or none are created."""
        if not children:
            return []
        with self._transaction() as write:
            parent = self._tables.get(super_uid)
            if parent is None or parent.kind != "super":
                raise NotFoundError("the super table does not exist any more", code=0x2603)
            owner = self._require_database(parent.database)
            created = []
            names: set[str] = set()
            for uid, (name, tag_values) in enumerate(children, self._next_id):
                self._require_free_child(parent, name)
                if name in names:
                    raise AlreadyExistsError(f"table {name} is given twice", code=0x0603)
                names.add(name)
                if len(tag_values) != len(parent.tags):
                    raise InternalError(f"{len(tag_values)} tag values for {len(parent.tags)} tags of {parent.name}")
                child = ChildTable(uid, name, stable_vgroup(owner, name), tag_values, now_ms)
                write.put(_CHILDREN, codec.key(super_uid, uid), codec.child_to_json(child))
                created.append(child)
            write.put(_META, b"next_id", self._next_id + len(created))
            write.commit()
            self._next_id += len(created)
            self._remember_children(parent, created)
            return created

    def set_tags(self, super_uid: int, uid: int, tag_values: tuple[TagValue, ...]) -> ChildTable:
        with self._transaction() as write:
            parent, child = self._tables.get(super_uid), self.child_by_uid(super_uid, uid)
            if parent is None or child is None:
                raise NotFoundError("the child table does not exist any more", code=0x2603)
            changed = replace(child, tag_values=tag_values)
            write.put(_CHILDREN, codec.key(super_uid, uid), codec.child_to_json(changed))
            write.commit()
            self._remember_children(parent, [changed])
            return changed

    def drop_children(self, super_uid: int, uids: Sequence[int]) -> list[ChildTable]:
        with self._transaction() as write:
            parent, children = self._tables.get(super_uid), self._children.get(super_uid, {})
            if parent is None:
                raise NotFoundError("the super table does not exist any more", code=0x2603)
            dropped = [children[uid] for uid in uids if uid in children]
            for child in dropped:
                write.delete(_CHILDREN, codec.key(super_uid, child.uid))
            write.commit()
            namespace = self._namespace_of(parent)
            for child in dropped:
                del children[child.uid]
                del namespace.children[child.name]
            self._children_lists.pop(super_uid, None)
            self._moves += 1
            return dropped

    # --- streams and snodes ------------------------------------------------------------------------------------

    def create_stream(self, record: StreamRecord) -> StreamRecord:
        """Stores a stream, and gives the result table that was made for it its name; its `id` is assigned here."""
        with self._transaction() as write:
            if self.stream(record.name) is not None:
                raise AlreadyExistsError(f"stream {record.name} already exists", code=0x03F0)
            target = self._tables.get(record.target_uid)
            named = None
            if target is not None and target.replaces == NO_TABLE:
                self._require_free(target.database, target.name)
                named = replace(target, replaces=None)
                write.put(_TABLES, codec.key(named.uid), codec.table_to_json(named, self._used_names[named.uid]))
            stored = replace(record, id=self._next_id)
            write.put(_META, b"next_id", stored.id + 1)
            write.put(_STREAMS, codec.key(stored.id), codec.dataclass_to_json(stored))
            write.commit()
            self._next_id = stored.id + 1
            if named is not None:
                del self._staged[named.uid]
                self._remember_table(named, self._used_names[named.uid])
            self._streams[stored.id] = stored
            return stored

    def next_attempt(self, stream_id: int) -> StreamRecord:
        """Counts a new attempt of a stream, durably, before it is started."""
        with self._lock:
            return self._update_stream(stream_id, attempt=self._require_stream(stream_id).attempt + 1)

    def set_stream_wanted(self, stream_id: int, wanted: WantedState, pause: PauseCause | None = None) -> StreamRecord:
        return self._update_stream(stream_id, wanted=wanted, pause=pause)

    def set_stream_plan(self, stream_id: int, text: str, plan: str) -> StreamRecord:
        """Sets the statement, and what it was planned to."""
        with self._lock:
            asked = replace(self._require_stream(stream_id).asked, text=text)
            return self._update_stream(stream_id, asked=asked, plan=plan)

    def set_stream_savepoints(self, stream_id: int, savepoints: tuple[Savepoint, ...]) -> StreamRecord:
        return self._update_stream(stream_id, savepoints=savepoints)

    def set_last_checkpoint(self, stream_id: int, checkpoint_id: int) -> StreamRecord:
        return self._update_stream(stream_id, last_checkpoint_id=checkpoint_id)

    def drop_stream(self, stream_id: int, table_uid: int | None = None) -> StreamRecord:
        """Removes a stream and, in the same step, a table with its children; the caller removes their data."""
        with self._transaction() as write:
            record = self._require_stream(stream_id)
            table = None if table_uid is None else self._tables[table_uid]
            write.delete(_STREAMS, codec.key(stream_id))
            users: dict[str, UserRecord] = {}
            self._note(write, [Unfinished("remove_stream", stream_id)])
            if table is not None:
                self._delete_table(write, table)
                users = self._take_grants(write, _is_on(table))
            write.commit()
            self._users.update(users)
            if table is not None:
                self._forget_named(table)
            return self._streams.pop(record.id)

    def create_ingest(self, record: IngestRecord) -> IngestRecord:
        """Stores an ingest; its `id` is assigned here."""
        with self._transaction() as write:
            if self.ingest(record.name) is not None:
                raise AlreadyExistsError(f"ingest {record.name} already exists")
            stored = replace(record, id=self._next_id)
            write.put(_META, b"next_id", stored.id + 1)
            write.put(_INGESTS, codec.key(stored.id), codec.dataclass_to_json(stored))
            write.commit()
            self._next_id = stored.id + 1
            self._ingests[stored.id] = stored
            return stored

    def next_ingest_attempt(self, ingest_id: int) -> IngestRecord:
        """Counts a new attempt of an ingest, durably, before it is started."""
        with self._lock:
            return self._update_ingest(ingest_id, attempt=self._require_ingest(ingest_id).attempt + 1)

    def set_ingest_wanted(self, ingest_id: int, wanted: WantedState, reason: str = "") -> IngestRecord:
        return self._update_ingest(ingest_id, wanted=wanted, wanted_reason=reason)

    def drop_ingest(self, ingest_id: int) -> None:
        with self._transaction() as write:
            self._require_ingest(ingest_id)
            write.delete(_INGESTS, codec.key(ingest_id))
            self._note(write, [Unfinished("remove_stream", ingest_id)])
            write.commit()
            del self._ingests[ingest_id]

    def replace_stream(self, stream_id: int) -> tuple[StreamRecord, Table]:
        """Puts a stream and its result table in the place of those that they replace, in one step.

        Returns the old stream and the old table. The table can still be read by its uid, until `forget_table`.
        `AlreadyExistsError` if a name of a new child table was given to something else meanwhile.
        """
        with self._transaction() as write:
            new = self._require_stream(stream_id)
            old = self._require_stream(new.replaces if new.replaces is not None else stream_id)
            fresh, stale = self._tables.get(new.target_uid), self._tables.get(old.target_uid)
            if new.replaces is None or fresh is None or stale is None or fresh.replaces != stale.uid:
                raise InternalError(f"stream {new.name} is no replacement of another")
            staged = self._staged[fresh.uid]
            taken = next((name for name in staged.children if self._is_foreign(fresh, name)), None)
            if taken is not None:
                raise AlreadyExistsError(f"table {fresh.database}.{taken} already exists", code=0x0603)
            stream, table = replace(new, name=old.name, replaces=None), replace(fresh, replaces=None)
            write.put(_STREAMS, codec.key(stream.id), codec.dataclass_to_json(stream))
            write.delete(_STREAMS, codec.key(old.id))
            write.put(_TABLES, codec.key(table.uid), codec.table_to_json(table, self._used_names[table.uid]))
            write.delete(_TABLES, codec.key(stale.uid))
            for child in self._children.get(stale.uid, ()):
                write.delete(_CHILDREN, codec.key(stale.uid, child))
            self._note(write, [Unfinished("remove_stream", old.id), Unfinished("remove_table", stale.uid)])
            write.commit()
            before, after = self._namespaces[table.database], _Namespace()
            after.tables = {**before.tables, table.name: table.uid}
            after.children = {name: found for name, found in before.children.items() if found[0] != stale.uid}
            after.children.update(staged.children)
            # Readers take no lock: they find all of the old names or all of the new ones.
            self._tables[table.uid] = table
            self._namespaces[table.database] = after
            del self._staged[table.uid]
            del self._streams[old.id]
            self._streams[stream.id] = stream
            return old, stale

    def forget_table(self, uid: int) -> None:
        """Drops what is known of a table that was replaced."""
        with self._lock:
            self._forget_table(uid)

    def create_snode(self, dnode_id: int, now_ms: int) -> Snode:
        with self._transaction() as write:
            if any(snode.dnode_id == dnode_id for snode in self._snodes.values()):
                raise AlreadyExistsError(f"dnode {dnode_id} has an snode already")
            snode = Snode(self._next_id, dnode_id, now_ms)
            write.put(_META, b"next_id", snode.id + 1)
            write.put(_SNODES, codec.key(snode.id), codec.dataclass_to_json(snode))
            write.commit()
            self._next_id = snode.id + 1
            self._snodes[snode.id] = snode
            return snode

    def drop_snode(self, dnode_id: int) -> Snode:
        with self._transaction() as write:
            found = next((snode for snode in self._snodes.values() if snode.dnode_id == dnode_id), None)
            if found is None:
                raise NotFoundError(f"dnode {dnode_id} has no snode")
            write.delete(_SNODES, codec.key(found.id))
            write.commit()
            return self._snodes.pop(found.id)

    # --- functions ---------------------------------------------------------------------------------------------

    def create_function(self, function: UserFunction, *, replacing: bool = False) -> UserFunction:
        """Stores a user's function; its `uid` is assigned here. `replacing`: in place of one of the same name."""
        with self._transaction() as write:
            if not replacing and function.name in self._functions:
                raise AlreadyExistsError(f"function {function.name} already exists")
            stored = replace(function, uid=self._next_id)
            write.put(_META, b"next_id", stored.uid + 1)
            write.put(_FUNCTIONS, stored.name.encode(), codec.function_to_json(stored))
            write.commit()
            self._next_id = stored.uid + 1
            self._functions[stored.name] = stored
            return stored

    def drop_function(self, name: str) -> UserFunction:
        with self._transaction() as write:
            if name not in self._functions:
                raise NotFoundError(f"function {name} does not exist")
            write.delete(_FUNCTIONS, name.encode())
            write.commit()
            return self._functions.pop(name)

    # --- users -------------------------------------------------------------------------------------------------

    def put_user(self, user: UserRecord) -> None:
        """Stores a new user, or a known one with another password, role or grants."""
        with self._transaction() as write:
            write.put(_USERS, user.name.encode(), codec.dataclass_to_json(user))
            write.commit()
            self._users[user.name] = user

    def drop_user(self, name: str) -> None:
        with self._transaction() as write:
            write.delete(_USERS, name.encode())
            write.commit()
            del self._users[name]

    # --- connections -------------------------------------------------------------------------------------------

    def put_connection(self, record: ConnectionRecord) -> None:
        """Stores a new connection, or a known one with other options."""
        name = record.connection.name
        with self._transaction() as write:
            write.put(_CONNECTIONS, name.encode(), codec.dataclass_to_json(record))
            write.commit()
            self._connections[name] = record

    def drop_connection(self, name: str) -> None:
        with self._transaction() as write:
            write.delete(_CONNECTIONS, name.encode())
            users = self._take_grants(write, lambda on: on.kind == "connection" and on.name == name)
            write.commit()
            self._users.update(users)
            del self._connections[name]

    # --- inside ------------------------------------------------------------------------------------------------

    def _take_grants(self, write: _Write, gone: Callable[[GrantObject], bool]) -> dict[str, UserRecord]:
        """Takes grants on what is dropped from all users, as part of a transaction; returns the users that change.

        Who makes something of the same name later must not find that others have rights on it.
        """
        changed = {}
        for user in self._users.values():
            kept = tuple(right for right in user.granted if not gone(right.on))
            if kept != user.granted:
                changed[user.name] = replace(user, granted=kept)
                write.put(_USERS, user.name.encode(), codec.dataclass_to_json(changed[user.name]))
        return changed

    def _update_stream(self, stream_id: int, **changes: Any) -> StreamRecord:
        with self._transaction() as write:
            changed = replace(self._require_stream(stream_id), **changes)
            write.put(_STREAMS, codec.key(stream_id), codec.dataclass_to_json(changed))
            write.commit()
            self._streams[stream_id] = changed
            return changed

    def _tables_of(self, database: str) -> list[Table]:
        """Returns all tables of a database, also those that no name leads to yet."""
        named = self._namespaces[database].tables.values()
        return [*(self._tables[uid] for uid in named), *self.staged_tables(database)]

    def _require_stream(self, stream_id: int) -> StreamRecord:
        record = self._streams.get(stream_id)
        if record is None:
            raise NotFoundError("the stream does not exist any more", code=0x03F1)
        return record

    def _update_ingest(self, ingest_id: int, **changes: Any) -> IngestRecord:
        with self._transaction() as write:
            changed = replace(self._require_ingest(ingest_id), **changes)
            write.put(_INGESTS, codec.key(ingest_id), codec.dataclass_to_json(changed))
            write.commit()
            self._ingests[ingest_id] = changed
            return changed

    def _require_ingest(self, ingest_id: int) -> IngestRecord:
        ingest = self._ingests.get(ingest_id)
        if ingest is None:
            raise NotFoundError(f"there is no ingest {ingest_id:x}")
        return ingest

    def _require_database(self, name: str) -> Database:
        database = self._databases.get(name)
        if database is None:
            raise NotFoundError(f"database {name} does not exist", code=0x0388)
        return database

    def _require_free(self, database: str, name: str) -> None:
        namespace = self._namespaces[database]
        if name in namespace.tables or name in namespace.children:
            raise AlreadyExistsError(f"table {database}.{name} already exists", code=0x0603)

    def _require_free_child(self, parent: Table, name: str) -> None:
        """A child of a table that is going to replace another may have the name of one of the other's children."""
        if parent.replaces is None:
            self._require_free(parent.database, name)
        elif self._is_foreign(parent, name) or name in self._staged[parent.uid].children:
            raise AlreadyExistsError(f"table {parent.database}.{name} already exists", code=0x0603)

    def _is_foreign(self, staged: Table, name: str) -> bool:
        """Whether a name belongs to something else than the table that is going to be replaced."""
        namespace = self._namespaces[staged.database]
        child = namespace.children.get(name)
        if child is not None:
            return child[0] != staged.replaces
        return name in namespace.tables

    def _namespace_of(self, table: Table) -> _Namespace:
        return self._namespaces[table.database] if table.replaces is None else self._staged[table.uid]

    def _remember_table(self, table: Table, used: Sequence[str]) -> None:
        if table.replaces is not None:
            self._staged.setdefault(table.uid, _Namespace())
        self._tables[table.uid] = table
        self._used_names[table.uid] = tuple(used)
        self._namespace_of(table).tables[table.name] = table.uid
        if table.kind == "super":
            self._children.setdefault(table.uid, {})

    def _delete_table(self, write: _Write, table: Table) -> None:
        write.delete(_TABLES, codec.key(table.uid))
        self._note(write, [Unfinished("remove_table", table.uid)])
        for child in self._children.get(table.uid, ()):
            write.delete(_CHILDREN, codec.key(table.uid, child))

    def _forget_named(self, table: Table) -> None:
        namespace = self._namespace_of(table)
        del namespace.tables[table.name]
        for child in self._children.get(table.uid, {}).values():
            del namespace.children[child.name]
        self._forget_table(table.uid)

    def _forget_table(self, uid: int) -> None:
        for cache in (self._tables, self._used_names, self._children, self._children_lists, self._staged):
            cache.pop(uid, None)

    def _remember_children(self, parent: Table, children: Iterable[ChildTable]) -> None:
        by_uid, by_name = self._children.get(parent.uid, {}), self._namespace_of(parent).children
        for child in children:
            by_uid[child.uid] = child
            by_name[child.name] = (parent.uid, child)
        self._children_lists.pop(parent.uid, None)

    @contextmanager
    def _transaction(self) -> Iterator[_Write]:
        with self._lock:
            transaction = None
            try:
                transaction = self._env.begin(write=True)
                write = _Write(transaction, self._stores, self.generation + 1)
                yield write
                if write.committed:
                    self.generation += 1
                    for change in write.afterwards:
                        change()
                    self.on_change()
            except lmdb.MapFullError as error:
                raise StorageError(f"the catalog {self._path} is full",
                                   hint="drop child tables that are not needed any more") from error
            except lmdb.Error as error:
                raise StorageError(f"the catalog {self._path} cannot be written: {error}{shortage(self._path)}",
                                   hint="check free space and the disk") from error
            finally:
                if transaction is not None:
                    transaction.abort()  # does nothing after a commit

    def _load(self) -> None:
        with self._env.begin(write=True) as transaction:
            read = _Read(transaction, self._stores, self._path)
            version = read.get(_META, b"format")
            if version is None:
                _Write(transaction, self._stores, 0).put(_META, b"format", FORMAT_VERSION)
            elif version > FORMAT_VERSION:
                raise CorruptionError(
                    f"the catalog {self._path} has format {version}; this version of Penstock knows formats up to "
                    f"{FORMAT_VERSION}", hint="use the newer version that wrote it")
            self._next_id = read.get(_META, b"next_id") or self._next_id
            self._next_vgroup = read.get(_META, b"next_vgroup") or self._next_vgroup
            self.generation = read.get(_META, b"generation") or 0
            self._users_lost = bool(read.get(_META, b"users_lost"))
            for _, value in read.items(_UNFINISHED):
                self._unfinished.add(Unfinished(**value))
            for _, value in read.items(_DATABASES):
                database = codec.database_from_json(value)
                self._databases[database.name] = database
                self._namespaces[database.name] = _Namespace()
            for _, value in read.items(_TABLES):
                self._remember_table(*codec.table_from_json(value))
            for key, value in read.items(_CHILDREN):
                parent, child = codec.child_from_json(key, value)
                self._children[parent][child.uid] = child
                self._namespace_of(self._tables[parent]).children[child.name] = (parent, child)
            for _, value in read.sound_items(_STREAMS, self.damaged_streams):
                self._streams[value["id"]] = _stream(value)
            for _, value in read.items(_INGESTS):
                self._ingests[value["id"]] = _ingest(value)
            for _, value in read.items(_SNODES):
                self._snodes[value["id"]] = Snode(**value)
            for _, value in read.items(_FUNCTIONS):
                function = codec.function_from_json(value)
                self._functions[function.name] = function
            for _, value in read.items(_USERS):
                self._users[value["name"]] = _user(value)
            for _, value in read.items(_CONNECTIONS):
                kept = _connection(value)
                self._connections[kept.connection.name] = kept


#: What versions before called the parts of the tables that a stream reads.
_OLDER_READING = (("source_uid", "child_uid", "source_columns"), ("other_uid", "other_child_uid", "other_columns"))
#: What they kept of a stream without grouping it.
_OLDER_ASKED = ("text", "database", "time_zone", "created_ms", "defaults")
_OLDER_USES = ("reading", "functions", "connections", "dlq", "outside_table")


def _stream(value: dict[str, Any]) -> StreamRecord:
    """Returns a stream from its entry, also from one of an older version."""
    if "asked" not in value:
        value = _grouped(value)
    uses, pause = value["uses"], value.get("pause")
    return StreamRecord(**{
        **value,
        "asked": AskedStream(**value["asked"]),
        "uses": StreamUses(
            tuple(TableRead(read["uid"], read["child_uid"], tuple(read["columns"])) for read in uses["reading"]),
            tuple(uses["functions"]), tuple(uses["connections"]), tuple(uses["dlq"]) if uses["dlq"] else None,
            uses["outside_table"]),
        "start_cut": tuple((vgroup, at) for vgroup, at in value["start_cut"]),
        "pause": None if pause is None else PauseCause(**pause),
        "savepoints": tuple(Savepoint(**savepoint) for savepoint in value.get("savepoints", ())),
    })


def _grouped(older: dict[str, Any]) -> dict[str, Any]:
    """Returns the entry of an older version in the form of today's."""
    value = dict(older)
    sides = [[value.pop(name, None) for name in names] for names in _OLDER_READING]
    asked = {name: value.pop(name) for name in _OLDER_ASKED if name in value}
    uses = {name: value.pop(name, None) for name in _OLDER_USES}
    reading = [{"uid": uid, "child_uid": child, "columns": columns or ()}
               for uid, child, columns in sides if uid is not None]
    uses = {**uses, "reading": uses["reading"] or reading, "functions": uses["functions"] or (),
            "connections": uses["connections"] or ()}
    reason = value.pop("wanted_reason", "")
    pause = value.pop("pause", None) or ({"text": reason} if reason else None)
    return {**value, "asked": asked, "uses": uses, "pause": pause}


def _ingest(value: dict[str, Any]) -> IngestRecord:
    """Returns an ingest from its entry."""
    value["dlq"] = tuple(value["dlq"]) if value.get("dlq") else None
    return IngestRecord(**value)


def _is_on(table: Table) -> Callable[[GrantObject], bool]:
    """Returns the test whether a grant is on this table; one that no name leads to yet has none."""
    on = GrantObject("table", table.name, table.database)
    return lambda other: table.replaces is None and other == on


def _user(value: dict[str, Any]) -> UserRecord:
    """Returns a user from its entry, also from one of an older version."""
    value["password"] = PasswordHash(**value["password"])
    value["granted"] = tuple(
        Right(right["privilege"], GrantObject(**right["on"])) for right in value.get("granted", ()))
    return UserRecord(**value)


def _connection(value: dict[str, Any]) -> ConnectionRecord:
    """Returns a connection from its entry."""
    kept = value["connection"]
    kept["options"] = tuple((option, text) for option, text in kept["options"])
    return ConnectionRecord(Connection(**kept), value["created_ms"])


class _Write:
    """The changes of one transaction. They happen at `commit`; leaving the block without it undoes them all."""

    def __init__(self, transaction: Any, stores: Mapping[bytes, Any], generation: int) -> None:
        self._transaction = transaction
        self._stores = stores
        self.generation = generation
        #: what changes in memory once it is committed
        self.afterwards: list[Callable[[], None]] = []
        self.committed = False

    def put(self, store: bytes, key: bytes, value: Any) -> None:
        self._transaction.put(key, codec.seal(value), db=self._stores[store])

    def delete(self, store: bytes, key: bytes) -> None:
        self._transaction.delete(key, db=self._stores[store])

    def commit(self) -> None:
        self.put(_META, b"generation", self.generation)
        self._transaction.commit()
        self.committed = True


class _Read:
    """Reads values and checks them."""

    def __init__(self, transaction: Any, stores: Mapping[bytes, Any], path: Path) -> None:
        self._transaction = transaction
        self._stores = stores
        self._path = path

    def get(self, store: bytes, key: bytes) -> Any:
        value = self._transaction.get(key, db=self._stores[store])
        return None if value is None else self._open(store, key, value)

    def sound_items(self, store: bytes, damaged: dict[int, str]) -> Iterator[tuple[bytes, Any]]:
        """As `items`; entries that are damaged are left out and noted by their id."""
        with self._transaction.cursor(db=self._stores[store]) as cursor:
            for key, value in cursor:
                try:
                    opened = self._open(store, key, value)
                except CorruptionError as error:
                    damaged[int.from_bytes(key, "big")] = error.message
                else:
                    yield key, opened

    def items(self, store: bytes, prefix: bytes = b"") -> Iterator[tuple[bytes, Any]]:
        """Yields the entries whose keys begin with `prefix`, in the order of their keys."""
        with self._transaction.cursor(db=self._stores[store]) as cursor:
            if cursor.set_range(prefix):
                for key, value in cursor:
                    if not key.startswith(prefix):
                        return
                    yield key, self._open(store, key, value)

    def _open(self, store: bytes, key: bytes, value: bytes) -> Any:
        try:
            return codec.unseal(value)
        except ValueError as error:
            raise CorruptionError(
                f"the catalog {self._path} is damaged: {store.decode()} {key.hex()}: {error}") from error


class CatalogFile:
    """The catalog as another process than the engine's reads it: what is asked for, as it is then.

    One thread at a time, and one in a process.
    """

    def __init__(self, path: Path) -> None:
        """Raises NotFoundError if there is none, StorageError if it can't be opened."""
        if not path.is_dir():
            raise NotFoundError(f"{path.parent} is not a data directory")
        self._path = path
        try:
            self._env = lmdb.open(str(path), readonly=True, max_dbs=len(_STORES), subdir=True,
                                  mode=FILE_MODE)
            self._stores = dict(self._there())
        except lmdb.Error as error:
            raise StorageError(f"the catalog {path} cannot be opened: {error}",
                               hint="who reads it must be allowed to write its lock.mdb") from error

    def close(self) -> None:
        self._env.close()

    def database(self, name: str) -> Database | None:
        with self._env.begin() as transaction:
            value = self._read(transaction).get(_DATABASES, name.encode())
        return None if value is None else codec.database_from_json(value)

    def databases(self) -> list[Database]:
        """Returns the users' databases, in order of creation."""
        found = [codec.database_from_json(value) for value in self._values(_DATABASES)]
        return sorted(found, key=lambda database: database.vgroup_ids)

    def streams(self) -> list[StreamRecord]:
        """Returns the streams, in order of creation."""
        return [_stream(value) for value in self._values(_STREAMS)]

    def ingests(self) -> list[IngestRecord]:
        """Returns the ingests, in order of creation."""
        return [_ingest(value) for value in self._values(_INGESTS)]

    def functions(self) -> list[UserFunction]:
        """Returns the users' functions, in order of creation."""
        found = [codec.function_from_json(value) for value in self._values(_FUNCTIONS)]
        return sorted(found, key=lambda function: function.uid)

    def users(self) -> list[UserRecord]:
        """Returns the users, in order of creation."""
        return sorted((_user(value) for value in self._values(_USERS)), key=lambda user: (user.created_ms, user.name))

    def connections(self) -> list[ConnectionRecord]:
        """Returns the connections to servers outside, in order of creation."""
        return sorted((_connection(value) for value in self._values(_CONNECTIONS)),
                      key=lambda kept: (kept.created_ms, kept.connection.name))

    def table(self, database: str, name: str) -> Table | None:
        """Returns a super, normal or child table."""
        supers = {}
        for table in self.tables(database):
            if table.name == name:
                return table
            supers[table.uid] = table
        for uid, parent in supers.items():
            child = next((child for child in self.children(uid) if child.name == name), None)
            if child is not None:
                return child_as_table(parent, child)
        return None

    def tables(self, database: str) -> list[Table]:
        """Returns the super and the normal tables of a database, in order of creation."""
        found = [codec.table_from_json(value)[0] for value in self._values(_TABLES)]
        return [table for table in found if table.database == database and table.replaces is None]

    def children(self, super_uid: int) -> Iterator[ChildTable]:
        """Yields the child tables of a super table."""
        with self._env.begin() as transaction:
            for key, value in self._read(transaction).items(_CHILDREN, codec.key(super_uid)):
                yield codec.child_from_json(key, value)[1]

    def child(self, super_uid: int, uid: int) -> ChildTable | None:
        key = codec.key(super_uid, uid)
        with self._env.begin() as transaction:
            value = self._read(transaction).get(_CHILDREN, key)
        return None if value is None else codec.child_from_json(key, value)[1]

    def _there(self) -> Iterator[tuple[bytes, Any]]:
        for name in (_DATABASES, _TABLES, _CHILDREN, _STREAMS, _FUNCTIONS, _USERS, _CONNECTIONS, _INGESTS):
            try:
                yield name, self._env.open_db(name, create=False)
            except lmdb.NotFoundError:
                continue  # no engine that knows of it has opened the directory yet

    def _values(self, store: bytes) -> list[Any]:
        if store not in self._stores:
            return []
        with self._env.begin() as transaction:
            return [value for _, value in self._read(transaction).items(store)]

    def _read(self, transaction: Any) -> _Read:
        return _Read(transaction, self._stores, self._path)


def child_as_table(parent: Table, child: ChildTable) -> Table:
    """Returns the child table with its super table's columns and tags."""
    return Table(
        child.uid, parent.database, child.name, "child", parent.columns, parent.tags, parent.uid, parent.name,
        child.tag_values, child.vgroup_id, child.create_time_ms, schema_version=parent.schema_version,
    )


def _with_physical(columns: Sequence[Column], used: list[str]) -> Iterator[Column]:
    for column in columns:
        physical = physical_name(column.name, used)
        used.append(physical)
        yield replace(column, physical=physical)
