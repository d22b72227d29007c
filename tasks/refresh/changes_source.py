"""The source task of a stream of any query: follows one table in one vnode's log, and tells that it has changed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.planner.task_plans.stream_plan import RefreshPlan
from penstock.tasks.operators.stream_task import TaskEnvironment
from penstock.tasks.protocol.child_records import new_children
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import Recalculate, TaskEvent, TaskId
from penstock.tasks.protocol.task_status import LogProgress
from penstock.tasks.source.base_source_task import BaseSourceTask
from penstock.wal.record import TUID_COLUMN, DeletePointsRecord, DeleteRecord, MetaRecord, Record, RowsRecord

CHANGES = pa.schema([pa.field("tuid", pa.uint64()), pa.field("rows", pa.int64())])
"""A block: child tables that have changed, and how many rows of them came; NULL: any of them may have changed."""

_TABLES_MAX = 256
"""Of more child tables in one block none is named."""


class ChangesSourceTask(BaseSourceTask):
    """Reads no values of rows: what the answer is then, the engine computes."""

    def __init__(
        self, deployment: StreamDeployment, index: int, downstream: Sequence[TaskId], environment: TaskEnvironment
    ) -> None:
        plan = deployment.plan
        assert isinstance(plan.computation, RefreshPlan)
        source = plan.computation.sources[deployment.graph.read_by(index)]
        super().__init__(replace(deployment, plan=replace(plan, source=source)), index, downstream, environment)
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
        self._version = records[-1].version
        rows, touched = 0, set[int | None]()
        for record in records:
            rows += self._note(record, touched)
        self._rows_in += rows
        if touched:
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
        self._send(pa.RecordBatch.from_arrays(
            [pa.array(named, pa.uint64()), pa.array(counts, pa.int64())], schema=CHANGES))

    def _handle(self, event: TaskEvent) -> None:
        if isinstance(event, Recalculate):
            self._tell(0, (None,))
        else:
            super()._handle(event)

    def _skip_to_end(self) -> None:
        """The answer is of all rows, whatever was passed over."""
        self._wal.close()
        self._version = self._wal.acknowledged_version
        self._open_wal()
        self._tell(0, (None,))

    def _log_progress(self) -> LogProgress:
        return super()._log_progress()._replace(rows_read=self._rows_in)
