"""Faults and costs of a cluster of three `penstock serve`: what is lost, how long nobody is served, what replicas cost.

`python -m programs.cluster_rounds --rounds 5 --faults disk isolated stopped` plays rounds: rows are written all the
time by a client that knows all hosts, and five streams with windows of different kinds run. After each fault every
acknowledged row is looked for, once, and results are compared with the batch answer. Prints the longest time between
two acknowledged rows, and seconds from the fault to the first results of later rows: of one stream, and of all five.
Where this process is root each node has a network namespace of its own, and packets can be lost. `--cost` measures
REPLICA 1, 2 and 3 instead.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
from kits.basics.external_servers import ZooKeeper
from kits.basics.waiting import wait_until
from kits.cluster.node_network import NodeNetwork, possible
from kits.cluster.served_cluster import PASSWORD, USER, RowWriter, ServedCluster, ServedNode

from penstock.common.errors import PenstockError
from penstock.shell.api.dbapi import Cursor

PAUSED_S = 30.0
AWAY_S = 20.0
PARTED_S = 20.0
BASE_MS = 1_700_000_000_000
#: Longer than any window of the streams, in the time of the rows.
SETTLED_MS = 30_000
WINDOWS = ("INTERVAL(10s)", "INTERVAL(10s) SLIDING(5s)", "SESSION(ts, 500a)", "STATE_WINDOW(k)",
           "EVENT_WINDOW START WITH k = 1 END WITH k = 2")
#: Faults that take a network of the nodes' own.
PARTITIONS = ("isolated", "mute", "deaf", "parted", "unleased")
FAULTS = ("kill", "disk", "stopped", "zookeeper", "switchover", *PARTITIONS)


def time_of(number: int) -> int:
    """Returns a row's time: one every 100 ms, with a pause behind each 53rd."""
    return BASE_MS + number * 100 + number // 53 * 1000


def row(number: int) -> str:
    return f"({time_of(number)}, {number}, {number // 37 % 3})"


