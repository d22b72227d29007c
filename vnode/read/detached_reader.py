"""Reads a vnode's rows in another process than the one that writes them, whether that runs or not. Changes no file.

Nothing here is held for the reader: replaced parts stay for `partGrace`, and the log for its retention.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from penstock.common.closed_duckdb import DuckdbBounds, closed_duckdb
from penstock.common.errors import InvalidValueError, NotFoundError, UnavailableError
from penstock.common.fs import Fs
from penstock.common.quantities import MIB, TIB
from penstock.vnode.read.snapshot import Snapshot
from penstock.vnode.read.snapshot_sql import SnapshotSql
from penstock.vnode.store import manifest as manifests
from penstock.vnode.store.memtable import VERSION_COLUMN
from penstock.vnode.store.parts import PartCache
from penstock.vnode.store.table_state import TableState
from penstock.wal.log import LogFiles
from penstock.wal.reader import WalGapError, WalReader
from penstock.wal.record import AnyDelete, MetaRecord, Record, RowsRecord
from penstock.wal.retention import segment_infos

_TRIES = 5
_ROWS = 65_536
_RECORDS = 64
"""So many are passed over at once."""

_MEMORY_BYTES = 640 * MIB
"""What DuckDB takes for finding the newest of rows that were written again; beyond it, a temporary file."""


class DetachedVnode:
    """One vnode, by its directory. Has no open files between calls, so that it may be copied to other processes."""

    def __init__(self, directory: Path, vgroup_id: int, fs: Fs) -> None:
        self._directory = directory
        self._vgroup_id = vgroup_id
        self._fs = fs

    def acknowledged_version(self) -> int:
        """Returns the version that readers may go to now."""
        log = LogFiles(self._directory / "wal", self._fs)
        try:
            return log.end().version
        finally:
            log.close()

    def snapshot(self, table_uid: int, as_of: int | None = None) -> Snapshot:
        """Returns a table as of a version (None: everything acknowledged).

        Raises NotFoundError, InvalidValueError for a version that isn't acknowledged, SnapshotTooOldError,
        CorruptionError, and UnavailableError if log and store change faster than they are read.
        """
        for _ in range(_TRIES):
            try:
                return self._snapshot(table_uid, as_of)
            except WalGapError as error:
                gap = error  # what the log had is in parts by now, and the MANIFEST a newer one
        raise UnavailableError(f"vnode {self._vgroup_id} is written faster than it can be read") from gap

    def _snapshot(self, table_uid: int, as_of: int | None) -> Snapshot:
        newest = self.acknowledged_version()
        if as_of is not None and as_of > newest:
            raise InvalidValueError(f"version {as_of} of vnode {self._vgroup_id} is not acknowledged; the newest is "
                                    f"{newest}")
        store = self._directory / "store"
        manifest = manifests.load(self._fs, store, self._vgroup_id)
        if manifest is None or table_uid not in manifest.tables:
            raise NotFoundError(f"vnode {self._vgroup_id} has no table {table_uid}")
        entry = manifest.tables[table_uid]
        table = TableState.stored(entry, store / "parts" / str(table_uid))
        table.set_tombstones(entry.tombstones)
        version = max(newest, manifest.persisted_version) if as_of is None else as_of
        for record in self._log(manifest.persisted_version, version):
            if isinstance(record, RowsRecord | AnyDelete) and record.table_uid == table_uid:
                table.replay(record)
        return Snapshot.of(table, self._vgroup_id, version, PartCache())

    def rows(
        self, table_uid: int, columns: Sequence[str], *, as_of: int | None = None, tuids: pa.Array | None = None,
        first_ts: int | None = None, last_ts: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows that `snapshot` has: `_tuid`, the columns and `_ver`; bounds are inclusive."""
        snapshot = self.snapshot(table_uid, as_of)
        select = snapshot.to_sql(columns, tuids, first_ts, last_ts)
        with tempfile.TemporaryDirectory(prefix="penstock-reading-") as temporary:
            yield from self._run(select, temporary)

    def _run(self, select: SnapshotSql, temporary: str) -> Iterator[pa.RecordBatch]:
        # One thread: who reads many vnodes has a task for each.
        bounds = DuckdbBounds(_MEMORY_BYTES, spill=Path(temporary) / "spill", spill_bytes=TIB)
        with closed_duckdb(bounds, [self._directory]) as connection:
            for name, table in select.tables.items():
                connection.register(name, table)
            try:
                yield from connection.sql(select.sql).to_arrow_reader(_ROWS)
            except duckdb.IOException as error:
                raise UnavailableError(f"parts of vnode {self._vgroup_id} were replaced while they were read: {error}",
                                       hint="raise partGrace if reading takes longer than that") from error

    def written(self, table_uid: int, columns: Sequence[str], first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Yields the rows that were written behind version `first` and up to `last`, with `_tuid`; in order.

        They come from the log, also those that were replaced or deleted since. What it doesn't have any more comes
        from the store, in any order and as it is now. Columns that a row doesn't have are missing.
        Raises CorruptionError, WalGapError or UnavailableError if the log ends before `last`.
        """
        reached = first
        while reached < last:
            try:
                for record in self._log(reached, last):
                    reached = record.version
                    if isinstance(record, RowsRecord) and record.table_uid == table_uid:
                        yield record.batch
            except WalGapError as gap:
                stored_to = _end_of_gap(gap, last)
                for batch in self.rows(table_uid, columns):
                    versions = batch.column(VERSION_COLUMN).to_numpy()
                    yield batch.filter(pa.array((versions > reached) & (versions <= stored_to)))
                reached = stored_to

    def version_behind(self, table_uid: int, first: int, last: int, rows: int) -> int:
        """Returns how far the log goes, from version `first`, until about `rows` rows of a table were written.

        At most `last`; at least one record further, and over a part that only the store has in one step.
        """
        reached, count = first, 0
        try:
            for record in self._log(first, last):
                if isinstance(record, RowsRecord) and record.table_uid == table_uid:
                    count += record.batch.num_rows
                    if count > rows and reached > first:
                        return reached
                reached = record.version
                if count >= rows:
                    return reached
        except WalGapError as gap:
            return _end_of_gap(gap, last) if reached == first else reached
        return reached

    def changes(self, table_uid: int, behind: int) -> Iterator[RowsRecord | AnyDelete | MetaRecord]:
        """Yields what the log has of a table, and of child tables, behind a version.

        Raises CorruptionError, or WalGapError if the log begins later.
        """
        reader = WalReader(LogFiles(self._directory / "wal", self._fs), behind + 1)
        try:
            while records := reader.read_of(frozenset({table_uid})):
                yield from (one for one in records if isinstance(one, RowsRecord | AnyDelete | MetaRecord))
        finally:
            reader.close()

    def version_before(self, moment_ms: int) -> int | None:
        """Returns the last version that was written before a moment, 0 if none was; None if the log begins later.

        Raises CorruptionError.
        """
        folder, newest = self._directory / "wal", self.acknowledged_version()
        segments = segment_infos(self._fs, folder, newest)
        ended = [one.last_version for one in segments if one.closed_ms is not None and one.closed_ms < moment_ms]
        oldest = min((one.first_version for one in segments), default=newest + 1)
        reached = max(ended, default=oldest - 1)
        for at_once in (_RECORDS, 1):
            reader = WalReader(LogFiles(folder, self._fs), reached + 1)
            try:
                while (records := reader.read_of(frozenset(), at_once)) and records[-1].ingest_time_ms < moment_ms:
                    reached = records[-1].version
            finally:
                reader.close()
        return None if 0 < reached < oldest else reached

    def _log(self, first: int, last: int) -> Iterator[Record]:
        """Yields the records behind version `first` and up to `last`. Raises WalGapError, UnavailableError."""
        reader = WalReader(LogFiles(self._directory / "wal", self._fs), first + 1)
        try:
            while reader.next_version <= last:
                records = reader.read(max_records=min(1024, last - reader.next_version + 1))
                if not records:
                    raise UnavailableError(
                        f"the log of vnode {self._vgroup_id} ends at version {reader.acknowledged_version}, but "
                        f"{last} was there already", hint="under WAL_LEVEL 1 a power cut may lose the last ones")
                yield from records
        finally:
            reader.close()


def _end_of_gap(gap: WalGapError, last: int) -> int:
    """Returns the last version up to `last` that the log doesn't have any more. Raises the error if it never had it."""
    if gap.oldest <= gap.wanted:
        raise gap
    return min(last, gap.oldest - 1)
