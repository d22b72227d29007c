"""Maps 64-bit ids to dense numbers, whole columns at a time. What the ids stand for doesn't matter."""

from __future__ import annotations

import numpy as np

from penstock.tasks.compute.id_table import Ids, IdTable, Numbers


class Numbering(IdTable):
    """Numbers ids 0, 1, 2, ... in the order in which they are added."""

    def __len__(self) -> int:
        return self._held

    @property
    def ids(self) -> Ids:
        """The ids by their numbers."""
        return self._ids[:self._held]

    def find_or_first(self, ids: Ids) -> tuple[Numbers, Numbers]:
        """Returns the numbers of ids as `find` does, and the first row of each id that was not added, in order."""
        numbers = self.find(ids)
        unknown = np.flatnonzero(numbers < 0)
        if not len(unknown):
            return numbers, unknown
        _, first = np.unique(ids[unknown], return_index=True)
        return numbers, unknown[np.sort(first)]

    def add(self, ids: Ids) -> None:
        """Numbers ids that are distinct and not known yet."""
        self.put(ids, np.arange(self._held, self._held + len(ids)))
