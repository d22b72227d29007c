"""A real ZooKeeper does what the simulated one does: requests of nodes are performed or refused, sessions end."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from kits.basics.external_servers import ZooKeeper
from kits.basics.waiting import wait_until
from kits.cluster.memory_logs import MemoryLog, MemoryNode

from penstock.common.clock import SystemClock
from penstock.common.errors import ConnectionFailedError
from penstock.mnode.cluster.cluster_messages import CATALOG_LOG, Life
from penstock.mnode.cluster.cluster_node import ClusterNode, ClusterSettings
from penstock.mnode.cluster.cluster_registry import (
    NO_RECORD,
    Candidate,
    ChangeRecord,
    ClusterRecord,
    GiveUpLease,
    LeaseHolder,
    OfferCandidacy,
    ReadRegistry,
    RegistryAnswer,
    RegistryOutcome,
    RegistryRequest,
    RegistrySeen,
    RenewLease,
    TakeLease,
    WithdrawCandidacy,
)
from penstock.mnode.cluster.lease import LeaseSettings
from penstock.mnode.cluster.node_role import RoleSettings
from penstock.mnode.cluster.synchronous_set import LogReplicas, SynchronousSet
from penstock.mnode.cluster.zookeeper_registry import RegistryEvent, SessionLost, ZookeeperRegistry, ZookeeperSettings

A, B = Life(1, 10), Life(2, 20)
RECORD = ClusterRecord(1, A, SynchronousSet((A,), 1))
_roots = itertools.count(1)
DONE, REFUSED, UNKNOWN = RegistryOutcome.DONE, RegistryOutcome.REFUSED, RegistryOutcome.UNKNOWN


class Client:
    """One process's connection, and what it was told."""

    def __init__(self, server: ZooKeeper, root: str, process: int, timeout_s: float = 4.0) -> None:
        self.told: queue.Queue[RegistryEvent] = queue.Queue()
        self.process = process
        self.registry = ZookeeperRegistry(
            ZookeeperSettings(f"127.0.0.1:{server.port}", root, timeout_s, login="penstock:secret"), process,
            SystemClock(), self.told.put)
        self.registry.start()

    def ask(self, request: RegistryRequest) -> Any:
        """Returns what it is answered."""
        self.registry.ask(request)
        kind = RegistrySeen if isinstance(request, ReadRegistry) else RegistryAnswer
        found: list[RegistryEvent] = []

        def answered() -> bool:
            self.registry.poll()
            while not self.told.empty():
                found.append(self.told.get())
            return any(isinstance(one, kind) for one in found)

        wait_until(answered, 20, f"{request} isn't answered")
        return next(one for one in found if isinstance(one, kind))

    def outcome(self, request: RegistryRequest) -> RegistryOutcome:
        answer: RegistryAnswer = self.ask(request)
        return answer.outcome

    def seen(self) -> RegistrySeen:
        seen: RegistrySeen = self.ask(ReadRegistry())
        return seen


@pytest.fixture
def clients(zookeeper: ZooKeeper) -> Iterator[list[Client]]:
    """Two processes of two nodes, with a root of their own."""
    root = f"/cluster-{next(_roots)}"
    made = [Client(zookeeper, root, 11), Client(zookeeper, root, 22)]
    yield made
    for client in made:
        client.registry.close()


def test_a_record_is_changed_by_who_knows_its_version(clients: list[Client]) -> None:
    """At once with the lease, or not at all."""
    one, other = clients
    assert one.seen().record is None
    assert one.seen().version == NO_RECORD
    mine = LeaseHolder(A, 11)
    assert one.outcome(TakeLease(NO_RECORD, RECORD, mine, False)) is DONE
    assert other.outcome(TakeLease(NO_RECORD, RECORD, LeaseHolder(B, 22), False)) is REFUSED
    assert other.outcome(TakeLease(0, replace(RECORD, epoch=2), LeaseHolder(B, 22), False)) is REFUSED
    seen = other.seen()
    assert (seen.record, seen.version, seen.lease) == (RECORD, 0, mine)
    wider = replace(RECORD, synchronous=SynchronousSet((A, B), 2))
    answer = one.ask(ChangeRecord(0, wider))
    assert (answer.outcome, answer.version) == (DONE, 1)
    assert one.outcome(ChangeRecord(0, RECORD)) is REFUSED
    assert one.seen().record == wider


