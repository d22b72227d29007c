"""The newest rows of a vnode in a source task's memory: what is rewritten is mostly there, and not read back.

A task whose rows are being rewritten keeps those of the last blocks of its log. A time behind which all stored rows
came with these blocks is known as well: what lies behind it can be had here, as of before the last block or behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.planner.task_plans.kernel_spec import Panes
from penstock.tasks.compute.id_time_pairs import among, last_ones

_QUIET_BLOCKS = 64
"""After so many blocks without an update rows are kept no more."""

_JOINED_ROWS = 16_384
"""Blocks of fewer rows together become one."""

Tuids = npt.NDArray[np.uint64]
Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _KeptBlock:
    """Rows in the order in which they came."""

    rows: pa.Table
    tuids: Tuids
    ts: Times

    @classmethod
    def of(cls, rows: pa.Table, ts: Times) -> _KeptBlock:
        return cls(rows, rows.column("_tuid").to_numpy(), ts)

    def chosen(self, places: npt.NDArray[np.int64]) -> _KeptBlock:
        return _KeptBlock(self.rows.take(pa.array(places)), self.tuids[places], self.ts[places])


class RecentRows:
    """Rows of the relation `rows`, up to `bytes_max` of them."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._blocks: list[_KeptBlock] = []
        self._schema = pa.schema([])
        self._behind: int | None = None  # of the rows up to that time some aren't here; None: nothing is kept
        self._quiet = 0
        self._before = self._after = 0

    @property
    def keeps(self) -> bool:
        """Whether blocks are taken although none of their rows rewrites another."""
        return self._behind is not None

    @property
    def memory_bytes(self) -> int:
        """Bytes of the rows, some of which may be shared with other tasks."""
        return sum(block.rows.nbytes for block in self._blocks)

    def take(self, rows: pa.Table, ts: Times, before: int, after: int, newest: int, *, updates: bool) -> None:
        """Takes the rows of the next block: all that the log has between two versions.

        `ts`: their times. `newest`: the greatest time that any row has which was stored before. `updates`: whether some
        of them rewrite others.
        """
        if updates:
            self._quiet = 0
            if self._behind is None:
                self._behind = newest
        else:
            self._quiet += 1
        if self._quiet > _QUIET_BLOCKS:
            self.forget()
        if self._behind is None:
            return
        # The newest one stays by itself, so that what was there before it can be told; small ones before it become one.
        while len(self._blocks) > 1 and self._blocks[-2].rows.num_rows <= min(
                2 * self._blocks[-1].rows.num_rows, _JOINED_ROWS - self._blocks[-1].rows.num_rows):
            last, other = self._blocks.pop(), self._blocks.pop()
            self._blocks.append(_KeptBlock(pa.concat_tables([other.rows, last.rows]).combine_chunks(),
                                           np.concatenate([other.tuids, last.tuids]),
                                           np.concatenate([other.ts, last.ts])))
        self._blocks.append(_KeptBlock.of(rows, ts))
        self._schema = rows.schema
        self._before, self._after = before, after

    def settle(self) -> None:
        """Ends a block: lets go of the oldest rows if there are too many."""
        spare = self.memory_bytes - self._bytes_max
        while spare > 0:
            assert self._behind is not None
            oldest = self._blocks.pop(0)
            spare -= oldest.rows.nbytes
            self._behind = max(self._behind, int(oldest.ts.max()))

    def forget(self) -> None:
        """Rows are no longer what the blocks said, or aren't needed any more."""
        self._blocks, self._behind, self._quiet = [], None, 0

    def known_behind(self, as_of: int) -> int | None:
        """Returns the time behind which all rows as of a version are here; None if that isn't so of any time."""
        return None if self._behind is None or self._seen(as_of) is None else self._behind

    def of_keys(self, tuids: Tuids, ts: Times, as_of: int) -> pa.Table:
        """Returns the newest version, as of one of the log, of rows with some keys, all behind `known_behind`."""
        first, last = int(ts.min()), int(ts.max())

        def rewritten(block: _KeptBlock) -> npt.NDArray[np.int64]:
            near = np.flatnonzero((block.ts >= first) & (block.ts <= last))
            return near[among(block.tuids[near], block.ts[near], tuids, ts)]

        return self._newest(as_of, rewritten)

    def of_windows(self, gids: Tuids, starts: Times, end: int, panes: Panes | None, as_of: int,
                   gids_of: Callable[[Tuids], Tuids] = lambda tuids: tuids) -> pa.Table:
        """Returns the rows of some windows, and maybe others; see `of_keys`.

        `starts`: ascending; `end`: of the last window. `panes`: of windows that don't overlap, whose groups are those
        of the rows' child tables, `gids_of`; None: all rows of the windows' time are returned.
        """
        first = int(starts[0])

        def inside(block: _KeptBlock) -> npt.NDArray[np.int64]:
            near = np.flatnonzero((block.ts >= first) & (block.ts < end))
            if panes is None or not len(near):
                return near
            ts = block.ts[near]
            return near[among(gids_of(block.tuids[near]), ts - (ts - panes.offset) % panes.step, gids, starts)]

        return self._newest(as_of, inside)

    def _seen(self, as_of: int) -> list[_KeptBlock] | None:
        """Returns the blocks up to a version; None if that is another one than before the last block, or behind it."""
        if as_of >= self._after:
            return self._blocks
        return self._blocks[:-1] if as_of == self._before else None

    def _newest(self, as_of: int, places: Callable[[_KeptBlock], npt.NDArray[np.int64]]) -> pa.Table:
        blocks = self._seen(as_of)
        assert blocks is not None
        found = [block.chosen(places(block)) for block in blocks]
        if not found:
            return self._schema.empty_table()
        rows = pa.concat_tables([block.rows for block in found])
        tuids, ts = np.concatenate([block.tuids for block in found]), np.concatenate([block.ts for block in found])
        newest = last_ones(tuids, ts)
        return rows if newest.all() else rows.filter(pa.array(newest))
