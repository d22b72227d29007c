"""Builds a lost catalog again: from the newest copy that can be read, and from what the vnodes know beyond it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.common.errors import CorruptionError
from penstock.common.fs import Fs
from penstock.common.paths import DataPaths, numbered
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_copies import copies, read_copy
from penstock.mnode.catalog.catalog_records import Rebuilt
from penstock.mnode.catalog.catalog_store import FIRST_UID, CatalogEntry, write_entries
from penstock.mnode.catalog.schema_repository import stable_vgroup
from penstock.mnode.catalog.vnode_descriptions import Description, read_description
from penstock.mnode.dnode.view_keeper import stored_tag
from penstock.sql.schema import ChildTable, Database, Table, TagValue
from penstock.tasks.protocol.child_records import BINARY, binary_tag, new_children
from penstock.vnode.repair.vnode_check import read_segment
from penstock.vnode.store import manifest as manifests
from penstock.wal.record import DamagedRecordError, MetaRecord, RowsRecord
from penstock.wal.segment import decode_segment_header, list_segments, segment_name


@dataclass(slots=True)
class Rebuild:
    """What was done. `base`: where it began; `lost`: what nothing tells any more."""

    base: str
    lost: str = ""


@dataclass(slots=True)
class _Known:
    """What the vnodes of all databases tell."""

    descriptions: dict[int, Description] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    newest_uid: int = 0


def rebuild_catalog(paths: DataPaths, fs: Fs, set_aside: Callable[[Path], Path]) -> Rebuild:
    """Puts a new catalog in the place of one that is missing, damaged or too old; the old one is set aside.

    Raises CorruptionError, and changes nothing that counts, if neither a copy nor a vnode tells what there was.
    """
    fresh = paths.root / "catalog.new"
    if fresh.exists():
        set_aside(fresh)  # of a rebuild that a crash has ended
    base, origin = _best(paths, fs)
    known = _known(paths, fs)
    if base is None and not known.descriptions:
        raise CorruptionError("there is no copy of the catalog, and the vnodes don't know their tables' names",
                              hint="restore the folder catalog from a copy")
    write_entries(fresh, base or [])
    catalog = Catalog(fresh)
    try:
        catalog.adopt(_rebuilt(paths, fs, catalog, known, whole=base is not None))
    finally:
        catalog.close()
    if paths.catalog.exists():
        set_aside(paths.catalog)
    fs.rename(fresh, paths.catalog)
    fs.fsync_dir(paths.root)
    if base is not None:
        return Rebuild(origin, "what changed after it was written, but for databases, tables and child tables")
    return Rebuild("what the vnodes know", "streams, ingests, views, functions, connections and users: nobody may "
                                           "connect over the network before CREATE USER")


def _best(paths: DataPaths, fs: Fs) -> tuple[list[CatalogEntry] | None, str]:
    """Returns the entries of the newest state of the catalog that can be read, and where they are from."""
    found: list[tuple[int, list[CatalogEntry], str]] = []
    if (paths.catalog / "data.mdb").is_file():
        try:
            catalog = Catalog(paths.catalog)
        except CorruptionError:
            pass  # told by the damage that is being repaired
        else:
            if not catalog.is_empty:
                found.append((catalog.generation, catalog.entries(), "the catalog that was there"))
            catalog.close()
    for name in copies(fs, paths):
        try:
            found.append((name.generation, read_copy(fs, paths, name), f"the copy {paths.catalog_copies / str(name)}"))
        except CorruptionError:
            continue  # an older one may be whole
        break
    if not found:
        return None, ""
    _, entries, origin = max(found, key=lambda one: one[0])
    return entries, origin


def _known(paths: DataPaths, fs: Fs) -> _Known:
    known = _Known()
    for vgroup_id in numbered(paths.vnodes, 10):
        try:
            description = read_description(fs, paths, vgroup_id)
        except CorruptionError:
            description = None  # other vnodes of the database have theirs
        if description is not None:
            known.descriptions[vgroup_id] = description
        uids = numbered(paths.store(vgroup_id) / "parts", 10)
        try:
            manifest = manifests.load(fs, paths.store(vgroup_id), vgroup_id)
        except CorruptionError:
            manifest = None
        for table in manifest.tables.values() if manifest is not None else ():
            uids += [table.table_uid, *(part.max_tuid for part in table.parts)]
        known.newest_uid = max([known.newest_uid, *uids])
        for record in _log(paths.wal(vgroup_id), fs):
            if isinstance(record, MetaRecord):
                known.records.append(record.body)
            elif isinstance(record, RowsRecord) and record.batch.num_rows:
                newest: int = pc.max(record.batch.column(0)).as_py() or 0
                known.newest_uid = max(known.newest_uid, newest)
    return known


def _log(directory: Path, fs: Fs) -> Iterator[Any]:
    """Yields the records of a log as far as each segment can be read."""
    for first in list_segments(fs, directory):
        data = fs.read(directory / segment_name(first))
        try:
            _, crc = decode_segment_header(data, directory / segment_name(first))
            for _, _, record in read_segment(data, crc):
                yield record
        except DamagedRecordError:
            continue  # what is told of the log is told when it is checked


def _rebuilt(paths: DataPaths, fs: Fs, base: Catalog, known: _Known, *, whole: bool) -> Rebuilt:
    databases: dict[str, Database] = {}
    tables: dict[int, tuple[Table, tuple[str, ...]]] = {}
    newer = [(vgroup_id, one) for vgroup_id, one in known.descriptions.items()
             if not whole or one.generation > base.generation]
    for name in {one.database.name for _, one in newer}:
        of_it = [(vgroup_id, one) for vgroup_id, one in newer if one.database.name == name]
        _, latest = max(of_it, key=lambda pair: pair[1].generation)
        databases[name] = latest.database
        tables |= {table.uid: (table, used) for table, used in latest.tables if table.kind == "super"}
        tables |= {table.uid: (table, used) for vgroup_id, one in of_it if vgroup_id in latest.database.vgroup_ids
                   for table, used in one.tables if table.vgroup_id == vgroup_id}
    supers = {table.uid: (table, databases[table.database]) for table, _ in tables.values() if table.kind == "super"}
    for database in base.databases():
        if database.name not in databases:
            supers |= {table.uid: (table, database) for table in
                       (*base.tables(database.name, "super"), *base.staged_tables(database.name))
                       if table.kind == "super"}
    children = {uid: _children(paths, base, table, database, known.records)
                for uid, (table, database) in supers.items()}
    streams = numbered(paths.streams, 16)
    reserved = [database.origin.uids[1] for database in (*databases.values(), *base.databases())
                if database.origin is not None and database.origin.uids is not None]
    newest = max([known.newest_uid, FIRST_UID - 1, *streams, *tables, *reserved,
                  *(uid for kept in children.values() for uid in kept)])
    return Rebuilt(
        list(databases.values()), list(tables.values()), {uid: list(kept.values()) for uid, kept in children.items()},
        next_id=max(base.next_id, newest + 1),
        next_vgroup=max([base.next_vgroup, *(one + 1 for one in numbered(paths.vnodes, 10))]),
        generation=max([base.generation, *(one.generation for one in known.descriptions.values()),
                        *(name.generation for name in copies(fs, paths))]),
        users_lost=not whole)


def _children(paths: DataPaths, base: Catalog, table: Table, database: Database, records: Iterable[dict[str, Any]]
              ) -> dict[int, ChildTable]:
    """Returns the child tables of a super table: those known already, those in its list, and what the logs tell."""
    found = {child.uid: child for child in base.children(table.uid)} if base.table_by_uid(table.uid) else {}

    def keep(uid: int, name: str, tags: tuple[TagValue, ...]) -> None:
        if len(tags) == len(table.tags):
            created = found[uid].create_time_ms if uid in found else table.create_time_ms
            found[uid] = ChildTable(uid, name, stable_vgroup(database, name), tags, created)

    for uid, name, tags in _listed(paths.children(table.uid), table):
        keep(uid, name, tags)
    for body in records:
        if body.get("table_uid") != table.uid:
            continue
        if body["op"] == "drop_children":
            for uid in body["children"]:
                found.pop(uid, None)
        elif body["op"] in ("create_children", "set_tags"):
            for uid, name, values in _told(body):
                keep(uid, name, tuple(
                    binary_tag(value) if tag.type.kind in BINARY else value
                    for tag, value in zip(table.tags, values, strict=False)))
    placed = {uid: ChildTable(uid, child.name, stable_vgroup(database, child.name), child.tag_values,
                              child.create_time_ms) for uid, child in found.items()}
    by_name = {child.name: uid for uid, child in sorted(placed.items())}  # a name that came again is the newer table's
    return {uid: child for uid, child in placed.items() if by_name[child.name] == uid}


def _told(body: dict[str, Any]) -> Iterable[tuple[int, str, Sequence[Any]]]:
    """Returns uid, name and tag values of the child tables that a META record tells of."""
    if body["op"] == "set_tags":
        return [body["child"]]
    return new_children(body).rows()


def _listed(path: Path, table: Table) -> list[tuple[int, str, tuple[TagValue, ...]]]:
    """Returns the children in the list that the views read, or none if it can't be read."""
    try:
        listed = pq.read_table(path)
    except (OSError, pa.ArrowInvalid):
        return []
    columns: list[list[Any]] = []
    for tag in table.tags:
        name = stored_tag(tag.physical)
        if name not in listed.column_names:
            columns.append([None] * listed.num_rows)
            continue
        column = listed.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        columns.append(column.to_pylist())
    return list(zip(listed.column("uid").to_pylist(), listed.column("name").to_pylist(),
                    zip(*columns, strict=True) if columns else [()] * listed.num_rows, strict=True))
