"""Where a log ends when it is opened: its last good record, behind which is a torn tail."""

from __future__ import annotations

from pathlib import Path

from penstock.common.errors import CorruptionError
from penstock.common.fs import AppendFile, Fs
from penstock.wal.record import DamagedRecordError
from penstock.wal.segment import (
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    Tail,
    damaged,
    decode_segment_header,
    find_tail,
    good_record_behind,
    list_segments,
    segment_name,
)


def recover(directory: Path, fs: Fs, vgroup_id: int, promised: int | None) -> tuple[Tail, AppendFile | None, int]:
    """Returns the log's tail, the last segment open for appending, and how many bytes must be cut off.

    `promised`: the last version that was synced for sure, None if nobody knows.
    """
    cut = 0
    segments = list_segments(fs, directory)
    while segments:
        first = segments[-1]
        path = directory / segment_name(first)
        data = fs.read(path)
        try:
            header, crc = decode_segment_header(data, path)
        except DamagedRecordError as error:
            # A crash while the segment was being created leaves a file without records.
            if good_record_behind(data, 0) is not None and (promised is None or first <= promised):
                raise damaged(path, 0, error) from error
            fs.remove(path)
            cut += len(data)
            segments.pop()
            continue
        if header.vgroup_id != vgroup_id or header.first_version != first:
            raise CorruptionError(f"{path} belongs to vgroup {header.vgroup_id}, version {header.first_version}")
        _check_chain(fs, directory, segments, header)
        tail = find_tail(data, path, header, crc, promised)
        if tail.version < first and tail.offset == SEGMENT_HEADER_SIZE:
            tail = tail._replace(version=first - 1)
        return tail, fs.open_append(path), cut + len(data) - tail.offset
    return Tail(0, 0, 0, 0), None, cut


def _check_chain(fs: Fs, directory: Path, segments: list[int], last: SegmentHeader) -> None:
    """Raises CorruptionError when a segment in the middle of the log is missing or its header is damaged."""
    expected = last.previous_first
    for first in reversed(segments[:-1]):
        path = directory / segment_name(first)
        if first != expected:
            raise CorruptionError(f"write-ahead log segment {directory / segment_name(expected)} is missing")
        file = fs.open_read(path)
        try:
            header, _ = decode_segment_header(file.read(0, SEGMENT_HEADER_SIZE), path)
        except DamagedRecordError as error:
            raise damaged(path, 0, error) from error
        finally:
            file.close()
        expected = header.previous_first
