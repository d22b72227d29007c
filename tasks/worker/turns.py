"""Whose turn it is on a worker's threads: decides, by times that it is given; has no threads itself.

Streams wait for their turns in one line. A turn has steps, and some turns are under way together: behind each step the
next stream has one. So the same tasks of many streams step one after the other, which takes less time than to change
from task to task, since a processor's caches hold the code of one. After a turn a stream rests until something
wakes it, or until a time that it has named. Under load it rests a moment longer, so that more waits for it when its
turn comes: a turn costs nearly the same for one row as for hundreds. All streams rest up to the same time, the end of
the *round*, so that a thread which is awake serves them all.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Generator
from enum import Enum, auto

_LOOK_EVERY_S = 0.1
#: So many turns. More would have caches little warmer, and results of the first ones wait for the others.
_TOGETHER = 4
_FASTER, _SLOWER, _SHORTEST_S = 1.5, 1.02, 0.001
_TOO_MUCH = 0.6  # of one processor
_USUAL_TIMES = 8  # so much longer than usual rounds last at most where turns take more than that


class Gathering:
    """How long a round lasts at least: a stream has one turn in it.

    Streams may have bounds of their own for it; those with the same bound go in rounds together. The usual bound yields
    where turns fill most of a processor: streams wait for each other then anyway, and fewer turns leave time to those
    who write rows and results, too. Where many workers share a machine, what counts is what the turns of all of them
    take: none takes much by itself, and each of them gathers as if it took as much of a processor as all do.
    """

    def __init__(self, share: float, longest_s: float) -> None:
        """`share`: of one processor's time, how much all turns together may take before streams gather, for
        `longest_s` at most where they say nothing else. Raising the share, and lowering bounds, spends processors on
        latency.
        """
        self._share = share
        self._usual_s = self._usual_now_s = longest_s
        self._bounds: Counter[float | None] = Counter()
        self._least_s = self._most_s = longest_s
        self._busy = 0.0
        self._since: float | None = None
        self._crowd = 1.0
        self.seconds = 0.0
        self.spent_s = 0.0  # of processors, by all turns

    def note_crowd(self, times: float) -> None:
        """Takes note that the turns of all workers take, of each processor, so many times as much as those of this
        one of one. Any thread."""
        self._crowd = max(1.0, times)

    def join(self, bound: float | None) -> None:
        """Takes note of a stream with this bound, None for the usual one."""
        self._bounds[bound] += 1
        self._note_bounds()

    def leave(self, bound: float | None) -> None:
        """Takes note that a stream with this bound is gone."""
        self._bounds[bound] -= 1
        self._note_bounds()

    def rest_s(self, bound: float | None) -> float:
        """Returns how long a round of streams with this bound lasts."""
        return min(self.seconds, self.bound_s(bound))

    def bound_s(self, bound: float | None) -> float:
        """Returns how long a round of streams with this bound lasts at most."""
        return self._usual_now_s if bound is None else bound

    @property
    def least_s(self) -> float:
        """How long rows of the stream that waits least may be held back now. Any thread."""
        return min(self.seconds, self._least_s)

    def _note_bounds(self) -> None:
        self._bounds = +self._bounds
        bounds = [self.bound_s(bound) for bound in self._bounds or (None,)]
        self._least_s, self._most_s = min(bounds), max(bounds)

    def _let_usual_bound_yield(self, share: float) -> None:
        """`share`: of a processor, what turns take now."""
        if share > _TOO_MUCH:
            if self.seconds >= self._usual_now_s:
                self._usual_now_s = min(self._usual_now_s * _FASTER, self._usual_s * _USUAL_TIMES * self._crowd)
        elif self._usual_now_s > self._usual_s:
            self._usual_now_s = max(self._usual_s,
                                    self._usual_now_s / (_FASTER if share < _TOO_MUCH / 2 else _SLOWER))
        self._note_bounds()

    def note_turn(self, begun: float, ended: float, spent_s: float) -> None:
        """Takes note of a turn, and of the processor's seconds that it took: on a machine that others keep busy turns
        last longer, but gathering wouldn't make them fewer or shorter by that."""
        if self._since is None:
            self._since = begun
        self._busy += spent_s
        self.spent_s += spent_s
        passed = ended - self._since
        if passed < _LOOK_EVERY_S:
            return
        allowed = self._share * passed / self._crowd
        if self._busy > allowed:
            self.seconds = min(self._most_s, max(_SHORTEST_S, self.seconds * _FASTER))
        elif self.seconds > _SHORTEST_S:
            # What they take now may be little because they gather: near the share that is found out seldom.
            self.seconds /= _FASTER if self._busy < allowed / 2 else _SLOWER
        else:
            self.seconds = 0.0
        self._let_usual_bound_yield(self._busy / passed * self._crowd)
        self._busy, self._since = 0.0, ended


class _State(Enum):
    RESTING = auto()
    QUEUED = auto()
    IN_TURN = auto()
    WOKEN = auto()  # in its turn, and to have another one
    GONE = auto()


Turn = Generator[None, None, float | None]
"""A turn, step by step: returns when the next one is to be (monotonic seconds), None: when the seat is woken."""


