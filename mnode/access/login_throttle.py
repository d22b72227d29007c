"""Throttles logins: wrong ones must neither use up the processor nor keep right ones waiting.

Each try costs a hash, on purpose. So few are under way at once for a user at an address, and for an address, and after
some wrong ones in a row the next has to wait. Nothing waits in here: who is too early is told when to come again.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TypeVar

_FREE_TRIES = 3
_DELAY_MAX_S = 60.0
_AT_ONCE_OF_USER, _AT_ONCE_OF_ADDRESS, _AT_ONCE = 2, 8, 32
_BUSY_S = 1.0
_PAIRS_MAX = 10_000

T = TypeVar("T")
Who = tuple[bytes, str]
"""A digest of the user's name as it was given, since that may be long, and the address that it came from."""


@dataclass(frozen=True, slots=True)
class _Wrong:
    """How many tries in a row were wrong, and until when the next one has to wait."""

    tries: int
    until: float


class LoginThrottle:
    """Keeps count for `_PAIRS_MAX` pairs of user and address, those that tried last. For one thread at a time."""

    def __init__(self) -> None:
        self._wrong: OrderedDict[Who, _Wrong] = OrderedDict()
        self._right: OrderedDict[Who, None] = OrderedDict()
        self._under_way: Counter[Who] = Counter()
        self._of_address: Counter[str] = Counter()

    def enter(self, who: Who, now: float) -> float:
        """Returns 0 if a password may be tried, for which `leave` must be called, else the seconds to wait."""
        wrong = self._wrong.get(who)
        if wrong is not None and wrong.until > now:
            return wrong.until - now
        if self._under_way[who] >= _AT_ONCE_OF_USER or self._under_way.total() >= _AT_ONCE:
            return _BUSY_S
        # A user who has been here before isn't kept out by others who try from the same address.
        if self._of_address[who[1]] >= _AT_ONCE_OF_ADDRESS and who not in self._right:
            return _BUSY_S
        self._under_way[who] += 1
        self._of_address[who[1]] += 1
        return 0.0

    def leave(self, who: Who, fits: bool, now: float) -> None:
        """Takes note of how a try ended."""
        _less(self._under_way, who)
        _less(self._of_address, who[1])
        if fits:
            self._wrong.pop(who, None)
            _keep(self._right, who, None)
            return
        tries = self._wrong[who].tries + 1 if who in self._wrong else 1
        delay_s = min(_DELAY_MAX_S, 2.0 ** (tries - _FREE_TRIES)) if tries >= _FREE_TRIES else 0.0
        _keep(self._wrong, who, _Wrong(min(tries, 100), now + delay_s))

    def has_been_here(self, who: Who) -> bool:
        """Tells whether this user gave the right password from this address not long ago."""
        return who in self._right


def _keep(pairs: OrderedDict[Who, T], who: Who, what: T) -> None:
    pairs[who] = what
    pairs.move_to_end(who)
    if len(pairs) > _PAIRS_MAX:
        pairs.popitem(last=False)


def _less(counter: Counter[T], key: T) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
