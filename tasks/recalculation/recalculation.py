"""Recalculation: reads what updates and deletes touched back from the vnode's store, and replaces what was sent.

The fast path adds rows; this one is exact for any change. Both must give the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.planner.duckdb_sql.interval_windows import end_of, latest_end
from penstock.planner.task_plans.stream_plan import JoinPlan, StreamPlan, WindowsPlan
from penstock.tasks.compute.child_tables import MovedTables
from penstock.tasks.compute.deleted_rows import covered
from penstock.tasks.compute.first_stage import FirstStage
from penstock.tasks.compute.id_time_pairs import among, last_ones
from penstock.tasks.compute.kernel_vectors import NotInKernelError
from penstock.tasks.compute.partial_columns import opposite
from penstock.tasks.protocol.block_schema import GROUP, ROWS, WINDOW_START
from penstock.tasks.recalculation.store_range_reader import PieceReader
from penstock.tasks.recalculation.stored_rows import StoredRows
from penstock.vnode.store.sorted_keys import TS_MAX
from penstock.wal.record import AnyDelete, DeletePointsRecord, DeleteRecord

ROWS_PER_READ = 1 << 19
_FIRST_WINDOWS = 1_000
_GROWTH = 8


@dataclass(frozen=True, slots=True)
class Change:
    """What a block of WAL records changes in a way that adding rows can't express.

    `rows`: all rows of the block (or None), `updated`: which of them rewrite a key. `before`, `after`: the WAL
    versions around the block. `moved`: child tables whose rows are in other groups behind it.
    """

    rows: pa.Table | None
    updated: npt.NDArray[np.bool_] | None
    deletes: tuple[AnyDelete, ...]
    before: int
    after: int
    moved: MovedTables | None = None


class Recalculation:
    """Answers, for one vnode, which parts of the results a change invalidates, and what they are now."""

    def __init__(
        self, plan: StreamPlan, first_stage: FirstStage, schema: pa.Schema, stored: StoredRows
    ) -> None:
        self._plan = plan
        self._first_stage = first_stage
        self._schema = schema
        self._stored = stored
        self._time = plan.source.time_column
        self._accumulators = plan.computation.accumulators if isinstance(plan.computation, WindowsPlan) else ()
        # Each read opens all parts of its time, so few reads are best; their size follows what windows held so far.
        self._windows_per_read = _FIRST_WINDOWS
        self._grid = None if plan.time_windows is None else plan.time_windows.grid
        panes = None if plan.source.kernel is None else plan.source.kernel.panes
        # By which rows in memory are told whose window is one of some.
        self._panes = None
        if panes is not None and 0 < panes.step == panes.width and first_stage.groups_are_of_tables:
            self._panes = panes

    def windows(
        self, change: Change, added: Sequence[pa.RecordBatch]
    ) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
        """Returns the partials that may still be added, and those that replace this vnode's contribution.

        A (group, window) is recalculated if a changed row was in it before the block, or if one came into it with the
        block; then nothing of the block is added to it.
        """
        if change.moved is None:
            sources = [self._partials(self.old_rows(change))]
        else:
            sources = [self._keys_only(self._told(rows, children))
                       for rows, children in self.rows_of_moved(change, change.moved)]
        touched = self.changed_rows(change)
        if touched is not None:
            sources.append(self._partials(touched))
        known = _one_per_window(sources) if sources else None
        if known is None or not known.num_rows:
            return list(added), []
        rest = [batch.filter(pa.array(~among(*_windows_of(batch), *_windows_of(known)))) for batch in added]
        return rest, self.contributions(known, change.after)

    def differences(self, change: Change, *, complete: bool) -> tuple[list[pa.RecordBatch], int]:
        """Returns the partials of rows that came, and with the opposite sign of those that went; and how many rows of
        the block WHERE leaves out.

        For plans that retract. Rows that came and went within the block are in both: an attempt before may have written
        a result of them, which is to go. `complete`: rows of the block are as the store has them.
        """
        gone = opposite(self._partials(self._distinct(self.old_rows(change))), self._accumulators)
        rows = change.rows
        if rows is None:
            return [gone, self._partials(self._distinct(self._current_rows(change)))], 0
        if complete and not change.deletes and self._plan.source.key_column is None:
            last = last_ones(rows.column("_tuid").to_numpy(), rows.column(self._time).to_numpy())
            over, came = (self._partials(rows.filter(pa.array(chosen))) for chosen in (~last, last))
            return [gone, came, *self._both_ways(over)], int(last.sum()) - _rows_of(came)
        touched = self._touched(change, rows)
        over, came = (self._partials(rows.filter(pa.array(chosen))) for chosen in (touched, ~touched))
        left_out = rows.num_rows - _rows_of(over) - _rows_of(came)
        current = self._partials(self._distinct(self._current_rows(change)))
        return [gone, came, current, *self._both_ways(over)], left_out

    def _both_ways(self, over: pa.RecordBatch) -> list[pa.RecordBatch]:
        return [over, opposite(over, self._accumulators)] if over.num_rows else []

    def _distinct(self, rows: pa.Table) -> pa.Table:
        """Returns each row once: it may have been rewritten, and lie in the range of several deletes."""
        key = self._plan.source.key_column
        if key is not None:
            names = ["_tuid", self._time, key]
            numbered = rows.select(names).append_column("#row", pa.array(np.arange(rows.num_rows)))
            kept = numbered.group_by(names).aggregate([("#row", "min")]).column("#row_min").to_numpy()
            return rows.take(pa.array(np.sort(kept)))
        last = last_ones(rows.column("_tuid").to_numpy(), rows.column(self._time).to_numpy())
        return rows if last.all() else rows.filter(pa.array(last))

    def contributions(self, known: pa.RecordBatch, as_of: int) -> list[pa.RecordBatch]:
        """Returns what this vnode contributes to some (group, window)s as of a version, also that it is nothing.

        `known`: one partial of each, sorted by start; only its keys count.
        """
        found: list[pa.RecordBatch] = []
        behind = self._stored.recent.known_behind(as_of)
        first_here = known.num_rows if behind is None else int(
            np.searchsorted(_windows_of(known)[1], behind, side="right"))
        for first, last, members in self._runs(known.slice(0, first_here)) if first_here else ():
            rows = self._stored.read(self._first_stage.tables_of(_windows_of(members)[0]), first, last, as_of)
            self._observe(members.num_rows, rows.num_rows)
            found += self._fresh(members, rows)
        here = known.slice(first_here)
        if here.num_rows:
            found += self._fresh(here, self._stored.counting(self._recent_of(here, as_of), as_of))
        return [batch for batch in found if batch.num_rows]

    def _recent_of(self, windows: pa.RecordBatch, as_of: int) -> pa.Table:
        """Returns the rows in memory of some windows, and maybe others."""
        assert self._grid is not None
        gids, starts = _windows_of(windows)
        end, recent = latest_end(int(starts[-1]), self._grid), self._stored.recent
        try:
            return recent.of_windows(gids, starts, end, self._panes, as_of, self._first_stage.gids_of)
        except NotInKernelError:  # rows of tables that nobody has told of
            return recent.of_windows(gids, starts, end, None, as_of)

    def _fresh(self, windows: pa.RecordBatch, rows: pa.Table) -> list[pa.RecordBatch]:
        """Returns what rows, all of some windows among them, come to in these; where none are, that there are none."""
        gids, starts = _windows_of(windows)
        fresh = self._partials(rows)
        gone = ~among(gids, starts, *_windows_of(fresh))
        emptied = [self._emptied(windows.filter(pa.array(gone)))] if gone.any() else []
        return [fresh.filter(pa.array(among(*_windows_of(fresh), gids, starts))), *emptied]

    def rows(self, change: Change, added: pa.RecordBatch | None) -> list[tuple[int, pa.RecordBatch]]:
        """Returns (operation, result rows) of a scalar stream: rows that are gone are deleted, others are written.

        Where rows go to join tasks, they are told apart by their table, too: a group is of many there.
        """
        # An earlier attempt may have read the block in pieces, and written versions of a key that are over by its end.
        old = self._partials(self.old_rows(change))
        touched = self.changed_rows(change)
        if touched is not None:
            old = pa.concat_batches([old, self._partials(touched)])
        new = self._partials(self._current_rows(change))
        names = [GROUP.name, *(["_tuid"] if isinstance(self._plan.computation, JoinPlan) else []), "r0"]
        whole = [*names, "r1"] if self._plan.sink.key_column is not None else names
        kept = set(_keys_of(new, names))
        # With a composite key a delete takes all rows of its time along; `new` has those that stay.
        left = set(_keys_of(new, whole))
        gone = [row for row, key in enumerate(_keys_of(old, whole)) if key not in left]
        result = [(1, old.take(pa.array(gone, pa.int64()))), (0, new)]
        if added is not None:
            changed = set(_keys_of(old, names)) | kept
            rest = [row for row, key in enumerate(_keys_of(added, names)) if key not in changed]
            result.append((0, added.take(pa.array(rest, pa.int64()))))
        return result

    def moved_rows(self, change: Change, moved: MovedTables) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields (operation, result rows) of a scalar stream, as `rows` does."""
        for rows, children in self.rows_of_moved(change, moved):
            yield int(children is not moved.after), self._told(rows, children)

    def _told(self, rows: pa.Table, children: pa.Table) -> pa.RecordBatch:
        """Returns what rows come to if their child tables are called and tagged so."""
        with self._first_stage.told(children):
            return self._partials(rows)

    def rows_of_moved(self, change: Change, moved: MovedTables) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Yields the rows that the stream has seen of child tables that move, with what these were, in order.

        They come by time, some at once: there may be more than memory has room for.
        """
        pieces = PieceReader(lambda: ROWS_PER_READ, self._stored.time_span)
        first = moved.first_ts
        while (piece := pieces.next(first, TS_MAX, change.before)) is not None:
            rows = self._stored.seen(moved.tuids, *piece, change.before)
            pieces.observe(rows.num_rows)
            yield rows, moved.before
            for children in moved.between:
                yield _of(rows, children), children
            with self._first_stage.told(moved.after):
                left = self._stored.tried(_of(rows, moved.after))
            yield left, moved.after
            if piece[1] == TS_MAX:
                return
            first = piece[1] + 1

    # -- which rows ------------------------------------------------------------------------------------------

    def changed_rows(self, change: Change) -> pa.Table | None:
        """Returns the rows of the block whose key is rewritten in it or that fall into a delete's range.

        That includes the older versions of a key that came in the same block: they must not be added either.
        """
        if change.rows is None:
            return None
        chosen = self._touched(change, change.rows)
        return change.rows.filter(pa.array(chosen)) if chosen.any() else None

    def _touched(self, change: Change, rows: pa.Table) -> npt.NDArray[np.bool_]:
        ts = rows.column(self._time).to_numpy()
        tuids = rows.column("_tuid").to_numpy()
        chosen = np.zeros(len(ts), bool)
        if change.updated is not None:
            chosen = among(tuids, ts, tuids[change.updated], ts[change.updated])
        for delete in change.deletes:
            chosen |= covered(delete, tuids, ts)
        return chosen

    def old_rows(self, change: Change) -> pa.Table:
        """Returns the rows, as of before the block, whose key it rewrites or that lie in a delete's range."""
        return self._affected(change, change.before)

    def _current_rows(self, change: Change) -> pa.Table:
        return self._affected(change, change.after)

    def _affected(self, change: Change, as_of: int) -> pa.Table:
        """Returns the stored rows, as of a version, whose key is rewritten or that lie in a delete's range."""
        found: list[pa.Table] = []
        points = [delete for delete in change.deletes if isinstance(delete, DeletePointsRecord)]
        tuids, times = [delete.tuids for delete in points], [delete.times for delete in points]
        if change.rows is not None and change.updated is not None:
            rows = change.rows.filter(pa.array(change.updated))
            tuids.append(rows.column("_tuid").to_numpy())
            times.append(rows.column(self._time).to_numpy())
        if tuids:
            found += self._of_keys(np.concatenate(tuids), np.concatenate(times), as_of)
        for delete in change.deletes:
            if isinstance(delete, DeleteRecord):
                tables = None if delete.tuids is None else pa.array(delete.tuids, pa.uint64())
                found.append(self._stored.read(tables, delete.first_ts, delete.last_ts, as_of))
        return pa.concat_tables(found, promote_options="default")

    def _of_keys(self, tuids: npt.NDArray[np.uint64], ts: npt.NDArray[np.int64], as_of: int) -> list[pa.Table]:
        """Returns the rows with some keys, as of a version."""
        found: list[pa.Table] = []
        behind = self._stored.recent.known_behind(as_of)
        here = np.zeros(len(ts), bool) if behind is None else ts > behind
        if here.any():
            found.append(self._stored.counting(self._stored.recent.of_keys(tuids[here], ts[here], as_of), as_of))
            tuids, ts = tuids[~here], ts[~here]
        if len(ts):
            stored = self._stored.read_at(tuids, ts, as_of)
            wanted = among(stored.column("_tuid").to_numpy(), stored.column(self._time).to_numpy(), tuids, ts)
            found.append(stored.filter(pa.array(wanted)))
        return found

    # -- which windows -----------------------------------------------------------------------------------------

    def _runs(self, known: pa.RecordBatch) -> list[tuple[int, int, pa.RecordBatch]]:
        """Returns (first ts, last ts, windows) per read: neighbouring windows together, about ROWS_PER_READ rows.

        `known` is sorted by start.
        """
        assert self._grid is not None
        starts = _windows_of(known)[1]
        heads = np.flatnonzero(np.concatenate([[True], starts[1:] != starts[:-1]]))
        runs: list[tuple[int, int, int, int]] = []
        for head, tail in zip(heads.tolist(), [*heads[1:].tolist(), len(starts)], strict=True):
            start = int(starts[head])
            last = end_of(start, self._grid) - 1
            if runs and start <= runs[-1][1] + 1 and head - runs[-1][2] < self._windows_per_read:
                first, previous_last, begin, _ = runs[-1]
                runs[-1] = (first, max(last, previous_last), begin, tail)
            else:
                runs.append((start, last, head, tail))
        return [(first, last, known.slice(begin, end - begin)) for first, last, begin, end in runs]

    def _observe(self, windows: int, rows: int) -> None:
        """Takes note of how many rows were read for so many windows."""
        fitting = ROWS_PER_READ * windows // max(rows, windows)
        self._windows_per_read = max(1, min(fitting, _GROWTH * self._windows_per_read))

    def _partials(self, rows: pa.Table) -> pa.RecordBatch:
        return self._first_stage.compute(rows)

    def _keys_only(self, partials: pa.RecordBatch) -> pa.RecordBatch:
        """Returns which windows partials are of."""
        return partials.select(partials.schema.names[:2 + len(self._plan.grouping.keys)])

    def _emptied(self, windows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns partials that say: nothing of this vnode is left in these windows."""
        count = windows.num_rows
        width = 3 + len(self._plan.grouping.keys)
        columns = [*windows.columns[: width - 1], pa.repeat(pa.scalar(0, pa.int64()), count)]
        columns += [pa.nulls(count, field.type) for field in list(self._schema)[width:]]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _of(rows: pa.Table, children: pa.Table) -> pa.Table:
    """Returns the rows of some child tables."""
    return rows.filter(pc.is_in(rows.column("_tuid"), children.column("_tuid")))


def _one_per_window(sources: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Returns one partial of each (group, window) that any of the batches has, sorted by start."""
    everything = pa.concat_batches(sources)
    gids, starts = _windows_of(everything)
    order = np.lexsort((gids, starts))
    gids, starts = gids[order], starts[order]
    first = np.ones(len(order), bool)
    first[1:] = (gids[1:] != gids[:-1]) | (starts[1:] != starts[:-1])
    return everything.take(pa.array(order[first]))


def _rows_of(partials: pa.RecordBatch) -> int:
    """Returns how many rows partials are made of."""
    return int(partials.column(ROWS.name).to_numpy().sum())


def _windows_of(partials: pa.RecordBatch) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    return partials.column(GROUP.name).to_numpy(), partials.column(WINDOW_START.name).to_numpy()


def _keys_of(results: pa.RecordBatch, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Returns the values of some columns, of each row: such as the group and the primary timestamp."""
    return list(zip(*(results.column(name).to_pylist() for name in names), strict=True))
