"""Who becomes active, when one stops to be, and what a lease is worth by the clock of its holder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.cluster.memory_registry import MemoryRegistry

from penstock.mnode.cluster.cluster_messages import Life
from penstock.mnode.cluster.cluster_registry import (
    ChangeRecord,
    ClusterRecord,
    LeaseHolder,
    ReadRegistry,
    RecordChange,
    RegistryAnswer,
    RegistryOutcome,
    RegistryRequest,
    RenewLease,
    TakeLease,
)
from penstock.mnode.cluster.lease import Lease, LeaseSettings
from penstock.mnode.cluster.node_role import NodeRole, Role, RoleSettings
from penstock.mnode.cluster.synchronous_set import SynchronousSet

A, B, C = Life(1, 10), Life(2, 20), Life(3, 30)
NODES = frozenset({1, 2, 3})
SETTINGS = RoleSettings(lease=LeaseSettings(session_timeout_s=4, margin_s=1, renew_every_s=0.5))


class Nodes:
    """Roles of some nodes, each with a session, which all see one registry."""

    def __init__(self, *lives: Life, registry: MemoryRegistry | None = None) -> None:
        self.now = 100.0
        self.registry = registry or MemoryRegistry()
        self.roles = {life: NodeRole(life, life.node * 7, NODES, SETTINGS) for life in lives}
        self.lengths = dict.fromkeys(lives, 0)
        self.outcomes: list[RegistryOutcome] = []

    def step(self, *lives: Life, seconds: float = 0.1) -> None:
        """Lets a moment pass for these nodes, or for all."""
        self.now += seconds
        for life in lives or tuple(self.roles):
            for request in self.roles[life].poll(self.now, self.lengths[life]):
                self.perform(life, request)

    def run(self, seconds: float, *lives: Life) -> None:
        for _ in range(round(seconds * 10)):
            self.step(*lives)

    def perform(self, life: Life, request: RegistryRequest, answered: RegistryOutcome | None = None) -> None:
        outcome = self.registry.perform(life.node, request)
        role = self.roles[life]
        if isinstance(request, ReadRegistry):
            role.seen(self.now, self.registry.seen(self.now))
        elif isinstance(request, RecordChange | RenewLease):
            role.answered(self.now, RegistryAnswer(request, answered or outcome, self.registry.version, self.now))

    def active(self) -> list[Life]:
        return [life for life, role in self.roles.items() if role.is_active]


def cluster_of(members: tuple[Life, ...], complete: int = 2, **roles: Life) -> Nodes:
    """Returns a cluster whose first member was active in epoch 5, and has no lease any more."""
    registry = MemoryRegistry(ClusterRecord(5, members[0], SynchronousSet(members, complete)), 8)
    return Nodes(*(roles.values() or (A, B, C)), registry=registry)


def test_candidates_of_a_silent_node_are_there_when_its_lease_ends() -> None:
    """Nobody takes over before that; then the one with the longest logs does, without waiting for others to be seen."""
    nodes = cluster_of((A, B, C), 3, a=A, b=B, c=C)
    nodes.run(3, A)
    assert nodes.active() == [A]
    nodes.lengths[C] = 7
    for life in (B, C):
        nodes.roles[life].suspects = True
    nodes.run(3)
    assert nodes.active() == [A]
    nodes.registry.end(A.node)
    nodes.run(0.6, B, C)
    assert nodes.active() == [A, C]  # A doesn't know yet, and may acknowledge nothing by then
    nodes.roles[B].suspects = False
    nodes.run(1, B, C)
    assert B not in [one.life for one in nodes.registry.seen(0.0).candidates]


def test_a_cluster_begins_when_all_are_there_with_the_longest_logs() -> None:
    """A directory that has been a single machine's is not cut because an empty one was faster."""
    nodes = Nodes(A, B, C)
    nodes.lengths[B] = 17
    nodes.run(5, A, C)
    assert nodes.active() == []
    nodes.run(5)
    assert nodes.active() == [B]
    assert nodes.registry.record == ClusterRecord(1, B, SynchronousSet((B,), 1))


