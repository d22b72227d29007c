"""Logs and nodes of a cluster in memory, with what happens to disks: refused and torn writes, lost power."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from penstock.common.errors import InvalidValueError, NotFoundError, StorageError
from penstock.mnode.cluster.cluster_messages import LogChunk
from penstock.mnode.cluster.log_epochs import Epochs, EpochStart, added, cut_to, epoch_of, start_of
from penstock.mnode.cluster.stored_logs import LogBounds, StoredLog

_RECORD = struct.Struct("<QQQII")
_SEGMENT_RECORDS = 7


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """A record: version, the epoch that it was written in, what it says, the checksum of the one before and its own."""

    version: int
    epoch: int
    payload: int
    previous_crc: int
    crc: int

    def packed(self) -> bytes:
        return _RECORD.pack(self.version, self.epoch, self.payload, self.previous_crc, self.crc)


def record_after(previous: MemoryRecord | None, version: int, epoch: int, payload: int) -> MemoryRecord:
    """Returns the record that follows another."""
    before = 0 if previous is None else previous.crc
    crc = zlib.crc32(struct.pack("<QQQI", version, epoch, payload, before))
    return MemoryRecord(version, epoch, payload, before, crc)


@dataclass
class MemoryLog:
    """A log whose records are in memory. `refusals`: so many of the next writes and syncs are refused.

    What was cut away is in `set_aside`; `freed` is what tables alone hold. Holds its users to the rules of logs.
    """

    records: list[MemoryRecord] = field(default_factory=list)
    begin: int = 1
    synced: int = 0
    floor: int = 0
    acknowledged: int = 0
    noted: Epochs = ()
    refusals: int = 0
    set_aside: list[MemoryRecord] = field(default_factory=list)
    freed: list[MemoryRecord] = field(default_factory=list)
    on_parted: Callable[[int], None] = lambda version: None

    @property
    def written(self) -> int:
        return self.begin + len(self.records) - 1

    def bounds(self) -> LogBounds:
        return LogBounds(self.begin, self.floor, self.written, self.synced)

    def epochs(self) -> Epochs:
        return self.noted

    def note_epoch(self, start: EpochStart) -> None:
        self._may_refuse()
        assert start.first <= self.written + 1, f"{start} leaves a gap behind {self.written}"
        self.noted = added(self.noted, start)

    def read(self, after: int, size_max: int) -> LogChunk | None:
        if after + 1 < self.begin:
            raise NotFoundError(f"the log begins at version {self.begin}")
        start = start_of(self.noted, after + 1)
        found: list[MemoryRecord] = []
        for record in self.records[after + 1 - self.begin:]:
            other_segment = found and (record.version - 1) % _SEGMENT_RECORDS == 0
            if record.epoch != start.epoch or other_segment or (found and (len(found) + 1) * _RECORD.size > size_max):
                break
            found.append(record)
        if not found:
            return None
        data = b"".join(record.packed() for record in found)
        return LogChunk(after, found[-1].version, start, after % _SEGMENT_RECORDS == 0, data)

    def append(self, chunk: LogChunk) -> None:
        self._may_refuse()
        records = [MemoryRecord(*fields) for fields in _RECORD.iter_unpack(chunk.data)]
        last = self._last()
        if chunk.after != self.written or records[0].previous_crc != (0 if last is None else last.crc):
            raise InvalidValueError("the chunk doesn't follow")
        assert all(epoch_of(self.noted, record.version) == record.epoch for record in records)
        self.records += records

    def write(self, payload: int) -> int:
        """Writes a record of the active's own, returns its version."""
        self._may_refuse()
        version = self.written + 1
        self.records.append(record_after(self._last(), version, epoch_of(self.noted, version), payload))
        return version

    def sync(self) -> None:
        self._may_refuse()
        self.synced = self.written

    def cut(self, version: int) -> int:
        self._may_refuse()
        assert version >= self.floor, f"cut to {version} below the floor {self.floor}"
        gone = self.records[version + 1 - self.begin:]
        del self.records[version + 1 - self.begin:]
        self.set_aside += gone
        self.synced = min(self.synced, version)
        self.acknowledged = min(self.acknowledged, version)
        self.noted = cut_to(self.noted, version)
        return len(gone)

    def parted(self, version: int) -> None:
        self.on_parted(version)

    def acknowledge(self, version: int) -> None:
        assert version <= self.written
        self.acknowledged = max(self.acknowledged, version)

    # --- what happens to it --------------------------------------------------------------------------------------

    def flush(self, version: int) -> None:
        """Tables hold what is up to `version` from now on; they are synced, and so is the log."""
        assert version <= self.acknowledged
        self.floor = max(self.floor, version)
        self.synced = max(self.synced, version)

    def drop_until(self, version: int) -> None:
        """Frees records that tables hold: the log begins behind `version`."""
        version = min(version, self.floor)
        count = version + 1 - self.begin
        if count > 0:
            self.freed += self.records[:count]
            del self.records[:count]
            self.begin = version + 1

    def lose_power(self, chance: Random) -> None:
        """Keeps what was synced, and of the rest what chance leaves of its beginning."""
        kept = chance.randint(self.synced, self.written)
        del self.records[kept + 1 - self.begin:]
        self.synced = kept
        self.restart()

    def restart(self) -> None:
        """The process is new: it knows what is on disk."""
        self.noted = cut_to(self.noted, self.written)
        self.acknowledged = self.floor

    def copy(self) -> MemoryLog:
        """Returns a copy as another node gets it: tables, and the log up to what is acknowledged."""
        end = max(self.acknowledged, self.floor)
        return MemoryLog(self.records[:end + 1 - self.begin], self.begin, end, self.floor, self.floor,
                         cut_to(self.noted, end), freed=list(self.freed))

    def payloads(self) -> list[tuple[int, int]]:
        """Returns version and payload of each record that is still in the log."""
        return [(record.version, record.payload) for record in self.records]

    def payload(self, version: int) -> int:
        """Returns what a record says that is in the log or in tables."""
        at = version - self.begin
        return (self.records[at] if at >= 0 else self.freed[at]).payload

    def _last(self) -> MemoryRecord | None:
        return self.records[-1] if self.records else self.freed[-1] if self.freed else None

    def _may_refuse(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise StorageError("the disk refuses")


@dataclass
class MemoryNode:
    """What a node keeps, in memory."""

    number: int
    stored: dict[int, MemoryLog] = field(default_factory=dict)
    largest_epoch: int = 0

    def life(self) -> int:
        return self.number

    def epoch(self) -> int:
        return self.largest_epoch

    def keep_epoch(self, epoch: int) -> None:
        self.largest_epoch = max(self.largest_epoch, epoch)

    def logs(self) -> Mapping[int, StoredLog]:
        return self.stored
