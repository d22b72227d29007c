"""Base tables as relations that DuckDB reads: rows of vnode snapshots, with names and tags of child tables."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.name_lookup import require_database
from penstock.mnode.dnode.stream_cuts import check_cuts
from penstock.mnode.dnode.value_lookup import is_key, rows_having
from penstock.mnode.dnode.vnode_storage import Storage, vgroups_of
from penstock.mnode.query.external_tables import ExternalTables
from penstock.planner.duckdb_sql.quoting import for_duckdb, quote_name, quote_stored
from penstock.planner.logical.operators import ROWS, TABLE_UID, Scan
from penstock.sql.cuts import Cut
from penstock.sql.schema import ChildTable, Column, Session, Table
from penstock.sql.types import Kind
from penstock.vnode.read.row_places import Rows, Values, values_array
from penstock.vnode.read.snapshot import RowCount, Snapshot, SnapshotTooOldError
from penstock.vnode.read.snapshot_sql import epochs
from penstock.vnode.store.memtable import VERSION_COLUMN

SMALL_ROWS = 200_000
"""Up to so many rows are gathered as Arrow; for more, DuckDB reads the Parquet parts itself."""

_SEARCHED_MAX = 2_000_000
"""Among up to so many rows those with some values are searched for here, where what is read of parts is kept."""

FEW_TABLES = 1
"""The rows of so many child tables are gathered, however many the super table has."""

Among = Mapping[str, Mapping[str, Sequence[pa.Array]]]
"""By scan and column, which isn't a tag: values, of which its rows have one in each such column."""

_TRIES = 8
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ScanRelation:
    """A relation for one `Scan`: `sql` is a SELECT over `tables`, which must be registered by these names first.

    `holds` keeps files alive that the SELECT reads, until it was executed.
    """

    sql: str
    tables: dict[str, pa.Table]
    holds: tuple[object, ...] = field(default=(), repr=False)


class SystemRows(Protocol):
    """Who has the rows of system tables."""

    def read(
        self, database: str, name: str, columns: Sequence[str] | None = None, reader: Session | None = None
    ) -> pa.Table:
        """Returns the rows as they are now; TIMESTAMP columns are Arrow timestamps in ms.

        `columns`: only these, in this order. `reader`: who may see what; None sees everything.
        """
        ...


class GivenRows(Protocol):
    """Rows of a table that are not stored yet."""

    def rows(self, values: Values | None, /) -> pa.RecordBatch:
        """Returns all rows, as they are to be stored, or those that have some values in columns."""
        ...


@dataclass(frozen=True, slots=True)
class _Taken:
    """What scans read, as of one cut: snapshots by scan, and the rows of scans that take the newest ones only.

    `instead`: rows, as they are stored, of tables that are read as if they held these. `among`: by scan, which rows of
    its table alone it gives.
    """

    instead: Mapping[int, GivenRows] = field(default_factory=dict)
    snapshots: dict[str, list[Snapshot]] = field(default_factory=dict)
    newest: dict[str, ScanRelation] = field(default_factory=dict)
    among: Mapping[str, Values] = field(default_factory=dict)


