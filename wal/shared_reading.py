"""Streams that follow the same log, one read and decoding for all of them: what one has read, the others take over."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_
from typing import TypeVar, cast

from penstock.common.errors import PenstockError
from penstock.wal.log import Access, Log
from penstock.wal.reader import LogPosition, WalReader
from penstock.wal.record import Record, RowsRecord, with_time_range

T = TypeVar("T")

_DERIVED_ROWS = 4096
_STRETCHES, _STRETCH_BYTES = 32, 64 << 10  # larger ones are quickly decoded, and would be kept in memory


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Consecutive records from a version on, of some tables (None: of all); `end` is the position behind them."""

    records: tuple[Record, ...]
    tables: frozenset[int] | None
    nbytes: int
    end: LogPosition


class RecentRecords:
    """What readers of one process have read of one vnode's log lately. Thread-safe.

    Each reads the rows and deletes of all tables that somebody follows, so that the others can take them over.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stretches: dict[int, _Stretch] = {}  # by their first versions
        self._derived: dict[str, tuple[tuple[RowsRecord, ...], object]] = {}
        self._followers: Counter[int | None] = Counter()
        self.tables: frozenset[int] | None = frozenset()

    def follow(self, table: int | None, readers: int) -> None:
        """Counts so many readers more of a table (None: of all)."""
        with self._lock:
            self._followers[table] += readers
            followed = {table for table, count in self._followers.items() if count}
            self.tables = None if None in followed else frozenset(table for table in followed if table is not None)

    def find(self, version: int, table: int | None, max_records: int, max_bytes: int) -> _Stretch | None:
        """Returns records that begin with a version, if somebody has read them for readers of the table, and no more
        than the limits allow."""
        stretch = self._stretches.get(version)
        if stretch is None or len(stretch.records) > max_records or stretch.nbytes > max_bytes:
            return None
        return stretch if stretch.tables is None or table in stretch.tables else None

    def note(self, first: int, stretch: _Stretch) -> None:
        """Keeps what was read for the others. `first`: the version that it begins with."""
        with self._lock:
            self._stretches.pop(first, None)
            self._stretches[first] = stretch
            if len(self._stretches) > _STRETCHES:
                del self._stretches[next(iter(self._stretches))]


    def derived(self, records: Sequence[RowsRecord], what: str, make: Callable[[], T]) -> T:
        """Returns what `make` makes of records, or what was made of them last, if that was of the same and few rows."""
        known = self._derived.get(what)
        if known is not None and len(known[0]) == len(records) and all(map(is_, known[0], records)):
            return cast(T, known[1])
        made = make()
        if sum(record.batch.num_rows for record in records) <= _DERIVED_ROWS:
            with self._lock:
                self._derived.pop(what, None)
                self._derived[what] = tuple(records), made
                if len(self._derived) > _STRETCHES:
                    del self._derived[next(iter(self._derived))]
        return made


class RecentReads:
    """The `RecentRecords` of all logs that a worker's streams follow. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[int, RecentRecords] = {}

    def reader(self, vgroup_id: int, log: Log, from_version: int, table: int | None = None) -> SharedWalReader:
        """Returns a reader of a vnode's log from a version on: of the rows and deletes of one table (None: of all)."""
        with self._lock:
            recent = self._logs.setdefault(vgroup_id, RecentRecords())
        return SharedWalReader(WalReader(log, from_version), recent, table)


class SharedWalReader:
    """A `WalReader` that takes over what others have read. Not thread-safe itself.

    It may return rows and deletes of other tables, too; see `WalReader.read_of`.
    """

    def __init__(self, reader: WalReader, recent: RecentRecords, table: int | None = None) -> None:
        """`recent` is that of the reader's log."""
        self._reader = reader
        self._recent = recent
        self._table = table
        self._taken_bytes = 0
        self._closed = False
        recent.follow(table, 1)

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
            found = self._recent.find(
                self._reader.next_version, self._table, max_records - len(records), max_bytes - nbytes)
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
        if self._reader.next_version == self._reader.acknowledged_version + 1:
            return []
        first, before, tables = self._reader.next_version, self._reader.bytes_read, self._recent.tables
        records = self._reader.read_of(tables, max_records, max_bytes)
        nbytes = self._reader.bytes_read - before
        if records and nbytes <= _STRETCH_BYTES:
            records = [with_time_range(record) if isinstance(record, RowsRecord) else record for record in records]
            self._recent.note(first, _Stretch(tuple(records), tables, nbytes, self._reader.position))
        return records

    def derived(self, records: Sequence[RowsRecord], what: str, make: Callable[[], T]) -> T:
        """Returns what `make` makes of records that were read; see `RecordReader`. Those of few rows are kept."""
        return self._recent.derived(records, what, make)

    def close(self) -> None:
        """Closes the log; records that were returned stay readable."""
        if not self._closed:
            self._closed = True
            self._recent.follow(self._table, -1)
        self._reader.close()
