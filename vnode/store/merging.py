"""Sorted rows of several parts in the order of their keys, a step at a time, so that parts needn't fit into memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from penstock.vnode.store.memtable import Run

Key = tuple[int, int]
"""Child table and time of a row."""

_NOTHING: Key = (-1, 0)


def in_key_order(parts: Sequence[Iterator[Run]], max_bytes: int) -> Iterator[list[Run]]:
    """Yields the rows of all parts in steps, each with greater keys than the steps before; each key in one step only.

    `parts`: of each part its row groups, in the order of their keys; they are taken when they are needed. Held are row
    groups of `max_bytes` and one more, or, where that is more, one of each part; and all rows of one key.
    """
    waiting = [_Part(groups) for groups in parts]
    growing = list(waiting)
    while growing:
        min(growing, key=_Part.reached).read()
        growing = [part for part in growing if part.has_more]
        if sum(part.nbytes for part in waiting) >= max_bytes and all(part.nbytes for part in growing):
            end = min((part.reached() for part in growing), default=None)
            if step := [run for part in waiting for run in part.take(end)]:
                yield step
    if step := [run for part in waiting for run in part.take(None)]:
        yield step


class _Part:
    """The row groups of one part that were read and not all taken yet."""

    def __init__(self, groups: Iterator[Run]) -> None:
        self._groups = groups
        self._held: deque[tuple[Run, int]] = deque()  # what is left of a group, and what all of it takes
        self.nbytes = 0
        self.has_more = True

    def reached(self) -> Key:
        """Returns the key of the last row that was read; it may have more rows."""
        return _key(self._held[-1][0], -1) if self._held else _NOTHING

    def read(self) -> None:
        group = next(self._groups, None)
        self.has_more = group is not None
        if group is not None:
            self._held.append((group, group.data.nbytes))
            self.nbytes += group.data.nbytes

    def take(self, end: Key | None) -> Iterator[Run]:
        """Yields and forgets the rows with keys below `end`, None: all."""
        while self._held:
            run, nbytes = self._held[0]
            count = run.num_rows if end is None or _key(run, -1) < end else _position(run, end)
            if count < run.num_rows:
                if count:
                    yield run.slice(0, count)
                    self._held[0] = run.slice(count, run.num_rows), nbytes
                return
            yield run
            self._held.popleft()
            self.nbytes -= nbytes


def _key(run: Run, row: int) -> Key:
    return int(run.tuid[row]), int(run.ts[row])


def _position(run: Run, key: Key) -> int:
    """Returns how many rows of a run are before a key."""
    tuid, ts = key
    first = int(run.tuid.searchsorted(run.tuid.dtype.type(tuid), "left"))
    behind = int(run.tuid.searchsorted(run.tuid.dtype.type(tuid), "right"))
    return first + int(run.ts[first:behind].searchsorted(ts, "left"))
