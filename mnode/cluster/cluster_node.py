"""One node of a cluster: its role, and what it does as active node or as standby. Knows no clock and no socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.common.errors import InvalidStatementError, StorageError
from penstock.mnode.cluster.active_node import ActiveNode, ActiveSettings
from penstock.mnode.cluster.cluster_messages import (
    Ack,
    ClusterMessage,
    Life,
    LogState,
    NewerEpoch,
    NodeAlive,
)
from penstock.mnode.cluster.cluster_registry import RegistryAnswer, RegistryRequest, RegistrySeen
from penstock.mnode.cluster.node_role import NodeRole, Role, RoleSettings
from penstock.mnode.cluster.standby_node import StandbyNode, StandbySettings
from penstock.mnode.cluster.stored_logs import StoredNode
from penstock.mnode.cluster.synchronous_set import LogReplicas


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The numbers of all nodes of the configuration, and how each part goes about it."""

    nodes: frozenset[int]
    role: RoleSettings = field(default_factory=RoleSettings)
    active: ActiveSettings = field(default_factory=ActiveSettings)
    standby: StandbySettings = field(default_factory=StandbySettings)


@dataclass(frozen=True, slots=True)
class NodeOutput:
    """What is to be sent to other nodes, and what is to be asked of ZooKeeper."""

    messages: tuple[tuple[int, ClusterMessage], ...]
    requests: tuple[RegistryRequest, ...]


class ClusterNode:
    """One process of a node, from its start on. `process` is drawn; `replicas` tells what each log's database asks for.

    `active` is there while the node has a tenure; all written under it has its epoch.
    """

    def __init__(self, number: int, process: int, stored: StoredNode, replicas: Callable[[], Mapping[int, LogReplicas]],
                 settings: ClusterSettings) -> None:
        self.life = Life(number, stored.life())
        self.role = NodeRole(self.life, process, settings.nodes, settings.role)
        self.standby = StandbyNode(self.life, process, stored, settings.standby)
        self.active: ActiveNode | None = None
        self._stored = stored
        self._replicas = replicas
        self.settings = settings
        self._switchover_to: int | None = None

    def may_write(self, now: float) -> bool:
        """Tells whether rows may be written here now."""
        return self.active is not None and self.role.role is Role.ACTIVE and self.role.may_acknowledge(now)

    @property
    def epoch(self) -> int:
        """The largest epoch that this node knows of."""
        return self._stored.epoch()

    # --- what happens --------------------------------------------------------------------------------------------

    def seen(self, now: float, seen: RegistrySeen) -> None:
        """ZooKeeper was read."""
        self.role.seen(now, seen)
        self._act_as_decided(now)

    def answered(self, now: float, answer: RegistryAnswer) -> None:
        """ZooKeeper has answered, or will not."""
        self.role.answered(now, answer)
        self._act_as_decided(now)

    def session_lost(self, now: float, reason: str) -> None:
        """The session with ZooKeeper has ended."""
        self.role.session_lost(reason)
        self._act_as_decided(now)

    def receive(self, now: float, node: int, message: ClusterMessage) -> None:
        """Another node says something; the transport has proved which one."""
        if isinstance(message, LogState | Ack | NodeAlive | NewerEpoch):
            if self.active is not None:
                self.active.receive(now, node, message)
                if self.active.newer_epoch is not None:
                    self.active.newer_epoch = None
                    self.role.doubt(now)
        elif self.active is None:
            self.standby.receive(now, node, message)
        elif message.epoch > self.active.epoch:
            self.role.doubt(now)

    def switchover(self, now: float, node: int) -> None:
        """Begins to hand over to another node; nothing comes of it if that doesn't have everything in time.

        Raises InvalidStatementError if this node isn't active, or the other one may lack something.
        """
        if self.active is None or self.role.role is not Role.ACTIVE:
            raise InvalidStatementError("only the active node can hand over")
        members = self.active.members.current
        target = next((life for life in members.members if life.node == node and life != self.life), None)
        if target is None or not members.may_take_over(target):
            able = [life.node for life in members.members[1:members.complete]]
            raise InvalidStatementError(f"node {node} is not synchronous; synchronous nodes: {able}")
        self._switchover_to = node
        self.role.hand_over(now, target)

    def poll(self, now: float, now_ms: int) -> NodeOutput:
        """Returns what is to be done now. Call it when something has come, and a few times a second."""
        messages: list[tuple[int, ClusterMessage]] = []
        if self.active is not None:
            self.active.configure(self._replicas())
            may_acknowledge = self.role.may_acknowledge(now)
            messages += self.active.poll(now, now_ms, may_acknowledge)
            self._poll_set(now, may_acknowledge)
        else:
            levels = self._replicas()
            messages += self.standby.poll(now, lambda log: log not in levels or levels[log].wal_level > 1)
        self.role.suspects = self.active is None and self.standby.silent_s(now) >= self.settings.role.suspect_s
        length = sum(log.bounds().written for log in self._stored.logs().values())
        requests = self.role.poll(now, length)
        self._act_as_decided(now)
        return NodeOutput(tuple(messages), tuple(requests))

    def _poll_set(self, now: float, may_acknowledge: bool) -> None:
        assert self.active is not None
        if self.role.role is Role.HANDING_OVER:
            if may_acknowledge and self._switchover_to is not None and self.active.members.under_way is None and (
                    self.active.has_all(self._switchover_to) is not None):
                self.role.hand_over_now()
        elif may_acknowledge:
            change = self.active.change_of_set(now)
            if change is not None:
                self.role.want_set(change)

    def _act_as_decided(self, now: float) -> None:
        role, record = self.role, self.role.record
        if self.active is not None and (not role.is_active or role.epoch != self.active.epoch):
            self.active = None
        # The answer that gave the lease may be older than the lease lasts, where this process has stood still since.
        if self.active is None and role.may_acknowledge(now) and record is not None and record.epoch == role.epoch:
            self._begin(now)
        elif self.active is not None and record is not None and self.active.members.under_way == record.synchronous:
            self.active.members.written(record.synchronous)
        following = role.following
        if self.active is None and following is not None and following.active.node != self.life.node:
            self.standby.follow(now, following.epoch, following.active.node)

    def _begin(self, now: float) -> None:
        record = self.role.record
        assert record is not None
        members = record.synchronous
        was_active = self.standby.active if (
            self.standby.silent_s(now) >= self.settings.active.members.silent_after_s) else None
        # Who hands over starts its process anew: nobody waits for that either.
        silent = [life for life in members.members if life.node == was_active or life == self.role.handed_over_by]
        self.standby.leave()
        try:
            self._stored.keep_epoch(record.epoch)
            for log in self._stored.logs().values():
                # Of a database with one replica a checkpoint may have come here before the last rows that it has.
                log.parted(log.bounds().written)
            self.active = ActiveNode(now, record.epoch, members, self._stored,
                                     sorted(self.settings.nodes - {self.life.node}), self.settings.active, silent)
        except StorageError as error:
            self.role.give_up(now, f"the disk refuses: {error.message}")
