"""A token bucket that never waits: it tells when an amount may pass. Time is an argument."""

from __future__ import annotations

import math

from penstock.common.errors import InternalError


class TokenBucket:
    """Lets `rate` units per second pass on average, and at most `burst` at once; a rate of 0 means no limit.

    An amount larger than `burst` passes when the bucket is full and leaves a debt, so that a single write which is
    larger than a second's allowance isn't stuck for ever and the average still holds. Not thread-safe.
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        """Starts full. `now` is a monotonic time in seconds, as for all methods."""
        if rate < 0 or (rate > 0 and burst <= 0):
            raise InternalError(f"a token bucket can't work by rate {rate} and burst {burst}")
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at = now

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
        self._tokens = tokens - amount
        self._at = max(now, self._at)
        return True

    def _tokens_at(self, now: float) -> float:
        return min(self._burst, self._tokens + max(0.0, now - self._at) * self._rate)
