"""The kinds of entries whose records are written as typed JSON: where each lies, by what key, and in what order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

from penstock.common.typed_json import TypedJson
from penstock.mnode.catalog import catalog_store as stores
from penstock.mnode.catalog.catalog_codec import key
from penstock.mnode.catalog.catalog_records import (
    ConnectionRecord,
    IngestRecord,
    Snode,
    StreamRecord,
    Unfinished,
    UserRecord,
)
from penstock.mnode.catalog.catalog_store import CatalogStore, Transaction
from penstock.sql.schema import Database, UserFunction, View

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class EntryKind(Generic[R]):
    """`store` has the entries, `key` is that of a record's, and `order` what records are sorted by: their age."""

    store: bytes
    json: TypedJson[R]
    key: Callable[[R], bytes]
    order: Callable[[R], Any]


def _by_id(record: Any) -> bytes:
    return key(record.id)


def _by_name(record: Any) -> bytes:
    name: str = record.name
    return name.encode()


DATABASE = EntryKind(stores.DATABASES, TypedJson(Database, newer=("origin",)), _by_name, attrgetter("vgroup_ids"))
VIEW = EntryKind(stores.VIEWS, TypedJson(View), lambda view: key(view.uid), attrgetter("uid"))
STREAM = EntryKind(stores.STREAMS, TypedJson(StreamRecord), _by_id, attrgetter("id"))
INGEST = EntryKind(stores.INGESTS, TypedJson(IngestRecord), _by_id, attrgetter("id"))
SNODE = EntryKind(stores.SNODES, TypedJson(Snode), _by_id, attrgetter("id"))
FUNCTION = EntryKind(stores.FUNCTIONS, TypedJson(UserFunction), _by_name, attrgetter("uid"))
USER = EntryKind(stores.USERS, TypedJson(UserRecord), _by_name, attrgetter("created_ms", "name"))
CONNECTION = EntryKind(stores.CONNECTIONS, TypedJson(ConnectionRecord), lambda one: one.connection.name.encode(),
                       attrgetter("created_ms", "connection.name"))
UNFINISHED = EntryKind(stores.UNFINISHED, TypedJson(Unfinished), lambda one: f"{one.kind}/{one.id}".encode(),
                       attrgetter("kind", "id"))


class Repository(Generic[R]):
    """All records of a kind, in memory and durable. Readers wait for nobody."""

    def __init__(self, store: CatalogStore, kind: EntryKind[R], known: Iterable[R]) -> None:
        self._store = store
        self._kind = kind
        self.become(known)

    def become(self, known: Iterable[R]) -> None:
        """Has these records from now on, which are stored already."""
        self._records = {self._kind.key(record): record for record in known}
        self._sort()

    def all(self) -> tuple[R, ...]:
        """Returns the records, in order of creation."""
        return self._in_order

    def put(self, record: R) -> None:
        """Stores a new record, or another one in the place of one with its key."""
        with self._store.transaction() as write:
            self._put(write, record)

    def _put(self, write: Transaction, record: R) -> None:
        found = self._kind.key(record)
        write.put(self._kind.store, found, self._kind.json.encode(record))
        write.afterwards(lambda: self._records.update({found: record}))
        write.afterwards(self._sort)

    def _delete(self, write: Transaction, record: R) -> None:
        found = self._kind.key(record)
        write.delete(self._kind.store, found)
        write.afterwards(lambda: self._forget(found))
        write.afterwards(self._sort)

    def _forget(self, found: bytes) -> None:
        self._records.pop(found, None)

    def _sort(self) -> None:
        self._in_order = tuple(sorted(self._records.values(), key=self._kind.order))


class NamedRepository(Repository[R]):
    """Does so where records are found by their names."""

    def named(self, name: str) -> R | None:
        return self._records.get(name.encode())
