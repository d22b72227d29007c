"""The rows of one side of a join, as far as they may still count: columns in order of time, cut into leaves.

Leaves that changed are written to the store at checkpoints, and when memory is short; others cost nothing there. A row
is told by its table, its time, and its key column if there is one.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.common.arrow_data import from_ipc, to_ipc
from penstock.tasks.protocol.block_schema import OPERATION, REPLAYED_ROWS
from penstock.tasks.state.state_store import StateStore
from penstock.vnode.store.sorted_keys import TS_MIN, key_codes

Times = npt.NDArray[np.int64]

_LEAF, _AFTER_LEAVES, _NEWEST = b"L", b"M", b"N"
_FIRST = struct.Struct(">Q")
_SIGN = 1 << 63
TIME, KEY = "r0", "r1"


@dataclass(eq=False, slots=True)
class Leaf:
    """Rows from `first` on up to the next leaf, in order of time; `rows` is None while they are in the store only.

    `used`: when it was read last, by the number of reads.
    """

    first: int
    rows: pa.RecordBatch | None
    count: int
    last_ts: int
    nbytes: int
    changed: bool = False
    used: int = 0


class SideRows:
    """Rows with the columns of `schema`: `_gid`, `_tuid`, `r0` (their time), ...; `keyed`: `r1` is a part of their key.

    `prefix` is its place in the store, one byte. `leaf_rows`: how many rows a leaf has at most, about.
    """

    def __init__(
        self, store: StateStore, prefix: bytes, schema: pa.Schema, *, keyed: bool, leaf_rows: int = 16_384
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._schema = schema
        self._keyed = keyed
        self._leaf_rows = leaf_rows
        self._leaves: list[Leaf] = []
        self._firsts: list[int] = []
        self._gone: list[int] = []
        self._reads = 0
        #: rows of forgotten times that are the newest of their keys
        self._newest = _empty(schema)
        self._newest_changed = False
        self._bytes = 0

    # -- reading ---------------------------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        return self._bytes + int(self._newest.nbytes)

    @property
    def count(self) -> int:
        return sum(leaf.count for leaf in self._leaves) + int(self._newest.num_rows)

    def between(self, first: int, last: int) -> pa.Table:
        """Returns the rows with first <= time <= last, in order of time."""
        return pa.Table.from_batches(self._pieces(first, last), schema=self._schema)

    def until(self, last: int) -> pa.Table:
        """Returns the rows with time <= last, those among them too that are only kept as the newest of their keys."""
        return pa.Table.from_batches([self._newest, *self._pieces(TS_MIN, last)], schema=self._schema)

    def first_from(self, ts: int) -> int | None:
        """Returns the least time of a row that isn't before `ts`, or None."""
        for leaf in self._leaves[max(0, bisect_right(self._firsts, ts) - 1):]:
            if leaf.count and leaf.last_ts >= ts:
                times = _times(self._rows(leaf))
                return int(times[np.searchsorted(times, ts)])
        return None

    @property
    def last_ts(self) -> int | None:
        """The greatest time of a row, or None."""
        return max((leaf.last_ts for leaf in self._leaves if leaf.count), default=None)

    def end_of_rows(self, first: int, last: int, rows: int) -> int:
        """Returns `last`, or the end of a leaf before it up to which there are about so many rows from `first` on."""
        seen = 0
        for leaf in self._leaves[max(0, bisect_right(self._firsts, first) - 1):]:
            seen += leaf.count
            if seen >= rows and first <= leaf.last_ts < last:
                return leaf.last_ts
        return last

    def _pieces(self, first: int, last: int) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = []
        for leaf in self._leaves[max(0, bisect_right(self._firsts, first) - 1):bisect_right(self._firsts, last)]:
            if not leaf.count or leaf.last_ts < first:
                continue
            rows = self._rows(leaf)
            times = _times(rows)
            start, end = int(np.searchsorted(times, first)), int(np.searchsorted(times, last, side="right"))
            if end > start:
                found.append(rows.slice(start, end - start))
        return found

    def _rows(self, leaf: Leaf) -> pa.RecordBatch:
        self._reads += 1
        leaf.used = self._reads
        if leaf.rows is None:
            (stored,) = self._store.get_many([self._key(leaf.first)])
            assert stored is not None
            leaf.rows = from_ipc(stored)
            self._bytes += leaf.nbytes
        return leaf.rows

    # -- changing --------------------------------------------------------------------------------------------

    def apply(self, changes: pa.RecordBatch) -> None:
        """Takes rows with `_op`, even to put or odd to remove, in their order: later ones win."""
        times = _times(changes)
        if not len(times):
            return
        if not self._leaves:
            self._insert(0, Leaf(TS_MIN, _empty(self._schema), 0, TS_MIN, 0))
        place = np.searchsorted(np.array(self._firsts), times, side="right") - 1
        touched = np.unique(place)
        # From the last on: those that are split move only what is behind them.
        for number in touched[::-1].tolist():
            part = changes if len(touched) == 1 else changes.filter(pa.array(place == number))
            self._merge(number, part)

    def _merge(self, number: int, part: pa.RecordBatch) -> None:
        leaf = self._leaves[number]
        known = self._rows(leaf)
        fresh = part.select(self._schema.names)
        kept = np.ones(known.num_rows + part.num_rows, bool)
        kept[known.num_rows:] = part.column(OPERATION.name).to_numpy() % REPLAYED_ROWS == 0
        merged = pa.concat_batches([known, fresh])
        times, tuids = _times(merged), merged.column("_tuid").to_numpy()
        codes = [tuids, times] if not self._keyed else [key_codes(merged.column(KEY)), tuids, times]
        order = np.lexsort(codes)  # of equal ones the later stays last
        same = np.ones(max(len(order) - 1, 0), bool)
        for values in codes:
            ordered = values[order]
            same &= ordered[1:] == ordered[:-1]
        last = np.ones(len(order), bool)
        last[:-1] = ~same
        self._replace(number, merged.take(pa.array(order[last & kept[order]])))

    def _replace(self, number: int, rows: pa.RecordBatch) -> None:
        """Puts rows in the place of a leaf's; many become several leaves."""
        leaf = self._leaves[number]
        times = _times(rows)
        starts = [0]
        if len(times) > self._leaf_rows:
            step = self._leaf_rows // 2
            while len(times) - starts[-1] > self._leaf_rows:
                cut = int(np.searchsorted(times, times[starts[-1] + step]))
                if cut <= starts[-1]:  # all of one time
                    cut = int(np.searchsorted(times, times[starts[-1]], side="right"))
                if cut >= len(times):
                    break
                starts.append(cut)
        pieces = [rows.slice(start, end - start) for start, end in zip(starts, [*starts[1:], len(times)], strict=True)]
        if len(pieces) > 1:
            pieces = [piece.take(pa.array(np.arange(piece.num_rows))) for piece in pieces]  # each has memory of its own
        self._set(leaf, pieces[0])
        for further, (start, piece) in enumerate(zip(starts[1:], pieces[1:], strict=True), number + 1):
            new = Leaf(int(times[start]), None, 0, TS_MIN, 0, used=self._reads)
            self._insert(further, new)
            self._set(new, piece)

    def _set(self, leaf: Leaf, rows: pa.RecordBatch) -> None:
        if leaf.rows is not None:
            self._bytes -= leaf.nbytes
        leaf.rows, leaf.count, leaf.nbytes, leaf.changed = rows, rows.num_rows, rows.nbytes, True
        leaf.last_ts = int(_times(rows)[-1]) if rows.num_rows else TS_MIN
        self._bytes += leaf.nbytes

    def _insert(self, number: int, leaf: Leaf) -> None:
        self._leaves.insert(number, leaf)
        self._firsts.insert(number, leaf.first)

    def forget(self, before: int, newest: Callable[[pa.Table], pa.RecordBatch] | None = None) -> None:
        """Lets go of rows before a time, of some not at once. `newest` returns those of them that still count."""
        gone: list[pa.RecordBatch] = []
        while len(self._leaves) > 1 and self._firsts[1] <= before:
            leaf = self._leaves[0]
            if newest is not None and leaf.count:
                gone.append(self._rows(leaf))
            if leaf.rows is not None:
                self._bytes -= leaf.nbytes
            self._gone.append(leaf.first)
            del self._leaves[0], self._firsts[0]
        if self._leaves:
            self._firsts[0] = TS_MIN  # rows before it may still come
            gone += self._cut(self._leaves[0], before)
        if newest is not None and gone:
            self._newest = newest(pa.Table.from_batches([self._newest, *gone], schema=self._schema))
            self._newest_changed = True

    def _cut(self, leaf: Leaf, before: int) -> list[pa.RecordBatch]:
        """Takes the rows before a time out of a leaf if they are most of it; returns them."""
        if not leaf.count or leaf.rows is None:
            return []
        rows = leaf.rows
        place = int(np.searchsorted(_times(rows), before))
        if place <= rows.num_rows // 2:
            return []
        self._set(leaf, rows.take(pa.array(np.arange(place, rows.num_rows))))
        return [rows.slice(0, place)]

    # -- the store -------------------------------------------------------------------------------------------

    def spill(self, bytes_max: int) -> None:
        """Keeps no more rows in memory than that; those that were read longest ago go first."""
        if self._bytes <= bytes_max:
            return
        for leaf in sorted(self._leaves, key=lambda leaf: leaf.used):
            if self._bytes <= bytes_max // 2:
                return
            if leaf.rows is not None and leaf.count:
                self._write([leaf])
                leaf.rows = None
                self._bytes -= leaf.nbytes

    def save(self) -> None:
        """Hands what changed to the store."""
        present = {leaf.first for leaf in self._leaves}
        self._store.put_many((self._key(first), None) for first in self._gone if first not in present)
        self._gone.clear()
        self._write([leaf for leaf in self._leaves if leaf.changed])
        if self._newest_changed:
            self._store.put_many([(self._prefix + _NEWEST, to_ipc(self._newest).to_pybytes())])
            self._newest_changed = False

    def _write(self, leaves: Sequence[Leaf]) -> None:
        for leaf in leaves:
            if leaf.changed and leaf.rows is not None:
                self._store.put_many([(self._key(leaf.first), to_ipc(leaf.rows).to_pybytes())])
                leaf.changed = False

    def restore(self) -> None:
        """Takes over what the store has."""
        for key, value in self._store.between(self._prefix + _LEAF, self._prefix + _AFTER_LEAVES):
            first = _FIRST.unpack(key[2:])[0] - _SIGN
            leaf = Leaf(first, None, 0, TS_MIN, 0)
            self._insert(len(self._leaves), leaf)
            self._set(leaf, from_ipc(value))
            leaf.changed = False
        (newest,) = self._store.get_many([self._prefix + _NEWEST])
        if newest is not None:
            self._newest = from_ipc(newest)
        if self._leaves and self._firsts[0] != TS_MIN:  # what was before it is forgotten
            self._firsts[0] = TS_MIN

    def _key(self, first: int) -> bytes:
        return self._prefix + _LEAF + _FIRST.pack(first + _SIGN)


def _times(rows: pa.RecordBatch) -> Times:
    times: Times = rows.column(TIME).to_numpy()
    return times


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)
