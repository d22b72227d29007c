"""Recalculation: reads what updates and deletes touched back from the vnode's store, and replaces what was sent.

The fast path adds rows; this one is exact for any change. Both must give the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.planner.stream import StreamPlan
from penstock.planner.windows import end_of, grid_of
from penstock.tasks.compute import GROUP, WINDOW_START
from penstock.tasks.first_stage import FirstStage
from penstock.wal.record import DeleteRecord

WINDOWS_PER_READ = 1_000

ReadRows = Callable[[pa.Array | None, int, int, int], pa.Table]
"""(tuids or None, first_ts, last_ts, as_of) -> the relation `rows` of the vnode's store at that WAL version."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a block of WAL records changes in a way that adding rows can't express.

    `rows`: all rows of the block (or None), `updated`: which of them rewrite a key. `before`, `after`: the WAL
    versions around the block.
    """

    rows: pa.Table | None
    updated: npt.NDArray[np.bool_] | None
    deletes: tuple[DeleteRecord, ...]
    before: int
    after: int


class Recalculation:
    """Answers, for one vnode, which parts of the results a change invalidates, and what they are now."""

    def __init__(
        self, plan: StreamPlan, first_stage: FirstStage, schema: pa.Schema, read_rows: ReadRows
    ) -> None:
        self._plan = plan
        self._first_stage = first_stage
        self._schema = schema
        self._read_rows = read_rows
        self._time = plan.source.time_column
        self._grid = (grid_of(plan.agg.window, plan.agg.precision, plan.agg.time_zone)
                      if plan.agg is not None and plan.agg.window is not None else None)

    def windows(
        self, change: Change, added: pa.RecordBatch | None
    ) -> tuple[pa.RecordBatch | None, list[pa.RecordBatch]]:
        """Returns the partials that may still be added, and those that replace this vnode's contribution.

        A (group, window) is recalculated if a changed row was in it before the block, or if one came into it with the
        block; then nothing of the block is added to it.
        """
        sources = []
        touched = self.changed_rows(change)
        if touched is not None:
            sources.append(self._partials(touched))
        sources.append(self._partials(self.old_rows(change)))
        known: dict[tuple[int, int], pa.RecordBatch] = {}
        for source in sources:
            for row, window in enumerate(_windows_of(source)):
                known.setdefault(window, source.slice(row, 1))
        if not known:
            return added, []
        rest = None if added is None else _without(added, known.keys())
        replaced: list[pa.RecordBatch] = []
        for first, last, members in self._runs(known.keys()):
            tuids = (pa.array(sorted({gid for gid, _ in members}), pa.uint64())
                     if self._plan.source.group_is_table else None)
            fresh = self._partials(self._read_rows(tuids, first, last, change.after))
            replaced.append(_only(fresh, members))
            present = set(_windows_of(fresh))
            gone = [known[window] for window in members if window not in present]
            if gone:
                replaced.append(self._emptied(gone))
        return rest, [batch for batch in replaced if batch.num_rows]

    def rows(self, change: Change, added: pa.RecordBatch | None) -> list[tuple[int, pa.RecordBatch]]:
        """Returns (operation, result rows) of a scalar stream: rows that are gone are deleted, others are written."""
        # An earlier attempt may have read the block in pieces, and written versions of a key that are over by its end.
        old = self._partials(self.old_rows(change))
        touched = self.changed_rows(change)
        if touched is not None:
            old = pa.concat_batches([old, self._partials(touched)])
        new = self._partials(self._current_rows(change))
        kept = set(_keys_of(new))
        # With a composite key a delete takes all rows of its time along; `new` has those that stay.
        composite = self._plan.sink.key_column is not None
        left = set(_keys_of(new, composite))
        gone = [row for row, key in enumerate(_keys_of(old, composite)) if key not in left]
        result = [(1, old.take(pa.array(gone, pa.int64()))), (0, new)]
        if added is not None:
            changed = set(_keys_of(old)) | kept
            rest = [row for row, key in enumerate(_keys_of(added)) if key not in changed]
            result.append((0, added.take(pa.array(rest, pa.int64()))))
        return result

    # -- which rows ------------------------------------------------------------------------------------------

    def changed_rows(self, change: Change) -> pa.Table | None:
        """Returns the rows of the block whose key is rewritten in it or that fall into a delete's range.

        That includes the older versions of a key that came in the same block: they must not be added either.
        """
        if change.rows is None:
            return None
        ts = change.rows.column(self._time).to_numpy()
        tuids = change.rows.column("_tuid").to_numpy()
        chosen = np.zeros(len(ts), bool)
        if change.updated is not None:
            keys = np.rec.fromarrays([tuids, ts])
            chosen = np.isin(keys, keys[change.updated])
        for delete in change.deletes:
            inside = (ts >= delete.first_ts) & (ts <= delete.last_ts)
            if delete.tuids is not None:
                inside &= np.isin(tuids, np.array(delete.tuids, np.uint64))
            chosen |= inside
        return change.rows.filter(pa.array(chosen)) if chosen.any() else None

    def old_rows(self, change: Change) -> pa.Table:
        """Returns the rows, as of before the block, whose key it rewrites or that lie in a delete's range."""
        return self._affected(change, change.before)

    def _current_rows(self, change: Change) -> pa.Table:
        return self._affected(change, change.after)

    def _affected(self, change: Change, as_of: int) -> pa.Table:
        """Returns the stored rows, as of a version, whose key is rewritten or that lie in a delete's range."""
        found: list[pa.Table] = []
        if change.rows is not None and change.updated is not None:
            keys = change.rows.filter(pa.array(change.updated)).select(["_tuid", self._time])
            ts = keys.column(self._time).to_numpy()
            tuids = pa.array(np.unique(keys.column("_tuid").to_numpy()), pa.uint64())
            stored = self._read_rows(tuids, int(ts.min()), int(ts.max()), as_of)
            wanted = set(zip(keys.column("_tuid").to_pylist(), ts.tolist(), strict=True))
            mask = [key in wanted for key in zip(stored.column("_tuid").to_pylist(),
                                                 stored.column(self._time).to_pylist(), strict=True)]
            found.append(stored.filter(pa.array(mask, pa.bool_())))
        for delete in change.deletes:
            tuids = None if delete.tuids is None else pa.array(delete.tuids, pa.uint64())
            found.append(self._read_rows(tuids, delete.first_ts, delete.last_ts, as_of))
        return pa.concat_tables(found, promote_options="default")

    # -- which windows -----------------------------------------------------------------------------------------

    def _runs(self, windows: Iterable[tuple[int, int]]) -> list[tuple[int, int, set[tuple[int, int]]]]:
        """Returns (first ts, last ts, windows) per read: neighbouring windows together, within a bound."""
        assert self._grid is not None
        runs: list[tuple[int, int, set[tuple[int, int]]]] = []
        starts: dict[int, set[tuple[int, int]]] = {}
        for window in windows:
            starts.setdefault(window[1], set()).add(window)
        for start in sorted(starts):
            last = end_of(start, self._grid) - 1
            if runs and start <= runs[-1][1] + 1 and len(runs[-1][2]) < WINDOWS_PER_READ:
                first, previous_last, members = runs[-1]
                runs[-1] = (first, max(last, previous_last), members | starts[start])
            else:
                runs.append((start, last, starts[start]))
        return runs

    def _partials(self, rows: pa.Table) -> pa.RecordBatch:
        return self._first_stage.compute(rows)

    def _emptied(self, rows: list[pa.RecordBatch]) -> pa.RecordBatch:
        """Returns partials that say: nothing of this vnode is left in these windows."""
        table = pa.Table.from_batches(rows)
        count = table.num_rows
        width = 3 + len(self._plan.keys)
        columns = [table.column(n).combine_chunks() for n in range(width - 1)]
        columns.append(pa.repeat(pa.scalar(0, pa.int64()), count))
        columns += [pa.nulls(count, field.type) for field in list(self._schema)[width:]]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _windows_of(partials: pa.RecordBatch) -> list[tuple[int, int]]:
    return list(zip(partials.column(GROUP.name).to_pylist(), partials.column(WINDOW_START.name).to_pylist(),
                    strict=True))


def _keys_of(results: pa.RecordBatch, composite: bool = False) -> list[tuple[Any, ...]]:
    """(group, primary timestamp) of scalar results, with `composite` the second part of the key too."""
    names = [GROUP.name, "r0", "r1"] if composite else [GROUP.name, "r0"]
    return list(zip(*(results.column(name).to_pylist() for name in names), strict=True))


def _only(partials: pa.RecordBatch, windows: Iterable[tuple[int, int]]) -> pa.RecordBatch:
    wanted = set(windows)
    return partials.filter(pa.array([window in wanted for window in _windows_of(partials)], pa.bool_()))


def _without(partials: pa.RecordBatch, windows: Iterable[tuple[int, int]]) -> pa.RecordBatch:
    unwanted = set(windows)
    return partials.filter(pa.array([window not in unwanted for window in _windows_of(partials)], pa.bool_()))
