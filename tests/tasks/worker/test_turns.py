"""Turns of streams on a worker's threads: none is lost, none comes twice at once, and under load streams gather."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from penstock.common.clock import SystemClock
from penstock.tasks.worker.turn_threads import TurnThreads
from penstock.tasks.worker.turns import Gathering, Seat, TurnQueue

SEATS = 3
STEPS = st.lists(st.one_of(
    st.tuples(st.just("wake"), st.integers(0, SEATS - 1), st.booleans()),
    st.tuples(st.just("take")),
    st.tuples(st.just("done"), st.integers(0, SEATS - 1), st.none() | st.floats(-1, 3)),
    st.tuples(st.just("pass"), st.floats(0, 2)),
    st.tuples(st.just("remove"), st.integers(0, SEATS - 1)),
), max_size=60)


def never() -> float | None:
    """What a seat's turn is, where nobody takes it."""
    raise AssertionError


@given(steps=STEPS, longest=st.sampled_from([0.0, 0.5]),
       bounds=st.lists(st.sampled_from([None, None, 0.0, 1.0]), min_size=SEATS, max_size=SEATS))
def test_whoever_is_woken_gets_a_turn_that_begins_later(
    steps: list[tuple[object, ...]], longest: float, bounds: list[float | None]
) -> None:
    """Whatever else happens: at the end, everybody who was woken or is due has had a turn since, and nobody else."""
    queue = TurnQueue(Gathering(0.0, longest))
    seats = [queue.seat(never, bound) for bound in bounds]
    now = 0.0
    owed: dict[int, float] = {}  # by seat, from when on it must have a turn
    in_turn: set[int] = set()
    gone: set[int] = set()

    def take() -> bool:
        seat = queue.take(now)
        if seat is None:
            return False
        place = seats.index(seat)
        assert place not in in_turn
        assert place not in gone
        assert owed.pop(place) <= now
        in_turn.add(place)
        return True

    def done(place: int, next_in: float | None) -> None:
        in_turn.discard(place)
        queue.done(seats[place], now, None if next_in is None else now + next_in, 0.0)
        if next_in is not None and place not in gone:
            owed[place] = min(owed.get(place, float("inf")), now + max(0.0, next_in))

    for kind, *rest in steps:
        match kind, *rest:
            case "wake", int(place), bool(at_once):
                queue.wake(seats[place], now, at_once=at_once)
                if place not in gone:
                    owed[place] = min(owed.get(place, float("inf")), now)
            case "take",:
                take()
            case "done", int(place), (float() | None) as next_in:
                if place in in_turn:
                    done(place, next_in)
            case "pass", float(seconds):
                now += seconds
            case "remove", int(place):
                queue.remove(seats[place])
                gone.add(place)
                owed.pop(place, None)
    for place in list(in_turn):
        done(place, None)
    now += 1.0
    due = queue.next_due()
    while take() or due is not None:
        for place in list(in_turn):
            done(place, None)
        due = queue.next_due()
        now = max(now, due or now)
    assert not owed


PLACES = st.integers(0, SEATS - 1)
ONE_THREAD = st.lists(st.one_of(
    st.tuples(st.just("wake"), PLACES, st.booleans()),
    st.tuples(st.just("turn"), st.sampled_from([0.0, 0.001, 0.005, 0.05]), st.lists(st.tuples(PLACES, st.booleans()),
                                                                                  max_size=2),
              st.sampled_from(["cut", "cut", "woken", "soon", "late", "past"])),
    st.tuples(st.just("pass"), st.sampled_from([0.001, 0.01, 0.1])),
), min_size=30, max_size=60)


@given(steps=ONE_THREAD, gathers=st.booleans(),
       bounds=st.lists(st.sampled_from([None, None, 0.0, 0.1]), min_size=SEATS, max_size=SEATS))
