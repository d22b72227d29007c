"""Whose turn it is on a worker's threads: decides, by times that it is given; has no threads itself.

Streams wait for their turns in one line. After a turn a stream rests until something wakes it, or until a time that it
has named. Under load it rests a moment longer, so that more waits for it when its turn comes: a turn costs nearly the
same for one row as for hundreds. All streams rest up to the same time, the end of the *round*, so that a thread which
is awake serves them all.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable
from enum import Enum, auto

_LOOK_EVERY_S = 0.1
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
    GONE = auto()


class Seat:
    """A stream's place. `take_turn` returns when the next turn is to be (monotonic seconds), None: when it is woken."""

    __slots__ = ("at_once", "begun", "bound", "due", "goes_on", "queued_at", "state", "take_turn", "took", "woken")

    def __init__(self, take_turn: Callable[[], float | None], bound: float | None) -> None:
        """Use `TurnQueue.seat`. `bound`: how long gathering may hold it back, None: as long as most."""
        self.take_turn = take_turn
        self.bound = bound
        self.state = _State.RESTING
        self.due: float | None = None
        self.begun = float("-inf")
        self.took = 0.0
        self.queued_at = 0.0
        self.goes_on = False  # its turn was cut short, so that others have theirs: the rest of it comes next
        self.woken = False  # and is to have another turn behind the one that is under way; `at_once`: without gathering
        self.at_once = False


class TurnQueue:
    """The line. Not thread-safe. All times are monotonic seconds."""

    def __init__(self, gathering: Gathering) -> None:
        self.gathering = gathering
        self._ready: deque[Seat] = deque()
        self._due: list[tuple[float, int, Seat]] = []
        self._numbers = itertools.count()
        self._rounds: dict[float | None, float] = {}  # when they began, by the bounds of their seats

    def seat(self, take_turn: Callable[[], float | None], longest_s: float | None = None) -> Seat:
        """Returns a new seat, which rests. `longest_s`: how long gathering may hold it back, None: as long as most."""
        self.gathering.join(longest_s)
        return Seat(take_turn, longest_s)

    def wake(self, seat: Seat, now: float, *, at_once: bool = False) -> None:
        """Sees to it that a turn of the seat begins after this call; `at_once`: without gathering before."""
        if seat.state is _State.IN_TURN or seat.goes_on:
            seat.woken = True
            seat.at_once = seat.at_once or at_once
        elif seat.state is _State.RESTING:
            self._come_back(seat, now if at_once else self._in_round(seat, now), now)

    def take(self, now: float) -> Seat | None:
        """Returns the seat whose turn begins now; None if none wants one."""
        self._queue_due(now)
        while self._ready:
            seat = self._ready.popleft()
            if seat.state is _State.QUEUED:
                if seat.queued_at >= self._round_of(seat) + self.gathering.rest_s(seat.bound):
                    self._rounds[seat.bound] = seat.queued_at
                seat.state, seat.begun, seat.due = _State.IN_TURN, now, None
                return seat
        return None

    def done(self, seat: Seat, now: float, next_at: float | None, spent_s: float) -> None:
        """Takes note that a turn has ended; `next_at` is what it has returned, `spent_s` the processor's seconds."""
        self.gathering.note_turn(seat.begun, now, spent_s)
        seat.took = now - seat.begun
        if seat.state is _State.GONE:
            return
        seat.state = _State.RESTING
        seat.goes_on = next_at is not None and next_at <= now
        if next_at is not None:
            self._come_back(seat, next_at if seat.goes_on else self._in_round(seat, next_at), now)
        if seat.woken and not seat.goes_on:
            at_once, seat.woken, seat.at_once = seat.at_once, False, False
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
        return bool(self._ready)

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
