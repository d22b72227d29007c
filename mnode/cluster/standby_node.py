"""The standby's side: all of its logs follow those of the active node, and it says that it is there.

Knows no clock and no socket: messages come in, messages go out, `now` is the monotonic clock in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.common.errors import StorageError
from penstock.mnode.cluster.cluster_messages import (
    Append,
    Life,
    LogMatch,
    NewerEpoch,
    NodeAlive,
    NodeHeartbeat,
    ToActive,
    ToStandby,
)
from penstock.mnode.cluster.log_epochs import NO_EPOCH
from penstock.mnode.cluster.log_following import FollowingPhase, FollowingSettings, LogFollowing
from penstock.mnode.cluster.stored_logs import StoredLog, StoredNode


@dataclass(frozen=True, slots=True)
class StandbySettings:
    """How logs are followed. After `silence_s` without a word from the active all is asked anew."""

    following: FollowingSettings = field(default_factory=FollowingSettings)
    silence_s: float = 5.0


class StandbyNode:
    """One process of one node while it isn't active. `as_of_ms`: the time of the active's wall clock at which all that
    was acknowledged is here; None if that isn't known."""

    def __init__(self, life: Life, session: int, stored: StoredNode, settings: StandbySettings) -> None:
        self.active: int | None = None
        self.as_of_ms: int | None = None
        self.logs: dict[int, LogFollowing] = {}
        self._life = life
        self._session = session
        self._stored = stored
        self._settings = settings
        self._epoch = NO_EPOCH
        self._heard_at = 0.0
        self._heartbeat: NodeHeartbeat | None = None
        self._replies: list[tuple[int, ToActive]] = []

    def follow(self, now: float, epoch: int, node: int) -> None:
        """Node `node` is active in `epoch`. Older news, and a disk that can't keep the epoch, change nothing."""
        if epoch < self._stored.epoch() or (epoch == self._epoch and self.active == node):
            return
        try:
            self._stored.keep_epoch(epoch)
        except StorageError:
            return
        self._epoch, self.active, self._heard_at, self._heartbeat = epoch, node, now, None
        for log in self.logs.values():
            log.follow(now, epoch)

    def leave(self) -> None:
        """There is no active node to follow any more, or it is this one."""
        self.active, self._heartbeat = None, None
        for log in self.logs.values():
            log.leave()

    def receive(self, now: float, node: int, message: ToStandby) -> None:
        """The active node says something. Who is behind is told."""
        if message.epoch < self._stored.epoch():
            self._replies.append((node, NewerEpoch(self._stored.epoch())))
            return
        self.follow(now, message.epoch, node)
        if node != self.active or message.epoch != self._epoch:
            return
        if now - self._heard_at > self._settings.silence_s:
            for log in self.logs.values():
                log.follow(now, self._epoch)
        self._heard_at = now
        match message:
            case NodeHeartbeat():
                self._on_heartbeat(message)
            case LogMatch() if message.log in self.logs:
                self.logs[message.log].on_match(now, message)
            case Append() if message.log in self.logs:
                self.logs[message.log].on_append(now, message)
            case _:
                pass

    def silent_s(self, now: float) -> float:
        """Returns for how long the active node has said nothing; 0 if none is known."""
        return 0.0 if self.active is None else now - self._heard_at

    def copied(self, now: float, log: int, stored: StoredLog) -> None:
        """A log's vnode is a copy of the active's now."""
        self.logs[log].copied(now, stored)

    def poll(self, now: float, sync: Callable[[int], bool]) -> list[tuple[int, ToActive]]:
        """Returns what to send, to which nodes. `sync`: which logs are to be durable before they are acknowledged."""
        replies, self._replies = self._replies, []
        stored = self._stored.logs()
        for gone in self.logs.keys() - stored.keys():
            del self.logs[gone]
        for log, one in stored.items():
            if log not in self.logs:
                self.logs[log] = LogFollowing(log, one, self._life, self._session, self._settings.following)
                if self.active is not None:
                    self.logs[log].follow(now, self._epoch)
        if self.active is not None:
            for log, following in self.logs.items():
                replies += ((self.active, one) for one in following.poll(now, sync(log)))
        self._note_time()
        return replies

    def problems(self) -> dict[int, str]:
        """Returns the logs that can't be followed, with the reasons."""
        return {log: following.problem for log, following in self.logs.items() if following.problem is not None}

    def copies_needed(self) -> dict[int, str]:
        """Returns those of `problems` whose vnodes must be copied from the active."""
        return {log: reason for log, reason in self.problems().items()
                if self.logs[log].phase is FollowingPhase.COPYING}

    def matched(self) -> dict[int, tuple[int, int]]:
        """Returns, by log that is the active's as far as it goes, its first and its last version."""
        return {log: following.readable for log, following in self.logs.items()
                if following.phase is FollowingPhase.MATCHED}

    def _on_heartbeat(self, message: NodeHeartbeat) -> None:
        assert self.active is not None
        if self._heartbeat is None or message.number > self._heartbeat.number:
            self._heartbeat = message
        for log, version in message.acknowledged:
            if log in self.logs:
                self.logs[log].acknowledge(version)
        self._replies.append((self.active, NodeAlive(self._epoch, self._session, self._life, message.number)))

    def _note_time(self) -> None:
        beat, stored = self._heartbeat, self._stored.logs()
        if beat is not None and all(
                log in self.logs and self.logs[log].phase is FollowingPhase.MATCHED
                and log in stored and stored[log].bounds().written >= version for log, version in beat.acknowledged):
            self.as_of_ms = beat.at_ms
