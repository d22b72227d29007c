"""Engines as nodes of a cluster, as `penstock serve` runs them: a machine is lost, and nothing else is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from conftest import by_night
from kits.basics.certificates import NO_OPENSSL, OPENSSL
from kits.basics.external_servers import ZooKeeper
from kits.basics.waiting import wait_until
from kits.cluster.served_cluster import RowWriter, ServedCluster, ServedNode

from penstock.common.errors import (
    ConfigError,
    InvalidStatementError,
    NotActiveError,
    NotFoundError,
    UnavailableError,
)
from penstock.shell.api.dbapi import connect
from penstock.shell.main import main

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.skipif(OPENSSL is None, reason=NO_OPENSSL)]
_roots = itertools.count(1)
STREAM = ("CREATE STREAM s CHECKPOINT_INTERVAL 1s INTO d.r AS "
          "SELECT _wstart AS ws, count(*) AS n, sum(v) AS total FROM d.t INTERVAL(1s)")
BATCH = "SELECT * FROM (SELECT _wstart AS ws, count(*) AS n, sum(v) AS total FROM d.t INTERVAL(1s))"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeper) -> Iterator[ServedCluster]:
    """Three nodes, and a database of which two have all, whose log is cut as soon as nobody needs it.

    Tests share it: each has a table of its own, and leaves three nodes that run.
    """
    made = ServedCluster(tmp_path_factory.mktemp("cluster"), zookeeper, f"/served-{next(_roots)}",
                         walSegmentSize="64KiB", viewRefreshInterval="100ms", checkpointCopyInterval="0s")
    try:
        made.wait_active().run("CREATE DATABASE d VGROUPS 2 REPLICA 2 WAL_RETENTION_PERIOD 0",
                               *(f"CREATE TABLE d.{name} (ts TIMESTAMP, v BIGINT)" for name in ("t", "v", "w")),
                               *(f"CREATE TABLE d.other{n} (ts TIMESTAMP, v BIGINT)" for n in range(4)))
        yield made
    finally:
        made.close()


def rows(node: ServedNode, query: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in node.run(query))


_times = itertools.count(1_600_000_000_000)


def logs_begin_later(cluster: ServedCluster) -> bool:
    """Fills the logs with rows that the stream doesn't read; whether all nodes have cut off their beginnings."""
    active = cluster.wait_active()
    for n in range(4):
        values = ", ".join(f"({next(_times)}, 0)" for _ in range(500))
        active.run(f"INSERT INTO d.other{n} VALUES {values}")
    logs = [sorted(path.name for path in log.glob("*.log"))
            for node in cluster.nodes.values() for log in node.data.glob("vnode/*/wal")]
    return len(logs) == 6 and all(segments and segments[0] > "00000000000000000001.log" for segments in logs)


def numbers(node: ServedNode, table: str) -> set[object]:
    return {row[0] for row in node.run(f"SELECT v FROM {table}")}


@by_night
def test_the_active_node_is_lost_with_its_disk(cluster: ServedCluster) -> None:
    """Rows are written and a stream runs: each acknowledged row is there, and results equal the batch answer.

    Logs have been cut on all nodes by then, so the stream goes on from a checkpoint that has travelled; that one is on
    a node with an empty disk, too, when it has a copy of the vnode.
    """
    cluster.wait_active().run(STREAM)
    writer = RowWriter(cluster, "d.t")
    try:
        for _ in range(2):
            writer.wait_for_more(100)
            wait_until(lambda: logs_begin_later(cluster), 180, "the logs aren't cut everywhere")
            active = cluster.wait_active()
            active.kill(with_disk=True)
            told = set(writer.acknowledged)
            assert told <= numbers(cluster.wait_active(active.number), "d.t")
            active.start()
        writer.wait_for_more(100)
    finally:
        number = writer.end()
    last = cluster.wait_active()
    # A row far behind closes the windows before it.
    last.run(f"INSERT INTO d.t VALUES ({1_700_000_000_000 + number * 100 + 60_000}, 0)")
    wait_until(lambda: rows(last, "SELECT ws, n, total FROM d.r") == rows(last, BATCH)[:-1], 180,
               "the results aren't those of the batch query")
    events = [row[0] for row in last.run("SELECT event FROM information_schema.ins_stream_events")]
    assert any(" is deployed, from checkpoint " in event for event in events), events
    told = set(writer.acknowledged)
    for node in cluster.nodes.values():  # a standby shows what it has heard to be acknowledged
        wait_until(lambda node=node: told <= numbers(node, "d.t"), 60, "a node lacks rows")


