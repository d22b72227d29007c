"""Orders of many threads: each is prepared by itself, and what was prepared by then is finished together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from penstock.common.clock import Clock

Order = TypeVar("Order")
Prepared = TypeVar("Prepared")

_PATIENCE_S = 0.05
"""Others don't wait for longer until an order is prepared: they go on without it."""
_HELD_S = 0.05
"""So long what is prepared may wait until others are, too."""


class _Waiting(Generic[Prepared]):
    """An order with the thread that waits for it: `news` wakes that if it has its turn, or all is done."""

    __slots__ = ("done", "error", "has_turn", "news", "prepared", "prepared_at", "size")

    def __init__(self) -> None:
        self.news = threading.Event()
        self.has_turn = False
        self.prepared: Prepared | None = None
        self.prepared_at = 0.0
        self.size = 0
        self.error: Exception | None = None
        self.done = False


class GatheredOrders(Generic[Order, Prepared]):
    """Threads prepare their orders one after the other, and the last one finishes all at once. The others sleep: so
    they don't take turns with the interpreter over what is one after the other anyhow, and what finishing costs is paid
    once. Safe for many threads."""

    def __init__(
        self, clock: Clock, prepare: Callable[[Order], Prepared],
        finish: Callable[[Sequence[Prepared]], Sequence[Exception | None]],
        size: Callable[[Prepared], int], size_max: int,
    ) -> None:
        """`finish` returns what each failed with. `size`: of what is prepared, of which `size_max` waits no longer."""
        self._clock = clock
        self._prepare = prepare
        self._finish = finish
        self._size = size
        self._size_max = size_max
        self._lock = threading.Lock()
        self._pending: deque[_Waiting[Prepared]] = deque()
        self._prepared: list[_Waiting[Prepared]] = []
        self._turn: _Waiting[Prepared] | None = None
        self._since = 0.0  # when it got its turn

    def perform(self, order: Order) -> Prepared:
        """Returns what was prepared, once it is finished. Raises what either failed with."""
        own: _Waiting[Prepared] = _Waiting()
        with self._lock:
            self._pending.append(own)
            self._move_on()
        while not own.has_turn:
            self._wait(own, self._pending)
            with self._lock:
                self._move_on()
        try:
            prepared = self._prepare(order)
            own.prepared, own.size = prepared, self._size(prepared)
        finally:
            with self._lock:
                if own.prepared is not None:
                    own.prepared_at = self._clock.monotonic()
                    self._prepared.append(own)
                if self._turn is own:
                    self._turn = None
                self._move_on()
                due = self._due()
            self._end(due)
        while not own.done:
            self._wait(own, self._prepared)
            with self._lock:
                self._move_on()
                due = self._due()
            self._end(due)
        if own.error is not None:
            raise own.error
        return prepared

    def _wait(self, own: _Waiting[Prepared], among: Sequence[_Waiting[Prepared]]) -> None:
        """Sleeps until there is news, or it is time to look whether others take long: the first one looks most often,
        so that many who wait don't wake for nothing."""
        with self._lock:
            place = among.index(own) if own in among else 0
        own.news.wait(_PATIENCE_S * (1 + place))
        own.news.clear()

    def _move_on(self) -> None:
        """Gives the next one its turn, if nobody has it, or who has it takes long; with the lock held."""
        now = self._clock.monotonic()
        if self._pending and (self._turn is None or now - self._since > _PATIENCE_S):
            self._turn, self._since = self._pending.popleft(), now
            self._turn.has_turn = True
            self._turn.news.set()
            if self._pending and not self._prepared:
                self._pending[0].news.set()  # it looks from now on

    def _due(self) -> list[_Waiting[Prepared]]:
        """Returns what is to be finished now, by who asks; with the lock held."""
        found = self._prepared
        if not found or (self._turn is not None and sum(each.size for each in found) < self._size_max
                         and self._clock.monotonic() - found[0].prepared_at <= _HELD_S):
            return []
        self._prepared = []
        return found

    def _end(self, due: Sequence[_Waiting[Prepared]]) -> None:
        if not due:
            return
        errors: Sequence[Exception | None]
        try:
            errors = self._finish([each.prepared for each in due if each.prepared is not None])
        except Exception as error:  # noqa: BLE001 - those whose orders these are raise it
            errors = [error] * len(due)
        for each, failed in zip(due, errors, strict=True):
            each.error = failed
            each.done = True
            each.news.set()
