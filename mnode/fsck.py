"""`penstock fsck`: reads everything in a data directory, says what is damaged, and mends what can be mended.

The directory must belong to no engine; it is locked meanwhile. Checking changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.common.clock import Clock
from penstock.common.errors import CorruptionError, StorageError
from penstock.common.fs import Fs
from penstock.common.paths import DataPaths
from penstock.mnode.catalog import Catalog, StreamRecord
from penstock.mnode.formats import check_format
from penstock.mnode.records import CommitRecords
from penstock.mnode.storage import storage_schema
from penstock.sql.schema import Database
from penstock.tasks.state_check import check_state
from penstock.vnode.check import Damage, LogReport, check_log, check_store
from penstock.vnode.dnode import lock_data_directory
from penstock.vnode.manifest import Manifest
from penstock.vnode.repair import Repair, VnodeRepair

Advanced = Callable[[str, int], None]
"""Called with what is being read, and how many bytes of it were read since the last call."""

_ASIDE = "damaged"


@dataclass(slots=True)
class Report:
    """What `fsck` found and did. `records`, `parts`, `checkpoints`: how many were read; `notes`: harmless finds."""

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

    def run(self) -> Report:
        """Checks, and mends if asked to. Raises DataDirectoryInUseError, StorageError."""
        if not self._paths.format.exists():
            raise StorageError(f"{self._paths.root} is no data directory: it has no file FORMAT",
                               hint="name the directory with -d")
        lock = lock_data_directory(self._paths)
        try:
            self._check_all()
        finally:
            lock.release()
        return self._report

    def total_bytes(self) -> int:
        """Returns how much there is to read, roughly."""
        return sum(path.stat().st_size for path in self._paths.root.rglob("*") if path.is_file())

    def _check_all(self) -> None:
        report = self._report
        try:
            check_format(self._fs, self._paths)
        except CorruptionError as error:
            report.damages.append(Damage("format", self._paths.format, error.message, "the engine doesn't start",
                                         error.hint or ""))
            return
        try:
            catalog = Catalog(self._paths.catalog)
        except CorruptionError as error:
            report.damages.append(Damage(
                "catalog", self._paths.catalog, error.message, "databases, tables and streams are not known: the engine "
                "doesn't start", "restore the folder catalog from a copy"))
            return
        try:
            report.catalog_entries = (len(catalog.databases()) + len(catalog.streams()) + len(catalog.functions()))
            for database in catalog.databases():
                for vgroup_id in database.vgroup_ids:
                    self._check_vnode(catalog, database, vgroup_id)
            for stream in catalog.streams():
                self._check_stream(stream)
        finally:
            catalog.close()

    # --- vnodes ------------------------------------------------------------------------------------------------

    def _check_vnode(self, catalog: Catalog, database: Database, vgroup_id: int) -> None:
        report, directory = self._report, self._paths.vnode(vgroup_id)
        what = f"vnode {vgroup_id} of {database.name}"
        log = check_log(self._fs, directory / "wal", vgroup_id, lambda size: self._advanced(what, size))
        manifest, found = check_store(self._fs, directory / "store", vgroup_id, log,
                                      lambda size: self._advanced(what, size))
        damages = [*log.damages, *found]
        report.records += log.records
        report.parts += 0 if manifest is None else sum(len(table.parts) for table in manifest.tables.values())
        report.damages += damages
        if damages and self._repair:
            self._mend_vnode(catalog, database, vgroup_id, log, manifest, damages)

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
        """Reads commit records and task states. A damaged state counts for nothing: the stream goes back behind it."""
        report, records = self._report, CommitRecords(self._paths, self._fs)
        intact: list[int] = []
        for checkpoint_id in records.ids(stream.id):
            report.checkpoints += 1
            path = records.path(stream.id, checkpoint_id)
            self._advanced(f"stream {stream.name}", 0)
            try:
                records.read(stream.id, checkpoint_id)
            except CorruptionError as error:
                damage = Damage(
                    "commit_record", path, error.message, f"checkpoint {checkpoint_id} of stream {stream.name} doesn't "
                    "count", "nothing: the checkpoint before it is used, and rows since are computed again",
                    stream_id=stream.id)
                report.damages.append(damage)
                if self._repair:
                    aside = self._set_aside(path)
                    report.repairs.append(Repair(path, f"it was set aside as {aside}; the checkpoint before it counts"))
            else:
                intact.append(checkpoint_id)
        if intact:
            self._check_states(stream, records, intact)

    def _check_states(self, stream: StreamRecord, records: CommitRecords, intact: list[int]) -> None:
        """Checks the state of every task as of the intact checkpoints, newest first."""
        report = self._report
        newest = records.read(stream.id, intact[0])
        damages: list[Damage] = []
        for task in newest.tasks:
            folder = self._paths.state(stream.id, task.task)
            problem = check_state(folder, intact[0])
            if folder.is_dir():
                self._advanced(f"stream {stream.name}", sum(path.stat().st_size for path in folder.iterdir()))
            if problem is not None:
                damages.append(Damage(
                    "state", folder, problem, f"stream {stream.name} cannot go on from checkpoint {intact[0]}",
                    "repair: the stream computes from its beginning again, if the log reaches back so far; else drop it "
                    "and create it again", stream_id=stream.id))
        report.damages += damages
        if damages and self._repair:
            aside = self._set_aside(self._paths.stream(stream.id))
            report.repairs.append(Repair(
                self._paths.stream(stream.id), f"all checkpoints of stream {stream.name} were set aside as {aside}; it "
                "starts from its beginning again", "rows that the log has given up since: the stream is FAILED then, "
                "and must be created again with FILL_HISTORY 1"))

    # --- repair ------------------------------------------------------------------------------------------------

    def _set_aside(self, path: Path) -> Path:
        """Moves a file or folder below `damaged/`, where nobody looks for it; returns where it is."""
        target = self._paths.root / _ASIDE / path.relative_to(self._paths.root)
        number = 1
        while target.exists():
            number += 1
            target = target.with_name(f"{path.name}.{number}")
        self._fs.make_dirs(target.parent)
        self._fs.rename(path, target)
        self._fs.fsync_dir(path.parent)
        return target
