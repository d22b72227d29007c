"""The token bucket: what passes in any stretch of time stays within rate and burst."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.common.errors import InternalError
from penstock.tasks.flow.token_bucket import TokenBucket, burst


def drain(bucket: TokenBucket, amounts: list[float]) -> list[tuple[float, float]]:
    """Takes each amount as early as the bucket allows; returns (time, amount)."""
    now, taken = 0.0, []
    for amount in amounts:
        now = bucket.available_at(amount, now)
        assert bucket.try_take(amount, now)
        taken.append((now, amount))
    return taken


def test_fifty_calls_per_second_are_spread_evenly() -> None:
    """With a burst of one, the n-th call passes n/50 seconds after the first, and no second holds more than 50."""
    times = [at for at, _ in drain(TokenBucket(50, 1, 0.0), [1.0] * 101)]
    assert times[100] == pytest.approx(2.0)
    assert all(sum(1 for at in times if start <= at < start + 0.9999) <= 50 for start in times)


def test_a_rate_of_zero_lets_everything_pass() -> None:
    """Rate 0 is no limit: any amount passes at once."""
    bucket = TokenBucket(0, 0, 5.0)
    assert bucket.unlimited
    assert bucket.available_at(1e12, 7.0) == 7.0
    assert bucket.try_take(1e12, 7.0)


def test_an_amount_above_the_burst_leaves_a_debt() -> None:
    """A write of five seconds' worth passes from a full bucket; the next waits until the debt is paid."""
    bucket = TokenBucket(2.0, 2.0, 0.0)
    assert bucket.try_take(10.0, 0.0)
    assert not bucket.try_take(1.0, 4.0)
    assert bucket.available_at(1.0, 0.0) == pytest.approx(4.5)


def test_time_that_stands_still_or_goes_back_gives_no_tokens() -> None:
    """A bucket asked with an earlier time than before neither gains nor loses tokens."""
    bucket = TokenBucket(1.0, 1.0, 10.0)
    assert bucket.try_take(1.0, 10.0)
    assert not bucket.try_take(1.0, 3.0)
    assert bucket.available_at(1.0, 10.0) == pytest.approx(11.0)


@pytest.mark.parametrize(("rate", "burst"), [(-1.0, 1.0), (1.0, 0.0)])
def test_senseless_limits_are_refused(rate: float, burst: float) -> None:
    """A negative rate, or a rate without a burst, is a defect of the caller."""
    with pytest.raises(InternalError):
        TokenBucket(rate, burst, 0.0)


@given(
    rate=st.floats(0.1, 1e7),
    burst=st.floats(0.5, 1e7),
    amounts=st.lists(st.floats(0.01, 1e6), min_size=1, max_size=40),
)
def test_the_average_holds_over_every_stretch(rate: float, burst: float, amounts: list[float]) -> None:
    """Between any two takes no more passes than burst plus rate times the time, except one oversized amount."""
    taken = drain(TokenBucket(rate, burst, 0.0), amounts)
    for first in range(len(taken)):
        passed = 0.0
        for at, amount in taken[first:]:
            allowed = burst + rate * (at - taken[first][0])
            assert passed + min(amount, burst) <= allowed * (1 + 1e-6) + 1e-6
            passed += amount


@given(
    changes=st.lists(st.tuples(st.floats(0.1, 1e4), st.integers(1, 8)), min_size=1, max_size=5),
    amounts=st.lists(st.floats(0.01, 1e5), min_size=1, max_size=40),
)
def test_a_changed_rate_holds_from_its_change_on(changes: list[tuple[float, int]], amounts: list[float]) -> None:
    """In any stretch no more passes than each rate allows in its time, besides one burst and one oversized amount."""
    schedule = iter([rate for rate, takes in changes for _ in range(takes)])
    current, now = changes[0][0], 0.0
    bucket = TokenBucket(current, burst(current, 0.1), 0.0)
    spans: list[tuple[float, float, float]] = []  # rate, from, amount that then passed
    for amount in amounts:
        rate = next(schedule, current)
        if rate != current:
            bucket.change(rate, burst(rate, 0.1), now)
            current = rate
        now = bucket.available_at(amount, now)
        assert bucket.try_take(amount, now)
        spans.append((current, now, amount))
    for first in range(len(spans)):
        passed, allowed, (_, at, _) = 0.0, max(burst(rate, 0.1) for rate, _, _ in spans[first:]), spans[first]
        for rate, then, amount in spans[first:]:
            allowed += rate * (then - at)
            at = then
            assert passed + min(amount, burst(rate, 0.1)) <= allowed * (1 + 1e-6) + 1e-6
            passed += min(amount, burst(rate, 0.1))


def test_a_debt_keeps_nobody_waiting_for_longer_after_a_change() -> None:
    """Units or seconds, whichever are paid sooner: 60,000 rows that had passed at once don't stop a rate of 10."""
    fast = TokenBucket(60_000, 6_000, 0.0)
    fast.take(66_000, 0.0)
    fast.change(10, 1, 0.0)
    assert fast.available_at(1, 0.0) == pytest.approx(1.1)
    slow = TokenBucket(10, 1, 0.0)
    slow.take(1_001, 0.0)
    slow.change(100_000, 10_000, 0.0)
    assert slow.available_at(1, 0.0) == pytest.approx(0.01, abs=0.001)


def test_a_limit_that_comes_or_goes_starts_afresh() -> None:
    """Nothing is counted without a limit; with a new one a burst may pass."""
    bucket = TokenBucket(10, 1, 0.0)
    bucket.take(500, 0.0)
    bucket.change(0, 1, 0.0)
    assert bucket.available_at(1e9, 0.0) == 0.0
    bucket.take(1e9, 0.0)
    bucket.change(5, 5, 1.0)
    assert bucket.try_take(5, 1.0)
    assert bucket.available_at(5, 1.0) == pytest.approx(2.0)
