"""ZooKeeper as nodes see it: sessions that end when they aren't heard of, answers that are late, old or never come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from kits.cluster.memory_registry import MemoryRegistry

from penstock.mnode.cluster.cluster_registry import ReadRegistry, RegistryOutcome, RegistryRequest, RegistrySeen

#: How far behind the server may be that answers a read, in seconds.
_BEHIND_S = 0.4


@dataclass
class SimSession:
    """What the servers know of a session: when it was heard last, and the state that it must see nothing older than."""

    heard_at: float
    state: int = 0


@dataclass
class SimZookeeper:
    """An ensemble that is up or away. `on_change` is called after each change of what it keeps."""

    chance: Random
    timeout_s: float
    on_change: Callable[[], None] = lambda: None
    away: bool = False
    registry: MemoryRegistry = field(default_factory=MemoryRegistry)
    sessions: dict[int, SimSession] = field(default_factory=dict)
    states: list[tuple[float, RegistrySeen]] = field(default_factory=list)

    def perform(self, now: float, session: int, request: RegistryRequest) -> RegistryOutcome | None:
        """Performs what has arrived; None if the session has ended."""
        if session in self.registry.ended:
            return None
        heard = self.sessions.setdefault(session, SimSession(now))
        heard.heard_at = now
        outcome = self.registry.perform(session, request)
        self._note(now)
        if not isinstance(request, ReadRegistry):
            heard.state = len(self.states) - 1
        return outcome

    def read(self, now: float, session: int, sent_at: float) -> RegistrySeen:
        """Returns what a server says, which may be behind, but never behind what the session has seen or done."""
        heard = self.sessions[session]
        newest = len(self.states) - 1
        oldest = newest
        while oldest > heard.state and self.states[oldest][0] > now - _BEHIND_S:
            oldest -= 1
        heard.state = self.chance.randint(oldest, newest) if self.chance.random() < 0.3 else newest
        seen = self.states[heard.state][1]
        return RegistrySeen(seen.record, seen.version, seen.lease, seen.candidates, sent_at)

    def expire(self, now: float) -> None:
        """Ends the sessions that weren't heard in time."""
        if self.away:
            return
        for number, session in list(self.sessions.items()):
            if now - session.heard_at > self.timeout_s:
                del self.sessions[number]
                self.registry.end(number)
                self._note(now)

    def come_back(self, now: float) -> None:
        """The servers are there again, and give all sessions time."""
        self.away = False
        for session in self.sessions.values():
            session.heard_at = now

    def _note(self, now: float) -> None:
        seen = self.registry.seen(0.0)
        if not self.states or self.states[-1][1] != seen:
            self.states.append((now, seen))
            self.on_change()
