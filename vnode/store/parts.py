"""Parquet parts: writing sorted rows, and reading row groups back through a bounded cache. Knows no manifest."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.common.arrow_data import one_array
from penstock.common.errors import CorruptionError
from penstock.common.fs import Fs
from penstock.vnode.store.key_search import KeySearch
from penstock.vnode.store.manifest import PartInfo
from penstock.vnode.store.memtable import VERSION_COLUMN, Run, TimeRange, order_of
from penstock.vnode.store.sorted_keys import I64, TS_MAX, TS_MIN, U64, Index, times_of, tuids_of
from penstock.wal.record import TUID_COLUMN, crc32c

ROW_GROUP_ROWS = 65_536
MAX_PART_ROWS = 4_000_000
# A column with more values than fit here is written plainly: a larger dictionary costs time and saves no space.
_DICTIONARY_BYTES = 64 << 10
# LZ4 takes a third of Zstandard's time to write and to read, and with such encodings finds nearly as much; texts and
# what else has no encoding of its own are worth the time.
_FAST_CODEC, _DENSE_CODEC = "lz4", "zstd"
# What is smaller fits into a few pages of the disk as it is; compressing it would only cost time, and reading it too.
_COMPRESSED_FROM_BYTES = 8 << 10
_INTEGER_DIGITS = 18  # so many fit into 64 bits
_REPEATS = 8  # with a row group's rows, the values then fit into a dictionary
_PIECE = 1 << 20
_ORDER_OF = "order of "  # before a column's name
_KEYS = " keys"  # no column is called so
_THREADS_FROM_BYTES = 1 << 20  # handing columns of smaller row groups to threads costs more than reading them


def parquet_bytes(table: pa.Table) -> bytes:
    """Returns a table as a Parquet file with page checksums."""
    sink = pa.BufferOutputStream()
    with _open_writer(sink, table) as writer:
        writer.write_table(table, ROW_GROUP_ROWS)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _open_writer(sink: pa.BufferOutputStream, first: pa.Table) -> pq.ParquetWriter:
    """Returns a writer that stores each column in the way that takes least time and space, by its type and first rows.
    """
    encodings: dict[str, str] = {}
    dictionaries: list[str] = []
    codecs: dict[str, str] = {}
    times = [field.name for field in first.schema if pa.types.is_timestamp(field.type)]
    for field in first.schema:
        codecs[field.name] = _FAST_CODEC
        # Rows are sorted by the first time, which differences tell best.
        if field.name in times[:1] or (field.name in times and not _repeats(first.column(field.name))):
            encodings[field.name] = "DELTA_BINARY_PACKED"
        elif pa.types.is_float32(field.type) or pa.types.is_float64(field.type):
            encodings[field.name] = "BYTE_STREAM_SPLIT"
        else:
            if pa.types.is_nested(field.type) or _repeats(first.column(field.name)):
                dictionaries.append(field.name)
            if not _stored_as_integer(field.type):
                codecs[field.name] = _DENSE_CODEC
    levels = {name: 1 for name, codec in codecs.items() if codec == _DENSE_CODEC}
    compressed = first.nbytes >= _COMPRESSED_FROM_BYTES
    return pq.ParquetWriter(
        sink, first.schema, use_dictionary=dictionaries, dictionary_pagesize_limit=_DICTIONARY_BYTES,
        column_encoding=encodings, compression=codecs if compressed else "none",
        compression_level=levels if compressed else None, write_page_checksum=True, store_decimal_as_integer=True)


def _repeats(column: pa.ChunkedArray) -> bool:
    """Tells whether values come again so often that a dictionary, which is the faster to read, is small."""
    rows = column.slice(0, ROW_GROUP_ROWS)
    return bool(pc.count_distinct(rows).as_py() * _REPEATS <= len(rows))


def _stored_as_integer(type_: pa.DataType) -> bool:
    """Tells whether values are integers in a file: times, and decimals that fit, are."""
    if pa.types.is_decimal(type_):
        return bool(type_.precision <= _INTEGER_DIGITS)
    return bool(pa.types.is_integer(type_) or pa.types.is_timestamp(type_))


class PartWriter:
    """Makes one part of sorted rows that come piece by piece: only what is compressed is kept of them."""

    def __init__(self) -> None:
        self._sink = pa.BufferOutputStream()
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []  # fewer rows than a row group has
        self._extents: list[tuple[int, int, int, int, int, int]] = []
        self._columns: tuple[str, ...] = ()
        self.num_rows = 0

    def add(self, rows: pa.Table) -> None:
        """Takes rows behind those before: `_tuid`, physical columns, `_ver`; sorted by key; at least one."""
        tuid, ts = tuids_of(one_array(rows.column(0))), times_of(one_array(rows.column(1)))
        version: U64 = one_array(rows.column(VERSION_COLUMN)).to_numpy()
        self._extents.append((int(ts.min()), int(ts.max()), int(tuid[0]), int(tuid[-1]), int(version.min()),
                              int(version.max())))
        self._columns = tuple(rows.column_names[1:-1])
        self.num_rows += rows.num_rows
        waiting = pa.concat_tables([*self._waiting, rows])
        whole = waiting.num_rows - waiting.num_rows % ROW_GROUP_ROWS
        if whole:
            self._write(waiting.slice(0, whole))
        self._waiting = [waiting.slice(whole)] if whole < waiting.num_rows else []

    def _write(self, rows: pa.Table) -> None:
        if self._writer is None:
            self._writer = _open_writer(self._sink, rows)
        self._writer.write_table(rows, ROW_GROUP_ROWS)

    def finish(self, fs: Fs, directory: Path, name: str, *, purged_version: int, updates: TimeRange | None) -> PartInfo:
        """Writes the file; at least one row was added. Raises StorageError."""
        if self._waiting:
            self._write(pa.concat_tables(self._waiting))
        assert self._writer is not None
        self._writer.close()
        data = self._sink.getvalue()
        fs.write_atomic(directory / name, data)
        min_ts, max_ts, min_tuid, max_tuid, min_version, max_version = zip(*self._extents, strict=True)
        return PartInfo(name, data.size, crc32c(data), self.num_rows, min(min_ts), max(max_ts), min_tuid[0],
                        max_tuid[-1], min(min_version), max(max_version), purged_version, updates, self._columns)


@dataclass(frozen=True, slots=True)
class _OpenPart:
    """An open file, and the extents of its row groups, which are in the order of their keys."""

    file: pq.ParquetFile
    min_tuid: U64
    max_tuid: U64
    min_ts: I64
    max_ts: I64
    tuids: tuple[list[int], list[int]]

    def holding(self, tuid: int) -> range:
        """Returns the numbers of the row groups that may have rows of a child table."""
        least, greatest = self.tuids
        return range(bisect_left(greatest, tuid), bisect_right(least, tuid))


class PartReader:
    """Reads a part once, from its beginning to its end, without keeping what it has read; see `PartCache` for queries.
    """

    def __init__(self, path: Path, part: PartInfo) -> None:
        """Raises CorruptionError unless the file is as it was written."""
        self._updates = part.updates
        _verify(path, part)
        self._file = _open_file(path)

    @property
    def schema(self) -> pa.Schema:
        """The columns as `Run.data` has them."""
        return self._file.schema_arrow

    def row_groups(self) -> Iterator[Run]:
        """Yields the rows of each row group, in order."""
        for index in range(self._file.num_row_groups):
            threads = self._file.metadata.row_group(index).total_byte_size >= _THREADS_FROM_BYTES
            table = self._file.read_row_group(index, use_threads=threads).combine_chunks()
            yield Run.of(table.to_batches()[0], self._updates)


class RowGroup:
    """One row group of a part, its columns decoded on demand. Sorted by (_tuid, ts) like a Run."""

    def __init__(self, cache: PartCache, path: Path, part: PartInfo, index: int) -> None:
        self._cache = cache
        self._path = path
        self._part = part
        self._index = index
        self.updates = part.updates
        self.max_version = part.max_version

    @cached_property
    def _places(self) -> list[pa.Array]:
        return self._cache.columns(self._path, self._index, [TUID_COLUMN, self._part.columns[0], VERSION_COLUMN])

    @cached_property
    def tuid(self) -> U64:
        return tuids_of(self._places[0])

    @cached_property
    def ts(self) -> I64:
        return times_of(self._places[1])

    @cached_property
    def version(self) -> U64:
        version: U64 = self._places[2].to_numpy()
        return version

    @property
    def num_rows(self) -> int:
        return len(self.tuid)

    def column(self, name: str) -> pa.Array | None:
        """Returns a column, or None when the part is older than the column."""
        if name not in (TUID_COLUMN, VERSION_COLUMN) and name not in self._part.columns:
            return None
        return self._cache.columns(self._path, self._index, [name])[0]

    def order(self, name: str) -> Index:
        """Returns the rows in the order of a column's whole numbers."""
        return self._cache.order(self._path, self._index, name)

    def keys(self) -> KeySearch:
        """Returns what finds rows by their keys."""
        return self._cache.keys(self._path, self._index, lambda: KeySearch(self.tuid, self.ts))


