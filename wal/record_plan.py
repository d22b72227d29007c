"""Where the next record of a log goes, and its bytes: version, segment, declared shapes. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from penstock.common.clock import Clock
from penstock.common.errors import InvalidValueError
from penstock.wal import record as wire
from penstock.wal.record import SHAPES, Pieces, RecordKind, size_of
from penstock.wal.segment import SEGMENT_HEADER_SIZE, SegmentHeader, Tail

MAX_PAYLOAD = 1 << 30


class DeclaredShapes:
    """Ids of shapes by table and schema; for the segment that is being written."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, pa.Schema], int] = {}
        # Of each table the schema that it was asked for last: looking for the same object costs next to nothing.
        self._newest: dict[int, tuple[pa.Schema, int]] = {}
        self._next = 0

    def find(self, table_uid: int, schema: pa.Schema) -> int | None:
        """Returns the id of a shape that is declared."""
        newest = self._newest.get(table_uid)
        if newest is not None and newest[0] is schema:
            return newest[1]
        known = self._ids.get((table_uid, schema))
        if known is not None:
            self._newest[table_uid] = schema, known
        return known

    @property
    def next_id(self) -> int:
        """The id of the shape that is declared next. Ids may come again: what is declared later counts."""
        return self._next

    def declare(self, table_uid: int, schema: pa.Schema) -> None:
        """Takes note that a shape was declared, by the next id."""
        self._ids[table_uid, schema] = self._next
        self._next = (self._next + 1) % SHAPES

    def forget(self) -> None:
        """Begins a segment, or goes on where nobody knows what is declared."""
        self._ids, self._newest = {}, {}


class PlannedRecord(NamedTuple):
    """A record's bytes, with what comes before it; where it ends; how many bytes of payload it has.

    `continues`: the log must not end with it.
    """

    data: Pieces
    tail: Tail
    opens_segment: bool
    size: int
    continues: bool = False


class RecordPlan:
    """Plans one record behind the other. Not thread-safe."""

    def __init__(self, vgroup_id: int, segment_bytes: int, clock: Clock, tail: Tail) -> None:
        #: where the last planned record ends
        self.tail = tail
        self._vgroup_id = vgroup_id
        self._segment_bytes = segment_bytes
        self._clock = clock
        self._shapes = DeclaredShapes()
        self._continued = False  # whether the record that comes next belongs to the one before it
        self._whole = tail  # then: where the last record ends that isn't one of those

    def go_on_behind(self, tail: Tail) -> None:
        """Plans what comes next behind another place; shapes are declared again where they are needed."""
        self.tail = tail
        self._continued = False
        self._shapes.forget()

    def take_back_continued(self) -> None:
        """Plans what comes next in the place of records that were to be continued."""
        self.go_on_behind(self._whole)

    def rows(self, kind: RecordKind, table_uid: int, schema: pa.Schema, ingest_time_ms: int,
             payload_of: Callable[[int], Pieces], origin_size: int = 0, continues: bool = False) -> PlannedRecord:
        """Plans rows; `payload_of` returns the payload for the id of their shape. Raises InvalidValueError."""
        shape = self._shapes.find(table_uid, schema)
        payload = payload_of(self._shapes.next_id if shape is None else shape)
        size = size_of(payload)
        opens = self._must_roll(size)
        if shape is not None and opens:
            self._shapes.forget()
            shape, payload = None, payload_of(self._shapes.next_id)
        return self._planned(
            kind, payload, size, opens, ingest_time_ms, (table_uid, schema) if shape is None else None, origin_size,
            continues)

    def _must_roll(self, payload_size: int) -> bool:
        if self._continued:
            return False  # who opens a log sees from its last segment alone whether all is there
        used = self.tail.offset
        return self.tail.segment == 0 or (
            used > SEGMENT_HEADER_SIZE and used + wire.HEADER_SIZE + payload_size > self._segment_bytes)

    def record(
        self, kind: RecordKind, payload: Pieces, ingest_time_ms: int, *, continues: bool = False
    ) -> PlannedRecord:
        """Plans a record of any other kind. Raises InvalidValueError."""
        size = size_of(payload)
        return self._planned(kind, payload, size, self._must_roll(size), ingest_time_ms, continues=continues)

    def _planned(self, kind: RecordKind, payload: Pieces, size: int, opens: bool, ingest_time_ms: int,
                 declaration: tuple[int, pa.Schema] | None = None, origin_size: int = 0,
                 continues: bool = False) -> PlannedRecord:
        """Plans a record of `size` bytes, behind the `declaration` of its shape; `opens`: in a new segment."""
        if size > MAX_PAYLOAD:
            raise InvalidValueError(f"a record of {size} bytes is too large for the log",
                                    hint=f"write at most {MAX_PAYLOAD} bytes at once")
        before = self.tail
        version = before.version + 1
        parts: list[bytes | pa.Buffer] = []
        segment, offset, crc = before.segment, before.offset, before.crc
        if opens:
            header = SegmentHeader(self._vgroup_id, version, self._clock.now_ms(), segment, crc)
            data, crc = header.encode()
            parts.append(data)
            segment, offset = version, len(data)
            self._shapes.forget()
        if declaration is not None:
            table_uid, schema = declaration
            shape = self._shapes.next_id
            self._shapes.declare(table_uid, schema)
            pieces, crc = wire.encode(RecordKind.SCHEMA, version, ingest_time_ms,
                                      wire.schema_payload(table_uid, shape, schema), crc)
            parts += pieces
            offset += size_of(pieces)
        pieces, crc = wire.encode(kind, version, ingest_time_ms, payload, crc, origin_size, continues)
        if parts:
            parts += pieces
        self.tail = Tail(version, segment, offset + size_of(pieces), crc)
        if continues or self._continued:
            if not self._continued:
                self._whole = before
            self._continued = continues
        return PlannedRecord(tuple(parts) if parts else pieces, self.tail, opens, size, continues)
