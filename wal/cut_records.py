"""What was cut off from a log is kept beside it, as a segment of its own: records that no other node may have seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.common.fs import Fs
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

_PREFIX = "cut-"
_AT_ONCE = 1 << 20


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
