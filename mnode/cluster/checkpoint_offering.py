"""The active's side of checkpoints that travel: what standbys are offered, and when a newer copy may take its place.

Knows no clock and no disk: what happens comes in, offers go out, `now` is the monotonic clock in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.mnode.cluster.cluster_messages import CheckpointCopy, CheckpointName, CheckpointOffers, CheckpointsHeld


@dataclass(frozen=True, slots=True)
class OfferSettings:
    """Seconds: between offers when nothing is new; for which a copy stays after a standby has asked for a piece of it
    that hasn't got all; and after which a standby that says nothing counts no more."""

    repeat_s: float = 2.0
    grace_s: float = 5.0
    silent_s: float = 10.0


class CheckpointOffering:
    """What one tenure offers: of each stream one copy, until a newer one takes its place."""

    def __init__(self, epoch: int, settings: OfferSettings) -> None:
        self._epoch = epoch
        self._settings = settings
        self._copies: dict[int, CheckpointCopy] = {}
        self._wanted_at: dict[int, float] = {}
        self._held: dict[int, tuple[float, frozenset[CheckpointName]]] = {}
        self._number = 0
        self._offer_at = float("-inf")
        self._offered: tuple[object, ...] = ()

    def made(self, now: float, copy: CheckpointCopy) -> None:
        """There is a copy of a checkpoint, in the place of the stream's last one."""
        self._copies[copy.name.stream] = copy
        self._wanted_at[copy.name.stream] = now

    def offered(self, stream: int) -> CheckpointCopy | None:
        """Returns the copy of a stream that standbys may ask for."""
        return self._copies.get(stream)

    def told(self, now: float, node: int, message: CheckpointsHeld) -> None:
        """A standby says what it has; what isn't of this epoch changes nothing."""
        if message.epoch == self._epoch:
            self._held[node] = now, frozenset(message.held)

    def asked(self, now: float, name: CheckpointName) -> None:
        """A standby asks for a piece of a copy."""
        copy = self._copies.get(name.stream)
        if copy is not None and copy.name == name:
            self._wanted_at[name.stream] = now

    def may_replace(self, now: float, stream: int) -> bool:
        """Tells whether a newer copy of a stream may be made: no standby is just getting the one that there is.

        One that has a newer one than that, from a tenure before, doesn't want it.
        """
        copy = self._copies.get(stream)
        if copy is None or now - self._wanted_at[stream] >= self._settings.grace_s:
            return True
        heard = [held for at, held in self._held.values() if now - at < self._settings.silent_s]
        return bool(heard) and all(any(name.stream == stream and name >= copy.name for name in held) for held in heard)

    def poll(self, now: float, streams: Iterable[int], settled: bool, complete: bool) -> CheckpointOffers | None:
        """Returns what to tell all standbys now, if something is new or it is time; see `CheckpointOffers`."""
        there = tuple(sorted(streams))
        for gone in self._copies.keys() - set(there):
            del self._copies[gone], self._wanted_at[gone]
        copies = tuple(self._copies[stream] for stream in sorted(self._copies))
        news = there, settled, copies, complete
        if now < self._offer_at and news == self._offered:
            return None
        self._offered, self._offer_at = news, now + self._settings.repeat_s
        self._number += 1
        return CheckpointOffers(self._epoch, self._number, there, settled, copies, complete)
