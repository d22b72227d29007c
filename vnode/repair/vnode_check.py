"""Reads everything that one vnode has on disk and says what is damaged. Changes nothing; `repair` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.common.errors import CorruptionError
from penstock.common.fs import Fs
from penstock.vnode.store import manifest as manifests
from penstock.vnode.store.manifest import LastTimes, Manifest, PartInfo, TableManifest
from penstock.wal import record as wire
from penstock.wal.record import DamagedRecordError, Header, Record, RecordKind, crc32c
from penstock.wal.segment import (
    END_NAME,
    END_SIZE,
    NO_END,
    SEGMENT_HEADER_SIZE,
    EndFile,
    LogEnd,
    decode_segment_header,
    good_record_behind,
    list_segments,
    scan,
    segment_name,
)

DamageKind = Literal[
    "torn_tail", "log_record", "log_segment", "log_end", "manifest", "part", "last_times", "format", "catalog",
    "commit_record", "state", "log_behind", "vnode", "orphan", "unlisted", "views"]
Progress = Callable[[int], None]
"""Called with the number of bytes that were read since the last call."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong. `offset`: bytes from the start of the file, None if it concerns the whole file.

    `vgroup_id` and `table_uid` where it belongs to one, `version` the first version of a log that cannot be read.
    """

    kind: DamageKind
    path: Path
    what: str
    meaning: str
    advice: str
    offset: int | None = None
    vgroup_id: int | None = None
    table_uid: int | None = None
    version: int | None = None
    stream_id: int | None = None


@dataclass(frozen=True, slots=True)
class LogReport:
    """What the log of a vnode holds: versions `first` to `last` can be read (0: none), in `records` records.

    `acknowledged`: the last version that it had, as far as is known.
    """

    first: int
    last: int
    records: int
    damages: tuple[Damage, ...]
    acknowledged: int = 0


def read_segment(data: bytes, crc: int) -> Iterator[tuple[int, Header, Record | None]]:
    """Yields (offset, header, record) of a segment's records; None for a declared schema. Raises DamagedRecordError."""
    schemas: dict[int, pa.Schema] = {}
    for offset, header in scan(data, crc):
        start = offset + wire.HEADER_SIZE
        payload = data[start:start + header.payload_size]
        if header.kind is RecordKind.SCHEMA:
            declared = wire.decode_schema(header, payload)
            schemas[declared.shape] = declared.schema
            yield offset, header, None
        else:
            record = wire.decode(header, pa.py_buffer(payload), schemas)
            if isinstance(record, wire.RowsRecord):
                try:
                    record.batch.validate(full=True)
                except (pa.ArrowInvalid, ValueError) as error:
                    raise DamagedRecordError(f"the rows are invalid: {error}") from error
            yield offset, header, record


def check_log(fs: Fs, directory: Path, vgroup_id: int, progress: Progress) -> LogReport:
    """Reads every record of a vnode's log: checksums, versions without gaps, segments chained to each other."""
    damages: list[Damage] = []
    segments = list_segments(fs, directory)
    first = last = records = 0
    previous: tuple[int, int] | None = None
    ends = _end(fs, directory)
    end = None if ends is None else ends.synced
    for place, start in enumerate(segments):
        path, newest = directory / segment_name(start), place == len(segments) - 1
        data = fs.read(path)
        progress(len(data))
        at, version, crc = 0, start - 1, 0
        try:
            header, crc = decode_segment_header(data, path)
            if header.vgroup_id != vgroup_id or header.first_version != start:
                raise DamagedRecordError(
                    f"it belongs to vgroup {header.vgroup_id}, version {header.first_version}")
            if previous is not None and (header.previous_first, header.previous_crc) != previous:
                raise DamagedRecordError("it doesn't follow the segment before it: one is missing, or was changed")
            at = SEGMENT_HEADER_SIZE
            first = first or start
            last = max(last, start - 1)  # a segment that has no records yet tells where the next one goes
            for offset, found, record in read_segment(data, crc):
                at = offset
                if record is not None:
                    if found.version != version + 1:
                        raise DamagedRecordError(f"version {found.version} follows {version}")
                    version = last = found.version
                    records += 1
                at, crc = offset + found.total_size, found.crc
        except DamagedRecordError as error:
            damages.append(_log_damage(path, data, at, error, version, vgroup_id, end if newest else -1))
            previous = None
            continue
        previous = (start, crc)
    if end is not None and end > last and not any(damage.kind.startswith("log") for damage in damages):
        damages.append(Damage(
            "log_end", directory / END_NAME, f"records up to version {end} were synced, but the log ends at {last}",
            f"versions {last + 1} to {end} are gone",
            "restore the segments from a copy, or --repair: what is left counts",
            vgroup_id=vgroup_id, version=last + 1))
    return LogReport(first, last, records, tuple(damages), last if ends is None else max(last, ends.version))


