"""Faults and costs of a cluster of three `penstock serve`: what is lost, how long nobody is served, what replicas cost.

`python -m programs.cluster_rounds --rounds 5 --faults disk pause zookeeper` plays rounds: rows are written all the time
by a client that knows all hosts, a stream runs, and after each fault every acknowledged row is looked for. Prints
seconds from the fault to the first row that was acknowledged after it. `--cost` measures REPLICA 1, 2 and 3 instead.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from kits.basics.external_servers import ZooKeeper
from kits.basics.waiting import wait_until
from kits.cluster.served_cluster import RowWriter, ServedCluster, ServedNode

from penstock.shell.api.dbapi import connect

PAUSED_S = 30.0
AWAY_S = 20.0
BASE_MS = 1_700_000_000_000
STREAM = ("CREATE STREAM s CHECKPOINT_INTERVAL 5s INTO d.r AS "
          "SELECT _wstart AS ws, count(*) AS n, sum(v) AS total FROM d.t INTERVAL(10s)")


class Rounds:
    """One cluster that faults come to, one after the other."""

    def __init__(self, cluster: ServedCluster, zookeeper: ZooKeeper) -> None:
        self.cluster = cluster
        self.zookeeper = zookeeper
        cluster.wait_active().run("CREATE DATABASE d VGROUPS 2 REPLICA 2", "CREATE TABLE d.t (ts TIMESTAMP, v BIGINT)",
                                  STREAM)
        self.writer = RowWriter(cluster, "d.t")
        self.writer.wait_for_more(20)

    def play(self, fault: str) -> float:
        """Returns the seconds from a fault to the first row after it; raises AssertionError if a row is missing."""
        active = self.cluster.wait_active()
        wait_until(lambda: self._is_level(active), 120, "the standbys don't keep up")
        heals: Callable[[], None] = getattr(self, f"_{fault}")(active)
        began, acknowledged = time.monotonic(), len(self.writer.acknowledged)
        # One may have been under way; the answer to the second is of after the fault.
        wait_until(lambda: len(self.writer.acknowledged) >= acknowledged + 2, 180, "no row is acknowledged any more")
        took_s = time.monotonic() - began
        heals()
        told = set(self.writer.acknowledged)
        with connect(host=self.cluster.hosts) as connection, connection.cursor() as cursor:
            found = {row[0] for row in cursor.execute("SELECT v FROM d.t").fetchall()}
        assert told <= found, f"rows are missing: {sorted(told - found)[:10]}"
        return took_s

    def end(self) -> None:
        """Ends writing, and compares the stream's results with the batch answer."""
        number = self.writer.end()
        last = self.cluster.wait_active()
        last.run(f"INSERT INTO d.t VALUES ({BASE_MS + number * 100 + 600_000}, 0)")
        batch = ("SELECT * FROM (SELECT _wstart AS ws, count(*) AS n, sum(v) AS total FROM d.t INTERVAL(10s)) "
                 "ORDER BY ws")
        wait_until(lambda: last.run("SELECT ws, n, total FROM d.r ORDER BY ws") == last.run(batch)[:-1], 300,
                   "the results aren't those of the batch query")

    def _is_level(self, active: ServedNode) -> bool:
        rows = active.run("SELECT role, synchronous, lag_versions FROM information_schema.ins_cluster")
        return sorted(role for role, _, _ in rows) == ["active", "standby", "standby"] and (
            sum(bool(member) for _, member, _ in rows) == 2 and all((lag or 0) < 50 for _, _, lag in rows))

    def _kill(self, active: ServedNode) -> Callable[[], None]:
        active.kill()
        return active.start

    def _disk(self, active: ServedNode) -> Callable[[], None]:
        active.kill(with_disk=True)
        return active.start

    def _pause(self, active: ServedNode) -> Callable[[], None]:
        active.pause()
        resumes = threading.Timer(PAUSED_S, active.resume)
        resumes.start()
        return resumes.join

    def _zookeeper(self, active: ServedNode) -> Callable[[], None]:
        self.zookeeper.freeze()
        thaws = threading.Timer(AWAY_S, self.zookeeper.thaw)
        thaws.start()
        return thaws.join

    def _switchover(self, active: ServedNode) -> Callable[[], None]:
        target = next(row[0] for row in active.run("SELECT id, role, synchronous FROM information_schema.ins_cluster")
                      if row[1] == "standby" and row[2])
        active.run(f"SWITCHOVER TO {target}")
        return lambda: None


def play(cluster: ServedCluster, zookeeper: ZooKeeper, faults: list[str], rounds: int) -> None:
    """Plays rounds of each fault and prints how long nobody was served."""
    playing = Rounds(cluster, zookeeper)
    for fault in faults:
        took = [playing.play(fault) for _ in range(rounds)]
        print(f"{fault}: {rounds} rounds, first row after {statistics.median(took):.1f} s (worst {max(took):.1f} s)",
              flush=True)
    playing.end()
    print(f"{len(playing.writer.acknowledged)} rows acknowledged, none missing; results equal the batch answer")


def cost(cluster: ServedCluster, seconds: float) -> None:
    """Prints what one client gets with REPLICA 1, 2 and 3: rows of large inserts, and small ones."""
    cluster.wait_active()
    with connect(host=cluster.hosts) as connection, connection.cursor() as cursor:
        for replicas in (1, 2, 3):
            name = f"r{replicas}"
            cursor.execute(f"CREATE DATABASE {name} VGROUPS 1 REPLICA {replicas}")
            cursor.execute(f"CREATE TABLE {name}.t (ts TIMESTAMP, v BIGINT)")
            number, small = 0, list[float]()
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                before = time.perf_counter()
                cursor.execute(f"INSERT INTO {name}.t VALUES ({BASE_MS + number}, {number})")
                small.append(1000 * (time.perf_counter() - before))
                number += 1
            rows, began = 0, time.perf_counter()
            while time.perf_counter() - began < seconds:
                first = number + rows
                times = pa.array(range(BASE_MS + first, BASE_MS + first + 10_000), pa.timestamp("ms"))
                cursor.insert_arrow(f"{name}.t", pa.table({"ts": times, "v": pa.array(range(10_000))}))
                rows += 10_000
            rate = rows / (time.perf_counter() - began)
            small.sort()
            print(f"REPLICA {replicas}: one row p50 {statistics.median(small):.2f} ms, p99 "
                  f"{small[int(len(small) * 0.99)]:.2f} ms; 10,000 rows at once {rate:,.0f} rows/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--faults", nargs="*", default=["kill", "disk", "pause", "switchover", "zookeeper"])
    parser.add_argument("--session", default="4s", help="sessionTimeout")
    parser.add_argument("--cost", action="store_true", help="measure replicas instead")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "zookeeper").mkdir()
        zookeeper = ZooKeeper(Path(folder) / "zookeeper")
        zookeeper.start()
        cluster = ServedCluster(Path(folder), zookeeper, "/rounds", sessionTimeout=options.session,
                                walSegmentSize="64MiB", memtableSize="64MiB")
        try:
            if options.cost:
                cost(cluster, options.seconds)
            else:
                play(cluster, zookeeper, options.faults, options.rounds)
        finally:
            cluster.close()
            zookeeper.kill()


if __name__ == "__main__":
    main()