def test_only_the_active_node_takes_rows(cluster: ServedCluster) -> None:
    """A standby answers queries, also of tables that come later, and names the active node to who would change
    something; its directory is for nobody else."""
    active = cluster.wait_active()
    active.run("INSERT INTO d.v VALUES (1700000000000, 7)", "CREATE TABLE d.u (ts TIMESTAMP, w INT)",
               "INSERT INTO d.u VALUES (1700000000000, 8)")
    standby = next(node for node in cluster.nodes.values() if node is not active)
    wait_until(lambda: any("u" in row for row in standby.run("SHOW d.TABLES"))
               and rows(standby, "SELECT w FROM d.u") == [(8,)], 60, "the standby doesn't follow")
    for statement in ("INSERT INTO d.v VALUES (1700000000001, 7)", "CREATE TABLE d.x (ts TIMESTAMP, v INT)",
                      "DELETE FROM d.v WHERE v = 7", "ALTER DATABASE d REPLICA 3"):
        with pytest.raises(NotActiveError, match=f"node {active.number} .* is the active one"):
            standby.run(statement)
    order = [standby, *(node for node in cluster.nodes.values() if node is not standby)]
    with psycopg.connect(
            host=",".join("127.0.0.1" for _ in order), port=",".join(str(node.postgres_port) for node in order),
            user="root", dbname="d", target_session_attrs="read-write", autocommit=True) as postgres:
        assert postgres.info.port == active.postgres_port
        postgres.execute("INSERT INTO d.u VALUES (1700000000001, 9)")
    standby.kill()
    with pytest.raises(ConfigError, match="belongs to a node of a cluster"):
        connect(standby.data)
    standby.start()


def roles(node: ServedNode) -> dict[object, tuple[object, object]]:
    """Returns the role of each node, and whether it is synchronous, as one of them tells."""
    return {row[0]: (row[1], row[2]) for row in node.run(
        "SELECT id, role, synchronous FROM information_schema.ins_cluster")}


def test_a_switchover_loses_nothing(cluster: ServedCluster) -> None:
    """Rows are written all the time while another node is made active; the one before is a standby then."""
    active = cluster.wait_active()
    for node in cluster.nodes.values():  # one that the test before started may still count as synchronous
        wait_until(lambda node=node: answers(node), 60, f"node {node.number} doesn't answer")
    wait_until(lambda: sorted(roles(active).values(), key=str) == [
        ("active", True), ("standby", False), ("standby", True)], 60, "two nodes aren't synchronous")
    with pytest.raises(InvalidStatementError, match="is not synchronous"):
        active.run(f"SWITCHOVER TO {next(node for node, (_, is_in) in roles(active).items() if not is_in)}")
    target = next(node for number, node in cluster.nodes.items() if roles(active)[number] == ("standby", True))
    with pytest.raises(NotActiveError):
        target.run(f"SWITCHOVER TO {active.number}")
    writer = RowWriter(cluster, "d.w")
    try:
        writer.wait_for_more(50)
        assert main(["switchover", str(target.number), "--host", "127.0.0.1", "--port", str(active.port)]) == 0
        wait_until(lambda: roles(target)[target.number][0] == "active", 60, "the other node isn't active")
        writer.wait_for_more(50)
    finally:
        writer.end()
    told = set(writer.acknowledged)
    assert told <= numbers(cluster.wait_active(), "d.w")
    wait_until(lambda: answers(active) and roles(active)[active.number][0] == "standby"
               and told <= numbers(active, "d.w"), 120, "the node before doesn't follow")


