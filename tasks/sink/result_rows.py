"""Makes the rows of one write call from result blocks, without those that later rows replace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.masks import all_set
from penstock.planner.task_plans.column_names import CHILD
from penstock.planner.task_plans.stream_plan import SinkPlan
from penstock.tasks.compute.id_table import Numbers
from penstock.tasks.compute.id_time_pairs import last_ones
from penstock.tasks.protocol.block_schema import DELETE, GROUP, OPERATION, UPSERT
from penstock.tasks.protocol.messages import CLEAR, REPLACE

Times = npt.NDArray[np.int64]
_OF_WHOLE_TABLE = np.zeros(2, np.uint8)
_OF_WHOLE_TABLE[[UPSERT, DELETE]] = REPLACE, CLEAR
Refuse = Callable[[pa.RecordBatch, Numbers, Sequence[str]], None]
"""Takes rows that don't fit, the places of their child tables, and what is wrong with each."""


class ResultRows:
    """The rows that `ResultWrite` carries, for one result table."""

    def __init__(self, sink: SinkPlan, windowed: bool, *, each: bool = False) -> None:
        """`windowed`: results belong to windows, else to rows of the source. `each`: none makes another one void."""
        self._each = each
        self._sink = sink
        self._windowed = windowed
        #: the keys of groups, and what column of the result each is
        self._keys = [(f"k{key}", f"r{place}") for key, place in enumerate(sink.key_places)]
        groups = [GROUP.name, *(key for key, _ in self._keys)] if sink.keyed else []
        self._names = [OPERATION.name, *groups, *(f"r{n}" for n in range(len(sink.columns)))]
        self._problem = sink.problem
        self._types = [column.type.arrow() for column in sink.columns]
        self._columns = [CHILD, OPERATION.name, *(column.name for column in sink.columns)]

    def of(
        self, blocks: Sequence[pa.RecordBatch], places: Sequence[Numbers], children: Mapping[int, str],
        refuse: Refuse,
    ) -> pa.RecordBatch:
        """Returns the rows of blocks without those that later ones make void, and those that don't fit their table.

        `places`: for each row of each block the place of its child table. `children`: what is wrong with child tables
        that can't be, by their places. `refuse` is told of rows that don't fit.
        """
        names = self._names
        if self._problem is not None and all(self._problem in block.schema.names for block in blocks):
            names = [*names, self._problem]  # blocks of older plans, which a checkpoint holds, have none
        batches = [block.select(names) for block in blocks]
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        place = places[0] if len(places) == 1 else np.concatenate(places)
        if not self._sink.keyed and batch.column("r0").null_count:
            timed = batch.column("r0").is_valid()
            batch, place = batch.filter(timed), place[timed.to_numpy(zero_copy_only=False)]
        if not self._each:
            batch, place = self._newest(batch, place)
        if children:
            batch, place = self._of_possible(batch, place, children, refuse)
        if len(names) > len(self._names):
            problems = batch.column(len(self._names))
            batch = batch.select(self._names)
            if problems.null_count < len(problems):
                batch, place = self._fitting(batch, place, problems, refuse)
            batch, place = self._with_own_keys(batch, place)
        if self._sink.keyed:
            batch = batch.drop_columns([GROUP.name, *(key for key, _ in self._keys)])
        if self._sink.single:
            batch = batch.set_column(0, OPERATION, pa.array(_OF_WHOLE_TABLE[batch.column(0).to_numpy()]))
        values = [_fitted(column, wanted) for column, wanted in zip(batch.columns[1:], self._types, strict=True)]
        child = pa.array(place.astype(np.int32))
        return pa.RecordBatch.from_arrays([child, batch.column(0), *values], names=self._columns)

    def _newest(self, batch: pa.RecordBatch, place: Numbers) -> tuple[pa.RecordBatch, Numbers]:
        """Where the target's key has two parts, a window is the only row of its time, whatever its key was before."""
        if self._sink.keyed:
            kept = _newest_per_group(batch.column(GROUP.name).to_numpy())
            return (batch, place) if kept is None else (batch.take(pa.array(kept)), place[kept])
        composite = self._sink.key_column is not None
        by_row = composite and not self._windowed
        kept = _newest_per_composite_key(batch, place) if by_row else _newest_per_key(place, _times(batch))
        if kept is not None:
            batch, place = batch.take(pa.array(kept)), place[kept]
        if composite and self._windowed:
            gone = pc.or_(pc.equal(batch.column(0), 1), pc.is_null(batch.column("r1")))
            batch = batch.set_column(
                0, OPERATION, pc.if_else(gone, pa.scalar(1, pa.uint8()), pa.scalar(REPLACE, pa.uint8())))
        return batch, place

    def _with_own_keys(self, batch: pa.RecordBatch, place: Numbers) -> tuple[pa.RecordBatch, Numbers]:
        """Leaves out groups of which a key doesn't fit its column: they were never written, and what has NULL there is
        another one."""
        own = np.ones(batch.num_rows, bool)
        for key, result in self._keys:
            same = pc.equal(pc.is_null(batch.column(key)), pc.is_null(batch.column(result)))
            own &= same.to_numpy(zero_copy_only=False)
        return (batch, place) if all_set(own) else (batch.filter(pa.array(own)), place[own])

    def _of_possible(
        self, batch: pa.RecordBatch, place: Numbers, children: Mapping[int, str], refuse: Refuse
    ) -> tuple[pa.RecordBatch, Numbers]:
        """Leaves out what has no child table."""
        impossible = np.isin(place, np.array(list(children)))
        if not impossible.any():
            return batch, place
        rows = np.flatnonzero(impossible & (batch.column(0).to_numpy() != DELETE))
        if len(rows):
            refuse(batch.select(self._names).take(pa.array(rows)), place[rows],
                   [children[each] for each in place[rows].tolist()])
        return batch.filter(pa.array(~impossible)), place[~impossible]

    def _fitting(
        self, batch: pa.RecordBatch, place: Numbers, problems: pa.Array, refuse: Refuse
    ) -> tuple[pa.RecordBatch, Numbers]:
        """Takes back what was written before of results that don't fit any more.

        Where rows of one time have keys of their own, only those that fit are written: a delete would take all of them.
        """
        misfits = problems.is_valid().to_numpy(zero_copy_only=False) & (batch.column(0).to_numpy() != DELETE)
        rows = np.flatnonzero(misfits)
        if not len(rows):
            return batch, place
        refuse(batch.take(pa.array(rows)), place[rows], problems.take(pa.array(rows)).to_pylist())
        if self._sink.key_column is not None and not self._windowed:
            return batch.filter(pa.array(~misfits)), place[~misfits]
        operations = batch.column(0).to_numpy().copy()
        operations[rows] = DELETE
        return batch.set_column(0, OPERATION, pa.array(operations)), place


