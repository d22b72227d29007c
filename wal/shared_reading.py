"""Streams that follow the same log, one read and decoding for all of them: what one has read, the others take over."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, is_
from typing import TypeVar, cast

from penstock.common.errors import PenstockError
from penstock.wal.log import Access, Log
from penstock.wal.reader import LogPosition, WalReader
from penstock.wal.record import MetaRecord, Record, RowsRecord, with_time_range

T = TypeVar("T")

_DERIVED_ROWS = 4096
#: Larger records are quickly decoded, and would be kept in memory; small ones take twenty times their bytes there.
_STRETCHES, _STRETCH_BYTES, _STRETCH_RECORDS = 32, 64 << 10, 256
_WHAT_MAX = 32


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Consecutive records from version `first` on, of some tables (None: of all); `end` is the position behind them."""

    first: int
    records: tuple[Record, ...]
    tables: frozenset[int] | None
    nbytes: int
    end: LogPosition

    def after(self, following: _Stretch) -> _Stretch:
        """Returns the two as one."""
        return _Stretch(self.first, self.records + following.records, self.tables, self.nbytes + following.nbytes,
                        following.end)

    def rest(self, version: int) -> _Stretch:
        """Returns the records from a version on that is in it."""
        if version == self.first:
            return self
        rest = self.records[bisect_left(self.records, version, key=attrgetter("version")):]
        return _Stretch(version, rest, self.tables, self.nbytes * len(rest) // len(self.records), self.end)


@dataclass(frozen=True, slots=True)
class _Looked:
    """The META records of some operations from version `first` on; `end` is the position behind the last record."""

    first: int
    end: LogPosition
    records: tuple[MetaRecord, ...]


class RecentRecords:
    """What readers of one process have read of one vnode's log lately. Thread-safe.

    Each reads the rows and deletes of all tables that somebody follows, so that the others can take them over.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stretches: tuple[_Stretch, ...] = ()  # in the order of their records
        self._derived: dict[str, tuple[tuple[RowsRecord, ...], object]] = {}
        self._looking = threading.Lock()
        self._looked: dict[frozenset[str], _Looked] = {}
        self._followers: Counter[int | None] = Counter()
        self.tables: frozenset[int] | None = frozenset()
        self.shared = False  # whether there are several readers

    def follow(self, table: int | None, readers: int) -> None:
        """Counts so many readers more of a table (None: of all)."""
        with self._lock:
            self._followers[table] += readers
            self.shared = self._followers.total() > 1
            if not self.shared:
                self._stretches = ()
                self._derived.clear()
            followed = {table for table, count in self._followers.items() if count}
            self.tables = None if None in followed else frozenset(table for table in followed if table is not None)

    def find(self, version: int, table: int | None, max_records: int, max_bytes: int) -> _Stretch | None:
        """Returns records from a version on, if somebody has read them for readers of the table, and no more
        than the limits allow."""
        stretches = self._stretches
        place = bisect_right(stretches, version, key=attrgetter("first")) - 1
        if place < 0 or version >= stretches[place].end.next_version:
            return None
        found = stretches[place].rest(version)
        if len(found.records) > max_records or found.nbytes > max_bytes:
            return None
        return found if found.tables is None or table in found.tables else None

    def note(self, stretch: _Stretch) -> None:
        """Keeps what was read for the others: the newest records, however many turns it took to read them."""
        with self._lock:
            kept = [other for other in self._stretches
                    if other.end.next_version <= stretch.first or other.first >= stretch.end.next_version]
            place = bisect_right(kept, stretch.first, key=attrgetter("first"))
            before = kept[place - 1] if place else None
            if (before is not None and before.end.next_version == stretch.first and before.tables == stretch.tables
                    and len(before.records) + len(stretch.records) <= _STRETCH_RECORDS):
                kept[place - 1] = before.after(stretch)
            else:
                kept.insert(place, stretch)
            self._stretches = tuple(kept[-_STRETCHES:])

    def told(self, reader: WalReader, operations: frozenset[str]) -> list[MetaRecord]:
        """Returns what `SharedWalReader.told` does; readers that begin together look the log through once."""
        begin = reader.position
        with self._looking:
            looked = self._looked.get(operations)
            if looked is None:
                looked = _Looked(begin.next_version, begin, ())
            elif begin.next_version < looked.first:
                earlier = reader.pass_over(operations, looked.first - 1)
                looked = replace(looked, first=begin.next_version, records=(*earlier, *looked.records))
            reader.go_on_from(looked.end)
            records = (*looked.records, *reader.pass_over(operations))
            self._looked[operations] = _Looked(looked.first, reader.position, records)
        reader.go_on_from(begin)
        return [record for record in records if record.version >= begin.next_version]

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
                if len(self._derived) > _WHAT_MAX:
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
        nbytes, end = 0, self._reader.acknowledged_version
        if self._reader.next_version == end + 1:
            return records
        while len(records) < max_records and nbytes < max_bytes and (
                not records or self._reader.next_version <= end):
            found = self._recent.find(
                self._reader.next_version, self._table, max_records - len(records), max_bytes - nbytes)
            if found is None:
                before = self._reader.bytes_read
                try:
                    further = self._read_on(max_records - len(records), max_bytes - nbytes)
                except PenstockError:
                    if records:
                        return records  # what is wrong behind them is met by the next read
                    raise
                if not further:
                    return records
                records += further
                nbytes += self._reader.bytes_read - before
                continue
            self._reader.go_on_from(found.end)
            self._taken_bytes += found.nbytes
            records += found.records
            nbytes += found.nbytes
        return records

    def _read_on(self, max_records: int, max_bytes: int) -> list[Record]:
        """Reads what nobody has read yet: where others will want it, no more at once than is kept for them."""
        first, before, tables = self._reader.next_version, self._reader.bytes_read, self._recent.tables
        if self._recent.shared:
            max_records, max_bytes = min(max_records, _STRETCH_RECORDS), min(max_bytes, _STRETCH_BYTES)
        records = self._reader.read_of(tables, max_records, max_bytes)
        nbytes = self._reader.bytes_read - before
        if records and self._recent.shared and nbytes <= 2 * _STRETCH_BYTES:
            records = [with_time_range(record) if isinstance(record, RowsRecord) else record for record in records]
            self._recent.note(_Stretch(first, tuple(records), tables, nbytes, self._reader.position))
        return records

    def told(self, operations: frozenset[str]) -> list[MetaRecord]:
        """Returns the META records of some operations that `read` will return; the position stays.

        As far as records are acknowledged now and whole; rows are passed over.
        """
        return self._recent.told(self._reader, operations)

    def derived(self, records: Sequence[RowsRecord], what: str, make: Callable[[], T]) -> T:
        """Returns what `make` makes of records that were read: if it made `what` of the same few rows for another
        reader of this log, the same object.
        """
        return self._recent.derived(records, what, make)

    def close(self) -> None:
        """Closes the log; records that were returned stay readable."""
        if not self._closed:
            self._closed = True
            self._recent.follow(self._table, -1)
        self._reader.close()
