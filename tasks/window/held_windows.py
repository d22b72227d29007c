"""Windows that an agg task must not emit yet, since sources are about to send them again.

A source voids what it had contributed to a range of windows and sends what takes its place. A window that was forgotten
comes back like that, too: it is whole once all inputs have sent theirs. Knows nothing of what windows hold.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.tasks.compute.accumulators import Slots

Range = tuple[int, int]
"""The first and the last start of windows."""


class HeldWindows:
    """What was cleared per input, which groups of which windows are to be shown later, and what has come back.

    `is_forgotten` tells whether the state of the window with this start may be gone. `step`: from one start to the
    next at least.
    """

    def __init__(self, inputs: int, step: int, is_forgotten: Callable[[int], bool]) -> None:
        self._step = step
        self._is_forgotten = is_forgotten
        self._clearing: dict[int, Range] = {}
        # What each input has sent again since windows were forgotten last: disjoint, ascending.
        self._returned: list[list[Range]] = [[] for _ in range(inputs)]
        self._groups: dict[int, set[int]] = {}
        self._wanted: set[int] = set()

    @property
    def any(self) -> bool:
        """Whether any window may be held."""
        return bool(self._clearing or self._groups or self._wanted or any(self._returned))

    def replaces(self, input: int) -> bool:
        """Tells whether what an input sends now takes the place of what it cleared."""
        return input in self._clearing

    def returned(self, starts: npt.NDArray[np.int64], input: int) -> npt.NDArray[np.bool_]:
        """Returns which windows, of those that were forgotten, an input has sent again."""
        return np.array([_holds(self._returned[input], start) for start in starts.tolist()], bool)

    def want(self, touched: Mapping[int, Iterable[int]]) -> list[int]:
        """These groups of forgotten windows have changed; returns the windows that nobody has asked for yet."""
        for start, groups in touched.items():
            self._groups.setdefault(start, set()).update(groups)
        fresh = sorted(touched.keys() - self._wanted)
        self._wanted.update(fresh)
        return fresh

    @property
    def wanted(self) -> list[int]:
        """The windows that were asked for and aren't whole yet, ascending."""
        return sorted(self._wanted)

    def clear(self, input: int, first: int, last: int, touched: Mapping[int, Iterable[int]]) -> None:
        """An input voids the windows that start in [first, last]; `touched`: the groups it was in, by window."""
        self._clearing[input] = (first, last)
        self._returned[input] = _united([*self._returned[input], (first, last + self._step - 1)])
        for start, groups in touched.items():
            self._groups.setdefault(start, set()).update(groups)

    def hold(self, start: int, groups: Slots) -> bool:
        """Tells whether a window is held, and then keeps in mind that these groups changed."""
        if not self._held(start):
            return False
        self._groups.setdefault(start, set()).update(groups.tolist())
        return True

    def settle(self, input: int) -> dict[int, Slots]:
        """An input has sent all; returns the groups of the windows that nobody holds any more."""
        self._clearing.pop(input, None)
        self._wanted = {start for start in self._wanted if self._held(start)}
        free = [start for start in self._groups if not self._held(start)]
        return {start: np.array(sorted(self._groups.pop(start)), np.int64) for start in sorted(free)}

    def forget(self) -> Callable[[int], bool]:
        """All windows that are old enough are forgotten now, but for those of which the returned function is true.

        Those have come back in part: what is there of them must wait for the rest. So must what an input has cleared
        and is sending now, as may be while barriers aren't aligned: it counts as returned already.
        """
        coming = [[one for one in ranges if self._is_coming(one)] for ranges in self._returned]
        self._returned = [_united([*part, *rest]) for part, rest in zip(_in_part(self._returned), coming, strict=True)]
        return lambda start: any(_holds(ranges, start) for ranges in self._returned)

    def save(self, id_of: Callable[[int], int]) -> dict[str, Any]:
        """Returns what `restore` needs. `id_of` gives the id of a group by its number."""
        return {"returned": self._returned, "wanted": self.wanted,
                "groups": [(start, [id_of(group) for group in sorted(groups)])
                           for start, groups in self._groups.items()]}

    def restore(self, saved: Mapping[str, Any], numbers_of: Callable[[Sequence[int]], Slots]) -> None:
        """Whatever isn't whole is wanted from now on: whoever was asked before may not know."""
        for input, ranges in enumerate(saved["returned"]):
            self._returned[input] = [(first, last) for first, last in ranges]
        self._groups = {start: set(numbers_of(gids).tolist()) for start, gids in saved["groups"]}
        self._wanted = {*saved["wanted"], *self._groups}

    def _is_coming(self, returned: Range) -> bool:
        return any(returned[0] <= last and first <= returned[1] for first, last in self._clearing.values())

    def _held(self, start: int) -> bool:
        if any(first <= start <= last for first, last in self._clearing.values()):
            return True
        return self._is_forgotten(start) and not all(_holds(ranges, start) for ranges in self._returned)


def _holds(ranges: Sequence[Range], start: int) -> bool:
    place = bisect_right(ranges, (start, start)) if ranges else 0
    return any(first <= start <= last for first, last in ranges[max(place - 1, 0) : place + 1])


def _united(ranges: Iterable[Range]) -> list[Range]:
    united: list[Range] = []
    for first, last in sorted(ranges):
        if united and first <= united[-1][1] + 1:
            united[-1] = united[-1][0], max(last, united[-1][1])
        else:
            united.append((first, last))
    return united


def _in_part(returned: Sequence[Sequence[Range]]) -> list[list[Range]]:
    """Returns what some inputs have, but not all."""
    edges = sorted({edge for ranges in returned for first, last in ranges for edge in (first, last + 1)})
    parts: list[list[Range]] = [[] for _ in returned]
    for first, end in pairwise(edges):
        having = [input for input, ranges in enumerate(returned) if _holds(ranges, first)]
        if 0 < len(having) < len(returned):
            for input in having:
                parts[input].append((first, end - 1))
    return [_united(ranges) for ranges in parts]
