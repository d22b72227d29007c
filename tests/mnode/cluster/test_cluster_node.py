"""One node of a cluster as a whole: when its tenure begins, and what it acknowledges then."""

from __future__ import annotations

import pytest
from kits.cluster.memory_logs import MemoryLog, MemoryNode

from penstock.mnode.cluster.cluster_messages import Ack, Life, LogState
from penstock.mnode.cluster.cluster_node import ClusterNode, ClusterSettings
from penstock.mnode.cluster.cluster_registry import (
    ChangeRecord,
    ClusterRecord,
    LeaseHolder,
    RegistryAnswer,
    RegistryOutcome,
    RegistrySeen,
    RenewLease,
    TakeLease,
)
from penstock.mnode.cluster.log_epochs import EpochStart
from penstock.mnode.cluster.node_role import RoleSettings
from penstock.mnode.cluster.synchronous_set import LogReplicas, SynchronousSet

A, C = Life(1, 10), Life(3, 30)


def test_a_tenure_begins_with_a_lease_that_is_valid() -> None:
    """A process that stands still while its lease is given to it may wake up when another node has been active."""
    node = ClusterNode(1, 5, MemoryNode(10), dict, ClusterSettings(frozenset({1, 2})))
    record = ClusterRecord(1, node.life, SynchronousSet((node.life,), 1))
    node.seen(0.0, RegistrySeen(record, 0, LeaseHolder(node.life, 5), (), 0.0))
    assert node.active is None
    (renewal,) = [one for one in node.poll(0.0, 0).requests if isinstance(one, RenewLease)]
    node.answered(30.0, RegistryAnswer(renewal, RegistryOutcome.DONE, 0, 0.0))
    assert node.active is None
    assert not node.may_write(30.0)
    node.answered(30.1, RegistryAnswer(renewal, RegistryOutcome.DONE, 0, 30.0))
    assert node.active is not None
    assert node.may_write(30.1)


def _taken_over(successor: bool) -> ClusterNode:
    """Returns node 2, with two records of epoch 5 in log 1, when it has just taken over from node 1."""
    disk = MemoryNode(20, {1: MemoryLog()})
    disk.stored[1].note_epoch(EpochStart(5, 1))
    disk.stored[1].write(1)
    disk.stored[1].write(2)
    node = ClusterNode(2, 7, disk, lambda: {1: LogReplicas(2, 1)},
                       ClusterSettings(frozenset({1, 2, 3}), RoleSettings(gather_s=0.0)))
    record = ClusterRecord(5, A, SynchronousSet((A, node.life), 2), node.life if successor else None)
    node.seen(0.0, RegistrySeen(record, 3, None, (), 0.0))
    requests = node.poll(0.0, 0).requests
    if not successor:
        offer = next(one.candidate for one in requests if hasattr(one, "candidate"))
        node.seen(0.1, RegistrySeen(record, 3, None, (offer,), 0.1))
        requests = node.poll(0.1, 0).requests
    (taken,) = [one for one in requests if isinstance(one, TakeLease)]
    node.answered(0.2, RegistryAnswer(taken, RegistryOutcome.DONE, 4, 0.2))
    assert node.active is not None
    return node


def _hear(node: ClusterNode, floor: int = 0) -> None:
    """Has node 3 tell that it has all, and that its tables have it up to a version."""
    assert node.active is not None
    epoch = node.active.epoch
    node.receive(0.3, 3, LogState(epoch, 9, C, 1, 1, (EpochStart(5, 1),), 2, 2, floor))
    node.receive(0.3, 3, Ack(epoch, 9, 1, 1, 2, 2))


@pytest.mark.parametrize("successor", [True, False])
def test_who_hands_over_is_not_waited_for(successor: bool) -> None:
    """It starts its process anew: another one that has all takes its place at once."""
    node = _taken_over(successor)
    _hear(node)
    changes = [one for _ in range(2) for one in node.poll(0.3, 0).requests if isinstance(one, ChangeRecord)]
    wanted = [SynchronousSet((node.life, C), 2)] if successor else []
    assert [one.record.synchronous for one in changes] == wanted


def test_what_a_standby_has_in_its_tables_was_acknowledged() -> None:
    """That is so before the set is whole again; of what the logs don't have in common nothing is."""
    node = _taken_over(successor=False)
    assert node.active is not None
    _hear(node, floor=1)
    node.poll(0.3, 0)
    assert node.active.acknowledged == {1: 1}
    epoch = node.active.epoch
    node.receive(0.4, 3, LogState(epoch, 9, C, 1, 2, (EpochStart(4, 1),), 2, 2, 2))
    node.poll(0.4, 0)
    assert node.active.acknowledged == {1: 1}
