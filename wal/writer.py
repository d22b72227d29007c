"""The writing end of one vnode's log: versions, group commit, segment roll, recovery at open. Reads no records."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.common.clock import Clock
from penstock.common.errors import InternalError, PenstockError, StorageError
from penstock.common.fs import AppendFile, Fs
from penstock.wal import record as wire
from penstock.wal.acknowledged_end import AcknowledgedEnd, open_end
from penstock.wal.open_segment import OpenSegment
from penstock.wal.packed_rows import RowFormat
from penstock.wal.pending_records import PendingRecord, PendingRecords, Ticket
from penstock.wal.record import IngestOrigin, Pieces, RecordKind, size_of
from penstock.wal.record_plan import PlannedRecord, RecordPlan
from penstock.wal.recovery import recover
from penstock.wal.segment import (
    NO_END,
    EndFile,
    LogEnd,
    SegmentHeader,
    Tail,
    damaged,
    segment_name,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WalOptions:
    """How one vnode's log is written. `level`: acknowledged is what is written (1), or written and synced (2).

    `segment_bytes`: from about which size on a new segment is begun.
    """

    vgroup_id: int
    level: int = 1
    segment_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opening the log found. `lost_versions` were acknowledged under level 1, but not yet synced."""

    last_version: int
    cut_bytes: int
    lost_versions: int


def begin_log(directory: Path, fs: Fs, clock: Clock, *, vgroup_id: int, version: int) -> None:
    """Makes a log without records that is to go on behind a version, as another log has reached it."""
    fs.make_dirs(directory)
    header, _ = SegmentHeader(vgroup_id, version + 1, clock.now_ms(), 0, 0).encode()
    fs.write_atomic(directory / segment_name(version + 1), header)


