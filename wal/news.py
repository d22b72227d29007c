"""Tells which tables the newest records of a log are of, by a look at their headers; decodes no rows."""

from __future__ import annotations

from penstock.common.errors import PenstockError
from penstock.wal.log import Log, Segment
from penstock.wal.record import HEADER_SIZE, TABLE_SIZE, DamagedRecordError, RecordKind, decode_header, table_of
from penstock.wal.segment import NO_END, LogEnd

_LOOKED_AT = HEADER_SIZE + TABLE_SIZE
_BYTES_AT_ONCE = 16 << 10  # of many small records; of a large one only the beginning is read
_RECORDS_MAX = 256  # with more than these, there is something for everybody


class WalNews:
    """Follows the end of a log for who wakes readers. Not thread-safe; makes no statement that a reader relies on.

    Where it can't tell whom records concern, they concern everybody: the readers meet what is wrong with the log.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._seen: LogEnd = NO_END
        self._file: Segment | None = None  # that of `_seen`

    @property
    def version(self) -> int:
        """The acknowledged version as of the last look."""
        return self._seen.version

    def wait(self, timeout_s: float) -> bool:
        """Waits until the acknowledged version isn't `version`; see `Log.wait`."""
        return self._log.wait(self._seen.version, timeout_s)

    def look(self) -> frozenset[int] | None:
        """Returns the tables that records since the last look have rows or deletes of; None: they concern everybody.

        The first look says nothing of what was there before. Raises StorageError.
        """
        before, end = self._seen, self._log.end()
        if end.version == before.version:
            return frozenset()
        self._seen = end
        if end.segment != before.segment:
            self._close_segment()
        if before is NO_END or end.segment != before.segment or self._log.access != "files":
            return None
        try:
            return self._tables_between(before.offset, end)
        except (DamagedRecordError, PenstockError, FileNotFoundError):
            self._close_segment()
            return None

    def _tables_between(self, offset: int, end: LogEnd) -> frozenset[int] | None:
        """Returns what the records are of that lie between two offsets of the open segment."""
        if self._file is None:
            self._file = self._log.open(end.segment)
        found: set[int] = set()
        data, start = b"", offset
        for _ in range(_RECORDS_MAX):
            if offset >= end.offset:
                return frozenset(found)
            if offset + _LOOKED_AT > start + len(data):
                begin, buffer = self._file.view(offset, _LOOKED_AT, min(end.offset, offset + _BYTES_AT_ONCE))
                data, start = buffer.slice(offset - begin).to_pybytes(), offset
            place = offset - start
            header = decode_header(data[place:place + HEADER_SIZE])
            offset += header.total_size
            if header.kind in (RecordKind.META, RecordKind.TIME_MARK):
                return None
            if header.kind is not RecordKind.SCHEMA:
                found.add(table_of(data[place + HEADER_SIZE:place + _LOOKED_AT]))
        return None

    def _close_segment(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        """Closes the log."""
        self._close_segment()
        self._log.close()
