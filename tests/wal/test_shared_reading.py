"""Readers of one log that take over from each other what they read: each still gets every record, in order, once."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from kits.basics.faulty_fs import FaultyFs

from penstock.common.clock import ManualClock
from penstock.common.fs import OsFs
from penstock.wal.log import LogFiles
from penstock.wal.record import DeleteRecord, OtherRecord, Record, TimeMarkRecord, delete_payload, with_key_columns
from penstock.wal.segment import list_segments
from penstock.wal.shared_reading import RecentReads, SharedWalReader
from penstock.wal.writer import WalOptions, WalWriter

READERS = 3
STEPS = st.lists(st.one_of(
    st.tuples(st.just("write"), st.integers(1, 5)),
    st.tuples(st.just("read"), st.integers(0, READERS - 1), st.integers(1, 4)),
    st.tuples(st.just("read"), st.integers(0, READERS - 1), st.just(1000)),
    st.tuples(st.just("restart"), st.integers(0, READERS - 1)),
), max_size=60)


def marks(records: list[Record]) -> list[int]:
    """Returns the numbers that `write` has given the records."""
    return [record.ts_ms for record in records if isinstance(record, TimeMarkRecord)]


@given(steps=STEPS, segment_bytes=st.sampled_from([400, 1 << 20]))
def test_each_reader_gets_every_record_once(steps: list[tuple[object, ...]], segment_bytes: int) -> None:
    """Whatever the others read, however little at once, and wherever segments begin."""
    with tempfile.TemporaryDirectory() as folder:
        log = WalWriter.open(Path(folder), WalOptions(1, 1, segment_bytes), fs=FaultyFs(), clock=ManualClock())
        reads = RecentReads()

        def reader(after: int) -> SharedWalReader:
            return reads.reader(1, LogFiles(Path(folder), OsFs()), after + 1)

        readers = [reader(0) for _ in range(READERS)]
        found: list[list[int]] = [[] for _ in range(READERS)]
        written = 0
        for kind, *rest in [*steps, *(("read", place, 1000) for place in range(READERS))]:
            match kind, *rest:
                case "write", int(count):
                    for _ in range(count):
                        written += 1
                        log.commit(log.enqueue_time_mark("w", written, 0))
                case "read", int(place), int(at_once):
                    found[place] += marks(readers[place].read(at_once))
                case "restart", int(place):
                    readers[place].close()
                    readers[place] = reader(len(found[place]))
        assert found == [list(range(1, written + 1))] * READERS
        log.commit(log.enqueue_time_mark("w", written + 1, 0))
        for one in readers:
            assert marks(one.read(2)) == [written + 1]
            one.close()
        log.close()


def test_what_one_has_read_the_others_do_not_read(tmp_path: Path) -> None:
    """The bytes count for each, but the log is decoded once, also when a new segment begins meanwhile."""
    log = WalWriter.open(tmp_path, WalOptions(1, 1, 200), fs=FaultyFs(), clock=ManualClock())
    reads = RecentReads()
    first, second = (reads.reader(1, LogFiles(tmp_path, OsFs()), 1) for _ in range(2))
    for number in range(1, 9):
        log.commit(log.enqueue_time_mark("w", number, 0))
        own = first.read()
        taken = second.read()
        assert marks(own) == [number]
        assert taken[0] is own[0]
        assert first.bytes_read == second.bytes_read > 0
    assert len(list_segments(OsFs(), tmp_path)) > 2
    log.commit(log.enqueue_time_mark("w", 9, 0))
    assert marks(second.read()) == [9]
    first.close()
    second.close()
    log.close()


def test_what_one_has_made_of_records_the_others_need_not_make(tmp_path: Path) -> None:
    """As long as it is the same, of the very same records, and these have few rows."""
    log = WalWriter.open(tmp_path, WalOptions(1, 1), fs=FaultyFs(), clock=ManualClock())
    reads = RecentReads()
    readers = [reads.reader(1, LogFiles(tmp_path, OsFs()), 1, 7) for _ in range(2)]
    schema = with_key_columns(pa.schema([("_tuid", pa.uint64()), ("ts", pa.timestamp("ms"))]), 1)
    made: list[int] = []

    def write(count: int) -> None:
        log.commit(log.enqueue_rows(7, pa.record_batch(
            [pa.array([1] * count, pa.uint64()), pa.array(range(count), pa.timestamp("ms"))], schema=schema), 0))

    def derived(place: int, records: list[Any], what: str) -> list[int]:
        def make() -> list[int]:
            made.append(len(records))
            return [record.version for record in records]

        return readers[place].derived(records, what, make)

    write(1)
    write(3)
    (first, second), others = readers[0].read(), readers[1].read()
    assert others[0] is first
    assert derived(0, [first, second], "a") is derived(1, others[:2], "a")
    assert made == [2]
    assert derived(1, others[:2], "b") == [1, 2]
    assert derived(0, [first], "a") == [1]
    assert derived(1, others[:2], "a") == [1, 2]
    write(5000)
    large = readers[0].read()
    assert derived(0, large, "a") is not derived(1, large, "a")
    assert made == [2, 2, 1, 2, 1, 1]
    for reader in readers:
        reader.close()
    log.close()


def test_readers_take_over_from_each_other_wherever_they_are(tmp_path: Path) -> None:
    """Streams have their turns one after the other, and rows come all the time: each reads up to another place. Who
    follows a log alone keeps nothing."""
    log = WalWriter.open(tmp_path, WalOptions(1, 1, 1 << 20), fs=FaultyFs(), clock=ManualClock())
    reads = RecentReads()
    readers = [reads.reader(1, LogFiles(tmp_path, OsFs()), 1) for _ in range(5)]
    found: list[list[Record]] = [[] for _ in readers]
    for number in range(1, 201):
        log.commit(log.enqueue_time_mark("w", number, 0))
        found[number % 5] += readers[number % 5].read()
    for place, reader in enumerate(readers):
        found[place] += reader.read()
        assert marks(found[place]) == list(range(1, 201))
        assert all(own is other for own, other in zip(found[place], found[0], strict=True))
    (recent,) = reads._logs.values()
    assert len(recent._stretches) == 1
    for reader in readers[1:]:
        reader.close()
    assert not recent._stretches
    log.commit(log.enqueue_time_mark("w", 201, 0))
    assert marks(readers[0].read()) == [201]
    assert not recent._stretches
    readers[0].close()
    log.close()


TABLES = st.sampled_from([1, 2, 3])
OWN_STEPS = st.lists(st.one_of(
    st.tuples(st.just("delete"), TABLES),
    st.tuples(st.just("mark")),
    st.tuples(st.just("read"), TABLES, st.integers(1, 4) | st.just(1000)),
    st.tuples(st.just("restart"), TABLES),
), max_size=60)


@given(steps=OWN_STEPS, segment_bytes=st.sampled_from([400, 1 << 20]))
def test_each_reader_gets_the_records_of_its_table(steps: list[tuple[object, ...]], segment_bytes: int) -> None:
    """And those for everybody, once and in order, whoever read before it and whose tables were followed then.

    Its position comes to the end all the same.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = WalWriter.open(Path(folder), WalOptions(1, 1, segment_bytes), fs=FaultyFs(), clock=ManualClock())
        reads = RecentReads()
        written: list[int | None] = []
        positions: dict[int, int] = {}
        readers: dict[int, SharedWalReader] = {}
        found: dict[int, list[int]] = {table: [] for table in (1, 2, 3)}

        def read(table: int, at_once: int) -> None:
            if table not in readers:
                after = positions.get(table, 0)
                readers[table] = reads.reader(1, LogFiles(Path(folder), OsFs()), after + 1, table)
            for record in readers[table].read(at_once):
                assert record.version > positions.get(table, 0)
                positions[table] = record.version
                if isinstance(record, TimeMarkRecord) or (
                        isinstance(record, DeleteRecord) and record.table_uid == table):
                    found[table].append(record.version)

        for kind, *rest in [*steps, *(("read", table, 1000) for table in (1, 2, 3))]:
            match kind, *rest:
                case "delete", int(table):
                    written.append(table)
                    log.commit(log.enqueue_delete(table, None, 0, 1, 0))
                case "mark",:
                    written.append(None)
                    log.commit(log.enqueue_time_mark("w", 1, 0))
                case "read", int(table), int(at_once):
                    read(table, at_once)
                case "restart", int(table) if table in readers:
                    readers.pop(table).close()
        for table, reader in readers.items():
            assert found[table] == [n for n, own in enumerate(written, 1) if own in (None, table)]
            assert positions.get(table, 0) == len(written)
            reader.close()
        log.close()


