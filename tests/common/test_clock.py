"""What clocks tell."""

from __future__ import annotations

import threading
import time

from penstock.common.clock import SystemClock


def test_processor_time_is_the_calling_threads() -> None:
    """What other threads compute meanwhile isn't in it; what the caller does, is."""
    clock = SystemClock()

    def compute() -> None:
        begun = time.thread_time()
        while time.thread_time() - begun < 0.2:
            pass

    before = clock.processor()
    other = threading.Thread(target=compute)
    other.start()
    other.join()
    assert clock.processor() - before < 0.1
    compute()
    assert clock.processor() - before >= 0.2
