"""Whether a source task takes in what its vnode's log has: by what the task reports, and what was written. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.tasks.protocol.task_status import LogProgress, TaskStatus
from penstock.vnode.read.vnode_reader import LoggedRows

_SURE_AFTER_S = 0.9
"""A task that has read on between two heartbeats says so in the second one; they are a second apart by default."""


@dataclass(frozen=True, slots=True)
class IntakeFault:
    """What a source task doesn't take in.

    `unread_s`: for so long it has left rows or deletes unread although nothing kept it from reading; None: it hasn't.
    `behind`: how many records it hasn't read. `passed_over`: how many rows before these.
    """

    unread_s: float | None
    behind: int
    passed_over: int


class IntakeWatch:
    """Watches one source task for as long as its attempt lasts. `now` is monotonic seconds."""

    def __init__(self) -> None:
        self._before: LoggedRows | None = None
        self._position: int | None = None
        self._at = 0.0
        self._since: float | None = None  # it was seen to read nothing there, though there was more
        self._behind = 0
        self._skipped_to = 0
        # How many rows more the log had had than the task had read, when that had come to the end for the first time.
        self._surplus: int | None = None
        self._passed_over = 0

    def observe(self, status: TaskStatus, logged: LoggedRows | None, now: float) -> None:
        """Takes note of a status, and of what the log had then or since."""
        if logged is None or status.spent.unanswered_s or status.log.processed_version is None:
            return
        before, self._before = self._before, logged
        if before is not None and before.life is not logged.life:
            before, self._surplus = None, None
        self._at = now
        position = status.log.processed_version
        # What isn't acknowledged yet can't be read yet: then what was there at the last look counts.
        acknowledged = [one for one in (logged, before) if one is not None and one.version <= logged.acknowledged]
        readable = acknowledged[0] if acknowledged else None
        moved, self._position = position != self._position, position
        unread = readable is not None and position < readable.version
        # Rows in its queue were read; what keeps it from computing them is told of its state.
        if not unread or status.state != "IDLE" or status.queues.input_bytes:
            self._since = None
        elif moved or self._since is None:
            self._since = now
        self._behind = max(0, logged.acknowledged - position)
        if readable is not None and not unread and status.log.rows_read is not None:
            self._compare(status.log, readable.rows - status.log.rows_read, whole=readable is logged)

    def fault(self, now: float) -> IntakeFault | None:
        """Returns what is wrong, None if nothing is."""
        unread = self._since is not None and self._at - self._since >= _SURE_AFTER_S
        if not unread and not self._passed_over:
            return None
        return IntakeFault(now - self._since if unread and self._since is not None else None, self._behind,
                           self._passed_over)

    def _compare(self, log: LogProgress, surplus: int, *, whole: bool) -> None:
        """Takes note of how many rows more the log has had, up to where the task is, than the task has read.

        `whole`: the task is at the end, else it may have read rows behind those.
        """
        if log.skipped_to != self._skipped_to:
            self._skipped_to, self._surplus = log.skipped_to, None
        if self._surplus is not None:
            self._passed_over = max(self._passed_over, surplus - self._surplus)
        elif whole:
            self._surplus = surplus
