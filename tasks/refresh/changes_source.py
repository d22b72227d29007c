"""The source task of a stream of any query: follows one table in one vnode's log, and tells that it has changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.one_array import one_array
from penstock.planner.task_plans.stream_plan import RefreshPlan
from penstock.tasks.compute.lateness import UPDATED
from penstock.tasks.flow.outbox import Outbox
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.operators.stream_task import TaskEnvironment
from penstock.tasks.protocol.child_records import new_children
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import Recalculate, TaskEvent, TaskId
from penstock.tasks.protocol.task_status import TaskProgress, TaskStatus
from penstock.tasks.source.base_source_task import BaseSourceTask
from penstock.vnode.read.snapshot import SnapshotTooOldError
from penstock.wal.record import (
    CHANGE_COLUMN,
    TUID_COLUMN,
    DeletePointsRecord,
    DeleteRecord,
    MetaRecord,
    Record,
    RowsRecord,
)

CHANGES = pa.schema([pa.field("tuid", pa.uint64()), pa.field("rows", pa.int64())])
"""A block: child tables that have changed, and how many rows of them came; NULL: any of them may have changed.

Where values of rows are told, they follow, and `tuid` says nothing but that.
"""

_TABLES_MAX = 256
"""Of more child tables in one block none is named."""

_ROWS_BEFORE_MAX = 100_000
"""So many rows are read, at most, to know what those were that are rewritten or deleted."""


class ChangesSourceTask(BaseSourceTask):
    """Reads values of rows only where these say which rows of the answer are touched."""

    def __init__(
        self, deployment: StreamDeployment, index: int, downstream: Sequence[TaskId], environment: TaskEnvironment
    ) -> None:
        plan = deployment.plan
        assert isinstance(plan.computation, RefreshPlan)
        source = plan.computation.sources[deployment.graph.read_by(index)]
        super().__init__(index, replace(deployment, plan=replace(plan, source=source)), environment)
        self.output: ChannelQueue[TaskId] = ChannelQueue(
            deployment.settings.queue_bytes, list(downstream), environment.wake)
        self._outbox = Outbox(self.output, deployment.settings.block_bytes_max)
        #: for each scan of the table the columns whose values are told
        self._origins: tuple[tuple[str, ...], ...] = ()
        self._steady = False
        if plan.computation.touched:
            read = deployment.graph.read_by(index)
            self._origins, self._steady = plan.computation.origins[read], plan.computation.steady[read]
        meta = self._restore_store(deployment.checkpoint_id)
        if meta is not None:
            self._version = meta["version"]
        self._open_wal()

    def _work(self, progressed: bool) -> bool:
        records = self._wal.read(self._settings.block_rows_max, self._settings.block_bytes_max)
        if not records:
            self._tracker.enter("IDLE", "caught up with the end of the WAL")
            return progressed
        self._tracker.enter("RUNNING")
        before, self._version = self._version, records[-1].version
        rows, touched = 0, set[int | None]()
        for record in records:
            rows += self._note(record, touched)
        self._rows_in += rows
        if touched and self._origins:
            self._tell_values(rows, self._values(records, before))
        elif touched:
            self._tell(rows, touched)
        return True

    def _note(self, record: Record, touched: set[int | None]) -> int:
        """Notes which child tables of the source a record changes, None for any; returns how many rows it has."""
        uid = self._source.storage_uid
        match record:
            case RowsRecord(table_uid=table, batch=batch) if table == uid:
                touched.update(np.unique(batch.column(TUID_COLUMN).to_numpy()).tolist())
                return int(batch.num_rows)
            case DeleteRecord(table_uid=table, tuids=tuids) if table == uid:
                touched.update((None,) if tuids is None else tuids)
            case DeletePointsRecord(table_uid=table, tuids=tuids) if table == uid:
                touched.update(np.unique(tuids).tolist())
            case MetaRecord(body={"op": "create_children", "table_uid": table} as body) if table == uid:
                touched.update(new_children(body).uids)
            case MetaRecord(body=body) if body.get("table_uid") == uid:
                touched.add(None)
        return 0

    def _tell(self, rows: int, touched: Collection[int | None]) -> None:
        named = list(touched) if len(touched) <= _TABLES_MAX and None not in touched else [None]
        counts = [rows, *[0] * (len(named) - 1)]
        self._outbox.send(self.output.channels[0], pa.RecordBatch.from_arrays(
            [pa.array(named, pa.uint64()), pa.array(counts, pa.int64())], schema=CHANGES))
        self._outbox.flush()

    # -- values ------------------------------------------------------------------------------------------------

    def _values(self, records: Sequence[Record], before: int) -> Sequence[pa.Table] | None:
        """Returns values of rows that records bring, and of those that they rewrite or delete, as of the version
        before; None if any may be touched."""
        names = list(dict.fromkeys(name for columns in self._origins for name in columns))
        found: list[pa.Table] = []
        for record in records:
            match record:
                case RowsRecord(table_uid=table, batch=batch) if table == self._source.storage_uid:
                    if not set(names).issubset(batch.schema.names):
                        return None
                    found.append(pa.Table.from_batches([batch.select(names)]))
                    if CHANGE_COLUMN not in batch.schema.names or self._steady:
                        continue
                    rewritten = batch.filter(pc.equal(batch.column(CHANGE_COLUMN), UPDATED))
                    if not rewritten.num_rows:
                        continue
                    times = rewritten.column(1).cast(pa.int64())
                    span = pc.min(times).as_py(), pc.max(times).as_py()
                    tuids = pc.unique(rewritten.column(TUID_COLUMN))
                case DeleteRecord(table_uid=table, tuids=of, first_ts=first, last_ts=last) if (
                        table == self._source.storage_uid):
                    span, tuids = (first, last), None if of is None else pa.array(of, pa.uint64())
                case DeletePointsRecord(table_uid=table) if table == self._source.storage_uid:
                    span, tuids = (record.first_ts, record.last_ts), pa.array(np.unique(record.tuids))
                case MetaRecord(body=body) if body.get("table_uid") == self._source.storage_uid and (
                        body["op"] != "create_children"):
                    return None
                case _:
                    continue
            old = self._read(tuids, *span, before)
            if old is None:
                return None
            found.append(old.select(names))
        return found

    def _read(self, tuids: pa.Array | None, first_ts: int, last_ts: int, as_of: int) -> pa.Table | None:
        """Returns rows as of a version; None if there are too many."""
        vgroup_id, uid = self._vgroup_id, self._source.storage_uid
        try:
            span = self._environment.time_span(vgroup_id, uid, first_ts, last_ts, as_of)
            if span is not None and span.rows > _ROWS_BEFORE_MAX:
                return None
            return self._environment.read_rows(vgroup_id, uid, tuids, first_ts, last_ts, as_of)
        except SnapshotTooOldError:
            return None

    def _tell_values(self, rows: int, found: Sequence[pa.Table] | None) -> None:
        if found is None:
            self._tell(rows, (None,))
            return
        for columns in self._origins if found else ():
            names = [f"v{place}" for place in range(len(columns))]
            touched = pa.concat_tables([pa.table(dict(zip(names, map(each.column, columns), strict=True)))
                                        for each in found], promote_options="permissive").combine_chunks()
            different = touched.group_by(names).aggregate([]).combine_chunks()
            counts = np.zeros(different.num_rows, np.int64)
            counts[:1], rows = rows, 0
            told = pa.array(np.zeros(different.num_rows, np.uint64))
            self._outbox.send(self.output.channels[0], pa.RecordBatch.from_arrays(
                [told, pa.array(counts), *map(one_array, different.columns)], names=[*CHANGES.names, *names]))
        self._outbox.flush()

    def _handle(self, event: TaskEvent) -> None:
        if isinstance(event, Recalculate):
            self._tell(0, (None,))
        else:
            super()._handle(event)

    def _read_ahead(self) -> bool:
        return False

    def _skip_to_end(self) -> None:
        """The answer is of all rows, whatever was passed over."""
        self._wal.close()
        self._version = self._wal.acknowledged_version
        self._open_wal()
        self._tell(0, (None,))

    def next_deadline(self) -> float | None:
        return None

    def status(self) -> TaskStatus:
        return self._status(
            TaskProgress(self._rows_in, self._outbox.rows_out, bytes_out=self._outbox.bytes_out), self.output,
            log=self._log_progress()._replace(rows_read=self._rows_in))

    def _state(self) -> Mapping[str, Any]:
        return {"version": self._version}