def test_of_those_that_have_all_the_one_with_the_longest_logs_takes_over() -> None:
    """The others follow it; who lacks something doesn't even try."""
    nodes = cluster_of((A, B, C), complete=3)
    nodes.lengths |= {B: 5, C: 9}
    nodes.run(3, B, C)
    assert nodes.active() == [C]
    assert nodes.registry.record == ClusterRecord(6, C, SynchronousSet((C, A, B), 3))
    following = nodes.roles[B].following
    assert following is not None and following.active == C  # noqa: PT018
    lacking = cluster_of((A, B, C), complete=2)
    lacking.run(10, C)
    assert lacking.active() == []


def test_a_candidate_that_does_nothing_is_passed_over() -> None:
    """Its turn comes first and passes."""
    nodes = cluster_of((A, B, C), complete=3)
    nodes.lengths |= {B: 5, C: 9}
    nodes.step(B, C)
    nodes.run(4, B)
    assert nodes.active() == [B]


def test_another_life_of_a_member_is_none() -> None:
    """What a machine had before it lost its power may be gone."""
    nodes = cluster_of((A, B), again=Life(2, 21))
    nodes.run(10)
    assert nodes.active() == []
    nodes.roles[Life(2, 21)].promote(nodes.now)
    nodes.run(2)
    assert nodes.registry.record == ClusterRecord(6, Life(2, 21), SynchronousSet((Life(2, 21),), 1))


def test_a_promotion_is_forgotten_after_a_while() -> None:
    """It is for now, not for whenever the active node is lost next."""
    nodes = cluster_of((A, B, C), complete=2)
    nodes.run(2, A)
    assert nodes.active() == [A]
    nodes.roles[C].promote(nodes.now)
    nodes.run(SETTINGS.promote_s + 1, A, C)
    nodes.registry.end(1)
    nodes.run(5, C)
    assert nodes.active() == [A]
    assert nodes.registry.lease is None


def test_a_process_takes_the_lease_of_its_dead_predecessor() -> None:
    """A restart needn't wait for the old session to end."""
    nodes = cluster_of((A, B), first=A)
    nodes.registry.lease = (99, LeaseHolder(A, 1))
    nodes.run(2)
    assert nodes.active() == [A]
    assert nodes.registry.lease == (1, LeaseHolder(A, 7))


def test_without_renewals_the_active_stops_before_another_may_begin() -> None:
    """By its own clock: the time-out less the margin after the last renewal that was performed was sent."""
    nodes = cluster_of((A, B))
    nodes.run(2, A)
    role = nodes.roles[A]
    renewed = nodes.now
    nodes.perform(A, RenewLease(role.epoch))
    assert role.may_acknowledge(renewed + 2.9)
    assert not role.may_acknowledge(renewed + 3.0)
    assert not role.is_cut_off(renewed + 3.9)
    assert role.is_cut_off(renewed + 4.0)
    assert role.is_active, "it goes on if the lease turns out to be still its own"
    nodes.now = renewed + 10
    nodes.step(A)
    assert role.may_acknowledge(nodes.now)


def test_a_lease_that_is_gone_ends_the_tenure() -> None:
    """Be it told by a renewal, by the session's end or by a newer record."""
    for how in ("renewal", "session", "record"):
        nodes = cluster_of((A, B, C))
        nodes.run(2, A)
        nodes.registry.end(1)
        if how == "session":
            nodes.roles[A].session_lost("the session has ended")
        elif how == "record":
            nodes.run(4, B)
            nodes.roles[A].seen(nodes.now, nodes.registry.seen(nodes.now))
        else:
            nodes.perform(A, RenewLease(nodes.roles[A].epoch))
        assert not nodes.roles[A].is_active, how
        assert not nodes.roles[A].may_acknowledge(nodes.now)


def test_a_doubt_is_ended_only_by_a_renewal_that_was_sent_after_it() -> None:
    """One that was under way proves nothing."""
    lease = Lease(SETTINGS.lease)
    lease.renewed(10.0)
    lease.doubt(10.5)
    lease.renewed(10.4)
    assert not lease.valid(10.6)
    lease.renewed(10.5)
    assert lease.valid(10.6)