class WalWriter:
    """Appends records; many threads may enqueue and commit, one at a time writes for all that wait.

    `enqueue_*` fixes version and place; the caller serialises them when the order matters. `commit` returns once
    the record is acknowledged: written (level 1) or written and synced (level 2). A refused write (disk full)
    takes back everything enqueued behind it too: then `refused` is set and nothing may be enqueued until
    `take_back` and `reset`. A failed sync is final: `failed` is set, and only a new open of the log helps.

    `_lock` guards what is enqueued, the ends, and whether a thread is writing (`_leading`). Only that thread
    appends, and it does so without a lock: who enqueues never waits for the disk. `_sync_lock` is held while the file
    is synced, replaced or cut back; who needs both takes it first.
    """

    def __init__(self, directory: Path, options: WalOptions, *, fs: Fs, clock: Clock, end: AcknowledgedEnd, tail: Tail,
                 file: AppendFile | None, recovery: Recovery) -> None:
        self._directory = directory
        self._clock = clock
        self._level = options.level
        self._end = end
        self._segment = OpenSegment(directory, fs, file)
        self.recovery = recovery
        self._lock = threading.RLock()
        self._written = threading.Condition(self._lock)
        self._waiting = 0  # threads that another one writes for
        self._sync_lock = threading.Lock()
        self._pending = PendingRecords()
        self._leading = False
        self._committed = tail
        self._plan = RecordPlan(options.vgroup_id, options.segment_bytes, clock, tail)
        self._synced = tail.version
        self._last_sync = clock.monotonic()
        self._taken_back = True
        self.refused: StorageError | None = None
        self.failed: StorageError | None = None
        #: why this log takes only copies of records now
        self.following: PenstockError | None = None
        #: waits until the cluster has acknowledged a version, or raises
        self.await_cluster: Callable[[int], None] | None = None

    @classmethod
    def open(cls, directory: Path, options: WalOptions, *, fs: Fs, clock: Clock, acknowledged: int | None = None
             ) -> WalWriter:
        """Opens the log, creating it when missing, and cuts a torn tail.

        `acknowledged`: a cluster has acknowledged all up to this version for sure, and will acknowledge what is behind
        it; None: what is written is acknowledged.
        Raises CorruptionError when acknowledged records cannot be read, StorageError when the system refuses.
        """
        fs.make_dirs(directory)
        end_file = EndFile.open(fs, directory)
        before = end_file.read()
        # What was acknowledged under level 1 is not promised, whatever the level is now; under 2 both are the same.
        promised = before.synced
        tail, file, cut = recover(directory, fs, options.vgroup_id, None if before is NO_END else promised)
        if tail.version < promised:
            if file is not None:
                file.close()
            raise damaged(directory / segment_name(max(tail.segment, 1)), tail.offset,
                          f"records up to version {promised} were synced, but only {tail.version} can be read")
        if file is not None:
            if cut:
                file.truncate(tail.offset)
            file.sync()
        recovery = Recovery(tail.version, cut, max(0, before.version - tail.version))
        end = open_end(end_file, before, tail, fs, directory, acknowledged)
        end_file.sync()
        if before is NO_END:
            fs.fsync_dir(directory)
        return cls(directory, options, fs=fs, clock=clock, end=end, tail=tail, file=file, recovery=recovery)

    @property
    def acknowledged_version(self) -> int:
        """The version that readers may go to."""
        return self._end.tail.version

    @property
    def written_version(self) -> int:
        """The version of the last written record; at level 2 it is synced. In a cluster it may not count yet."""
        return self._committed.version

    @property
    def bounded(self) -> bool:
        """Whether a cluster acknowledges what is written."""
        return self._end.bounded

    @property
    def written_end(self) -> LogEnd:
        """Where the last written record ends."""
        tail = self._committed
        return LogEnd(tail.version, tail.segment, tail.offset, self._synced)

    def acknowledge(self, version: int) -> None:
        """The cluster has acknowledged all up to a version, which is written here: readers go on to it."""
        with self._lock:
            self._end.acknowledge(version, self._synced)

    @property
    def last_version(self) -> int:
        """The version of the last enqueued record."""
        return self._plan.tail.version

    @property
    def synced_version(self) -> int:
        return self._synced

    def enqueue_rows(self, table_uid: int, batch: pa.RecordBatch, ingest_time_ms: int,
                     origin: IngestOrigin | None = None, schema: pa.Schema | None = None, *,
                     continues: bool = False) -> Ticket:
        """Enqueues complete rows; `schema` is the batch's, with the key column count (see `with_key_columns`).

        `continues`, here and below: what is enqueued next belongs to it. The log ends with neither or with both, for
        readers and after a crash. If that next record can't be enqueued, `drop_held` is to be called.
        """
        behind = () if origin is None else (wire.encode_origin(origin),)
        with self._lock:
            self._require_open()
            return self._pending.add(self._plan.rows(
                RecordKind.ROWS, table_uid, batch.schema if schema is None else schema, ingest_time_ms,
                lambda shape: wire.rows_payload(table_uid, shape, batch) + behind, size_of(behind),
                continues))

    def enqueue_packed(self, table_uid: int, schema: pa.Schema, rows: Sequence[bytes], layout: RowFormat,
                       ingest_time_ms: int, origin: IngestOrigin | None = None, *, continues: bool = False) -> Ticket:
        """Enqueues complete rows in the packed form of `layout`; see `RowFormat.pack`.

        They are sorted by key, without duplicates of a key; `schema` carries the key column count.
        """
        behind = () if origin is None else (wire.encode_origin(origin),)
        with self._lock:
            self._require_open()
            return self._pending.add(self._plan.rows(
                RecordKind.PACKED_ROWS, table_uid, schema, ingest_time_ms,
                lambda shape: wire.packed_rows_payload(table_uid, shape, rows, layout) + behind, size_of(behind),
                continues))

    def enqueue_delete(self, table_uid: int, tuids: tuple[int, ...] | None, first_ts: int, last_ts: int,
                       ingest_time_ms: int) -> Ticket:
        """Enqueues a DELETE record."""
        return self.enqueue(RecordKind.DELETE, wire.delete_payload(table_uid, tuids, first_ts, last_ts), ingest_time_ms)

    def enqueue_meta(self, body: dict[str, Any], ingest_time_ms: int) -> Ticket:
        """Enqueues a META record."""
        return self.enqueue(RecordKind.META, wire.meta_payload(body), ingest_time_ms)

    def enqueue_time_mark(self, writer: str, ts_ms: int, ingest_time_ms: int) -> Ticket:
        """Enqueues a TIME_MARK record."""
        return self.enqueue(RecordKind.TIME_MARK, wire.time_mark_payload(writer, ts_ms), ingest_time_ms)

    def enqueue(self, kind: RecordKind, payload: Pieces, ingest_time_ms: int, *, continues: bool = False) -> Ticket:
        """Enqueues a record of any kind but rows; `wal.record` makes their payloads."""
        with self._lock:
            self._require_open()
            return self._pending.add(self._plan.record(kind, payload, ingest_time_ms, continues=continues))

    def drop_held(self) -> None:
        """Gives up what was enqueued to be continued, and wasn't."""
        with self._lock:
            if self._pending.drop_held():
                self._plan.take_back_continued()

    def _require_open(self) -> None:
        problem = self.failed or self.refused
        if problem is not None:
            raise StorageError(f"the log in {self._directory} takes no writes: {problem.message}", hint=problem.hint)
        if self.following is not None:
            raise self.following

    def commit(self, ticket: Ticket) -> None:
        """Waits until the record is acknowledged. Raises StorageError when it was refused.

        In a cluster it raises what `await_cluster` does, too: the record is written, but nobody knows what will be.
        """
        self._commit(ticket)
        if self.await_cluster is not None:
            self.await_cluster(ticket.version)

    def _commit(self, ticket: Ticket) -> None:
        group: list[PendingRecord] | None = None
        with self._lock:
            while not ticket.done:
                if not self._leading:
                    self._leading = True
                    group = self._pending.take()
                    break
                self._await_leader()
        if group is not None:
            self._lead(group)
        if ticket.error is not None:
            raise ticket.error

    def _await_leader(self) -> None:
        """Waits until a group was written; the caller holds `_lock`."""
        self._waiting += 1
        self._written.wait()
        self._waiting -= 1

    def commit_all(self) -> None:
        """Waits until everything enqueued so far is written. Raises StorageError when some was refused."""
        with self._lock:
            ticket = self._pending.newest
            if ticket is None:
                while self._leading:
                    self._await_leader()
                problem = self.failed or self.refused
        if ticket is not None:
            self._commit(ticket)
        elif problem is not None:
            raise problem

    def commit_written(self) -> int:
        """Waits until everything enqueued so far is acknowledged; returns the last version. Raises as `commit` does."""
        self.commit_all()
        version = self.written_version
        if self.await_cluster is not None:
            self.await_cluster(version)
        return version

    def _lead(self, group: list[PendingRecord]) -> None:
        """Writes everything that was pending; only the thread that set `_leading` comes here."""
        error: StorageError | None = None
        returned = False
        try:
            error = self._write(group)
            returned = True
        finally:
            if not returned:  # whatever happened, nothing unwritten may be acknowledged
                self.failed = error = StorageError(
                    f"writing the log in {self._directory} was interrupted", hint="restart the engine")
            with self._lock:
                self._leading = False
                if error is not None:
                    group += self._pending.take()
                    if self.failed is None:
                        self.refused = error
                elif group:
                    self._committed = group[-1][1].tail
                    if self._level == 2:
                        self._synced = max(self._synced, self._committed.version)
                    self._end.written(group, self._committed, self._synced)
                for ticket, _ in group:
                    ticket.error = error
                    ticket.done = True
                if self._waiting:
                    self._written.notify_all()

    def _write(self, group: list[PendingRecord]) -> StorageError | None:
        written: list[bytes | pa.Buffer] = []
        try:
            for _, record in group:
                if record.opens_segment:
                    self._segment.append(written)
                    written = []
                    self._roll(record.tail.segment)
                written += record.data
            self._segment.append(written)
        except StorageError as error:
            return self._take_back(error)
        except FileNotFoundError as error:
            return self._take_back(StorageError(f"the log's directory {self._directory} is gone: {error}"))
        return self._sync_file() if self._level == 2 else None

    def _roll(self, first_version: int) -> None:
        with self._sync_lock:
            error = self._sync_file()
            if error is not None:
                raise error
            self._segment.begin(first_version)

    def _sync_file(self) -> StorageError | None:
        try:
            self._segment.sync()
        except StorageError as error:
            # The system may have dropped the unsynced pages: a second sync would succeed without them on disk.
            self.failed = StorageError(f"{error.message}; the log is closed for writing",
                                       hint="repair the disk, and restart the engine")
            return self.failed
        return None

    def _take_back(self, error: StorageError) -> StorageError:
        """Makes the log end at the last acknowledged record again, so that later writes can go on from there.

        Returns why the write was refused. A disk that refuses this, too, is asked again by `take_back`.
        """
        if self.failed is not None:
            return self.failed
        with self._sync_lock:
            try:
                self._segment.cut_back(self._committed)
            except (StorageError, FileNotFoundError) as second:
                self._taken_back, self.refused = False, error
                _log.error("the log in %s can't be cut back to version %d, and takes no writes before it was: %s",
                           self._directory, self._committed.version, second)
                return error
            self._taken_back = True
        return error

    def take_back(self) -> None:
        """Makes the log end at the last acknowledged record if the disk has refused that until now.

        Raises the refused write's StorageError if it still does.
        """
        if not self._taken_back and self.refused is not None:
            self._take_back(self.refused)
            if not self._taken_back:
                raise self.refused

    def reset(self) -> None:
        """Goes on behind the last acknowledged record after a refused write; versions are given out anew."""
        with self._lock:
            self._pending.drop_held()
            self._plan.go_on_behind(self._committed)
            self.refused = None

    # What comes from, and goes to, copies of the log: see `CopiedLog`.

    @property
    def tail(self) -> Tail:
        """Where the last written record ends."""
        return self._committed

    def append_copied(self, data: bytes, tail: Tail, *, opens_segment: bool) -> None:
        """Appends records of another log as they are, up to `tail`. `opens_segment`: `data` begins with its header.

        The caller has checked that they fit, and nobody else writes. Raises StorageError; then they aren't there.
        """
        with self._lock:
            problem = self.failed or self.refused
            if problem is None:
                self._plan.go_on_behind(tail)
                ticket = self._pending.add(PlannedRecord((data,), tail, opens_segment, len(data)))
        if problem is not None:
            raise problem
        self._commit(ticket)

    def cut(self, tail: Tail) -> None:
        """Makes the log end earlier, with the record that `tail` is behind; nobody writes meanwhile.

        Raises StorageError; then the log has failed, and ends with this record or a later one.
        """
        self.sync()
        with self._sync_lock, self._lock:
            if self._leading or self._pending or tail.version > self._committed.version:
                raise InternalError(f"the log in {self._directory} is written while it is cut")
            self.failed = StorageError(f"cutting the log in {self._directory} was interrupted",
                                       hint="restart the engine")
            self._committed = tail
            self._synced = tail.version
            self._plan.go_on_behind(tail)
            # First nothing is promised any more of what goes.
            self._end.cut(tail)
            self._segment.cut_back(tail)
            self._segment.sync()
            self.failed = None

    def sync(self) -> None:
        """Makes everything acknowledged so far durable. Raises StorageError; then the log has failed."""
        with self._sync_lock:
            with self._lock:
                problem = self.failed or (None if self._taken_back else self.refused)
                if problem is not None:
                    raise problem
                version = self._committed.version
                if version == self._synced:
                    return
            error = self._sync_file()
            if error is not None:
                raise error
            with self._lock:
                self._synced = max(self._synced, version)
                self._last_sync = self._clock.monotonic()
                self._end.publish(self._synced)

    def set_level(self, level: int) -> None:
        """Acknowledges at another level from the next record on; with 2, all before it is durable on return, too.

        Raises StorageError if that can't be; then the log has failed.
        """
        with self._lock:
            while self._leading:  # the group that is being written is acknowledged as it was begun
                self._await_leader()
            self._level = level
        if level == 2:
            self.sync()

    def sync_if_due(self, period_s: float) -> None:
        """Syncs when something is unsynced and the last sync is at least `period_s` ago."""
        if self._clock.monotonic() - self._last_sync >= period_s:
            self.sync()
            self._last_sync = self._clock.monotonic()

    def close(self) -> None:
        """Writes and syncs what is pending, then closes the files. Raises StorageError when that fails."""
        try:
            if self.failed is None:
                self.take_back()
                self.commit_all()
                self.sync()
        finally:
            self._segment.close()
            self._end.close()