def test_whoever_is_woken_in_a_turn_that_is_cut_short_has_another_one_behind_its_rest(
    steps: list[tuple[object, ...]], gathers: bool, bounds: list[float | None]
) -> None:
    """While it waits for that, the thread rests for no longer than rows may gather, and not at all if it is called at
    once: what keeps it waiting otherwise are turns."""
    queue = TurnQueue(Gathering(0.0 if gathers else 1.0, 0.02))
    queue.gathering.seconds = 0.02 if gathers else 0.0
    seats = [queue.seat(never, bound) for bound in bounds]
    now = 0.0
    goes_on = [False] * SEATS  # its turn was cut short
    rested: dict[int, float] = {}  # by seat that was woken, how long the thread has rested since
    at_once: set[int] = set()
    longest = [0.0] * SEATS

    def wake(place: int, prompt: bool) -> None:
        queue.wake(seats[place], now, at_once=prompt)
        rested.setdefault(place, 0.0)
        if prompt:
            at_once.add(place)

    def turn(seconds: float, wakes: list[tuple[int, bool]], end: str) -> bool:
        nonlocal now
        seat = queue.take(now)
        if seat is None:
            return False
        place, begun = seats.index(seat), now
        if not goes_on[place]:
            rested.pop(place, None)
            at_once.discard(place)
        now += seconds
        for other, prompt in wakes:
            wake(other, prompt)
        goes_on[place] = end == "cut"
        named = {"cut": begun, "woken": None, "soon": now + 0.002, "late": now + 1.0, "past": now - 1.0}
        queue.done(seat, now, named[end], seconds)
        return True

    def rest(seconds: float) -> None:
        nonlocal now
        while seconds > 0.0 and not queue.waits(now):
            due = queue.next_due()
            passed = seconds if due is None else min(seconds, due - now)
            for place in rested:
                longest[place] = max(longest[place], queue.gathering.bound_s(bounds[place]))
                rested[place] += passed
                assert rested[place] <= (0.0 if place in at_once else longest[place] + 1e-6)
            now = now + passed if due is None or passed < due - now else due
            seconds -= passed

    for kind, *rest_of in steps:
        match kind, *rest_of:
            case "wake", int(place), bool(prompt):
                wake(place, prompt)
            case "turn", float(seconds), list(wakes), str(end):
                turn(seconds, wakes, end)
            case "pass", float(seconds):
                rest(seconds)
    for _ in range(10 * SEATS):
        if not turn(0.001, [], "woken"):
            rest(0.2)
    assert not rested


def test_streams_gather_only_while_they_take_more_than_their_share() -> None:
    """From a fifth of a processor on they rest ever longer, up to the bound; then ever less, until not at all."""
    gathering = Gathering(0.2, 0.02)
    now, rests = 0.0, []
    for busy in [0.01] * 20 + [0.05] * 60 + [0.001] * 60:
        gathering.note_turn(now, now + 0.09, busy)  # on a busy machine they last long, whatever they take
        now += 0.1
        rests.append(gathering.seconds)
    assert set(rests[:20]) == {0.0}
    assert rests[20:80] == sorted(rests[20:80])
    assert max(rests) == 0.02
    assert rests[-1] == 0.0


def test_the_usual_bound_yields_where_turns_fill_a_processor() -> None:
    """Rounds last longer until turns take less than too much, eight times as long at most; then ever less again. A
    bound that a stream has of its own never yields."""
    gathering = Gathering(0.2, 0.02)
    usual, own = None, 0.02  # of its own, and kept, though it is as long as the usual one
    gathering.join(usual)
    gathering.join(own)
    now, rests = 0.0, []
    for busy in [0.05] * 60 + [0.09] * 60 + [0.001] * 60:
        gathering.note_turn(now, now + 0.1, busy)
        now += 0.1
        rests.append(gathering.rest_s(usual))
        assert gathering.rest_s(own) <= 0.02
    assert max(rests[:60]) == 0.02
    assert rests[60:120] == sorted(rests[60:120])
    assert max(rests) == 0.16
    assert rests[-1] == 0.0
    gathering = Gathering(0.2, 0.02)
    gathering.join(None)
    now = 0.0
    for _ in range(300):  # ten streams whose turns cost 4 ms each, however many rows they have
        round_s = max(0.04, gathering.rest_s(None))
        gathering.note_turn(now, now + round_s, 0.04)
        now += round_s
    assert 0.06 <= gathering.rest_s(None) <= 0.09