class PartCache:
    """Open parts and decoded columns of their row groups; both bounded, the least recently used go first."""

    def __init__(self, max_bytes: int = 64 << 20, max_files: int = 64) -> None:
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._lock = threading.Lock()
        self._files: OrderedDict[Path, _OpenPart] = OrderedDict()
        self._columns: OrderedDict[tuple[Path, int, str], pa.Array | KeySearch] = OrderedDict()
        self._bytes = 0
        # Parquet's own checksums cover pages, but not their headers and not the footer with its statistics.
        self._verified: set[Path] = set()

    def row_groups(self, path: Path, part: PartInfo, tuids: U64 | None, first_ts: int, last_ts: int,
                   times: I64 | None = None) -> Iterator[RowGroup]:
        """Yields the row groups that may hold rows of `tuids` (sorted; None: all) in the time range.

        `times`: rows at one of these alone, which are sorted; None: at any.
        """
        with self._lock:
            opened = self._open(path, part)
        wanted = (opened.max_ts >= first_ts) & (opened.min_ts <= last_ts)
        if tuids is not None:
            if not len(tuids):
                return
            wanted &= tuids.searchsorted(opened.min_tuid) < tuids.searchsorted(opened.max_tuid, "right")
        if times is not None:
            low = np.searchsorted(times, opened.min_ts, "left")
            wanted &= low < np.searchsorted(times, opened.max_ts, "right")
        for index in np.flatnonzero(wanted).tolist():
            yield RowGroup(self, path, part, index)

    def row_groups_at(self, path: Path, part: PartInfo, tuid: int, ts: int) -> list[RowGroup]:
        """Returns the row groups that may hold rows of a child table at a time, as `row_groups` would, but sooner."""
        with self._lock:
            opened = self._open(path, part)
        return [RowGroup(self, path, part, index) for index in opened.holding(tuid)
                if opened.min_ts[index] <= ts <= opened.max_ts[index]]

    def columns(self, path: Path, index: int, names: Sequence[str]) -> list[pa.Array]:
        """Returns decoded columns of a row group. Raises CorruptionError when the file is damaged."""
        with self._lock:
            missing = [name for name in names if (path, index, name) not in self._columns]
            found = {name: self._columns[path, index, name] for name in names if name not in missing}
            for name in found:
                self._columns.move_to_end((path, index, name))
            if missing:
                opened = self._files.get(path) or self._open(path, None)
                try:
                    table = opened.file.read_row_group(index, columns=missing, use_threads=False)
                except (OSError, pa.ArrowInvalid) as error:
                    raise CorruptionError(f"part {path} is damaged: {error}") from error
                for name in missing:
                    column = table.column(name).combine_chunks()
                    if isinstance(column, pa.ChunkedArray):
                        column = column.chunk(0)
                    found[name] = column
                    self._keep((path, index, name), column)
        return [found[name] for name in names]

    def order(self, path: Path, index: int, name: str) -> Index:
        """Returns the rows of a row group in the order of a column's whole numbers. Raises as `columns`."""
        def find() -> pa.Array:
            return pa.array(order_of(self.columns(path, index, [name])[0]))

        order: Index = self._derived((path, index, f"{_ORDER_OF}{name}"), find).to_numpy()
        return order

    def keys(self, path: Path, index: int, make: Callable[[], KeySearch]) -> KeySearch:
        """Returns what finds rows of a row group by their keys; `make` makes it, if it isn't held."""
        found: KeySearch = self._derived((path, index, _KEYS), make)
        return found

    def _derived(self, key: tuple[Path, int, str], find: Callable[[], Any]) -> Any:
        with self._lock:
            known = self._columns.get(key)
            if known is not None:
                self._columns.move_to_end(key)
        if known is None:
            known = find()
            with self._lock:
                self._keep(key, known)
        return known

    def _keep(self, key: tuple[Path, int, str], column: pa.Array | KeySearch) -> None:
        before = self._columns.get(key)  # of somebody who looked for the same meanwhile
        self._columns[key] = column
        self._bytes += column.nbytes - (0 if before is None else before.nbytes)
        while self._bytes > self._max_bytes and len(self._columns) > 1:
            self._bytes -= self._columns.popitem(last=False)[1].nbytes

    def _open(self, path: Path, part: PartInfo | None) -> _OpenPart:
        opened = self._files.get(path)
        if opened is None:
            if part is not None and path not in self._verified:
                _verify(path, part)
                self._verified.add(path)
            opened = _describe(_open_file(path))
            self._files[path] = opened
            while len(self._files) > self._max_files:
                self._files.popitem(last=False)[1].file.close()
        self._files.move_to_end(path)
        return opened

    def forget(self, path: Path) -> None:
        """Drops what is held of a part that is about to be deleted."""
        with self._lock:
            self._verified.discard(path)
            opened = self._files.pop(path, None)
            if opened is not None:
                opened.file.close()
            for key in [key for key in self._columns if key[0] == path]:
                self._bytes -= self._columns.pop(key).nbytes


