"""The users and what they were granted, the connections to external servers, and the users' functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from penstock.common.errors import AlreadyExistsError, NotFoundError
from penstock.mnode.catalog.catalog_records import ConnectionRecord, UserRecord
from penstock.mnode.catalog.catalog_store import CatalogStore, Transaction
from penstock.mnode.catalog.entry_kinds import CONNECTION, FUNCTION, USER, NamedRepository
from penstock.sql.rights import GrantObject
from penstock.sql.schema import UserFunction


class UserRepository(NamedRepository[UserRecord]):
    """All users. `lost`: the catalog was built again without its users."""

    lost = False

    def __init__(self, store: CatalogStore) -> None:
        super().__init__(store, USER, ())

    @property
    def are_lost(self) -> bool:
        """Whether the catalog was built again without its users, and has none since."""
        return self.lost and not self.all()

    def drop(self, user: UserRecord) -> None:
        with self._store.transaction() as write:
            self._delete(write, user)

    def take_grants(self, write: Transaction, gone: Callable[[GrantObject], bool]) -> None:
        """Takes grants on what is dropped from all users, as part of a transaction.

        Who makes something of the same name later must not find that others have rights on it.
        """
        for user in self.all():
            left = tuple(right for right in user.granted if not gone(right.on))
            if left != user.granted:
                self._put(write, replace(user, granted=left))


class ConnectionRepository(NamedRepository[ConnectionRecord]):
    """All connections to external servers."""

    def __init__(self, store: CatalogStore, known: Iterable[ConnectionRecord], users: UserRepository) -> None:
        super().__init__(store, CONNECTION, known)
        self._users = users

    def names(self) -> list[str]:
        return [record.connection.name for record in self.all()]

    def drop(self, record: ConnectionRecord) -> None:
        name = record.connection.name
        with self._store.transaction() as write:
            self._delete(write, record)
            self._users.take_grants(write, lambda on: on.kind == "connection" and on.name == name)


class FunctionRepository(NamedRepository[UserFunction]):
    """All users' functions."""

    def __init__(self, store: CatalogStore, known: Iterable[UserFunction]) -> None:
        super().__init__(store, FUNCTION, known)

    def create(self, function: UserFunction, *, replacing: bool = False) -> UserFunction:
        """Stores a user's function; its `uid` is assigned here. `replacing`: in place of one of the same name."""
        with self._store.transaction() as write:
            if not replacing and self.named(function.name) is not None:
                raise AlreadyExistsError(f"function {function.name} already exists")
            stored = replace(function, uid=write.take_ids())
            self._put(write, stored)
        return stored

    def drop(self, name: str) -> UserFunction:
        with self._store.transaction() as write:
            function = self.named(name)
            if function is None:
                raise NotFoundError(f"function {name} does not exist")
            self._delete(write, function)
        return function
