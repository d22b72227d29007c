"""How busy this machine is; decides nothing."""

from __future__ import annotations

import threading

import psutil

from penstock.common.clock import Clock

_LOOK_EVERY_S = 0.5
_FULL = 0.9  # of what all processors could do


class Processors:
    """The processors of the machine, whoever keeps them busy. Safe for many threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_at = clock.monotonic()
        self._passed, self._spare = _seconds()
        self._are_full = False

    def are_full(self) -> bool:
        """Tells whether they had next to nothing to spare lately: for the last half second or longer."""
        with self._lock:
            now = self._clock.monotonic()
            if now >= self._looked_at + _LOOK_EVERY_S:
                passed, spare = _seconds()
                self._are_full = spare - self._spare < (1 - _FULL) * (passed - self._passed)
                self._looked_at, self._passed, self._spare = now, passed, spare
            return self._are_full


def _seconds() -> tuple[float, float]:
    """Returns how many seconds have passed since the machine started, for all processors together, and in how many of
    them they had nothing to do."""
    times = psutil.cpu_times()
    return sum(times), times.idle + getattr(times, "iowait", 0.0)
