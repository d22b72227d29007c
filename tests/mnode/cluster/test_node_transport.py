"""Nodes hear each other, and nobody else: by certificates, within bounds, again after a node was away."""

from __future__ import annotations

import errno
import queue
import socket
import ssl
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kits.basics.certificates import NO_OPENSSL, OPENSSL, make_authority, make_certificate_of
from kits.basics.external_servers import free_port
from kits.basics.waiting import wait_until

from penstock.common.clock import SystemClock
from penstock.common.errors import ConfigError
from penstock.mnode.cluster.cluster_messages import Append, ClusterMessage, LogChunk, NewerEpoch
from penstock.mnode.cluster.log_epochs import EpochStart
from penstock.mnode.cluster.node_transport import NOTHING, NodeTransport, TransportSettings, encode_message

pytestmark = pytest.mark.skipif(OPENSSL is None, reason=NO_OPENSSL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of nodes 1 to 3 and 9, and of a node 2 that another authority has signed."""
    made = tmp_path_factory.mktemp("certificates")
    authority = make_authority(made)
    for node in (1, 2, 3, 9):
        make_certificate_of(authority, made, f"penstock-node-{node}")
    (made / "other").mkdir()
    make_certificate_of(make_authority(made / "other"), made / "other", "penstock-node-2")
    return made


@pytest.fixture
def addresses() -> dict[int, tuple[str, int]]:
    return {node: ("127.0.0.1", free_port()) for node in (1, 2, 3)}


class Node:
    """A transport, and what it has received."""

    def __init__(self, node: int, addresses: dict[int, tuple[str, int]], folder: Path, certificate: str = "",
                 **settings: float) -> None:
        name = certificate or f"penstock-node-{node}"
        self.received: queue.Queue[tuple[int, ClusterMessage]] = queue.Queue()
        self.settings = TransportSettings(
            node, addresses, str(folder / f"{name}.pem"), str(folder / f"{name}.key"), str(folder / "authority.pem"),
            **{"again_s": 0.02, "look_s": 0.02, **settings})
        self.transport = NodeTransport(self.settings, SystemClock(), lambda *one: self.received.put(one))
        self.transport.start()

    def get(self) -> tuple[int, ClusterMessage]:
        return self.received.get(timeout=20)


@pytest.fixture
def nodes(addresses: dict[int, tuple[str, int]], folder: Path) -> Iterator[list[Node]]:
    """Three nodes."""
    made = [Node(node, addresses, folder) for node in addresses]
    yield made
    for one in made:
        one.transport.close()


def test_nodes_hear_each_other(nodes: list[Node]) -> None:
    """In order, with who has sent it; records of megabytes too."""
    one, two, three = nodes
    data = bytes(range(256)) * (16 << 10)
    append = Append(1, 2, 3, LogChunk(0, 5, EpochStart(1, 1), True, data), 0)
    assert one.transport.send(2, append)
    for epoch in range(100):
        assert one.transport.send(2, NewerEpoch(epoch))
        assert three.transport.send(1, NewerEpoch(epoch))
    assert two.get() == (1, append)
    assert [two.get() for _ in range(100)] == [(1, NewerEpoch(epoch)) for epoch in range(100)]
    assert [one.get() for _ in range(100)] == [(3, NewerEpoch(epoch)) for epoch in range(100)]


def test_a_node_that_was_away_is_heard_again(
        nodes: list[Node], addresses: dict[int, tuple[str, int]], folder: Path) -> None:
    """What was sent meanwhile may be lost; what is sent until it is heard is heard."""
    nodes[1].transport.close()
    again = nodes[1] = Node(2, addresses, folder)

    def heard() -> bool:
        nodes[0].transport.send(2, NewerEpoch(7))
        again.transport.send(1, NewerEpoch(8))
        return not again.received.empty() and not nodes[0].received.empty()

    wait_until(heard, 20, "the node isn't heard again")


def test_the_first_word_to_a_node_that_was_away_arrives(
        nodes: list[Node], addresses: dict[int, tuple[str, int]], folder: Path) -> None:
    """That its connection is closed is seen before there is something to say."""
    one = nodes[0].transport
    assert one.send(2, NewerEpoch(6))
    assert nodes[1].get() == (1, NewerEpoch(6))
    nodes[1].transport.close()
    wait_until(lambda: one.problem_with(2) != "", 20, "nobody sees that the node is gone")
    again = nodes[1] = Node(2, addresses, folder)
    wait_until(lambda: one.problem_with(2) == "", 20, "nobody connects again")
    assert one.send(2, NewerEpoch(7))
    assert again.get() == (1, NewerEpoch(7))


def test_a_connection_without_words_is_kept(addresses: dict[int, tuple[str, int]], folder: Path) -> None:
    """A node that has nothing to say sends frames of nothing, which are no message."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "penstock-node-2.pem", folder / "penstock-node-2.key")
    context.set_alpn_protocols(["penstock-cluster/1"])
    node = Node(1, addresses, folder, silence_s=0.1)
    try:
        with socket.create_server(addresses[2]) as listener:
            listener.settimeout(20)
            connection, _ = listener.accept()
            with context.wrap_socket(connection, server_side=True) as secured:
                assert secured.recv(len(NOTHING)) == NOTHING
    finally:
        node.transport.close()
    node = Node(1, addresses, folder)
    try:
        client = ssl.create_default_context(cafile=str(folder / "authority.pem"))
        client.set_alpn_protocols(["penstock-cluster/1"])
        client.load_cert_chain(folder / "penstock-node-2.pem", folder / "penstock-node-2.key")
        with (socket.create_connection(addresses[1], 10) as plain,
              client.wrap_socket(plain, server_hostname="penstock-node-1") as secured):
            secured.sendall(NOTHING + encode_message(NewerEpoch(3)) + NOTHING + encode_message(NewerEpoch(4)))
            assert [node.get(), node.get()] == [(2, NewerEpoch(3)), (2, NewerEpoch(4))]
    finally:
        node.transport.close()


def test_what_waits_for_a_node_is_bounded(addresses: dict[int, tuple[str, int]], folder: Path) -> None:
    """Messages for one that isn't there are dropped at some point, and that is told."""
    alone = Node(1, addresses, folder)
    try:
        chunk = Append(1, 2, 3, LogChunk(0, 5, EpochStart(1, 1), True, bytes(4 << 20)), 0)
        sent = [alone.transport.send(2, chunk) for _ in range(12)]
        assert sent == [True] * 7 + [False] * 5
    finally:
        alone.transport.close()


@pytest.mark.parametrize("how", ["another authority", "no certificate", "another node", "a node that isn't named"])
def test_nobody_else_is_heard(how: str, addresses: dict[int, tuple[str, int]], folder: Path) -> None:
    """Neither another authority's node, nor one that says it is another, nor who has no certificate."""
    node = Node(1, addresses, folder)
    context = ssl.create_default_context(cafile=str(folder / "authority.pem"))
    context.set_alpn_protocols(["penstock-cluster/1"])
    chain = {"another authority": "other/penstock-node-2", "another node": "penstock-node-1",
             "a node that isn't named": "penstock-node-9"}.get(how)
    if chain is not None:
        context.load_cert_chain(folder / f"{chain}.pem", folder / f"{chain}.key")
    try:
        assert _is_cut_off(addresses[1], context, encode_message(NewerEpoch(1)))
        assert node.received.empty()
    finally:
        node.transport.close()


def _is_cut_off(address: tuple[str, int], context: ssl.SSLContext, data: bytes) -> bool:
    """Whether a node closes the connection of who says so."""
    try:
        with (socket.create_connection(address, 10) as plain,
              context.wrap_socket(plain, server_hostname="penstock-node-1") as secured):
            secured.settimeout(10)
            secured.sendall(data)
            return secured.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_who_says_too_much_is_cut_off(nodes: list[Node], addresses: dict[int, tuple[str, int]], folder: Path) -> None:
    """Before anything of it is kept; the connection of the node itself goes on."""
    context = ssl.create_default_context(cafile=str(folder / "authority.pem"))
    context.set_alpn_protocols(["penstock-cluster/1"])
    context.load_cert_chain(folder / "penstock-node-2.pem", folder / "penstock-node-2.key")
    assert _is_cut_off(addresses[1], context, struct.pack(">II", 2**32 - 1, 10))
    assert nodes[1].transport.send(1, NewerEpoch(3))
    assert nodes[0].get() == (2, NewerEpoch(3))


def test_connections_that_never_speak_are_bounded(
        addresses: dict[int, tuple[str, int]], folder: Path) -> None:
    """More than some are closed at once, without a thread."""
    node = Node(1, addresses, folder)
    opened = [socket.create_connection(addresses[1], 10) for _ in range(14)]
    try:
        opened[-1].settimeout(4)
        assert opened[-1].recv(1) == b""
    finally:
        for one in opened:
            one.close()
        node.transport.close()


class Refusing:
    """A socket that listens, and has run out of descriptors twice."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._refusals = 2

    def accept(self) -> Any:
        if self._refusals:
            self._refusals -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listener.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


def test_a_node_that_has_run_out_of_descriptors_is_told_and_listens_again(
        addresses: dict[int, tuple[str, int]], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And who can't reach another node tells that."""
    create = socket.create_server
    monkeypatch.setattr(socket, "create_server", lambda *args, **more: Refusing(create(*args, **more)))
    first, second = Node(1, addresses, folder), Node(2, addresses, folder)
    try:
        wait_until(lambda: first.transport.problem_with(3).startswith("node 3 can't be sent to: "), 20)
        first.transport.send(2, NewerEpoch(5))
        assert second.get() == (1, NewerEpoch(5))
        assert "Too many open files" in second.transport.problem
        assert first.transport.problem_with(2) == ""
    finally:
        for one in (first, second):
            one.transport.close()


def test_certificates_that_cannot_be_used_are_told(addresses: dict[int, tuple[str, int]], folder: Path) -> None:
    """By the names of the configuration's fault, before anything listens."""
    settings = TransportSettings(1, addresses, str(folder / "authority.pem"), str(folder / "penstock-node-1.key"),
                                 str(folder / "authority.pem"))
    with pytest.raises(ConfigError, match="certificates can't be used"):
        NodeTransport(settings, SystemClock(), lambda *one: None)
    with pytest.raises(ConfigError, match="certificates can't be used"):
        NodeTransport(replace(settings, authority_file="missing.pem"), SystemClock(), lambda *one: None)


def test_what_the_network_loses_ends_the_connection(
        addresses: dict[int, tuple[str, int]], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system gives up what isn't confirmed in time; else all that follows would wait behind it, for minutes."""
    made, connect = list[socket.socket](), socket.create_connection

    def noted(*arguments: Any) -> socket.socket:
        connection = connect(*arguments)
        made.append(connection.dup())
        return connection

    monkeypatch.setattr(socket, "create_connection", noted)
    first, second = Node(1, addresses, folder), Node(2, addresses, folder)
    try:
        first.transport.send(2, NewerEpoch(5))
        assert second.get() == (1, NewerEpoch(5))
        assert made[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1500
    finally:
        for one in (first, second):
            one.transport.close()
        for connection in made:
            connection.close()
