"""The source task of PERIOD: hands over that the clock has come to a time, for each group that there is then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.planner.task_plans.stream_plan import LOOKUP, PeriodPlan
from penstock.sql.types import UNITS_PER_SECOND
from penstock.tasks.operators.stream_task import TaskEnvironment
from penstock.tasks.protocol.block_schema import GROUP, OPENED, UPSERT, fields_schema, result_schema
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.protocol.task_status import TaskStatus, TimeStatus
from penstock.tasks.source.base_source_task import BaseSourceTask


class PeriodSourceTask(BaseSourceTask):
    """Fires once for a time that has come, however many have passed meanwhile: a pause or a stop may have taken long.

    It reads no rows; of the log it only says that it needs nothing.
    """

    def __init__(
        self, deployment: StreamDeployment, index: int, downstream: Sequence[TaskId], environment: TaskEnvironment
    ) -> None:
        super().__init__(deployment, index, downstream, environment)
        plan = deployment.plan
        assert isinstance(plan.computation, PeriodPlan)
        self._period = plan.computation
        self._schema = result_schema(plan.grouping.keys, plan.result_fields)
        self._units = UNITS_PER_SECOND[plan.source.precision] // 1000
        self._next = self._period.schedule.after(self._period.schedule.created_ms)
        meta = self._restore_store(deployment.checkpoint_id)
        #: whether the engine knows since when rows of the trigger's table count
        self._since_known = meta is not None or not self._source.table
        if meta is not None:
            self._version, self._next = meta["version"], meta["next"]
        self._open_wal()

    def _work(self, progressed: bool) -> bool:
        now = self._clock.now_ms()
        if not self._since_known:
            self._since_known = True
            self._send(self._at(OPENED, self._no_group(), self._period.schedule.created_ms))
            return True
        if now < self._next:
            self._tracker.enter("IDLE", "waits for the next time")
            return progressed
        self._tracker.enter("RUNNING")
        schedule = self._period.schedule
        due = schedule.until(now)
        self._next = schedule.after(now)
        self._send(self._at(UPSERT, self._groups(), due))
        return True

    def _at(self, operation: int, groups: pa.RecordBatch, due: int) -> pa.RecordBatch:
        """Returns that the clock has come to a time, for some groups."""
        count = groups.num_rows
        start, end = (pa.array([ms * self._units] * count, pa.int64()) for ms in (due, self._next))
        keys = groups.columns[1:]
        arrays = [pa.array([operation] * count, pa.uint8()), groups.column(0), *keys, start, end,
                  pa.array([0] * count, pa.int64()), *keys]
        return pa.RecordBatch.from_arrays(
            [array.cast(field.type) for array, field in zip(arrays, self._schema, strict=True)], schema=self._schema)

    def _groups(self) -> pa.RecordBatch:
        """Returns the groups that there are now: ids and keys."""
        if self._period.groups_sql is None:
            return self._no_group()
        assert self._period.tags is not None
        schema = pa.schema([GROUP, *fields_schema(self._plan.grouping.keys)])
        self._computer.register(LOOKUP, self._environment.read_lookup(self._period.tags, None))
        return self._computer.run(self._period.groups_sql, schema)

    def _no_group(self) -> pa.RecordBatch:
        fields = fields_schema(self._plan.grouping.keys)
        return pa.RecordBatch.from_arrays([pa.array([0], pa.uint64()), *(pa.nulls(1, field.type) for field in fields)],
                                          schema=pa.schema([GROUP, *fields]))

    def _skip_to_end(self) -> None:
        """Leaves out the time that has come meanwhile."""
        self._next = max(self._next, self._period.schedule.after(self._clock.now_ms()))

    def _due(self) -> float | None:
        return self._monotonic_at(self._next)

    def status(self) -> TaskStatus:
        self._pass_over()
        return super().status()

    def _time_status(self) -> TimeStatus:
        return TimeStatus(self._next * self._units)

    def _needed_version(self) -> int:
        self._pass_over()
        return self._version

    def _pass_over(self) -> None:
        """Needs nothing of the log."""
        self._version = max(self._version, self._wal.acknowledged_version)

    def _state(self) -> Mapping[str, Any]:
        return {**super()._state(), "next": self._next}
