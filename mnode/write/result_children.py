"""The child tables of one sink task's results: found or created once, then addressed by their place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.ddl.child_creation import ChildCreator
from penstock.mnode.write.row_placement import ranks_of
from penstock.sql.schema import Table, TagValue
from penstock.tasks.protocol.messages import ResultChild

Places = npt.NDArray[np.int64]


class ResultChildren:
    """What is known of the children that `ResultWrite` numbers. One thread at a time.

    By place: `uids`, `vgroups`, and `ranks`, which order rows by vgroup and uid; those of one child are equal. They
    hold for places that were `learn`ed since a child table was last dropped or moved.
    """

    def __init__(self, target: Table, wanted: Sequence[ResultChild], catalog: Catalog, children: ChildCreator) -> None:
        """`wanted` grows; places in it stay."""
        self.target_uid = target.uid
        self.wanted = wanted
        self._catalog = catalog
        self._children = children
        self._moves = -1
        self._known = np.zeros(0, np.bool_)
        self.uids = np.zeros(0, np.uint64)
        self.vgroups = np.zeros(0, np.int64)
        self.ranks = np.zeros(0, np.int64)

    def learn(self, target: Table, places: Places) -> None:
        """Finds the child tables at these places, creating those that don't exist; each is looked up once.

        `AlreadyExistsError` if a name belongs to a table that is no child of `target`.
        """
        moves = self._catalog.moves
        if moves != self._moves:
            self._known[:] = False
            self._moves = moves
        if len(self.wanted) > len(self._known):
            self._grow(len(self.wanted))
        unknown = ~self._known[places]
        if unknown.any():
            self._find(target, np.unique(places[unknown]))

    def _grow(self, count: int) -> None:
        more = count - len(self._known)
        self._known = np.concatenate((self._known, np.zeros(more, np.bool_)))
        self.uids = np.concatenate((self.uids, np.zeros(more, np.uint64)))
        self.vgroups = np.concatenate((self.vgroups, np.zeros(more, np.int64)))

    def _find(self, target: Table, places: Places) -> None:
        wanted = [self.wanted[place] for place in places.tolist()]
        found = self._children.known(target, (child.name for child in wanted))
        if found is None:
            found = self._children.ensure(
                target, {child.name: tuple(_tag(value) for value in child.tag_values) for child in wanted})
        tables = [found[child.name] for child in wanted]
        self.uids[places] = [table.uid for table in tables]
        self.vgroups[places] = [table.vgroup_id for table in tables]
        self._known[places] = True
        self.ranks = ranks_of(self.uids, self.vgroups)


def _tag(value: object) -> TagValue:
    if value is None or isinstance(value, str | int | float | bool | bytes):
        return value
    return str(value)
