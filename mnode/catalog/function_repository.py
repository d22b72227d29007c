"""The users' functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter

from penstock.common.errors import AlreadyExistsError, NotFoundError
from penstock.mnode.catalog import catalog_codec as codec
from penstock.mnode.catalog.catalog_store import FUNCTIONS, CatalogStore
from penstock.sql.schema import UserFunction


class FunctionRepository:
    """All users' functions, in memory and durable."""

    def __init__(self, store: CatalogStore, known: Iterable[UserFunction]) -> None:
        self._store = store
        self._functions = {function.name: function for function in known}

    def all(self) -> tuple[UserFunction, ...]:
        """Returns the functions, in order of creation."""
        with self._store.lock:
            return tuple(sorted(self._functions.values(), key=attrgetter("uid")))

    def named(self, name: str) -> UserFunction | None:
        return self._functions.get(name)

    def create(self, function: UserFunction, *, replacing: bool = False) -> UserFunction:
        """Stores a user's function; its `uid` is assigned here. `replacing`: in place of one of the same name."""
        with self._store.transaction() as write:
            if not replacing and function.name in self._functions:
                raise AlreadyExistsError(f"function {function.name} already exists")
            stored = replace(function, uid=write.take_ids())
            write.put(FUNCTIONS, stored.name.encode(), codec.function_to_json(stored))
            write.afterwards(lambda: self._functions.update({stored.name: stored}))
        return stored

    def drop(self, name: str) -> UserFunction:
        with self._store.transaction() as write:
            function = self._functions.get(name)
            if function is None:
                raise NotFoundError(f"function {name} does not exist")
            write.delete(FUNCTIONS, name.encode())
            write.afterwards(lambda: self._forget(name))
        return function

    def _forget(self, name: str) -> None:
        del self._functions[name]
