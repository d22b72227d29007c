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
        self._numbers = np.zeros(0, np.int64) if self._box is None else self._box.numbers(tuid, ts)
        self._unique = bool((self._numbers[1:] > self._numbers[:-1]).all())

    @property
    def nbytes(self) -> int:
        """How many bytes all of it may hold."""
        return self._tuid.nbytes + self._ts.nbytes + self._numbers.nbytes

    def present(self, tuid: U64, ts: I64) -> Index:
        """Returns the numbers of the wanted keys of which there are rows, ascending."""
        if self._box is None:
            start, stop = find_ranges(self._tuid, self._ts, tuid, ts, ts)
            found: Index = (start < stop).nonzero()[0]
            return found
        return self._first_rows(tuid, ts)[0]

    def rows_at(self, tuid: U64, ts: I64) -> tuple[Index, Index]:
        """Returns (number of the wanted key, position) of all rows that have one of the keys, in the order of both."""
        if self._box is None:
            return expand(*find_ranges(self._tuid, self._ts, tuid, ts, ts))
        owner, start, wanted = self._first_rows(tuid, ts)
        if self._unique or not len(owner):
            return owner, start
        number, row = expand(start, self._numbers.searchsorted(wanted, "right"))
        return owner[number], row

    def _first_rows(self, tuid: U64, ts: I64) -> tuple[Index, Index, I64]:
        """Returns which keys there are rows of, where the first of each is, and the number that the key has."""
        assert self._box is not None
        owner: Index = self._box.holds(tuid, ts).nonzero()[0]
        wanted = self._box.numbers(tuid[owner], ts[owner])
        start = self._numbers.searchsorted(wanted)
        there = (self._numbers[np.minimum(start, len(self._numbers) - 1)] == wanted).nonzero()[0]
        return owner[there], start[there], wanted[there]

    def rows_of(self, tuid: int, ts: int) -> tuple[int, int]:
        """Returns the half-open range of positions of the rows that have one key."""
        numbers = self._numbers
        if self._box is not None:
            number = self._box.number(tuid, ts)
            if number is None:
                return 0, 0
            start = int(numbers.searchsorted(number))
            if start == len(numbers) or numbers[start] != number:
                return start, start
            return start, start + 1 if self._unique else int(numbers.searchsorted(number, "right"))
        low, high = (int(self._tuid.searchsorted(np.uint64(tuid), side)) for side in ("left", "right"))
        times = self._ts[low:high]
        return low + int(times.searchsorted(ts, "left")), low + int(times.searchsorted(ts, "right"))
