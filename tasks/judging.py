"""Judges the rows of WAL records by time: what is new, late or rewritten, as a function of the WAL alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.planner.stream import StreamPlan
from penstock.wal.record import CHANGE_COLUMN, LAST_COLUMN, RowsRecord

LATE, UPDATED = 1, 2
NEVER = int(np.iinfo(np.int64).min)


@dataclass(frozen=True, slots=True)
class Judged:
    """Rows of one block with what is known of their time.

    `rows`: the relation `rows` of `SourcePlan`. `change`: per row append, late or update (None: all appends).
    `limit`: per row the newest event time of the vnode before the row's record, minus the watermark.
    `last`: per row the newest event time of its table before the record (None: all appends).
    """

    rows: pa.Table
    ts: npt.NDArray[np.int64]
    change: npt.NDArray[np.uint8] | None
    limit: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64] | None


def judge(records: Sequence[RowsRecord], plan: StreamPlan, newest: int | None) -> Judged | None:
    """Returns the rows of some records that the stream reads, or None if there are none.

    Each row comes with what its vnode and its table had seen before its record; `newest`: what the vnode had seen
    before all of them.
    """
    keep_tuid = plan.source.keep_tuid
    time_name = records[0].batch.schema.names[1]
    tables, limits, changes, lasts = [], [], [], []
    for record in records:
        batch = record.batch
        if keep_tuid is not None:
            batch = batch.filter(pc.equal(batch.column("_tuid"), pa.scalar(keep_tuid, pa.uint64())))
        if batch.num_rows == 0:
            continue
        ts = _as_int64(batch.column(time_name))
        limits.append(np.full(len(ts), NEVER if newest is None else newest - plan.watermark, np.int64))
        highest = pc.max(ts).as_py()
        newest = highest if newest is None else max(newest, highest)
        changes.append(_verdict(batch, CHANGE_COLUMN))
        lasts.append(_verdict(batch, LAST_COLUMN))
        tables.append(pa.Table.from_batches([batch]))
    if not tables:
        return None
    merged = pa.concat_tables(tables, promote_options="default")
    ts = _as_int64(merged.column(time_name).combine_chunks()).to_numpy()
    change = np.concatenate(changes).astype(np.uint8)
    plain = not change.any()
    return Judged(source_rows(merged, plan), ts, None if plain else change, np.concatenate(limits),
                  None if plain else np.concatenate(lasts))


def never_late(rows: pa.Table, time_column: str) -> Judged:
    """Returns rows of the relation `rows` as ones that are neither late nor rewritten, sorted by time."""
    rows = rows.sort_by(time_column)
    ts = rows.column(time_column).to_numpy()
    return Judged(rows, ts, None, np.full(len(ts), NEVER, np.int64), None)


def suspects(judged: Judged) -> pa.Table | None:
    """Returns the rows with `_row`, `_limit` and `_last` if any of them may be expired, else None."""
    if judged.change is None or judged.last is None:
        return None
    if not bool(((judged.change != 0) & (judged.ts < judged.limit)).any()):
        return None
    # An append is the newest row of its table, so it never is expired: it gets no limit.
    appended = judged.change == 0
    limit = pa.array(judged.limit, mask=appended)
    last = pa.array(judged.last, mask=appended)
    rows = judged.rows.append_column("_row", pa.array(np.arange(len(judged.ts))))
    return rows.append_column("_limit", limit).append_column("_last", last)


def updated(judged: Judged, expired: Collection[tuple[int, int]] | None) -> npt.NDArray[np.bool_] | None:
    """Returns which rows rewrite a key that existed, or None if none do.

    `expired`: (table id, time) of rows that came too late, which count for nothing.
    """
    if judged.change is None:
        return None
    found = judged.change == UPDATED
    if expired:
        tuids = judged.rows.column("_tuid").to_pylist()
        for row in np.flatnonzero(found).tolist():
            found[row] = (tuids[row], int(judged.ts[row])) not in expired
    return found if found.any() else None


def source_rows(table: pa.Table, plan: StreamPlan) -> pa.Table:
    """Returns stored rows as the relation `rows`: `_tuid` and the plan's columns by name, timestamps as int64."""
    names, columns = ["_tuid"], [table.column("_tuid")]
    for column in plan.source.columns:
        if column.physical in table.column_names:
            stored = table.column(column.physical)
        else:
            stored = pa.nulls(table.num_rows, column.type.arrow())
        if pa.types.is_timestamp(stored.type):
            stored = stored.cast(pa.int64())
        names.append(column.name)
        columns.append(stored)
    return pa.table(dict(zip(names, columns, strict=True)))


def _as_int64(array: pa.Array) -> pa.Array:
    return array.view(pa.int64()) if isinstance(array, pa.Array) else array.cast(pa.int64())


def _verdict(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.int64]:
    """Returns the column `_change` or `_last`: zeros if all rows are appends."""
    if name not in batch.schema.names:
        return np.zeros(batch.num_rows, np.int64)
    return np.asarray(batch.column(name)).astype(np.int64)
