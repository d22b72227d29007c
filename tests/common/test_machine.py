"""How busy the machine is said to be."""

from __future__ import annotations

from collections import namedtuple

import psutil
import pytest

from penstock.common.clock import ManualClock
from penstock.common.machine import Processors

Times = namedtuple("Times", ["user", "idle", "iowait"])


def test_processors_are_full_where_they_had_next_to_nothing_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two processors, in the time since somebody asked last, but no less than half a second."""
    times = [100.0, 500.0, 10.0]
    monkeypatch.setattr(psutil, "cpu_times", lambda: Times(*times))
    clock = ManualClock()
    processors = Processors(clock)

    def after(seconds: float, *, idle: float, waiting: float = 0.0) -> bool:
        clock.advance(seconds)
        for place, passed in enumerate((2 * seconds - idle - waiting, idle, waiting)):
            times[place] += passed
        return processors.are_full()

    assert not after(0.4, idle=0.0)
    assert after(0.4, idle=0.1)
    assert after(0.4, idle=0.8)
    assert not after(0.4, idle=0.0)
    assert not after(1.0, idle=0.1, waiting=0.2)
    assert after(1.0, idle=0.1)
