"""Real processes of a cluster, with real logs, TLS and ZooKeeper: what was acknowledged is there after each loss."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import times
from kits.basics.certificates import NO_OPENSSL, OPENSSL
from kits.basics.external_servers import ZooKeeper
from kits.basics.waiting import wait_until
from kits.cluster.real_cluster import RealCluster, RealNode

pytestmark = [pytest.mark.slow, pytest.mark.skipif(OPENSSL is None, reason=NO_OPENSSL)]
_roots = itertools.count(1)


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[RealCluster]:
    """Three nodes that are level, of which two acknowledge."""
    made = RealCluster(tmp_path, zookeeper, f"/processes-{next(_roots)}")
    try:
        made.wait_active()
        made.wait_whole()
        yield made
    finally:
        made.close()


class Writer:
    """Writes rows one by one to a node from a thread of its own; `acknowledged` are those that it was told of."""

    def __init__(self, node: RealNode, first: int) -> None:
        self.acknowledged: list[int] = []
        self._node, self._next = node, first
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                written = self._node.ask(f"write {self._next} {self._next + 5}")["written"]
                self.acknowledged += written
                self._next += 5
                if len(written) < 5:
                    return
        except ChildProcessError:
            return

    def end(self) -> int:
        """Returns a row that was never written."""
        self._ended.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self._next + 5


@pytest.mark.parametrize("how", ["kill", "lost disk", "pause"])
def test_what_was_acknowledged_survives_the_active_node(cluster: RealCluster, how: str) -> None:
    """Rows are written all the time while the active node is lost, again and again; each that was told is there."""
    told: list[int] = []
    row = 0
    for _ in range(times(1, 30)):
        active = cluster.wait_active()
        cluster.wait_whole()
        writer = Writer(active, row)
        while len(writer.acknowledged) < 20:
            assert active.process.poll() is None
        if how == "kill":
            active.kill()
        elif how == "lost disk":
            cluster.lose_disk(active)
        else:
            active.pause()
        cluster.wait_active(active.number)
        if how == "pause":
            active.resume()
        row = writer.end()
        second = cluster.write(row, row + 5, active.number)
        told += writer.acknowledged + list(range(row, row + 5))
        row += 5
        assert set(told) <= set(second.ask("rows")["rows"])
        if how != "pause":
            active.start()
    cluster.wait_active()
    cluster.wait_whole()
    for node in cluster.nodes.values():  # a standby shows what it has heard to be acknowledged
        wait_until(lambda node=node: set(told) <= set(node.ask("rows")["rows"]), 30, "a node lacks rows")


def test_a_switchover_loses_nothing(cluster: RealCluster) -> None:
    """Rows are written until they are refused; the other node is active within moments, and takes them."""
    active = cluster.wait_active()
    writer = Writer(active, 0)
    while len(writer.acknowledged) < 20:
        assert active.process.poll() is None
    first, target = active.ask("state")["members"]
    (other,) = {1, 2, 3} - {first, target}
    assert first == active.number
    assert active.ask(f"switchover {other}")["problem"] == (
        f"node {other} is not synchronous; synchronous nodes: [{target}]")
    assert cluster.nodes[other].ask(f"switchover {target}")["problem"] == "only the active node can hand over"
    assert active.ask(f"switchover {target}")["problem"] is None
    second = cluster.write(100_000, 100_005, active.number)
    assert second.number == target
    writer.end()
    told = writer.acknowledged + list(range(100_000, 100_005))
    assert set(told) <= set(second.ask("rows")["rows"])
    cluster.wait_whole()
