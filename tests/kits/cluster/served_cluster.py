"""Three `penstock serve` processes that are nodes of a cluster, with a ZooKeeper; each can be killed with its disk."""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kits.basics.certificates import make_authority, make_certificate_of
from kits.basics.external_servers import ZooKeeper, free_port
from kits.basics.waiting import wait_until
from kits.cluster.node_network import NodeNetwork
from kits.engines.serve_kit import clean_environment, command

from penstock.common.errors import NotActiveError, PenstockError, ReplicasMissingError
from penstock.shell.api.dbapi import Connection, Cursor, connect

PATIENCE_S = 180.0
#: Long enough for a machine that is busy with other tests.
TIMEOUT_S = 6
USER, PASSWORD = "writer", "Writers-word-1"
"""Who connects over a network."""


class ServedNode:
    """One node: its process, its directory, and connections to it."""

    def __init__(self, number: int, data: Path, settings: Mapping[str, Any], prefix: Sequence[str] = ()) -> None:
        """`prefix`: words before the command, that run it elsewhere; then it is reached by its socket."""
        self.number = number
        self.data = data
        self._prefix = list(prefix)
        self.port: int = settings["flightPort"]
        self.postgres_port: int = settings["postgresPort"]
        self._settings = settings
        self._log = data.with_suffix(".out")
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._prefix, *command(self.data, self._settings, "serve")], stdout=log, stderr=subprocess.STDOUT,
                env=clean_environment())

    @property
    def said(self) -> str:
        """All that the node's processes have printed."""
        return self._log.read_text()

    def connect(self) -> Connection:
        if self._prefix:
            return connect(host=f"unix:{self.data / self._settings['socketPath']}")
        return connect(host="127.0.0.1", port=self.port)

    def run(self, *statements: str) -> list[Any]:
        """Executes statements in a session of their own, and returns the rows of the last one."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def kill(self, *, with_disk: bool = False) -> None:
        self.process.kill()
        self.process.wait()
        if with_disk:
            shutil.rmtree(self.data)

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


class ServedCluster:
    """`folder` gets certificates and the directories of the nodes; `options` are keys of the configuration."""

    def __init__(self, folder: Path, zookeeper: ZooKeeper, root: str, network: NodeNetwork | None = None,
                 **options: Any) -> None:
        """`network`: where the nodes are; None: in the network of this process."""
        certificates = folder / "certificates"
        certificates.mkdir()
        authority = make_authority(certificates)
        numbers = (1, 2, 3)
        for node in numbers:
            make_certificate_of(authority, certificates, f"penstock-node-{node}")
        self._network = network
        hosts = {node: "127.0.0.1" if network is None else network.address(node) for node in numbers}
        nodes = ", ".join(f"{node}={host}:{free_port()}" for node, host in hosts.items())
        self.nodes = {node: ServedNode(node, folder / f"node-{node}", {
            "clusterNode": node, "clusterNodes": nodes, "flightPort": free_port(), "postgresPort": free_port(),
            "clusterCertificate": certificates / f"penstock-node-{node}.pem",
            "clusterKey": certificates / f"penstock-node-{node}.key",
            "clusterAuthority": certificates / "authority.pem", "zookeeper": f"{zookeeper.host}:{zookeeper.port}",
            "zookeeperPath": root, "sessionTimeout": f"{TIMEOUT_S}s", "socketPath": f"n{node}.sock",
            "standbySpark": "false",
            **({} if network is None else {"host": hosts[node], "trustLoopback": "false"}), **options},
            () if network is None else network.command(node)) for node in numbers}
        self.hosts = ",".join(f"{hosts[number]}:{node.port}" for number, node in self.nodes.items())

    def connect(self) -> Connection:
        """Returns a connection that knows all nodes. In a network there must be the user by then."""
        if self._network is None:
            return connect(host=self.hosts)
        return connect(host=self.hosts, user=USER, password=PASSWORD)

    def active(self, *but: int) -> ServedNode | None:
        """Returns the node that takes what changes something, and isn't one of those."""
        for node in self.nodes.values():
            if node.number not in but and node.process.poll() is None:
                try:
                    node.run("DROP USER nobody_at_all")
                except NotActiveError:
                    continue
                except PenstockError as error:
                    if "nobody_at_all" in error.message:
                        return node
        return None

    def wait_active(self, *but: int) -> ServedNode:
        found: list[ServedNode] = []

        def look() -> bool:
            node = self.active(*but)
            if node is not None:
                found.append(node)
            return node is not None

        wait_until(look, PATIENCE_S, "no node is active")
        return found[0]

    def close(self) -> None:
        for node in self.nodes.values():
            node.resume()
            node.kill()


def plain_row(number: int) -> str:
    """Returns the values of a row `(ts, v)`."""
    return f"({1_700_000_000_000 + number * 100}, {number})"


class RowWriter:
    """Writes rows one by one, by a connection that knows all nodes; `acknowledged` are the numbers that it was told of,
    `times` when that was, by the monotonic clock.
    """

    def __init__(self, cluster: ServedCluster, table: str, row: Callable[[int], str] = plain_row) -> None:
        self.acknowledged: list[int] = []
        self.times: list[float] = []
        self._table = table
        self._row = row
        self._connection = cluster.connect()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._connection as connection, connection.cursor() as cursor:
            for number in itertools.count():
                if self._ended.is_set():
                    return
                while not self._is_written(cursor, self._row(number)):
                    if self._ended.is_set():
                        return
                self.acknowledged.append(number)
                self.times.append(time.monotonic())

    def _is_written(self, cursor: Cursor, row: str) -> bool:
        try:
            cursor.execute(f"INSERT INTO {self._table} VALUES {row}")
        except ReplicasMissingError:  # it may be there; to write it again does no harm
            return False
        return True

    def wait_for_more(self, count: int) -> None:
        wanted = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= wanted or not self._thread.is_alive(), PATIENCE_S,
                   "rows aren't acknowledged")
        assert self._thread.is_alive(), "the writer has failed"

    def end(self) -> int:
        """Returns a number that was never written."""
        self._ended.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return len(self.acknowledged) + 1
