"""A table as another process than the engine's reads it: its rows as of now or of a cut, or what was written since one.

Columns have the names that SQL gives them, `tbname` and tags included. Only files are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.common.errors import InvalidStatementError, NotFoundError, UnavailableError
from penstock.common.fs import OsFs
from penstock.common.paths import DataPaths
from penstock.common.suggestions import did_you_mean
from penstock.mnode.catalog.catalog_reader import CatalogReader
from penstock.mnode.dnode.vnode_storage import vgroups_of
from penstock.mnode.query.table_scans import tag_array
from penstock.sql.cuts import Cut
from penstock.sql.schema import ChildTable, Column, Database, Table
from penstock.sql.types import DataType, Kind
from penstock.vnode.read.detached_reader import DetachedVnode
from penstock.vnode.store.sorted_keys import Index
from penstock.wal.record import TUID_COLUMN

TBNAME = "tbname"


@dataclass(frozen=True, slots=True)
class RowBounds:
    """Which rows are wanted: first_ts <= ts <= last_ts in units of the table's precision, of child tables `tuids`.

    None is no bound.
    """

    first_ts: int | None = None
    last_ts: int | None = None
    tuids: tuple[int, ...] | None = None


class DetachedTable:
    """One table of a data directory. Has nothing open between calls, so that it may be copied to other processes."""

    def __init__(self, root: Path, database: str, name: str) -> None:
        """Raises NotFoundError."""
        self._paths = DataPaths(root)
        with closing(self._catalog()) as catalog:
            found = catalog.database(database)
            if found is None:
                raise NotFoundError(f"database {database} does not exist in {root}")
            table = catalog.table(database, name)
            if table is None:
                raise NotFoundError(
                    f"table {database}.{name} does not exist",
                    hint=did_you_mean(name, (other.name for other in catalog.tables(database))))
        self._database = found
        self.table = table

    @property
    def columns(self) -> tuple[tuple[str, DataType], ...]:
        """Names and types of what `rows` gives: columns, and for super tables and their children `tbname` and tags."""
        columns = [(column.name, column.type) for column in self.table.columns]
        if self.table.tags and self.table.column(TBNAME) is None:
            columns.append((TBNAME, DataType(Kind.VARCHAR)))
        return (*columns, *((tag.name, tag.type) for tag in self.table.tags))

    @property
    def vgroup_ids(self) -> tuple[int, ...]:
        """The vgroups that may hold rows of the table."""
        return vgroups_of(self._database, self.table)

    def children(self) -> list[ChildTable]:
        """Returns the child tables of a super table as they are now."""
        with closing(self._catalog()) as catalog:
            return list(catalog.children(self.table.storage_uid))

    def cut(self) -> Cut:
        """Returns the cut of now. Raises NotFoundError if the table was dropped meanwhile."""
        with closing(self._catalog()) as catalog:
            database = self._still_there(catalog)
        return tuple((vgroup_id, self._vnode(vgroup_id).acknowledged_version()) for vgroup_id in database.vgroup_ids)

    def rows(
        self, vgroup_id: int, names: Sequence[str], as_of: int | None = None, bounds: RowBounds | None = None
    ) -> Iterator[pa.Table]:
        """Yields the columns `names` of a vnode's rows, as of a version (None: of now); see DetachedVnode."""
        wanted = bounds or RowBounds()
        tuids = (self.table.uid,) if self.table.kind == "child" else wanted.tuids
        batches = self._vnode(vgroup_id).rows(
            self.table.storage_uid, [column.physical for column in self._stored(names)], as_of=as_of,
            tuids=None if tuids is None else pa.array(tuids, pa.uint64()),
            first_ts=wanted.first_ts, last_ts=wanted.last_ts)
        return self._named(vgroup_id, batches, names)

    def written(self, vgroup_id: int, names: Sequence[str], first: int, last: int) -> Iterator[pa.Table]:
        """Yields the columns `names` of the rows that a vnode wrote behind version `first` up to `last`; see there."""
        stored = [column.physical for column in self._stored(names)]
        return self._named(
            vgroup_id, self._vnode(vgroup_id).written(self.table.storage_uid, stored, first, last), names)

    def version_behind(self, vgroup_id: int, first: int, last: int, rows: int) -> int:
        """Returns how far to read from version `first` for about `rows` rows, at most to `last`; see DetachedVnode."""
        return self._vnode(vgroup_id).version_behind(self.table.storage_uid, first, last, rows)

    def _catalog(self) -> CatalogReader:
        return CatalogReader.of_other_process(self._paths.catalog)

    def _vnode(self, vgroup_id: int) -> DetachedVnode:
        return DetachedVnode(self._paths.vnode(vgroup_id), vgroup_id, OsFs())

    def _stored(self, names: Sequence[str]) -> list[Column]:
        return [column for column in self.table.columns if column.name in names]

    def _named(
        self, vgroup_id: int, batches: Iterator[pa.RecordBatch], names: Sequence[str]
    ) -> Iterator[pa.Table]:
        known = {name for name, _ in self.columns}
        unknown = next((name for name in names if name not in known), None)
        if unknown is not None:
            raise InvalidStatementError(f"table {self.table.name} has no column {unknown}",
                                        hint=did_you_mean(unknown, known))
        with closing(self._catalog()) as catalog:
            labels = _Labels(catalog, self.table, vgroup_id)
            for batch in batches:
                found = labels.of(batch)
                if found is not None:
                    yield pa.table([found.column(name) for name in names], names=list(names))
            if self._still_there(catalog).vgroup_ids != self._database.vgroup_ids:
                raise UnavailableError(f"the vgroups of database {self._database.name} were split while it was read",
                                       hint="read it again")

    def _still_there(self, catalog: CatalogReader) -> Database:
        """Returns the database as it is now. Raises NotFoundError if it or the table was dropped."""
        table, name = self.table, self._database.name
        database = catalog.database(name)
        there = any(other.uid == table.storage_uid for other in catalog.tables(name)) and (
            table.kind != "child" or catalog.child(table.storage_uid, table.uid) is not None)
        if database is None or not there:
            raise NotFoundError(f"table {name}.{table.name} was dropped")
        return database


