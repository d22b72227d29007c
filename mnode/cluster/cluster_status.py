"""What a node tells of all nodes of its cluster, as far as it knows: for SHOW CLUSTER and the metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from penstock.mnode.cluster.cluster_node import ClusterNode
from penstock.mnode.cluster.log_shipping import CopyProgress
from penstock.mnode.cluster.node_role import Role

ACTIVE, STANDBY, AWAY, UNKNOWN = "active", "standby", "away", "unknown"
CUT_OFF = "ZooKeeper hasn't confirmed for a while that this node is the active one: another one may be by now"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """`lag_versions`: records of all logs that the active has and this one doesn't; `lag_s`: for how long it hasn't had
    what the active had. None: who tells it can't know. `verdict` is for people, "" if all is well. `since_ms`: when
    role or membership of the synchronous set changed last, as who tells it has seen it.
    """

    node: int
    role: str
    epoch: int | None
    synchronous: bool
    lag_versions: int | None = None
    lag_s: float | None = None
    verdict: str = ""
    since_ms: int = 0


class ClusterStatuses:
    """The newest statuses. `note` is called by the node's thread, now and then; all others read."""

    def __init__(self, nodes: Iterable[int]) -> None:
        self._nodes = sorted(nodes)
        self.newest: tuple[NodeStatus, ...] = ()

    def note(self, node: ClusterNode, now: float, now_ms: int) -> None:
        """Notes how all are now."""
        before = {one.node: one for one in self.newest}
        found = []
        for number in self._nodes:
            status = _own(node, now, now_ms) if number == node.life.node else _other(node, number, now)
            known = before.get(number)
            same = known is not None and (known.role, known.synchronous) == (status.role, status.synchronous)
            found.append(replace(status, since_ms=known.since_ms if known is not None and same else now_ms))
        self.newest = tuple(found)


def _own(node: ClusterNode, now: float, now_ms: int) -> NodeStatus:
    record, number = node.role.record, node.life.node
    epoch = None if record is None else record.epoch
    member = record is not None and node.life in record.synchronous.members
    if node.role.is_cut_off(now):
        return NodeStatus(number, UNKNOWN, epoch, member, verdict=CUT_OFF)
    if node.active is not None:
        missing = sorted({node.active.missing(log) for log in node.active.unacknowledged()})
        held = "hands over to another node" if node.role.role is Role.HANDING_OVER else "; ".join(missing)
        return NodeStatus(number, ACTIVE, node.active.epoch, True, 0, 0.0, held)
    reasons = [f"log {log} can't be followed: {reason}" for log, reason in sorted(node.standby.problems().items())]
    if record is None:
        reasons.append("no cluster is known yet: it begins when all nodes are there")
    elif node.role.following is None:
        reasons.append("no node is active")
    as_of = node.standby.as_of_ms
    return NodeStatus(number, STANDBY, epoch, member, None, None if as_of is None else max(0, now_ms - as_of) / 1000,
                      "; ".join(reasons))


def _other(node: ClusterNode, number: int, now: float) -> NodeStatus:
    record = node.role.record
    if record is None:
        return NodeStatus(number, UNKNOWN, None, False)
    member = number in [life.node for life in record.synchronous.members]
    if node.active is None:
        following = node.role.following
        active = following is not None and following.active.node == number
        return NodeStatus(number, ACTIVE if active else UNKNOWN, record.epoch, member)
    found = [watch for life, watch in node.active.watches().items() if life.node == number]
    if not found:
        return NodeStatus(number, AWAY, None, member, verdict="it hasn't been heard of in this epoch")
    watch = max(found, key=lambda one: one.heard_at)
    silent_s = now - watch.heard_at
    if silent_s > node.active.silent_after_s:
        return NodeStatus(number, AWAY, None, member, verdict=f"it says nothing for {silent_s:.0f} s")
    lag = _lag(node, watch.progress)
    behind_s = watch.behind_s(now) if lag else 0.0
    verdict = "" if member or not lag else f"it lags {lag} records behind and isn't counted"
    return NodeStatus(number, STANDBY, node.active.epoch, member, lag, behind_s, verdict)


def _lag(node: ClusterNode, progress: Mapping[int, CopyProgress]) -> int:
    assert node.active is not None
    return sum(max(0, written - progress.get(log, CopyProgress()).written)
               for log, written in node.active.written().items())
