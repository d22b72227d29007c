"""Classifies the rows of WAL records as new, late or rewritten. The answer depends on the WAL alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.common.masks import all_set
from penstock.planner.task_plans.kernel_spec import Panes
from penstock.planner.task_plans.stream_plan import SourcePlan, StreamPlan
from penstock.sql.types import UNITS_PER_SECOND
from penstock.tasks.compute.id_time_pairs import among
from penstock.tasks.compute.quarantine import TableTimes
from penstock.tasks.protocol.messages import DroppedRow
from penstock.vnode.store.sorted_keys import TS_MAX
from penstock.wal.record import CHANGE_COLUMN, LAST_COLUMN, RowsRecord

LATE, UPDATED = 1, 2
NEVER = int(np.iinfo(np.int64).min)


@dataclass(frozen=True, slots=True)
class ClassifiedRows:
    """Rows of one block with what is known of their time.

    `rows`: the relation `rows` of `SourcePlan`. `change`: per row append, late or update (None: all appends).
    `last`: per row the newest event time of its table before the record (None: all appends).
    Of each record: `limits` has the newest event time of the vnode before it, minus the delay after which windows
    close; `ends` the number of its last row plus one; `versions` its WAL version; `ingest_times_ms` when it was
    written. `complete`: no row has values from before in columns that weren't written.
    """

    rows: pa.Table
    ts: npt.NDArray[np.int64]
    change: npt.NDArray[np.uint8] | None
    last: npt.NDArray[np.int64] | None
    limits: npt.NDArray[np.int64]
    ends: tuple[int, ...]
    versions: tuple[int, ...]
    ingest_times_ms: tuple[int, ...]
    complete: bool = False

    @property
    def limit(self) -> npt.NDArray[np.int64]:
        """The limit of each row: that of its record."""
        return np.repeat(self.limits, np.diff(self.ends, prepend=0))

    @property
    def newest(self) -> int:
        """The greatest time of the rows."""
        return int(self.ts.max())


def own_rows(batch: pa.RecordBatch, plan: StreamPlan) -> pa.RecordBatch:
    """Returns those rows of a record that the stream reads: all, or those of one child table."""
    if plan.source.keep_tuid is None:
        return batch
    own = batch.column("_tuid").to_numpy() == plan.source.keep_tuid
    return batch if all_set(own) else batch.filter(pa.array(own))


Share = Callable[[Callable[[], "ReadRows | None"]], "ReadRows | None"]
"""Calls what makes the rows of some records, or returns what it has made for another stream that reads the same."""


@dataclass(frozen=True, slots=True)
class ReadRows:
    """What all streams find that read the same columns of some records; see `ClassifiedRows`. Nobody changes it.

    `places`: those of the records that have rows. `seen`: per such record the newest time of its rows and those before.
    """

    rows: pa.Table
    ts: npt.NDArray[np.int64]
    change: npt.NDArray[np.uint8] | None
    last: npt.NDArray[np.int64] | None
    places: tuple[int, ...]
    seen: npt.NDArray[np.int64]
    ends: tuple[int, ...]
    versions: tuple[int, ...]
    ingest_times_ms: tuple[int, ...]


def what_is_read(source: SourcePlan) -> str:
    """Returns what decides, beside the records, on their `ReadRows`."""
    return repr((source.storage_uid, source.keep_tuid, source.time_column, source.columns))


def classify(
    records: Sequence[RowsRecord], plan: StreamPlan, newest: int | None, times: TableTimes,
    noted: Sequence[int | None] | None = None, share: Share = lambda make: make(),
) -> tuple[ClassifiedRows | None, list[DroppedRow]]:
    """Returns the rows of some records that the stream reads (None: there are none), and those from the future.

    Each row comes with what its vnode and its table had seen before its record; `newest`: what the vnode had seen
    before all of them. A row is from the future if it is newer than its record by more than MAX_FUTURE: no other row is
    classified by it. `noted`: per record the time that writers had noted before it, which then counts instead of the
    newest. `times` knows the tables that have such rows, and learns of more. `share`: see `what_is_read`; it is asked
    where the stream leaves out no row of its own.
    """
    future: list[DroppedRow] = []
    if not times and all(_has_no_future(record, plan) for record in records):
        found = share(lambda: _read(records, [own_rows(record.batch, plan) for record in records], None, plan))
    else:
        batches, lasts = [], []
        for record in records:
            batch, ahead = _without_future(own_rows(record.batch, plan), record, plan, times)
            future += ahead
            last = _verdict(batch, LAST_COLUMN)
            lasts.append(times.correct(batch.column("_tuid").to_numpy(), times_of(batch), last) if times else last)
            batches.append(batch)
        found = _read(records, batches, lasts, plan)
    if found is None:
        return None, future
    if noted is None:
        seen = found.seen if newest is None else np.maximum(found.seen, newest)
        reached = [newest, *seen.tolist()][:-1]
    else:
        reached = [noted[place] for place in found.places]
    limits = np.array([NEVER if time is None else time - plan.policies.closing_delay for time in reached], np.int64)
    return ClassifiedRows(found.rows, found.ts, found.change, found.last, limits, found.ends, found.versions,
                          found.ingest_times_ms, _are_complete(records, plan)), future


def _are_complete(records: Sequence[RowsRecord], plan: StreamPlan) -> bool:
    """Whether records have all columns that the stream reads; the store has the values from before in others."""
    wanted = {column.physical for column in plan.source.columns}
    return all(wanted.issubset(record.batch.schema.names) for record in records)


def _has_no_future(record: RowsRecord, plan: StreamPlan) -> bool:
    """Whether no row of a record is from the future for sure."""
    if plan.policies.time.max_future is None:
        return True
    return record.time_range is not None and record.time_range[1] <= future_bound(record.ingest_time_ms, plan)


def _read(records: Sequence[RowsRecord], batches: Sequence[pa.RecordBatch],
          lasts: Sequence[npt.NDArray[np.int64]] | None, plan: StreamPlan) -> ReadRows | None:
    """Joins what is left of records, `batches`; `lasts` as they say themselves if None. None without rows."""
    places = tuple([place for place, batch in enumerate(batches) if batch.num_rows])
    if not places:
        return None
    kept = [batches[place] for place in places]
    merged = _joined(kept)
    ts: npt.NDArray[np.int64] = merged.column(kept[0].schema.names[1]).to_numpy().view(np.int64)
    sizes = np.array([batch.num_rows for batch in kept])
    ends = np.cumsum(sizes)
    change = last = None
    if CHANGE_COLUMN in merged.column_names:
        change = _verdict(merged, CHANGE_COLUMN).astype(np.uint8)
        if change.any():
            last = _verdict(merged, LAST_COLUMN) if lasts is None else np.concatenate(
                [lasts[place] for place in places])
            change.flags.writeable = last.flags.writeable = False
        else:
            change = None
    ts.flags.writeable = False
    return ReadRows(source_rows(merged, plan, ts), ts, change, last, places,
                    np.maximum.accumulate(np.maximum.reduceat(ts, ends - sizes)), tuple(ends.tolist()),
                    tuple([records[place].version for place in places]),
                    tuple([records[place].ingest_time_ms for place in places]))


def _without_future(
    batch: pa.RecordBatch, record: RowsRecord, plan: StreamPlan, times: TableTimes
) -> tuple[pa.RecordBatch, list[DroppedRow]]:
    """Returns the rows of a record but for those from the future, and these; `times` learns of their tables."""
    bound = future_bound(record.ingest_time_ms, plan)
    if record.time_range is not None and record.time_range[1] <= bound:
        return batch, []
    ts = times_of(batch)
    ahead = ts > bound
    if not ahead.any():
        return batch, []
    found, batch = batch.filter(pa.array(ahead)), batch.filter(pa.array(~ahead))
    times.watch(found.column("_tuid").unique().to_pylist(), batch.column("_tuid").to_numpy(), ts[~ahead])
    return batch, _dropped(found, record, bound, plan.source)


def future_bound(ingest_time_ms: int, plan: StreamPlan) -> int:
    """Returns the newest event time that a row that was written then may have."""
    if plan.policies.time.max_future is None:
        return TS_MAX
    return ingest_time_ms * (UNITS_PER_SECOND[plan.source.precision] // 1_000) + plan.policies.time.max_future


def _dropped(rows: pa.RecordBatch, record: RowsRecord, bound: int, source: SourcePlan) -> list[DroppedRow]:
    keys = [None] * rows.num_rows if source.key_column is None else rows.column(2).to_pylist()
    return [DroppedRow(tuid, ts, bound - ts, "future", record.version, record.ingest_time_ms, key) for tuid, ts, key in
            zip(rows.column("_tuid").to_pylist(), times_of(rows).tolist(), keys, strict=True)]


def times_of(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Returns the primary timestamps of a record's rows, in units of the database's precision."""
    times: npt.NDArray[np.int64] = batch.column(1).to_numpy().view(np.int64)
    return times


