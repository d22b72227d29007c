"""Judges the rows of WAL records by time: what is new, late or rewritten, as a function of the WAL alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.planner.kernel_spec import Panes
from penstock.planner.stream import StreamPlan
from penstock.wal.record import CHANGE_COLUMN, LAST_COLUMN, RowsRecord

LATE, UPDATED = 1, 2
NEVER = int(np.iinfo(np.int64).min)


@dataclass(frozen=True, slots=True)
class Judged:
    """Rows of one block with what is known of their time.

    `rows`: the relation `rows` of `SourcePlan`. `newest`: the greatest of their times. For blocks in which not all
    rows are appends, else None: `change`: per row append, late or update; `limit`: per row the newest event time of
    the vnode before the row's record, minus the watermark; `last`: per row the newest event time of its table before
    the record.
    """

    rows: pa.Table
    ts: npt.NDArray[np.int64]
    newest: int
    change: npt.NDArray[np.uint8] | None = None
    limit: npt.NDArray[np.int64] | None = None
    last: npt.NDArray[np.int64] | None = None


def judge(records: Sequence[RowsRecord], plan: StreamPlan, newest: int | None) -> Judged | None:
    """Returns the rows of some records that the stream reads, or None if there are none.

    Each row comes with what its vnode and its table had seen before its record; `newest`: what the vnode had seen
    before all of them.
    """
    batches = [record.batch for record in records]
    if plan.source.keep_tuid is not None:
        kept = pa.scalar(plan.source.keep_tuid, pa.uint64())
        batches = [batch.filter(pc.equal(batch.column("_tuid"), kept)) for batch in batches]
    batches = [batch for batch in batches if batch.num_rows]
    if not batches:
        return None
    time_name = batches[0].schema.names[1]
    merged = _joined(batches)
    ts = _int64_of(merged.column(time_name))
    rows = source_rows(merged, plan, ts)
    highest = int(ts.max())
    if not any(CHANGE_COLUMN in batch.schema.names for batch in batches):
        return Judged(rows, ts, highest)
    change = np.concatenate([_verdict(batch, CHANGE_COLUMN) for batch in batches]).astype(np.uint8)
    if not change.any():
        return Judged(rows, ts, highest)
    sizes = np.array([batch.num_rows for batch in batches])
    first = np.cumsum(sizes) - sizes
    seen = np.maximum.accumulate(np.maximum.reduceat(ts, first))
    if newest is not None:
        seen = np.maximum(seen, newest)
    limits = np.concatenate([[NEVER if newest is None else newest - plan.watermark], seen[:-1] - plan.watermark])
    last = np.concatenate([_verdict(batch, LAST_COLUMN) for batch in batches])
    return Judged(rows, ts, highest, change, np.repeat(limits, sizes), last)


def never_late(rows: pa.Table, time_column: str) -> Judged:
    """Returns rows of the relation `rows` as ones that are neither late nor rewritten, sorted by time."""
    rows = rows.sort_by(time_column)
    ts = rows.column(time_column).to_numpy()
    return Judged(rows, ts, int(ts[-1]))


def may_be_late(judged: Judged) -> bool:
    """Tells whether any of the rows may be expired."""
    if judged.change is None or judged.limit is None:
        return False
    return bool(((judged.change != 0) & (judged.ts < judged.limit)).any())


def suspects(judged: Judged) -> pa.Table:
    """Returns rows that may be late with `_row`, `_limit` and `_last`."""
    assert judged.change is not None
    # An append is the newest row of its table, so it never is expired: it gets no limit.
    appended = judged.change == 0
    limit = pa.array(judged.limit, mask=appended)
    last = pa.array(judged.last, mask=appended)
    rows = judged.rows.append_column("_row", pa.array(np.arange(len(judged.ts))))
    return rows.append_column("_limit", limit).append_column("_last", last)


def expired_rows(judged: Judged, panes: Panes) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Returns which rows that may be late are expired for all their INTERVAL windows, and which for some only.

    A row is expired for a window that had ended by the watermark, unless its table had not come to a later one.
    """
    assert judged.change is not None
    assert judged.limit is not None
    assert judged.last is not None
    rows = np.flatnonzero((judged.change != 0) & (judged.ts < judged.limit))
    ts, limit = judged.ts[rows], judged.limit[rows]
    behind = (ts - panes.offset) % panes.step
    newest_end = ts - behind + panes.width
    oldest_end = newest_end - (-(-(panes.width - behind) // panes.step) - 1) * panes.step
    last = judged.last[rows]
    last_end = last - (last - panes.offset) % panes.step + panes.width
    whole, some = np.zeros(len(judged.ts), bool), np.zeros(len(judged.ts), bool)
    whole[rows] = (newest_end <= limit) & (newest_end < last_end)
    some[rows] = ~whole[rows] & (oldest_end <= limit) & (oldest_end < last_end)
    return whole, some


def updated(judged: Judged, expired: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.bool_] | None:
    """Returns which rows rewrite a key that existed, or None if none do. Rows that are `expired` count for nothing."""
    if judged.change is None:
        return None
    found: npt.NDArray[np.bool_] = judged.change == UPDATED
    if expired is not None:
        found &= ~expired
    return found if found.any() else None


def source_rows(table: pa.Table, plan: StreamPlan, ts: npt.NDArray[np.int64] | None = None) -> pa.Table:
    """Returns stored rows as the relation `rows`: `_tuid` and the plan's columns by name, timestamps as int64.

    `ts`: the values of the primary timestamp, if they are at hand.
    """
    names, columns = ["_tuid"], [table.column("_tuid")]
    for column in plan.source.columns:
        if ts is not None and column.name == plan.source.time_column:
            stored = pa.chunked_array([pa.array(ts)])
        elif column.physical in table.column_names:
            stored = table.column(column.physical)
        else:
            stored = pa.nulls(table.num_rows, column.type.arrow())
        if pa.types.is_timestamp(stored.type):
            stored = stored.cast(pa.int64())
        names.append(column.name)
        columns.append(stored)
    return pa.table(dict(zip(names, columns, strict=True)))


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Returns batches of one table as one; columns may have been added between them."""
    schema = batches[0].schema
    if all(batch.schema is schema or batch.schema.equals(schema) for batch in batches):
        return pa.Table.from_batches(batches)
    return pa.concat_tables([pa.Table.from_batches([batch]) for batch in batches], promote_options="default")


def _int64_of(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Returns timestamps without NULL as integers, copied at most once."""
    values: npt.NDArray[np.int64] = column.to_numpy().view(np.int64)
    return values


def _verdict(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.int64]:
    """Returns the column `_change` or `_last`: zeros if all rows are appends."""
    if name not in batch.schema.names:
        return np.zeros(batch.num_rows, np.int64)
    return np.asarray(batch.column(name)).astype(np.int64)