def _open_file(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, memory_map=True, page_checksum_verification=True)
    except FileNotFoundError as error:
        raise CorruptionError(f"part {path} is missing") from error
    except (OSError, pa.ArrowInvalid) as error:
        raise CorruptionError(f"part {path} is damaged: {error}") from error


def _verify(path: Path, part: PartInfo) -> None:
    """Raises CorruptionError unless the file is as it was written."""
    crc = 0
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                crc = google_crc32c.extend(crc, piece)
    except FileNotFoundError as error:
        raise CorruptionError(f"part {path} is missing") from error
    except OSError as error:
        raise CorruptionError(f"part {path} cannot be read: {error}") from error
    if crc != part.crc:
        raise CorruptionError(f"part {path} is damaged: its checksum does not fit",
                              hint="penstock fsck --repair rebuilds it from the log, if the log reaches back that far")


def _describe(file: pq.ParquetFile) -> _OpenPart:
    metadata = file.metadata
    tuid, ts = [], []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        tuid.append((group.column(0).statistics.min_raw, group.column(0).statistics.max_raw))
        stats = group.column(1).statistics
        ts.append((stats.min_raw, stats.max_raw) if stats is not None else (TS_MIN, TS_MAX))
    # Parquet statistics hand unsigned values out as signed ones.
    tuids = np.array(tuid, np.int64).view(np.uint64) if tuid else np.zeros((0, 2), np.uint64)
    times = np.array(ts, np.int64) if ts else np.zeros((0, 2), np.int64)
    least, greatest = tuids[:, 0], tuids[:, 1]
    return _OpenPart(file, least, greatest, times[:, 0], times[:, 1], (least.tolist(), greatest.tolist()))
