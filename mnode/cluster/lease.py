"""Until when the active node may believe that no other one is. By its own monotonic clock, which it is given.

ZooKeeper lets another node have the lease once it hasn't heard of the holder's session for `session_timeout_s`. A
renewal that is answered was heard no earlier than it was sent; so until that long after it was *sent*, by ZooKeeper's
clock, nobody else has the lease. The holder counts by its own clock, and so stops `margin_s` earlier: the margin must
be more than what the clocks of both machines differ by in `session_timeout_s`, and what lies between the last look at
the lease and the answer to a client. Rows of databases with two replicas or more need no margin: each of those that may
take over must have them before they are acknowledged, and takes nothing from an earlier epoch once it is active.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Seconds: ZooKeeper's session time-out, how much earlier the holder stops, and how often it renews."""

    session_timeout_s: float = 4.0
    margin_s: float = 1.0
    renew_every_s: float = 0.5


class Lease:
    """The lease of one tenure."""

    def __init__(self, settings: LeaseSettings) -> None:
        self._settings = settings
        self._until = float("-inf")
        self._doubted_at = float("-inf")

    def renewed(self, sent_at: float) -> None:
        """A renewal that was sent then has been performed. One from before a doubt doesn't end it."""
        if sent_at >= self._doubted_at:
            self._doubted_at = float("-inf")
            self._until = max(self._until, sent_at + self._settings.session_timeout_s - self._settings.margin_s)

    def doubt(self, now: float) -> None:
        """Something says that another node is active: only a renewal that is sent from now on says otherwise."""
        self._doubted_at = now

    def valid(self, now: float) -> bool:
        return self._doubted_at == float("-inf") and now < self._until

    def may_be_another_ones(self, now: float) -> bool:
        """Tells whether ZooKeeper may have let another node have it by now."""
        return now >= self._until + self._settings.margin_s
