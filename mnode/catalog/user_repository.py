"""The users and what they were granted, and the connections to external servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import attrgetter

from penstock.common.connection import ExternalConnection
from penstock.mnode.catalog import catalog_codec as codec
from penstock.mnode.catalog.catalog_records import ConnectionRecord, UserRecord
from penstock.mnode.catalog.catalog_store import CONNECTIONS, USERS, CatalogStore, Transaction
from penstock.sql.rights import GrantObject


class UserRepository:
    """All users, in memory and durable."""

    def __init__(self, store: CatalogStore) -> None:
        self._store = store
        self._users: dict[str, UserRecord] = {}
        self._in_order: tuple[UserRecord, ...] = ()  # each request of a client asks for it
        self._lost = False

    def become(self, known: Iterable[UserRecord], *, lost: bool) -> None:
        """Has these users from now on. `lost`: the catalog was built again without its users."""
        self._users = {user.name: user for user in known}
        self._lost = lost
        self._order()

    def all(self) -> tuple[UserRecord, ...]:
        """Returns the users, in order of creation."""
        return self._in_order

    def named(self, name: str) -> UserRecord | None:
        return self._users.get(name)

    @property
    def are_lost(self) -> bool:
        """Whether the catalog was built again without its users, and has none since."""
        return self._lost and not self._users

    def put(self, user: UserRecord) -> None:
        """Stores a new user, or a known one with another password, role or grants."""
        with self._store.transaction() as write:
            self._put(write, user)

    def drop(self, name: str) -> None:
        with self._store.transaction() as write:
            write.delete(USERS, name.encode())
            write.afterwards(lambda: self._forget(name))

    def take_grants(self, write: Transaction, gone: Callable[[GrantObject], bool]) -> None:
        """Takes grants on what is dropped from all users, as part of a transaction.

        Who makes something of the same name later must not find that others have rights on it.
        """
        for user in self._users.values():
            left = tuple(right for right in user.granted if not gone(right.on))
            if left != user.granted:
                self._put(write, replace(user, granted=left))

    def _put(self, write: Transaction, user: UserRecord) -> None:
        write.put(USERS, user.name.encode(), codec.dataclass_to_json(user))
        write.afterwards(lambda: self._remember(user))

    def _remember(self, user: UserRecord) -> None:
        self._users[user.name] = user
        self._order()

    def _forget(self, name: str) -> None:
        del self._users[name]
        self._order()

    def _order(self) -> None:
        self._in_order = tuple(sorted(self._users.values(), key=attrgetter("created")))


class ConnectionRepository:
    """All connections to external servers, in memory and durable."""

    def __init__(self, store: CatalogStore, known: Iterable[ConnectionRecord], users: UserRepository) -> None:
        self._store = store
        self._users = users
        self._connections = {record.connection.name: record for record in known}

    def all(self) -> tuple[ConnectionRecord, ...]:
        """Returns the connections, in order of creation."""
        with self._store.lock:
            return tuple(sorted(self._connections.values(), key=attrgetter("created")))

    def record(self, name: str) -> ConnectionRecord | None:
        return self._connections.get(name)

    def named(self, name: str) -> ExternalConnection | None:
        record = self._connections.get(name)
        return None if record is None else record.connection

    def names(self) -> list[str]:
        return list(self._connections)

    def put(self, record: ConnectionRecord) -> None:
        """Stores a new connection, or a known one with other options."""
        name = record.connection.name
        with self._store.transaction() as write:
            write.put(CONNECTIONS, name.encode(), codec.dataclass_to_json(record))
            write.afterwards(lambda: self._connections.update({name: record}))

    def drop(self, name: str) -> None:
        with self._store.transaction() as write:
            write.delete(CONNECTIONS, name.encode())
            self._users.take_grants(write, lambda on: on.kind == "connection" and on.name == name)
            write.afterwards(lambda: self._forget(name))

    def _forget(self, name: str) -> None:
        del self._connections[name]