class Scans:
    """Gives relations as of now: those of one query are of one cut through all vnodes that it reads."""

    def __init__(
        self, catalog: Catalog, storage: Storage, system_tables: SystemRows, external_tables: ExternalTables,
        small_rows: int = SMALL_ROWS
    ) -> None:
        self._catalog = catalog
        self._storage = storage
        self._system_tables = system_tables
        self._external_tables = external_tables
        self._small_rows = small_rows

    def seen_by(
        self, session: Session, scans: Sequence[Scan], instead: Mapping[int, GivenRows] | None = None
    ) -> ScansOf:
        """Returns the scans of a query as a session's user may see them, as of now; `instead`: see `as_of`."""
        return ScansOf(self, session, self._take(scans, instead or {}))

    def as_of(
        self, session: Session, scans: Sequence[Scan], versions: Mapping[int, int],
        instead: Mapping[int, GivenRows],
    ) -> ScansOf:
        """Returns the scans of a query as of a cut that the caller has taken. Raises SnapshotTooOldError.

        `instead`: rows of tables, as they are stored, that are read as if they held these; it may be filled until the
        query runs.
        """
        with self._storage.looking():
            places = [(scan, self._vgroups(scan)) for scan in scans if _is_stored(scan)]
            return ScansOf(self, session, self._taken(places, versions, instead))

    def relation(self, scan: Scan, reader: Session | None = None) -> ScanRelation:
        """Returns the rows of a scan: `_tuid` (only of tables of our own) and `scan.columns`, TIMESTAMP as BIGINT.

        `reader` decides which rows system tables have; None sees all. Other tables must not be asked for by who may
        not read them.
        """
        return self.relation_of(scan, self._take([scan]), reader)

    def _take(self, scans: Sequence[Scan], instead: Mapping[int, GivenRows] | None = None) -> _Taken:
        """Returns what these scans read, all of it as of one cut; `instead`: see `as_of`."""
        stored = [scan for scan in scans if _is_stored(scan)]
        if not stored:
            return _Taken(instead or {})
        with self._storage.looking():
            places = [(scan, self._vgroups(scan)) for scan in stored]
            vgroups = {vgroup for _, places_of in places for vgroup in places_of}
            for _ in range(_TRIES):
                versions = self._storage.whole_writes.cut(vgroups)
                try:
                    return self._taken(places, versions, instead or {})
                except SnapshotTooOldError as error:
                    problem = error  # older versions of rows were collapsed since the cut was taken
            raise problem

    def _taken(
        self, places: Sequence[tuple[Scan, Sequence[int]]], versions: Mapping[int, int],
        instead: Mapping[int, GivenRows],
    ) -> _Taken:
        taken = _Taken(instead)
        known: dict[tuple[int, int], Snapshot] = {}
        for scan, vgroups in places:
            if scan.newest is not None and (newest := self._newest_rows(scan, vgroups, versions)) is not None:
                taken.newest[scan.name] = newest
                continue
            keys = [(vgroup, scan.table.storage_uid) for vgroup in vgroups]
            for key in keys:
                if key not in known:
                    known[key] = self._storage.snapshot(*key, as_of=versions.get(key[0]))
            taken.snapshots[scan.name] = [known[key] for key in keys]
        return taken

    def relation_of(self, scan: Scan, taken: _Taken, reader: Session | None) -> ScanRelation:
        """Returns the rows of a scan, see `relation`, out of what was taken."""
        table = scan.table
        if table.kind == "system":
            rows = self._system_tables.read(
                table.database, table.name, scan.columns or (table.columns[0].name,), reader)
            return _whole(epochs(rows))
        if table.kind == "external":
            wanted = [column for column in table.columns if column.name in scan.columns] or [table.columns[0]]
            return _whole(self._external_tables.rows(table, wanted))
        if scan.names:
            return _whole(_with_uids(self._catalog.children(table.uid), names=True))
        return self._stored(scan, table, taken)

    def _stored(self, scan: Scan, table: Table, taken: _Taken) -> ScanRelation:
        columns = _columns(scan)
        tags = [tag for tag in table.tags if tag.name in scan.columns]
        rows_relation = self._rows(scan, columns, taken)
        names_wanted = "tbname" in scan.columns and table.column("tbname") is None
        if not tags and not names_wanted:
            return rows_relation
        return self._with_children(rows_relation, scan, tags, names_wanted)

    def _vgroups(self, scan: Scan) -> tuple[int, ...]:
        """Returns where the rows of a scan are."""
        table, wanted = scan.table, _tuids(scan)
        vgroups = self._vgroups_of_children(table, wanted) if table.kind == "super" and wanted is not None else ()
        return vgroups or vgroups_of(require_database(table.database, self._catalog), table)

    def _rows(self, scan: Scan, columns: Sequence[Column], taken: _Taken) -> ScanRelation:
        wanted = _tuids(scan)
        tuids = None if wanted is None else pa.array(wanted, pa.uint64())
        if scan.cuts is not None:
            with self._storage.looking():
                return self._between_cuts(scan, scan.cuts, self._vgroups(scan), columns, tuids)
        values = taken.among.get(scan.name)
        if values is None and scan.keys is not None:
            key = scan.table.key_columns[0]
            values = {key.physical: pa.array(scan.keys, key.type.arrow())}
        if scan.table.storage_uid in taken.instead:
            return _given(scan, columns, taken.instead[scan.table.storage_uid].rows(values))
        if scan.name in taken.newest:
            return taken.newest[scan.name]
        snapshots = taken.snapshots[scan.name]
        if values is not None:
            if is_key(scan.table, values) or (
                    sum(snapshot.row_count_estimate for snapshot in snapshots) <= _SEARCHED_MAX):
                return _having(snapshots, scan, columns, tuids, values)
            return _chosen(self._in_place(snapshots, scan, columns, tuids), columns, values)
        if scan.counted:
            return self._counted(snapshots, scan, columns)
        return self._read(snapshots, scan, columns, tuids, wanted)

    def _read(
        self, snapshots: Sequence[Snapshot], scan: Scan, columns: Sequence[Column], tuids: pa.Array | None = None,
        wanted: Sequence[int] | None = None,
    ) -> ScanRelation:
        few = wanted is not None and len(wanted) <= FEW_TABLES
        if few or sum(snapshot.row_count_estimate for snapshot in snapshots) <= self._small_rows:
            return self._gathered(snapshots, scan, columns, tuids)
        return self._in_place(snapshots, scan, columns, tuids)

    def _vgroups_of_children(self, table: Table, uids: Sequence[int]) -> tuple[int, ...]:
        """Returns where these children of a super table are."""
        return tuple(sorted({child.vgroup_id for child in self._children(table, uids)}))

    def _children(self, table: Table, uids: Sequence[int]) -> list[ChildTable]:
        """Returns these children of a super table, without those that are gone by now."""
        found = (self._catalog.child_by_uid(table.uid, uid) for uid in uids)
        return [child for child in found if child is not None]

    def _gathered(
        self, snapshots: Sequence[Snapshot], scan: Scan, columns: Sequence[Column], tuids: pa.Array | None
    ) -> ScanRelation:
        physical = [column.physical for column in columns]
        pieces = [snapshot.to_arrow(physical, tuids, scan.first_ts, scan.last_ts) for snapshot in snapshots]
        rows = pa.concat_tables([piece.select(["_tuid", *physical]) for piece in pieces])
        return _within(scan, epochs(rows.rename_columns(["_tuid", *(column.name for column in columns)])))

    def _counted(self, snapshots: Sequence[Snapshot], scan: Scan, columns: Sequence[Column]) -> ScanRelation:
        """Returns rows that stand for those of whole parts, and the other rows for themselves."""
        found = [snapshot.counted(scan.first_ts, scan.last_ts) for snapshot in snapshots]
        told = _whole(_told([count for count, _ in found if count is not None], columns))
        rest = [snapshot for _, snapshot in found if snapshot.row_count_estimate]
        if not rest:
            return told
        others = self._read(rest, scan, columns)
        names = ", ".join(["_tuid", *(quote_name(column.name) for column in columns)])
        sql = f"{told.sql} UNION ALL SELECT {names}, 1::BIGINT FROM ({others.sql})"
        return ScanRelation(sql, {**told.tables, **others.tables}, others.holds)

    def _newest_rows(
        self, scan: Scan, vgroups: Sequence[int], versions: Mapping[int, int]
    ) -> ScanRelation | None:
        """Returns the newest row of each child table, and all rows of some, if that is cheaper than to read all."""
        columns, wanted = _columns(scan), _tuids(scan)
        tuids = None if wanted is None else np.unique(np.array(wanted, np.uint64))
        pieces = []
        for vgroup in vgroups:
            rows = self._storage.vnode(vgroup).reader.newest_rows(
                scan.table.storage_uid, [column.physical for column in columns], tuids, values=scan.newest == "values",
                as_of=versions.get(vgroup))
            if rows is None:
                return None
            pieces.append(rows)
        names = ["_tuid", *(column.name for column in columns)]
        return _whole(epochs(pa.concat_tables(pieces).rename_columns(names)))

    def _between_cuts(
        self, scan: Scan, cuts: tuple[Cut, Cut], vgroups: Sequence[int], columns: Sequence[Column],
        tuids: pa.Array | None,
    ) -> ScanRelation:
        """Returns the rows as of the second cut that were written behind the first."""
        check_cuts(require_database(scan.table.database, self._catalog).vgroup_ids, *cuts)
        physical = [column.physical for column in columns]
        first, last = dict(cuts[0]), dict(cuts[1])
        pieces = []
        for vgroup in vgroups:
            snapshot = self._storage.snapshot(vgroup, scan.table.storage_uid, as_of=last[vgroup])
            rows = snapshot.to_arrow(physical, tuids, scan.first_ts, scan.last_ts)
            written = pc.greater(rows.column(VERSION_COLUMN), pa.scalar(first[vgroup], pa.uint64()))
            pieces.append(rows.filter(written).select(["_tuid", *physical]))
        return _within(scan, epochs(pa.concat_tables(pieces).rename_columns(
            ["_tuid", *(column.name for column in columns)])))

    def _in_place(
        self, snapshots: Sequence[Snapshot], scan: Scan, columns: Sequence[Column], tuids: pa.Array | None
    ) -> ScanRelation:
        physical = [column.physical for column in columns]
        stored = {column.name: column.physical for column in columns}
        ranges = [(stored[name], first, last) for name, first, last in scan.ranges]
        relations = [snapshot.to_sql(physical, tuids, scan.first_ts, scan.last_ts, ranges, epochs=True)
                     for snapshot in snapshots]
        values = ", ".join(["_tuid", *(_named(column) for column in columns)])
        union = "\nUNION ALL\n".join(f"({relation.sql})" for relation in relations)
        tables = {name: table for relation in relations for name, table in relation.tables.items()}
        holds = tuple(hold for relation in relations for hold in (*relation.holds, relation))
        return ScanRelation(f"SELECT {values} FROM ({union}) AS r", tables, holds)

    def _with_children(
        self, rows: ScanRelation, scan: Scan, tags: Sequence[Column], names_wanted: bool
    ) -> ScanRelation:
        table = scan.table
        children: Sequence[ChildTable]
        if table.kind == "child":
            assert table.vgroup_id is not None
            children = (ChildTable(table.uid, table.name, table.vgroup_id, table.tag_values),)
        elif scan.tuids is not None:
            children = self._children(table, scan.tuids)
        else:
            children = self._catalog.children(table.uid)
        members = _with_uids(children, names=names_wanted)
        for tag in tags:
            place = table.tags.index(tag)
            members = members.append_column(tag.name, tag_array(tag, [child.tag_values[place] for child in children]))
        name = f"_children_{next(_numbers)}"
        joined = ", ".join(f"c.{quote_name(column)}" for column in members.column_names[1:])
        sql = f"SELECT r.*, {joined} FROM ({rows.sql}) AS r JOIN {name} AS c ON c._tuid = r._tuid"
        return ScanRelation(sql, {**rows.tables, name: for_duckdb(members)}, rows.holds)


