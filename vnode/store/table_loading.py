"""Rebuilds the tables of a vnode from its MANIFEST, its files and the log behind them. Changes no file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.common.errors import CorruptionError
from penstock.common.fs import Fs
from penstock.vnode.store.manifest import LastTimes, Manifest
from penstock.vnode.store.memtable import newest_times
from penstock.vnode.store.parts import PartCache
from penstock.vnode.store.replaying import replay
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN
from penstock.vnode.store.table_state import TableState
from penstock.wal.log import Log
from penstock.wal.reader import WalReader
from penstock.wal.record import crc32c


def load_tables(store: Path, manifest: Manifest, cache: PartCache, fs: Fs, log: Log) -> dict[int, TableState]:
    """Returns all tables as of the end of the log. `store`: the folder of its files. Raises CorruptionError."""
    tables: dict[int, TableState] = {}
    for entry in manifest.tables.values():
        table = tables[entry.table_uid] = TableState.stored(entry, store / "parts" / str(entry.table_uid))
        load_newest_times(table, store / "last", cache, fs)
        table.forgotten = manifest.persisted_version
        table.take_deletes(entry.tombstones)
    reader = WalReader(log, manifest.persisted_version + 1)
    try:
        while records := reader.read():
            replay(records, tables)
    finally:
        reader.close()
    return tables


def load_newest_times(table: TableState, folder: Path, cache: PartCache, fs: Fs) -> None:
    """Learns the newest times of a table: from their file in `folder`, and from the parts written since.

    Raises CorruptionError.
    """
    known = 0
    if table.last_times is not None:
        stored = _stored_times(table.last_times, folder, fs).sort_by("tuid")
        table.newest.stored(stored.column("tuid").to_numpy(), stored.column("ts").to_numpy())
        known = table.last_times.version
    for part in table.parts:
        if part.info.max_version > known:
            for group in cache.row_groups(part.path, part.info, None, TS_MIN, TS_MAX):
                table.newest.stored(*newest_times(group.tuid, group.ts))


def _stored_times(times: LastTimes, folder: Path, fs: Fs) -> pa.Table:
    path = folder / times.name
    content = fs.read(path)
    if times.crc not in (None, crc32c(content)):
        raise CorruptionError(f"{path} is damaged: its checksum does not fit",
                              hint="penstock fsck --repair rebuilds it from the parts")
    try:
        return pq.read_table(pa.BufferReader(content))
    except (OSError, pa.ArrowInvalid) as error:
        raise CorruptionError(f"{path} is damaged: {error}") from error
