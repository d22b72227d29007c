"""How fast a sink may bring new child tables: by the time that the engine takes for them, not by their number."""

from __future__ import annotations

import math

from penstock.tasks.flow.token_bucket import TokenBucket

# So few are made while a write goes there and back.
_AT_ONCE_MIN, _AT_ONCE_MAX = 1_000, 50_000
_TOOK_S = 0.25
"""So long writes with new child tables are to take: others wait for one at most."""
_SAVED_S = 5.0
"""So much of its share a sink may save: the first results of many groups come at once."""
_LEAST_S = 0.001


class NewTables:
    """Lets writes with new child tables take a part of the time on average, one after the other. Time is an argument.

    `at_once`: how many of them one write may have. Not thread-safe.
    """

    def __init__(self, share: float, now: float) -> None:
        """`share`: the part of the time, above 0; with 1 nothing is limited."""
        self.share = share
        self.at_once = _AT_ONCE_MIN
        self._seconds = TokenBucket(share, _SAVED_S, now)
        self._begun_at: float | None = None  # of the write under way

    @property
    def unlimited(self) -> bool:
        return self.share >= 1

    def available_at(self, tables: int, now: float) -> float:
        """Returns from when on a write with so many new child tables may be submitted; infinity: not before another
        one is acknowledged."""
        if self.unlimited or not tables:
            return now
        return self._seconds.available_at(_LEAST_S, now) if self._begun_at is None else math.inf

    def submitted(self, tables: int, now: float) -> None:
        """A write has gone out."""
        if tables and not self.unlimited:
            self._begun_at = now

    def acknowledged(self, tables: int, now: float) -> None:
        """A write with so many new child tables was performed."""
        if not tables or self._begun_at is None:
            return
        took, self._begun_at = now - self._begun_at, None
        # One that takes longer was held up by something else than child tables, and others aren't to wait for that.
        self._seconds.take(min(took, _SAVED_S), now)
        if tables >= self.at_once or took > _TOOK_S:
            factor = min(2.0, max(0.5, _TOOK_S / took if took > 0 else math.inf))
            self.at_once = min(_AT_ONCE_MAX, max(_AT_ONCE_MIN, int(self.at_once * factor)))