@dataclass(frozen=True, slots=True)
class ScansOf:
    """The scans of one session."""

    scans: Scans
    session: Session
    taken: _Taken

    def relation(self, scan: Scan) -> ScanRelation:
        return self.scans.relation_of(scan, self.taken, self.session)

    def having(self, scans: Sequence[Scan], values: Among) -> ScansOf:
        """Returns the same scans, of which some give only rows with some values."""
        chosen = {scan.name: _typed(scan.table, values[scan.name]) for scan in scans if scan.name in values}
        return replace(self, taken=replace(self.taken, among=chosen))


def _is_stored(scan: Scan) -> bool:
    """Whether it reads rows of a table of our own as they are now."""
    return scan.table.kind not in ("system", "external") and not scan.names and scan.cuts is None


def _typed(table: Table, values: Mapping[str, Sequence[pa.Array]]) -> Values:
    """Returns values of columns as these store them, without those that they can't hold."""
    stored = {column.name: (column.physical, column.type.arrow()) for column in table.columns}
    return {stored[name][0]: values_array(some, stored[name][1]) for name, some in values.items()}


def _having(
    snapshots: Sequence[Snapshot], scan: Scan, columns: Sequence[Column], tuids: pa.Array | None, values: Values
) -> ScanRelation:
    """Returns those rows of a scan that have some values."""
    physical, time = [column.physical for column in columns], scan.table.time_column.physical
    rows = pa.concat_tables([
        rows_having(snapshot, scan.table, list(dict.fromkeys([time, *physical])), values) for snapshot in snapshots])
    if tuids is not None:
        rows = rows.filter(pc.is_in(rows.column(TABLE_UID), value_set=tuids))
    found = _in_time(scan, rows, time).select([TABLE_UID, *physical])
    return _within(scan, epochs(found.rename_columns([TABLE_UID, *(column.name for column in columns)])))


