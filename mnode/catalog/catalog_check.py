"""Checks whether a catalog belongs to a data directory, and finds what the catalog doesn't know. Changes nothing.

Ids of vgroups, tables, streams and ingests are given in ascending order and never again: files of an id that a catalog
has not given yet were made later than this state of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from penstock.common.errors import CorruptionError
from penstock.common.fs import Fs
from penstock.common.logging import logger
from penstock.common.paths import DataPaths, numbered
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_copies import copies
from penstock.mnode.catalog.vnode_descriptions import read_description

_log = logger(__name__)

_HINT = ("penstock fsck --repair puts the engine's own copy of it in place and adds what the vnodes know; or restore "
         "the folder catalog from a newer copy. Nothing has been changed")


def behind(paths: DataPaths, why: str) -> CorruptionError:
    """Returns the error of a catalog that is older than what it must know."""
    return CorruptionError(f"the catalog {paths.catalog} is older than the data beside it: {why}", hint=_HINT)


def require_catalog(paths: DataPaths) -> None:
    """Raises CorruptionError if the catalog of a directory that is in use is missing; to open one makes it anew."""
    file = paths.catalog / "data.mdb"
    if file.is_file() and file.stat().st_size:
        return
    if paths.holds_data() or paths.format.exists():
        raise CorruptionError(f"the catalog {paths.catalog} is missing: databases, tables, streams and "
                              "users are unknown", hint=_HINT)


def require_current(paths: DataPaths, fs: Fs, catalog: Catalog) -> None:
    """Raises CorruptionError if something in the directory is newer than the catalog."""
    problem = staleness(paths, fs, catalog)
    if problem is not None:
        raise behind(paths, problem)


def staleness(paths: DataPaths, fs: Fs, catalog: Catalog) -> str | None:
    """Returns what in the directory is newer than the catalog, or None."""
    for vgroup_id in numbered(paths.vnodes, 10):
        if vgroup_id >= catalog.next_vgroup:
            return f"there is a vnode {vgroup_id}, and it has given ids below {catalog.next_vgroup} only"
        for table_uid in numbered(paths.store(vgroup_id) / "parts", 10):
            if table_uid >= catalog.next_id:
                return (f"vnode {vgroup_id} has table {table_uid}, and the catalog has given ids below "
                        f"{catalog.next_id} only")
        try:
            description = read_description(fs, paths, vgroup_id)
        except CorruptionError as error:
            _log.warning("what vnode %d knows of the catalog is written again: %s", vgroup_id, error)
            continue
        if description is not None and description.generation > catalog.generation:
            return (f"vnode {vgroup_id} knows of its change {description.generation}, and the catalog itself only of "
                    f"{catalog.generation}")
    for name in copies(fs, paths)[:1]:
        if name.generation > catalog.generation:
            return (f"the engine's own copy in {paths.catalog_copies} is of its change {name.generation}, and it is of "
                    f"{catalog.generation}")
    for stream_id in numbered(paths.streams, 16):
        if stream_id >= catalog.next_id:
            return f"there is a stream {stream_id:x}, and it has given ids below {catalog.next_id:x} only"
    return None


def orphans(paths: DataPaths, catalog: Catalog, present: Mapping[int, Iterable[int]]) -> list[Path]:
    """Returns folders with rows or state that belong to nothing in the catalog and were not dropped either.

    `present`: by vgroup, the tables that its vnode has files of, without those that it has dropped.
    """
    known = {vgroup_id: database for database in catalog.databases() for vgroup_id in database.vgroup_ids}
    leaving = {entry.id for entry in catalog.unfinished.of_kind("remove_vnode")}
    found = [paths.vnode(one) for one in numbered(paths.vnodes, 10) if one not in known and one not in leaving]
    dropped = {entry.id for entry in catalog.unfinished.of_kind("remove_table")}
    found += [paths.parts(vgroup_id, uid) for vgroup_id, uids in sorted(present.items()) for uid in sorted(uids)
              if catalog.table_by_uid(uid) is None and uid not in dropped]
    streams = {*(one.id for one in catalog.streams.all()), *catalog.streams.damaged,
               *(one.id for one in catalog.ingests.all()),
               *(entry.id for entry in catalog.unfinished.of_kind("remove_stream"))}
    return found + [paths.stream(one) for one in numbered(paths.streams, 16) if one not in streams]
