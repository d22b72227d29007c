"""Keeps the views for other DuckDB processes current: marks what changed, and writes it in the background."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

import pyarrow as pa

from penstock.common.clock import Clock
from penstock.common.errors import PenstockError, StorageError
from penstock.common.fs import Fs
from penstock.common.paths import DataPaths
from penstock.mnode.catalog.background_keeper import PATIENCE_S, Keeper
from penstock.mnode.catalog.catalog import Catalog
from penstock.sql.schema import Table
from penstock.sql.types import Kind
from penstock.vnode.read.views import ViewTable, write_children, write_views

_IDLE_FACTOR = 10.0


class ViewKeeper(Keeper):
    """Writes views and lists of child tables at most once per interval. Thread-safe."""

    def __init__(
        self, catalog: Catalog, defining: AbstractContextManager[object], paths: DataPaths, fs: Fs, clock: Clock,
        interval_s: float, grace_s: float,
    ) -> None:
        """They are written again no sooner than after `interval_s`, and ten times as long as it took: a list tells of
        all child tables, of which there may be a million. `grace_s`: how long readers that have begun may still need
        the list of a table that is gone. `defining` is held while tables change: then the catalog has what vnodes, or
        the lists, don't have yet.
        """
        super().__init__("the views for DuckDB", self.refresh, clock, interval_s, idle_factor=_IDLE_FACTOR,
                         patience_s=lambda: grace_s if self._gone_since else PATIENCE_S)
        self._catalog = catalog
        self._defining = defining
        self._paths = paths
        self._fs = fs
        self._grace_s = grace_s
        self._gone_since: dict[int, float] = {}
        self._lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._schema_dirty = False
        self._dirty_children: set[int] = set()
        self._written_children: set[int] = set()

    def start(self) -> None:
        """Starts the thread that writes; everything counts as changed, since a crash may have kept it from a write."""
        with self._lock:
            self._schema_dirty = True
            for database in self._catalog.databases():
                self._dirty_children |= {table.uid for table in self._catalog.tables(database.name, "super")}
        super().start()

    def schema_changed(self) -> None:
        """Tables were created, altered or dropped."""
        with self._lock:
            self._schema_dirty = True
        self.wake()

    def children_changed(self, table_uid: int) -> None:
        """Child tables of a super table were created, altered or dropped."""
        with self._lock:
            self._dirty_children.add(table_uid)
        self.wake()

    def refresh(self) -> None:
        """Writes what changed, now. Raises `StorageError`; then it stays marked."""
        with self._write_lock:
            with self._defining, self._lock:
                schema_dirty, self._schema_dirty = self._schema_dirty, False
                children, self._dirty_children = self._dirty_children, set()
                tables = self._tables() if schema_dirty else None
            try:
                self._write(tables, children)
            except PenstockError:
                with self._lock:
                    self._schema_dirty |= schema_dirty
                    self._dirty_children |= children
                raise

    def _tables(self) -> list[Table]:
        return [table for database in self._catalog.databases() for kind in ("super", "normal")
                for table in self._catalog.tables(database.name, kind)]

    def _write(self, tables: list[Table] | None, children: set[int]) -> None:
        """Writes lists of child tables, and with `tables` the views of these."""
        children |= {table.uid for table in tables or ()
                     if table.kind == "super" and table.uid not in self._written_children}
        for uid in children:
            table = self._catalog.table_by_uid(uid)
            if table is not None:
                write_children(self._paths, uid, self._children_table(table), fs=self._fs)
                self._written_children.add(uid)
        if tables is not None:
            try:
                write_views(self._paths, [_view(table) for table in tables], fs=self._fs)
            except StorageError:
                if all(self._catalog.table_by_uid(table.uid) == table for table in tables):
                    raise
                self.schema_changed()  # a table or a column was dropped meanwhile: once more, without it
        self._remove_lists(look=tables is not None)

    def _remove_lists(self, *, look: bool) -> None:
        """Removes the lists of children of tables that are gone; with `look` it looks for them first."""
        now = self._clock.monotonic()
        if look:
            uids = {self._paths.uid_of_children(name) for name in self._fs.list(self._paths.children_lists)}
            gone = {uid for uid in uids if uid is not None and self._catalog.table_by_uid(uid) is None}
            self._gone_since = {uid: self._gone_since.get(uid, now) for uid in gone}
        for uid in [uid for uid, since in self._gone_since.items() if now - since >= self._grace_s]:
            self._fs.remove(self._paths.children(uid))
            self._written_children.discard(uid)
            del self._gone_since[uid]

    def _children_table(self, table: Table) -> pa.Table:
        children = self._catalog.children(table.uid)
        arrays = {"uid": pa.array([child.uid for child in children], pa.uint64()),
                  "name": pa.array([child.name for child in children], pa.string())}
        for place, tag in enumerate(table.tags):
            values = [child.tag_values[place] for child in children]
            array = pa.array(values, pa.int64() if tag.type.kind is Kind.TIMESTAMP else tag.type.arrow())
            arrays[stored_tag(tag.physical)] = array.cast(tag.type.arrow())
        return pa.table(arrays)


def stored_tag(physical: str) -> str:
    """Returns the name of a tag's column in the list of child tables."""
    return f"tag_{physical}"


def _view(table: Table) -> ViewTable:
    return ViewTable(
        database=table.database,
        name=table.name,
        table_uid=table.uid,
        columns=tuple((column.name, column.physical) for column in table.columns),
        keys=tuple(column.physical for column in (table.time_column, table.key_column) if column is not None),
        tags=tuple((tag.name, stored_tag(tag.physical)) for tag in table.tags),
        kind="super" if table.kind == "super" else "normal",
    )