def test_a_lease_is_renewed_and_given_up_by_who_took_it(clients: list[Client]) -> None:
    """Another process can do neither; who has a record's version can still take what is free."""
    one, other = clients
    assert one.outcome(RenewLease(1)) is REFUSED
    assert one.outcome(TakeLease(NO_RECORD, RECORD, LeaseHolder(A, 11), False)) is DONE
    assert one.outcome(RenewLease(1)) is DONE
    assert other.outcome(RenewLease(1)) is REFUSED
    assert other.outcome(GiveUpLease(0, RECORD)) is REFUSED
    assert one.outcome(GiveUpLease(0, replace(RECORD, successor=B))) is DONE
    assert one.seen().lease is None
    assert one.outcome(RenewLease(1)) is REFUSED
    second = ClusterRecord(2, B, SynchronousSet((B, A), 2))
    assert other.outcome(TakeLease(1, second, LeaseHolder(B, 22), False)) is DONE
    assert one.outcome(TakeLease(2, second, LeaseHolder(B, 23), True)) is DONE, "a restart replaces its own"


def test_who_looked_hears_at_once_that_the_lease_ends(clients: list[Client]) -> None:
    """Without another look."""
    one, other = clients
    assert one.outcome(TakeLease(NO_RECORD, RECORD, LeaseHolder(A, 11), False)) is DONE
    assert other.seen().lease is not None
    assert one.outcome(GiveUpLease(0, RECORD)) is DONE
    told = other.told.get(timeout=20)
    assert isinstance(told, RegistrySeen)
    assert told.lease is None


def test_candidates_are_noted_and_gone_with_their_session(clients: list[Client]) -> None:
    """A note replaces the earlier one of the same process."""
    one, other = clients
    one.registry.ask(OfferCandidacy(Candidate(A, 5)))
    wait_until(lambda: other.seen().candidates == (Candidate(A, 5),), 10, "the note isn't there")
    one.registry.ask(OfferCandidacy(Candidate(A, 7)))
    wait_until(lambda: other.seen().candidates == (Candidate(A, 7),), 10, "the note isn't replaced")
    one.registry.ask(WithdrawCandidacy())
    wait_until(lambda: other.seen().candidates == (), 10, "the note is still there")
    one.registry.ask(OfferCandidacy(Candidate(A, 9)))
    wait_until(lambda: other.seen().candidates == (Candidate(A, 9),), 10, "the note isn't there")
    one.registry.close()
    wait_until(lambda: other.seen().candidates == (), 10, "the note has outlived its session")


def test_without_zookeeper_nobody_knows(tmp_path: Any) -> None:
    """Requests are answered as unknown, until it is there again. With a shorter session the lease is given up."""
    server = ZooKeeper(tmp_path)
    server.start()
    client = Client(server, "/cluster", 11)
    try:
        assert client.outcome(TakeLease(NO_RECORD, RECORD, LeaseHolder(A, 11), False)) is DONE
        server.freeze()
        wait_until(lambda: client.outcome(RenewLease(1)) is UNKNOWN, 20, "who is stopped answers")
        server.thaw()
        wait_until(lambda: client.outcome(RenewLease(1)) in (DONE, REFUSED), 20, "it doesn't come back")
        server.kill()
        wait_until(lambda: client.outcome(RenewLease(1)) is UNKNOWN, 20, "a dead server answers")
        server.limit_sessions(2.0)
        server.start()
        lost = SessionLost("a server of ZooKeeper ends sessions sooner")
        wait_until(lambda: lost in client.told.queue, 20, "a lease is counted on for longer than its session lasts")
    finally:
        client.registry.close()
        server.kill()


