"""Copies of the catalog that the engine keeps itself; a thread keeps them and the vnodes' descriptions current.

A copy is one file with all entries, sealed by a checksum. The newest follows the catalog; a few older ones lie at least
some minutes before each other.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.common.clock import Clock
from penstock.common.errors import CorruptionError
from penstock.common.fs import Fs
from penstock.common.paths import DataPaths
from penstock.mnode.catalog.background_keeper import Keeper
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_store import CatalogEntry
from penstock.mnode.catalog.vnode_descriptions import Description, describe, read_description, write_description
from penstock.vnode.store.parts import parquet_bytes

_COPIES_MAX = 4
_APART_MS = 10 * 60_000
_IDLE_FACTOR = 20  # after a copy, so many times as long as it took passes before the next one
_SUFFIX = ".copy"
_SCHEMA = pa.schema([("store", pa.binary()), ("key", pa.binary()), ("value", pa.binary())])


@dataclass(frozen=True, slots=True, order=True)
class CopyName:
    """Which state of the catalog a copy holds, and when it was made."""

    generation: int
    made_ms: int

    def __str__(self) -> str:
        return f"{self.generation:012d}-{self.made_ms}{_SUFFIX}"


def copies(fs: Fs, paths: DataPaths) -> list[CopyName]:
    """Returns the copies that there are, newest first."""
    found = []
    for name in fs.list(paths.catalog_copies):
        generation, _, made_ms = name.removesuffix(_SUFFIX).partition("-")
        if name.endswith(_SUFFIX) and generation.isdigit() and made_ms.isdigit():
            found.append(CopyName(int(generation), int(made_ms)))
    return sorted(found, reverse=True)


def read_copy(fs: Fs, paths: DataPaths, name: CopyName) -> list[CatalogEntry]:
    """Returns the entries of a copy. Raises CorruptionError."""
    path = paths.catalog_copies / str(name)
    data = fs.read(path)
    body = data[4:]
    if google_crc32c.value(body) != int.from_bytes(data[:4], "big"):
        raise CorruptionError(f"{path} fails its checksum")
    columns = pq.read_table(pa.BufferReader(body)).select(_SCHEMA.names)
    return [CatalogEntry(**row) for row in columns.to_pylist()]


class CopyKeeper(Keeper):
    """Writes copies and descriptions after changes, in the background; `refresh` does it at once. Thread-safe."""

    def __init__(
        self, catalog: Catalog, paths: DataPaths, fs: Fs, clock: Clock, interval_s: float,
        folders_lock: AbstractContextManager[object],
    ) -> None:
        """`folders_lock`: while it is held, no vnode's folder is removed."""
        super().__init__("copies of the catalog", self.refresh, clock, interval_s, idle_factor=_IDLE_FACTOR)
        self._catalog = catalog
        self._paths = paths
        self._fs = fs
        self._folders_lock = folders_lock
        self._written: dict[int, Description] = {}
        self._copied: int | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Follows the catalog from now on."""
        self._catalog.on_change(self.wake)
        super().start()

    def refresh(self) -> None:
        """Writes what changed. Raises StorageError."""
        with self._lock:
            self._describe()
            self._copy()

    def _describe(self) -> None:
        for database in self._catalog.databases():
            for vgroup_id in database.vgroup_ids:
                wanted = describe(self._catalog, database, vgroup_id)
                if wanted.says_the_same(self._known(vgroup_id)):
                    continue
                with self._folders_lock:
                    if self._paths.vnode(vgroup_id).is_dir():
                        write_description(self._fs, self._paths, vgroup_id, wanted)
                        self._written[vgroup_id] = wanted

    def _known(self, vgroup_id: int) -> Description | None:
        if vgroup_id not in self._written:
            try:
                found = read_description(self._fs, self._paths, vgroup_id)
            except CorruptionError:
                return None
            if found is None:
                return None
            self._written[vgroup_id] = found
        return self._written[vgroup_id]

    def _copy(self) -> None:
        before = copies(self._fs, self._paths)
        newest = before[0].generation if before else None
        if self._catalog.is_empty or self._catalog.generation in (self._copied, newest):
            return
        entries = self._catalog.entries()
        generation = next((one.generation for one in entries if one.generation is not None), 0)
        columns = [[one.store for one in entries], [one.key for one in entries], [one.value for one in entries]]
        body = parquet_bytes(pa.table(columns, schema=_SCHEMA))
        name = CopyName(generation, self._clock.now_ms())
        self._fs.make_dirs(self._paths.catalog_copies)
        self._fs.write_atomic(self._paths.catalog_copies / str(name),
                              google_crc32c.value(body).to_bytes(4, "big") + body)
        self._copied = generation
        # The newest is replaced as long as it isn't far enough from the one before it.
        if len(before) > 1 and before[0].made_ms - before[1].made_ms < _APART_MS:
            self._fs.remove(self._paths.catalog_copies / str(before.pop(0)))
        for old in before[_COPIES_MAX - 1:]:
            self._fs.remove(self._paths.catalog_copies / str(old))