def _fitted(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if column.type == wanted:
        return column
    # Times are the same numbers in both types; for few rows Arrow's cast takes longer than all else here.
    same_numbers = pa.types.is_timestamp(wanted) and pa.types.is_int64(column.type)
    return column.view(wanted) if same_numbers else column.cast(wanted)


def _times(batch: pa.RecordBatch) -> Times:
    times: Times = batch.column("r0").view(pa.int64()).to_numpy()
    return times


def _newest_per_group(gids: npt.NDArray[np.uint64]) -> Numbers | None:
    """Returns the last row of each group, in order; None: all rows."""
    last = len(gids) - 1 - np.unique(gids[::-1], return_index=True)[1]
    return None if len(last) == len(gids) else np.sort(last)


def _newest_per_key(place: Numbers, times: Times) -> Numbers | None:
    """Returns the last row of each (child, time), in order; None: all rows."""
    if len(place) < 2:
        return None
    later = times[1:] > times[:-1]
    if all_set(later | ((times[1:] == times[:-1]) & (place[1:] > place[:-1]))):
        return None  # window by window, each child once
    last = last_ones(place, times)
    return None if all_set(last) else last.nonzero()[0]


def _newest_per_composite_key(batch: pa.RecordBatch, place: Numbers) -> Numbers:
    """Returns the last row of each (child, time, key), in order; a delete voids what is before it at its time."""
    deleted: dict[tuple[int, int], int] = {}
    kept: dict[tuple[int, int, object], int] = {}
    keys = zip(place.tolist(), _times(batch).tolist(), batch.column("r1").to_pylist(),
               batch.column(OPERATION.name).to_pylist(), strict=True)
    for row, (child, ts, key, operation) in enumerate(keys):
        if operation == 1:
            deleted[child, ts] = row
        elif key is not None:
            kept[child, ts, key] = row
    rows = [row for (child, ts, _), row in kept.items() if row > deleted.get((child, ts), -1)]
    return np.array(sorted([*rows, *deleted.values()]), np.int64)
