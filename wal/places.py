"""Where in a log's segments a version ends."""

from __future__ import annotations

from pathlib import Path

from penstock.common.fs import Fs
from penstock.wal.record import HEADER_SIZE, DamagedRecordError, RecordKind, decode_header
from penstock.wal.segment import (
    SEGMENT_HEADER_SIZE,
    Tail,
    damaged,
    decode_segment_header,
    list_segments,
    segment_name,
)


def place_behind(fs: Fs, directory: Path, version: int) -> Tail | None:
    """Returns where a version ends; at no place of a segment if the log begins right behind it. None: nobody knows.

    Raises CorruptionError, StorageError.
    """
    segments = list_segments(fs, directory)
    before = [first for first in segments if first <= version]
    if not before:
        return Tail(version, 0, 0, 0) if version + 1 in segments or not (version or segments) else None
    path = directory / segment_name(before[-1])
    data, at = fs.read(path), 0
    try:
        decode_segment_header(data[:SEGMENT_HEADER_SIZE], path)
        at = SEGMENT_HEADER_SIZE
        while at < len(data):
            record = decode_header(data[at:at + HEADER_SIZE])
            at += record.total_size
            if record.version == version and record.kind is not RecordKind.SCHEMA:
                return Tail(version, before[-1], at, record.crc)
    except DamagedRecordError as error:
        raise damaged(path, at, error) from error
    raise damaged(path, at, f"it ends before version {version}")
