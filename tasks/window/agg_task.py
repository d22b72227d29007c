"""The agg task: combines partials of all its source tasks; subclasses know windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.planner.task_plans.stream_plan import WindowsPlan
from penstock.tasks.compute.group_index import GroupIndex
from penstock.tasks.operators.delayed_results import Delayed
from penstock.tasks.operators.windowed_operator import WindowedOperator
from penstock.tasks.protocol.block_schema import OPERATION
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.window.final_stage import FinalStage


class WindowsOfTask(Protocol):
    """What the windows of all agg tasks have in common."""

    groups: GroupIndex

    @property
    def slots_used(self) -> int: ...

    @property
    def memory_bytes(self) -> int: ...

    def save(self) -> dict[str, Any]: ...

    def restore(self, meta: dict[str, Any], closed_until: int | None) -> None: ...


class AggTask(WindowedOperator):
    """One agg task of a windowed stream."""

    _table: WindowsOfTask

    def _set_up(self, inputs: int, deployment: StreamDeployment) -> None:
        assert isinstance(self._plan.computation, WindowsPlan)
        self._agg = self._plan.computation
        self._delayed = Delayed(self._agg.period_ms / 1000)
        self._final = FinalStage(self._agg, self._schema, self._computer)

    @property
    def _windows_open(self) -> int:
        return self._table.slots_used

    @property
    def _table_bytes(self) -> int:
        return self._table.memory_bytes + self._table.groups.memory_bytes

    @property
    def _groups(self) -> GroupIndex:
        return self._table.groups

    def _own_state(self) -> Mapping[str, Any]:
        return {"table": self._table.save()}

    def _announce(self, results: pa.RecordBatch, operation: int) -> None:
        """Sends on what only those need who are notified: OPENED or VOIDED."""
        self._route(results.set_column(0, OPERATION, pa.array(np.full(results.num_rows, operation, np.uint8))))