def results_of(window: str) -> str:
    return f"SELECT _wstart AS ws, count(*) AS n, sum(v) AS total FROM d.t {window}"


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Seconds without a row, from a fault to the first results of one stream, and of all."""

    row: float
    result: float
    results: float


class ResultWatch:
    """Looks for results of windows that begin behind a time, by a connection that knows all hosts."""

    def __init__(self, cluster: ServedCluster, behind_ms: int) -> None:
        self.seconds: list[float] = []
        self._cluster = cluster
        self._behind_ms = behind_ms
        self._ended = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        missing = set(range(len(WINDOWS)))
        while missing and not self._ended.is_set():
            try:
                with self._cluster.connect() as connection, connection.cursor() as cursor:
                    while missing and not self._ended.wait(0.1):
                        for number in sorted(missing):
                            found = cursor.execute(
                                f"SELECT count(*) FROM d.r{number} WHERE ws > {self._behind_ms}").fetchall()
                            if found[0][0]:
                                missing.remove(number)
                                self.seconds.append(time.monotonic() - self._began)
            except PenstockError as error:
                print(f"  looking for results: {error}", flush=True)

    def wait(self) -> tuple[float, float]:
        """Returns seconds to the first stream's results, and to the last one's."""
        self._thread.join(300)
        self._ended.set()
        assert len(self.seconds) == len(WINDOWS), f"results of {len(self.seconds)} streams have come"
        return self.seconds[0], self.seconds[-1]


class Rounds:
    """One cluster that faults come to, one after the other."""

    def __init__(self, cluster: ServedCluster, zookeeper: ZooKeeper, network: NodeNetwork | None) -> None:
        self.cluster = cluster
        self.zookeeper = zookeeper
        self.network = network
        active = cluster.wait_active()
        if network is not None:
            active.run(f"CREATE USER {USER} PASS '{PASSWORD}' ROLE admin")
        streams = [f"CREATE STREAM s{number} CHECKPOINT_INTERVAL 5s INTO d.r{number} AS {results_of(window)}"
                   for number, window in enumerate(WINDOWS)]
        active.run("CREATE DATABASE d VGROUPS 2 REPLICA 2", "CREATE TABLE d.t (ts TIMESTAMP, v BIGINT, k INT)",
                   *streams)
        self.writer = RowWriter(cluster, "d.t", row)
        self.writer.wait_for_more(20)

    def play(self, fault: str) -> RoundTimes:
        """Raises AssertionError if a row is missing, there twice, or results differ."""
        wait_until(self._is_level, 180, "the standbys don't keep up")
        active = self.cluster.wait_active()
        heals: Callable[[], None] = getattr(self, f"_{fault}")(active)
        acknowledged = len(self.writer.acknowledged)
        watch = ResultWatch(self.cluster, time_of(self.writer.acknowledged[-1]))
        wait_until(lambda: len(self.writer.acknowledged) >= acknowledged + 2, 180, "no row is acknowledged any more")
        first_s, all_s = watch.wait()
        heals()
        self.writer.wait_for_more(20)
        self._compare()
        times = self.writer.times[acknowledged - 1:]
        return RoundTimes(max(later - earlier for earlier, later in pairwise(times)), first_s, all_s)

    def _compare(self) -> None:
        """Looks for all acknowledged rows, each once, and for the results of windows that must have ended."""
        told = self.writer.acknowledged[:]
        with self.cluster.connect() as connection, connection.cursor() as cursor:
            counts = Counter(row[0] for row in cursor.execute("SELECT v FROM d.t").fetchall())
            missing = [number for number in told if not counts[number]]
            assert not missing, f"rows are missing: {missing[:10]}"
            assert max(counts.values()) == 1, f"rows are there more than once: {counts.most_common(3)}"
            settled = time_of(told[-1]) - SETTLED_MS
            for number, window in enumerate(WINDOWS):
                wait_until(lambda number=number, window=window: not self._differences(cursor, number, window, settled),
                           240, f"the results of s{number} aren't those of the batch query")

    @staticmethod
    def _differences(cursor: Cursor, number: int, window: str, until_ms: int) -> list[object]:
        bounds = f"WHERE ws < {until_ms} ORDER BY ws"
        found = cursor.execute(f"SELECT ws, n, total FROM d.r{number} {bounds}").fetchall()
        wanted = cursor.execute(f"SELECT * FROM ({results_of(window)}) {bounds}").fetchall()
        return sorted(set(found) ^ set(wanted))

    def differences(self) -> str:
        """Returns what is wrong with results now, for people."""
        settled = time_of(self.writer.acknowledged[-1]) - SETTLED_MS
        with self.cluster.connect() as connection, connection.cursor() as cursor:
            return "\n".join(
                f"s{number}: {self._differences(cursor, number, window, settled)[:6]}"
                for number, window in enumerate(WINDOWS)) + "\n" + str(
                    cursor.execute("SHOW STREAMS").fetchall())

    def _is_level(self) -> bool:
        active = self.cluster.active()
        if active is None:
            return False
        rows = active.run("SELECT role, synchronous, lag_versions FROM information_schema.ins_cluster")
        return sorted(role for role, _, _ in rows) == ["active", "standby", "standby"] and (
            sum(bool(member) for _, member, _ in rows) == 2 and all((lag or 0) < 50 for _, _, lag in rows))

    # --- faults: each returns what ends it ---------------------------------------------------------------------------

    def _kill(self, active: ServedNode) -> Callable[[], None]:
        active.kill()
        return active.start

    def _disk(self, active: ServedNode) -> Callable[[], None]:
        active.kill(with_disk=True)
        return active.start

    def _stopped(self, active: ServedNode) -> Callable[[], None]:
        active.pause()
        return _later(PAUSED_S, active.resume)

    def _zookeeper(self, active: ServedNode) -> Callable[[], None]:
        self.zookeeper.freeze()
        return _later(AWAY_S, self.zookeeper.thaw)

    def _switchover(self, active: ServedNode) -> Callable[[], None]:
        target = next(row[0] for row in active.run("SELECT id, role, synchronous FROM information_schema.ins_cluster")
                      if row[1] == "standby" and row[2])
        active.run(f"SWITCHOVER TO {target}")
        return lambda: None

    def _isolated(self, active: ServedNode) -> Callable[[], None]:
        self._network.isolate(active.number)
        return _later(PARTED_S, self._network.heal)

    def _mute(self, active: ServedNode) -> Callable[[], None]:
        self._network.mute(active.number)
        return _later(PARTED_S, self._network.heal)

    def _deaf(self, active: ServedNode) -> Callable[[], None]:
        self._network.deafen(active.number)
        return _later(PARTED_S, self._network.heal)

    def _parted(self, active: ServedNode) -> Callable[[], None]:
        """It keeps ZooKeeper and its clients, and so stays active; rows wait until nodes reach each other again."""
        self._network.part(active.number)
        return _later(PARTED_S, self._network.heal)

    def _unleased(self, active: ServedNode) -> Callable[[], None]:
        self._network.mute(active.number, self._network.zookeeper)
        return _later(PARTED_S, self._network.heal)

    @property
    def _network(self) -> NodeNetwork:
        assert self.network is not None, "it takes root and iproute2"
        return self.network


def _later(seconds: float, action: Callable[[], None]) -> Callable[[], None]:
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer.join


def play(rounds: Rounds, faults: list[str], count: int, seed: int, until: float) -> None:
    """Plays rounds of faults in random order and prints how long nobody was served; begins none behind `until`, by the
    monotonic clock.
    """
    order = [fault for fault in faults for _ in range(count)]
    random.Random(seed).shuffle(order)
    took: dict[str, list[RoundTimes]] = {fault: [] for fault in faults}
    number = 0
    for number, fault in enumerate(order, 1):
        if time.monotonic() > until:
            number -= 1
            break
        print(f"round {number}, {fault}", flush=True)
        try:
            one = rounds.play(fault)
        except BaseException:
            print(rounds.differences(), flush=True)
            raise
        took[fault].append(one)
        print(f"  no row for {one.row:.1f} s, results after {one.result:.1f} s, of all after {one.results:.1f} s",
              flush=True)
        if number % 10 == 0:
            _print_times(took)
    _print_times(took)
    acknowledged = rounds.writer.end() - 1
    print(f"{number} rounds, {acknowledged} rows acknowledged, each there once; results equal the batch answer")


def _print_times(took: dict[str, list[RoundTimes]]) -> None:
    for fault, times in took.items():
        if times:
            told = [f"{what} {statistics.median(getattr(one, name) for one in times):.1f} "
                    f"(worst {max(getattr(one, name) for one in times):.1f})"
                    for name, what in (("row", "no row"), ("result", "result"), ("results", "all results"))]
            print(f"{fault}: {len(times)} rounds, seconds: {', '.join(told)}", flush=True)


def cost(cluster: ServedCluster, seconds: float) -> None:
    """Prints what one client gets with REPLICA 1, 2 and 3: rows of large inserts, and small ones."""
    cluster.wait_active()
    with cluster.connect() as connection, connection.cursor() as cursor:
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
    parser.add_argument("--rounds", type=int, default=3, help="of each fault")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no round begins later")
    parser.add_argument("--faults", nargs="*", default=[one for one in FAULTS if possible() or one not in PARTITIONS],
                        choices=FAULTS)
    parser.add_argument("--spark", action="store_true", help="started on standbys, too")
    parser.add_argument("--session", default="4s", help="sessionTimeout")
    parser.add_argument("--seed", type=int, default=0, help="of the order of faults")
    parser.add_argument("--keep", help="a folder for data and logs, which stay there")
    parser.add_argument("--cost", action="store_true", help="measure replicas instead")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.keep or temporary)
        (folder / "zookeeper").mkdir(parents=True)
        network = NodeNetwork((1, 2, 3)) if possible() and not options.cost else None
        zookeeper = (ZooKeeper(folder / "zookeeper") if network is None else
                     ZooKeeper(folder / "zookeeper", network.zookeeper))
        zookeeper.start()
        cluster = ServedCluster(folder, zookeeper, "/rounds", network, sessionTimeout=options.session,
                                walSegmentSize="64MiB", memtableSize="64MiB",
                                standbySpark=str(options.spark).lower())
        try:
            if options.cost:
                cost(cluster, options.seconds)
            else:
                play(Rounds(cluster, zookeeper, network), options.faults, options.rounds, options.seed,
                     time.monotonic() + 60 * options.minutes)
        finally:
            cluster.close()
            zookeeper.kill()
            if network is not None:
                network.close()


if __name__ == "__main__":
    main()
