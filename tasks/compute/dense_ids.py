"""Maps 64-bit ids to dense numbers, whole columns at a time. What the ids stand for doesn't matter."""

from __future__ import annotations

import numpy as np

from penstock.tasks.compiled.compiled_loops import compiled
from penstock.tasks.compute.id_table import Ids, IdTable, Numbers, numbered

_FEW, _RECENT = 64, 4096


class Numbering(IdTable):
    """Numbers ids, and finds those of a few quickly also where nothing is compiled."""

    def __init__(self) -> None:
        super().__init__()
        #: numbers of ids that were asked for by few: for these a dictionary is faster than the table
        self._recent: dict[int, int] = {}

    def find(self, ids: Ids) -> Numbers:
        if len(ids) > _FEW or compiled() is not None:
            return super().find(ids)
        wanted = ids.tolist()
        known = [*map(self._recent.get, wanted)]
        if None not in known:
            return np.array(known, np.int64)
        numbers = super().find(ids)
        if len(self._recent) > _RECENT:
            self._recent.clear()
        self._recent.update((id_, number) for id_, number in zip(wanted, numbers.tolist(), strict=True) if number >= 0)
        return numbers

    def find_or_first(self, ids: Ids) -> tuple[Numbers, Numbers]:
        """Returns the numbers of ids as `find` does, and the first row of each id that was not added, in order."""
        numbers = self.find(ids)
        unknown = (numbers < 0).nonzero()[0]
        if not len(unknown):
            return numbers, unknown
        return numbers, unknown[numbered(ids[unknown])[1]]
