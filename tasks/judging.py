"""Judges the rows of WAL records by time: what is new, late or rewritten, as a function of the WAL alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.planner.stream import StreamPlan
from penstock.sql.types import UNITS_PER_SECOND
from penstock.tasks.messages import LeftOutRow
from penstock.tasks.quarantine import TableTimes
from penstock.vnode.keys import TS_MAX
from penstock.wal.record import CHANGE_COLUMN, LAST_COLUMN, RowsRecord

LATE, UPDATED = 1, 2
NEVER = int(np.iinfo(np.int64).min)


@dataclass(frozen=True, slots=True)
class Judged:
    """Rows of one block with what is known of their time.

    `rows`: the relation `rows` of `SourcePlan`. `change`: per row append, late or update (None: all appends).
    `limit`: per row the newest event time of the vnode before the row's record, minus
    the delay after which windows close.
    `last`: per row the newest event time of its table before the record (None: all appends).
    `ends`, `versions`, `ingest_times_ms`: of each record the number of its last row plus one, its WAL version, and when
    it was written.
    """

    rows: pa.Table
    ts: npt.NDArray[np.int64]
    change: npt.NDArray[np.uint8] | None
    limit: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64] | None
    ends: tuple[int, ...]
    versions: tuple[int, ...]
    ingest_times_ms: tuple[int, ...]


def judge(
    records: Sequence[RowsRecord], plan: StreamPlan, newest: int | None, times: TableTimes,
    noted: Sequence[int | None] | None = None,
) -> tuple[Judged | None, list[LeftOutRow]]:
    """Returns the rows of some records that the stream reads (None: there are none), and those from the future.

    Each row comes with what its vnode and its table had seen before its record; `newest`: what the vnode had seen
    before all of them. A row is from the future if it is newer than its record by more than MAX_FUTURE: no other row is
    judged by it. `noted`: per record the time that writers had noted before it, which then counts instead of the
    newest. `times` knows the tables that have such rows, and learns of more.
    """
    keep_tuid = plan.source.keep_tuid
    time_name = records[0].batch.schema.names[1]
    tables, limits, changes, lasts = [], [], [], []
    ends: list[int] = []
    kept: list[RowsRecord] = []
    future: list[LeftOutRow] = []
    for place, record in enumerate(records):
        batch = record.batch
        if keep_tuid is not None:
            batch = batch.filter(pc.equal(batch.column("_tuid"), pa.scalar(keep_tuid, pa.uint64())))
        if batch.num_rows == 0:
            continue
        ts = _as_int64(batch.column(time_name))
        highest = pc.max(ts).as_py()
        bound = future_bound(record.ingest_time_ms, plan)
        if highest > bound:
            ahead = pc.greater(ts, pa.scalar(bound, pa.int64()))
            found = batch.filter(ahead)
            future += _left_out(found, record, bound)
            batch = batch.filter(pc.invert(ahead))
            ts = _as_int64(batch.column(time_name))
            times.watch(found.column("_tuid").unique().to_pylist(), batch.column("_tuid").to_numpy(), ts.to_numpy())
            if batch.num_rows == 0:
                continue
            highest = pc.max(ts).as_py()
        reached = newest if noted is None else noted[place]
        limits.append(np.full(len(ts), NEVER if reached is None else reached - plan.closing_delay, np.int64))
        newest = highest if newest is None else max(newest, highest)
        changes.append(_verdict(batch, CHANGE_COLUMN))
        last = _verdict(batch, LAST_COLUMN)
        lasts.append(times.correct(batch.column("_tuid").to_numpy(), ts.to_numpy(), last) if times else last)
        tables.append(pa.Table.from_batches([batch]))
        ends.append(len(ts) + (ends[-1] if ends else 0))
        kept.append(record)
    if not tables:
        return None, future
    merged = pa.concat_tables(tables, promote_options="default")
    ts = _as_int64(merged.column(time_name).combine_chunks()).to_numpy()
    change = np.concatenate(changes).astype(np.uint8)
    plain = not change.any()
    judged = Judged(source_rows(merged, plan), ts, None if plain else change, np.concatenate(limits),
                    None if plain else np.concatenate(lasts), tuple(ends), tuple(record.version for record in kept),
                    tuple(record.ingest_time_ms for record in kept))
    return judged, future


def future_bound(ingest_time_ms: int, plan: StreamPlan) -> int:
    """Returns the newest event time that a row that was written then may have."""
    if plan.time.max_future is None:
        return TS_MAX
    return ingest_time_ms * (UNITS_PER_SECOND[plan.source.precision] // 1_000) + plan.time.max_future


def _left_out(rows: pa.RecordBatch, record: RowsRecord, bound: int) -> list[LeftOutRow]:
    times = _as_int64(rows.column(1)).to_pylist()
    return [LeftOutRow(tuid, ts, bound - ts, "future", record.version, record.ingest_time_ms)
            for tuid, ts in zip(rows.column("_tuid").to_pylist(), times, strict=True)]


def never_late(rows: pa.Table, time_column: str, as_of: int) -> Judged:
    """Returns rows of the relation `rows` as ones that are neither late nor rewritten, sorted by time."""
    rows = rows.sort_by(time_column)
    ts = rows.column(time_column).to_numpy()
    return Judged(rows, ts, None, np.full(len(ts), NEVER, np.int64), None, (len(ts),), (as_of,), (0,))


def without_rows(judged: Judged, rows: Sequence[int]) -> Judged | None:
    """Returns the rows of a block but for some, by their numbers; None if none is left."""
    kept = np.ones(len(judged.ts), bool)
    kept[rows] = False
    if not kept.any():
        return None
    counts = np.cumsum(kept)
    return Judged(
        judged.rows.filter(pa.array(kept)), judged.ts[kept], None if judged.change is None else judged.change[kept],
        judged.limit[kept], None if judged.last is None else judged.last[kept],
        tuple(int(counts[end - 1]) for end in judged.ends), judged.versions, judged.ingest_times_ms)


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


def updated(judged: Judged, expired: npt.NDArray[np.int64] | None) -> npt.NDArray[np.bool_] | None:
    """Returns which rows rewrite a key that existed, or None if none do.

    `expired`: the rows that came too late, by their numbers; they count for nothing, nor do others of their keys.
    """
    if judged.change is None:
        return None
    found = judged.change == UPDATED
    if expired is not None and len(expired):
        tuids = judged.rows.column("_tuid").to_numpy()
        keys = np.rec.fromarrays([tuids, judged.ts])
        found &= ~np.isin(keys, keys[expired])
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