def never_late(rows: pa.Table, plan: StreamPlan, as_of: int) -> ClassifiedRows:
    """Returns rows of the relation `rows` as ones that are neither late nor rewritten, sorted by time.

    Their records aren't known: they count as one of the version `as_of`, written when the stream was created.
    """
    rows = rows.sort_by(plan.source.time_column)
    ts = rows.column(plan.source.time_column).to_numpy()
    created_ms = plan.policies.time.created // (UNITS_PER_SECOND[plan.source.precision] // 1_000)
    return ClassifiedRows(rows, ts, None, None, np.array([NEVER]), (len(ts),), (as_of,), (created_ms,))


def record_of(classified: ClassifiedRows, row: int) -> int:
    """Returns the number of the record that a row came with."""
    return bisect_right(classified.ends, row)


def without_rows(classified: ClassifiedRows, rows: Sequence[int]) -> ClassifiedRows | None:
    """Returns the rows of a block but for some, by their numbers; None if none is left."""
    kept = np.ones(len(classified.ts), bool)
    kept[rows] = False
    if not kept.any():
        return None
    counts = np.cumsum(kept)
    return ClassifiedRows(
        classified.rows.filter(pa.array(kept)), classified.ts[kept],
        None if classified.change is None else classified.change[kept],
        None if classified.last is None else classified.last[kept], classified.limits,
        tuple(int(counts[end - 1]) for end in classified.ends), classified.versions, classified.ingest_times_ms)


