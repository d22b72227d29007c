"""Cuts blocks of WAL records where a record depends on those before it: results don't depend on other cuts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.planner.task_plans.stream_plan import JoinPlan, StreamPlan
from penstock.tasks.compute.child_tables import moves_tables
from penstock.tasks.compute.lateness import UPDATED, own_rows, times_of
from penstock.wal.record import CHANGE_COLUMN, AnyDelete, Record, RowsRecord


def runs(records: Iterable[Record], plan: StreamPlan, newest: int | None) -> Iterator[list[Record]]:
    """Yields the records in runs, each of which may be processed at once. `newest`: the vnode's, before the records.

    What a run recalculates is read from the store as of the run's end. Rows that the stream leaves out (IGNORE
    EXPIRED 1) or counts twice (IGNORE UPDATE 1) must not be there yet if they came later. And for which windows rows
    come too late by DELETE_MARK goes by the newest event time before a record, which is that before its run.
    Records by which child tables move stand apart: rows before and behind them are in other groups. With STATE_TTL a
    run ends where the newest event time comes into another step, since groups change at times of steps, and deletes
    stand apart: rows behind one that lie in its range don't have their groups read back, from before these were let go.
    """
    records = list(records)
    if _never_cut(records, plan, newest):
        yield records
        return
    run: list[Record] = []
    recalculates = False
    for record in records:
        anew = changes = False
        ts = np.zeros(0, np.int64)
        if isinstance(record, RowsRecord) and record.table_uid == plan.source.storage_uid:
            batch = own_rows(record.batch, plan)
            ts = times_of(batch)
            change = changes_of(batch)
            changes = change is not None
            if len(ts) and newest is not None and isinstance(plan.computation, JoinPlan):
                late = plan.policies.ignore_expired and int(ts.min()) < newest - plan.policies.closing_delay
                anew = recalculates and late
            elif len(ts) and newest is not None:
                anew = (not plan.recalls and int(ts.min()) < newest - plan.policies.delete_mark) or (
                    recalculates and change is not None and _differs_from_store(change, ts, plan, newest))
        elif isinstance(record, AnyDelete) and record.table_uid == plan.source.storage_uid:
            changes = True
            anew = not plan.recalls and newest is not None and record.first_ts < newest - plan.policies.delete_mark
        anew = anew or (bool(run) and moves_tables(run[-1]) != moves_tables(record))
        if plan.policies.state_ttl is not None:
            anew = anew or (bool(run) and isinstance(run[-1], AnyDelete) != isinstance(record, AnyDelete)) or (
                len(ts) > 0 and _is_later_step(newest, int(ts.max()), plan))
        if anew and run:
            yield run
            run, recalculates = [], False
        run.append(record)
        recalculates = recalculates or changes
        if len(ts):
            newest = int(ts.max()) if newest is None else max(newest, int(ts.max()))
    if run:
        yield run


def _never_cut(records: list[Record], plan: StreamPlan, newest: int | None) -> bool:
    """Tells whether the records surely are one run: none has rows near DELETE_MARK, and the stream counts all rows as
    the store has them, or all are new ones."""
    mine = [record for record in records
            if isinstance(record, RowsRecord | AnyDelete) and record.table_uid == plan.source.storage_uid]
    if any(map(moves_tables, records)):
        return False
    lows, highs = [], [] if newest is None else [newest]
    counts_all = not (plan.policies.ignore_update or plan.policies.ignore_expired)
    for record in mine:
        if not isinstance(record, RowsRecord) or (
                not counts_all and CHANGE_COLUMN in record.batch.schema.names):
            return False
        found = _time_range(record)
        if found is not None:
            lows.append(found[0])
            highs.append(found[1])
    if plan.policies.state_ttl is not None and lows and _is_later_step(newest, max(highs), plan):
        return False
    return bool(records) and (plan.recalls or not lows or min(lows) >= max(highs) - plan.policies.delete_mark)


def _is_later_step(before: int | None, newest: int, plan: StreamPlan) -> bool:
    """Tells whether STATE_TTL tells a newest event time from the one before."""
    step = plan.policies.ttl_step
    return before is None or newest // step > before // step


def _time_range(record: RowsRecord) -> tuple[int, int] | None:
    if record.time_range is not None:
        return record.time_range
    ts = times_of(record.batch)
    return (int(ts.min()), int(ts.max())) if len(ts) else None


def changes_of(batch: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
    """Returns per row whether it is an append, late or an update; None if all are appends."""
    if CHANGE_COLUMN not in batch.schema.names:
        return None
    change = np.asarray(batch.column(CHANGE_COLUMN)).astype(np.int64)
    return change if change.any() else None


def _differs_from_store(
    change: npt.NDArray[np.int64], ts: npt.NDArray[np.int64], plan: StreamPlan, newest: int
) -> bool:
    """Tells whether there may be rows that the stream doesn't count as often as the store has them."""
    if plan.policies.ignore_update and bool((change == UPDATED).any()):
        return True
    if plan.policies.ignore_expired and plan.policies.time.writer_timeout_ms is not None:
        return True  # what writers have noted decides, which isn't known here
    return plan.policies.ignore_expired and bool(((change != 0) & (ts < newest - plan.policies.closing_delay)).any())
