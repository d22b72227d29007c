"""The source task of a join: follows one vnode's WAL for one side, and sends its rows, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.planner.task_plans.stream_plan import JoinPlan
from penstock.tasks.compute.child_tables import MovedTables
from penstock.tasks.compute.lateness import NEVER, ClassifiedRows, without_rows
from penstock.tasks.dropped.computable_rows import ComputableRows
from penstock.tasks.operators.stream_task import TaskEnvironment
from penstock.tasks.protocol.block_schema import REPLAYED_ROWS
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.source.change_emitter import ChangeEmitter
from penstock.tasks.source.source_task import SourceTask
from penstock.wal.record import AnyDelete, Record


class JoinChangeEmitter(ChangeEmitter):
    """Sends the rows of one side of a join. `slack`: how long rows still wait for partners; None: for ever.

    `replays`: an earlier attempt may have sent what is sent now, and it is marked so.
    """

    slack: int | None = None
    replays = False

    def send(self, operation: int, batch: pa.RecordBatch) -> None:
        super().send(operation + REPLAYED_ROWS if self.replays else operation, batch)

    def _emit_computable(
        self, classified: ClassifiedRows | None, deletes: Sequence[AnyDelete], before: int, after: int,
        moved: MovedTables | None = None,
    ) -> None:
        late = np.zeros(0, np.int64)
        if self.slack is not None:
            if moved is not None and self._time.newest is not None:
                moved = replace(moved, first_ts=self._time.newest - self._plan.policies.closing_delay - self.slack)
            deletes = self._timely(deletes, classified, self.slack)
            if classified is not None:
                limit = np.maximum(classified.limit, NEVER + self.slack) - self.slack
                late = np.flatnonzero(classified.ts < limit)
        timely = classified if classified is None or not len(late) else without_rows(classified, late.tolist())
        if timely is not None or deletes or moved is not None:
            super()._emit_computable(timely, deletes, before, after, moved)
        # Not before: rows that can't be computed would be tried without others once more, and these be counted twice.
        if classified is not None and len(late):
            self._dropped.drop_late(classified, late)

    def _timely(
        self, deletes: Sequence[AnyDelete], classified: ClassifiedRows | None, slack: int
    ) -> list[AnyDelete]:
        """Returns the deletes without the times for which they come too late, as rows would."""
        found: list[AnyDelete] = []
        for delete in deletes:
            newest = self._time.newest
            if classified is not None:
                earlier = int(np.searchsorted(np.array(classified.versions), delete.version))
                end = classified.ends[earlier - 1] if earlier else 0
                if end:
                    seen = int(classified.ts[:end].max())
                    newest = seen if newest is None else max(seen, newest)
            if newest is not None:
                oldest = newest - self._plan.policies.closing_delay - slack
                since = delete.since(oldest)
                if since is None:
                    continue
                delete = since
            if delete.first_ts <= delete.last_ts:
                found.append(delete)
        return found


class JoinSourceTask(SourceTask):
    """One vnode's source task for one side of a join: that of a stream of the rows themselves, which keeps time.

    A row comes too late if it is older than its vnode's time by more than those that still wait for partners. So is
    any row, whatever its own table had come to: join tasks forget by time, not by table. What an earlier attempt may
    have sent is marked.
    """

    _emitter: JoinChangeEmitter

    def __init__(
        self, deployment: StreamDeployment, index: int, downstream: Sequence[TaskId], environment: TaskEnvironment
    ) -> None:
        join = deployment.plan.computation
        assert isinstance(join, JoinPlan)
        place = int(index >= len(deployment.graph.vgroup_ids))
        super().__init__(replace(deployment, plan=deployment.plan.of_side(place)), index, downstream, environment)
        self._emitter.slack = join.sides[place].slack

    def _new_emitter(self, computable: ComputableRows) -> JoinChangeEmitter:
        return JoinChangeEmitter(self._plan, self._outbox, self._first_stage, computable, self._stored, self._time,
                                 self._store)

    def _emit_history(self, rows: pa.Table, as_of: int) -> None:
        self._emitter.replays = self._attempt > 1
        super()._emit_history(rows, as_of)

    def _process(self, records: Sequence[Record]) -> None:
        self._emitter.replays = records[0].version <= self._emitter.replayed_until
        super()._process(records)
