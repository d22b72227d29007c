"""The state that a task is in, with its reason and since when."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.common.clock import Clock
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.protocol.task_status import TaskState


@dataclass(frozen=True, slots=True)
class NamedState:
    name: TaskState
    reason: str
    since_ms: int
    blocked_by: TaskId | None = None


#: In these a task has something to hand on and can't.
BLOCKED: frozenset[TaskState] = frozenset({"BACKPRESSURED", "RATE_LIMITED", "WRITING", "RETRYING"})


@dataclass(frozen=True, slots=True)
class Blocked:
    """Seconds that a task was blocked: in all, without a break until now, by a rate limit; `limit` names the last."""

    total_s: float
    now_s: float
    limited_s: float
    limit: str


class StateTracker:
    """Holds a task's state; `since_ms` is when the name of the state last changed. Adds up how long it was blocked."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.current = NamedState("STARTING", "", clock.now_ms())
        self._blocked_s = 0.0
        self._limited_s = 0.0
        self._limit = ""
        self._blocked_since: float | None = None
        self._limited_since: float | None = None

    def enter(self, name: TaskState, reason: str = "", blocked_by: TaskId | None = None) -> None:
        """Enters a state; staying in the same one keeps its `since_ms`."""
        current = self.current
        if current.name == name and current.reason == reason and current.blocked_by == blocked_by:
            return
        since_ms = current.since_ms
        if current.name != name:
            since_ms = self._clock.now_ms()
            self._note_blocked(name)
        if name == "RATE_LIMITED":
            self._limit = reason
        self.current = NamedState(name, reason, since_ms, blocked_by)

    def blocked(self) -> Blocked:
        """Returns for how long the task has been blocked."""
        if self._blocked_since is None:
            return Blocked(self._blocked_s, 0.0, self._limited_s, self._limit)
        now = self._clock.monotonic()
        limited_s = self._limited_s + (0.0 if self._limited_since is None else now - self._limited_since)
        now_s = now - self._blocked_since
        return Blocked(self._blocked_s + now_s, now_s, limited_s, self._limit)

    def _note_blocked(self, name: TaskState) -> None:
        blocked, limited = name in BLOCKED, name == "RATE_LIMITED"
        was_blocked, was_limited = self._blocked_since is not None, self._limited_since is not None
        if blocked == was_blocked and limited == was_limited:
            return
        now = self._clock.monotonic()
        if self._limited_since is not None:
            self._limited_s += now - self._limited_since
        self._limited_since = now if limited else None
        if self._blocked_since is not None and not blocked:
            self._blocked_s += now - self._blocked_since
            self._blocked_since = None
        elif blocked and not was_blocked:
            self._blocked_since = now
