"""Time as an argument. The only module that may read the system's clocks or wait."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """What tasks and the coordinator know of time."""

    def now_ms(self) -> int:
        """Returns the wall clock: milliseconds since 1970-01-01 UTC. May jump either way."""
        ...

    def monotonic(self) -> float:
        """Returns seconds from an arbitrary start; never goes back."""
        ...

    def processor(self) -> float:
        """Returns the seconds of processor time that the calling thread has taken."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Waits until `event` is set or `timeout_s` have passed; returns whether it is set."""
        ...


class SystemClock:
    """The machine's own clock."""

    # Runners look at it for every step of every task: no call in between.
    monotonic = staticmethod(time.monotonic)
    processor = staticmethod(time.thread_time)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)


class ManualClock:
    """A clock that moves only when told to; for tests and the simulation."""

    def __init__(self, now_ms: int = 1_600_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0
        self._processor = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def processor(self) -> float:
        return self._processor

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.advance(timeout_s)
        return event.is_set()

    def advance(self, seconds: float) -> None:
        """Moves both clocks forward by `seconds`."""
        self._monotonic += seconds
        self._now_ms += round(seconds * 1000)

    def compute(self, seconds: float) -> None:
        """Has whoever calls take so much processor time, and nobody else do anything meanwhile."""
        self._processor += seconds
        self.advance(seconds)

    def step_wall(self, milliseconds: int) -> None:
        """Moves only the wall clock, as an NTP step would; may be negative."""
        self._now_ms += milliseconds
