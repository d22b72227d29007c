"""`penstock fsck`: reads everything in a data directory, reports what is damaged, and repairs what it can.

The directory must belong to no engine; it is locked meanwhile. Checking changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.common.aside import set_aside
from penstock.common.clock import Clock
from penstock.common.errors import CorruptionError, StorageError
from penstock.common.fs import Fs
from penstock.common.paths import DataPaths
from penstock.mnode.admin.catalog_rebuild import rebuild_catalog
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_check import orphans, require_catalog, require_current
from penstock.mnode.catalog.catalog_records import StreamRecord, Unfinished
from penstock.mnode.catalog.directory_format import check_format, ensure_format
from penstock.mnode.checkpoints.commit_records import CommitRecord, CommitRecords
from penstock.mnode.dnode.vnode_storage import storage_schema
from penstock.sql.schema import Database
from penstock.tasks.state.state_check import check_states
from penstock.vnode.dnode import lock_data_directory
from penstock.vnode.read.views import moved_views, write_sql
from penstock.vnode.repair.vnode_check import Damage, LogReport, check_log, check_store
from penstock.vnode.repair.vnode_repair import Repair, VnodeRepair
from penstock.vnode.store import manifest as manifests
from penstock.vnode.store.manifest import Manifest

Advanced = Callable[[str, int], None]
"""Called with what is being read, and how many bytes of it were read since the last call."""

_BEFORE = "nothing: the checkpoint before it is used, and what came since is computed again"


@dataclass(slots=True)
class Report:
    """What `fsck` found and did. `records`, `parts`, `checkpoints`, `catalog_entries`: how many were read."""

    damages: list[Damage] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)
    records: int = 0
    parts: int = 0
    checkpoints: int = 0
    catalog_entries: int = 0

    @property
    def healthy(self) -> bool:
        """Whether nothing needs anybody's attention; a torn tail doesn't."""
        return all(damage.kind == "torn_tail" for damage in self.damages)


class Fsck:
    """One check of one data directory."""

    def __init__(self, root: Path, fs: Fs, clock: Clock, advanced: Advanced, *, repair: bool) -> None:
        self._paths = DataPaths(root)
        self._fs = fs
        self._clock = clock
        self._advanced = advanced
        self._repair = repair
        self._report = Report()
        self._manifests: dict[int, Manifest] = {}

    def run(self) -> Report:
        """Checks, and mends if asked to. Raises DataDirectoryInUseError, StorageError."""
        if not (self._paths.format.exists() or self._paths.holds_data() or self._paths.catalog.is_dir()):
            raise StorageError(f"{self._paths.root} is no data directory: it has neither a file FORMAT nor data",
                               hint="name the directory with -d")
        lock = lock_data_directory(self._paths)
        try:
            self._check_all()
        finally:
            lock.release()
        return self._report

    def _check_all(self) -> None:
        report = self._report
        if not self._paths.format.exists():
            report.damages.append(Damage(
                "format", self._paths.format, "it is missing", "whether this version can read the directory is not "
                "known: the engine doesn't start", "copy it from the original; --repair writes it if everything else "
                "is of a known version"))
        else:
            try:
                check_format(self._fs, self._paths)
            except CorruptionError as error:
                report.damages.append(Damage("format", self._paths.format, error.message, "the engine doesn't start",
                                             error.hint or ""))
                return
        catalog = self._open_catalog()
        if catalog is None:
            return
        if self._repair and not self._paths.format.exists():
            ensure_format(self._fs, self._paths)
            report.repairs.append(Repair(self._paths.format, "it was written"))
        try:
            report.catalog_entries = sum(map(len, (
                catalog.databases(), catalog.views(), catalog.streams.all(), catalog.functions.all(),
                catalog.connections.all())))
            for stream_id, problem in catalog.streams.damaged.items():
                report.damages.append(Damage(
                    "catalog", self._paths.catalog, problem, f"stream {stream_id:x} is not known any more; its state "
                    "and results are kept, everything else works", "restore the folder catalog from a copy, or create "
                    "the stream again", stream_id=stream_id))
            for database in catalog.databases():
                for vgroup_id in database.vgroup_ids:
                    self._check_vnode(catalog, database, vgroup_id)
            for stream in catalog.streams.all():
                self._check_stream(stream)
            self._check_orphans(catalog)
            self._check_views()
        finally:
            catalog.close()

    # --- the catalog -------------------------------------------------------------------------------------------

    def _open_catalog(self) -> Catalog | None:
        """Returns the catalog, built again if it has to be and may be; None if it can't be used."""
        report, path = self._report, self._paths.catalog
        catalog: Catalog | None = None
        try:
            require_catalog(self._paths)
            catalog = Catalog(path)
            require_current(self._paths, self._fs, catalog)
        except CorruptionError as error:
            if catalog is not None:
                catalog.close()
            report.damages.append(Damage(
                "catalog", path, error.message, "databases, tables, streams and users aren't known for certain: the "
                "engine doesn't start", "restore the folder catalog from a copy that is as new as the data; --repair "
                "takes the engine's own copy, and adds what the vnodes know"))
        else:
            return catalog
        if not self._repair:
            return None
        try:
            rebuilt = rebuild_catalog(self._paths, self._fs, self._set_aside)
        except CorruptionError as error:
            report.repairs.append(Repair(path, f"nothing: {error.message}", "everything, until it is restored"))
            return None
        report.repairs.append(Repair(path, f"it was built again from {rebuilt.base}", rebuilt.lost))
        return Catalog(path)

    def _check_orphans(self, catalog: Catalog) -> None:
        """Finds what nothing in the catalog leads to."""
        for path in orphans(self._paths, catalog, {one: list(found.tables) for one, found in self._manifests.items()}):
            self._report.damages.append(Damage(
                "orphan", path, "it belongs to nothing in the catalog, and nothing was noted about removing it",
                "it is not used, and never removed", "nothing if it isn't missed; --repair moves it out of the way"))
            if self._repair:
                self._move_orphan(path)

    def _check_views(self) -> None:
        """Finds views over the files of another directory, of which this one is a copy."""
        moved = moved_views(self._paths)
        if moved is None:
            return
        self._report.damages.append(Damage(
            "views", self._paths.views_duckdb, "its views read the files of another directory, of which this is a copy",
            "a DuckDB that opens it shows the rows of the other directory", "open the copy with an engine once, or "
            "--repair: it writes them for this directory"))
        if self._repair:
            write_sql(self._paths, moved, self._fs)
            self._report.repairs.append(Repair(self._paths.views_duckdb, "its views read the files beside it now"))

    def _move_orphan(self, path: Path) -> None:
        if path.parent.name == "parts":
            uid, vgroup_id = int(path.name), int(path.parent.parent.parent.name)
            manifest = self._manifests[vgroup_id]
            tables = {one: table for one, table in manifest.tables.items() if one != uid}
            self._manifests[vgroup_id] = replace(manifest, tables=tables)
            manifests.save(self._fs, self._paths.store(vgroup_id), self._manifests[vgroup_id])
            self._move_table(path)
            return
        aside = self._set_aside(path)
        self._report.repairs.append(Repair(path, f"it was moved to {aside}"))

    def _move_table(self, parts: Path) -> None:
        """Moves the files of a table out of the way, with those of its deletes."""
        tombstones = parts.parent.parent / "tombstones" / parts.name
        moved = [self._set_aside(folder) for folder in (parts, tombstones) if folder.exists()]
        self._report.repairs.append(Repair(parts, f"it was moved to {', '.join(map(str, moved))}"))

    # --- vnodes ------------------------------------------------------------------------------------------------

    def _check_vnode(self, catalog: Catalog, database: Database, vgroup_id: int) -> None:
        report, directory = self._report, self._paths.vnode(vgroup_id)
        what = f"vnode {vgroup_id} of {database.name}"
        if not directory.is_dir():
            if Unfinished("make_vnode", vgroup_id) not in catalog.unfinished.of_kind("make_vnode"):
                report.damages.append(Damage(
                    "vnode", directory, "it is missing", f"the rows of database {database.name} that it has can't be "
                    "read", f"restore it from a copy, or DROP DATABASE {database.name}", vgroup_id=vgroup_id))
            return
        log = check_log(self._fs, directory / "wal", vgroup_id, lambda size: self._advanced(what, size))
        manifest, found = check_store(self._fs, directory / "store", vgroup_id, log,
                                      lambda size: self._advanced(what, size))
        damages = [*log.damages, *found]
        report.records += log.records
        report.parts += 0 if manifest is None else sum(len(table.parts) for table in manifest.tables.values())
        report.damages += damages
        if damages and self._repair:
            self._mend_vnode(catalog, database, vgroup_id, log, manifest, damages)
            for damage in damages:
                if damage.kind == "unlisted":
                    self._move_table(damage.path)
            manifest, _ = check_store(self._fs, directory / "store", vgroup_id, log, lambda size: None)
        if manifest is not None:
            self._manifests[vgroup_id] = manifest

    def _mend_vnode(self, catalog: Catalog, database: Database, vgroup_id: int, log: LogReport,
                    manifest: Manifest | None, damages: list[Damage]) -> None:
        tables = [*catalog.tables(database.name, "super"),
                  *(table for table in catalog.tables(database.name, "normal") if table.vgroup_id == vgroup_id)]
        repair = VnodeRepair(
            self._paths.vnode(vgroup_id), vgroup_id, self._fs, self._clock, self._set_aside,
            {table.uid: storage_schema(table) for table in tables})
        self._report.repairs += repair.run(log, manifest, damages)

    # --- streams -----------------------------------------------------------------------------------------------

    def _check_stream(self, stream: StreamRecord) -> None:
        """Reads commit records, and the state of every task as of each of them."""
        report = self._report
        records = CommitRecords(self._paths, self._fs)
        stored = records.all(stream.id)
        report.checkpoints += len(stored)
        damages = [
            Damage("commit_record", records.path(stream.id, one.checkpoint_id), one.damage,
                   f"checkpoint {one.checkpoint_id} of stream {stream.name} doesn't count", _BEFORE,
                   stream_id=stream.id)
            for one in stored if one.record is None]
        intact = [one.record for one in stored if one.record is not None]
        states = self._damaged_states(stream, intact)
        damages += [damage for found in states.values() for damage in found]
        usable = [checkpoint_id for checkpoint_id, found in states.items() if not found]
        report.damages += damages
        if not damages or not self._repair:
            return
        if usable:
            self._drop_checkpoints(stream, [one.checkpoint_id for one in stored if one.checkpoint_id not in usable],
                                   usable[0])
        elif stored:
            aside = self._set_aside(self._paths.stream(stream.id))
            report.repairs.append(Repair(
                self._paths.stream(stream.id), f"no checkpoint of stream {stream.name} is intact: all were set aside "
                f"as {aside}; it starts from its beginning again",
                "what the log has given up since the stream was created: the stream fails then with the reason, and "
                "must be created again with FILL_HISTORY 1"))

    def _damaged_states(self, stream: StreamRecord, records: Sequence[CommitRecord]) -> dict[int, list[Damage]]:
        """Returns by checkpoint, newest first, what is wrong with the state of its tasks."""
        wanted = [(record.checkpoint_id, self._paths.state(stream.id, task.task))
                  for record in records for task in record.tasks]
        problems = check_states([(folder, checkpoint_id) for checkpoint_id, folder in wanted])
        found: dict[int, list[Damage]] = {record.checkpoint_id: [] for record in records}
        for (checkpoint_id, folder), problem in zip(wanted, problems, strict=True):
            if problem is not None:
                found[checkpoint_id].append(Damage(
                    "state", folder / "data.mdb", problem,
                    f"stream {stream.name} cannot go on from checkpoint {checkpoint_id}", _BEFORE, stream_id=stream.id))
        for folder in {folder for _, folder in wanted if (folder / "data.mdb").exists()}:
            self._advanced(f"stream {stream.name}", (folder / "data.mdb").stat().st_size)
        return found

    def _drop_checkpoints(self, stream: StreamRecord, ids: list[int], used: int) -> None:
        for checkpoint_id in ids:
            path = CommitRecords(self._paths, self._fs).path(stream.id, checkpoint_id)
            aside = self._set_aside(path)
            self._report.repairs.append(Repair(
                path, f"it was set aside as {aside}; stream {stream.name} goes on from checkpoint {used}, and computes "
                "what came since again"))

    # --- repair ------------------------------------------------------------------------------------------------

    def _set_aside(self, path: Path) -> Path:
        return set_aside(self._fs, self._paths, path)
