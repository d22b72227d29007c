"""A node of a cluster as a process of its own: a real catalog's log and a real vnode, TLS, ZooKeeper.

Takes its settings as one line of JSON, then commands, answers each with a line of JSON. `write A B` writes rows of the
times A to B-1, one by one, and answers with those that were acknowledged; `state`, `rows`, `switchover N`, `promote`.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.common.clock import SystemClock
from penstock.common.errors import NotFoundError, PenstockError, UnavailableError
from penstock.common.fs import OsFs
from penstock.mnode.catalog.catalog_copying import CatalogCopying
from penstock.mnode.catalog.catalog_log import CatalogLog
from penstock.mnode.catalog.catalog_store import CatalogStore
from penstock.mnode.cluster.active_node import ActiveSettings
from penstock.mnode.cluster.cluster_messages import CATALOG_LOG
from penstock.mnode.cluster.cluster_node import ClusterNode, ClusterSettings
from penstock.mnode.cluster.cluster_service import ClusterService
from penstock.mnode.cluster.lease import LeaseSettings
from penstock.mnode.cluster.node_role import RoleSettings
from penstock.mnode.cluster.node_transport import NodeTransport, TransportSettings
from penstock.mnode.cluster.synchronous_set import LogReplicas, SetSettings
from penstock.mnode.cluster.zookeeper_registry import ZookeeperRegistry, ZookeeperSettings
from penstock.mnode.dnode.cluster_directory import ClusterDirectory, running_boot
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode

SCHEMA = pa.schema([("ts", pa.timestamp("ms")), ("v", pa.int64())])
TABLE, VGROUP = 7, 2


class NodeProcess:
    """The node, and what its engine would be."""

    def __init__(self, given: dict[str, Any]) -> None:
        folder, clock, fs = Path(given["folder"]), SystemClock(), OsFs()
        folder.mkdir(exist_ok=True)
        self.store = CatalogStore(folder / "catalog", 1 << 22, CatalogLog(folder / "log", fs, clock))
        self.catalog = CatalogCopying(self.store)
        self.vnode = Vnode.open(folder / "vnode", VnodeOptions(
            VGROUP, wal_level=given["wal_level"], replicated=True), fs=fs, clock=clock)
        directory = ClusterDirectory(folder / "CLUSTER", fs, lambda: secrets.randbelow(1 << 62), running_boot(),
                                     self.catalog, lambda: {VGROUP: self.vnode})
        number, process = given["node"], secrets.randbelow(1 << 62)
        addresses = {int(node): ("127.0.0.1", port) for node, port in given["ports"].items()}
        timeout_s = given["session_timeout_s"]
        role = RoleSettings(LeaseSettings(timeout_s, timeout_s / 4, timeout_s / 8), read_every_s=timeout_s / 8,
                            gather_s=0.3, turn_s=0.5)
        members = SetSettings(timeout_s / 2, timeout_s * 2)
        replicas = LogReplicas(given["replicas"], given["wal_level"], given.get("with_fewer", False))
        self.node = ClusterNode(
            number, process, directory, lambda: {CATALOG_LOG: replicas, VGROUP: replicas},
            ClusterSettings(frozenset(addresses), role, ActiveSettings(members=members)))
        self.service = ClusterService(self.node, self, clock, given["replica_timeout_s"])
        self.registry = ZookeeperRegistry(
            ZookeeperSettings(f"127.0.0.1:{given['zookeeper']}", given["root"], timeout_s), process, clock,
            self.service.tell)
        certificates = Path(given["certificates"])
        self.transport = NodeTransport(TransportSettings(
            number, addresses, str(certificates / f"penstock-node-{number}.pem"),
            str(certificates / f"penstock-node-{number}.key"), str(certificates / "authority.pem"), again_s=0.05),
            clock, self.service.receive)
        self.vnode.copying.set_cluster_wait(lambda version: self.service.await_acknowledged(VGROUP, version))
        self.store.await_cluster = lambda version: self.service.await_acknowledged(CATALOG_LOG, version)
        self.registry.start()
        self.transport.start()
        self.service.start(self.registry, self.transport)

    def keep_up(self) -> None:
        """The one vnode is always there."""

    def begin_tenure(self, epoch: int) -> None:
        self.catalog.lead()
        self.vnode.copying.lead()
        self.vnode.tables.define(TABLE, SCHEMA, 1)

    def hold_writes(self, reason: str) -> None:
        self.end_tenure(reason)

    def end_tenure(self, reason: str) -> None:
        follows = UnavailableError(f"this node follows: {reason}")
        self.catalog.follow(follows)
        self.vnode.copying.follow(follows)

    def break_down(self, reason: str) -> None:
        print(reason, file=sys.stderr, flush=True)
        os._exit(1)

    def write(self, first: int, end: int) -> dict[str, Any]:
        written, problem = [], None
        for number in range(first, end):
            try:
                self.vnode.write(TABLE, pa.RecordBatch.from_arrays(
                    [pa.array([1], pa.uint64()), pa.array([number], pa.timestamp("ms")), pa.array([number])],
                    ["_tuid", "ts", "v"]))
            except PenstockError as error:
                problem = f"{type(error).__name__}: {error.message}"
                break
            written.append(number)
        return {"written": written, "problem": problem}

    @staticmethod
    def told(action: Callable[[], None]) -> dict[str, Any]:
        try:
            action()
        except PenstockError as error:
            return {"problem": error.message}
        return {"problem": None}

    def rows(self) -> dict[str, Any]:
        try:
            return {"rows": self.vnode.reader.snapshot(TABLE).to_arrow(["v"]).column("v").to_pylist()}
        except NotFoundError:
            return {"rows": []}

    def state(self) -> dict[str, Any]:
        bounds = {number: log.bounds() for number, log in self.node._stored.logs().items()}
        active = self.node.active
        record = self.node.role.record
        return {"role": self.node.role.role.value, "may_write": self.node.may_write(SystemClock().monotonic()),
                "epoch": None if record is None else record.epoch,
                "members": [] if record is None else [life.node for life in record.synchronous.members],
                "written": {number: one.written for number, one in bounds.items()},
                "acknowledged": {} if active is None else active.acknowledged, "problem": self.service.problem}


def main() -> None:
    out = threading.Lock()
    node = NodeProcess(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        command, *words = line.split()
        match command:
            case "write":
                answer = node.write(int(words[0]), int(words[1]))
            case "rows":
                answer = node.rows()
            case "switchover":
                answer = node.told(lambda to=words[0]: node.service.switchover(int(to)))
            case "promote":
                answer = node.told(node.service.promote)
            case _:
                answer = node.state()
        with out:
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
