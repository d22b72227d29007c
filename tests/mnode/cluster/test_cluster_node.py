"""One node of a cluster as a whole: when its tenure begins."""

from __future__ import annotations

from kits.cluster.memory_logs import MemoryNode

from penstock.mnode.cluster.cluster_node import ClusterNode, ClusterSettings
from penstock.mnode.cluster.cluster_registry import (
    ClusterRecord,
    LeaseHolder,
    RegistryAnswer,
    RegistryOutcome,
    RegistrySeen,
    RenewLease,
)
from penstock.mnode.cluster.synchronous_set import SynchronousSet


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
