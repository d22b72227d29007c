"""The named state a task is in, with a reason and since when; changes only when something really changed."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.common.clock import Clock
from penstock.tasks.messages import TaskState


@dataclass(frozen=True, slots=True)
class NamedState:
    name: TaskState
    reason: str
    since_ms: int
    blocked_by: str | None = None


class StateTracker:
    """Holds a task's state; `since_ms` is when the name of the state last changed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.current = NamedState("STARTING", "", clock.now_ms())

    def enter(self, name: TaskState, reason: str = "", blocked_by: str | None = None) -> None:
        """Enters a state; staying in the same one keeps its `since_ms`."""
        current = self.current
        if (current.name, current.reason, current.blocked_by) == (name, reason, blocked_by):
            return
        since_ms = current.since_ms if current.name == name else self._clock.now_ms()
        self.current = NamedState(name, reason, since_ms, blocked_by)
