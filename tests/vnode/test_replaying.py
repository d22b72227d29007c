"""Records of the log are brought into tables again: many at once as one by one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.basics.faulty_fs import FaultyFs
from kits.basics.few_rows import write_few

from penstock.common.clock import ManualClock
from penstock.common.fs import OsFs
from penstock.vnode.read.snapshot import Snapshot
from penstock.vnode.store.delivery import IngestDelivery
from penstock.vnode.store.parts import PartCache
from penstock.vnode.store.replaying import replay
from penstock.vnode.store.table_state import TableState
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode
from penstock.wal.log import LogFiles
from penstock.wal.reader import WalReader
from penstock.wal.record import Record

SCHEMAS = [pa.schema([("ts", pa.timestamp("ms")), ("v", pa.int64())]),
           pa.schema([("ts", pa.timestamp("ms")), ("v", pa.int64()), ("w", pa.string())])]
ACTIONS = st.lists(st.tuples(
    st.sampled_from(["append"] * 6 + ["few"] * 6 + ["write", "write", "many", "delete", "column", "ingest"]),
    st.sampled_from([7, 8]), st.integers(0, 40)), max_size=40)


def play(vnode: Vnode, script: list[tuple[str, int, int]]) -> None:
    """Writes what the script says; each table may get a further column."""
    columns = {7: 0, 8: 0}
    for table, column in columns.items():
        vnode.tables.define(table, SCHEMAS[column], 1)
    for number, (action, table, key) in enumerate(script):
        schema = SCHEMAS[columns[table]]
        values = (number, "x")[:len(schema) - 1]
        if action == "column":
            columns[table] = 1
            vnode.tables.define(table, SCHEMAS[1], 1)
        elif action == "delete":
            vnode.delete(table, None if key % 2 else [1], key, key + 5)
        elif action == "append":
            write_few(vnode, table, tuple(schema.names), [(1 + key % 3, 100 + number, *values)])
        elif action == "few":
            write_few(vnode, table, tuple(schema.names), [(1, key % 4, *values), (2, 100 + key % 4, *values)])
        else:
            count = 600 if action == "many" else 1 + key % 3
            batch = pa.RecordBatch.from_arrays([
                pa.array([1 + key % 3] * count, pa.uint64()), pa.array(range(key, key + count), pa.timestamp("ms")),
                pa.array([number] * count)], ["_tuid", "ts", "v"])
            delivery = IngestDelivery(3, f"p{key % 2}", "", np.arange(number * 9, number * 9 + count))
            vnode.write(table, batch, delivery=delivery if action == "ingest" else None)


def content(table: TableState, version: int) -> pa.Table:
    return Snapshot.of(table, 1, version, PartCache()).to_arrow()


@settings(max_examples=times(32, 800), deadline=None)
@given(ACTIONS, st.integers(1, 50))
def test_many_records_at_once_are_as_one_by_one(script: list[tuple[str, int, int]], size: int) -> None:
    """Rows as of every version, newest times and places of ingests are the same."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        vnode = Vnode.open(Path(folder), VnodeOptions(1, segment_bytes=3000), fs=FaultyFs(), clock=ManualClock())
        play(vnode, script)
        reader = WalReader(LogFiles(Path(folder, "wal"), OsFs()))
        records: list[Record] = []
        while found := reader.read():
            records += found
        singly, together = ({uid: TableState(uid, SCHEMAS[1], 1) for uid in (7, 8)} for _ in range(2))
        for record in records:
            replay([record], singly)
        for start in range(0, len(records), size):
            replay(records[start:start + size], together)
        reader.close()
        for uid in (7, 8):
            one, other = singly[uid], together[uid]
            for version in range(len(records) + 1):
                assert content(one, version).equals(content(other, version))
            assert one.newest.tuids.tolist() == other.newest.tuids.tolist()
            assert one.newest.times.tolist() == other.newest.times.tolist()
            assert one.newest.of(one.newest.tuids)[1].tolist() == other.newest.of(one.newest.tuids)[1].tolist()
            assert one.places == other.places
            assert one.memtable.num_rows == other.memtable.num_rows
        vnode.close()
