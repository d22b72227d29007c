"""Names of child tables that rows came with lately: those who write the same ones again have them looked up once."""

from __future__ import annotations

import threading
from collections import OrderedDict

import pyarrow as pa

from penstock.mnode.write.row_placement import Owners
from penstock.sql.schema import Table

_NAMES_MAX = 1_000_000
_MANY = 100  # fewer are looked up as fast as they are compared


class RecentNames:
    """Dictionaries of names with what they stand for, the least recently used go first. Safe for many threads."""

    def __init__(self, names_max: int = _NAMES_MAX) -> None:
        self._names_max = names_max
        self._lock = threading.Lock()
        self._moves = -1
        self._found: OrderedDict[tuple[int, int, str, str], tuple[pa.Array, Owners]] = OrderedDict()
        self._count = 0

    def find(self, parent: Table, names: pa.Array, moves: int) -> Owners | None:
        """Returns the child tables of a super table that have these names, if they were kept.

        `moves`: what the catalog says of child tables that were dropped or moved, read before.
        """
        if len(names) < _MANY:
            return None
        key = _key(parent, names)
        with self._lock:
            self._begin(moves)
            found = self._found.get(key)
            if found is None or not found[0].equals(names):
                return None
            self._found.move_to_end(key)
            return found[1]

    def keep(self, parent: Table, names: pa.Array, owners: Owners, moves: int) -> None:
        """Keeps what was found since `moves` was read."""
        if not _MANY <= len(names) <= self._names_max:
            return
        key = _key(parent, names)
        with self._lock:
            self._begin(moves)
            if key in self._found:
                self._count -= len(self._found.pop(key)[0])
            self._found[key] = names, owners
            self._count += len(names)
            while self._count > self._names_max:
                self._count -= len(self._found.popitem(last=False)[1][0])

    def _begin(self, moves: int) -> None:
        """Forgets all that may have been dropped or moved meanwhile; what is older than that isn't kept."""
        if moves != self._moves:
            self._found.clear()
            self._count = 0
            self._moves = moves


def _key(parent: Table, names: pa.Array) -> tuple[int, int, str, str]:
    return parent.uid, len(names), str(names[0]), str(names[-1])
