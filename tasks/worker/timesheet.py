"""How long each task of a runner has been at work: who is busy, who waits. Costs one look at the clock per step."""

from __future__ import annotations

from dataclasses import replace

from penstock.common.clock import Clock
from penstock.tasks.protocol.task_status import TaskStatus

_LONG_STEP_S = 1.0


class Timesheet:
    """Seconds that tasks, by their places in the runner's order, have spent in their steps.

    The runner's thread writes it, others may read it meanwhile: a step that takes long shows while it is under way.
    """

    def __init__(self, clock: Clock, tasks: int) -> None:
        self._monotonic = clock.monotonic
        self._busy = [0.0] * tasks
        self._place: int | None = None
        self._since = self._begun = clock.monotonic()

    def turn_to(self, place: int | None) -> None:
        """Ends the step that is under way, and begins one of the task at `place` (None: nobody's)."""
        now = self._monotonic()
        if self._place is not None:
            self._busy[self._place] += now - self._since
        # A reader between these lines must rather miss a step's time than count it twice.
        self._since, self._place = now, place

    def filled_in(self, statuses: tuple[TaskStatus, ...], answered_at: float | None = None) -> tuple[TaskStatus, ...]:
        """Returns the statuses, in the tasks' order, with `busy_s` and `elapsed_s` as of now.

        `answered_at`: when the tasks gave them (monotonic seconds), if that is a while ago because one of them is in a
        long step. Those that were blocked then still are, since only this thread could have changed that.
        """
        now = self._monotonic()
        place, since = self._place, self._since
        behind = 0.0 if answered_at is None else now - answered_at
        filled = []
        for n, status in enumerate(statuses):
            in_step = max(0.0, now - since) if n == place else 0.0
            spent = status.spent._replace(
                busy_s=self._busy[n] + in_step, elapsed_s=now - self._begun, unanswered_s=behind)
            if behind and n != place and spent.blocked_now_s:
                spent = spent._replace(blocked_s=spent.blocked_s + behind, blocked_now_s=spent.blocked_now_s + behind)
            elif answered_at is not None and n == place:
                reason = f"in the same step for {in_step:.0f} s" if in_step >= _LONG_STEP_S else ""
                status = replace(status, state="RUNNING", reason=reason, blocked_by=None)
                spent = spent._replace(blocked_now_s=0.0)
            filled.append(replace(status, spent=spent))
        return tuple(filled)