@given(sent=st.lists(st.floats(0, 100), min_size=1, max_size=8), now=st.floats(0, 200))
def test_a_lease_counts_from_when_its_last_renewal_was_sent(sent: list[float], now: float) -> None:
    """In whichever order the answers come."""
    lease = Lease(SETTINGS.lease)
    for at in sent:
        lease.renewed(at)
    assert lease.valid(now) == (now < max(sent) + 3.0)


@pytest.mark.parametrize("performed", [True, False])
def test_a_change_whose_outcome_nobody_knows_is_looked_up_or_asked_for_again(performed: bool) -> None:
    """In both cases the record has it in the end, once."""
    nodes = cluster_of((A, B, C))
    nodes.run(2, A)
    role = nodes.roles[A]
    wanted = SynchronousSet((A, C), 2)
    role.want_set(wanted)
    (change,) = [one for one in role.poll(nodes.now, 0) if isinstance(one, ChangeRecord)]
    version = nodes.registry.version
    if performed:
        nodes.perform(A, change, RegistryOutcome.UNKNOWN)
    else:
        role.answered(nodes.now, RegistryAnswer(change, RegistryOutcome.UNKNOWN, 0, nodes.now))
    nodes.run(1, A)
    assert role.record is not None and role.record.synchronous == wanted  # noqa: PT018
    assert nodes.registry.version == version + 1


@pytest.mark.parametrize("performed", [True, False])
def test_a_takeover_whose_outcome_nobody_knows_happens_once(performed: bool) -> None:
    """The lease that is found to be one's own is a tenure; else it is tried again."""
    nodes = cluster_of((A, B, C))
    taken: list[RegistryRequest] = []
    while not taken:
        nodes.now += 0.1
        for request in nodes.roles[B].poll(nodes.now, 0):
            if isinstance(request, TakeLease):
                taken.append(request)
                if performed:
                    nodes.perform(B, request, RegistryOutcome.UNKNOWN)
                else:
                    nodes.roles[B].answered(nodes.now, RegistryAnswer(request, RegistryOutcome.UNKNOWN, 0, nodes.now))
            else:
                nodes.perform(B, request)
    assert not nodes.roles[B].is_active
    nodes.run(2, B)
    assert nodes.active() == [B]
    assert nodes.registry.record is not None and nodes.registry.record.epoch == 6  # noqa: PT018


def test_who_is_handed_over_to_takes_over_at_once() -> None:
    """The one that hands over acknowledges nothing from then on, and waits as all others."""
    nodes = cluster_of((A, B, C), complete=3)
    nodes.run(2, A)
    role = nodes.roles[A]
    role.hand_over(nodes.now, B)
    assert role.role is Role.HANDING_OVER
    assert role.may_acknowledge(nodes.now)
    role.hand_over_now()
    assert not role.may_acknowledge(nodes.now)
    handed = nodes.now
    while nodes.active() != [B]:
        nodes.step()
    assert nodes.now - handed < 1.0
    nodes.run(5)
    assert nodes.active() == [B]


def test_a_switchover_that_does_not_come_about_is_called_off() -> None:
    """The node is active again as it was."""
    nodes = cluster_of((A, B, C), complete=3)
    nodes.run(2, A)
    nodes.roles[A].hand_over(nodes.now, B)
    nodes.run(SETTINGS.hand_over_s + 0.5)
    assert nodes.roles[A].role is Role.ACTIVE
    assert nodes.roles[A].may_acknowledge(nodes.now)


def test_a_node_that_cannot_be_active_lets_another_one() -> None:
    """It gives the lease up and rests."""
    nodes = cluster_of((A, B, C), complete=3)
    nodes.lengths[A] = 5
    nodes.run(2)
    assert nodes.active() == [A]
    nodes.roles[A].give_up(nodes.now, "the disk refuses")
    nodes.run(3)
    assert nodes.active() in ([B], [C])
    assert nodes.roles[A].reason == "the disk refuses"