def answers(node: ServedNode) -> bool:
    try:
        node.run("SHOW CLUSTER")
    except UnavailableError:
        return False
    return True


@by_night
def test_a_node_whose_log_is_gone_elsewhere_gets_a_copy(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    """A standby comes back with an empty directory when the active's log begins later: its vnodes are copied."""
    cluster = ServedCluster(tmp_path, zookeeper, f"/served-{next(_roots)}", walSegmentSize="64KiB",
                            viewRefreshInterval="100ms")
    try:
        active = cluster.wait_active()
        active.run("CREATE DATABASE d VGROUPS 1 REPLICA 2 WAL_RETENTION_PERIOD 0",
                   "CREATE TABLE d.t (ts TIMESTAMP, v BIGINT)")
        lost = next(node for node in cluster.nodes.values() if node is not active)
        lost.kill(with_disk=True)
        written = itertools.count()

        def log_begins_later() -> bool:
            for _ in range(20):
                rows = ", ".join(f"({1_700_000_000_000 + number}, {number})"
                                 for number in itertools.islice(written, 500))
                active.run(f"INSERT INTO d.t VALUES {rows}")
            return not (active.data / "vnode/2/wal/00000000000000000001.log").exists()

        wait_until(log_begins_later, 120, "the log isn't cut")
        lost.start()
        count = next(written)
        wait_until(lambda: answers(lost) and rows_of(lost) == count, 120, "the node lacks rows")
        active.run(f"INSERT INTO d.t VALUES (1800000000000, {count})")
        wait_until(lambda: rows_of(lost) == count + 1, 60, "the node doesn't follow")
    finally:
        cluster.close()


def rows_of(node: ServedNode) -> object:
    try:
        return node.run("SELECT count(*) FROM d.t")[0][0]
    except (NotFoundError, UnavailableError):  # of the table, or of a vnode that is just being replaced
        return None


def databases(node: ServedNode) -> set[object]:
    try:
        return {row[0] for row in node.run("SELECT name FROM information_schema.ins_databases")}
    except UnavailableError:
        return set()


def promoted(node: ServedNode) -> bool:
    """Whether a node is active by now; it is told to be, as long as it isn't."""
    try:
        node.run("PROMOTE")
        return node.run("SELECT role FROM information_schema.ins_cluster WHERE id = told_by") == [("active",)]
    except UnavailableError:
        return False


@by_night
def test_a_node_whose_catalog_has_parted_gets_a_copy(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    """A node was promoted that lacked what another one's catalog has: that one takes the promoted one's and follows."""
    cluster = ServedCluster(tmp_path, zookeeper, f"/served-{next(_roots)}")
    try:
        before = cluster.wait_active()
        others = [node for node in cluster.nodes.values() if node is not before]
        before.run("CREATE DATABASE kept VGROUPS 1")
        wait_until(lambda: all("kept" in databases(node) for node in others), 60, "the standbys don't follow")
        for node in others:
            node.kill()
        before.run("CREATE DATABASE parted VGROUPS 1", "CREATE TABLE parted.t (ts TIMESTAMP, v INT)",
                   "INSERT INTO parted.t VALUES (1700000000000, 1)")
        before.kill()
        after = others[0]
        after.start()
        wait_until(lambda: promoted(after), 120, "the node isn't promoted")
        after.run("CREATE DATABASE other VGROUPS 1", "CREATE TABLE other.t (ts TIMESTAMP, v INT)",
                  "INSERT INTO other.t VALUES (1700000000000, 2)")
        before.start()
        wait_until(lambda: databases(before) >= {"kept", "other"}, 120, "the node doesn't follow")
        assert "parted" not in databases(before)
        wait_until(lambda: rows(before, "SELECT v FROM other.t") == [(2,)], 60, "the node lacks rows")
        for path in ("damaged/catalog", "damaged/vnode"):
            assert (before.data / path).is_dir()
        after.run("CREATE DATABASE late VGROUPS 1")
        wait_until(lambda: "late" in databases(before), 60, "the node doesn't go on")
    finally:
        cluster.close()
