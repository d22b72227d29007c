"""The child tables of one super table in memory, by age."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from operator import itemgetter, lt

from penstock.sql.schema import ChildTable

_UID = itemgetter(0)  # of a child table: attributes take twice as long
_FEW = 100


class ChildList:
    """Found by uid, with a tenth of a dictionary's memory. One changes it at a time; readers don't wait.

    What a reader has found the place of stays there: the list grows at its end, else another takes its place.
    """

    __slots__ = ("_tables",)

    def __init__(self) -> None:
        self._tables: list[ChildTable] = []  # uids ascend

    def __len__(self) -> int:
        return len(self._tables)

    def __iter__(self) -> Iterator[ChildTable]:
        return iter(self._tables)

    def get(self, uid: int) -> ChildTable | None:
        """Returns the child table with this uid, if there is one."""
        tables = self._tables
        place = bisect_left(tables, uid, key=_UID)
        return tables[place] if place < len(tables) and tables[place].uid == uid else None

    def put(self, added: Sequence[ChildTable]) -> None:
        """Takes in new child tables, and changed ones in the place of what they were."""
        if not added:
            return
        tables, uids = self._tables, list(map(_UID, added))
        if (not tables or tables[-1].uid < uids[0]) and all(map(lt, uids, uids[1:])):
            tables.extend(added)
            return
        new = []
        for child in added:
            place = bisect_left(tables, child.uid, key=_UID)
            if place < len(tables) and tables[place].uid == child.uid:
                tables[place] = child
            else:
                new.append(child)
        if new:
            self._tables = sorted([*tables, *new], key=_UID)

    def remove(self, gone: Collection[ChildTable]) -> None:
        """Forgets child tables that are there."""
        tables = self._tables
        if len(gone) > _FEW:
            uids = set(map(_UID, gone))
            self._tables = [child for child in tables if child.uid not in uids]
            return
        left: list[ChildTable] = []
        start = 0
        for uid in sorted(map(_UID, gone)):
            place = bisect_left(tables, uid, start, key=_UID)
            if place == len(tables) or tables[place].uid != uid:
                raise KeyError(uid)
            left += tables[start:place]
            start = place + 1
        self._tables = left + tables[start:]
