"""Follows one vnode's log from any process: decodes its segments without copying, never passes the END."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import pyarrow as pa

from penstock.common.errors import PenstockError
from penstock.wal.log import Access, Log, Segment
from penstock.wal.record import (
    HEADER_SIZE,
    TABLE_SIZE,
    DamagedRecordError,
    Header,
    MetaRecord,
    OtherRecord,
    PackedRun,
    Record,
    RecordKind,
    check_payload,
    decode,
    decode_header,
    decode_schema,
    packed_start,
    table_of,
)
from penstock.wal.segment import (
    NO_END,
    SEGMENT_HEADER_SIZE,
    LogEnd,
    damaged,
    decode_segment_header,
    segment_name,
)

_OF_TABLES = (RecordKind.ROWS, RecordKind.PACKED_ROWS, RecordKind.DELETE, RecordKind.DELETE_POINTS)


class WalGapError(PenstockError):
    """The version that a reader wants next is not in the log: retention deleted it, or it was never written."""

    actor = "operator"

    def __init__(self, directory: Path, wanted: int, oldest: int, newest: int) -> None:
        if wanted <= newest:
            text = f"version {wanted} of the log in {directory} was deleted by retention; the oldest is {oldest}"
            hint = "raise wal_retention_period or walPinMax, and rebuild what depends on it from the table"
        else:
            text = f"version {wanted} of the log in {directory} was never written or got lost; it ends at {newest}"
            hint = "under WAL_LEVEL 1 a power cut may lose the last WAL_FSYNC_PERIOD"
        super().__init__(text, hint=hint)
        self.wanted = wanted
        self.oldest = oldest
        self.newest = newest


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Where a reader is: behind `offset` in a segment (its first version), whose shapes are known so far."""

    next_version: int
    segment: int
    offset: int
    crc: int
    schemas: Mapping[int, pa.Schema]


