"""Three nodes of a cluster as processes, with a ZooKeeper: each has its own directory, can be killed and stopped."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from kits.basics.certificates import make_authority, make_certificate_of
from kits.basics.external_servers import ZooKeeper, free_port
from kits.basics.places import ROOT
from kits.basics.waiting import wait_until

PATIENCE_S = 180.0


class RealNode:
    """One node's process; `ask` says a command and returns what it is answered."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.number: int = settings["node"]
        self._lock = threading.Lock()
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/programs/cluster_node.py")], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True)
        self._say(json.dumps(self.settings))

    def ask(self, command: str) -> dict[str, Any]:
        """Raises ChildProcessError if the process is dead."""
        with self._lock:
            self._say(command)
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
        if not line:
            raise ChildProcessError(f"node {self.number} is dead")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise ChildProcessError(f"node {self.number} is dead") from error


class RealCluster:
    """`folder` gets certificates and the directories of the nodes."""

    def __init__(self, folder: Path, zookeeper: ZooKeeper, root: str, **options: Any) -> None:
        certificates = folder / "certificates"
        certificates.mkdir()
        authority = make_authority(certificates)
        ports = {node: free_port() for node in (1, 2, 3)}
        for node in ports:
            make_certificate_of(authority, certificates, f"penstock-node-{node}")
        given = {"replicas": 2, "wal_level": 2, "session_timeout_s": 2.0, "replica_timeout_s": 10.0, **options}
        self.nodes = {node: RealNode({
            "node": node, "ports": ports, "folder": str(folder / f"node-{node}"), "zookeeper": zookeeper.port,
            "root": root, "certificates": str(certificates), **given}) for node in ports}

    def active(self, *but: int) -> RealNode | None:
        """Returns the node that takes rows, and isn't one of those."""
        for node in self.nodes.values():
            if node.number not in but and node.process.poll() is None and node.ask("state")["may_write"]:
                return node
        return None

    def wait_active(self, *but: int) -> RealNode:
        active: RealNode = wait_until(lambda: self.active(*but), PATIENCE_S, "no node takes rows")
        return active

    def wait_whole(self, *but: int, members: int = 2) -> None:
        """Waits until the synchronous set is complete and all nodes have all that is written."""
        def whole() -> bool:
            states = [node.ask("state") for node in self.nodes.values() if node.number not in but]
            return all(len(one["members"]) == members and one["written"] == states[0]["written"] for one in states)

        wait_until(whole, PATIENCE_S, "the nodes aren't level")

    def write(self, first: int, end: int, *but: int) -> RealNode:
        """Writes rows until a node that isn't one of those has acknowledged them all, and returns it.

        Who has just become active, or loses its lease because the machine stood still, refuses them for a moment.
        """
        def written() -> RealNode | None:
            active = self.active(*but)
            refused = active is None or len(active.ask(f"write {first} {end}")["written"]) < end - first
            return None if refused else active

        node: RealNode = wait_until(written, PATIENCE_S, "no node takes the rows")
        return node

    def lose_disk(self, node: RealNode) -> None:
        node.kill()
        shutil.rmtree(node.settings["folder"])

    def close(self) -> None:
        for node in self.nodes.values():
            node.resume()
            node.kill()
