"""The write-ahead log: order, recovery, damage, group commit, following, refused writes, retention."""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
import sys
import threading
from collections.abc import Sequence
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.basics.faulty_fs import FaultyFs

from penstock.common.clock import ManualClock
from penstock.common.errors import CorruptionError, StorageError
from penstock.common.fs import Fs, OsFs
from penstock.common.futex import CAN_WAIT
from penstock.wal.log import LogFiles
from penstock.wal.reader import WalGapError, WalReader
from penstock.wal.record import (
    DamagedRecordError,
    DeletePointsRecord,
    DeleteRecord,
    Header,
    MetaRecord,
    OtherRecord,
    Record,
    RecordKind,
    RowsRecord,
    TimeMarkRecord,
    decode,
    decode_header,
    delete_points_payload,
    with_key_columns,
)
from penstock.wal.retention import RetentionPolicy, SegmentInfo, deletable
from penstock.wal.segment import END_NAME, list_segments, segment_name
from penstock.wal.writer import WalOptions, WalWriter

SCHEMA = with_key_columns(pa.schema([("_tuid", pa.uint64()), ("ts", pa.timestamp("ms")), ("v", pa.string())]), 1)


def rows(*values: str) -> pa.RecordBatch:
    """Returns rows of child table 1."""
    count = len(values)
    return pa.record_batch([pa.array([1] * count, pa.uint64()), pa.array(range(count), pa.timestamp("ms")),
                            pa.array(values)], schema=SCHEMA)


def open_log(directory: Path, fs: Fs | None = None, *, level: int = 1, segment_bytes: int = 64 << 20) -> WalWriter:
    """Opens the log of vgroup 1."""
    return WalWriter.open(directory, WalOptions(1, level, segment_bytes), fs=fs or FaultyFs(), clock=ManualClock())


def write(log: WalWriter, *values: str) -> int:
    """Appends one ROWS record and waits for it."""
    ticket = log.enqueue_rows(7, rows(*values), 5)
    log.commit(ticket)
    return ticket.version


def read_all(directory: Path, start: int = 1) -> list[Record]:
    """Reads everything acknowledged from `start` on."""
    reader = WalReader(LogFiles(directory, OsFs()), start)
    found: list[Record] = []
    while records := reader.read(max_records=3):
        found += records
    reader.close()
    return found


def values_of(records: Sequence[Record]) -> list[list[str]]:
    """Returns the column `v` of ROWS records."""
    return [record.batch.column("v").to_pylist() for record in records if isinstance(record, RowsRecord)]


def small_log(directory: Path, count: int = 4) -> list[int]:
    """Writes a log of `count` records without closing it, forgets its END, returns the offset behind each."""
    log = open_log(directory)
    ends = []
    for number in range(1, count + 1):
        write(log, f"value {number}")
        ends.append((directory / segment_name(1)).stat().st_size)
    (directory / END_NAME).unlink()
    return ends


def test_every_kind_of_record_comes_back(tmp_path: Path) -> None:
    """What is written is read in order, with its version and ingest time."""
    log = open_log(tmp_path)
    write(log, "a", "b")
    for ticket in (log.enqueue_delete(7, (1, 2**63 + 1), -5, 9, 6), log.enqueue_delete(7, None, 0, 1, 6),
                   log.enqueue_meta({"created": [{"näme": 1}]}, 7), log.enqueue_time_mark("w", 123, 8)):
        log.commit(ticket)
    first, *others = read_all(tmp_path)
    assert isinstance(first, RowsRecord)
    assert (first.version, first.ingest_time_ms, first.table_uid) == (1, 5, 7)
    assert first.batch.equals(rows("a", "b"))
    assert first.batch.schema.metadata == SCHEMA.metadata
    assert others == [DeleteRecord(2, 6, 7, (1, 2**63 + 1), -5, 9), DeleteRecord(3, 6, 7, None, 0, 1),
                      MetaRecord(4, 7, {"created": [{"näme": 1}]}), TimeMarkRecord(5, 8, "w", 123)]
    log.close()


TUIDS = np.array([1, 1, 2**63 + 1], np.uint64)
TIMES = np.array([-5, 9, -2**63], np.int64)


