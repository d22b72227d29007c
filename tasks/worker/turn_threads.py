"""The few threads on which a worker's streams have their turns, however many streams there are."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.common.clock import Clock
from penstock.tasks.worker.turns import Seat, TurnQueue

_PATIENCE_S = 0.003


class TurnThreads:
    """Gives seats their turns. `close` lets the threads end.

    While one thread is at work the others sleep, even if more seats want turns: they all want the interpreter, and
    changing threads costs more than most turns take. Another thread wakes only if somebody has waited too long, since
    a turn takes long. Threads start when they are needed first.
    """

    def __init__(self, clock: Clock, queue: TurnQueue, threads_max: int) -> None:
        self._clock = clock
        self._queue = queue
        self._threads_max = threads_max
        self._lock = threading.Lock()
        self._threads = 0
        self._at_work = 0
        self._asleep: list[threading.Event] = []  # the one that fell asleep last is last
        self._watched: float | None = None  # until when a sleeping thread lets itself be called by the clock
        self._closed = False

    def seat(self, take_turn: Callable[[], float | None]) -> Seat:
        """Returns a new seat, which rests."""
        return Seat(take_turn)

    def wake(self, seat: Seat, *, at_once: bool = False) -> None:
        """Sees to it that a turn of the seat begins after this call. Any thread, cheap."""
        with self._lock:
            now = self._clock.monotonic()
            self._queue.wake(seat, now, at_once=at_once)
            self._see_to(now)

    def look(self) -> None:
        """Sees to it that nobody waits for a turn while threads sleep; for whoever comes by now and then."""
        with self._lock:
            self._see_to(self._clock.monotonic())

    def remove(self, seat: Seat) -> None:
        """Gives no more turns to a seat; one that is under way goes on."""
        with self._lock:
            self._queue.remove(seat)

    def close(self) -> None:
        """Lets all threads end after the turns that are under way."""
        with self._lock:
            self._closed = True
            for event in self._asleep:
                event.set()
            self._asleep.clear()

    def _see_to(self, now: float) -> None:
        """Wakes a thread if nobody would give the next turn in time; with the lock held."""
        since = self._queue.waits_since(now)
        if since is not None:
            if not self._at_work or now - since > _PATIENCE_S:
                self._call_thread()
        elif not self._at_work and self._unwatched_due() is not None:
            self._call_thread()

    def _unwatched_due(self) -> float | None:
        """Returns when the clock brings the next turn if no thread would notice."""
        due = self._queue.next_due()
        return due if due is not None and (self._watched is None or due < self._watched) else None

    def _call_thread(self) -> None:
        if self._asleep:
            # Counted at once: whoever comes before it is awake must not wake another.
            self._at_work += 1
            self._asleep.pop().set()
        elif self._threads < self._threads_max and not self._closed:
            self._threads += 1
            self._at_work += 1
            threading.Thread(target=self._run, name=f"streams {self._threads}", daemon=True).start()

    def _run(self) -> None:
        event = threading.Event()
        while True:
            with self._lock:
                if self._closed:
                    return
                now = self._clock.monotonic()
                seat = self._queue.take(now)
                if seat is None:
                    self._at_work -= 1
                    due = None if self._at_work else self._unwatched_due()
                    self._watched = self._watched if due is None else due
                    event.clear()
                    self._asleep.append(event)
            if seat is None:
                self._sleep(event, None if due is None else max(0.0, due - now))
                continue
            next_at = seat.take_turn()
            with self._lock:
                self._queue.done(seat, self._clock.monotonic(), next_at)

    def _sleep(self, event: threading.Event, timeout_s: float | None) -> None:
        if timeout_s is None:
            event.wait()
            return
        called = self._clock.wait(event, timeout_s)
        with self._lock:
            self._watched = None
            if not called and not event.is_set():
                self._asleep.remove(event)
                self._at_work += 1