def test_where_workers_share_a_machine_what_all_of_them_take_counts() -> None:
    """One of twenty workers on two processors gathers long before its own turns fill one, and for up to ten times as
    long; a worker that takes next to nothing doesn't gather; alone again, it gathers no more than before."""
    gathering = Gathering(0.2, 0.02)
    gathering.join(None)
    gathering.note_crowd(10.0)
    now, rests = 0.0, []
    for busy in [0.001] * 20 + [0.004] * 60 + [0.009] * 100 + [0.001] * 100:
        gathering.note_turn(now, now + 0.1, busy)
        now += 0.1
        rests.append(gathering.rest_s(None))
    assert set(rests[:20]) == {0.0}
    assert max(rests[:80]) == 0.02
    assert max(rests[80:180]) == 1.6
    assert rests[-1] == 0.0
    gathering.note_crowd(1.0)
    for _ in range(100):
        gathering.note_turn(now, now + 0.1, 0.09)
        now += 0.1
    assert gathering.rest_s(None) == 0.16


def test_a_stream_that_gathers_waits_and_one_that_is_stopped_does_not() -> None:
    """What comes while it rests waits for the rest's end, but orders don't."""
    queue = TurnQueue(Gathering(0.0, 0.02))
    seat = queue.seat(never)
    queue.wake(seat, 0.0)
    assert queue.take(0.0) is seat
    queue.done(seat, 0.2, None, 0.0)
    queue.gathering.seconds = 0.02
    queue.wake(seat, 0.2)
    assert queue.take(0.2) is seat  # its last turn began long ago
    queue.done(seat, 0.205, None, 0.0)
    queue.wake(seat, 0.21)
    assert queue.take(0.21) is None
    assert queue.next_due() == 0.22
    queue.wake(seat, 0.211, at_once=True)
    assert queue.take(0.211) is seat


def test_all_streams_rest_up_to_the_same_time() -> None:
    """Whoever has had a turn in a round waits for its end, by the clock or woken; whoever hasn't, doesn't wait."""
    queue = TurnQueue(Gathering(0.0, 0.02))
    queue.gathering.seconds = 0.02
    first, second, late = (queue.seat(never) for _ in range(3))
    queue.wake(first, 1.0)
    queue.wake(second, 1.0)
    assert queue.take(1.0) is first
    queue.done(first, 1.005, 1.006, 0.0)
    assert queue.take(1.005) is second
    queue.done(second, 1.01, None, 0.0)
    queue.wake(second, 1.011)
    queue.wake(late, 1.012)
    assert queue.take(1.012) is late
    queue.done(late, 1.013, 1.013, 0.0)
    assert queue.take(1.013) is late  # it has more to do
    queue.done(late, 1.014, None, 0.0)
    assert queue.take(1.019) is None
    assert queue.next_due() == 1.02
    assert {queue.take(1.02), queue.take(1.02)} == {first, second}


def test_what_wakes_a_stream_whose_turn_was_cut_short_brings_one_behind_the_rest_of_it() -> None:
    """The rest comes at once, and what was woken then waits for the end of the round."""
    queue = TurnQueue(Gathering(0.0, 0.02))
    queue.gathering.seconds = 0.02
    seat = queue.seat(never)
    queue.wake(seat, 1.0)
    assert queue.take(1.0) is seat
    queue.done(seat, 1.006, 1.0, 0.0)
    queue.wake(seat, 1.007)
    assert queue.take(1.008) is seat
    queue.done(seat, 1.012, None, 0.0)
    assert queue.take(1.012) is None
    assert queue.next_due() == 1.02
    assert queue.take(1.02) is seat
    queue.done(seat, 1.021, None, 0.0)
    assert queue.next_due() is None


