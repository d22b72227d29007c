"""Seams at two libraries. LMDB is the real one, with a seam at its commits: a write may be refused there, or be the
last thing its process does; environments are known by process, so that they can be closed when it dies. DuckDB is the
real one, too, but all processes share one in-memory instance by connections of their own, since a start of it is slow.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import duckdb
import lmdb
import pytest

from penstock.mnode import catalog, queries
from penstock.tasks import compute, state_store


class DuckdbSeam:
    """Takes the place of the module `duckdb` where tasks and queries connect."""

    def __getattr__(self, name: str) -> Any:
        return getattr(duckdb, name)

    def connect(self, *arguments: Any, **options: Any) -> Any:
        return shared_duckdb().cursor()


@cache
def shared_duckdb() -> Any:
    """Returns the one instance of this process."""
    return duckdb.connect(":memory:", config={"threads": 1, "preserve_insertion_order": True})


class LmdbSeam:
    """Takes the place of the module `lmdb`. `before_commit` and `after_commit` may raise; `owner` names the process."""

    def __init__(self, owner: Callable[[], str], before_commit: Callable[[], None],
                 after_commit: Callable[[], None]) -> None:
        self._owner = owner
        self.before_commit = before_commit
        self.after_commit = after_commit
        # Weak, so that what nobody holds any more is closed as it would be without this.
        self._open: dict[str, list[weakref.ref[_Environment]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(lmdb, name)

    def open(self, *arguments: Any, **options: Any) -> Any:
        environment = _Environment(self, lmdb.open(*arguments, **options, sync=False))
        self._open.setdefault(self._owner(), []).append(weakref.ref(environment))
        return environment

    def kill(self, process: str) -> None:
        """Closes what the process had open; what it hasn't committed is gone."""
        for reference in self._open.pop(process, []):
            environment = reference()
            if environment is not None:
                environment.close()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Has catalog and task state use this instead of lmdb."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(catalog, "lmdb", self)
            patch.setattr(state_store, "lmdb", self)
            patch.setattr(compute, "duckdb", DuckdbSeam())
            patch.setattr(queries, "duckdb", DuckdbSeam())
            yield


class _Environment:
    def __init__(self, seam: LmdbSeam, inner: Any) -> None:
        self._seam = seam
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def begin(self, *arguments: Any, **options: Any) -> Any:
        transaction = self._inner.begin(*arguments, **options)
        return _Transaction(self._seam, transaction) if options.get("write") else transaction


class _Transaction:
    def __init__(self, seam: LmdbSeam, inner: Any) -> None:
        self._seam = seam
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __enter__(self) -> _Transaction:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self._inner.abort()
        else:
            self.commit()

    def commit(self) -> None:
        try:
            self._seam.before_commit()
        except BaseException:
            self._inner.abort()
            raise
        self._inner.commit()
        self._seam.after_commit()
