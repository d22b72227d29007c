"""The few threads on which a worker's streams have their turns, however many streams there are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from penstock.common.clock import Clock
from penstock.tasks.worker.turns import Seat, TurnQueue

_LONG_TURN_S, _LONGEST_WAIT_S = 0.01, 0.05
_TURNS_S = 0.005


class TurnThreads:
    """Gives seats their turns. `close` lets the threads end.

    While one thread is at work the others sleep, even if more seats want turns: they all want the interpreter, and
    changing threads costs more than most turns take. Another thread wakes only if the turns that are under way are
    long. What counts is the processor time that they took: on a busy machine any turn may last long, and more threads
    would make it longer. Threads start when they are first needed.
    """

    def __init__(self, clock: Clock, queue: TurnQueue, threads_max: int,
                 after_turns: Callable[[], None] = lambda: None) -> None:
        """`after_turns` is called by each thread after some turns: always before it sleeps, and before a long turn."""
        self._clock = clock
        self._queue = queue
        self._threads_max = threads_max
        self._lock = threading.Lock()
        self._threads = 0
        self._at_work = 0
        self._after_turns = after_turns
        #: by thread, when the turn that is under way began, and the seconds of processors that it had taken by then
        self._turns: dict[int, tuple[float, float]] = {}
        self._asleep: list[threading.Event] = []  # the one that fell asleep last is last
        self._watched: float | None = None  # until when a sleeping thread lets itself be called by the clock
        self._closed = False

    def seat(self, take_turn: Callable[[], float | None], longest_s: float | None = None) -> Seat:
        """Returns a new seat, which rests; see `TurnQueue.seat`."""
        with self._lock:
            return self._queue.seat(take_turn, longest_s)

    def gathering_s(self, seat: Seat) -> float:
        """Returns how long gathering may hold a seat back now. Any thread."""
        return self._queue.gathering.rest_s(seat.bound)

    def bound_s(self, seat: Seat) -> float:
        """Returns how long gathering may hold a seat back at most. Any thread."""
        return self._queue.gathering.bound_s(seat.bound)

    def wake(self, seat: Seat, *, at_once: bool = False) -> None:
        """Sees to it that a turn of the seat begins after this call. Any thread, cheap."""
        with self._lock:
            now = self._clock.monotonic()
            self._queue.wake(seat, now, at_once=at_once)
            self._see_to(now)

    def look(self) -> bool:
        """Sees to it that nobody waits for a turn while threads sleep; for whoever comes by now and then.

        Returns whether a thread is at work.
        """
        with self._lock:
            self._see_to(self._clock.monotonic())
            return bool(self._at_work)

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
        if self._queue.waits(now):
            # A thread that was called and has no turn yet is about to take one.
            if len(self._turns) == self._at_work and all(self._is_long(thread, now) for thread in self._turns):
                self._call_thread()
        elif not self._at_work and self._unwatched_due() is not None:
            self._call_thread()

    def _is_long(self, thread: int, now: float) -> bool:
        begun, spent = self._turns[thread]
        if now - begun <= _LONG_TURN_S:
            return False
        return now - begun > _LONGEST_WAIT_S or _processor_s(thread) - spent > _LONG_TURN_S

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
        own = threading.get_ident()
        first: float | None = None  # when the first of the turns began that `after_turns` doesn't know of
        while True:
            due = None
            with self._lock:
                if self._closed:
                    return
                now = self._clock.monotonic()
                seat = self._queue.take(now)
                if seat is not None:
                    self._turns[own] = now, _processor_s(own)
                elif first is None:
                    due = self._fall_asleep(event)
            if seat is None and first is None:
                self._sleep(event, None if due is None else max(0.0, due - now))
                continue
            if first is not None and (seat is None or now - first > _TURNS_S or seat.took > _TURNS_S):
                self._after_turns()
                first = None
            if seat is not None:
                first = now if first is None else first
                next_at = seat.take_turn()
                with self._lock:
                    _, spent_before = self._turns.pop(own)
                    self._queue.done(seat, self._clock.monotonic(), next_at, _processor_s(own) - spent_before)

    def _fall_asleep(self, event: threading.Event) -> float | None:
        """Lets others know that a thread sleeps; returns until when, None: until it is called. With the lock held."""
        self._at_work -= 1
        due = None if self._at_work else self._unwatched_due()
        self._watched = self._watched if due is None else due
        event.clear()
        self._asleep.append(event)
        return due

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


def _processor_s(thread: int) -> float:
    """Returns the seconds of processors that a thread of this process has taken; it must not have ended."""
    return time.clock_gettime(time.pthread_getcpuclockid(thread))
