"""How many queries run at once, how many wait for their turn, and for how long."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.common.errors import BusyError
from penstock.common.quantities import seconds_text
from penstock.mnode.activity import Running


@dataclass(frozen=True, slots=True)
class PlaceBounds:
    """How many run, how many wait, and for how many seconds."""

    running: int
    waiting: int
    wait_s: float


class QueryPlaces:
    """Lets queries run in the order in which they come. Safe for many threads."""

    def __init__(self, bounds: PlaceBounds) -> None:
        self._bounds = bounds
        self._lock = threading.Lock()
        self._free = bounds.running
        self._waiting: deque[threading.Event] = deque()

    @contextmanager
    def place(self, running: Running) -> Iterator[None]:
        """Waits for a place, and keeps it. Raises BusyError, or what the statement is ended with meanwhile."""
        self._take(running)
        try:
            yield
        finally:
            self._give()

    def _take(self, running: Running) -> None:
        with self._lock:
            if self._free and not self._waiting:
                self._free -= 1
                return
            if len(self._waiting) >= self._bounds.waiting:
                raise self._busy(f"and {len(self._waiting)} wait")
            # Whoever gives a place back gives it to the first one, by setting its event with the lock held.
            turn = threading.Event()
            self._waiting.append(turn)
        wake = turn.set
        try:
            running.hold(wake)
            turn.wait(self._bounds.wait_s)
            running.check()
        except BaseException:
            self._leave(turn)
            raise
        finally:
            running.let_go(wake)
        if not self._was_given(turn):
            raise self._busy(f"and none has ended for {seconds_text(self._bounds.wait_s)}")

    def _was_given(self, turn: threading.Event) -> bool:
        """Tells whether a place was given, and waits no longer."""
        with self._lock:
            if turn not in self._waiting:
                return True
            self._waiting.remove(turn)
            return False

    def _leave(self, turn: threading.Event) -> None:
        if self._was_given(turn):
            self._give()

    def _give(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1

    def _busy(self, more: str) -> BusyError:
        return BusyError(f"{self._bounds.running} queries run already, {more}",
                         hint="try again; queriesMax says how many run at once")
