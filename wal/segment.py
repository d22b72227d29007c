"""Segment files of the log: names, chained headers, scanning for the last good record, and the END file."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from penstock.common.errors import CorruptionError
from penstock.common.fs import Fs
from penstock.common.futex import SharedWord
from penstock.wal.record import (
    ALIGNMENT,
    HEADER_SIZE,
    DamagedRecordError,
    Header,
    RecordKind,
    check_payload,
    crc32c,
    decode_header,
)

SEGMENT_MAGIC = b"PNSTWAL1"
FORMAT = 4
_SEGMENT = struct.Struct("<8sIIQqQI16x")
_CRC = struct.Struct("<I")
SEGMENT_HEADER_SIZE = _SEGMENT.size + _CRC.size

END_NAME = "END"
_END = struct.Struct("<8sQQQQQ")
_END_MAGIC = b"PNSTEND1"
_SLOT = 64
END_SIZE = 2 * _SLOT
_BELL = _SLOT - 4  # in the first slot, behind what it says


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The first bytes of a segment. `previous_first` (0: none) and `previous_crc` chain it to the segment before."""

    vgroup_id: int
    first_version: int
    created_ms: int
    previous_first: int
    previous_crc: int

    def encode(self) -> tuple[bytes, int]:
        """Returns the header's bytes and their checksum."""
        body = _SEGMENT.pack(SEGMENT_MAGIC, FORMAT, self.vgroup_id, self.first_version, self.created_ms,
                             self.previous_first, self.previous_crc)
        crc = crc32c(body)
        return body + _CRC.pack(crc), crc


def decode_segment_header(data: bytes, path: Path) -> tuple[SegmentHeader, int]:
    """Returns the header and its checksum. Raises DamagedRecordError; CorruptionError if `path` has another format."""
    if len(data) < SEGMENT_HEADER_SIZE:
        raise DamagedRecordError("the segment's header is cut off")
    body = data[:_SEGMENT.size]
    (crc,) = _CRC.unpack_from(data, _SEGMENT.size)
    if crc32c(body) != crc:
        raise DamagedRecordError("the checksum of the segment's header does not fit")
    magic, version, vgroup_id, first, created, previous_first, previous_crc = _SEGMENT.unpack(body)
    if magic != SEGMENT_MAGIC:
        raise DamagedRecordError("not a segment")
    if version != FORMAT:
        raise CorruptionError(f"write-ahead log segment {path} has format {version}; this version of Penstock knows "
                              f"format {FORMAT}", hint="use the version that wrote it")
    return SegmentHeader(vgroup_id, first, created, previous_first, previous_crc), crc


def segment_name(first_version: int) -> str:
    """Returns the file name of the segment that starts with this version."""
    return f"{first_version:020d}.log"


def list_segments(fs: Fs, directory: Path) -> list[int]:
    """Returns the first versions of all segments, ascending."""
    return [int(name[:-4]) for name in fs.list(directory) if name.endswith(".log") and name[:-4].isdigit()]


def damaged(path: Path, offset: int, reason: object) -> CorruptionError:
    """Returns the error for bytes of a segment that make no sense."""
    return CorruptionError(f"write-ahead log segment {path} is damaged at offset {offset}: {reason}",
                           hint="restore the file from a copy, or remove the vnode and rebuild it")


class Tail(NamedTuple):
    """Where the log ends: the last counted version, its segment, the offset behind it, the last record's checksum."""

    version: int
    segment: int
    offset: int
    crc: int


def scan(data: bytes | mmap.mmap, header_crc: int) -> Iterator[tuple[int, Header]]:
    """Yields (offset, header) of the records of a segment with all checksums and the chain verified.

    Raises DamagedRecordError at the first byte that doesn't belong to a good record.
    """
    offset, previous = SEGMENT_HEADER_SIZE, header_crc
    size = len(data)
    while offset < size:
        header = decode_header(data[offset:offset + HEADER_SIZE])
        if header.previous_crc != previous:
            raise DamagedRecordError("the record doesn't follow the one before it")
        start = offset + HEADER_SIZE
        check_payload(header, data[start:start + header.payload_size])
        if offset + header.total_size > size:
            raise DamagedRecordError("the padding is cut off")
        yield offset, header
        previous = header.crc
        offset += header.total_size


