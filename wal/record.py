"""One record of the write-ahead log: its bytes, its checksums, and the message it decodes to. Opens no files."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.wal.packed_rows import RowFormat, row_format

MAGIC = 0x4C41_5750  # "PWAL"
ALIGNMENT = 8  # Arrow buffers inside a mapped segment must be aligned for numpy and Acero
KEY_COLUMNS_METADATA = b"penstock.key_columns"
CHANGE_COLUMN = "_change"
LAST_COLUMN = "_last"
TUID_COLUMN = "_tuid"

_BODY = struct.Struct("<IIBBHIQqI")
_CRC = struct.Struct("<I")
HEADER_SIZE = _BODY.size + _CRC.size
_TABLE = struct.Struct("<Q")  # what is of a table begins so
TABLE_SIZE = _TABLE.size
_ROWS = struct.Struct("<QII")
_PACKED = struct.Struct("<QI")
_ORIGIN = struct.Struct("<QqH")
_SCHEMA = struct.Struct("<QIB3x")
_DELETE = struct.Struct("<QqqI4x")
_DELETE_POINTS = struct.Struct("<QI4x")
_TIME_MARK = struct.Struct("<q")
_ALL_TABLES = 0xFFFF_FFFF
_PADDING = [bytes(-size % ALIGNMENT) for size in range(ALIGNMENT)]
_NULL_MAPS = 0x8000_0000  # beside the shape of packed rows: they have their bits for NULL
SHAPES = 0x8000_0000  # so many different ids there are
MAX_ORIGIN = 0xFFFF
_CONTINUES = 1
_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


class RecordKind(IntEnum):
    """What a record holds."""

    ROWS = 1
    DELETE = 2
    META = 3
    TIME_MARK = 4
    SCHEMA = 5
    PACKED_ROWS = 6
    DELETE_POINTS = 7


@dataclass(frozen=True, slots=True)
class IngestOrigin:
    """Where rows of an ingest come from: `partition` of what it reads, from which everything before `next_offset` that
    is for the vnode is in the log up to the record.

    `segment`: the part of the partition that the offset is in; parts that sort later come later. Empty where a
    partition has one run of offsets, as in Kafka until its topic is made anew; the name of a file where the partition
    is a folder.
    """

    ingest: int
    partition: str
    segment: str
    next_offset: int


@dataclass(frozen=True, slots=True)
class RowsRecord:
    """Complete rows of one storage table, sorted by key and without duplicates of a key.

    `batch`: `_tuid` uint64, the physical columns (primary timestamp first), and where not all rows are appends
    `_change` uint8: 0 append, 1 late (a new key, but not a greater ts), 2 update (the key existed), and `_last` int64:
    the newest time of the row's table before this record, in units of its precision (meaningless for appends).
    The schema's metadata has the number of key columns under `penstock.key_columns`. `origin`: if an ingest wrote them.
    `time_range`: the least and the greatest time of the rows, where they are known without a look at each.
    """

    version: int
    ingest_time_ms: int
    table_uid: int
    batch: pa.RecordBatch
    origin: IngestOrigin | None = None
    time_range: tuple[int, int] | None = None


def with_time_range(record: RowsRecord) -> RowsRecord:
    """Returns the record with the time range of its rows, for several who need it."""
    if record.time_range is not None or not record.batch.num_rows:
        return record
    times = record.batch.column(1).to_numpy().view(np.int64)
    return replace(record, time_range=(int(times.min()), int(times.max())))


@dataclass(frozen=True, slots=True)
class DeleteRecord:
    """Rows with first_ts <= ts <= last_ts (units of the table's precision) of `tuids` (None: of all) are gone."""

    version: int
    ingest_time_ms: int
    table_uid: int
    tuids: tuple[int, ...] | None
    first_ts: int
    last_ts: int


    def since(self, first_ts: int) -> DeleteRecord | None:
        """Returns what it deletes from a time on; None if that is nothing."""
        since = replace(self, first_ts=max(self.first_ts, first_ts))
        return since if since.first_ts <= since.last_ts else None


@dataclass(frozen=True, slots=True, eq=False)
class DeletePointsRecord:
    """Rows of the child tables `tuids` at `times` (units of the table's precision), one time each, are gone.

    Both have one length, which isn't 0, and are sorted by child table and time, of which no pair comes twice.
    """

    version: int
    ingest_time_ms: int
    table_uid: int
    tuids: npt.NDArray[np.uint64]
    times: npt.NDArray[np.int64]

    @property
    def first_ts(self) -> int:
        """The least of the times."""
        return int(self.times.min())

    @property
    def last_ts(self) -> int:
        """The greatest of the times."""
        return int(self.times.max())

    def by_table(self) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """Yields each child table with its times, ascending."""
        starts = np.flatnonzero(np.concatenate(([True], self.tuids[1:] != self.tuids[:-1])))
        return zip(self.tuids[starts].tolist(), np.split(self.times, starts[1:]), strict=True)

    def since(self, first_ts: int) -> DeletePointsRecord | None:
        """Returns what it deletes from a time on; None if that is nothing."""
        kept = self.times >= first_ts
        if kept.all():
            return self
        return replace(self, tuids=self.tuids[kept], times=self.times[kept]) if kept.any() else None


AnyDelete = DeleteRecord | DeletePointsRecord


@dataclass(frozen=True, slots=True)
class MetaRecord:
    """Child tables and tags that were created, altered or dropped; `body` is the caller's JSON object."""

    version: int
    ingest_time_ms: int
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TimeMarkRecord:
    """`writer` promises that nothing older than `ts_ms` comes from it any more."""

    version: int
    ingest_time_ms: int
    writer: str
    ts_ms: int


@dataclass(frozen=True, slots=True)
class SchemaRecord:
    """Declares the shape that later ROWS records of the same segment use. It has the version of the record behind
    it and is not counted itself: readers never see it."""

    version: int
    table_uid: int
    shape: int
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class OtherRecord:
    """Stands for rows and deletes of tables that a reader wasn't asked for: has what the last of them has."""

    version: int
    ingest_time_ms: int


Record = RowsRecord | DeleteRecord | DeletePointsRecord | MetaRecord | TimeMarkRecord | OtherRecord


@dataclass(frozen=True, slots=True)
class Header:
    """The checked header of a record. `crc` is the checksum of the header itself: the next record repeats it.

    `origin_size`: how many bytes at the end of the payload are the origin of its rows. Readers that don't know of
    origins take these for padding. `continues`: it is nothing without the record behind it: logs end with neither or
    with both.
    """

    kind: RecordKind
    version: int
    ingest_time_ms: int
    payload_size: int
    payload_crc: int
    previous_crc: int
    crc: int
    origin_size: int = 0
    continues: bool = False

    @property
    def total_size(self) -> int:
        """Bytes of the whole record in the segment, padding included."""
        return HEADER_SIZE + _padded(self.payload_size)


class DamagedRecordError(Exception):
    """Bytes that are no good record; callers turn it into a cut tail or a CorruptionError."""


def _padded(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def crc32c(data: bytes | pa.Buffer) -> int:
    """Returns the CRC-32C of `data`."""
    return int(google_crc32c.value(data))


Pieces = tuple[bytes | pa.Buffer, ...]
"""Bytes in several pieces, which are copied only once: on their way to the file."""


def size_of(pieces: Pieces) -> int:
    """Returns how many bytes all pieces have."""
    return sum(map(len, pieces))


def encode(
    kind: RecordKind, version: int, ingest_time_ms: int, payload: Pieces, previous_crc: int, origin_size: int = 0,
    continues: bool = False,
) -> tuple[Pieces, int]:
    """Returns the record's bytes and the checksum of its header. `origin_size`: of the payload's last piece, if any."""
    size = payload_crc = 0
    for piece in payload:
        size += len(piece)
        payload_crc = google_crc32c.extend(payload_crc, piece)
    body = _BODY.pack(MAGIC, size, kind, continues, origin_size, payload_crc, version, ingest_time_ms, previous_crc)
    crc: int = google_crc32c.value(body)
    return (body + _CRC.pack(crc), *payload, _PADDING[size % ALIGNMENT]), crc


def rows_payload(table_uid: int, shape: int, batch: pa.RecordBatch) -> Pieces:
    """Returns the payload of a ROWS record; the batch is written without its schema."""
    return _ROWS.pack(table_uid, shape, batch.num_rows), batch.serialize()


def packed_rows_payload(table_uid: int, shape: int, rows: Sequence[bytes], layout: RowFormat) -> Pieces:
    """Returns the payload of a PACKED_ROWS record: rows as `RowFormat.pack` returns them."""
    plain = layout.without_null_maps(rows)
    if plain is not None:
        return (_PACKED.pack(table_uid, shape) + plain,)
    return (_PACKED.pack(table_uid, shape | _NULL_MAPS) + b"".join(rows),)


def encode_origin(origin: IngestOrigin) -> bytes:
    """Returns what goes behind the payload of the rows. Raises ValueError for names that are too long."""
    partition, segment = origin.partition.encode(), origin.segment.encode()
    data = _ORIGIN.pack(origin.ingest, origin.next_offset, len(partition)) + partition + segment
    if len(data) > MAX_ORIGIN:
        raise ValueError(f"the name of partition {origin.partition[:100]} is too long")
    return data


def _origin_behind(header: Header, payload: pa.Buffer) -> IngestOrigin | None:
    """Returns the origin that stands behind rows. Raises struct.error, ValueError."""
    if not header.origin_size:
        return None
    data = payload[-header.origin_size:].to_pybytes()
    ingest, offset, length = _ORIGIN.unpack_from(data)
    names = data[_ORIGIN.size:]
    return IngestOrigin(ingest, names[:length].decode(), names[length:].decode(), offset)


def schema_payload(table_uid: int, shape: int, schema: pa.Schema) -> Pieces:
    """Returns the payload of a SCHEMA record."""
    return _SCHEMA.pack(table_uid, shape, key_columns_of(schema)), schema.serialize()


def delete_payload(table_uid: int, tuids: tuple[int, ...] | None, first_ts: int, last_ts: int) -> Pieces:
    """Returns the payload of a DELETE record."""
    count = _ALL_TABLES if tuids is None else len(tuids)
    uids = b"" if tuids is None else np.asarray(tuids, dtype="<u8").tobytes()
    return _DELETE.pack(table_uid, first_ts, last_ts, count), uids


def delete_points_payload(table_uid: int, tuids: npt.NDArray[np.uint64], times: npt.NDArray[np.int64]) -> Pieces:
    """Returns the payload of a DELETE_POINTS record: see `DeletePointsRecord`, also for the order of the points."""
    head = _DELETE_POINTS.pack(table_uid, len(tuids))
    return head, tuids.astype("<u8", copy=False).tobytes(), times.astype("<i8", copy=False).tobytes()


def _decode_points(version: int, ingest_time_ms: int, data: bytes) -> DeletePointsRecord:
    """Raises struct.error, ValueError."""
    table_uid, count = _DELETE_POINTS.unpack_from(data)
    if not count or len(data) != _DELETE_POINTS.size + 16 * count:
        raise ValueError(f"{len(data)} bytes for {count} points")
    tuids = np.frombuffer(data, "<u8", count, _DELETE_POINTS.size)
    times = np.frombuffer(data, "<i8", count, _DELETE_POINTS.size + 8 * count)
    same = tuids[1:] == tuids[:-1]
    if not ((tuids[1:] > tuids[:-1]) | (same & (times[1:] > times[:-1]))).all():
        raise ValueError("points are not in order")
    return DeletePointsRecord(version, ingest_time_ms, table_uid, tuids, times)


def meta_payload(body: dict[str, Any]) -> Pieces:
    """Returns the payload of a META record."""
    return (_JSON.encode(body).encode(),)


def time_mark_payload(writer: str, ts_ms: int) -> Pieces:
    """Returns the payload of a TIME_MARK record."""
    return _TIME_MARK.pack(ts_ms), writer.encode()


def with_key_columns(schema: pa.Schema, key_columns: int) -> pa.Schema:
    """Returns `schema` with the number of key columns in its metadata."""
    return schema.with_metadata({KEY_COLUMNS_METADATA: str(key_columns).encode()})


def key_columns_of(schema: pa.Schema) -> int:
    """Returns the number of key columns noted in a schema's metadata; 1 when there is none."""
    return int((schema.metadata or {}).get(KEY_COLUMNS_METADATA, b"1"))


def decode_header(data: bytes) -> Header:
    """Checks and decodes the first HEADER_SIZE bytes of a record. Raises DamagedRecordError."""
    if len(data) < HEADER_SIZE:
        raise DamagedRecordError("the header is cut off")
    (crc,) = _CRC.unpack_from(data, _BODY.size)
    if crc32c(data[:_BODY.size]) != crc:
        raise DamagedRecordError("the header's checksum does not fit")
    magic, size, kind, flags, origin_size, payload_crc, version, ingest, previous = _BODY.unpack_from(data)
    if magic != MAGIC:
        raise DamagedRecordError("no record starts here")
    try:
        known = RecordKind(kind)
    except ValueError as error:
        raise DamagedRecordError(f"unknown kind of record {kind}") from error
    return Header(known, version, ingest, size, payload_crc, previous, crc, origin_size, bool(flags & _CONTINUES))


def check_payload(header: Header, payload: bytes | pa.Buffer) -> None:
    """Raises DamagedRecordError unless `payload` is what the header promises."""
    if len(payload) < header.payload_size:
        raise DamagedRecordError("the payload is cut off")
    if crc32c(payload) != header.payload_crc:
        raise DamagedRecordError("the payload's checksum does not fit")


def decode_schema(header: Header, payload: bytes) -> SchemaRecord:
    """Decodes the payload of a SCHEMA record. Raises DamagedRecordError."""
    try:
        table_uid, shape, _ = _SCHEMA.unpack_from(payload)
        schema = pa.ipc.read_schema(pa.py_buffer(payload[_SCHEMA.size:]))
    except (struct.error, pa.ArrowInvalid, OSError) as error:
        raise DamagedRecordError(f"the schema cannot be decoded: {error}") from error
    return SchemaRecord(header.version, table_uid, shape, schema)


def table_of(start: bytes) -> int:
    """Returns the uid of the table that a record of rows or deletes is of.

    `start`: the first TABLE_SIZE bytes of its payload. Raises DamagedRecordError if they are too few.
    """
    try:
        (table_uid,) = _TABLE.unpack_from(start)
    except struct.error as error:
        raise DamagedRecordError("the payload is cut off") from error
    return int(table_uid)


def packed_start(payload: pa.Buffer) -> bytes:
    """Returns what payloads of packed rows of one table and shape begin with."""
    start: bytes = payload.slice(0, _PACKED.size).to_pybytes()
    return start


class PackedRun:
    """Records with packed rows of one table and shape: decoded together, which costs little more than decoding one."""

    def __init__(self, header: Header, payload: pa.Buffer, schemas: dict[int, pa.Schema]) -> None:
        """Begins with a record. Raises DamagedRecordError."""
        try:
            self._table_uid, shape = _PACKED.unpack(packed_start(payload))
        except struct.error as error:
            raise DamagedRecordError(f"the PACKED_ROWS payload cannot be decoded: {error}") from error
        self._null_maps = bool(shape & _NULL_MAPS)
        self._shape = shape & ~_NULL_MAPS
        self._schema = _declared(self._shape, schemas)
        self._layout = _layout_of(self._shape, schemas)
        self._headers: list[tuple[Header, int]] = []
        self._origins: list[IngestOrigin | None] = []
        self._rows: list[pa.Buffer] = []
        self._sizes: list[int] = []
        self._add(header, payload)

    def take(self, header: Header, payload: pa.Buffer, schemas: dict[int, pa.Schema]) -> bool:
        """Takes a later record that begins as the first one does; returns False if its shape was declared anew."""
        if schemas.get(self._shape) is not self._schema:
            return False
        self._add(header, payload)
        return True

    def _add(self, header: Header, payload: pa.Buffer) -> None:
        rows = payload.slice(_PACKED.size, max(0, len(payload) - _PACKED.size - header.origin_size))
        try:
            sizes = self._layout.sizes(rows, null_maps=self._null_maps)
            origin = _origin_behind(header, payload)
        except (struct.error, ValueError) as error:
            raise DamagedRecordError(f"the PACKED_ROWS payload cannot be decoded: {error}") from error
        if not sizes:
            raise DamagedRecordError("the PACKED_ROWS payload has no rows")
        self._headers.append((header, len(sizes)))
        self._origins.append(origin)
        self._rows.append(rows)
        self._sizes += sizes

    def records(self) -> list[RowsRecord]:
        """Returns the records in their order; their batches are parts of one, without what lies between them."""
        data = self._rows[0] if len(self._rows) == 1 else b"".join(self._rows)
        batch = self._layout.unpack(data, self._sizes, null_maps=self._null_maps)
        times = batch.column(1).to_numpy().view(np.int64)
        counts = np.array([count for _, count in self._headers])
        starts = np.cumsum(counts) - counts
        least, greatest = (reduce.reduceat(times, starts).tolist() for reduce in (np.minimum, np.maximum))
        return [RowsRecord(header.version, header.ingest_time_ms, self._table_uid, batch.slice(start, count), origin,
                           (first, last))
                for (header, count), origin, start, first, last in zip(
                    self._headers, self._origins, starts.tolist(), least, greatest, strict=True)]


def _layout_of(shape: int, schemas: dict[int, pa.Schema]) -> RowFormat:
    layout = row_format(_declared(shape, schemas))
    if layout is None:
        raise DamagedRecordError(f"rows of shape {shape} can't be packed")
    return layout


def _declared(shape: int, schemas: dict[int, pa.Schema]) -> pa.Schema:
    if shape not in schemas:
        raise DamagedRecordError(f"shape {shape} was never declared")
    return schemas[shape]


def decode(header: Header, payload: pa.Buffer, schemas: dict[int, pa.Schema]) -> Record:
    """Decodes a checked payload without copying rows; `schemas` are the shapes declared so far in the segment.

    Raises DamagedRecordError.
    """
    if header.kind is RecordKind.PACKED_ROWS:
        return PackedRun(header, payload, schemas).records()[0]
    version, ingest = header.version, header.ingest_time_ms
    try:
        if header.kind is RecordKind.ROWS:
            table_uid, shape, _ = _ROWS.unpack_from(payload)
            batch = pa.ipc.read_record_batch(payload.slice(_ROWS.size), _declared(shape, schemas))
            return RowsRecord(version, ingest, table_uid, batch, _origin_behind(header, payload))
        data = payload.to_pybytes()
        if header.kind is RecordKind.DELETE:
            table_uid, first_ts, last_ts, count = _DELETE.unpack_from(data)
            uids = None if count == _ALL_TABLES else tuple(np.frombuffer(data, "<u8", count, _DELETE.size).tolist())
            return DeleteRecord(version, ingest, table_uid, uids, first_ts, last_ts)
        if header.kind is RecordKind.DELETE_POINTS:
            return _decode_points(version, ingest, data)
        if header.kind is RecordKind.META:
            return MetaRecord(version, ingest, json.loads(data))
        if header.kind is RecordKind.TIME_MARK:
            return TimeMarkRecord(version, ingest, data[_TIME_MARK.size:].decode(), _TIME_MARK.unpack_from(data)[0])
    except (struct.error, ValueError, OSError) as error:  # ArrowInvalid is a ValueError
        raise DamagedRecordError(f"the {header.kind.name} payload cannot be decoded: {error}") from error
    raise DamagedRecordError(f"a {header.kind.name} record is no data")
