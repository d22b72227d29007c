"""Streams that follow the same log, one read and decoding for all of them: what one has read, the others take over."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from penstock.common.errors import PenstockError
from penstock.wal.log import Access, Log
from penstock.wal.reader import LogPosition, WalReader
from penstock.wal.record import Record

_STRETCHES, _STRETCH_BYTES = 32, 64 << 10  # larger ones are quickly decoded, and would be kept in memory


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Consecutive records from version `first` on; `end` is the position behind them."""

    first: int
    records: tuple[Record, ...]
    nbytes: int
    end: LogPosition


class RecentRecords:
    """What readers of one process have read of one vnode's log lately. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stretches: deque[_Stretch] = deque(maxlen=_STRETCHES)

    def find(self, version: int, max_records: int, max_bytes: int) -> _Stretch | None:
        """Returns records that begin with a version, if somebody has read them, and no more than the limits allow."""
        with self._lock:
            for stretch in reversed(self._stretches):
                if stretch.first == version:
                    fits = len(stretch.records) <= max_records and stretch.nbytes <= max_bytes
                    return stretch if fits else None
        return None

    def note(self, stretch: _Stretch) -> None:
        """Keeps what was read for the others."""
        with self._lock:
            self._stretches.append(stretch)


class RecentReads:
    """The `RecentRecords` of all logs that a worker's streams follow. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[int, RecentRecords] = {}

    def reader(self, vgroup_id: int, log: Log, from_version: int) -> SharedWalReader:
        """Returns a reader of a vnode's log from a version on."""
        with self._lock:
            recent = self._logs.setdefault(vgroup_id, RecentRecords())
        return SharedWalReader(WalReader(log, from_version), recent)


class SharedWalReader:
    """A `WalReader` that takes over what others have read. Not thread-safe itself."""

    def __init__(self, reader: WalReader, recent: RecentRecords) -> None:
        """`recent` is that of the reader's log."""
        self._reader = reader
        self._recent = recent
        self._taken_bytes = 0

    @property
    def bytes_read(self) -> int:
        """Bytes of payload that were returned so far."""
        return self._reader.bytes_read + self._taken_bytes

    @property
    def access(self) -> Access:
        """How the log is reached."""
        return self._reader.access

    @property
    def acknowledged_version(self) -> int:
        """The version that readers may go to now; 0 for an empty log. Cheap."""
        return self._reader.acknowledged_version

    def read(self, max_records: int = 1024, max_bytes: int = 16 << 20) -> list[Record]:
        """Returns the next records; see `WalReader.read`."""
        records: list[Record] = []
        nbytes = 0
        while len(records) < max_records and nbytes < max_bytes:
            found = self._recent.find(self._reader.next_version, max_records - len(records), max_bytes - nbytes)
            if found is None:
                try:
                    return records + self._read_on(max_records - len(records), max_bytes - nbytes)
                except PenstockError:
                    if records:
                        return records  # what is wrong behind them is met by the next read
                    raise
            self._reader.go_on_from(found.end)
            self._taken_bytes += found.nbytes
            records += found.records
            nbytes += found.nbytes
        return records

    def _read_on(self, max_records: int, max_bytes: int) -> list[Record]:
        """Reads what nobody has read yet."""
        first, before = self._reader.next_version, self._reader.bytes_read
        records = self._reader.read(max_records, max_bytes)
        nbytes = self._reader.bytes_read - before
        if records and nbytes <= _STRETCH_BYTES:
            self._recent.note(_Stretch(first, tuple(records), nbytes, self._reader.position))
        return records

    def close(self) -> None:
        """Closes the log; records that were returned stay readable."""
        self._reader.close()