def _chosen(rows: ScanRelation, columns: Sequence[Column], values: Values) -> ScanRelation:
    """Returns those rows of a relation that have some values."""
    tables, conditions = dict(rows.tables), []
    for column in columns:
        if column.physical in values:
            name, wanted = f"_values_{next(_numbers)}", values[column.physical]
            tables[name] = for_duckdb(pa.table({"v": wanted.drop_null()}))
            found = f"r.{quote_name(column.name)} IN (SELECT v FROM {name})"
            conditions.append(f"({found} OR r.{quote_name(column.name)} IS NULL)" if wanted.null_count else found)
    return replace(rows, sql=f"SELECT * FROM ({rows.sql}) AS r WHERE {' AND '.join(conditions)}", tables=tables)


def _given(scan: Scan, columns: Sequence[Column], rows: pa.RecordBatch) -> ScanRelation:
    """Returns what a scan has of some rows, as a normal table stores them."""
    rows = _in_time(scan, rows, rows.schema.names[0])
    uids = pa.repeat(pa.scalar(scan.table.uid, pa.uint64()), rows.num_rows)
    found = pa.table([uids, *(rows.column(column.physical) for column in columns)],
                     names=[TABLE_UID, *(column.name for column in columns)])
    relation = _within(scan, epochs(found))
    return replace(relation, sql=f"SELECT *, 1::BIGINT AS {quote_name(ROWS)} FROM ({relation.sql})"
                   ) if scan.counted else relation


