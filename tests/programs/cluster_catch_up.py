"""How long a node of a cluster takes to get what it lacks, and what travels: `python -m programs.cluster_catch_up`.

Three `penstock serve`, one database with REPLICA 2, rows of a time and a random number of 8 bytes in a hundred child
tables. First a node comes back without its disk, when the logs begin later than the database: it gets copies. Then one
that was away for some minutes comes back, for which the logs are still there. All the time rows are written.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from kits.basics.external_servers import ZooKeeper
from kits.basics.waiting import wait_until
from kits.cluster.served_cluster import ServedCluster, ServedNode

BASE_MS = 1_700_000_000_000
TABLES = 100
#: Rows of one INSERT.
BATCH = 50_000
PATIENCE_S = 1800.0


class ArrowWriter:
    """Writes batches of rows, `rows_s` of them per second, until it is ended."""

    def __init__(self, cluster: ServedCluster) -> None:
        self.rows = 0
        self.rows_s = float("inf")
        self.slowest_s = 0.0
        self._cluster = cluster
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        chance = np.random.default_rng(1)
        with self._cluster.connect() as connection, connection.cursor() as cursor:
            for number in itertools.count():
                if self._ended.is_set():
                    return
                first = BASE_MS + number * BATCH // TABLES
                times = [first + place // TABLES for place in range(BATCH)]
                names = [f"c{place % TABLES}" for place in range(BATCH)]
                began = time.monotonic()
                values = chance.integers(0, 1 << 62, BATCH)
                cursor.insert_arrow("d.s", pa.table({
                    "tbname": names, "ts": pa.array(times, pa.timestamp("ms")), "v": values}))
                took = time.monotonic() - began
                self.rows += BATCH
                self.slowest_s = max(self.slowest_s, took)
                self._ended.wait(max(0.0, BATCH / self.rows_s - took))

    def wait_for(self, rows: int) -> None:
        wait_until(lambda: self.rows >= rows or not self._thread.is_alive(), PATIENCE_S, "rows aren't written")
        assert self._thread.is_alive(), "the writer has failed"

    def end(self) -> None:
        self._ended.set()
        self._thread.join(PATIENCE_S)


def lag_of(cluster: ServedCluster, node: ServedNode) -> int | None:
    """Returns how many records a node lacks; None while nobody knows."""
    active = cluster.active()
    if active is None:
        return None
    rows = active.run("SELECT id, role, lag_versions FROM information_schema.ins_cluster")
    return next((lag for number, role, lag in rows if number == node.number and role == "standby"), None)


def wait_level(cluster: ServedCluster, node: ServedNode) -> float:
    """Returns after how many seconds a node lacks next to nothing."""
    began = time.monotonic()

    def is_level() -> bool:
        lag = lag_of(cluster, node)
        return lag is not None and lag < 10

    wait_until(is_level, PATIENCE_S, f"node {node.number} doesn't catch up")
    return time.monotonic() - began


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def told(what: str, cluster: ServedCluster, node: ServedNode, writer: ArrowWriter, rows: int) -> None:
    """Starts a node, waits until it is level, and prints what that took."""
    wait_until(lambda: lag_of(cluster, node) is None, 60, "a node that is dead is thought to follow")
    writer.slowest_s = 0.0
    log = node.data / "log" / "penstock.log"
    before = log.read_text().count("is copied from") if log.exists() else 0
    had = size_of(node.data / "vnode")
    node.start()
    seconds = wait_level(cluster, node)
    copies = log.read_text().count("is copied from") - before
    print(f"{what}: {writer.rows:,} rows are there, of which it lacked {writer.rows - rows:,}; level after "
          f"{seconds:.0f} s, by {f'{copies} copies' if copies else 'the log'}; its vnodes had {had / 1e6:,.0f} MB and "
          f"have {size_of(node.data / 'vnode') / 1e6:,.0f} MB; the slowest INSERT took {writer.slowest_s:.1f} s",
          flush=True)


def third_node(cluster: ServedCluster) -> ServedNode:
    """Returns the node that nobody waits for."""
    wait_until(lambda: len(_members(cluster)) == 2, 60, "the synchronous set isn't complete")
    return next(node for node in cluster.nodes.values() if node.number not in _members(cluster))


def _members(cluster: ServedCluster) -> list[int]:
    return [row[0] for row in cluster.wait_active().run(
        "SELECT id, synchronous FROM information_schema.ins_cluster") if row[1]]


def play(cluster: ServedCluster, rows: int, rows_s: float, away_s: float) -> None:
    active = cluster.wait_active()
    active.run("CREATE DATABASE d VGROUPS 2 REPLICA 2 WAL_RETENTION_PERIOD 0",
               "CREATE STABLE d.s (ts TIMESTAMP, v BIGINT) TAGS (t INT)",
               "CREATE TABLE " + " ".join(f"d.c{n} USING d.s TAGS ({n})" for n in range(TABLES)))
    began = time.monotonic()
    writer = ArrowWriter(cluster)
    try:
        writer.wait_for(rows)
        print(f"{writer.rows:,} rows written in {time.monotonic() - began:.0f} s", flush=True)
        writer.rows_s = rows_s
        node = third_node(cluster)
        node.kill(with_disk=True)
        # Logs are kept for a node for a while after it was last heard of.
        wait_until(lambda: all(min(path.name for path in log.glob("*.log")) > f"{1:020}.log"
                               for log in (active.data / "vnode").glob("*/wal")), 300, "no log begins later")
        told("without its disk", cluster, node, writer, 0)
        active.run("ALTER DATABASE d WAL_RETENTION_PERIOD 3600")
        node.kill()
        before = writer.rows
        threading.Event().wait(away_s)
        told(f"away for {away_s:.0f} s", cluster, node, writer, before)
    finally:
        writer.end()
    total = writer.rows
    for one in cluster.nodes.values():
        wait_until(lambda one=one: one.run("SELECT count(*) FROM d.s")[0][0] == total, 120,
                   f"node {one.number} has other rows")
    print(f"all nodes have {total:,} rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rows-s", type=float, default=20_000, help="written while a node gets what it lacks")
    parser.add_argument("--away", type=float, default=180, help="seconds that a node is away")
    parser.add_argument("--keep", help="a folder for data and logs, which stay there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.keep or temporary)
        (folder / "zookeeper").mkdir(parents=True)
        zookeeper = ZooKeeper(folder / "zookeeper")
        zookeeper.start()
        cluster = ServedCluster(folder, zookeeper, "/catch-up", sessionTimeout="4s", walSegmentSize="16MiB",
                                memtableSize="64MiB")
        try:
            play(cluster, options.rows, options.rows_s, options.away)
        finally:
            cluster.close()
            zookeeper.kill()


if __name__ == "__main__":
    main()
