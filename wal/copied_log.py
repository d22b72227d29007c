"""A log as nodes copy it from each other: whole records out of it, byte for byte, into it, and its end cut off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from penstock.common.errors import InvalidValueError, NotFoundError
from penstock.common.fs import Fs
from penstock.wal.copied_records import CopiedRecords, behind_copied, walk
from penstock.wal.places import place_behind
from penstock.wal.record import HEADER_SIZE, DamagedRecordError, Header, RecordKind, encode
from penstock.wal.segment import (
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    Tail,
    damaged,
    decode_segment_header,
    list_segments,
    scan,
    segment_name,
)
from penstock.wal.writer import WalWriter

_PREFIX = "cut-"
_AT_ONCE = 1 << 20
_PLACES = 16  # more than nodes that copy one log


class CopiedLog:
    """Copies of records, of and for one open log. Thread-safe; who calls `append` or `cut` is the log's only writer.

    All methods raise StorageError, and CorruptionError where bytes are damaged.
    """

    def __init__(self, writer: WalWriter, directory: Path, fs: Fs, vgroup_id: int) -> None:
        self._writer = writer
        self._directory = directory
        self._fs = fs
        self._vgroup_id = vgroup_id
        self._lock = threading.Lock()
        self._places: dict[int, Tail] = {}  # where versions end at which somebody will go on

    @property
    def begin(self) -> int:
        """The first version that can be read, or will be."""
        segments = list_segments(self._fs, self._directory)
        return segments[0] if segments else self._writer.tail.version + 1

    def read(self, after: int, size_max: int, last_max: int | None = None) -> CopiedRecords | None:
        """Returns records behind version `after`, at least one, of one segment; None if there are none.

        They have at most `size_max` bytes if more than one does, and go no further than version `last_max`. Raises
        NotFoundError if the log begins later.
        """
        tail = self._writer.tail
        last = tail.version if last_max is None else min(tail.version, last_max)
        if after >= last:
            return None
        try:
            return self._read(self._next_place(after, tail), tail, last, size_max)
        except FileNotFoundError:
            raise self._too_old(after) from None

    def _read(self, place: Tail, tail: Tail, last: int, size_max: int) -> CopiedRecords:
        path = self._directory / segment_name(place.segment)
        file = self._fs.open_read(path)
        try:
            limit = tail.offset if place.segment == tail.segment else file.size()
            size = max(size_max, SEGMENT_HEADER_SIZE + HEADER_SIZE)
            while True:
                data = file.read(place.offset, min(size, limit - place.offset))
                try:
                    end = walk(data, place, last if size <= size_max else place.version + 1)
                except DamagedRecordError as error:
                    raise damaged(path, place.offset, error) from error
                if end.version > place.version:
                    break
                if len(data) >= limit - place.offset:
                    raise damaged(path, place.offset, f"it ends before version {place.version + 1}")
                size *= 2
        finally:
            file.close()
        with self._lock:
            self._places.pop(end.version, None)
            self._places[end.version] = end
            if len(self._places) > _PLACES:
                del self._places[next(iter(self._places))]
        return CopiedRecords(place.version, end.version, place.offset == 0, data[:end.offset - place.offset])

    def _next_place(self, after: int, tail: Tail) -> Tail:
        """Returns where the record behind a version begins: behind it, or with the segment that follows."""
        with self._lock:
            place = self._places.get(after)
        if place is None:
            place = self._place_behind(after)
        if place.segment != tail.segment and (
                not place.segment or place.offset >= self._fs.size(self._directory / segment_name(place.segment))):
            return Tail(after, after + 1, 0, place.crc)
        return place

    def _place_behind(self, version: int) -> Tail:
        """Returns where a version ends. Raises NotFoundError if nobody knows any more."""
        place = place_behind(self._fs, self._directory, version)
        if place is None:
            raise self._too_old(version)
        return place

    def _too_old(self, version: int) -> NotFoundError:
        return NotFoundError(f"the log in {self._directory} begins with version {self.begin}, not {version + 1}")

    def append(self, records: CopiedRecords, before: Callable[[], None] = lambda: None) -> None:
        """Writes another log's records as they are, which follow the last one; unsynced if the log's level is 1.

        `before` is called when they are known to fit. Raises InvalidValueError if they don't, or aren't whole; then
        nothing is written.
        """
        writer = self._writer
        if writer.refused is not None:
            writer.take_back()
            writer.reset()
        end, data, opens = writer.tail, records.data, records.opens_segment
        try:
            if end.offset != SEGMENT_HEADER_SIZE:
                behind = behind_copied(records, end, self._vgroup_id)
            elif opens and data[:SEGMENT_HEADER_SIZE] == self._header(end.segment):
                # The header has come before, but a crash has taken what was behind it.
                data, opens = data[SEGMENT_HEADER_SIZE:], False
                behind = behind_copied(replace(records, data=data, opens_segment=False), end, self._vgroup_id)
            else:
                behind = self._without_header(records, end)
        except DamagedRecordError as error:
            raise InvalidValueError(f"records don't fit the log in {self._directory}: {error}") from error
        before()
        writer.append_copied(data, behind, opens_segment=opens)

    def _header(self, segment: int) -> bytes:
        file = self._fs.open_read(self._directory / segment_name(segment))
        try:
            return file.read(0, SEGMENT_HEADER_SIZE)
        finally:
            file.close()

    def _without_header(self, records: CopiedRecords, end: Tail) -> Tail:
        """Takes away a segment that has no record yet, if records fit behind what is before it."""
        try:
            before = self._place_behind(end.version) if end.version else Tail(0, 0, 0, 0)
        except NotFoundError as error:
            raise DamagedRecordError(error.message) from error
        if end.version and not before.segment:
            return behind_copied(records, end, self._vgroup_id)  # what is before it is on no disk of ours
        behind = behind_copied(records, before, self._vgroup_id)
        self._writer.cut(before)
        return behind

    def cut(self, version: int) -> int:
        """Takes away what is behind a version, for good; returns how many records that were.

        They are kept in a file beside, as the segment of a log that begins there. Nobody may read them meanwhile.
        Raises InvalidValueError if the log begins later.
        """
        tail = self._writer.tail
        if version >= tail.version:
            return 0
        try:
            place = self._place_behind(version)
        except NotFoundError as error:
            raise InvalidValueError(f"it can't be cut there: {error.message}") from error
        if version and not place.segment:
            raise InvalidValueError(f"nothing would be left of the log in {self._directory}")
        self._writer.sync()
        keep_cut_records(self._directory, self._fs, place, tail)
        with self._lock:
            self._places = {known: at for known, at in self._places.items() if known <= version}
        self._writer.cut(place)
        return tail.version - version


# --- what was cut off, which no other node may have seen, is kept beside the log as a segment of its own ---


def keep_cut_records(directory: Path, fs: Fs, begin: Tail, end: Tail) -> Path:
    """Writes the records of a log between two places into one segment, that of a log which begins there.

    Returns its file, beside the log's own; it is durable. Raises StorageError, CorruptionError.
    """
    path = _free_name(directory, fs, begin.version + 1)
    unfinished = path.with_name(f"{path.name}.tmp")
    fs.remove(unfinished)
    file = fs.open_append(unfinished)
    try:
        pieces: list[bytes] = []
        size, crc = 0, 0
        for header, vgroup_id, created_ms, payload in _records_between(directory, fs, begin, end):
            if not crc:
                data, crc = SegmentHeader(vgroup_id, begin.version + 1, created_ms, 0, 0).encode()
                pieces.append(data)
            record, crc = encode(header.kind, max(header.version, begin.version + 1), header.ingest_time_ms, (payload,),
                                 crc, header.origin_size, continues=header.continues)
            pieces += map(bytes, record)
            size += header.total_size
            if size >= _AT_ONCE:
                file.append(b"".join(pieces))
                pieces, size = [], 0
        file.append(b"".join(pieces))
        file.sync()
    finally:
        file.close()
    fs.rename(unfinished, path)
    fs.fsync_dir(directory)
    return path


def _free_name(directory: Path, fs: Fs, first: int) -> Path:
    names, number = fs.list(directory), 1
    while (name := f"{_PREFIX}{first}-{number}.log") in names:
        number += 1
    return directory / name


def _records_between(directory: Path, fs: Fs, begin: Tail, end: Tail) -> Iterator[tuple[Header, int, int, bytes]]:
    """Yields header, vgroup, time of the segment, and payload of each record, and first what they need of before."""
    for first in list_segments(fs, directory):
        if not begin.segment <= first <= end.segment:
            continue
        path = directory / segment_name(first)
        data = fs.read(path)
        limit = end.offset if first == end.segment else len(data)
        start = begin.offset if first == begin.segment else SEGMENT_HEADER_SIZE
        try:
            segment, crc = decode_segment_header(data[:SEGMENT_HEADER_SIZE], path)
            for at, header in scan(data[:limit], crc):
                if at >= start or header.kind is RecordKind.SCHEMA:
                    payload = data[at + HEADER_SIZE:at + HEADER_SIZE + header.payload_size]
                    yield header, segment.vgroup_id, segment.created_ms, payload
        except DamagedRecordError as error:
            raise damaged(path, 0, error) from error