def _in_time(scan: Scan, rows: Rows, time: str) -> Rows:
    """Returns the rows within the bounds of a scan, by their column of time."""
    for compare, limit in ((pc.greater_equal, scan.first_ts), (pc.less_equal, scan.last_ts)):
        if limit is not None:
            rows = rows.filter(compare(rows.column(time).cast(pa.int64()), limit))
    return rows


def _columns(scan: Scan) -> list[Column]:
    """Returns the columns, not tags, that are read."""
    return [column for column in scan.table.columns if column.name in scan.columns]


def _tuids(scan: Scan) -> Sequence[int] | None:
    """Returns the child tables that are read, None for all there are."""
    return (scan.table.uid,) if scan.table.kind == "child" else scan.tuids


def tag_array(tag: Column, values: Sequence[object]) -> pa.Array:
    """Returns tag values as compiled SQL expects them: TIMESTAMP as integers."""
    return pa.array(values, pa.int64() if tag.type.kind is Kind.TIMESTAMP else tag.type.arrow())


def _with_uids(children: Sequence[ChildTable], *, names: bool) -> pa.Table:
    """Returns a row per child table: its uid, and if wanted its name."""
    arrays = {TABLE_UID: pa.array([child.uid for child in children], pa.uint64())}
    if names:
        arrays["tbname"] = pa.array([child.name for child in children], pa.string())
    return pa.table(arrays)


def _told(counts: Sequence[RowCount], columns: Sequence[Column]) -> pa.Table:
    """Returns two rows that stand for all that were counted, with the first and the last time; none for none."""
    times, rows = [], []
    if counts:
        times = [min(count.first_ts for count in counts), max(count.last_ts for count in counts)]
        rows = [sum(count.rows for count in counts) - 1, 1]
    if rows[:1] == [0]:
        times, rows = times[:1], [1]
    names = [TABLE_UID, *(column.name for column in columns), ROWS]
    return pa.table([pa.array([0] * len(rows), pa.uint64()), *(pa.array(times, pa.int64()) for _ in columns),
                     pa.array(rows, pa.int64())], names)


def _whole(rows: pa.Table) -> ScanRelation:
    name = f"_rows_{next(_numbers)}"
    return ScanRelation(f"SELECT * FROM {name}", {name: for_duckdb(rows)})


def _within(scan: Scan, rows: pa.Table) -> ScanRelation:
    """Returns the rows that lie in the scan's ranges."""
    whole = _whole(rows)
    conditions = " AND ".join(f"{quote_name(name)} {sign} {limit}" for name, first, last in scan.ranges
                              for sign, limit in ((">=", first), ("<=", last)) if limit is not None)
    return replace(whole, sql=f"{whole.sql} WHERE {conditions}") if conditions else whole


def _named(column: Column) -> str:
    return f"{quote_stored(column.physical)} AS {quote_name(column.name)}"
