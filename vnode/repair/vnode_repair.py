"""Mends what `check` found in one vnode, as far as it can be mended, and says what was done and what is lost.

Nothing is thrown away: files that don't count any more are set aside. The vnode must not be open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.common.clock import Clock
from penstock.common.fs import Fs
from penstock.vnode.repair.vnode_check import Damage, LogReport, part_problem, read_segment
from penstock.vnode.store import manifest as manifests
from penstock.vnode.store.chunk_reader import KeyFilter, gather, resolve
from penstock.vnode.store.manifest import SCHEMA_FILE, Manifest, PartInfo, TableManifest
from penstock.vnode.store.memtable import VERSION_COLUMN, Run, join_ranges
from penstock.vnode.store.parts import PartWriter
from penstock.vnode.store.table_state import TableState, stored_form
from penstock.wal.record import AnyDelete, DamagedRecordError, Record, RowsRecord
from penstock.wal.segment import (
    END_NAME,
    SegmentHeader,
    decode_segment_header,
    list_segments,
    segment_name,
)


@dataclass(frozen=True, slots=True)
class Repair:
    """What was done about one damage; `lost` is "" if nothing is."""

    path: Path
    done: str
    lost: str = ""


class VnodeRepair:
    """The repair of one vnode. `set_aside` moves a file out of the way and returns where it is now."""

    def __init__(self, directory: Path, vgroup_id: int, fs: Fs, clock: Clock, set_aside: Callable[[Path], Path],
                 tables: Mapping[int, tuple[pa.Schema, int]]) -> None:
        """`tables`: the schema and number of key columns of each table that belongs into this vnode."""
        self._wal = directory / "wal"
        self._store = directory / "store"
        self._vgroup_id = vgroup_id
        self._fs = fs
        self._clock = clock
        self._set_aside = set_aside
        self._tables = tables

    def run(self, log: LogReport, manifest: Manifest | None, damages: Sequence[Damage]) -> list[Repair]:
        """Mends the damages; parts first, since they are built from the log as it is now."""
        repairs: list[Repair] = []
        by_kind = {kind: [damage for damage in damages if damage.kind == kind] for kind in {d.kind for d in damages}}
        for damage in by_kind.get("manifest", ()):
            found = self._rebuild_manifest(damage, log)
            repairs.append(found[0])
            manifest = found[1]
        if manifest is None:
            return repairs
        for damage in by_kind.get("last_times", ()):
            manifest, repair = self._forget_last_times(manifest, damage)
            repairs.append(repair)
        for damage in by_kind.get("part", ()):
            manifest, repair = self._mend_part(manifest, damage, log)
            repairs.append(repair)
        for damage in by_kind.get("torn_tail", ()):
            assert damage.offset is not None
            repairs.append(self._cut(damage.path, damage.offset))
        broken = [*by_kind.get("log_record", ()), *by_kind.get("log_segment", ())]
        if broken:
            repairs.append(self._restart_log(manifest, broken[0], log))
        elif by_kind.get("log_end") or by_kind.get("log_behind"):
            damage = (*by_kind.get("log_end", ()), *by_kind.get("log_behind", ()))[0]
            repairs.append(self._restart_log(manifest, damage, log))
        return repairs

    # --- the log -----------------------------------------------------------------------------------------------

    def _cut(self, path: Path, offset: int) -> Repair:
        size = self._fs.size(path)
        file = self._fs.open_append(path)
        try:
            file.truncate(offset)
            file.sync()
        finally:
            file.close()
        return Repair(path, f"cut off {size - offset} bytes at its end that were no record")

    def _restart_log(self, manifest: Manifest, damage: Damage, log: LogReport) -> Repair:
        """Lets the log go on where what is readable in one piece ends, but not before what the parts hold."""
        persisted = manifest.persisted_version
        readable = self._last_before_damage(log, damage)
        segments = list_segments(self._fs, self._wal)
        highest = max([readable, persisted, log.last, log.acknowledged])
        end = self._wal / END_NAME
        if readable > persisted and damage.offset:
            for first in segments:
                if first > int(damage.path.stem):
                    self._set_aside(self._wal / segment_name(first))
            copy = self._set_aside(damage.path)
            self._fs.write_atomic(damage.path, self._fs.read(copy)[:damage.offset])
            done = f"the log was cut at version {readable}; what was behind it is in {copy.parent}"
        elif readable > persisted:
            for first in segments:
                if first >= int(damage.path.stem) and damage.kind != "log_end":
                    self._set_aside(self._wal / segment_name(first))
            done = f"the log ends with version {readable} now"
        else:
            for first in segments:
                self._set_aside(self._wal / segment_name(first))
            header = SegmentHeader(self._vgroup_id, persisted + 1, self._clock.now_ms(), 0, 0)
            self._fs.write_atomic(self._wal / segment_name(persisted + 1), header.encode()[0])
            done = f"the log goes on behind the parts, with version {persisted + 1}; the old one was set aside"
        self._fs.remove(end)
        kept = max(readable, persisted)
        lost = f"rows and deletes of versions {kept + 1} to {highest}" if highest > kept else ""
        streams = "streams that still had to read it fail, and must be created again"
        return Repair(damage.path, f"{done}; {streams}" if readable <= persisted else done, lost)

    def _last_before_damage(self, log: LogReport, damage: Damage) -> int:
        """The last version that can be read in one piece from the log's beginning."""
        if damage.version is None:
            return log.last
        return damage.version - 1 if log.first and damage.version > log.first else 0

    def _records(self, first: int, last: int) -> Iterator[Record]:
        """Yields the records of versions `first` to `last`; raises DamagedRecordError where one cannot be read."""
        expected = first
        segments = list_segments(self._fs, self._wal)
        for place, start in enumerate(segments):
            behind = segments[place + 1] if place + 1 < len(segments) else None
            if start > last or (behind is not None and behind <= first):
                continue
            path = self._wal / segment_name(start)
            data = self._fs.read(path)
            _, crc = decode_segment_header(data, path)
            for _, header, record in read_segment(data, crc):
                if record is not None and first <= header.version <= last:
                    if header.version != expected:
                        raise DamagedRecordError(f"version {expected} is missing")
                    expected += 1
                    yield record
                if header.version >= last and record is not None:
                    break
        if expected <= last:
            raise DamagedRecordError(f"the log doesn't hold version {expected}")

    # --- the store ---------------------------------------------------------------------------------------------

    def _rebuild_manifest(self, damage: Damage, log: LogReport) -> tuple[Repair, Manifest | None]:
        if log.first > 1 or log.damages:
            return Repair(
                damage.path, "nothing: the log doesn't reach back to its beginning, so it cannot tell what is valid",
                "all tables of this vnode, until the file is restored from a copy"), None
        for kind in ("parts", "last"):
            for path in self._files(self._store / kind):
                self._set_aside(path)
        if damage.path.exists():
            self._set_aside(damage.path)
        tables = {uid: TableManifest(uid, schema, keys) for uid, (schema, keys) in self._tables.items()}
        next_file = 1
        manifest = Manifest(self._vgroup_id, 0, next_file, tables, {})
        manifests.save(self._fs, self._store, manifest)
        return Repair(damage.path, f"it was written anew; the engine reads all {log.records} records of the log again "
                      "when it starts"), manifest

    def _files(self, directory: Path) -> Iterator[Path]:
        for name in self._fs.list(directory):
            path = directory / name
            if path.is_dir():
                yield from self._files(path)
            elif name != SCHEMA_FILE:
                yield path

    def _forget_last_times(self, manifest: Manifest, damage: Damage) -> tuple[Manifest, Repair]:
        assert damage.table_uid is not None
        table = replace(manifest.tables[damage.table_uid], last_times=None)
        manifest = self._with_table(manifest, table)
        if damage.path.exists():
            self._set_aside(damage.path)
        return manifest, Repair(damage.path, "the engine reads the newest times from the parts when it starts")

    def _mend_part(self, manifest: Manifest, damage: Damage, log: LogReport) -> tuple[Manifest, Repair]:
        assert damage.table_uid is not None
        table = manifest.tables[damage.table_uid]
        part = next(part for part in table.parts if part.name == damage.path.name)
        others = tuple(other for other in table.parts if other is not part)
        if damage.path.exists():
            self._set_aside(damage.path)
        try:
            rows, updates = self._rows_of(manifest, table, part, others)
        except DamagedRecordError as error:
            manifest = self._with_table(manifest, replace(table, parts=others))
            return manifest, Repair(
                damage.path, f"it was taken out: {error}",
                f"{part.rows} rows of table {table.table_uid} with times {part.min_ts} to {part.max_ts}")
        parts, next_file = others, manifest.next_file
        if rows.num_rows:
            writer = PartWriter()
            writer.add(rows)
            info = writer.finish(self._fs, damage.path.parent, f"{next_file:012d}.parquet",
                                 purged_version=part.purged_version, updates=updates)
            parts, next_file = (*others, info), next_file + 1
        manifest = self._with_table(replace(manifest, next_file=next_file), replace(table, parts=parts))
        return manifest, Repair(damage.path, f"its {rows.num_rows} rows were read from the log again")

    def _rows_of(self, manifest: Manifest, table: TableManifest, part: PartInfo, others: Sequence[PartInfo]
                 ) -> tuple[pa.Table, tuple[int, int] | None]:
        """Returns the rows of a part from the log: those of its versions that no other part has."""
        elsewhere: set[int] = set()
        for other in others:
            path = self._store / "parts" / str(table.table_uid) / other.name
            if other.min_version > part.max_version or other.max_version < part.min_version:
                continue
            if part_problem(self._fs, path, other) is not None:
                raise DamagedRecordError("another part of the same versions is damaged, too")
            versions = pq.read_table(pa.BufferReader(self._fs.read(path)), columns=[VERSION_COLUMN])
            elsewhere.update(np.unique(versions.column(0).to_numpy()).tolist())
        runs: list[Run] = []
        deletes = TableState(table.table_uid, table.schema, table.key_columns)
        deletes.set_tombstones(table.tombstones)
        for record in self._records(part.min_version, manifest.persisted_version):
            if isinstance(record, AnyDelete) and record.table_uid == table.table_uid:
                deletes.replay(record)
            wanted = (isinstance(record, RowsRecord) and record.table_uid == table.table_uid
                      and record.version <= part.max_version and record.version not in elsewhere)
            if wanted and isinstance(record, RowsRecord):
                arrays, schema, updates = stored_form(record.batch)
                versions = pa.array(np.full(len(arrays[0]), record.version, np.uint64))
                runs.append(Run.of(pa.RecordBatch.from_arrays([*arrays, versions], schema=schema), updates))
        if not runs:
            raise DamagedRecordError("the log has none of its rows")
        horizon = min([manifest.persisted_version, *manifest.pins.values()])
        known = {field.name: field for run in runs for field in run.data.schema}
        rows = gather(runs, KeyFilter(), [known[name] for name in part.columns if name in known])
        updates = join_ranges([part.updates, *(run.updates for run in runs)])
        key = table.schema.names[1] if table.key_columns == 2 else None
        return resolve(rows, key, deletes.tombstones.seen(horizon), as_of=2**64 - 1, pin=horizon, unique=False), updates

    def _with_table(self, manifest: Manifest, table: TableManifest) -> Manifest:
        manifest = replace(manifest, tables={**manifest.tables, table.table_uid: table})
        manifests.save(self._fs, self._store, manifest)
        return manifest
