"""Connections that a library holds for us: found, counted, and ended when there are too many or nobody logs in."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kits.basics.waiting import wait_until
from kits.engines.embedded import StandingClock
from kits.engines.served_here import ServedHere

from penstock.common.admission import ConnectionBounds
from penstock.common.descriptors import shortage
from penstock.common.port_guard import PortGuard, read_peer
from penstock.mnode.http.metrics import exposition

LIMITS = {"connectionsMax": 40, "connectionsPerAddressMax": 40, "strangersMax": 10}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedHere]:
    with ServedHere(tmp_path / "data", LIMITS) as server:
        yield server


def idle(port: int, stack: ExitStack) -> socket.socket:
    """Returns a connection that says nothing."""
    return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))


def test_idle_connections_keep_nobody_out(served: ServedHere) -> None:
    """Hundreds of connections that say nothing to the Flight port: most are closed at once, a client gets in."""
    with ExitStack() as stack:
        for _ in range(300):
            idle(served.port, stack)
        guard = served.server.guard
        wait_until(lambda: guard.admission.counts().refused["strangers"] > 0)
        wait_until(lambda: guard.admission.counts().strangers <= 10)
        with served.connect() as connection:
            connection.execute("CREATE DATABASE d")
            for _ in range(60):
                idle(served.port, stack)
            wait_until(lambda: guard.admission.counts().strangers == 10)
            assert connection.execute("SHOW DATABASES").fetchall()
            wait_until(lambda: guard.admission.counts().connections == 11)
            served.clock.advance(10.0)
            wait_until(lambda: guard.admission.counts().connections == 1)
            assert guard.admission.counts().refused["login"] == 10
            listed = connection.execute(
                "SELECT connections, strangers, refused_login FROM information_schema.ins_ports "
                f"WHERE port = {served.port} AND purpose = 'Flight SQL'").fetchall()
            assert listed == [(1, 0, 10)]
            metrics = exposition(served.lease.engine.overview).decode()
            assert f'penstock_port_refused_connections_total{{port="{served.port}",purpose="Flight SQL",' \
                'reason="login"} 10.0' in metrics
            assert connection.execute("SHOW DATABASES").fetchall()


def test_a_guard_that_fails_looks_again(served: ServedHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong once, whatever it is, doesn't leave the port without bounds."""
    guard = served.server.guard
    failed = threading.Event()

    def fail(now: float) -> list[tuple[int, int]]:
        failed.set()
        raise RuntimeError("what nobody expects")

    with ExitStack() as stack:
        with monkeypatch.context() as patch:
            patch.setattr(guard.admission, "over", fail)
            assert failed.wait(30.0)
        for _ in range(30):
            idle(served.port, stack)
        wait_until(lambda: guard.admission.counts().refused["strangers"] > 0)


def is_open(end: socket.socket) -> bool:
    """Tells whether a connection on which nothing is said is still there."""
    end.setblocking(False)
    try:
        return bool(end.recv(1))
    except BlockingIOError:
        return True


def test_a_connection_of_another_port_is_not_touched() -> None:
    """What is not the port's stays; what is closed by itself is forgotten."""
    with ExitStack() as stack:
        own, other = (stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
        bounds = ConnectionBounds(strangers=1, login_timeout_s=60.0)
        guard = PortGuard("test", own.getsockname()[1], bounds, StandingClock())
        stack.callback(guard.close)
        ends = []
        for server in (own, own, other, other):
            idle(server.getsockname()[1], stack)
            ends.append(stack.enter_context(server.accept()[0]))
        wait_until(lambda: guard.admission.counts().refused["strangers"] == 1)
        assert sorted(map(is_open, ends[:2])) == [False, True]
        assert all(map(is_open, ends[2:]))
        for end in ends:
            end.close()
        wait_until(lambda: guard.admission.counts().connections == 0)


@pytest.mark.parametrize(("text", "peer"), [
    ("ipv4:127.0.0.1:4711", ("127.0.0.1", 4711)), ("ipv6:%5B::1%5D:4711", ("::1", 4711)),
    ("ipv6:[::ffff:10.0.0.1]:80", ("10.0.0.1", 80)), ("unix:/tmp/x", None), ("", None)])
def test_peers_are_read_as_grpc_writes_them(text: str, peer: tuple[str, int] | None) -> None:
    """What gRPC calls a peer is what the system calls it."""
    assert read_peer(text) == peer


def test_too_few_descriptors_are_told() -> None:
    """Who allows more connections than there are descriptors is told both numbers, and what to do."""
    assert shortage(5000, 3000) is None
    assert "LimitNOFILE" in str(shortage(4000, 3000))
