"""Windows that an agg task must not show for a moment: a source is about to put something else in their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from penstock.tasks.accumulators import Slots


class HeldWindows:
    """What was cleared per input, and which groups of which windows are to be shown once it has settled."""

    def __init__(self) -> None:
        self._ranges: dict[int, tuple[int, int]] = {}
        self._groups: dict[int, set[int]] = {}

    @property
    def any(self) -> bool:
        """Whether any window is held."""
        return bool(self._ranges)

    def replaces(self, input: int) -> bool:
        """Tells whether what an input sends now takes the place of what it cleared."""
        return input in self._ranges

    def clear(self, input: int, first: int, last: int, touched: Mapping[int, Iterable[int]]) -> None:
        """An input voids the windows that start in [first, last]; `touched`: the groups it was in, by window."""
        self._ranges[input] = (first, last)
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
        self._ranges.pop(input, None)
        free = [start for start in self._groups if not self._held(start)]
        return {start: np.array(sorted(self._groups.pop(start)), np.int64) for start in sorted(free)}

    def _held(self, start: int) -> bool:
        return any(first <= start <= last for first, last in self._ranges.values())