def test_a_stream_may_have_a_bound_of_its_own() -> None:
    """With 0 it is never held back, with more it waits longer, and the others are as they were."""
    queue = TurnQueue(Gathering(0.0, 0.02))
    usual, prompt, patient = (queue.seat(never, bound) for bound in (None, 0.0, 0.1))
    now = 0.0
    for _ in range(100):  # all that they take is too much
        queue.gathering.note_turn(now, now + 0.001, 0.001)
        now += 0.1
    assert (queue.gathering.seconds, queue.gathering.least_s) == (0.1, 0.0)

    def waits(seat: Seat) -> float:
        """How long it waits for its turn if it is woken 1 ms after the one that has begun a round."""
        begun = now + 1.0
        queue.wake(seat, begun)
        assert queue.take(begun) is seat
        queue.done(seat, begun, None, 0.0)
        queue.wake(seat, begun + 0.001)
        due = begun + 0.001 if queue.waits(begun + 0.001) else queue.next_due()
        assert due is not None
        assert queue.take(due) is seat
        queue.done(seat, due, None, 0.0)
        return round(due - begun, 6)

    assert (waits(usual), waits(prompt), waits(patient)) == (0.02, 0.001, 0.1)
    queue.remove(patient)
    queue.remove(patient)
    queue.remove(prompt)
    queue.gathering.note_turn(now + 2.0, now + 4.0, 2.0)
    assert (queue.gathering.seconds, queue.gathering.least_s) == (0.02, 0.02)


def turns(threads: TurnThreads, count: int, act: Callable[[int], float | None]) -> tuple[Seat, threading.Event]:
    """Returns a seat and what tells that it has had so many turns; `act` is told the number of each."""
    enough, number = threading.Event(), 0

    def take_turn() -> float | None:
        nonlocal number
        number += 1
        if number >= count:
            enough.set()
        return act(number)

    return threads.seat(take_turn), enough


def test_a_long_turn_does_not_keep_others_waiting() -> None:
    """While one stream is busy, whoever comes by finds that another waits, and has a second thread take over."""
    threads = TurnThreads(SystemClock(), TurnQueue(Gathering(1.0, 0.0)), 2)
    begun, go_on = threading.Event(), threading.Event()

    def compute(number: int) -> None:
        begun.set()
        go_on.wait()

    long, _ = turns(threads, 1, compute)
    threads.wake(long)
    assert begun.wait(60)
    short, had_turn = turns(threads, 1, lambda number: None)
    threads.wake(short)
    while not had_turn.wait(0.001):
        threads.look()
    go_on.set()
    threads.close()


def test_what_turns_did_is_told_before_a_thread_sleeps_and_before_a_long_turn() -> None:
    """Not after each short turn: that is what a round is for."""
    told: list[int] = []
    had: list[int] = []
    slept = threading.Event()

    def after_turns() -> None:
        told.append(len(had))
        if len(had) == 4:
            slept.set()

    clock = SystemClock()
    threads = TurnThreads(clock, TurnQueue(Gathering(1.0, 0.0)), 1, after_turns)
    first, _ = turns(threads, 1, lambda number: begin.wait() and had.append(1))  # type: ignore[func-returns-value]
    others = [turns(threads, 1, lambda number: had.append(1))[0] for _ in range(3)]
    others[2].took = 1.0
    begin = threading.Event()
    for seat in (first, *others):
        threads.wake(seat)
    begin.set()
    assert slept.wait(60)
    assert told[-1] == 4
    assert 3 in told
    threads.close()


def test_turns_come_by_the_clock() -> None:
    """A stream that names a time has its turn then, also while a later one is waited for."""
    clock = SystemClock()
    threads = TurnThreads(clock, TurnQueue(Gathering(1.0, 0.0)), 2)
    late, _ = turns(threads, 2, lambda number: clock.monotonic() + 1000)
    threads.wake(late)
    soon, twice = turns(threads, 3, lambda number: clock.monotonic() + 0.001)
    threads.wake(soon)
    assert twice.wait(60)
    threads.close()
