"""Waiting for conditions, the only kind of waiting that tests do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from penstock.common.clock import SystemClock


def wait_until(condition: Callable[[], Any], timeout_s: float = 60.0, what: str = "it never came true") -> Any:
    """Returns the first truthy value of `condition`; fails with `what` when it takes too long."""
    clock, never = SystemClock(), threading.Event()
    deadline = clock.monotonic() + timeout_s
    while not (value := condition()):
        assert clock.monotonic() < deadline, what
        clock.wait(never, 0.02)
    return value
