"""A clock that goes as fast as a test needs, for threads that rest for seconds between attempts."""

from __future__ import annotations

import threading
import time


class HurriedClock:
    """The machine's own clock, many times as fast."""

    def __init__(self, times: float = 200.0) -> None:
        self._times = times

    def now_ms(self) -> int:
        return int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return time.monotonic() * self._times

    def processor(self) -> float:
        return time.process_time() * self._times

    processors = processor

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s / self._times)