def _log_damage(path: Path, data: bytes, offset: int, error: DamagedRecordError, version: int, vgroup_id: int,
                synced: int | None) -> Damage:
    """`synced`: the last version that was synced for sure, None if unknown, -1 if this isn't the newest segment."""
    unsynced = synced is not None and 0 <= synced <= version
    if synced != -1 and (unsynced or good_record_behind(data, offset) is None):
        return Damage(
            "torn_tail", path, f"{len(data) - offset} bytes at its end are no record ({error})",
            "the last write was cut off by a crash; nothing that was acknowledged and synced is concerned",
            "nothing: the engine cuts them off when it starts, and so does --repair", offset, vgroup_id,
            version=version + 1)
    kind: DamageKind = "log_segment" if offset == 0 else "log_record"
    return Damage(
        kind, path, str(error), f"versions from {version + 1} on cannot be read in this segment",
        "restore the file from a copy; --repair keeps what can be read", offset, vgroup_id, version=version + 1)


def _end(fs: Fs, directory: Path) -> LogEnd | None:
    """Returns where the log says that it ends, or None if nothing tells."""
    path = directory / END_NAME
    if END_NAME not in fs.list(directory) or fs.size(path) < END_SIZE:
        return None
    file = fs.open_read(path)
    try:
        end = EndFile(file.map())
        found = end.read()
        end.close()
    finally:
        file.close()
    return None if found is NO_END else found


def check_store(fs: Fs, store: Path, vgroup_id: int, log: LogReport, progress: Progress
                ) -> tuple[Manifest | None, list[Damage]]:
    """Reads the MANIFEST and every part that it lists; returns it (None: not readable) with what is wrong."""
    path = store / manifests.NAME
    try:
        manifest = manifests.load(fs, store, vgroup_id)
    except CorruptionError as error:
        return None, [_manifest_damage(path, str(error.message), vgroup_id)]
    if manifest is None:
        if not log.records and not fs.list(store / "parts"):
            return Manifest(vgroup_id), []
        return None, [_manifest_damage(path, "it is missing, but the vnode has data", vgroup_id)]
    damages: list[Damage] = []
    if log.last < manifest.persisted_version and not log.damages:
        damages.append(Damage(
            "log_behind", store.parent / "wal", f"the log ends at version {log.last}, but the parts hold rows up to "
            f"{manifest.persisted_version}", "new rows would get versions that older ones have",
            "restore the log from a copy, or repair: it goes on behind the parts", vgroup_id=vgroup_id,
            version=log.last + 1))
    for uid in manifests.unknown_tables(fs, store, manifest):
        damages.append(Damage(
            "unlisted", store / "parts" / str(uid), "the MANIFEST doesn't know these files",
            "it is older than they are, or they are of another directory; they are not used",
            "restore the MANIFEST that belongs to them; --repair sets them aside", vgroup_id=vgroup_id, table_uid=uid))
    for table in manifest.tables.values():
        for part in table.parts:
            problem = part_problem(fs, store / "parts" / str(table.table_uid) / part.name, part)
            progress(part.size)
            if problem is not None:
                damages.append(_part_damage(store, table, part, problem, vgroup_id))
        if table.last_times is not None:
            damages += _check_last_times(fs, store, table, table.last_times, vgroup_id)
    return manifest, damages


def _manifest_damage(path: Path, what: str, vgroup_id: int) -> Damage:
    return Damage("manifest", path, what, "which parts are valid is not known: no table of this vnode can be read",
                  "restore it from a copy; --repair builds all parts again if the log reaches back to its beginning",
                  vgroup_id=vgroup_id)


def part_problem(fs: Fs, path: Path, part: PartInfo) -> str | None:
    """Returns what is wrong with a part, or None."""
    try:
        data = fs.read(path)
    except FileNotFoundError:
        return "it is missing"
    if len(data) != part.size:
        return f"it has {len(data)} bytes instead of {part.size}"
    if crc32c(data) != part.crc:
        return "its checksum does not fit"
    rows = pq.read_metadata(pa.BufferReader(data)).num_rows
    return None if rows == part.rows else f"it has {rows} rows instead of {part.rows}"


def _part_damage(store: Path, table: TableManifest, part: PartInfo, problem: str, vgroup_id: int) -> Damage:
    return Damage(
        "part", store / "parts" / str(table.table_uid) / part.name, problem,
        f"{part.rows} rows of table {table.table_uid} with times {part.min_ts} to {part.max_ts}, versions "
        f"{part.min_version} to {part.max_version}, cannot be read",
        "restore the file from a copy; --repair builds it again from the log as far as that reaches back",
        vgroup_id=vgroup_id, table_uid=table.table_uid)


def _check_last_times(fs: Fs, store: Path, table: TableManifest, times: LastTimes, vgroup_id: int) -> list[Damage]:
    path = store / "last" / times.name
    try:
        data = fs.read(path)
        if times.crc not in (None, crc32c(data)):
            raise OSError("its checksum does not fit")
        pq.read_table(pa.BufferReader(data))
    except (OSError, pa.ArrowInvalid) as error:
        return [Damage("last_times", path, f"it cannot be read: {error}",
                       f"the newest time per child table of table {table.table_uid} is not known",
                       "--repair has them read from the parts again: nothing is lost", vgroup_id=vgroup_id,
                       table_uid=table.table_uid)]
    return []
