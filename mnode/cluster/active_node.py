"""The active node's side: all logs on their way to all standbys, and what of each log is acknowledged.

Knows no clock and no socket: messages come in, messages go out, `now` is the monotonic clock in seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from penstock.mnode.cluster.cluster_messages import (
    Ack,
    Life,
    LogState,
    NewerEpoch,
    NodeAlive,
    NodeHeartbeat,
    ToActive,
    ToStandby,
)
from penstock.mnode.cluster.log_epochs import EpochStart
from penstock.mnode.cluster.log_shipping import CopyProgress, LogShipping, ShippingSettings
from penstock.mnode.cluster.stored_logs import StoredLog, StoredNode
from penstock.mnode.cluster.synchronous_set import (
    LogReplicas,
    MemberWatch,
    SetSettings,
    SynchronousSet,
    SynchronousSetKeeper,
)

#: Processes of one node that are remembered: messages of an earlier one may still come.
_SESSIONS_MAX = 4


@dataclass(frozen=True, slots=True)
class ActiveSettings:
    """How logs are sent, who is in the set, and seconds between heartbeats."""

    shipping: ShippingSettings = field(default_factory=ShippingSettings)
    members: SetSettings = field(default_factory=SetSettings)
    heartbeat_every_s: float = 0.5


@dataclass(slots=True)
class StandbySession:
    """One process of a standby, as the active knows it."""

    watch: MemberWatch
    shippings: dict[int, LogShipping] = field(default_factory=dict)


class ActiveNode:
    """One tenure of one node. `standbys`: the numbers of the other nodes.

    `newer_epoch`: somebody has told of one, so this tenure may be over.
    """

    def __init__(self, now: float, epoch: int, current: SynchronousSet, stored: StoredNode, standbys: Iterable[int],
                 settings: ActiveSettings, silent: Collection[Life] = ()) -> None:
        """`silent`: members that have said nothing for long when the tenure begins, or start anew then.

        Raises StorageError.
        """
        self.epoch = epoch
        self.acknowledged: dict[int, int] = {}
        self.newer_epoch: int | None = None
        self.members = SynchronousSetKeeper(current.members[0], current, settings.members, now, silent)
        self.life = current.members[0]
        self._stored = stored
        self._standbys = tuple(standbys)
        self._settings = settings
        self._replicas: Mapping[int, LogReplicas] = {}
        self._sessions: dict[tuple[int, int], StandbySession] = {}
        self._inherited: dict[int, int] = {}
        self._proven: dict[int, int] = {}
        self._heartbeat = 0
        self._heartbeat_at = float("-inf")
        for log, one in stored.logs().items():
            self._inherited[log] = one.bounds().written
            self.note_epoch(one)

    def note_epoch(self, log: StoredLog) -> None:
        """Notes the epoch in a log, before the first record of the tenure. Raises StorageError."""
        epochs = log.epochs()
        if not epochs or epochs[-1].epoch < self.epoch:
            log.note_epoch(EpochStart(self.epoch, log.bounds().written + 1))

    def configure(self, replicas: Mapping[int, LogReplicas]) -> None:
        """Sets what each log's database asks for; what isn't named is never acknowledged."""
        self._replicas = dict(replicas)

    def receive(self, now: float, node: int, message: ToActive) -> None:
        """A standby says something; what isn't of this epoch changes nothing."""
        if message.epoch > self.epoch:
            self.newer_epoch = max(message.epoch, self.newer_epoch or 0)
        elif message.epoch == self.epoch and not isinstance(message, NewerEpoch):
            self._receive(now, node, message)

    def poll(self, now: float, now_ms: int, may_acknowledge: bool) -> list[tuple[int, ToStandby]]:
        """Returns what to send, to which nodes. Without the lease nothing more is acknowledged."""
        logs = self._stored.logs()
        ends = {log: one.bounds() for log, one in logs.items()}
        replicated = {log: end.written for log, end in ends.items()
                      if log in self._replicas and self._replicas[log].replicas > 1}
        messages: list[tuple[int, ToStandby]] = []
        for (node, _), session in self._sessions.items():
            for log, shipping in session.shippings.items():
                if log in logs:
                    messages += ((node, one) for one in shipping.poll(now, self.acknowledged.get(log, 0)))
            session.watch.compare(now, replicated)
        if may_acknowledge:
            latest = self._latest()
            for log, end in ends.items():
                self._acknowledge(log, logs[log], CopyProgress(end.written, end.synced), latest)
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + self._settings.heartbeat_every_s
            self._heartbeat += 1
            beat = NodeHeartbeat(self.epoch, self._heartbeat, now_ms, tuple(sorted(self.acknowledged.items())))
            messages += ((node, beat) for node in self._standbys)
        return messages

    def change_of_set(self, now: float) -> SynchronousSet | None:
        """Returns the synchronous set that ZooKeeper is to be asked for; `members.written` tells that it has it."""
        ends = {log: max(self.acknowledged.get(log, 0), self._inherited.get(log, 0)) for log in self._stored.logs()}
        known = {log: wanted for log, wanted in self._replicas.items() if log in ends}
        return self.members.change(now, self._latest().values(), known, ends)

    def has_all(self, node: int) -> Life | None:
        """Returns the life of a node that may take over and has all that is in the logs here; None if none does."""
        for life, watch in self._latest().items():
            synced = {log: one.bounds().written for log, one in self._stored.logs().items()}
            if life.node == node and self.members.current.may_take_over(life) and watch.has(synced) and all(
                    watch.progress[log].at_level(wanted.wal_level) >= synced[log]
                    for log, wanted in self._replicas.items() if log in synced):
                return life
        return None

    def copied(self) -> dict[Life, Mapping[int, CopyProgress]]:
        """Returns what each standby has of each log, as far as is known."""
        return {life: watch.progress for life, watch in self._latest().items()}

    def watches(self) -> dict[Life, MemberWatch]:
        """Returns how each standby keeps up; of each life, the process that was heard last."""
        return self._latest()

    @property
    def silent_after_s(self) -> float:
        """For how long a standby may say nothing before it counts as away."""
        return self._settings.members.silent_after_s

    def written(self) -> dict[int, int]:
        """Returns the last version of each log."""
        return {log: one.bounds().written for log, one in self._stored.logs().items()}

    def unacknowledged(self) -> list[int]:
        """Returns the logs of databases whose writers would wait for nodes that aren't there."""
        return [log for log, wanted in self._replicas.items() if self.members.needed(wanted) is None]

    def missing(self, log: int) -> str:
        """Returns what a log's writers wait for, for people."""
        wanted = self._replicas.get(log)
        if wanted is None:
            return "nobody has told how many replicas the log has"
        there = len(self.members.current.members)
        if self.members.needed(wanted) is None:
            return f"REPLICA {wanted.replicas} needs {wanted.replicas} nodes and the synchronous set has {there}"
        return "the nodes of the synchronous set have not acknowledged them"

    def kept_from(self, log: int, heard_since: float = float("-inf")) -> int | None:
        """Returns the first version of a log that some standby still needs which was heard lately; None if none does.
        """
        shippings = [session.shippings.get(log) for session in self._sessions.values()
                     if session.watch.heard_at >= heard_since]
        needed = [one.kept_from for one in shippings if one is not None and one.kept_from is not None]
        return min(needed, default=None)

    def _receive(self, now: float, node: int, message: LogState | Ack | NodeAlive) -> None:
        session = self._sessions.get((node, message.session))
        if session is None and isinstance(message, LogState) and message.life.node == node:
            session = self._open_session(now, message.life, message.session)
        if session is None:
            return
        session.watch.heard(now)
        if isinstance(message, NodeAlive):
            return
        shipping = session.shippings.get(message.log)
        if isinstance(message, LogState):
            stored = self._stored.logs().get(message.log)
            if shipping is None and stored is not None:
                shipping = LogShipping(self.epoch, message.session, message.log, stored, self._settings.shipping)
                session.shippings[message.log] = shipping
            if shipping is not None:
                shipping.on_state(now, message)
                self._proven[message.log] = max(shipping.proven, self._proven.get(message.log, 0))
        elif shipping is not None:
            shipping.on_ack(now, message)
        if shipping is not None:
            session.watch.progress[message.log] = shipping.progress

    def _open_session(self, now: float, life: Life, number: int) -> StandbySession:
        mine = [key for key in self._sessions if key[0] == life.node]
        if len(mine) >= _SESSIONS_MAX:
            del self._sessions[min(mine, key=lambda key: self._sessions[key].watch.heard_at)]
        session = self._sessions[life.node, number] = StandbySession(MemberWatch(life, number, now))
        return session

    def _latest(self) -> dict[Life, MemberWatch]:
        """Returns, of each life, the process that was heard last."""
        latest: dict[Life, MemberWatch] = {}
        for session in self._sessions.values():
            known = latest.get(session.watch.life)
            if known is None or session.watch.heard_at >= known.heard_at:
                latest[session.watch.life] = session.watch
        return latest

    def _acknowledge(self, log: int, stored: StoredLog, own: CopyProgress, latest: Mapping[Life, MemberWatch]) -> None:
        wanted = self._replicas.get(log)
        if wanted is None:
            return
        progress = {life: watch.progress[log] for life, watch in latest.items() if log in watch.progress}
        version = max(self.members.acknowledged(wanted, {**progress, self.life: own}) or 0, self._proven.get(log, 0))
        if version > self.acknowledged.get(log, 0):
            self.acknowledged[log] = version
            stored.acknowledge(version)
