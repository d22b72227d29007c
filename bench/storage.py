"""Prints how fast one vnode takes, flushes and reads rows: `python bench/storage.py [directory]`."""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from penstock.common.clock import SystemClock
from penstock.common.fs import OsFs
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode
from penstock.wal.log import LogFiles
from penstock.wal.reader import WalReader

TABLE = 7
SCHEMA = pa.schema([("ts", pa.timestamp("ms")), ("a", pa.float64()), ("b", pa.int32())])


def batch(tuids: np.ndarray, times: np.ndarray, columns: bool = True) -> pa.RecordBatch:
    """Returns rows of the bench table."""
    arrays = {"_tuid": pa.array(tuids.astype(np.uint64)), "ts": pa.array(times, pa.timestamp("ms"))}
    if columns:
        arrays["a"] = pa.array(times.astype(np.float64))
    arrays["b"] = pa.array((times % 100).astype(np.int32))
    return pa.record_batch(arrays)


def report(name: str, count: int, unit: str, action: Callable[[], object]) -> None:
    """Runs an action and prints its rate and the time per call."""
    start = time.perf_counter()
    action()
    seconds = time.perf_counter() - start
    print(f"{name:44} {count / seconds:14,.0f} {unit}/s   {seconds / count * 1e6:10.2f} us each")


def open_vnode(directory: Path, level: int = 1) -> Vnode:
    """Returns an empty vnode."""
    shutil.rmtree(directory, ignore_errors=True)
    vnode = Vnode.open(directory, VnodeOptions(1, wal_level=level, memtable_bytes=1 << 30), fs=OsFs(),
                       clock=SystemClock())
    vnode.tables.define(TABLE, SCHEMA, 1)
    return vnode


def write_all(vnode: Vnode, batches: list[pa.RecordBatch]) -> None:
    """Writes batches one after the other."""
    for rows in batches:
        vnode.write(TABLE, rows)


def write_in_threads(vnode: Vnode, batches: list[pa.RecordBatch], count: int) -> None:
    """Writes batches from several threads."""
    threads = [threading.Thread(target=write_all, args=(vnode, batches[i::count])) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def read_all(reader: WalReader) -> None:
    """Reads a log to its end."""
    while reader.read():
        pass


def main(root: Path) -> None:
    """Runs all measurements below `root`."""
    step = np.arange(1000)
    one_table = [batch(np.full(1000, 1 + i % 10), step + i * 1000) for i in range(2000)]
    many = [batch(np.sort(step % 100), np.tile(np.arange(10), 100) + i * 10) for i in range(2000)]
    unsorted = [batch(step % 100, step // 100 + i * 10) for i in range(1000)]
    singles = [batch(np.full(1, 1 + i % 100), np.full(1, i)) for i in range(20_000)]

    for name, batches in (("1,000 rows of one table", one_table), ("1,000 rows of 100 tables", many),
                          ("1,000 rows of 100 tables, by time", unsorted), ("one row", singles)):
        vnode = open_vnode(root / "v")
        rows = sum(b.num_rows for b in batches)
        report(f"write, {name}", rows, "rows", lambda vnode=vnode, batches=batches: write_all(vnode, batches))
        reader = WalReader(LogFiles(root / "v" / "wal", OsFs()))
        report(f"follow the log, {name}", rows, "rows", lambda reader=reader: read_all(reader))
        reader.close()
        vnode.close(flush=False)

    vnode = open_vnode(root / "v", level=2)
    report("write level 2, one row", 500, "rows", lambda: write_all(vnode, singles[:500]))
    report("write level 2, one row, 16 threads", 4000, "rows",
           lambda: write_in_threads(vnode, singles[500:4500], 16))
    vnode.close(flush=False)

    vnode = open_vnode(root / "v")
    write_all(vnode, many)
    late = [batch(np.arange(100), np.full(100, 5000 + i)) for i in range(200)]
    partial = [batch(np.arange(100), np.full(100, 5000 + i), columns=False) for i in range(200)]
    report("rewrite of stored rows, 100 rows", 20_000, "rows", lambda: write_all(vnode, late))
    report("partial rewrite, 100 rows", 20_000, "rows", lambda: write_all(vnode, partial))
    snapshot = vnode.reader.snapshot(TABLE)
    uid = pa.array([5], pa.uint64())
    report("recalculation read, memtable", 200, "reads",
           lambda: [snapshot.to_arrow(None, uid, i * 10, i * 10 + 1000) for i in range(200)])
    report("flush, 2 M rows", 2_000_000, "rows", vnode.flush)
    snapshot = vnode.reader.snapshot(TABLE)
    report("recalculation read, one part", 200, "reads",
           lambda: [snapshot.to_arrow(None, uid, i * 10, i * 10 + 1000) for i in range(200)])
    report("partial rewrite of stored parts, 100 rows", 20_000, "rows", lambda: write_all(vnode, partial))
    select = vnode.reader.snapshot(TABLE).to_sql()
    connection = duckdb.connect()
    for name, table in select.tables.items():
        connection.register(name, table)
    report("DuckDB sum over the snapshot", 2_000_000, "rows",
           lambda: connection.execute(f"SELECT sum(a) FROM ({select.sql})").fetchall())
    vnode.close(flush=False)
    report("reopen", 1, "times", lambda: Vnode.open(root / "v", VnodeOptions(1), fs=OsFs(), clock=SystemClock()))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory))