def test_an_address_at_which_nothing_is_is_told() -> None:
    """By name, in time."""
    settings = ZookeeperSettings("127.0.0.1:1", "/cluster", 1.0, connect_timeout_s=0.5)
    registry = ZookeeperRegistry(settings, 1, SystemClock(), lambda _: None)
    with pytest.raises(ConnectionFailedError, match=r"ZooKeeper at 127\.0\.0\.1:1 doesn't answer"):
        registry.start()


def test_a_session_that_may_end_sooner_is_none(zookeeper: ZooKeeper) -> None:
    """The active node would count on its lease when another one has it; the longest sessions here have 60 s."""
    settings = ZookeeperSettings(f"127.0.0.1:{zookeeper.port}", "/short", 61.0, connect_timeout_s=0.5)
    registry = ZookeeperRegistry(settings, 1, SystemClock(), lambda event: None)
    with pytest.raises(ConnectionFailedError, match="ends sessions after 60 s, and sessionTimeout is 61 s"):
        registry.start()
    assert "maxSessionTimeout" in registry.problem
    fitting = ZookeeperRegistry(replace(settings, session_timeout_s=1.001), 1, SystemClock(), lambda event: None)
    fitting.start()
    fitting.close()


def test_nodes_take_over_from_each_other(zookeeper: ZooKeeper) -> None:
    """Three nodes with real sessions: one becomes active; when its session ends, one that has all of its rows does."""
    lease = LeaseSettings(session_timeout_s=4.0, margin_s=1.0, renew_every_s=0.1)
    role = RoleSettings(lease=lease, read_every_s=0.1, gather_s=0.2, turn_s=0.3)
    settings = ClusterSettings(frozenset({1, 2, 3}), role)
    root, clock = f"/cluster-{next(_roots)}", SystemClock()
    clients = {number: Client(zookeeper, root, 100 + number) for number in settings.nodes}
    replicas = {CATALOG_LOG: LogReplicas(3, 2), 1: LogReplicas(2, 2)}
    disks = {number: MemoryNode(number * 10, {0: MemoryLog(), 1: MemoryLog()}) for number in settings.nodes}
    nodes = {number: ClusterNode(number, 100 + number, disks[number], lambda: replicas, settings) for number in disks}

    def turn() -> None:
        for number, node in list(nodes.items()):
            client = clients[number]
            client.registry.poll()
            while not client.told.empty():
                match client.told.get():
                    case RegistrySeen() as seen:
                        node.seen(clock.monotonic(), seen)
                    case RegistryAnswer() as answer:
                        node.answered(clock.monotonic(), answer)
                    case SessionLost(reason):
                        node.session_lost(clock.monotonic(), reason)
            output = node.poll(clock.monotonic(), clock.now_ms())
            for to, message in output.messages:
                if to in nodes:
                    nodes[to].receive(clock.monotonic(), number, message)
            for request in output.requests:
                client.registry.ask(request)

    def active() -> int | None:
        turn()
        return next((number for number, node in nodes.items() if node.may_write(clock.monotonic())), None)

    wait_until(lambda: active() is not None, 30, "nobody is active")
    first = active()
    assert first is not None
    disks[first].stored[1].write(7)
    disks[first].stored[1].sync()

    def acknowledged() -> bool:
        turn()
        leader = nodes[first].active
        return leader is not None and leader.acknowledged.get(1) == 1 and len(leader.members.current.members) == 3

    wait_until(acknowledged, 30, "the row isn't acknowledged by all")
    del nodes[first]
    clients[first].registry.close()
    wait_until(lambda: active() is not None, 30, "nobody takes over")
    second = active()
    assert second is not None
    assert disks[second].stored[1].payloads() == [(1, 7)]
    for client in clients.values():
        client.registry.close()