def find_tail(data: bytes | mmap.mmap, path: Path, segment: SegmentHeader, header_crc: int, promised: int | None
              ) -> Tail:
    """Returns the end of the last segment: behind its last good record that counts, with all that it continues.

    Bad bytes at the very end are a torn tail and are left out. So are good records behind bad bytes if none of them
    was `promised` (the last version that must be there): a power cut may spare later sectors of what wasn't synced.
    Raises CorruptionError when a good record lies behind the damage otherwise, or if nothing is known (None): then
    cutting could lose rows that were acknowledged.
    """
    last = segment.first_version - 1
    version, offset, crc = last, SEGMENT_HEADER_SIZE, header_crc
    scanned = offset
    try:
        for at, header in scan(data, header_crc):
            scanned = at + header.total_size
            # A declaration whose record is missing is left out: the record that comes in its place has its own.
            if header.kind is not RecordKind.SCHEMA:
                if header.version != last + 1:
                    raise damaged(path, at, f"version {header.version} follows {last}")
                last = header.version
                if not header.continues:
                    version, offset, crc = last, scanned, header.crc
    except DamagedRecordError as error:
        later = good_record_behind(data, scanned)
        if later is not None and (promised is None or version < promised):
            raise damaged(path, scanned, f"{error}; a good record follows at offset {later}") from error
    return Tail(version, segment.first_version, offset, crc)


def good_record_behind(data: bytes | mmap.mmap, offset: int) -> int | None:
    """Returns where the first good record behind `offset` lies, or None."""
    magic = b"PWAL"
    at = data.find(magic, offset + 1)
    while at >= 0:
        if at % ALIGNMENT == 0:
            try:
                header = decode_header(data[at:at + HEADER_SIZE])
                check_payload(header, data[at + HEADER_SIZE:at + HEADER_SIZE + header.payload_size])
            except DamagedRecordError:
                pass  # bytes inside a payload that look like a record's start
            else:
                return at
        at = data.find(magic, at + 1)
    return None


class LogEnd(NamedTuple):
    """The acknowledged end of the log, and the last version known to be synced to disk."""

    version: int
    segment: int
    offset: int
    synced: int


NO_END = LogEnd(0, 0, 0, 0)


class EndFile:
    """A small shared map that says how far readers of other processes may go, and wakes those that wait for more.

    Two slots are written in turn, each with a checksum, so that at least one is whole at any time, also after a
    crash in the middle of a write.
    """

    def __init__(self, map_: mmap.mmap) -> None:
        self._map = map_
        self._bell = SharedWord(map_, _BELL)
        self._said: tuple[bytes, LogEnd] | None = None
        self._sequence = max((slot[0] for slot in self._slots()), default=0)

    @classmethod
    def open(cls, fs: Fs, directory: Path) -> EndFile:
        """Maps the END file of a log for writing, creating it when missing."""
        return cls(fs.map_shared(directory / END_NAME, END_SIZE))

    def _slots(self) -> list[tuple[int, LogEnd]]:
        found = []
        for start in (0, _SLOT):
            data = self._map[start:start + _END.size + _CRC.size]
            if crc32c(data[:_END.size]) == _CRC.unpack_from(data, _END.size)[0]:
                magic, sequence, version, segment, offset, synced = _END.unpack_from(data)
                if magic == _END_MAGIC:
                    found.append((sequence, LogEnd(version, segment, offset, synced)))
        return found

    def write(self, end: LogEnd) -> None:
        """Publishes a new end. One writer at a time."""
        self._sequence += 1
        body = _END.pack(_END_MAGIC, self._sequence, end.version, end.segment, end.offset, end.synced)
        start = _SLOT * (self._sequence % 2)
        self._map[start:start + _END.size + _CRC.size] = body + _CRC.pack(crc32c(body))
        self._bell.ring()

    def wait(self, version: int, timeout_s: float) -> bool:
        """Waits until the end isn't at `version`, at most `timeout_s`; returns False if this system can't wait so."""
        # Looked at first: what is published from now on rings once more.
        rung = self._bell.value
        return self.read().version != version or self._bell.wait(rung, timeout_s)

    def read(self) -> LogEnd:
        """Returns the newest whole slot, or NO_END when nothing was ever published."""
        data = self._map[:_BELL] + self._map[_SLOT:]
        if self._said is not None and self._said[0] == data:
            return self._said[1]
        # Both slots can look torn only when the writer passes twice during one read: then the next read is fine.
        for _ in range(8):
            slots = self._slots()
            if slots:
                newest = max(slots, key=lambda slot: slot[0])[1]
                if self._map[:_BELL] + self._map[_SLOT:] == data:
                    self._said = data, newest
                return newest
        return NO_END

    def sync(self) -> None:
        """Makes what was published durable, so that a power cut leaves it or something newer."""
        self._map.flush()

    def close(self) -> None:
        self._map.close()
