"""The token bucket: what passes in any stretch of time stays within rate and burst."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.common.errors import InternalError
from penstock.tasks.rate import TokenBucket


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
