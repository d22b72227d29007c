"""Writes rows of a table into new parts, and its newest times into a file. Only the MANIFEST makes them valid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from penstock.common.errors import StorageError
from penstock.vnode.store.chunk_reader import cut, gather, resolve
from penstock.vnode.store.manifest import LastTimes
from penstock.vnode.store.memtable import Run, TimeRange, clipped, join_ranges
from penstock.vnode.store.parts import MAX_PART_ROWS, ROW_GROUP_ROWS, PartWriter, parquet_bytes
from penstock.vnode.store.table_state import PartHandle, TableState
from penstock.vnode.store.table_store import TableStore
from penstock.vnode.store.tombstones import Tombstones
from penstock.wal.record import crc32c


def resolved(runs: Sequence[Run], fields: Sequence[pa.Field], key_name: str | None, tombstones: Tombstones,
             horizon: int, *, unique: bool) -> Iterator[pa.Table]:
    """Yields the rows of all runs sorted by key, without what no reader as of `horizon` or later can see.

    They come in pieces of some child tables each: what one takes in memory serves the next, and the caches.
    `key_name`: the second column of a composite key. `unique`: no key can occur twice.
    """
    effective = tombstones.seen(horizon)
    for selection in cut(runs, ROW_GROUP_ROWS):
        yield resolve(gather(runs, selection, fields), key_name, effective, as_of=2**64 - 1, pin=horizon,
                      unique=unique)


def updates_left(updates: TimeRange | None, others: Iterable[PartHandle], *, collapsed: bool) -> TimeRange | None:
    """Returns where keys of rows may still exist elsewhere or twice, of the range in which rows replaced older ones.

    `others` are all other parts. `collapsed`: of these rows themselves only the newest version of each key was kept.
    """
    if updates is None or not collapsed:
        return updates
    return join_ranges([clipped(updates, part.info.min_ts, part.info.max_ts) for part in others])


def write_parts(store: TableStore, table: TableState, pieces: Iterable[pa.Table], purged_version: int,
                updates: TimeRange | None) -> tuple[PartHandle, ...]:
    """Writes sorted rows into as many parts as they need; see `PartInfo`. The caller doesn't hold `lock`.

    Raises StorageError; then the parts that were written are left to be deleted.
    """
    folder = store.files.parts(table.uid)
    handles: list[PartHandle] = []
    try:
        for writer in _filled(pieces):
            with store.lock:
                name = store.files.new_name()
            info = writer.finish(store.fs, folder, name, purged_version=purged_version, updates=updates)
            handles.append(PartHandle(info, folder / name))
    except StorageError:
        with store.lock:
            store.files.replace_parts(table.uid, handles)
        raise
    return tuple(handles)


def _filled(pieces: Iterable[pa.Table]) -> Iterator[PartWriter]:
    """Yields writers that are full, and the last with what is left."""
    writer = PartWriter()
    for rows in pieces:
        while rows.num_rows:
            fitting = rows.slice(0, MAX_PART_ROWS - writer.num_rows)
            rows = rows.slice(fitting.num_rows)
            writer.add(fitting)
            if writer.num_rows == MAX_PART_ROWS:
                yield writer
                writer = PartWriter()
    if writer.num_rows:
        yield writer


def rows_in(parts: Sequence[PartHandle]) -> int:
    """Returns how many rows, all versions, the parts have."""
    return sum(part.info.rows for part in parts)


def write_last_times(store: TableStore, table_uid: int, times: pa.Table, version: int) -> LastTimes:
    """Writes newest times, `tuid` and `ts`, that are valid for all rows up to `version`. Raises StorageError."""
    with store.lock:
        name = f"{table_uid}-{store.files.new_name()}"
    content = parquet_bytes(times)
    store.fs.write_atomic(store.files.last_times(name), content)
    return LastTimes(name, version, crc32c(content))
