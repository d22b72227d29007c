"""Bounds on queries: how many run at once, in all and per user, how many wait, and for how long."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.common.errors import BusyError
from penstock.common.quantities import seconds_text
from penstock.mnode.query.activity import Running


@dataclass(frozen=True, slots=True)
class PlaceBounds:
    """How many run, how many of them are one user's, how many wait, and for how many seconds."""

    running: int
    running_of_user: int
    waiting: int
    wait_s: float


class _Waiter:
    """A query that waits; `turn` is set once it has its place."""

    def __init__(self, user: str | None) -> None:
        self.user = user
        self.turn = threading.Event()


class QueryPlaces:
    """Lets queries run in the order in which they come, but for users who have all theirs. Safe for many threads."""

    def __init__(self, bounds: PlaceBounds) -> None:
        self._bounds = bounds
        self._lock = threading.Lock()
        self._free = bounds.running
        self._running_of: Counter[str] = Counter()
        self._waiting: list[_Waiter] = []

    @contextmanager
    def place(self, running: Running, user: str | None = None) -> Iterator[None]:
        """Waits for a place, and keeps it; `user` None: whoever asks may have all of them.

        Raises BusyError, or what the statement is ended with meanwhile.
        """
        waiter = _Waiter(user)
        self._take(running, waiter)
        try:
            yield
        finally:
            self._give(waiter)

    def _take(self, running: Running, waiter: _Waiter) -> None:
        with self._lock:
            self._waiting.append(waiter)
            self._hand_out()
            if waiter.turn.is_set():
                return
            if len(self._waiting) > self._bounds.waiting:
                self._waiting.remove(waiter)
                raise self._busy(waiter, f"and {len(self._waiting)} wait")
        try:
            running.hold(waiter.turn.set)
            waiter.turn.wait(self._bounds.wait_s)
            running.check()
        except BaseException:
            self._leave(waiter)
            raise
        finally:
            running.let_go(waiter.turn.set)
        if not self._was_given(waiter):
            raise self._busy(waiter, f"and none has ended for {seconds_text(self._bounds.wait_s)}")

    def _was_given(self, waiter: _Waiter) -> bool:
        """Tells whether a place was given, and waits no longer."""
        with self._lock:
            if waiter not in self._waiting:
                return True
            self._waiting.remove(waiter)
            return False

    def _leave(self, waiter: _Waiter) -> None:
        if self._was_given(waiter):
            self._give(waiter)

    def _give(self, waiter: _Waiter) -> None:
        with self._lock:
            self._free += 1
            if waiter.user is not None:
                self._running_of[waiter.user] -= 1
            self._hand_out()

    def _hand_out(self) -> None:
        """Gives free places to those who have waited longest and may have one more; with the lock held."""
        for waiter in list(self._waiting):
            if not self._free:
                return
            if waiter.user is not None:
                if self._running_of[waiter.user] >= self._bounds.running_of_user:
                    continue
                self._running_of[waiter.user] += 1
            self._free -= 1
            self._waiting.remove(waiter)
            waiter.turn.set()

    def _busy(self, waiter: _Waiter, more: str) -> BusyError:
        if self._free:
            return BusyError(f"{self._bounds.running_of_user} queries of user {waiter.user} run already, {more}",
                             hint="try again, or raise queriesPerUserMax")
        return BusyError(f"{self._bounds.running} queries run already, {more}",
                         hint="try again, or raise queriesMax")
