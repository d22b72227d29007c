"""What is new in a log, as who wakes its readers sees it: never less than what readers find."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.common.clock import ManualClock
from penstock.common.fs import OsFs
from penstock.wal.log import LogFiles
from penstock.wal.news import WalNews
from penstock.wal.pending_records import Ticket
from penstock.wal.reader import WalReader
from penstock.wal.record import DeleteRecord, RowsRecord, with_key_columns
from penstock.wal.segment import SEGMENT_HEADER_SIZE, list_segments, segment_name
from penstock.wal.writer import WalOptions, WalWriter

SCHEMA = with_key_columns(pa.schema([("_tuid", pa.uint64()), ("ts", pa.timestamp("ms")), ("v", pa.string())]), 1)
ROOMY = 64 << 20

Write = Callable[[WalWriter], Ticket]


def rows(table_uid: int, size: int = 1) -> Write:
    """Returns what writes a row with so many bytes."""
    batch = pa.record_batch([pa.array([1], pa.uint64()), pa.array([0], pa.timestamp("ms")), pa.array(["x" * size])],
                            schema=SCHEMA)
    return lambda log: log.enqueue_rows(table_uid, batch, 5)


def deletes(table_uid: int) -> Write:
    return lambda log: log.enqueue_delete(table_uid, (1, 2), 0, 9, 5)


def meta(log: WalWriter) -> Ticket:
    return log.enqueue_meta({"a": 1}, 5)


def time_mark(log: WalWriter) -> Ticket:
    return log.enqueue_time_mark("w", 3, 5)


def open_log(directory: Path, segment_bytes: int = ROOMY) -> WalWriter:
    return WalWriter.open(directory, WalOptions(1, segment_bytes=segment_bytes), fs=OsFs(), clock=ManualClock())


def write(log: WalWriter, *writes: Write) -> None:
    for ticket in [write(log) for write in writes]:
        log.commit(ticket)


TABLES = st.sampled_from([1, 7, 2**63])
WRITES = st.one_of(
    st.builds(rows, TABLES, st.sampled_from([1, 100, 40_000])), st.builds(deletes, TABLES), st.just(meta),
    st.just(time_mark))


@settings(max_examples=times(24, 600), deadline=None)
@given(groups=st.lists(st.lists(WRITES, max_size=6), min_size=1, max_size=8),
       segment_bytes=st.sampled_from([5_000, ROOMY]))
def test_no_record_is_missed(groups: list[list[Write]], segment_bytes: int) -> None:
    """What a look returns are the tables of the records that a reader finds, unless it says that all are concerned."""
    with tempfile.TemporaryDirectory() as folder:
        log = open_log(Path(folder), segment_bytes)
        reader, news = WalReader(LogFiles(Path(folder), OsFs())), WalNews(LogFiles(Path(folder), OsFs()))
        write(log, rows(1))
        assert news.look() is None
        reader.read()
        for group in groups:
            before = len(list_segments(OsFs(), Path(folder)))
            write(log, *group)
            found = reader.read()
            of_tables = [record for record in found if isinstance(record, RowsRecord | DeleteRecord)]
            tables = news.look()
            assert news.version == log.acknowledged_version
            if len(list_segments(OsFs(), Path(folder))) == before and len(of_tables) == len(found):
                assert tables == {record.table_uid for record in of_tables}
            else:
                assert tables is None
        assert news.look() == frozenset()
        for end in (reader, news, log):
            end.close()


def test_many_records_concern_everybody(tmp_path: Path) -> None:
    """Going through all of them would take longer than waking those whom they don't concern."""
    log, news = open_log(tmp_path), WalNews(LogFiles(tmp_path, OsFs()))
    write(log, rows(1))
    news.look()
    write(log, *[rows(7)] * 200)
    assert news.look() == {7}
    write(log, *[rows(7)] * 300)
    assert news.look() is None
    write(log, rows(8))
    assert news.look() == {8}
    news.close()
    log.close()


@pytest.mark.parametrize("damage", ["flipped", "removed"])
def test_a_damaged_log_concerns_everybody(tmp_path: Path, damage: str) -> None:
    """Its readers say what is wrong with it."""
    log, news = open_log(tmp_path), WalNews(LogFiles(tmp_path, OsFs()))
    write(log, rows(1))
    news.look()
    segment = tmp_path / segment_name(1)
    size = segment.stat().st_size
    write(log, rows(7))
    if damage == "removed":
        segment.unlink()
    else:
        assert size > SEGMENT_HEADER_SIZE
        with segment.open("r+b") as file:
            file.seek(size)
            file.write(b"\xff" * 8)
    assert news.look() is None
    assert news.version == log.acknowledged_version
    news.close()
    log.close()


def test_a_look_tells_nothing_of_a_log_that_isnt_there(tmp_path: Path) -> None:
    """Nor is there anything to wait for."""
    news = WalNews(LogFiles(tmp_path, OsFs()))
    assert news.look() == frozenset()
    assert not news.wait(0.0)
    news.close()
