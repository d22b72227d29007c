"""Event time at one source task: its watermark, and whether its vnode is idle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.common.clock import Clock
from penstock.planner.task_plans.stream_plan import StreamPlan
from penstock.sql.types import UNITS_PER_SECOND
from penstock.tasks.flow.outbox import Outbox
from penstock.tasks.protocol.messages import Watermark
from penstock.tasks.protocol.task_status import TimeStatus
from penstock.tasks.source.writer_times import WriterTimes


class SourceTime:
    """Follows the event time of one vnode and sends it downstream. `newest`: the greatest event time that was sent.

    `writers`: where writers say what time it is (WRITER_TIMEOUT), what they have said. A vnode is idle when its reader
    has caught up and nothing has come for `idle_timeout_s`.
    """

    def __init__(self, plan: StreamPlan, idle_timeout_s: float, clock: Clock, outbox: Outbox) -> None:
        time = plan.policies.time
        self._plan = plan
        self._clock = clock
        self._outbox = outbox
        self._idle_timeout_s = idle_timeout_s if time.idle_timeout_s is None else time.idle_timeout_s
        self.newest: int | None = None
        self.idle = False
        self._quiet_s = 0.0
        self._idle_since_ms = clock.now_ms()
        self._quiet_since = clock.monotonic()
        self._sent: Watermark | None = None
        self.writers = None if time.writer_timeout_ms is None else WriterTimes(
            time.writer_timeout_ms, UNITS_PER_SECOND[plan.source.precision] // 1_000)

    def watermark(self) -> int | None:
        if self.writers is not None:
            return self.writers.shown
        return None if self.newest is None else self.newest - self._plan.policies.watermark

    def advance(self, newest: int) -> None:
        """Takes note of the greatest event time of rows that were sent."""
        self.wake()
        self.newest = newest if self.newest is None else max(newest, self.newest)
        self.send()

    def wake(self) -> None:
        """The vnode isn't idle any more."""
        self.idle, self._quiet_s = False, 0.0

    def note_work(self) -> None:
        """The reader has found something, which need not be rows."""
        self._quiet_since = self._clock.monotonic()

    def send(self) -> bool:
        """Tells downstream what time it is, if that is news; returns whether it was."""
        if not self._plan.keeps_time:
            return False
        watermark = Watermark(self.watermark(), self.idle, self._quiet_s)
        if watermark == self._sent:
            return False
        self._outbox.signal(watermark)
        self._sent = watermark
        return True

    def become_idle(self) -> bool:
        """Lets the clock do its part where there is nothing to read; returns whether that was sent on."""
        if self.writers is not None:
            self.writers.advance_by_clock(self._clock.now_ms())
            if self.send():
                return self._outbox.flush()
        if self.idle or not self._plan.keeps_time:
            return False
        if self._clock.monotonic() < self._quiet_since + self._idle_timeout_s:
            return False
        self.idle = True
        self._quiet_s = self._clock.monotonic() - self._quiet_since
        self._idle_since_ms = self._clock.now_ms()
        self.send()
        return self._outbox.flush()

    def due(self) -> float | None:
        """Returns when the clock alone gives `become_idle` something to do (monotonic), or None."""
        if not self._plan.keeps_time:
            return None
        deadlines = [] if self.idle else [self._quiet_since + self._idle_timeout_s]
        if self.writers is not None:
            now_ms = self._clock.now_ms()
            at_ms = self.writers.next_timeout_ms(now_ms)
            deadlines += [] if at_ms is None else [self._clock.monotonic() + (at_ms - now_ms) / 1000]
        return min(deadlines, default=None)

    def status(self) -> TimeStatus:
        if not self._plan.source.timed:
            return TimeStatus()
        return TimeStatus(self.watermark(), self.newest, self.newest if self.writers is None else self.writers.upper,
                          self.idle, self._idle_since_ms if self.idle else None)

    def save(self) -> dict[str, Any]:
        return {"max_ts": self.newest, "idle": self.idle,
                "writers": None if self.writers is None else self.writers.save()}

    def restore(self, meta: Mapping[str, Any]) -> None:
        self.newest, self.idle = meta["max_ts"], meta["idle"]
        if self.writers is not None:
            self.writers.restore(meta["writers"])
