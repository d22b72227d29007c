"""What a vnode does with rows that ingests deliver: each is in the log once, whatever is delivered again."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.basics.faulty_fs import FaultyFs

from penstock.common.clock import ManualClock
from penstock.common.errors import StorageError
from penstock.common.fs import OsFs
from penstock.vnode.store.delivery import IngestDelivery
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode
from penstock.wal.log import LogFiles
from penstock.wal.reader import WalReader
from penstock.wal.record import IngestOrigin, RowsRecord

TABLE = 9
INGEST = 5
SCHEMA = pa.schema([("ts", pa.timestamp("ms")), ("v", pa.int64())])


def open_vnode(directory: Path, fs: FaultyFs | None = None, **options: int) -> Vnode:
    vnode = Vnode.open(directory, VnodeOptions(1, **options), fs=fs or FaultyFs(), clock=ManualClock())
    vnode.tables.define(TABLE, SCHEMA, 1)
    return vnode


def deliver(vnode: Vnode, partition: str, offsets: list[int], segment: str = "", *, number: int = 0) -> int:
    """Writes one row per offset, whose value says where it comes from; returns the vnode's version."""
    values = [int(partition) * 1_000_000 + number * 1_000 + offset for offset in offsets]
    delivery = IngestDelivery(INGEST, partition, segment, np.array(offsets, np.int64))
    # As the engine does: row by row where that will do.
    begun = vnode.writer.begin_few(TABLE, ("ts", "v"), [(1 + int(partition), value, value) for value in values],
                            delivery=delivery)
    if begun is not None:
        return begun.wait()
    batch = pa.record_batch({"_tuid": pa.array([1 + int(partition)] * len(offsets), pa.uint64()),
                             "ts": pa.array(values, pa.timestamp("ms")), "v": pa.array(values, pa.int64())})
    return vnode.write(TABLE, batch, delivery=delivery)


def logged(directory: Path) -> list[RowsRecord]:
    reader = WalReader(LogFiles(directory / "wal", OsFs()), 1)
    found: list[RowsRecord] = []
    while records := reader.read():
        found += [record for record in records if isinstance(record, RowsRecord)]
    reader.close()
    return found


def values_in_log(directory: Path) -> list[int]:
    return [value for record in logged(directory) for value in record.batch.column("v").to_pylist()]


@settings(max_examples=times(24, 600), deadline=None)
@given(st.lists(st.one_of(
    st.tuples(st.integers(0, 2), st.integers(0, 8), st.integers(1, 8)),  # partition, how far back, how many
    st.sampled_from(["flush", "restart", "crash"])), max_size=30))
def test_each_row_is_in_the_log_once_whatever_comes_again(steps: list[tuple[int, int, int] | str]) -> None:
    """Deliveries that overlap, over flushes, restarts and crashes, leave each row once."""
    with TemporaryDirectory() as name:
        directory = Path(name)
        vnode = open_vnode(directory)
        vnode.set_pin("test", 0)
        reached = {0: 0, 1: 0, 2: 0}
        for step in steps:
            if step == "flush":
                vnode.flush()
            elif step == "restart":
                vnode.close()
                vnode = open_vnode(directory)
            elif step == "crash":
                vnode = open_vnode(directory)
            else:
                partition, back, count = step
                first = max(0, reached[partition] - back)
                deliver(vnode, str(partition), list(range(first, first + count)))
                reached[partition] = max(reached[partition], first + count)
        wanted = sorted(partition * 1_000_000 + offset for partition, end in reached.items() for offset in range(end))
        assert sorted(values_in_log(directory)) == wanted
        assert sorted(vnode.reader.snapshot(TABLE).to_arrow().column("v").to_pylist()) == wanted


def test_records_say_where_their_rows_come_from(tmp_path: Path) -> None:
    """The origin is read back from the log; rows of statements have none."""
    vnode = open_vnode(tmp_path)
    deliver(vnode, "1", [4, 4, 6])
    vnode.write(TABLE, pa.record_batch({"_tuid": pa.array([1], pa.uint64()), "ts": pa.array([1], pa.timestamp("ms")),
                                        "v": pa.array([1], pa.int64())}))
    deliver(vnode, "1", [1, 2], "Größe.csv")
    deliver(vnode, "1", [3, 4], "Größe.csv", number=1)
    assert [record.origin for record in logged(tmp_path)] == [
        IngestOrigin(INGEST, "1", "", 7), None, IngestOrigin(INGEST, "1", "Größe.csv", 3),
        IngestOrigin(INGEST, "1", "Größe.csv", 5)]


def test_what_is_here_already_is_not_appended(tmp_path: Path) -> None:
    """Row by row goes what is new as a whole; of the rest, `write` takes what isn't there yet."""
    vnode = open_vnode(tmp_path)
    rows = [(1, 5, 5), (1, 6, 6)]
    first, again = (IngestDelivery(INGEST, "0", "", np.array(offsets, np.int64)) for offsets in ([0, 1], [1, 2]))
    assert vnode.writer.begin_few(TABLE, ("ts", "v"), rows, delivery=first) is not None
    assert vnode.writer.begin_few(TABLE, ("ts", "v"), [(1, 7, 7), (1, 8, 8)], delivery=again) is None


def test_a_later_segment_begins_anew_and_an_earlier_one_is_known(tmp_path: Path) -> None:
    """Offsets count within a segment; segments that sort before the newest are known."""
    vnode = open_vnode(tmp_path)
    deliver(vnode, "0", [0, 1, 2], "a.csv")
    deliver(vnode, "0", [0, 1], "b.csv", number=1)
    before = vnode.acknowledged_version
    assert deliver(vnode, "0", [2, 3], "a.csv") == before
    assert deliver(vnode, "0", [1, 2], "b.csv", number=1) == before + 1
    assert values_in_log(tmp_path) == [0, 1, 2, 1000, 1001, 1002]


def test_places_outlive_the_log(tmp_path: Path) -> None:
    """Once retention has deleted the records, the MANIFEST still tells how far an ingest was."""
    vnode = open_vnode(tmp_path, segment_bytes=400, wal_retention_period_s=0)
    for offset in range(10):
        deliver(vnode, "0", [offset])
    vnode.flush()
    vnode.maintain()
    assert vnode.reader.oldest_version() > 1
    vnode.close()
    vnode = open_vnode(tmp_path)
    before = vnode.acknowledged_version
    assert deliver(vnode, "0", list(range(10))) == before


def test_rows_of_a_write_that_was_refused_are_taken_the_next_time(tmp_path: Path) -> None:
    """A place doesn't move for rows that aren't in the log."""
    fs = FaultyFs()
    vnode = open_vnode(tmp_path, fs)
    deliver(vnode, "0", [0])
    fs.fail_at = fs.calls + 1
    with pytest.raises(StorageError):
        deliver(vnode, "0", [1, 2])
    fs.fail_at = 0
    deliver(vnode, "0", [1, 2])
    assert values_in_log(tmp_path) == [0, 1, 2]


def test_a_dropped_ingest_is_forgotten(tmp_path: Path) -> None:
    """After `forget_ingest` rows of the same places are new."""
    vnode = open_vnode(tmp_path)
    deliver(vnode, "0", [0])
    vnode.writer.forget_ingest(INGEST)
    before = vnode.acknowledged_version
    assert deliver(vnode, "0", [0]) == before + 1