def test_records_of_tables_that_nobody_follows_are_not_decoded(tmp_path: Path) -> None:
    """One record stands for all of them, and their bytes don't count."""
    log = WalWriter.open(tmp_path, WalOptions(1, 1, 1 << 20), fs=FaultyFs(), clock=ManualClock())
    reader = RecentReads().reader(1, LogFiles(tmp_path, OsFs()), 1, 7)
    for table in (1, 2, 7, 1, 2):
        log.commit(log.enqueue_delete(table, None, 0, 1, 50 + table))
    own, other = reader.read()
    assert isinstance(own, DeleteRecord)
    assert own.version == 3
    assert other == OtherRecord(5, 52)
    assert reader.bytes_read == len(b"".join(delete_payload(7, None, 0, 1)))
    assert reader.read() == []
    reader.close()
    log.close()


@given(steps=st.lists(st.one_of(
    st.tuples(st.sampled_from(["rows", "told", "other"]), st.integers(1, 5)),
    st.tuples(st.just("ask"), st.integers(0, 60)), st.tuples(st.just("read"), st.integers(0, 60)),
), max_size=40), segment_bytes=st.sampled_from([400, 1 << 20]))
def test_readers_are_told_of_what_is_to_come(steps: list[tuple[str, int]], segment_bytes: int) -> None:
    """Wherever they begin, whoever has asked before, whatever comes in between; they read on where they were."""
    with tempfile.TemporaryDirectory() as folder:
        log = WalWriter.open(Path(folder), WalOptions(1, 1, segment_bytes), fs=FaultyFs(), clock=ManualClock())
        reads = RecentReads()
        told: list[int] = []
        written = 0
        for kind, number in [*steps, ("ask", 0)]:
            if kind in ("ask", "read"):
                reader = reads.reader(1, LogFiles(Path(folder), OsFs()), min(number, written) + 1)
                if kind == "read":
                    reader.read(2)
                begin = min(min(number, written) + 2 * (kind == "read"), written)
                assert [record.version for record in reader.told(frozenset({"told"}))] == [
                    version for version in told if version > begin]
                assert [record.version for record in reader.read(1)] == [begin + 1][:written - begin]
                reader.close()
                continue
            for _ in range(number):
                written += 1
                ticket = log.enqueue_time_mark("w", written, 0) if kind == "rows" else log.enqueue_meta({"op": kind}, 0)
                log.commit(ticket)
                told += [written] if kind == "told" else []
        log.close()
