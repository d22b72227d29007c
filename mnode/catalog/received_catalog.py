"""Another node's catalog takes the place of this one's, when the engine starts."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

from penstock.common.aside import set_aside
from penstock.common.errors import CorruptionError, StorageError
from penstock.common.fs import Fs
from penstock.common.logging import logger
from penstock.common.paths import DataPaths, numbered
from penstock.mnode.catalog.catalog_copy_source import CATALOG_FOLDERS
from penstock.mnode.catalog.catalog_reader import CatalogReader
from penstock.mnode.catalog.entry_kinds import DATABASE, INGEST, STREAM

_log = logger(__name__)


def leave_received(fs: Fs, paths: DataPaths, folder: Path) -> None:
    """Leaves a whole copy of another node's catalog and log, of the same disk, for the next start. Durable on return.

    Raises StorageError.
    """
    shutil.rmtree(paths.received, ignore_errors=True)
    fs.rename(folder, paths.received)
    fs.fsync_dir(folder.parent)
    fs.fsync_dir(paths.root)


def take_received(fs: Fs, paths: DataPaths) -> None:
    """Puts what `leave_received` has left in the place of the catalog and its log, if there is something.

    What there was is moved out of the way, and with it what the other catalog knows nothing of: vnodes, and states of
    streams and ingests that it has not, or has as others. Whatever interrupts it, the next call goes on with it.
    Raises StorageError.
    """
    if not paths.received.is_dir():
        return
    if (paths.received / paths.catalog.name).is_dir() and paths.catalog.is_dir():
        _set_foreign_aside(fs, paths)
    for name in CATALOG_FOLDERS:
        if (paths.received / name).is_dir():
            if (paths.root / name).is_dir():
                set_aside(fs, paths, paths.root / name)
            fs.rename(paths.received / name, paths.root / name)
            fs.fsync_dir(paths.root)
    shutil.rmtree(paths.received)
    fs.fsync_dir(paths.root)
    _log.warning("the catalog is a copy of another node's now; what was here is below %s", paths.aside)


def _set_foreign_aside(fs: Fs, paths: DataPaths) -> None:
    """Moves away what the other catalog would take for its own, though it isn't, and what it has not."""
    try:
        here = _owners(paths, paths.catalog)
    except (StorageError, CorruptionError) as error:
        _log.warning("the catalog that was here can't be read, so that nothing of it stays in use: %s", error)
        here = {}
    there = _owners(paths, paths.received / paths.catalog.name)
    folders = [*(paths.vnode(vgroup_id) for vgroup_id in numbered(paths.vnodes, 10)),
               *(paths.stream(stream_id) for stream_id in numbered(paths.streams, 16))]
    for folder in folders:
        if folder not in here or here[folder] != there.get(folder):
            set_aside(fs, paths, folder)
    if paths.catalog_copies.is_dir():
        set_aside(fs, paths, paths.catalog_copies)


def _owners(paths: DataPaths, catalog: Path) -> dict[Path, tuple[str, int]]:
    """Returns which database, stream or ingest a catalog has a folder for, and when it was created."""
    with closing(CatalogReader.of_other_process(catalog)) as reader:
        vnodes = {paths.vnode(vgroup_id): (database.name, database.create_time_ms)
                  for database in reader.all(DATABASE) for vgroup_id in database.vgroup_ids}
        streams = {paths.stream(one.id): (one.name, one.asked.created_ms) for one in reader.all(STREAM)}
        ingests = {paths.stream(one.id): (one.name, one.created_ms) for one in reader.all(INGEST)}
        return {**vnodes, **streams, **ingests}
