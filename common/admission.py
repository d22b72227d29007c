"""How many may be connected to a port, and for how long without a login. Decides; whoever has the connections acts.

A stranger is a connection that hasn't logged in. When there are too many, the oldest stranger of the address that has
most of them goes: whoever logs in at once gets in while an attacker holds connections open.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, get_args

from penstock.common.config import Config

Reason = Literal["login", "strangers", "address", "total"]
"""Why a connection is closed: no login in time, too many without one, too many from there, too many in all."""
REASONS: tuple[Reason, ...] = get_args(Reason)
_REPORT_EVERY_S = 10.0

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """Bounds of one port. None: no bound, for ports where whoever has logged in is a part of this engine."""

    strangers: int
    login_timeout_s: float
    per_address: int | None = None
    total: int | None = None

    @classmethod
    def of_clients(cls, config: Config) -> ConnectionBounds:
        """Returns the bounds of a port for clients."""
        return cls(config.strangers_max, config.login_timeout, config.connections_per_address_max,
                   config.connections_max)


WORKER_PORTS = ConnectionBounds(strangers=256, login_timeout_s=10.0)
"""Of ports for workers, which are as many as they are."""


@dataclass(frozen=True, slots=True)
class PortCounts:
    """What is known of a port: connections, those without a login, and how many were closed since the start by why."""

    connections: int
    strangers: int
    refused: Mapping[Reason, int]


@dataclass(frozen=True, slots=True)
class _Guest:
    address: str
    since: float


class Admission(Generic[Key]):
    """Who is connected to one port; safe for many threads. Times are seconds of a monotonic clock."""

    def __init__(self, bounds: ConnectionBounds) -> None:
        self.bounds = bounds
        self._lock = threading.Lock()
        self._guests: dict[Key, _Guest] = {}  # the oldest first, as in all of them
        self._strangers: dict[Key, _Guest] = {}
        self._strangers_of: dict[str, dict[Key, None]] = {}
        self._guests_of: Counter[str] = Counter()
        self._crowded: set[str] = set()
        self._refused: Counter[Reason] = Counter()
        self._reported: Counter[Reason] = Counter()
        self._reported_at = -_REPORT_EVERY_S

    def opened(self, key: Key, address: str, now: float) -> None:
        """Takes note of a new connection, a stranger. `key` is any name of it that no other open one has."""
        guest = _Guest(address, now)
        with self._lock:
            self._guests[key] = self._strangers[key] = guest
            self._strangers_of.setdefault(address, {})[key] = None
            self._guests_of[address] += 1
            if self.bounds.per_address is not None and self._guests_of[address] > self.bounds.per_address:
                self._crowded.add(address)

    def logged_in(self, key: Key) -> None:
        """Takes note that a connection is no stranger any more; one that is gone is no error."""
        if key in self._strangers:
            with self._lock:
                self._greet(key)

    def closed(self, key: Key) -> None:
        """Takes note that a connection is gone."""
        with self._lock:
            self._forget(key)

    def over(self, now: float) -> list[Key]:
        """Returns the connections that must be closed now, and counts them; they are forgotten here."""
        cut: list[Key] = []
        with self._lock:
            while self._strangers:
                key, guest = next(iter(self._strangers.items()))
                if guest.since + self.bounds.login_timeout_s > now:
                    break
                self._refuse(key, "login", cut)
            for address in self._crowded:
                while self._guests_of[address] > (self.bounds.per_address or 0):
                    self._refuse(self._dispensable_of(address), "address", cut)
            self._crowded.clear()
            while len(self._strangers) > self.bounds.strangers:
                self._refuse(self._oldest_of_greediest(), "strangers", cut)
            while self.bounds.total is not None and len(self._guests) > self.bounds.total:
                key = self._oldest_of_greediest() if self._strangers else next(reversed(self._guests))
                self._refuse(key, "total", cut)
        return cut

    def next_due(self) -> float | None:
        """Returns when `over` must be called again if nothing happens; None: never."""
        with self._lock:
            oldest = next(iter(self._strangers.values()), None)
        return None if oldest is None else oldest.since + self.bounds.login_timeout_s

    def counts(self) -> PortCounts:
        with self._lock:
            return PortCounts(len(self._guests), len(self._strangers), {why: self._refused[why] for why in REASONS})

    def report(self, now: float) -> str | None:
        """Returns what to log of the connections that were closed since the last time, at most every 10 seconds."""
        with self._lock:
            fresh = self._refused - self._reported
            if not fresh or now - self._reported_at < _REPORT_EVERY_S:
                return None
            self._reported, self._reported_at = self._refused.copy(), now
        texts = {"login": "without a login in time", "strangers": "of too many without a login",
                 "address": "of too many from one address", "total": "of too many in all"}
        return ", ".join(f"{number} {texts[why]}" for why, number in fresh.items())

    # --- inside, with the lock -----------------------------------------------------------------------------------

    def _refuse(self, key: Key, why: Reason, cut: list[Key]) -> None:
        self._forget(key)
        self._refused[why] += 1
        cut.append(key)

    def _dispensable_of(self, address: str) -> Key:
        strangers = self._strangers_of.get(address)
        if strangers:
            return next(iter(strangers))
        return next(key for key in reversed(self._guests) if self._guests[key].address == address)

    def _oldest_of_greediest(self) -> Key:
        greediest = max(self._strangers_of, key=lambda address: len(self._strangers_of[address]))
        return next(iter(self._strangers_of[greediest]))

    def _forget(self, key: Key) -> None:
        guest = self._guests.pop(key, None)
        if guest is None:
            return
        self._greet(key)
        self._guests_of[guest.address] -= 1
        if not self._guests_of[guest.address]:
            del self._guests_of[guest.address]

    def _greet(self, key: Key) -> None:
        guest = self._strangers.pop(key, None)
        if guest is not None:
            others = self._strangers_of[guest.address]
            del others[key]
            if not others:
                del self._strangers_of[guest.address]
