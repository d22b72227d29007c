"""A token bucket that never waits: it tells when an amount may pass. Time is an argument."""

from __future__ import annotations

import math

from penstock.common.errors import InternalError


class TokenBucket:
    """Lets `rate` units per second pass on average, and at most `burst` at once; a rate of 0 means no limit.

    An amount larger than `burst` passes when the bucket is full, and leaves a debt: so a single write that is larger
    than a second's allowance gets through, and the average still holds. Not thread-safe.
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        """Starts full. `now` is a monotonic time in seconds, as for all methods."""
        _check(rate, burst)
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at = now

    def change(self, rate: float, burst: float, now: float) -> None:
        """Works by another rate and burst from now on.

        A debt is kept in units or in seconds, whichever is paid sooner. So a large amount that passed at a high rate
        doesn't block a low rate for long, and one that passed at a low rate doesn't block a high rate.
        """
        _check(rate, burst)
        tokens = self._tokens_at(now)
        if tokens < 0:
            tokens = max(tokens, tokens * rate / self._rate)
        # Where nothing was limited, nothing was counted.
        self._tokens = burst if self.unlimited else min(tokens, burst)
        self._rate, self._burst, self._at = rate, burst, max(now, self._at)

    @property
    def unlimited(self) -> bool:
        return self._rate == 0

    def available_at(self, amount: float, now: float) -> float:
        """Returns the time from which on `amount` may pass; `now` if it may at once."""
        if self.unlimited:
            return now
        tokens = self._tokens_at(now)
        missing = min(amount, self._burst) - tokens
        if missing <= 0:
            return now
        at = now + missing / self._rate
        # Rounding must not name a time at which the amount would still be refused.
        while self._tokens_at(at) < min(amount, self._burst):
            at = math.nextafter(at, math.inf)
        return at

    def try_take(self, amount: float, now: float) -> bool:
        """Takes `amount` and returns True, or returns False if it may not pass yet."""
        if self.unlimited:
            return True
        tokens = self._tokens_at(now)
        if tokens < min(amount, self._burst):
            return False
        self.take(amount, now)
        return True

    def take(self, amount: float, now: float) -> None:
        """Takes an amount that has passed already; what there was too little of is a debt."""
        if not self.unlimited:
            self._tokens = self._tokens_at(now) - amount
            self._at = max(now, self._at)

    def _tokens_at(self, now: float) -> float:
        return min(self._burst, self._tokens + max(0.0, now - self._at) * self._rate)


def burst(rate: float, seconds: float) -> float:
    """Returns what may pass at once: so many seconds' worth, but a whole unit at least."""
    return max(1.0, rate * seconds)


def _check(rate: float, burst: float) -> None:
    if rate < 0 or (rate > 0 and burst <= 0):
        raise InternalError(f"a token bucket can't work by rate {rate} and burst {burst}")
