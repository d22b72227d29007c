"""Packed rows in the log: the same rows as Arrow batches, few bytes, damage is found, older logs stay theirs."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.basics.faulty_fs import FaultyFs

from penstock.common.clock import ManualClock
from penstock.common.errors import CorruptionError
from penstock.common.fs import OsFs
from penstock.wal.log import LogFiles
from penstock.wal.packed_rows import RowFormat, row_format
from penstock.wal.reader import WalReader
from penstock.wal.record import IngestOrigin, RowsRecord, with_key_columns
from penstock.wal.segment import segment_name
from penstock.wal.writer import WalOptions, WalWriter

VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(), pa.int8(): st.integers(-128, 127), pa.int16(): st.integers(-2**15, 2**15 - 1),
    pa.int32(): st.integers(-2**31, 2**31 - 1), pa.int64(): st.integers(-2**63, 2**63 - 1),
    pa.uint8(): st.integers(0, 255), pa.uint16(): st.integers(0, 2**16 - 1), pa.uint32(): st.integers(0, 2**32 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1), pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False), pa.timestamp("ns"): st.integers(-2**63, 2**63 - 1),
    pa.string(): st.text(max_size=6), pa.binary(): st.binary(max_size=6)}
SHAPES = st.lists(st.sampled_from(list(VALUES)), max_size=20).map(lambda kinds: with_key_columns(pa.schema(
    [("_tuid", pa.uint64()), ("ts", pa.timestamp("ms")), *((f"c{place}", kind) for place, kind in enumerate(kinds))]),
    1))
ORIGINS = st.none() | st.builds(IngestOrigin, st.integers(0, 2**64 - 1), st.text(max_size=5), st.text(max_size=5),
                                st.integers(0, 2**63 - 1))
NUMBERS = with_key_columns(pa.schema([("_tuid", pa.uint64()), ("ts", pa.timestamp("ms")), ("v", pa.float64()),
                                      ("k", pa.int32())]), 1)
TEXTS = with_key_columns(pa.schema([("_tuid", pa.uint64()), ("ts", pa.timestamp("ms")), ("s", pa.string()),
                                    ("k", pa.int16()), ("b", pa.binary())]), 1)


def layout_of(schema: pa.Schema) -> RowFormat:
    """Returns how rows of a schema are packed, which must be possible."""
    layout = row_format(schema)
    assert layout is not None
    return layout


def batch_of(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """Returns rows as the other kind of record has them."""
    columns = [pa.array([row[place] for row in rows], pa.int64() if pa.types.is_timestamp(field.type) else field.type)
               for place, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays([column if column.type == field.type else column.cast(field.type)
                                       for column, field in zip(columns, schema, strict=True)], schema=schema)


def open_log(directory: Path, segment_bytes: int = 64 << 20) -> WalWriter:
    """Opens the log of vgroup 1."""
    return WalWriter.open(directory, WalOptions(1, 1, segment_bytes), fs=FaultyFs(), clock=ManualClock())


def append(log: WalWriter, schema: pa.Schema, rows: list[tuple[Any, ...]], table_uid: int = 7,
           origin: IngestOrigin | None = None) -> int:
    """Writes one record of packed rows."""
    layout = layout_of(schema)
    ticket = log.enqueue_packed(table_uid, schema, list(map(layout.pack, rows)), layout, 5, origin)
    log.commit(ticket)
    return ticket.version


def read_all(directory: Path, at_once: int = 1000) -> list[RowsRecord]:
    """Reads all records, `at_once` at a time."""
    reader = WalReader(LogFiles(directory, OsFs()))
    found: list[RowsRecord] = []
    while records := reader.read(max_records=at_once):
        found += [record for record in records if isinstance(record, RowsRecord)]
    reader.close()
    return found


@given(data=st.data(), schemas=st.lists(SHAPES, min_size=1, max_size=2), at_once=st.integers(1, 5),
       segment_bytes=st.sampled_from([1000, 1 << 20]))
def test_rows_come_back_whatever_stands_beside_them(data: st.DataObject, schemas: list[pa.Schema], at_once: int,
                                                    segment_bytes: int) -> None:
    """Packed or as Arrow, of several tables, across segments and reads: each record has its own rows, with NULLs, and
    tells where they come from."""
    written = []
    with tempfile.TemporaryDirectory() as folder:
        log = open_log(Path(folder), segment_bytes)
        for _ in range(data.draw(st.integers(1, 12))):
            place = data.draw(st.integers(0, len(schemas) - 1))
            schema = schemas[place]
            row = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**40),
                            *(st.none() | VALUES[field.type] for field in list(schema)[2:]))
            rows = data.draw(st.lists(row, min_size=1, max_size=3))
            origin = data.draw(ORIGINS)
            if data.draw(st.booleans()):
                append(log, schema, rows, place, origin)
            else:
                log.commit(log.enqueue_rows(place, batch_of(schema, rows), 5, origin))
            written.append((place, batch_of(schema, rows), origin))
        log.close()
        found = read_all(Path(folder), at_once)
    assert [record.version for record in found] == list(range(1, len(written) + 1))
    for record, (table_uid, batch, origin) in zip(found, written, strict=True):
        assert record.origin == origin
        record.batch.validate(full=True)
        assert record.table_uid == table_uid
        assert record.batch.equals(batch)
        assert record.batch.schema.metadata == batch.schema.metadata


def test_a_row_of_its_own_takes_few_bytes(tmp_path: Path) -> None:
    """At most 64 bytes beside the values: here a time, a DOUBLE and an INT, 20 bytes."""
    log = open_log(tmp_path)
    append(log, NUMBERS, [(1, 0, 0.5, 1)])
    before = (tmp_path / segment_name(1)).stat().st_size
    append(log, NUMBERS, [(1, 1, 0.5, 1)])
    assert (tmp_path / segment_name(1)).stat().st_size - before <= 20 + 64
    log.close()


def test_values_that_do_not_fit_are_refused() -> None:
    """An INT has 32 bits, half of a pair is no text, and lists have no format at all."""
    with pytest.raises(struct.error):
        layout_of(NUMBERS).pack((1, 0, 0.5, 2**31))
    with pytest.raises(UnicodeEncodeError):
        layout_of(TEXTS).pack((1, 0, "\ud800", 1, b""))
    assert row_format(NUMBERS.append(pa.field("s", pa.list_(pa.int8())))) is None


@given(rows=st.lists(st.tuples(*(st.none() | VALUES[field.type] for field in list(TEXTS)[2:])), min_size=1),
       forged=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4), cut=st.integers(0, 9))
def test_forged_lengths_reach_nothing_else(rows: list[Any], forged: list[tuple[int, int]], cut: int) -> None:
    """Bytes are either refused, or rows that are in them as a whole."""
    layout = layout_of(TEXTS)
    data = bytearray(b"".join([layout.pack((1, ts, *row)) for ts, row in enumerate(rows)]))
    for place, value in forged:
        data[place % len(data)] = value
    packed = pa.py_buffer(bytes(data[:len(data) - cut]))
    try:
        sizes = layout.sizes(packed, null_maps=True)
    except ValueError:
        assert forged or cut
        return
    assert sum(sizes) == packed.size
    found = layout.unpack(packed, sizes, null_maps=True)
    for place in (2, 4):
        _, offsets, content = found.column(place).buffers()
        texts = np.frombuffer(offsets, np.int32)
        assert (np.diff(texts) >= 0).all()
        assert texts[-1] == content.size <= packed.size


@pytest.mark.parametrize(("schema", "row"), [
    (NUMBERS, bytes(11)), (NUMBERS, bytes(13)), (TEXTS, bytes(13)),
    (TEXTS, struct.pack("<QqIhIc", 1, 0, 3, 5, 2**32 - 1, b"\1")),
    (TEXTS, struct.pack("<QqIhIc", 1, 0, 3, 5, 0, b"\1") + b"ab")])
def test_bytes_that_are_no_rows_are_damage(tmp_path: Path, schema: pa.Schema, row: bytes) -> None:
    """A record whose checksums fit, but whose rows don't, is named, and what stands before it is returned."""
    log = open_log(tmp_path)
    append(log, NUMBERS, [(1, 0, 0.5, 1)])
    ticket = log.enqueue_packed(7, schema, [row], layout_of(schema), 5)
    log.commit(ticket)
    reader = WalReader(LogFiles(tmp_path, OsFs()))
    assert [record.version for record in reader.read()] == [1]
    with pytest.raises(CorruptionError, match="no whole number of rows"):
        reader.read()
    reader.close()
    log.close()


