"""Streams of any query: their result table is compared with the answer as it is now, and made the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.errors import InvalidValueError, NotFoundError
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.catalog.name_lookup import TABLE_MISSING, require_database
from penstock.mnode.query.activity import Activity
from penstock.mnode.query.query_runner import QueryPlan
from penstock.mnode.streams.stream_planning import StreamPlanning
from penstock.mnode.streams.stream_services import StreamServices
from penstock.mnode.write.inserts import record_batches
from penstock.sql.rows.constants import Constants
from penstock.sql.rows.fitting import fitted, row_number
from penstock.sql.rows.keyed_rows import key_texts, keyed
from penstock.sql.schema import Column, Session, Table
from penstock.tasks.dnode_access.dnode_client import RefreshRequest
from penstock.wal.record import TUID_COLUMN

Run = Callable[[QueryPlan, Session], pa.Table]
"""Returns the rows of a planned query."""


class StreamRefreshes:
    """Answers the tasks of such streams. Safe for many threads; of one stream, one attempt asks at a time."""

    def __init__(self, services: StreamServices, planning: StreamPlanning, run: Run, activity: Activity) -> None:
        self._services = services
        self._planning = planning
        self._run = run
        self._activity = activity

    def answer(self, request: RefreshRequest) -> pa.Table:
        """Returns one row: how many rows were `written` or deleted.

        Raises StaleAttemptError, what running the query raises, and InvalidValueError for rows of the answer that the
        table can't hold: of equal keys, or with values that don't fit.
        """
        stream = self._services.catalog.streams.by_id(request.stream_id)
        if stream is None:
            raise NotFoundError("the stream was dropped")
        target = self._services.catalog.table_by_uid(stream.target_uid)
        if target is None:
            raise NotFoundError(f"the result table of stream {stream.name} was dropped", code=TABLE_MISSING)
        with self._activity.statement(0, f"refresh of stream {stream.name}"):
            wanted = self._wanted(stream, target)
        self._services.stores.results.check_attempt(stream.id, request.attempt, f"a refresh of {stream.name}")
        return pa.table({"written": [self._write(target, wanted)]})

    def _wanted(self, stream: StreamRecord, target: Table) -> pa.RecordBatch:
        """Returns what the table is to hold, as it is stored."""
        plan, session = self._planning.answer_of(stream)
        rows = self._run(plan, session)
        precision = require_database(target.database, self._services.catalog).precision
        constants = Constants(precision, "UTC", self._services.clock.now_ms())
        arrays = [fitted(column, pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type),
                         constants, row_number, checks_text=True)
                  for column, values in zip(target.columns, rows.columns, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, names=[column.physical for column in target.columns])
        if not target.keyed and batch.column(0).null_count:
            raise InvalidValueError(f"the time {target.columns[0].name} of a row of the answer is NULL")
        keys = _keys(target, batch)
        if pc.count_distinct(keys).as_py() < len(keys):
            names = ", ".join(column.name for column in target.key_columns)
            raise InvalidValueError(f"several rows of the answer have the same {names}, of which the table has one",
                                    hint="name further columns of the KEY: INTO t (a PRIMARY KEY, b PRIMARY KEY, ...)")
        return keyed(target, batch) if target.keyed else batch

    def _write(self, target: Table, wanted: pa.RecordBatch) -> int:
        """Writes the rows that are new or others, deletes those that are no more; returns how many that are."""
        assert target.vgroup_id is not None
        vnode = self._services.storage.vnode(target.vgroup_id)
        found = self._services.storage.snapshot(target.vgroup_id, target.uid).to_arrow(
            [column.physical for column in target.stored_columns]).drop_columns([TUID_COLUMN]).combine_chunks()
        known = pa.RecordBatch.from_arrays([pa.concat_arrays(column.chunks) if column.num_chunks else pa.array(
            [], column.type) for column in found.columns], names=found.column_names)
        want, have = _keys(target, wanted), _keys(target, known)
        gone = np.flatnonzero(pc.invert(pc.is_in(have, value_set=want)).to_numpy(zero_copy_only=False))
        places = pc.index_in(want, value_set=have)
        changed = ~(places.is_valid().to_numpy(zero_copy_only=False)
                    & _equal_rows(target.columns, wanted, known.take(places)))
        if len(gone):
            times = np.unique(_times(target, known)[gone])
            # A delete takes along what else lies at its time.
            changed |= np.isin(_times(target, wanted), times)
            write = vnode.begin_delete_rows(target.uid, np.full(len(times), target.uid, np.uint64), times)
            if write is not None:
                write.wait()
        if changed.any():
            rows = wanted.filter(pa.array(changed))
            uids = pa.repeat(pa.scalar(target.uid, pa.uint64()), rows.num_rows)
            of_table = pa.RecordBatch.from_arrays([uids, *rows.columns], names=[TUID_COLUMN, *rows.schema.names])
            for part in record_batches(of_table):
                vnode.write(target.uid, part)
        return int(changed.sum()) + len(gone)


def _keys(target: Table, batch: pa.RecordBatch) -> pa.StringArray:
    columns = target.key_columns
    return key_texts([batch.column(column.physical) for column in columns], [column.type.kind for column in columns])


def _times(target: Table, batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.asarray(batch.column(target.time_column.physical).cast(pa.int64()), np.int64)


def _equal_rows(
    columns: Sequence[Column], left: pa.RecordBatch, right: pa.RecordBatch
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Returns which rows have the same values on both sides, NULL and NaN being equal to themselves."""
    equal = np.ones(left.num_rows, bool)
    for column in columns:
        one, other = left.column(column.physical), right.column(column.physical).cast(column.type.arrow())
        same = pc.fill_null(pc.equal(one, other), False)
        both = pc.and_(pc.is_null(one, nan_is_null=True), pc.is_null(other, nan_is_null=True))
        kinds = pc.equal(pc.is_null(one), pc.is_null(other))
        equal &= pc.or_(same, pc.and_(both, kinds)).to_numpy(zero_copy_only=False)
    return equal