class _Labels:
    """Gives rows the names of their columns, and those of child tables their name and tags.

    Child tables are asked for when their first row comes: the catalog knows them before the log has rows of theirs.
    """

    def __init__(self, catalog: CatalogReader, table: Table, vgroup_id: int) -> None:
        self._catalog = catalog
        self._table = table
        self._vgroup_id = vgroup_id
        self._children: dict[int, ChildTable | None] = {}

    def of(self, batch: pa.RecordBatch) -> pa.Table | None:
        """Returns the rows of child tables that live in the vnode, not of dropped and moved ones; None if none do."""
        table = self._table
        if table.kind == "normal":
            return pa.table(self._columns(batch))
        tuids = batch.column(TUID_COLUMN).to_numpy()
        if table.kind == "child":
            mine = tuids == table.uid
            batch, tuids = batch.filter(pa.array(mine)), tuids[mine]
        unique, place = np.unique(tuids, return_inverse=True)
        children = [self._child(uid) for uid in unique.tolist()]
        there = np.array([child is not None for child in children], np.bool_)
        if not there.any():
            return None
        if not there.all():
            kept = there[place]
            batch, place = batch.filter(pa.array(kept)), (np.cumsum(there) - 1)[place[kept]]
        return pa.table({**self._labels([c for c in children if c is not None], place), **self._columns(batch)})

    def _child(self, uid: int) -> ChildTable | None:
        if uid not in self._children:
            child = self._catalog.child(self._table.storage_uid, uid)
            self._children[uid] = child if child is not None and child.vgroup_id == self._vgroup_id else None
        return self._children[uid]

    def _columns(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        stored = set(batch.schema.names)
        return {column.name: batch.column(column.physical) if column.physical in stored
                else pa.nulls(batch.num_rows, column.type.arrow()) for column in self._table.columns}

    def _labels(self, children: Sequence[ChildTable], place: Index) -> dict[str, pa.Array]:
        rows = pa.array(place)
        labels = {TBNAME: pa.array([child.name for child in children], pa.string()).take(rows)}
        for number, tag in enumerate(self._table.tags):
            values = tag_array(tag, [child.tag_values[number] for child in children])
            labels[tag.name] = values.cast(tag.type.arrow()).take(rows)
        return labels

