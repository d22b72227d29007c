"""Child tables that came into being together, by columns: there may be a million."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from penstock.sql.schema import ChildTable, TagValue


@dataclass(frozen=True, slots=True)
class CreatedChildren:
    """New child tables of one super table, in the order that they were asked for in, which is that of their uids.

    `tags`: for each tag of the super table the values of all of them. `tables`: each by itself.
    """

    super_uid: int
    uids: npt.NDArray[np.uint64]
    names: Sequence[str]
    vgroup_ids: Sequence[int]
    tags: Sequence[Sequence[TagValue]]
    created_ms: int
    tables: list[ChildTable]

    @property
    def vgroups(self) -> npt.NDArray[np.int64]:
        return np.array(self.vgroup_ids, np.int64)

    def by_vgroup(self) -> Iterator[tuple[int, npt.NDArray[np.uint64], Sequence[str], list[Sequence[TagValue]]]]:
        """Yields the uids, names and tags of those in each vgroup."""
        if len(set(self.vgroup_ids)) == 1:
            yield self.vgroup_ids[0], self.uids, self.names, list(self.tags)
            return
        uids, vgroups = self.uids, self.vgroups
        order = np.argsort(vgroups, kind="stable")
        uids, vgroups, places = uids[order], vgroups[order], order.tolist()
        names = [self.names[at] for at in places]
        tags: list[Sequence[TagValue]] = [[column[at] for at in places] for column in self.tags]
        starts = [0, *(np.flatnonzero(vgroups[1:] != vgroups[:-1]) + 1).tolist(), len(vgroups)]
        for start, stop in pairwise(starts):
            yield int(vgroups[start]), uids[start:stop], names[start:stop], [column[start:stop] for column in tags]
