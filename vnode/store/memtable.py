"""Rows that are in the log, but not yet in a part: immutable sorted runs, merged while they are small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.vnode.store.key_search import KeySearch
from penstock.vnode.store.sorted_keys import (
    I64,
    U64,
    Index,
    ascending,
    key_order,
    run_starts,
    run_stops,
    times_of,
    tuids_of,
)
from penstock.wal.packed_rows import RowFormat

VERSION_COLUMN = "_ver"
FAN_IN = 32
MERGE_BELOW = 512  # larger runs are cheap enough to stay as they are, as long as nobody looks rows up in many of them
LOOKED_UP_FAN_IN = 8
_LOOKED_UP_LIMITS = tuple(MERGE_BELOW * LOOKED_UP_FAN_IN ** level for level in (1, 2))
_WAITING_MAX = 4096  # rows that come one by one, or a few at a time, and wait to become a run

TimeRange = tuple[int, int]

RowKey = tuple[Any, ...]
"""The uid of a row's child table, its time as an integer, and, of a composite key, the value of the second column."""


def join_ranges(ranges: Sequence[TimeRange | None]) -> TimeRange | None:
    """Returns the smallest range around all of them, or None when there is none."""
    found = [r for r in ranges if r is not None]
    return (min(r[0] for r in found), max(r[1] for r in found)) if found else None


def clipped(span: TimeRange, first: int, last: int) -> TimeRange | None:
    """Returns the part of a range that lies in another one, both inclusive; None if none does."""
    low, high = max(span[0], first), min(span[1], last)
    return (low, high) if low <= high else None


@dataclass(frozen=True, slots=True)
class Run:
    """Rows sorted by (_tuid, ts): `_tuid`, physical columns, `_ver`. Also the form in which parts are read back.

    `updates`: the range of ts in which rows may replace older versions of the same key (None: no row does).
    """

    data: pa.RecordBatch
    tuid: U64
    ts: I64
    version: U64
    min_ts: int
    max_ts: int
    min_version: int
    max_version: int
    updates: TimeRange | None
    names: dict[str, int] = field(repr=False)
    _orders: dict[str, Index] = field(default_factory=dict, repr=False, compare=False)
    _keys: list[KeySearch] = field(default_factory=list, repr=False, compare=False)  # at most one

    @classmethod
    def of(cls, data: pa.RecordBatch, updates: TimeRange | None, one_version: U64 | None = None) -> Run:
        """Wraps a sorted batch whose first column is `_tuid`, second ts and last `_ver`.

        `one_version`: the values of `_ver` where they are known to be the same.
        """
        ts = times_of(data.column(1))
        if one_version is None:
            version: U64 = data.column(data.num_columns - 1).to_numpy()
            low, high = int(version.min()), int(version.max())
        else:
            version = one_version
            low = high = int(version[0])
        return cls(data, tuids_of(data.column(0)), ts, version, int(ts.min()), int(ts.max()), low, high, updates,
                   {name: i for i, name in enumerate(data.schema.names)})

    @property
    def num_rows(self) -> int:
        return len(self.tuid)

    def slice(self, start: int, stop: int) -> Run:
        """Returns some of the rows, uncopied; at least one."""
        return Run.of(self.data.slice(start, stop - start), self.updates)

    def where(self, chosen: npt.NDArray[np.bool_]) -> Run:
        """Returns the chosen rows; at least one."""
        return Run.of(self.data.filter(pa.array(chosen)), self.updates)

    def column(self, name: str) -> pa.Array | None:
        """Returns a column, or None when the run is older than the column."""
        index = self.names.get(name)
        return None if index is None else self.data.column(index)

    def order(self, name: str) -> Index:
        """Returns the rows in the order of a column's whole numbers, found when it is first asked for."""
        if name not in self._orders:
            self._orders[name] = order_of(self.data.column(self.names[name]))
        return self._orders[name]

    def keys(self) -> KeySearch:
        """Returns what finds rows by their keys, made when it is first asked for."""
        if not self._keys:
            self._keys.append(KeySearch(self.tuid, self.ts))
        return self._keys[0]


def between(runs: Sequence[Run], first_ts: int, last_ts: int) -> list[Run]:
    """Returns the runs that may have rows between two times, both included."""
    return [run for run in runs if run.max_ts >= first_ts and run.min_ts <= last_ts]


