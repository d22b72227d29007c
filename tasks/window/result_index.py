"""Which windows of each group are in the result: found from any window to the next and the one before.

The index lives in the task's store; what changed since the last checkpoint, and each group's newest windows, are
in memory.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from penstock.tasks.state.state_store import StateStore

#: What the keys of an index begin with: of windows that are in the result, of those that were withdrawn from it, and
#: of those where NULLs of a column begin or end.
PRESENT, WITHDRAWN, EDGES = b"f", b"v", b"n"
_KEY = struct.Struct(">QQ")
_SIGN = 1 << 63
_PRESENT = b"\x01"
CHANGES_MAX = 65_536


def results_in(store: StateStore) -> Iterator[tuple[bytes, int, bytes]]:
    """Yields the entries of all indexes in the store of one task: their keys, group ids, and values."""
    for prefix in (PRESENT, WITHDRAWN, EDGES):
        for key, value in store.between(prefix, bytes([prefix[0] + 1])):
            yield key, _KEY.unpack(key[-_KEY.size:])[0], value


class ResultIndex:
    """The starts of the windows with a result, by group id. Call `save` right before each checkpoint of the store."""

    def __init__(self, store: StateStore, changes_max: int = CHANGES_MAX, prefix: bytes = PRESENT) -> None:
        """`prefix` tells the indexes of one store apart."""
        self._store = store
        self._prefix = prefix
        self._changes_max = changes_max
        self._added: dict[int, list[int]] = {}
        self._removed: dict[int, set[int]] = {}
        self._changes = 0
        self._newest: dict[int, int | None] = {}
        self._second: dict[int, int | None] = {}

    def add(self, gid: int, start: int) -> bool:
        """Notes that a window has a result; returns whether it had none before."""
        newest = self._newest_of(gid)
        if newest is None or start > newest:
            self._newest[gid], self._second[gid] = start, newest
        elif start == newest or self.has(gid, start):
            return False
        else:
            self._second.pop(gid, None)
        self._removed.get(gid, set()).discard(start)
        insort(self._added.setdefault(gid, []), start)
        self._changed()
        return True

    def remove(self, gid: int, start: int) -> None:
        """Notes that a window has no result any more."""
        added = self._added.get(gid, [])
        place = bisect_left(added, start)
        if place < len(added) and added[place] == start:
            del added[place]
        self._removed.setdefault(gid, set()).add(start)
        self._second.pop(gid, None)
        if self._newest.get(gid) == start:
            self._newest[gid] = self._nearest(gid, start, forward=False)
        self._changed()

    def has(self, gid: int, start: int) -> bool:
        """Tells whether the window has a result."""
        added = self._added.get(gid, [])
        place = bisect_left(added, start)
        if place < len(added) and added[place] == start:
            return True
        return start not in self._removed.get(gid, ()) and self._store.get_many([self._key(gid, start)])[0] is not None

    def before(self, gid: int, start: int) -> int | None:
        """Returns the start of the last window with a result before this one, or None."""
        newest = self._newest_of(gid)
        if newest is None or newest < start:
            return newest
        if newest > start:
            return self._nearest(gid, start, forward=False)
        if gid not in self._second:
            self._second[gid] = self._nearest(gid, start, forward=False)
        return self._second[gid]

    def after(self, gid: int, start: int) -> int | None:
        """Returns the start of the first window with a result after this one, or None."""
        newest = self._newest_of(gid)
        if newest is None or newest <= start:
            return None
        return self._nearest(gid, start, forward=True)

    def save(self) -> None:
        """Hands all changes to the store."""
        if self._changes:
            self._store.put_many(self._items())
            self._added, self._removed, self._changes = {}, {}, 0

    # -- inside ----------------------------------------------------------------------------------------------

    def _items(self) -> Iterator[tuple[bytes, bytes | None]]:
        for gid, starts in self._removed.items():
            for start in starts:
                yield self._key(gid, start), None
        for gid, added in self._added.items():
            for start in added:
                yield self._key(gid, start), _PRESENT

    def _changed(self) -> None:
        self._changes += 1
        if self._changes >= self._changes_max:
            self.save()
            self._store.flush()

    def _newest_of(self, gid: int) -> int | None:
        if gid not in self._newest:
            self._newest[gid] = self._stored(gid, _SIGN - 1, forward=False)
        return self._newest[gid]

    def _nearest(self, gid: int, start: int, *, forward: bool) -> int | None:
        stored = self._stored(gid, start, forward=forward)
        added = self._added.get(gid, [])
        place = bisect_right(added, start) if forward else bisect_left(added, start) - 1
        fresh = added[place] if 0 <= place < len(added) else None
        if stored is None or fresh is None:
            return fresh if stored is None else stored
        return min(stored, fresh) if forward else max(stored, fresh)

    def _stored(self, gid: int, start: int, *, forward: bool) -> int | None:
        """Returns the nearest start in the store that wasn't removed since."""
        removed = self._removed.get(gid, ())
        prefix = self._prefix + struct.pack(">Q", gid)
        found: int | None = start
        while found is not None:
            key = self._store.neighbour(self._key(gid, found), prefix, forward=forward)
            found = None if key is None else _KEY.unpack(key[-_KEY.size:])[1] - _SIGN
            if found not in removed:
                return found
        return None

    def _key(self, gid: int, start: int) -> bytes:
        return self._prefix + _KEY.pack(gid, start + _SIGN)
