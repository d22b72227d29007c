"""One log of a standby: told to the active node, cut where the two part, then written as the active's records come.

Knows no clock and no socket: messages come in, messages go out, `now` is the monotonic clock in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.common.errors import PenstockError, StorageError
from penstock.mnode.cluster.cluster_messages import Ack, Append, Life, LogMatch, LogState
from penstock.mnode.cluster.log_epochs import NO_EPOCH, cut_to
from penstock.mnode.cluster.stored_logs import LogBounds, StoredLog


@dataclass(frozen=True, slots=True)
class FollowingSettings:
    """Seconds after which a question is asked again, and a disk that has refused is tried again."""

    ask_again_after_s: float = 1.0


class FollowingPhase(Enum):
    """What a standby does with a log."""

    ALONE = "knows no active node"
    ASKING = "has told the active what it has, and waits to be told where to cut"
    MATCHED = "has a prefix of the active's log, and writes what comes"
    COPYING = "needs a copy of the vnode: only now may the log be replaced"


class LogFollowing:
    """One log of a standby, for one session of its process.

    `problem`: why a copy is needed, or why the disk has refused, until it works again; None: neither.
    """

    def __init__(self, log: int, stored: StoredLog, life: Life, session: int, settings: FollowingSettings) -> None:
        self.phase = FollowingPhase.ALONE
        self.problem: str | None = None
        self._log = log
        self._stored = stored
        self._life = life
        self._session = session
        self._settings = settings
        self._epoch = NO_EPOCH
        self._request = 0
        self._ask_at = 0.0
        self._ack_due = False
        self._gap = False
        self._acknowledged = 0

    def follow(self, now: float, epoch: int) -> None:
        """There is an active node of a new epoch: what this log has in common with that one's is to be asked."""
        self._epoch = epoch
        self.problem = None
        self._acknowledged = 0
        self._ask(now)

    def leave(self) -> None:
        """There is no active node to follow any more."""
        self.phase = FollowingPhase.ALONE
        self.problem = None
        self._ack_due = False

    def copied(self, now: float, stored: StoredLog) -> None:
        """The vnode is a copy now, with this log."""
        self._stored = stored
        self.problem = None
        if self.phase is not FollowingPhase.ALONE:
            self._ask(now)

    @property
    def readable(self) -> tuple[int, int]:
        """The first and the last version of this node's log."""
        bounds = self._stored.bounds()
        return bounds.begin, bounds.written

    def on_match(self, now: float, message: LogMatch) -> None:
        """The active tells where to cut; only the answer to the last question counts."""
        if not self._concerns(message.epoch, message.session) or message.request != self._request:
            return
        if self.phase is FollowingPhase.COPYING:
            return  # that is known; and what comes ahead of the copy, checkpoints, must stay
        if message.copy_reason is not None and self.phase is FollowingPhase.MATCHED:
            # What was acknowledged since must count no more when the log is replaced: the active is told first.
            self._ask(now)
        elif message.copy_reason is not None:
            self._need_copy(now, message.version, message.copy_reason)
        elif self.phase is FollowingPhase.ASKING:
            bounds = self._stored.bounds()
            if message.version < bounds.floor:
                self._need_copy(now, message.version, f"what the log says up to version {bounds.floor} can't be taken "
                                f"back, and the active has it up to {message.version} only")
            elif message.version <= bounds.written:
                self._cut(now, message.version, bounds)

    def on_append(self, now: float, message: Append) -> None:
        """Records come; they are written if they follow what is there."""
        if not self._concerns(message.epoch, message.session) or self.phase is not FollowingPhase.MATCHED:
            return
        chunk, written = message.chunk, self._stored.bounds().written
        self._ack_due = True
        if chunk.after == written:
            try:
                epochs = self._stored.epochs()
                if not epochs or epochs[-1].epoch < chunk.start.epoch:
                    self._stored.note_epoch(chunk.start)
                self._stored.append(chunk)
            except PenstockError as error:
                self._disk_refused(now, error.message)
                return
        elif chunk.last > written:
            self._gap = True
        self.acknowledge(message.acknowledged)

    def acknowledge(self, version: int) -> None:
        """The cluster's log is never cut below `version`, so this one may be read that far, if it follows."""
        if self.phase is not FollowingPhase.MATCHED:
            return
        version = min(version, self._stored.bounds().written)
        if version > self._acknowledged:
            self._acknowledged = version
            self._stored.acknowledge(version)

    def poll(self, now: float, sync: bool) -> list[LogState | Ack]:
        """Returns what to tell the active now; makes durable what is written if it is to `sync`.

        Call it when what has come is handled, so that many chunks are synced and acknowledged at once.
        """
        if self.phase is FollowingPhase.ASKING and now >= self._ask_at:
            self._ask_at = now + self._settings.ask_again_after_s
            bounds = self._stored.bounds()
            return [LogState(self._epoch, self._session, self._life, self._log, self._request, self._stored.epochs(),
                             bounds.written, bounds.synced, bounds.floor)]
        if self.phase is not FollowingPhase.MATCHED:
            return []
        bounds = self._stored.bounds()
        if sync and bounds.synced < bounds.written:
            try:
                self._stored.sync()
            except StorageError as error:
                self._disk_refused(now, error.message)
                return []
            bounds = self._stored.bounds()
            self._ack_due = True
        if not self._ack_due:
            return []
        ack = Ack(self._epoch, self._session, self._log, self._request, bounds.written, bounds.synced, self._gap)
        self._ack_due = self._gap = False
        self.problem = None
        return [ack]

    def _concerns(self, epoch: int, session: int) -> bool:
        return epoch == self._epoch and session == self._session and self.phase is not FollowingPhase.ALONE

    def _ask(self, now: float) -> None:
        self.phase = FollowingPhase.ASKING
        self._request += 1
        self._ask_at = now
        self._ack_due = self._gap = False

    def _cut(self, now: float, version: int, bounds: LogBounds) -> None:
        epochs = self._stored.epochs()
        try:
            if version < bounds.written:
                self._stored.parted(version)
            if version < bounds.written or cut_to(epochs, version) != epochs:
                self._stored.cut(version)
        except PenstockError as error:
            self._disk_refused(now, error.message)
            return
        self.phase = FollowingPhase.MATCHED
        self._ack_due = True

    def _need_copy(self, now: float, version: int, reason: str) -> None:
        try:
            self._stored.parted(version)
        except PenstockError as error:
            self._disk_refused(now, error.message)
            return
        self.phase = FollowingPhase.COPYING
        self.problem = reason

    def _disk_refused(self, now: float, reason: str) -> None:
        self.problem = reason
        self._ask(now)
        self._ask_at = now + self._settings.ask_again_after_s
