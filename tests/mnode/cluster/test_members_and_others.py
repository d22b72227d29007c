"""A node that can't join its cluster says so, and why, to whoever asks it; one that has none has nothing of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kits.basics.certificates import NO_OPENSSL, OPENSSL, make_authority, make_certificate_of
from kits.basics.external_servers import free_port
from kits.basics.waiting import wait_until
from kits.engines.embedded import Embedded

from penstock.common.config import load_config
from penstock.common.errors import NotSupportedError, ReplicasMissingError
from penstock.mnode.admin.engine_registry import new_member, open_engine
from penstock.mnode.cluster_member import ClusterMember
from penstock.shell.api.dbapi import Connection

#: An engine without the keys of a cluster, and what of a cluster it has by the time that it has written and read rows.
SINGLE = """
import sys, threading, penstock
with penstock.connect(sys.argv[1]) as connection:
    cursor = connection.cursor()
    for text in ("CREATE DATABASE d", "CREATE TABLE d.t (ts TIMESTAMP, v INT)",
                 "INSERT INTO d.t VALUES (1600000000000, 2)", "SELECT * FROM d.t", "SHOW CLUSTER"):
        cursor.execute(text)
    print([name for name in sys.modules if name.startswith("kazoo")],
          [one.name for one in threading.enumerate() if "cluster" in one.name or "checkpoint-copies" in one.name])
"""


def test_a_single_machine_has_nothing_of_a_cluster(tmp_path: Path) -> None:
    """No client of ZooKeeper is imported, and none of a node's threads is started."""
    answer = subprocess.run([sys.executable, "-c", SINGLE, str(tmp_path)], capture_output=True, text=True, check=True)
    assert answer.stdout == "[] []\n", answer.stderr


@contextmanager
def lone_node(tmp_path: Path) -> Iterator[Connection]:
    """Opens an engine that is a node of a cluster and reaches no other, nor ZooKeeper."""
    authority = make_authority(tmp_path)
    certificate, key = make_certificate_of(authority, tmp_path, "penstock-node-1")
    config = load_config({
        "clusterNode": 1, "clusterNodes": f"1=127.0.0.1:{free_port()}, 2=127.0.0.1:{free_port()}",
        "clusterCertificate": str(certificate), "clusterKey": str(key), "clusterAuthority": str(authority[0]),
        "zookeeper": f"127.0.0.1:{free_port()}", "zookeeperLoginFile": str(tmp_path / "nothing"),
        "standbySpark": "false"}, environment={})
    with Connection(open_engine(tmp_path / "data", config, new_member), "UTC") as connection:
        yield connection


@pytest.mark.skipif(OPENSSL is None, reason=NO_OPENSSL)
def test_who_would_split_is_told_what_to_do_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the active node, too."""
    monkeypatch.setattr(ClusterMember, "require_active", lambda member: None)
    with lone_node(tmp_path) as connection:
        for statement in ("SPLIT VGROUP 2", "ALTER DATABASE d VGROUPS 4"):
            with pytest.raises(NotSupportedError, match=r"can't be split in a cluster .* SELECT tbname"):
                connection.cursor().execute(statement)


@pytest.mark.skipif(OPENSSL is None, reason=NO_OPENSSL)
def test_a_node_without_its_login_for_zookeeper_tells_it(tmp_path: Path) -> None:
    """It goes on trying: nobody but a person can mend that."""
    with lone_node(tmp_path) as connection:
        cursor = connection.cursor()

        def verdict() -> str:
            rows = cursor.execute("SELECT id, role, verdict FROM information_schema.ins_cluster").fetchall()
            assert [row[:2] for row in rows] == [(1, "unknown")]
            return str(rows[0][2])

        wait_until(lambda: verdict().startswith("this node can't join its cluster yet: zookeeperLoginFile"), 30)


def test_queries_of_rows_alone_wait_for_what_was_acknowledged_before(
        data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that has just taken over tells how it is at any time."""
    class JustTakenOver:
        is_active = inherits = True

        def await_inherited(self) -> None:
            raise ReplicasMissingError("too few nodes have confirmed")

    db = Embedded(data_dir)
    db.all("CREATE DATABASE d", "CREATE TABLE d.t (ts TIMESTAMP, v INT)")
    with monkeypatch.context() as patch:
        patch.setattr(db.engine, "member", JustTakenOver())
        for query in ("SELECT * FROM d.t", "SELECT count(*) FROM information_schema.ins_tables, d.t"):
            with pytest.raises(ReplicasMissingError):
                db.run(query)
        assert db.run("SELECT name FROM information_schema.ins_databases WHERE name = 'd'") == [("d",)]
        assert db.run("SELECT 1") == [(1,)]
    db.close()
