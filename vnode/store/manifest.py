"""The MANIFEST of a vnode's store: which parts, tombstones and tables are valid. Reads and writes that one file."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.common.errors import CorruptionError
from penstock.common.fs import Fs
from penstock.common.sealed import seal, unseal
from penstock.vnode.store.delivery import Partition, Place
from penstock.vnode.store.memtable import TimeRange
from penstock.vnode.store.points import Extent, PointDeletes, PointRun
from penstock.vnode.store.tombstones import Tombstone, Tombstones

FORMAT = 2
NAME = "MANIFEST"
SCHEMA_FILE = "schema.parquet"
"""Beside a table's parts and beside its tombstones: a file without rows, so that readers' globs always match."""
_HINT = "restore the file from a copy of the vnode"


@dataclass(frozen=True, slots=True)
class PartInfo:
    """One immutable Parquet file of a table.

    `updates`: the range of ts in which a key may also exist elsewhere or twice in this part; None: every key of the
    part is unique among all rows that are not deleted. `purged_version`: rows hidden by tombstones up to this
    version have been taken out. `columns`: the physical columns that the file has.
    """

    name: str
    size: int
    crc: int
    rows: int
    min_ts: int
    max_ts: int
    min_tuid: int
    max_tuid: int
    min_version: int
    max_version: int
    purged_version: int
    updates: TimeRange | None
    columns: tuple[str, ...]

    def may_hold(self, tuid: int, ts: int) -> bool:
        """Tells whether there may be rows of a child table at a time."""
        return self.min_ts <= ts <= self.max_ts and self.min_tuid <= tuid <= self.max_tuid


def extent_of(part: PartInfo) -> Extent:
    """Returns where rows of a part lie, and which deletes may still hide some of them."""
    return Extent(part.min_ts, part.max_ts, part.min_tuid, part.max_tuid, max(part.min_version, part.purged_version))


@dataclass(frozen=True, slots=True)
class LastTimes:
    """The file with the greatest ts per child table, valid for all rows up to `version`. `crc`: of the whole file."""

    name: str
    version: int
    crc: int | None = None


@dataclass(frozen=True, slots=True)
class TableManifest:
    """The store of one table. `floor`: readers as of an older version would miss rows that were collapsed.

    `places`: how far ingests had come in their partitions; the log behind `persisted_version` tells the rest.
    """

    table_uid: int
    schema: pa.Schema
    key_columns: int
    parts: tuple[PartInfo, ...] = ()
    tombstones: Tombstones = field(default_factory=Tombstones)
    last_times: LastTimes | None = None
    floor: int = 0
    places: dict[Partition, Place] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything below `persisted_version` of the log is in the parts; the memtable holds what is above.

    `dropped`: the tables whose files may be removed; files of other tables that aren't here stay where they are.
    """

    vgroup_id: int
    persisted_version: int = 0
    next_file: int = 1
    tables: dict[int, TableManifest] = field(default_factory=dict)
    pins: dict[str, int] = field(default_factory=dict)
    dropped: tuple[int, ...] = ()


def encode_schema(schema: pa.Schema) -> str:
    """Returns an Arrow schema as text."""
    return base64.b64encode(schema.serialize()).decode()


def decode_schema(text: str) -> pa.Schema:
    """Inverse of `encode_schema`."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _table_json(table: TableManifest) -> dict[str, Any]:
    return {
        "uid": table.table_uid,
        "schema": encode_schema(table.schema),
        "key_columns": table.key_columns,
        "parts": [asdict(part) for part in table.parts],
        "tombstones": [[t.version, t.tuids, t.first_ts, t.last_ts, t.dropped] for t in table.tombstones.ranges],
        "points": [[len(run), run.to_text()] for run in table.tombstones.points.runs()],
        "last_times": None if table.last_times is None else asdict(table.last_times),
        "floor": table.floor,
        "places": [[*partition, *place] for partition, place in table.places.items()],
    }


def _table(data: dict[str, Any]) -> TableManifest:
    parts = tuple(PartInfo(**{**part, "columns": tuple(part["columns"]),
                              "updates": None if part["updates"] is None else tuple(part["updates"])})
                  for part in data["parts"])
    ranges = tuple(Tombstone(version, None if tuids is None else tuple(tuids), first, last, dropped)
                   for version, tuids, first, last, dropped in data["tombstones"])
    points = PointDeletes(tuple(PointRun.of_text(count, text) for count, text in data["points"]))
    last = data["last_times"]
    places = {(ingest, partition): (segment, offset) for ingest, partition, segment, offset in data["places"]}
    return TableManifest(data["uid"], decode_schema(data["schema"]), data["key_columns"], parts,
                         Tombstones(ranges, points), None if last is None else LastTimes(**last), data["floor"], places)


def save(fs: Fs, store: Path, manifest: Manifest) -> None:
    """Replaces the MANIFEST atomically. Raises StorageError."""
    fs.write_atomic(store / NAME, encode(manifest))


def encode(manifest: Manifest) -> bytes:
    """Returns the bytes of the file."""
    return seal(json.dumps({
        "format": FORMAT,
        "vgroup_id": manifest.vgroup_id,
        "persisted_version": manifest.persisted_version,
        "next_file": manifest.next_file,
        "pins": manifest.pins,
        "dropped": list(manifest.dropped),
        "tables": [_table_json(table) for table in manifest.tables.values()],
    }, separators=(",", ":")).encode())


def unknown_tables(fs: Fs, store: Path, manifest: Manifest) -> list[int]:
    """Returns the tables that have files with rows or deletes, but that the MANIFEST neither lists nor has dropped."""
    known = {*manifest.tables, *manifest.dropped}
    found = {int(uid) for kind in ("parts", "tombstones") for uid in fs.list(store / kind)
             if uid.isdigit() and any(name != SCHEMA_FILE and not name.endswith(".tmp")
                                      for name in fs.list(store / kind / uid))}
    return sorted(found - known)


def load(fs: Fs, store: Path, vgroup_id: int) -> Manifest | None:
    """Reads the MANIFEST; None when there is none. Raises CorruptionError."""
    path = store / NAME
    try:
        data = fs.read(path)
    except FileNotFoundError:
        return None
    body = unseal(data, str(path), _HINT)
    try:
        fields = json.loads(body)
        if fields["format"] != FORMAT:
            raise CorruptionError(f"{path} has format {fields['format']}; this version of Penstock knows format "
                                  f"{FORMAT}", hint="use the version that wrote it")
        if fields["vgroup_id"] != vgroup_id:
            raise ValueError(f"it is of vgroup {fields['vgroup_id']}")
        tables = {table["uid"]: _table(table) for table in fields["tables"]}
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{path} is damaged: {error}", hint=_HINT) from error
    return Manifest(vgroup_id, fields["persisted_version"], fields["next_file"], tables, fields["pins"],
                    tuple(fields["dropped"]))
