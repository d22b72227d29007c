"""Waiting for conditions, the only kind of waiting that tests do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from penstock.common.clock import SystemClock


def wait_until(condition: Callable[[], Any], timeout_s: float = 60.0, what: str = "it never came true") -> Any:
    """Returns the first truthy value of `condition`; fails with `what` when it takes too long.

    A look that takes long, like a query, comes as much more seldom: it would take the time of what it waits for.
    """
    clock, never = SystemClock(), threading.Event()
    begun = clock.monotonic()
    deadline = begun + timeout_s
    while not (value := condition()):
        now = clock.monotonic()
        assert now < deadline, what
        clock.wait(never, max(0.02, now - begun))
        begun = clock.monotonic()
    return value
