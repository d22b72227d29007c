"""The rate limits of a source task: rows of the log, and rows that are read back from the vnode's store."""

from __future__ import annotations

import math

from penstock.common.clock import Clock
from penstock.tasks.flow.token_bucket import TokenBucket, burst
from penstock.tasks.operators.state_tracker import StateTracker
from penstock.tasks.protocol.deployment import TaskSettings

_ROWS_AT_ONCE_S = 0.1
"""So many seconds' worth of rows may pass at once under a rate limit."""


class SourceRates:
    """Lets rows pass or says when they may. `allowed_at`: when those may that didn't in this step; None: all did."""

    def __init__(self, settings: TaskSettings, clock: Clock, tracker: StateTracker) -> None:
        self._settings = settings
        self._clock = clock
        self._tracker = tracker
        now, live, old = clock.monotonic(), settings.source_rows_per_second, settings.history_rows_per_second
        self._live = TokenBucket(live, burst(live, _ROWS_AT_ONCE_S), now)
        self._old = TokenBucket(old, burst(old, _ROWS_AT_ONCE_S), now)
        self.allowed_at: float | None = None

    def change(self, settings: TaskSettings) -> None:
        """Works by the rates of these settings from now on."""
        self._settings = settings
        now, live, old = self._clock.monotonic(), settings.source_rows_per_second, settings.history_rows_per_second
        self._live.change(live, burst(live, _ROWS_AT_ONCE_S), now)
        self._old.change(old, burst(old, _ROWS_AT_ONCE_S), now)

    def live_rows_at_once(self) -> float:
        """Returns how many rows of the log may pass at once; infinity without a limit."""
        return math.inf if self._live.unlimited else burst(self._settings.source_rows_per_second, _ROWS_AT_ONCE_S)

    def live_rows_may_pass(self, rows: int) -> bool:
        """Takes so many rows of the log if they may pass now."""
        now = self._clock.monotonic()
        if self._live.try_take(rows, now):
            return True
        self._wait_until(self._live.available_at(rows, now),
                         f"its rate limit of {self._settings.source_rows_per_second:.12g} rows/s")
        return False

    def old_rows_at_once(self) -> int:
        """Returns about how many rows are read from the store at once."""
        rate = self._settings.history_rows_per_second
        most = self._settings.block_rows_max
        return most if rate == 0 else min(most, int(burst(rate, _ROWS_AT_ONCE_S)))

    def old_rows_may_pass(self) -> bool:
        """Whether the next piece may be read from the store. How many rows it has is known, and taken, afterwards."""
        now = self._clock.monotonic()
        at = self._old.available_at(1, now)
        if at > now:
            self._wait_until(at, f"its history rate limit of {self._settings.history_rows_per_second:.12g} rows/s")
        return at <= now

    def take_old_rows(self, rows: int) -> None:
        self._old.take(rows, self._clock.monotonic())

    def _wait_until(self, at: float, limit: str) -> None:
        self.allowed_at = at if self.allowed_at is None else min(at, self.allowed_at)
        self._tracker.enter("RATE_LIMITED", limit)