def test_points_that_are_deleted_come_back(tmp_path: Path) -> None:
    """In their order, and by child table; whoever reads another table's log passes over them."""
    log = open_log(tmp_path)
    log.commit(log.enqueue(RecordKind.DELETE_POINTS, delete_points_payload(7, TUIDS, TIMES), 6))
    (record,) = read_all(tmp_path)
    assert isinstance(record, DeletePointsRecord)
    assert (record.version, record.ingest_time_ms, record.table_uid) == (1, 6, 7)
    assert (record.tuids.tolist(), record.times.tolist()) == (TUIDS.tolist(), TIMES.tolist())
    assert (record.first_ts, record.last_ts) == (-2**63, 9)
    assert [(tuid, times.tolist()) for tuid, times in record.by_table()] == [(1, [-5, 9]), (2**63 + 1, [-2**63])]
    later = record.since(-5)
    assert later is not None
    assert (later.tuids.tolist(), later.times.tolist()) == ([1, 1], [-5, 9])
    assert record.since(10) is None
    assert record.since(-2**63) is record
    others = WalReader(LogFiles(tmp_path, OsFs())).read_of(frozenset({8}))
    assert others == [OtherRecord(1, 6)]
    log.close()


@pytest.mark.parametrize("payload", [
    b"", delete_points_payload(7, TUIDS[:0], TIMES[:0])[0], b"".join(delete_points_payload(7, TUIDS, TIMES))[:-8],
    b"".join(delete_points_payload(7, TUIDS, TIMES)) + bytes(8), b"".join(delete_points_payload(7, TUIDS[::-1], TIMES)),
    b"".join(delete_points_payload(7, TUIDS[[0, 0]], TIMES[[0, 0]]))],
    ids=["nothing", "none", "too few", "too many", "disorder", "twice"])
def test_points_that_make_no_sense_are_damage(payload: bytes) -> None:
    """Nobody relies on what a record promises that somebody else has written."""
    header = Header(RecordKind.DELETE_POINTS, 1, 6, len(payload), 0, 0, 0)
    with pytest.raises(DamagedRecordError, match="DELETE_POINTS payload cannot be decoded"):
        decode(header, pa.py_buffer(payload), {})


def test_a_reader_starts_anywhere_and_crosses_segments(tmp_path: Path) -> None:
    """Each segment declares its shapes itself, so reading may begin at any version."""
    log = open_log(tmp_path, segment_bytes=2000)
    for number in range(1, 31):
        write(log, f"value {number}")
    log.close()
    assert len(list_segments(OsFs(), tmp_path)) > 3
    for start in range(1, 32):
        records = read_all(tmp_path, start)
        assert [record.version for record in records] == list(range(start, 31))
        assert values_of(records) == [[f"value {n}"] for n in range(start, 31)]


def test_rows_are_decoded_without_copying(tmp_path: Path) -> None:
    """Decoded columns lie in the mapped segment."""
    log = open_log(tmp_path)
    write(log, *["x" * 100] * 1000)
    before = pa.total_allocated_bytes()
    (record,) = read_all(tmp_path)
    assert isinstance(record, RowsRecord)
    assert pa.total_allocated_bytes() == before
    log.close()


@pytest.mark.parametrize("filler", ["cut", "zeros", "garbage"])
def test_a_torn_tail_is_cut_at_the_last_good_record(tmp_path: Path, filler: str) -> None:
    """Whatever byte the power cut stopped at: the whole records before it stay, and writing goes on."""
    source = tmp_path / "source"
    ends = small_log(source)
    data = (source / segment_name(1)).read_bytes()
    target = tmp_path / "target"
    # Every offset for the plain cut; with a filler after it the records' edges and some in between do.
    edges = {end + step for end in [64, *ends] for step in range(-9, 10)}
    for cut in (at for at in range(len(data)) if filler == "cut" or at in edges or at % 37 == 0):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        tail = {"cut": b"", "zeros": bytes(700), "garbage": b"\xa5" * 700}[filler]
        (target / segment_name(1)).write_bytes(data[:cut] + tail)
        log = open_log(target)
        good = sum(end <= cut for end in ends)
        if filler == "zeros":  # trailing zeros of the padding may be the record's own
            assert log.acknowledged_version in (good, good + 1)
            good = log.acknowledged_version
        assert log.acknowledged_version == good
        assert write(log, "new") == good + 1
        log.close()
        assert values_of(read_all(target)) == [[f"value {n + 1}"] for n in range(good)] + [["new"]]


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """A flip before the last record is a CorruptionError with segment and offset; in the last one it looks torn."""
    source = tmp_path / "source"
    ends = small_log(source)
    data = (source / segment_name(1)).read_bytes()
    target = tmp_path / "target"
    target.mkdir()
    refused: dict[int, str] = {}
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        (target / segment_name(1)).write_bytes(damaged)
        (target / END_NAME).unlink(missing_ok=True)
        try:
            log = open_log(target)
        except CorruptionError as error:
            refused[at] = str(error)
            continue
        good = log.acknowledged_version
        log.close()
        # Padding is covered by no checksum and means nothing.
        assert good == 4 or (good == 3 and at >= ends[-2])
        assert values_of(read_all(target)) == [[f"value {n + 1}"] for n in range(good)]
    assert len(refused) > ends[-2] // 2
    assert max(refused) < ends[-2]
    assert all(segment_name(1) in text and "offset" in text for text in refused.values())