def test_rows_of_several_shapes_are_decoded_together_in_their_order(tmp_path: Path) -> None:
    """Whatever lies between them: records of other tables and shapes, and of other kinds."""
    log = open_log(tmp_path)
    wanted: list[tuple[int, int, Any]] = []
    for number in range(40):
        schema, row = ((NUMBERS, (1, number, 0.5, number)), (TEXTS, (1, number, "x" * number, 1, b"")))[number % 2]
        wanted.append((append(log, schema, [row], 7 + number % 3), 7 + number % 3, row))
        log.commit(log.enqueue_meta({"op": "nothing", "number": number}, 5))
    log.close()
    found = read_all(tmp_path)
    assert [(record.version, record.table_uid) for record in found] == [each[:2] for each in wanted]
    for record, (_, _, row) in zip(found, wanted, strict=True):
        assert record.batch.equals(batch_of(NUMBERS if len(row) == 4 else TEXTS, [row]))
    assert len({record.batch.column(0).buffers()[1].address for record in found}) == 6  # one of each table and shape


def test_a_shape_that_is_declared_anew_is_another_one(tmp_path: Path) -> None:
    """Who opens a log gives ids of shapes from the first one on."""
    rows = [(NUMBERS, (1, 5, 0.5, 3)), (TEXTS, (1, 6, "a text", 1, b"x")), (NUMBERS, (1, 7, 1.5, 4))]
    for schema, row in rows:
        log = open_log(tmp_path)
        append(log, schema, [row])
        log.close()
    for at_once in (1, 1000):
        assert [record.batch.to_pylist() for record in read_all(tmp_path, at_once)] == [
            batch_of(schema, [row]).to_pylist() for schema, row in rows]
