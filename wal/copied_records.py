"""Records on their way from one log to a copy of it, byte for byte: whether they are whole, and whether they fit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.wal.record import HEADER_SIZE, DamagedRecordError, RecordKind, check_payload, decode_header
from penstock.wal.segment import SEGMENT_HEADER_SIZE, Tail, decode_segment_header, segment_name


@dataclass(frozen=True, slots=True)
class CopiedRecords:
    """Whole records of one segment, which follow version `after` and end with `last`.

    `opens_segment`: `data` begins with the segment's header.
    """

    after: int
    last: int
    opens_segment: bool
    data: bytes


def walk(data: bytes, place: Tail, last_max: int) -> Tail:
    """Returns where the last record ends that is all there in `data`, begins no later than `last_max`, and isn't
    continued: what belongs together is copied together.

    `data` are the bytes of a segment from `place` on; if that is the segment's beginning, its header comes first.
    Raises DamagedRecordError where bytes are no records that follow each other from `place` on.
    """
    at, crc, version = 0, place.crc, place.version
    if place.offset == 0:
        _, crc = decode_segment_header(data[:SEGMENT_HEADER_SIZE], Path(segment_name(place.segment)))
        at = SEGMENT_HEADER_SIZE
    end, end_crc, size = 0, place.crc, len(data)
    last = version
    while at + HEADER_SIZE <= size and (version < last_max or last > version):
        record = decode_header(data[at:at + HEADER_SIZE])
        if record.previous_crc != crc:
            raise DamagedRecordError("the record doesn't follow the one before it")
        if record.version != last + 1:
            raise DamagedRecordError(f"version {record.version} follows {last}")
        behind = at + record.total_size
        if behind > size:
            break
        payload_end = at + HEADER_SIZE + record.payload_size
        check_payload(record, data[at + HEADER_SIZE:payload_end])
        if data[payload_end:behind].strip(b"\0"):
            raise DamagedRecordError("something stands in the padding")
        at, crc = behind, record.crc
        if record.kind is not RecordKind.SCHEMA:
            last = record.version
            if not record.continues:
                version, end, end_crc = last, at, crc
    return Tail(version, place.segment, place.offset + end, end_crc) if end else place


def behind_copied(records: CopiedRecords, end: Tail, vgroup_id: int) -> Tail:
    """Returns where a log that ends at `end` will end with these records. Raises DamagedRecordError if they don't fit.
    """
    if records.after != end.version:
        raise DamagedRecordError(f"they follow version {records.after}, but the log ends with {end.version}")
    place = end
    if records.opens_segment:
        header, _ = decode_segment_header(records.data[:SEGMENT_HEADER_SIZE], Path(segment_name(end.version + 1)))
        if (header.vgroup_id, header.first_version) != (vgroup_id, end.version + 1):
            raise DamagedRecordError(f"their segment is version {header.first_version} of vgroup {header.vgroup_id}")
        if (header.previous_first, header.previous_crc) != (end.segment, end.crc):
            raise DamagedRecordError("their segment doesn't follow that of the log")
        place = Tail(end.version, end.version + 1, 0, end.crc)
    elif not end.segment:
        raise DamagedRecordError("they begin in the middle of a segment")
    behind = walk(records.data, place, records.last)
    if behind.version != records.last or behind.offset - place.offset != len(records.data):
        raise DamagedRecordError(f"they end with version {behind.version} instead of {records.last}")
    return behind
