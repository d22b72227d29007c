"""Where the catalog lies on disk: entries in LMDB, their transactions, and the ids that are given.

It is the one module of the mnode that imports lmdb.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import lmdb

from penstock.common.errors import CorruptionError, NotFoundError, StorageError
from penstock.common.fs import shortage
from penstock.common.private import FILE_MODE, make_private
from penstock.mnode.catalog import catalog_codec as codec
from penstock.mnode.catalog.catalog_lock import CatalogLock
from penstock.mnode.catalog.catalog_log import CatalogLog, EntryChange

FIRST_UID = 1000
"""Uids below are those of system tables."""
FIRST_VGROUP = 2
"""TDengine's vgroup 1 is the mnode's; users know their first as 2."""
MAP_BYTES = 4 * 1024**3
_CHECK_DISK = "check free space and the disk"

META, DATABASES, TABLES, CHILDREN, STREAMS, SNODES, FUNCTIONS, USERS, CONNECTIONS, INGESTS, UNFINISHED = (
    b"meta", b"databases", b"tables", b"children", b"streams", b"snodes", b"functions", b"users", b"connections",
    b"ingests", b"unfinished")
VIEWS = b"views"
_STORES = (META, DATABASES, TABLES, CHILDREN, VIEWS, STREAMS, SNODES, FUNCTIONS, USERS, CONNECTIONS, INGESTS,
           UNFINISHED)
ALL_STORES = frozenset(_STORES)


_LOGGED = b"logged"
_ENTRIES_PER_RECORD = 1000
_ENTRIES_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """An entry as it is stored, with its checksum."""

    store: bytes
    key: bytes
    value: bytes

    @property
    def generation(self) -> int | None:
        """What it says of the catalog's generation, if it is the entry that does."""
        return int(codec.unseal(self.value)) if (self.store, self.key) == (META, b"generation") else None


@dataclass(frozen=True, slots=True)
class Counters:
    """What only grows. `next_id`: of tables, child tables, streams and the like; `generation` counts transactions."""

    next_id: int = FIRST_UID
    next_vgroup: int = FIRST_VGROUP
    generation: int = 0