class WalReader:
    """Reads the records from version `from_version` (inclusive) on, in order, as far as they are acknowledged.

    Not thread-safe. Survives segment roll.
    """

    def __init__(self, log: Log, from_version: int = 1) -> None:
        self._log = log
        self._next = max(from_version, 1)
        self._segment = 0  # first version of the open segment; 0: none is open
        self._file: Segment | None = None
        self._buffer = pa.py_buffer(b"")
        self._buffer_start = 0
        self._offset = 0
        self._crc = 0
        self._schemas: dict[int, pa.Schema] = {}
        #: bytes of payload that were returned so far
        self.bytes_read = 0

    @property
    def next_version(self) -> int:
        """The version of the record that the next `read` starts with."""
        return self._next

    @property
    def position(self) -> LogPosition:
        """Where the next `read` begins, for other readers of the same log."""
        return LogPosition(self._next, self._segment, self._offset, self._crc, dict(self._schemas))

    def go_on_from(self, position: LogPosition) -> None:
        """Leaves out what another reader has read."""
        if position.segment != self._segment:
            self._close_segment()
            self._buffer_start = 0
        self._next, self._segment = position.next_version, position.segment
        self._offset, self._crc, self._schemas = position.offset, position.crc, dict(position.schemas)

    @property
    def access(self) -> Access:
        """How the log is reached."""
        return self._log.access

    @property
    def acknowledged_version(self) -> int:
        """The version that readers may go to now; 0 for an empty log. Cheap."""
        return self._log.end().version

    def read(self, max_records: int = 1024, max_bytes: int = 16 << 20) -> list[Record]:
        """Returns the next records, none when all acknowledged ones were read; doesn't wait.

        At most `max_records`, and no further ones once `max_bytes` of payload are reached. Raises WalGapError,
        CorruptionError or StorageError; the position stays, and good records before the bad one are returned first.
        """
        return self._read(max_records, max_bytes, None).all()

    def read_of(
        self, tables: frozenset[int] | None, max_records: int = 1024, max_bytes: int = 16 << 20
    ) -> list[Record]:
        """Returns the next records as `read` does, rows and deletes only of some tables (None: of all).

        If the last one is of another table, an `OtherRecord` stands for it. What isn't returned isn't decoded, nor is
        it checked whether it is whole.
        """
        records = self._read(max_records, max_bytes, tables)
        found = records.all()
        return found if records.other is None else [*found, records.other]

    def pass_over(self, operations: frozenset[str], version: int | None = None) -> list[MetaRecord]:
        """Goes on behind a version, or to the end, and returns the META records of some operations on the way."""
        found: list[MetaRecord] = []
        try:
            while records := self.read_of(frozenset(), 1_024 if version is None else min(
                    1_024, version + 1 - self._next)):
                found += [record for record in records
                          if isinstance(record, MetaRecord) and record.body.get("op") in operations]
        except PenstockError:
            pass  # it is met again, and told, by who reads up to there
        return found

    def _read(self, max_records: int, max_bytes: int, tables: frozenset[int] | None) -> _Records:
        records = _Records()
        end = self._log.end()
        if self._next > end.version:
            if self._next > end.version + 1 and end is not NO_END:
                raise WalGapError(self._log.path, self._next, 0, end.version)
            return records
        size = 0
        while self._next <= end.version and records.count < max_records and size < max_bytes:
            try:
                if not self._segment and not self._open_segment_of_next():
                    raise WalGapError(self._log.path, self._next, self._oldest(), end.version)
                if self._file is None:
                    self._open_again()
                header, payload = self._step(end, tables)
            except PenstockError:
                if records.count:
                    return records
                raise
            if header is None:
                continue
            if payload is None:
                records.leave_out(header)
            else:
                try:
                    records.add(header, payload, self._schemas)
                except DamagedRecordError as error:
                    if records.count:
                        return records
                    raise damaged(self._path(), self._offset, error) from error
                size += header.payload_size
                self.bytes_read += header.payload_size
            self._pass(header)
            self._next += 1
        return records

    def _step(self, end: LogEnd, tables: frozenset[int] | None) -> tuple[Header | None, pa.Buffer | None]:
        """Looks at the next record: passes declarations, records before the wanted one, and the segment's end.

        Returns a record of none of `tables` without its payload.
        """
        limit = end.offset if end.segment == self._segment else self._size()
        if self._offset >= limit:
            if end.segment == self._segment:
                raise damaged(self._path(), self._offset, f"it ends before version {self._next}")
            self._open_following()
            return None, None
        try:
            if self._offset + HEADER_SIZE > limit:
                raise DamagedRecordError("the header is cut off")
            header = decode_header(self._bytes(self._offset, HEADER_SIZE, limit).to_pybytes())
            if header.previous_crc != self._crc:
                raise DamagedRecordError("the record doesn't follow the one before it")
            if self._offset + header.total_size > limit:
                raise DamagedRecordError("the payload is cut off")
            if header.version < self._next and header.kind is not RecordKind.SCHEMA:
                self._pass(header)
                return None, None
            if header.version > self._next:
                raise DamagedRecordError(f"version {header.version} stands where {self._next} should")
            if tables is not None and header.kind in _OF_TABLES:
                start = self._bytes(self._offset + HEADER_SIZE, min(TABLE_SIZE, header.payload_size), limit)
                if table_of(start.to_pybytes()) not in tables:
                    return header, None
            payload = self._bytes(self._offset + HEADER_SIZE, header.payload_size, limit)
            check_payload(header, payload)
            if header.kind is RecordKind.SCHEMA:
                declared = decode_schema(header, payload.to_pybytes())
                self._schemas[declared.shape] = declared.schema
                self._pass(header)
                return None, None
        except DamagedRecordError as error:
            raise damaged(self._path(), self._offset, error) from error
        return header, payload

    def _pass(self, header: Header) -> None:
        self._offset += header.total_size
        self._crc = header.crc

    def _bytes(self, offset: int, length: int, limit: int) -> pa.Buffer:
        """Returns bytes of the open segment, out of those that were looked at last if they are among them."""
        start = offset - self._buffer_start
        if start < 0 or start + length > self._buffer.size:
            if self._file is None:
                raise damaged(self._path(), offset, "the segment is not open")
            try:
                self._buffer_start, self._buffer = self._file.view(offset, length, limit)
            except FileNotFoundError:
                raise WalGapError(self._log.path, self._next, self._oldest(), self._log.end().version) from None
            start = offset - self._buffer_start
            if start + length > self._buffer.size:
                raise DamagedRecordError("the segment is shorter than the log's end says")
        return self._buffer.slice(start, length)

    def _path(self) -> Path:
        return self._log.path / segment_name(self._segment)

    def _size(self) -> int:
        return self._file.size() if self._file is not None else 0

    def _oldest(self) -> int:
        return min(self._log.segments(), default=0)

    def _open_segment_of_next(self) -> bool:
        candidates = [first for first in self._log.segments() if first <= self._next]
        return bool(candidates) and self._open(candidates[-1], None)

    def _open_again(self) -> None:
        """Opens the segment that another reader has come to."""
        try:
            self._file = self._log.open(self._segment)
        except FileNotFoundError:
            raise WalGapError(self._log.path, self._next, self._oldest(), self._log.end().version) from None

    def _open_following(self) -> None:
        """Opens the segment behind the finished one; it starts with the wanted version."""
        finished, crc = self._segment, self._crc
        self._close_segment()
        if not self._open(self._next, (finished, crc)):
            raise WalGapError(self._log.path, self._next, self._oldest(), self._log.end().version)

    def _open(self, first: int, previous: tuple[int, int] | None) -> bool:
        path = self._log.path / segment_name(first)
        try:
            file = self._log.open(first)
            _, found = file.view(0, SEGMENT_HEADER_SIZE, SEGMENT_HEADER_SIZE)
        except FileNotFoundError:
            return False  # retention was faster than we
        try:
            header, crc = decode_segment_header(found.to_pybytes(), path)
        except DamagedRecordError as error:
            file.close()
            raise damaged(path, 0, error) from error
        if previous is not None and (header.previous_first, header.previous_crc) != previous:
            file.close()
            raise damaged(path, 0, "the segment doesn't follow the one before it")
        self._segment, self._file, self._crc = first, file, crc
        self._offset = SEGMENT_HEADER_SIZE
        self._schemas = {}
        self._buffer, self._buffer_start = pa.py_buffer(b""), 0
        return True

    def _close_segment(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
        self._segment = 0
        self._buffer = pa.py_buffer(b"")  # decoded batches keep their own map alive

    def close(self) -> None:
        """Closes the log; records that were returned stay readable."""
        self._close_segment()
        self._log.close()


class _Records:
    """The records of one `read`. Packed rows of one table and shape are decoded together, when they are all there."""

    def __init__(self) -> None:
        self.count = 0
        #: stands for those behind all others that are not to be returned
        self.other: OtherRecord | None = None
        self._others: list[Record] = []
        self._runs: list[PackedRun] = []
        self._open: dict[bytes, PackedRun] = {}  # the newest by what its records begin with

    def add(self, header: Header, payload: pa.Buffer, schemas: dict[int, pa.Schema]) -> None:
        """Takes the next record. Raises DamagedRecordError; then it isn't there, but those before it are."""
        if header.kind is RecordKind.PACKED_ROWS:
            start = packed_start(payload)
            run = self._open.get(start)
            if run is None or not run.take(header, payload, schemas):
                run = self._open[start] = PackedRun(header, payload, schemas)
                self._runs.append(run)
        else:
            self._others.append(decode(header, payload, schemas))
        self.count += 1
        self.other = None

    def leave_out(self, header: Header) -> None:
        """Takes note of the next record, which is not to be returned."""
        self.count += 1
        self.other = OtherRecord(header.version, header.ingest_time_ms)

    def all(self) -> list[Record]:
        decoded: list[Record] = [record for run in self._runs for record in run.records()]
        if not self._others and len(self._runs) < 2:
            return decoded
        return sorted([*self._others, *decoded], key=attrgetter("version"))