class Seat:
    """A stream's place. `turn` is the one that is under way, which has `spent` so many seconds of the processor.
    It `leads` if it began when none was under way. `longest_s`: what the longest step of the last one took."""

    __slots__ = ("at_once", "begun", "bound", "due", "leads", "longest_s", "queued_at", "so_far_s", "spent",
                 "state", "take_turn", "turn")

    def __init__(self, take_turn: Callable[[], Turn], bound: float | None) -> None:
        """Use `TurnQueue.seat`. `bound`: how long gathering may hold it back, None: as long as most."""
        self.take_turn = take_turn
        self.turn: Turn | None = None
        self.bound = bound
        self.state = _State.RESTING
        self.leads = False
        self.due: float | None = None
        self.begun = float("-inf")
        self.spent = self.longest_s = self.so_far_s = 0.0
        self.queued_at = 0.0
        self.at_once = False


class TurnQueue:
    """The line. Not thread-safe. All times are monotonic seconds."""

    def __init__(self, gathering: Gathering) -> None:
        self.gathering = gathering
        self._ready: deque[Seat] = deque()
        self._going_on: deque[Seat] = deque()  # between two steps of their turns
        self._room = 0  # for further turns among those that are under way together
        self._due: list[tuple[float, int, Seat]] = []
        self._numbers = itertools.count()
        self._rounds: dict[float | None, float] = {}  # when they began, by the bounds of their seats

    def seat(self, take_turn: Callable[[], Turn], longest_s: float | None = None) -> Seat:
        """Returns a new seat, which rests. `longest_s`: how long gathering may hold it back, None: as long as most."""
        self.gathering.join(longest_s)
        return Seat(take_turn, longest_s)

    def wake(self, seat: Seat, now: float, *, at_once: bool = False) -> None:
        """Sees to it that a turn of the seat begins after this call; `at_once`: without gathering before."""
        if seat.state is _State.IN_TURN or seat.state is _State.WOKEN:
            seat.state = _State.WOKEN
            seat.at_once = seat.at_once or at_once
        elif seat.state is _State.RESTING:
            self._come_back(seat, now if at_once else self._in_round(seat, now), now)

    def take(self, now: float) -> Seat | None:
        """Returns the seat whose next step begins now, of a new turn if there may be one; None if none wants one."""
        self._queue_due(now)
        leads = not self._going_on
        if leads:
            self._room = _TOGETHER
        while self._ready and self._room:
            seat = self._ready.popleft()
            if seat.state is _State.QUEUED:
                if seat.queued_at >= self._round_of(seat) + self.gathering.rest_s(seat.bound):
                    self._rounds[seat.bound] = seat.queued_at
                seat.state, seat.begun, seat.due = _State.IN_TURN, now, None
                seat.spent = seat.so_far_s = 0.0
                seat.turn = seat.take_turn()
                seat.leads = leads
                self._room -= 1
                return seat
        self._room = 0
        if not self._going_on:
            return None
        seat = self._going_on.popleft()
        seat.leads = False
        return seat

    @property
    def is_empty(self) -> bool:
        """Whether no seat waits for a step. Any thread, cheap."""
        return not (self._ready or self._going_on)

    def stepped(self, seat: Seat, took_s: float, spent_s: float) -> None:
        """Takes note that a step has ended, and that the turn goes on; `spent_s`: the processor's seconds."""
        seat.so_far_s = max(seat.so_far_s, took_s)
        seat.spent += spent_s
        self._going_on.append(seat)

    def done(self, seat: Seat, now: float, next_at: float | None, took_s: float, spent_s: float) -> None:
        """Takes note that the last step of a turn has ended; `next_at` is what the turn has returned."""
        seat.turn = None
        seat.longest_s = max(seat.so_far_s, took_s)
        self.gathering.note_turn(seat.begun, now, seat.spent + spent_s)
        if seat.state is _State.GONE:
            return
        woken, at_once = seat.state is _State.WOKEN, seat.at_once
        seat.state, seat.at_once = _State.RESTING, False
        if next_at is not None:
            self._come_back(seat, next_at if next_at <= now else self._in_round(seat, next_at), now)
        if woken:
            self.wake(seat, now, at_once=at_once)

    def remove(self, seat: Seat) -> None:
        """Gives no more turns to a seat."""
        if seat.state is not _State.GONE:
            seat.state = _State.GONE
            self.gathering.leave(seat.bound)

    def next_due(self) -> float | None:
        """Returns when the next turn comes by the clock; None if only waking brings one."""
        while self._due and not self._counts(*self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def waits(self, now: float) -> bool:
        """Tells whether a seat wants its turn now."""
        self._queue_due(now)
        return not self.is_empty

    def _in_round(self, seat: Seat, at: float) -> float:
        """Returns when a seat that wants a turn from `at` on may have one."""
        begun = self._round_of(seat)
        return at if seat.begun < begun else max(at, begun + self.gathering.rest_s(seat.bound))

    def _round_of(self, seat: Seat) -> float:
        return self._rounds.get(seat.bound, float("-inf"))

    def _come_back(self, seat: Seat, at: float, now: float) -> None:
        if at <= now:
            seat.state, seat.queued_at, seat.due = _State.QUEUED, now, None
            self._ready.append(seat)
        elif seat.state is _State.RESTING and (seat.due is None or at < seat.due):
            seat.due = at
            heapq.heappush(self._due, (at, next(self._numbers), seat))

    def _queue_due(self, now: float) -> None:
        while self._due and (self._due[0][0] <= now or not self._counts(*self._due[0])):
            at, number, seat = heapq.heappop(self._due)
            if self._counts(at, number, seat):
                seat.state, seat.queued_at, seat.due = _State.QUEUED, at, None
                self._ready.append(seat)

    def _counts(self, at: float, number: int, seat: Seat) -> bool:
        return seat.state is _State.RESTING and seat.due == at
