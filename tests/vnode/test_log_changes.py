"""What a log tells of a table without the engine that wrote it: what changed behind a version, and when that was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from kits.basics.faulty_fs import FaultyFs

from penstock.common.clock import ManualClock
from penstock.vnode.read.detached_reader import DetachedVnode
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode
from penstock.wal.reader import WalGapError
from penstock.wal.record import DeleteRecord, MetaRecord, RowsRecord
from penstock.wal.segment import list_segments, segment_name

TABLE, OTHER = 7, 8
SCHEMA = pa.schema([("ts", pa.timestamp("ms")), ("v", pa.int64())])
RECORDS = 200


class Written:
    """A vnode of some segments: a row per record of either table in turn, ten milliseconds apart."""

    def __init__(self, root: Path) -> None:
        self.fs, self.clock, self.root = FaultyFs(), ManualClock(), root
        self.vnode = Vnode.open(root, VnodeOptions(1, segment_bytes=4_000), fs=self.fs, clock=self.clock)
        for table in (TABLE, OTHER):
            self.vnode.tables.define(table, SCHEMA, 1)
        for number in range(RECORDS):
            self.vnode.write((TABLE, OTHER)[number % 2], pa.RecordBatch.from_pydict({
                "_tuid": pa.array([1], pa.uint64()), "ts": pa.array([number], pa.timestamp("ms")), "v": [number]}))
            self.clock.advance(0.01)
        self.reader = DetachedVnode(root, 1, self.fs)
        self.times = {record.version: record.ingest_time_ms for table in (TABLE, OTHER)
                      for record in self.reader.changes(table, 0)}


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    made = Written(tmp_path / "vnode")
    assert len(list_segments(made.fs, made.root / "wal")) > 3
    yield made
    made.vnode.close(flush=False)


def test_changes_of_a_table(written: Written) -> None:
    """Rows, deletes and what is said of child tables, of one table and behind a version."""
    written.vnode.delete(TABLE, [1], 5, 6)
    written.vnode.delete(OTHER, [1], 5, 6)
    written.vnode.write_meta({"op": "drop_children", "table_uid": TABLE, "children": [1]})
    found = list(written.reader.changes(TABLE, RECORDS - 4))
    assert [type(record) for record in found] == [RowsRecord, RowsRecord, DeleteRecord, MetaRecord]
    assert [record.version for record in found][:2] == [RECORDS - 3, RECORDS - 1]


def test_the_last_version_before_a_moment(written: Written) -> None:
    """Exactly that, in whichever segment it is; 0 before the first one, and nothing where the log begins later."""
    for version in (1, 2, 63, 64, 65, 130, RECORDS):
        assert written.reader.version_before(written.times[version]) == version - 1
        assert written.reader.version_before(written.times[version] + 1) == version
    oldest, second, *_ = list_segments(written.fs, written.root / "wal")
    (written.root / "wal" / segment_name(oldest)).unlink()
    assert written.reader.version_before(written.times[second]) is None
    assert written.reader.version_before(written.times[second] + 1) == second
    with pytest.raises(WalGapError):
        next(written.reader.changes(TABLE, 0))
