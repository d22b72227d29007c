"""Finds rows of one sorted chunk by their keys, again and again."""

from __future__ import annotations

import numpy as np

from penstock.vnode.store.sorted_keys import I64, U64, Index, KeyBox, expand, find_ranges


class KeySearch:
    """The keys of some rows, sorted by (tuid, ts), as one number each where that can be: see `KeyBox`. Immutable."""

    __slots__ = ("_box", "_numbers", "_ts", "_tuid", "_unique")

    def __init__(self, tuid: U64, ts: I64) -> None:
        """At least one row."""
        self._tuid = tuid
        self._ts = ts
        self._box = KeyBox.around(tuid, ts)
        self._numbers = None if self._box is None else self._box.numbers(tuid, ts)
        self._unique = self._numbers is not None and bool((self._numbers[1:] > self._numbers[:-1]).all())

    @property
    def nbytes(self) -> int:
        """How many bytes all of it may hold."""
        return self._tuid.nbytes + self._ts.nbytes + (0 if self._numbers is None else self._numbers.nbytes)

    def rows_at(self, tuid: U64, ts: I64) -> tuple[Index, Index]:
        """Returns (number of the wanted key, position) of all rows that have one of the keys, in the order of both."""
        box, numbers = self._box, self._numbers
        if box is None or numbers is None:
            return expand(*find_ranges(self._tuid, self._ts, tuid, ts, ts))
        owner: Index = box.holds(tuid, ts).nonzero()[0]
        if not len(owner):
            return owner, owner
        wanted = box.numbers(tuid[owner], ts[owner])
        start = numbers.searchsorted(wanted)
        there = (numbers[np.minimum(start, len(numbers) - 1)] == wanted).nonzero()[0]
        owner, start = owner[there], start[there]
        if self._unique or not len(owner):
            return owner, start
        number, row = expand(start, numbers.searchsorted(wanted[there], "right"))
        return owner[number], row

    def rows_of(self, tuid: int, ts: int) -> tuple[int, int]:
        """Returns the half-open range of positions of the rows that have one key."""
        box, numbers = self._box, self._numbers
        if box is not None and numbers is not None:
            number = box.number(tuid, ts)
            if number is None:
                return 0, 0
            start = int(numbers.searchsorted(number))
            if start == len(numbers) or numbers[start] != number:
                return start, start
            return start, start + 1 if self._unique else int(numbers.searchsorted(number, "right"))
        low, high = (int(self._tuid.searchsorted(np.uint64(tuid), side)) for side in ("left", "right"))
        times = self._ts[low:high]
        return low + int(times.searchsorted(ts, "left")), low + int(times.searchsorted(ts, "right"))
