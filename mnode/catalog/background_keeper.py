"""A thread that keeps something current in the background: it writes after changes, but not after each."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.common.clock import Clock
from penstock.common.errors import PenstockError
from penstock.common.logging import logger

_log = logger(__name__)

PATIENCE_S = 3600.0


class Keeper:
    """Calls `refresh` on a thread of its own after each `wake`; what fails is told once, and tried again."""

    def __init__(
        self, what: str, refresh: Callable[[], None], clock: Clock, interval_s: float, *, idle_factor: float = 0.0,
        patience_s: Callable[[], float] = lambda: PATIENCE_S,
    ) -> None:
        """`what` could not be written, messages say. From one call to the next at least `interval_s` pass, and
        `idle_factor` times as long as the last one took. `patience_s`: after how long it is called without `wake`.
        """
        self._what = what
        self._refresh = refresh
        self._clock = clock
        self._interval_s = interval_s
        self._idle_factor = idle_factor
        self._patience_s = patience_s
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._told = ""
        self._thread = threading.Thread(target=self._run, name=f"penstock keeper of {what}", daemon=True)

    def start(self) -> None:
        """Begins with a call."""
        self._wake.set()
        self._thread.start()

    def wake(self) -> None:
        """Something has changed. Cheap, from any thread."""
        if not self._wake.is_set():
            self._wake.set()

    def stop(self) -> None:
        """Ends the thread; a call that is under way is waited for."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def close(self) -> None:
        """Ends the thread, and does what is still to be done. Raises what `refresh` does."""
        self.stop()
        self._refresh()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._clock.wait(self._wake, self._patience_s())
            if self._stop.is_set():
                return
            self._wake.clear()
            begun = self._clock.monotonic()
            try:
                self._refresh()
                self._told = ""
            except PenstockError as error:
                if str(error) != self._told:  # what goes on is told once
                    _log.error("%s could not be written, and will be again: %s", self._what, error)
                self._told = str(error)
                self._wake.set()
            took = self._clock.monotonic() - begun
            self._clock.wait(self._stop, max(self._interval_s, self._idle_factor * took))
