"""Seams at two libraries. LMDB is the real one, with a seam at its commits: a write may be refused there, or be the
last thing its process does; environments are known by process, so that they can be closed when it dies. DuckDB is the
real one, too, but all processes share one in-memory instance by connections of their own, since a start of it is slow;
what tasks compute with it is remembered, since histories ask the same of it again and again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import duckdb
import lmdb
import pyarrow as pa
import pytest

from penstock.mnode.catalog import catalog_store
from penstock.mnode.query import query_statements
from penstock.tasks.compute import duckdb_computer
from penstock.tasks.state import state_database

_ANSWERS_KEPT = 20_000
_Values = tuple[tuple[str, int], ...]
_Question = tuple[str, _Values, tuple[tuple[str, bytes], ...]]


class RememberingConnection:
    """A connection that asks DuckDB only what it wasn't asked before, of the same tables, in any history.

    The SQL of tasks is a function of the tables that are registered.
    """

    _answers: ClassVar[dict[_Question, pa.Table]] = {}

    def __init__(self) -> None:
        self._tables: dict[str, Any] = {}
        self._prepared: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a task uses {name} of DuckDB, which this connection doesn't know")

    def register(self, name: str, table: Any) -> None:
        self._tables[name] = table

    def unregister(self, name: str) -> None:
        del self._tables[name]

    def execute(self, text: str, params: dict[str, int] | None = None) -> _Answer | None:
        word, _, rest = text.partition(" ")
        match word:
            case "PREPARE":
                name, _, statement = rest.partition(" AS ")
                self._prepared[name] = statement
                return None
            case "DEALLOCATE":
                del self._prepared[rest]
                return None
            case "EXECUTE":
                return self.sql(self._prepared[rest])
        return self.sql(text, params)

    def sql(self, text: str, params: dict[str, int] | None = None) -> _Answer:
        return _Answer(self, text, tuple(sorted((params or {}).items())))

    def answer(self, text: str, values: _Values) -> pa.Table:
        """Returns the rows that DuckDB gives; raises what it raises."""
        tables = {name: table for name, place in self._tables.items() if (table := _table_of(place)) is not None}
        question = text, values, tuple(sorted((name, _content(table)) for name, table in tables.items()))
        found = self._answers.get(question)
        if found is None:
            with shared_duckdb().cursor() as connection:
                for name, table in tables.items():
                    connection.register(name, table)
                found = connection.sql(text, params=dict(values) or None).to_arrow_table()
            if len(self._answers) >= _ANSWERS_KEPT:
                self._answers.clear()
            self._answers[question] = found
        return found

    def close(self) -> None:
        self._tables.clear()


def _table_of(place: Any) -> pa.Table | None:
    """Returns what was registered: a table, or what stands in the place of the one that is there now, if one is."""
    return place if isinstance(place, pa.Table) else place.table


def _content(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@dataclass(frozen=True)
class _Answer:
    connection: RememberingConnection
    text: str
    values: _Values

    def to_arrow_table(self) -> pa.Table:
        return self.connection.answer(self.text, self.values)


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
            patch.setattr(catalog_store, "lmdb", self)
            patch.setattr(state_database, "lmdb", self)
            patch.setattr(duckdb_computer, "closed_duckdb", lambda *bounds: RememberingConnection())
            patch.setattr(duckdb_computer, "small_duckdb", RememberingConnection)
            patch.setattr(query_statements, "closed_duckdb", lambda *bounds: shared_duckdb().cursor())
            yield


class _Wrapped:
    """Something of lmdb's with the seam around it: what isn't there is the library's."""

    def __init__(self, seam: LmdbSeam, inner: Any) -> None:
        self._seam = seam
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Environment(_Wrapped):
    def begin(self, *arguments: Any, **options: Any) -> Any:
        transaction = self._inner.begin(*arguments, **options)
        return _Transaction(self._seam, transaction) if options.get("write") else transaction


class _Transaction(_Wrapped):
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