def may_be_late(classified: ClassifiedRows) -> bool:
    """Tells whether any of the rows may be expired."""
    if classified.change is None:
        return False
    return bool(((classified.change != 0) & (classified.ts < classified.limit)).any())


def late_rows(classified: ClassifiedRows) -> pa.Table:
    """Returns the rows that may be expired."""
    if classified.change is None:
        return classified.rows.slice(0, 0)
    return classified.rows.filter(pa.array((classified.change != 0) & (classified.ts < classified.limit)))


def suspects(classified: ClassifiedRows) -> pa.Table:
    """Returns rows that may be late with `_row`, `_limit` and `_last`."""
    assert classified.change is not None
    # An append is the newest row of its table, so it never is expired: it gets no limit.
    appended = classified.change == 0
    limit = pa.array(classified.limit, mask=appended)
    last = pa.array(classified.last, mask=appended)
    rows = classified.rows.append_column("_row", pa.array(np.arange(len(classified.ts))))
    return rows.append_column("_limit", limit).append_column("_last", last)


def expired_rows(classified: ClassifiedRows, panes: Panes) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Returns which rows that may be late are expired for all their INTERVAL windows, and which for some only.

    A row is expired for a window that had ended by the watermark, unless its table had not come to a later one.
    """
    assert classified.change is not None
    assert classified.last is not None
    rows = np.flatnonzero((classified.change != 0) & (classified.ts < classified.limit))
    ts, limit = classified.ts[rows], classified.limit[rows]
    behind = (ts - panes.offset) % panes.step
    newest_end = ts - behind + panes.width
    oldest_end = newest_end - (-(-(panes.width - behind) // panes.step) - 1) * panes.step
    last = classified.last[rows]
    last_end = last - (last - panes.offset) % panes.step + panes.width
    whole, some = np.zeros(len(classified.ts), bool), np.zeros(len(classified.ts), bool)
    whole[rows] = (newest_end <= limit) & (newest_end < last_end)
    some[rows] = ~whole[rows] & (oldest_end <= limit) & (oldest_end < last_end)
    return whole, some


def updated(classified: ClassifiedRows, expired: npt.NDArray[np.int64] | None) -> npt.NDArray[np.bool_] | None:
    """Returns which rows rewrite a key that existed, or None if none do.

    `expired`: the rows that came too late, by their numbers; they count for nothing, nor do others of their keys.
    """
    if classified.change is None:
        return None
    found: npt.NDArray[np.bool_] = classified.change == UPDATED
    if expired is not None and len(expired):
        tuids = classified.rows.column("_tuid").to_numpy()
        found &= ~among(tuids, classified.ts, tuids[expired], classified.ts[expired])
    return found if found.any() else None


def source_rows(table: pa.Table, plan: StreamPlan, ts: npt.NDArray[np.int64] | None = None) -> pa.Table:
    """Returns stored rows as the relation `rows`: `_tuid` and the plan's columns by name, timestamps as int64.

    `ts`: the values of the primary timestamp, if they are at hand.
    """
    names, columns = ["_tuid"], [table.column("_tuid")]
    known = frozenset(table.column_names)
    for column in plan.source.columns:
        if ts is not None and column.name == plan.source.time_column:
            stored = pa.chunked_array([pa.array(ts)])
        elif column.physical in known:
            stored = table.column(column.physical)
        else:
            stored = pa.nulls(table.num_rows, column.type.arrow())
        if pa.types.is_timestamp(stored.type):
            stored = stored.cast(pa.int64())
        names.append(column.name)
        columns.append(stored)
    return pa.Table.from_arrays(columns, names=names)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Returns batches of one table as one; columns may have been added between them."""
    schema = batches[0].schema
    if all(batch.schema is schema or batch.schema.equals(schema) for batch in batches):
        return pa.Table.from_batches(batches)
    return pa.concat_tables([pa.Table.from_batches([batch]) for batch in batches], promote_options="default")


def _verdict(rows: pa.RecordBatch | pa.Table, name: str) -> npt.NDArray[np.int64]:
    """Returns the column `_change` or `_last`: zeros for records whose rows are all appends, which have none."""
    if name not in rows.schema.names:
        return np.zeros(rows.num_rows, np.int64)
    column = rows.column(name)
    return np.array(column.fill_null(0) if column.null_count else column, np.int64)