def order_of(numbers: pa.Array) -> Index:
    """Returns the positions of whole numbers in ascending order, NULL being like 0."""
    return np.argsort(whole_numbers(numbers), kind="stable").astype(np.int32)


def whole_numbers(numbers: pa.Array) -> npt.NDArray[np.integer[Any]]:
    """Returns the numbers as they are, 0 for NULL."""
    found: npt.NDArray[np.integer[Any]] = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    return found


def as_table(runs: Sequence[Run]) -> pa.Table:
    """Returns the rows of all runs one after the other, mostly uncopied; columns that a run lacks are NULL."""
    schemas = [run.data.schema for run in runs]
    batches = [run.data for run in runs]
    if any(not schema.equals(schemas[0]) for schema in schemas[1:]):
        names = list(dict.fromkeys(n for s in schemas for n in s.names if n != VERSION_COLUMN))
        types = {f.name: f.type for s in schemas for f in s}
        target = pa.schema([(n, types[n]) for n in [*names, VERSION_COLUMN]])
        batches = [conform(batch, target) for batch in batches]
    return pa.Table.from_batches(batches)


def conform(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Returns the batch with exactly the columns of `target`: missing ones NULL, others left out."""
    present = {name: i for i, name in enumerate(batch.schema.names)}
    columns = [batch.column(present[f.name]) if f.name in present else pa.nulls(batch.num_rows, f.type)
               for f in target]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def merge(runs: Sequence[Run]) -> Run:
    """Returns one sorted run with all rows and versions of `runs`."""
    data = pa.concat_batches(as_table(runs).to_batches())
    tuid, ts = tuids_of(data.column(0)), times_of(data.column(1))
    if not ascending(tuid, ts):
        version: U64 = data.column(data.num_columns - 1).to_numpy()
        data = data.take(pa.array(key_order(tuid, ts, None, version)))
    return Run.of(data, join_ranges([run.updates for run in runs]))


class Memtable:
    """The runs of one table in the order in which they were written. Guarded by `TableStore.lock`.

    Rows that come one by one, packed, or a few at a time, as columns, wait until somebody asks for the runs, or until
    there are many of them; then they become a run.
    """

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self.num_rows = 0
        self.num_bytes = 0
        self._small = 0  # how many runs at the end are small
        self._waiting = 0  # rows, all of one schema
        self._packed: list[bytes] = []
        self._packed_versions: list[int] = []
        self._layout: RowFormat | None = None  # of what is packed
        self._newest: dict[RowKey, int] = {}  # of packed rows, the newest version of each key
        self._few: list[pa.RecordBatch] = []
        self._few_versions: list[int] = []
        self._updates: TimeRange | None = None  # of what waits

    @property
    def runs(self) -> list[Run]:
        self.settle()
        return self._runs

    def append_packed(self, row: bytes, key: RowKey, version: int, layout: RowFormat, updates: bool) -> None:
        """Adds a row in the packed form of `layout`, which is that of `_tuid` and all columns.

        `updates`: whether it replaces an older version.
        """
        self._layout = layout
        self._packed.append(row)
        self._packed_versions.append(version)
        self._newest[key] = version
        self._note_waiting(1, len(row), (key[1], key[1]) if updates else None)

    def packed_version(self, key: RowKey) -> int | None:
        """Returns the newest version of a key if it is known to be that of a row that is still packed."""
        return None if self._few else self._newest.get(key)

    def append_few(self, rows: pa.RecordBatch, version: int, updates: TimeRange | None, nbytes: int) -> None:
        """Adds a few rows: `_tuid` and all columns, sorted by key. `updates`: see `Run`."""
        self._few.append(rows)
        self._few_versions.append(version)
        self._note_waiting(rows.num_rows, nbytes, updates)

    def _note_waiting(self, rows: int, nbytes: int, updates: TimeRange | None) -> None:
        self.num_rows += rows
        self.num_bytes += nbytes
        self._waiting += rows
        if updates is not None:
            self._updates = join_ranges([self._updates, updates])
        if self._waiting >= _WAITING_MAX:
            self.settle()

    def settle(self) -> None:
        """Makes a run of the rows that wait, before others have another schema; where a key comes twice, in order."""
        if not self._waiting:
            return
        batches, updates = self._few, self._updates
        versions = np.repeat(np.array(self._few_versions, np.uint64), [batch.num_rows for batch in batches])
        if self._packed:
            assert self._layout is not None
            batches.append(self._layout.unpack(b"".join(self._packed), list(map(len, self._packed)), null_maps=True))
            versions = np.concatenate([versions, np.array(self._packed_versions, np.uint64)])
        self._waiting, self._updates, self._newest = 0, None, {}
        self._packed, self._packed_versions, self._few, self._few_versions = [], [], [], []
        rows = pa.concat_batches(batches)
        tuid, ts = tuids_of(rows.column(0)), times_of(rows.column(1))
        if not ascending(tuid, ts):
            order = key_order(tuid, ts, None, versions)
            rows, versions = rows.take(pa.array(order)), versions[order]
        schema = rows.schema.remove_metadata().append(pa.field(VERSION_COLUMN, pa.uint64()))
        self._add(Run.of(pa.RecordBatch.from_arrays([*rows.columns, pa.array(versions)], schema=schema), updates))

    def append(self, run: Run, nbytes: int) -> None:
        """Adds a run of `nbytes`, and merges the last FAN_IN if all are small: one-row writes must not pile up."""
        self.settle()
        self.num_rows += run.num_rows
        self.num_bytes += nbytes
        self._add(run)

    def _add(self, run: Run) -> None:
        self._runs.append(run)
        self._small = self._small + 1 if run.num_rows < MERGE_BELOW else 0
        if self._small >= FAN_IN:
            merged = merge(self._runs[-FAN_IN:])
            self._runs[-FAN_IN:] = [merged]
            self._small = 1 if merged.num_rows < MERGE_BELOW else 0

    def runs_between(self, first_ts: int, last_ts: int) -> list[Run]:
        """Returns the runs that may have rows between two times, for somebody who looks into each of them.

        Where these are many, some runs are merged before: so their number grows with the logarithm of that of rows.
        Who only appends pays nothing for that.
        """
        self.settle()
        return self.unpacked_between(first_ts, last_ts)

    def unpacked_between(self, first_ts: int, last_ts: int) -> list[Run]:
        """Does so for all rows but those that are packed, and leaves these as they are; see `packed_version`."""
        if self._few:
            self.settle()
        found = between(self._runs, first_ts, last_ts)
        return between(self._runs, first_ts, last_ts) if (
            len(found) >= LOOKED_UP_FAN_IN and self._merge_some()) else found

    def _merge_some(self) -> bool:
        """Merges some neighbours of about one size, of those at the end, and returns whether there were enough."""
        for limit in _LOOKED_UP_LIMITS:
            start = next((behind for behind in range(len(self._runs), 0, -1)
                          if self._runs[behind - 1].num_rows > limit), 0)
            stop = start + LOOKED_UP_FAN_IN
            if stop <= len(self._runs):
                self._runs[start:stop] = [merge(self._runs[start:stop])]
                self._small = min(self._small, len(self._runs) - start - 1)
                return True
        return False

    def take_all(self) -> list[Run]:
        """Empties the memtable and returns what was in it."""
        runs, self._runs = self.runs, []
        self.num_rows = self.num_bytes = self._small = 0
        return runs

    def take_until(self, version: int) -> list[Run]:
        """Takes out what was written up to a version, and returns it."""
        runs = self.take_all()
        for run in runs:
            if run.max_version > version:
                later = run if run.min_version > version else run.where(run.version > version)
                self.append(later, later.data.nbytes)
        return [run if run.max_version <= version else run.where(run.version <= version)
                for run in runs if run.min_version <= version]

    def put_back(self, runs: Sequence[Run]) -> None:
        """Puts older runs back in front after a failed flush."""
        self._runs[:0] = runs
        self.num_rows += sum(run.num_rows for run in runs)
        self.num_bytes += sum(run.data.nbytes for run in runs)


def newest_times(tuid: U64, ts: I64, starts: Index | None = None) -> tuple[U64, I64]:
    """Returns each tuid once and its greatest ts, of rows sorted by (tuid, ts); `starts` as `run_starts` gives them."""
    if not len(tuid):
        return tuid, ts
    if starts is None:
        starts = run_starts(tuid)
    return tuid[starts], ts[run_stops(starts, len(tuid)) - 1]
