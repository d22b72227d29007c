"""The source task of a join: follows one vnode's WAL for one side, and sends its rows, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.planner.task_plans.stream_plan import JoinPlan
from penstock.tasks.compute.lateness import NEVER, ClassifiedRows, without_rows
from penstock.tasks.operators.stream_task import TaskEnvironment
from penstock.tasks.protocol.block_schema import REPLAYED_ROWS
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.source.source_task import SourceTask
from penstock.wal.record import DeleteRecord, Record


class JoinSourceTask(SourceTask):
    """One vnode's source task for one side of a join: that of a stream of the rows themselves, which keeps time.

    A row comes too late if it is older than its vnode's time by more than those that still wait for partners. So is
    any row, whatever its own table had come to: join tasks forget by time, not by table. What an earlier attempt may
    have sent is marked.
    """

    def __init__(
        self, deployment: StreamDeployment, index: int, downstream: Sequence[TaskId], environment: TaskEnvironment
    ) -> None:
        join = deployment.plan.computation
        assert isinstance(join, JoinPlan)
        place = int(index >= len(deployment.graph.vgroup_ids))
        self._replays = False
        self._slack = join.sides[place].slack
        super().__init__(replace(deployment, plan=deployment.plan.of_side(place)), index, downstream, environment)

    def _emit_history(self, rows: pa.Table, as_of: int) -> None:
        self._replays = self._attempt > 1
        super()._emit_history(rows, as_of)

    def _process(self, records: Sequence[Record]) -> None:
        self._replays = records[0].version <= self._replayed_until
        super()._process(records)

    def _send(self, operation: int, batch: pa.RecordBatch) -> None:
        super()._send(operation + REPLAYED_ROWS if self._replays else operation, batch)

    def _emit(
        self, classified: ClassifiedRows | None, deletes: Sequence[DeleteRecord], before: int, after: int
    ) -> None:
        if self._slack is not None:
            deletes = self._timely(deletes, classified, self._slack)
            if classified is not None:
                limit = np.maximum(classified.limit, NEVER + self._slack) - self._slack
                late = np.flatnonzero(classified.ts < limit)
                if len(late):
                    self._count_late(classified, late)
                    classified = without_rows(classified, late.tolist())
        if classified is not None or deletes:
            super()._emit(classified, deletes, before, after)

    def _timely(
        self, deletes: Sequence[DeleteRecord], classified: ClassifiedRows | None, slack: int
    ) -> list[DeleteRecord]:
        """Returns the deletes without the times for which they come too late, as rows would."""
        found: list[DeleteRecord] = []
        for delete in deletes:
            newest = self._max_ts
            if classified is not None:
                earlier = int(np.searchsorted(np.array(classified.versions), delete.version))
                end = classified.ends[earlier - 1] if earlier else 0
                if end:
                    seen = int(classified.ts[:end].max())
                    newest = seen if newest is None else max(seen, newest)
            if newest is not None:
                oldest = newest - self._plan.policies.closing_delay - slack
                delete = replace(delete, first_ts=max(delete.first_ts, oldest))
            if delete.first_ts <= delete.last_ts:
                found.append(delete)
        return found