def test_damage_in_synced_records_is_never_taken_for_a_torn_tail(tmp_path: Path) -> None:
    """After a clean close even a flip in the last record is an error: the END says that it was synced."""
    log = open_log(tmp_path)
    write(log, "a")
    write(log, "b")
    log.close()
    path = tmp_path / segment_name(1)
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match="only 1 can be read"):
        open_log(tmp_path)


def test_a_reader_reports_damage_where_it_is(tmp_path: Path) -> None:
    """Good records before the damage come first; then each read raises."""
    log = open_log(tmp_path)
    ends = []
    for number in range(4):
        write(log, f"value {number}")
        ends.append((tmp_path / segment_name(1)).stat().st_size)
    path = tmp_path / segment_name(1)
    data = bytearray(path.read_bytes())
    data[ends[1] + 60] ^= 1
    path.write_bytes(data)
    reader = WalReader(LogFiles(tmp_path, OsFs()))
    assert len(reader.read()) == 2
    for _ in range(2):
        with pytest.raises(CorruptionError, match=f"offset {ends[1]}"):
            reader.read()
    reader.close()
    log.close()


def test_a_missing_segment_in_the_middle_is_an_error(tmp_path: Path) -> None:
    """The chain of segments is checked at open."""
    log = open_log(tmp_path, segment_bytes=1000)
    for number in range(10):
        write(log, f"value {number}")
    log.close()
    segments = list_segments(OsFs(), tmp_path)
    (tmp_path / segment_name(segments[1])).unlink()
    with pytest.raises(CorruptionError, match="missing"):
        open_log(tmp_path)


def test_an_unreadable_first_segment_of_a_crash_is_forgotten(tmp_path: Path) -> None:
    """A crash right after a segment was created leaves an empty file; opening goes on with the one before."""
    log = open_log(tmp_path)
    write(log, "a")
    log.close()
    (tmp_path / segment_name(2)).write_bytes(b"")
    log = open_log(tmp_path)
    assert write(log, "b") == 2
    log.close()
    assert values_of(read_all(tmp_path)) == [["a"], ["b"]]


@settings(max_examples=times(80, 2000), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=80))
def test_no_bytes_crash_the_header_decoder(data: bytes) -> None:
    """Random bytes are refused, never misread."""
    with pytest.raises(DamagedRecordError):
        decode_header(data)


