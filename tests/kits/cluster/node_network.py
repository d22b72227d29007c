"""Network namespaces for the nodes of a cluster, joined by a bridge, whose packets can be lost one way or both.

Takes root and iproute2. What is lost is lost in silence: packets go to an Ethernet address that nobody has, and
interfaces stay up.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterable

NOBODY = "02:00:00:00:00:99"


def possible() -> bool:
    """Whether this process may make namespaces."""
    return os.geteuid() == 0 and shutil.which("ip") is not None


class NodeNetwork:
    """`clients` and `zookeeper` are addresses of this process's own namespace, as the nodes reach it."""

    def __init__(self, nodes: Iterable[int]) -> None:
        self._tag = f"pn{secrets.token_hex(2)}"
        self._nodes = tuple(nodes)
        subnet = _free_subnet()
        self._addresses = {node: f"{subnet}.{node}" for node in self._nodes}
        self.clients, self.zookeeper = f"{subnet}.254", f"{subnet}.253"
        self._bridge = f"{self._tag}b"
        _ip("link", "add", self._bridge, "type", "bridge")
        for address in (self.clients, self.zookeeper):
            _ip("address", "add", f"{address}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for node in self._nodes:
            namespace, inner = self.namespace(node), ("-n", self.namespace(node))
            _ip("netns", "add", namespace)
            _ip("link", "add", self._port(node), "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _ip("link", "set", self._port(node), "master", self._bridge)
            _ip("link", "set", self._port(node), "up")
            _ip(*inner, "address", "add", f"{self._addresses[node]}/24", "dev", "eth0")
            for interface in ("lo", "eth0"):
                _ip(*inner, "link", "set", interface, "up")

    def namespace(self, node: int) -> str:
        return f"{self._tag}-{node}"

    def _port(self, node: int) -> str:
        return f"{self._tag}{node}"

    def address(self, node: int) -> str:
        return self._addresses[node]

    def command(self, node: int) -> list[str]:
        """Returns the words before a command that runs in a node's namespace."""
        return ["ip", "netns", "exec", self.namespace(node)]

    # --- what is lost ----------------------------------------------------------------------------------------------

    def isolate(self, node: int) -> None:
        """Loses all that goes to a node or comes from it."""
        _ip("link", "set", self._port(node), "nomaster")

    def mute(self, node: int, *addresses: str) -> None:
        """Loses what a node sends to these addresses, or to anybody; it still hears them."""
        for address in addresses or self._others(node):
            _lose(address, "eth0", "-n", self.namespace(node))

    def deafen(self, node: int) -> None:
        """Loses what is sent to a node; it is still heard."""
        for other in self._nodes:
            if other != node:
                _lose(self._addresses[node], "eth0", "-n", self.namespace(other))
        _lose(self._addresses[node], self._bridge)

    def part(self, node: int) -> None:
        """Loses what goes between a node and the other nodes; it still reaches ZooKeeper and clients, and they it."""
        for other in self._nodes:
            if other != node:
                self.mute(node, self._addresses[other])
                self.mute(other, self._addresses[node])

    def heal(self) -> None:
        """Loses nothing any more."""
        for node in self._nodes:
            _ip("link", "set", self._port(node), "master", self._bridge)
            _ip("-n", self.namespace(node), "neigh", "flush", "nud", "permanent", "dev", "eth0")
        _ip("neigh", "flush", "nud", "permanent", "dev", self._bridge)

    def _others(self, node: int) -> list[str]:
        nodes = [address for other, address in self._addresses.items() if other != node]
        return [*nodes, self.clients, self.zookeeper]

    def close(self) -> None:
        """Removes it all; no process is left in the namespaces."""
        for node in self._nodes:
            _ip("link", "delete", self._port(node))
            _ip("netns", "delete", self.namespace(node))
        _ip("link", "delete", self._bridge)


def _lose(address: str, interface: str, *where: str) -> None:
    _ip(*where, "neigh", "replace", address, "lladdr", NOBODY, "dev", interface, "nud", "permanent")


def _free_subnet() -> str:
    """Returns one that no interface has, such as a bridge that a program left behind: packets would go there."""
    taken = _ip("-o", "-4", "address")
    return secrets.choice([one for one in (f"10.213.{number}" for number in range(256)) if f" {one}." not in taken])


def _ip(*words: str) -> str:
    """Returns what the program prints. Raises AssertionError with what it says if it fails."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"
    return done.stdout