class StoredEntries:
    """The entries of an open catalog; they are checked when they are read. Each call reads them as they are then."""

    def __init__(self, env: lmdb.Environment, stores: Mapping[bytes, Any], path: Path) -> None:
        self._env = env
        self._stores = stores
        self._path = path

    def get(self, store: bytes, key: bytes) -> Any:
        """Returns a value, or None. Raises CorruptionError."""
        if store not in self._stores:
            return None
        with self._reading() as transaction:
            value = transaction.get(key, db=self._stores[store])
        return None if value is None else self._open(store, key, bytes(value))

    def at_or_before(self, store: bytes, key: bytes) -> tuple[bytes, Any] | None:
        """Returns the entry with the greatest key up to `key`, if there is one. Raises CorruptionError."""
        if store not in self._stores:
            return None
        with self._reading() as transaction:
            found = _at_or_before(transaction, self._stores[store], key)
        return None if found is None else (found[0], self._open(store, *found))

    def items(self, store: bytes, prefix: bytes = b"") -> Iterator[tuple[bytes, Any]]:
        """Yields the entries whose keys begin with `prefix`, in the order of their keys. Raises CorruptionError."""
        entries = self._sealed(store, prefix)
        while some := list(islice(entries, _ENTRIES_AT_ONCE)):
            try:
                values = codec.unseal_all([value for _, value in some])
            except ValueError:  # it is told which of them is damaged
                values = [self._open(store, key, value) for key, value in some]
            yield from zip((key for key, _ in some), values, strict=True)

    def sound_items(self, store: bytes, damaged: dict[int, str]) -> Iterator[tuple[bytes, Any]]:
        """As `items`; entries that are damaged are left out and noted by their id."""
        for key, value in self._sealed(store):
            try:
                opened = self._open(store, key, value)
            except CorruptionError as error:
                damaged[int.from_bytes(key, "big")] = error.message
            else:
                yield key, opened

    def all(self) -> list[CatalogEntry]:
        """Returns all that is stored, as of one moment."""
        with self._reading() as transaction:
            found = []
            for name, store in self._stores.items():
                with transaction.cursor(db=store) as cursor:
                    found += [CatalogEntry(name, bytes(key), bytes(value)) for key, value in cursor]
            return found

    def close(self) -> None:
        self._env.close()

    def _sealed(self, store: bytes, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        if store not in self._stores:
            return
        with self._reading() as transaction, transaction.cursor(db=self._stores[store]) as cursor:
            if cursor.set_range(prefix):
                for found, value in cursor:
                    key = bytes(found)
                    if not key.startswith(prefix):
                        return
                    yield key, bytes(value)

    @contextmanager
    def _reading(self) -> Iterator[lmdb.Transaction]:
        try:
            with self._env.begin() as transaction:
                yield transaction
        except lmdb.Error as error:
            raise StorageError(f"the catalog {self._path} cannot be read: {error}", hint=_CHECK_DISK) from error

    def _open(self, store: bytes, key: bytes, value: bytes) -> Any:
        try:
            return codec.unseal(value)
        except ValueError as error:
            raise CorruptionError(
                f"the catalog {self._path} is damaged: {store.decode()} {key.hex()}: {error}") from error


class Transaction:
    """Changes that happen together: on disk, and then in memory. An exception in its block undoes them all."""

    def __init__(self, transaction: lmdb.Transaction, stores: Mapping[bytes, Any], counters: Counters, *, logged: bool
                 ) -> None:
        """`logged`: its changes are noted for a log."""
        self._transaction = transaction
        self._stores = stores
        self._afterwards: list[Callable[[], None]] = []
        self._noted: list[EntryChange] | None = [] if logged else None
        #: as they are once it is committed
        self.counters = counters

    def put(self, store: bytes, key: bytes, value: Any) -> None:
        self._set(store, key, codec.seal(value))

    def put_sealed(self, store: bytes, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Stores many entries that are sealed already."""
        if self._noted is not None:
            for key, data in entries:
                self._set(store, key, data)
            return
        with self._transaction.cursor(db=self._stores[store]) as cursor:
            cursor.putmulti(list(entries))

    def delete(self, store: bytes, key: bytes) -> None:
        self._set(store, key, None)

    def delete_all(self, store: bytes, prefix: bytes) -> None:
        """Deletes the entries whose keys begin with `prefix`."""
        found = []
        with self._transaction.cursor(db=self._stores[store]) as cursor:
            more = cursor.set_range(prefix)
            while more and (key := bytes(cursor.key())).startswith(prefix):
                found.append(key)
                more = cursor.next()
        for key in found:
            self._set(store, key, None)

    def at_or_before(self, store: bytes, key: bytes) -> tuple[bytes, Any] | None:
        """Returns the entry with the greatest key up to `key`, if there is one. Raises CorruptionError."""
        found = _at_or_before(self._transaction, self._stores[store], key)
        try:
            return None if found is None else (found[0], codec.unseal(found[1]))
        except ValueError as error:
            raise CorruptionError(f"the catalog is damaged: {store.decode()} {key.hex()}: {error}") from error

    def _set(self, store: bytes, key: bytes, data: bytes | None) -> None:
        if self._noted is not None:
            before = self._transaction.get(key, db=self._stores[store])
            self._noted.append(EntryChange(store, key, None if before is None else bytes(before), data))
        set_entry(self._transaction, self._stores[store], key, data)

    def afterwards(self, change: Callable[[], None]) -> None:
        """Has memory changed once the transaction is committed."""
        self._afterwards.append(change)

    def take_ids(self, count: int = 1) -> int:
        """Returns the first of some ids that were never given."""
        first = self.counters.next_id
        self.counters = replace(self.counters, next_id=first + count)
        return first

    def take_vgroups(self, count: int) -> int:
        """Returns the first of some ids of vgroups that were never given."""
        first = self.counters.next_vgroup
        self.counters = replace(self.counters, next_vgroup=first + count)
        return first

    def reserve_vgroups(self, vgroup_ids: Iterable[int]) -> None:
        """Sees to it that none of these is given again."""
        following = max(self.counters.next_vgroup, *(vgroup_id + 1 for vgroup_id in vgroup_ids))
        self.counters = replace(self.counters, next_vgroup=following)

    def end(self) -> list[EntryChange] | None:
        """Stores the counters, also ids that were taken before; returns all its changes if they are logged."""
        for name, value in asdict(self.counters).items():
            data = codec.seal(value)
            if self._transaction.get(name.encode(), db=self._stores[META]) != data:
                self._set(META, name.encode(), data)
        return self._noted

    def change_memory(self) -> None:
        for change in self._afterwards:
            change()


def _at_or_before(transaction: lmdb.Transaction, store: Any, key: bytes) -> tuple[bytes, bytes] | None:
    with transaction.cursor(db=store) as cursor:
        there = cursor.set_range(key)
        if (there and bytes(cursor.key()) == key) or (cursor.prev() if there else cursor.last()):
            return bytes(cursor.key()), bytes(cursor.value())
    return None


def set_entry(transaction: lmdb.Transaction, store: Any, key: bytes, data: bytes | None) -> None:
    """Stores sealed bytes; None deletes what is there."""
    if data is None:
        transaction.delete(key, db=store)
    else:
        transaction.put(key, data, db=store)


class CatalogStore:
    """The catalog's files, open for the engine. Safe for many threads.

    `StorageError` if LMDB is full or the disk is; `CorruptionError` if stored values fail their checksum. With a
    log, a transaction is in it first; what is in it counts, and is done again by the next start.
    """

    def __init__(self, path: Path, map_bytes: int = MAP_BYTES, log: CatalogLog | None = None) -> None:
        """`log`: a cluster keeps copies of the changes; this closes it."""
        make_private(path)
        self._path = path
        self.log = log
        #: waits until the cluster has acknowledged a version of the log, or raises
        self.await_cluster: Callable[[int], None] | None = None
        #: held by transactions, and by those who read what one of them changes in several steps
        self.lock = CatalogLock()
        #: called with each transaction before anything else is changed in it
        self.on_begin: Callable[[Transaction], None] = lambda write: None
        #: called after each transaction, with the lock held
        self.on_change: Callable[[], None] = lambda: None
        try:
            self._env = lmdb.open(str(path), map_size=map_bytes, max_dbs=len(_STORES), subdir=True, mode=FILE_MODE)
            self._stores = {name: self._env.open_db(name) for name in _STORES}
        except lmdb.Error as error:
            raise CorruptionError(f"the catalog {path} cannot be opened: {error}") from error
        self.entries = StoredEntries(self._env, self._stores, path)
        try:
            if log is not None:
                self._join(log)
            self.counters = self._read_counters()
        except lmdb.Error as error:
            self._env.close()
            raise StorageError(f"the catalog {path} cannot be opened: {error}", hint=_CHECK_DISK) from error
        except BaseException:
            self._env.close()
            raise

    def _read_counters(self) -> Counters:
        read = self.entries.get
        return Counters(read(META, b"next_id") or FIRST_UID, read(META, b"next_vgroup") or FIRST_VGROUP,
                        read(META, b"generation") or 0)

    def close(self) -> None:
        """Closes the files; everything is durable already."""
        with self.lock:
            self._env.close()
            if self.log is not None:
                self.log.close()

    def take_ids(self, count: int) -> int:
        """Returns the first of some ids that were never given; the next transaction stores that they are.

        The caller holds the lock.
        """
        before = self.counters
        self.counters = Counters(before.next_id + count, before.next_vgroup, before.generation)
        return before.next_id

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Gives a transaction that is committed at the end of the block: then it survives a power cut.

        In a cluster it raises what `await_cluster` does, too: it is done here, but nobody knows what will be. That is
        waited for when the lock is free, so behind what holds it around the transaction.
        """
        with self.lock:
            with self._writing() as transaction:
                counters = replace(self.counters, generation=self.counters.generation + 1)
                changes = Transaction(transaction, self._stores, counters, logged=self.log is not None)
                self.on_begin(changes)
                yield changes
                version = self._write_log(transaction, changes.end())
            self.counters = changes.counters
            changes.change_memory()
            self.on_change()
            if self.await_cluster is not None:
                self.lock.when_free(partial(self.await_cluster, version))

    @contextmanager
    def _writing(self) -> Iterator[lmdb.Transaction]:
        transaction = None
        try:
            transaction = self._env.begin(write=True)
            yield transaction
            transaction.commit()
        except lmdb.MapFullError as error:
            raise StorageError(f"the catalog {self._path} is full",
                               hint="drop child tables that are no longer needed") from error
        except lmdb.Error as error:
            raise StorageError(f"the catalog {self._path} cannot be written: {error}{shortage(self._path)}",
                               hint=_CHECK_DISK) from error
        finally:
            if transaction is not None:
                transaction.abort()  # does nothing after a commit

    def copy_to(self, folder: Path) -> None:
        """Writes the catalog as of one moment into a folder, as the one file of another catalog; it is durable there.

        Nobody waits for it. Raises StorageError.
        """
        make_private(folder)
        try:
            self._env.copy(str(folder), compact=True)
        except lmdb.Error as error:
            raise StorageError(f"the catalog {self._path} cannot be copied to {folder}: {error}{shortage(folder)}",
                               hint=_CHECK_DISK) from error

    # --- in a cluster: the log of all changes --------------------------------------------------------------------

    @property
    def logged_version(self) -> int:
        """The version of the log up to which its changes are in the catalog."""
        return self.entries.get(META, _LOGGED) or 0

    def _write_log(self, transaction: lmdb.Transaction, changes: list[EntryChange] | None) -> int:
        """Writes what a transaction changes into the log, if there is one; returns its version there."""
        if self.log is None or changes is None:
            transaction.delete(_LOGGED, db=self._stores[META])  # a log that there was doesn't tell of this one
            return 0
        if self.logged_version != self.log.writer.written_version:
            raise StorageError(f"the catalog {self._path} is behind its log", hint="restart the engine")
        version = self.log.append(changes)
        set_entry(transaction, self._stores[META], _LOGGED, codec.seal(version))
        return version

    def _join(self, log: CatalogLog) -> None:
        """Brings catalog and log together: the log may be ahead of it after a crash, or new."""
        own = [entry for entry in self.entries.all() if (entry.store, entry.key) != (META, _LOGGED)]
        if own and self.entries.get(META, _LOGGED) is None:
            # There was no log when it was changed last, or the log got only a part of it: all of it is told anew.
            log.begin_anew()
            for start in range(0, len(own), _ENTRIES_PER_RECORD):
                log.append([EntryChange(entry.store, entry.key, None, entry.value)
                            for entry in own[start:start + _ENTRIES_PER_RECORD]])
            self.set_entries((), log.writer.written_version)
        written = log.writer.written_version
        if self.logged_version > written:
            raise CorruptionError(f"the log in {log.directory} ends at version {written}, but the catalog {self._path} "
                                  f"has its changes up to {self.logged_version}", hint="restore the log from a copy")
        self.catch_up()

    def catch_up(self) -> None:
        """Applies what is in the log, and on disk for good there, but not in the catalog."""
        if self.log is None or self.logged_version == self.log.writer.written_version:
            return
        with self.lock:
            for version, changes in self.log.changes_behind(self.logged_version):
                self.set_entries(changes, version)

    def set_entries(self, changes: Iterable[EntryChange], version: int) -> None:
        """Stores entries as they are after changes, which are all there are up to a version of the log."""
        with self.lock:
            with self._writing() as transaction:
                for change in changes:
                    if change.store not in self._stores:
                        raise CorruptionError(f"the log of the catalog {self._path} has {change.store.decode()}",
                                              hint="use the newer version of Penstock that wrote it")
                    set_entry(transaction, self._stores[change.store], change.key, change.after)
                set_entry(transaction, self._stores[META], _LOGGED, codec.seal(version))
            self.counters = self._read_counters()


def open_entries(path: Path) -> StoredEntries:
    """Opens the catalog for reading, in another process than the engine's; one thread at a time, one in a process.

    Raises NotFoundError if there is none, StorageError if it can't be opened.
    """
    if not path.is_dir():
        raise NotFoundError(f"{path.parent} is not a data directory")
    try:
        env = lmdb.open(str(path), readonly=True, max_dbs=len(_STORES), subdir=True, mode=FILE_MODE)
        return StoredEntries(env, dict(_present(env)), path)
    except lmdb.Error as error:
        raise StorageError(f"the catalog {path} cannot be opened: {error}",
                           hint="readers need write access to its lock.mdb") from error


def _present(env: lmdb.Environment) -> Iterator[tuple[bytes, Any]]:
    for name in _STORES:
        try:
            yield name, env.open_db(name, create=False)
        except lmdb.NotFoundError:
            continue  # no engine that knows of it has opened the directory yet


def write_entries(path: Path, entries: Iterable[CatalogEntry]) -> None:
    """Makes a new catalog of entries as they are stored."""
    make_private(path)
    with lmdb.open(str(path), map_size=MAP_BYTES, max_dbs=len(_STORES), subdir=True, mode=FILE_MODE) as env:
        stores = {name: env.open_db(name) for name in _STORES}
        with env.begin(write=True) as transaction:
            for entry in entries:
                transaction.put(entry.key, entry.value, db=stores[entry.store])