@pytest.mark.parametrize("level", [1, 2])
def test_threads_share_a_commit(tmp_path: Path, level: int) -> None:
    """Concurrent writers all get their own version, and every acknowledged record is there."""
    fs = FaultyFs()
    log = open_log(tmp_path, fs, level=level, segment_bytes=20_000)
    versions: list[int] = []

    def work(number: int) -> None:
        for turn in range(25):
            versions.append(write(log, f"{number}/{turn}"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(versions) == list(range(1, 201))
    found = values_of(read_all(tmp_path))
    for number in range(8):
        assert [v[0] for v in found if v[0].startswith(f"{number}/")] == [f"{number}/{turn}" for turn in range(25)]
    assert log.synced_version == (200 if level == 2 else log.synced_version)
    log.close()


def test_a_group_needs_one_sync(tmp_path: Path) -> None:
    """Under level 2 everything that waits is made durable by a single fsync."""
    fs = FaultyFs(fault="sync")
    log = open_log(tmp_path, fs, level=2)
    tickets = [log.enqueue_rows(7, rows(str(number)), 1) for number in range(10)]
    log.commit(tickets[4])
    assert fs.calls == 1
    assert all(ticket.done for ticket in tickets)
    assert log.synced_version == log.acknowledged_version == 10
    log.close()


def test_unacknowledged_records_are_not_read(tmp_path: Path) -> None:
    """An enqueued record is invisible until somebody committed it."""
    log = open_log(tmp_path)
    ticket = log.enqueue_rows(7, rows("a"), 1)
    reader = WalReader(LogFiles(tmp_path, OsFs()))
    assert reader.read() == []
    assert reader.acknowledged_version == 0
    log.commit(ticket)
    assert values_of(reader.read()) == [["a"]]
    assert reader.acknowledged_version == reader.next_version - 1 == 1
    reader.close()
    log.close()


@pytest.mark.parametrize("fault", ["error", "short"])
@pytest.mark.parametrize("level", [1, 2])
def test_a_refused_write_leaves_the_log_usable(tmp_path: Path, fault: str, level: int) -> None:
    """Whichever call fails: acknowledged records stay, refused ones are gone, later ones follow without a gap."""
    for fail_at in range(1, 60):
        directory = tmp_path / f"{fault}{level}-{fail_at}"
        fs = FaultyFs(fault=fault)
        log = open_log(directory, fs, level=level, segment_bytes=1200)
        fs.calls, fs.fail_at = 0, fail_at
        kept = []
        for number in range(12):
            try:
                ticket = log.enqueue_rows(7, rows(f"value {number}"), 1)
                log.commit(ticket)
                kept.append(f"value {number}")
                assert ticket.version == len(kept)
            except StorageError:
                if log.failed is not None:
                    break
                log.reset()
        readable = [value for (value,) in values_of(read_all(directory))]
        assert readable == kept
        with contextlib.suppress(StorageError):  # the fault may hit the last sync
            log.close()
        assert log.failed is None or fs.failed[0].startswith("sync")
        again = open_log(directory)
        recovered = [value for (value,) in values_of(read_all(directory))]
        assert recovered[:len(kept)] == kept
        assert recovered == kept or log.failed is not None
        again.close()
        if not fs.failed:
            break
    else:
        raise AssertionError("the fault must run out of calls")


def test_a_failed_sync_is_not_tried_again(tmp_path: Path) -> None:
    """After a failed fsync the log takes nothing more, and what waited for it is not acknowledged."""
    fs = FaultyFs(fault="sync")
    log = open_log(tmp_path, fs, level=2)
    write(log, "a")
    fs.calls, fs.fail_at = 0, 1
    for _ in range(2):
        with pytest.raises(StorageError, match="closed for writing"):
            write(log, "b")
    with pytest.raises(StorageError):
        log.sync()
    assert fs.calls == 1
    assert values_of(read_all(tmp_path)) == [["a"]]


def test_what_was_refused_with_the_group_is_refused_too(tmp_path: Path) -> None:
    """Records enqueued behind a failing one fail with it: they were decided on top of it."""
    fs = FaultyFs(fault="short")
    log = open_log(tmp_path, fs)
    write(log, "a")
    tickets = [log.enqueue_rows(7, rows(value), 1) for value in "bc"]
    fs.calls, fs.fail_at = 0, 1
    for ticket in tickets:
        with pytest.raises(StorageError):
            log.commit(ticket)
    with pytest.raises(StorageError, match="takes no writes"):
        log.enqueue_rows(7, rows("d"), 1)
    log.reset()
    assert write(log, "e") == 2
    log.close()
    assert values_of(read_all(tmp_path)) == [["a"], ["e"]]


def test_level_1_syncs_in_the_background(tmp_path: Path) -> None:
    """Under level 1 the synced version follows when the period is over."""
    clock = ManualClock()
    log = WalWriter.open(tmp_path, WalOptions(1), fs=OsFs(), clock=clock)
    write(log, "a")
    log.sync_if_due(3.0)
    assert log.synced_version == 0
    clock.advance(3.0)
    log.sync_if_due(3.0)
    assert log.synced_version == 1
    log.close()


def follow(directory: str, until: int, result: multiprocessing.queues.Queue) -> None:  # type: ignore[type-arg]
    """Reads a log from another process until it has seen version `until`."""
    reader = WalReader(LogFiles(Path(directory), OsFs()))
    found: list[str] = []
    while reader.next_version <= until:
        found += [value for (value,) in values_of(reader.read(max_records=7))]
    result.put(found)


def test_a_reader_in_another_process_follows_the_writer(tmp_path: Path) -> None:
    """It sees every record once, in order, over many segments, while they are written."""
    context = multiprocessing.get_context("spawn")
    result = context.Queue()
    log = open_log(tmp_path, segment_bytes=5000)
    process = context.Process(target=follow, args=(str(tmp_path), 400, result))
    process.start()
    for number in range(400):
        write(log, f"value {number}")
    assert result.get(timeout=60) == [f"value {n}" for n in range(400)]
    process.join()
    log.close()


def test_a_reader_survives_retention_of_what_it_has_open(tmp_path: Path) -> None:
    """A deleted segment is read to its end; a deleted one that is still to come is a named gap."""
    log = open_log(tmp_path, segment_bytes=1000)
    for number in range(12):
        write(log, f"value {number}")
    reader = WalReader(LogFiles(tmp_path, OsFs()))
    reader.read(max_records=1)
    first, second, *_ = list_segments(OsFs(), tmp_path)
    (tmp_path / segment_name(first)).unlink()
    assert [r.version for r in reader.read(max_records=second - 2)] == list(range(2, second))
    (tmp_path / segment_name(second)).unlink()
    with pytest.raises(WalGapError, match=f"version {second} .* deleted by retention") as caught:
        reader.read()
    assert caught.value.wanted == second
    reader.close()
    with pytest.raises(WalGapError, match="never written"):
        WalReader(LogFiles(tmp_path, OsFs()), 99).read()
    log.close()


def segments(*closed: int | None) -> list[SegmentInfo]:
    """Returns segments of 10 versions and 1,000 bytes each, closed at these milliseconds."""
    return [SegmentInfo(1 + 10 * i, 10 + 10 * i, 1000, at) for i, at in enumerate(closed)]


@pytest.mark.parametrize(("policy", "persisted", "pin", "expected"), [
    (RetentionPolicy(0, 0, None), 100, None, 3),
    (RetentionPolicy(-1, 0, None), 100, None, 0),
    (RetentionPolicy(60, 0, None), 100, None, 2),
    (RetentionPolicy(3600, 0, None), 100, None, 0),
    (RetentionPolicy(3600, 2, None), 100, None, 2),
    (RetentionPolicy(0, 0, None), 19, None, 1),
    (RetentionPolicy(0, 0, None), 100, 20, 1),
    (RetentionPolicy(0, 0, None), 100, 21, 2),
    (RetentionPolicy(0, 0, 2500), 100, 1, 2),
])
def test_retention_deletes_only_what_nobody_needs(policy: RetentionPolicy, persisted: int, pin: int | None,
                                                  expected: int) -> None:
    """Age or size make a segment go, unless the store lacks its rows or a stream still wants it."""
    log = segments(10_000, 40_000, 90_000, None)
    found = deletable(log, policy, now_ms=100_000, persisted_version=persisted, pin_version=pin)
    assert found == log[:expected]


def test_unsynced_records_behind_garbage_are_cut_off(tmp_path: Path) -> None:
    """A power cut may spare later sectors: what was never promised is cut off, though good records lie behind it."""
    log = open_log(tmp_path, level=2)
    write(log, "promised")
    promised = (tmp_path / END_NAME).read_bytes()
    segment = tmp_path / segment_name(1)
    end = segment.stat().st_size
    write(log, "garbled")
    write(log, "spared")
    log.close()
    data = bytearray(segment.read_bytes())
    data[end + 4] ^= 0xFF
    segment.write_bytes(data)
    (tmp_path / END_NAME).write_bytes(promised)
    again = open_log(tmp_path, level=2)
    assert again.recovery.last_version == 1
    assert again.recovery.cut_bytes > 0
    assert write(again, "next") == 2
    again.close()
    assert [record.version for record in read_all(tmp_path)] == [1, 2]


def _wait_for_growth(directory: Path, version: int, started: Event, timeout_s: float) -> None:
    """In a process of its own: ends well if the log has grown beyond `version` when the wait is over."""
    log = LogFiles(directory, OsFs())
    started.set()
    while log.end().version == version and log.wait(version, timeout_s):
        continue
    sys.exit(0 if log.end().version > version else 1)


@pytest.mark.skipif(not CAN_WAIT, reason="this system has no futex")
def test_a_commit_wakes_readers_of_other_processes(tmp_path: Path) -> None:
    """A reader that waits for growth, with nobody to look again, is woken by the next commit."""
    log = open_log(tmp_path, OsFs())
    version = write(log, "a")
    spawn = multiprocessing.get_context("spawn")
    started = spawn.Event()
    waiting = spawn.Process(target=_wait_for_growth, args=(tmp_path, version, started, 3600.0))
    waiting.start()
    assert started.wait(60)
    write(log, "b")
    waiting.join(60)
    assert waiting.exitcode == 0
    log.close()


@pytest.mark.skipif(not CAN_WAIT, reason="this system has no futex")
def test_a_reader_that_is_behind_never_waits(tmp_path: Path) -> None:
    """If the log is beyond what the reader has seen, the wait is over at once, however long it may last."""
    log = open_log(tmp_path, OsFs())
    version = write(log, "a")
    write(log, "b")
    files = LogFiles(tmp_path, OsFs())
    assert files.wait(version, 3600.0)
    files.close()
    log.close()


def test_nobody_waits_for_a_log_that_does_not_exist(tmp_path: Path) -> None:
    """Without an END file there is no bell: the caller hears so and looks again later."""
    assert not LogFiles(tmp_path, OsFs()).wait(0, 3600.0)
