"""Finds the rows that a stream can compute, and drops the others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.common.errors import InvalidValueError
from penstock.planner.task_plans.stream_plan import StreamPlan
from penstock.tasks.compute.failing_rows import failing_rows
from penstock.tasks.compute.first_stage import FirstStage
from penstock.tasks.compute.function_runtime import UserFunctions
from penstock.tasks.compute.lateness import never_late
from penstock.tasks.compute.quarantine import keys_of
from penstock.tasks.dropped.dropped_rows import DroppedRows
from penstock.tasks.dropped.time_ledger import dropped_rows
from penstock.tasks.protocol.messages import RowKey

_UNKNOWN_VERSION = 0  # that of the record of a row that is read back


class ComputableRows:
    """Computes rows to learn whether they can be; those that can't be go to `dropped`."""

    def __init__(
        self, plan: StreamPlan, first_stage: FirstStage, functions: UserFunctions, dropped: DroppedRows
    ) -> None:
        self._plan = plan
        self._first_stage = first_stage
        self._functions = functions
        self.dropped = dropped

    def error_of(self, rows: pa.Table) -> str | None:
        """Returns why rows can't be computed, None if they can."""
        self._functions.failure = None
        try:
            self._first_stage.attempt(rows)
        except InvalidValueError as error:
            return str(self._functions.failure or error)
        finally:
            self._functions.failure = None
        return None

    def of(self, rows: pa.Table, rewritten: frozenset[RowKey] = frozenset()) -> pa.Table:
        """Returns stored rows without those that can't be computed, which are dropped as those of the WAL are.

        What stands for `rewritten` keys is over with the block.
        """
        failing = failing_rows(rows, self.error_of)
        numbers = np.array(list(failing), np.int64)
        lasting = [row for row, key in zip(failing, keys_of(rows.take(numbers), self._plan.source), strict=True)
                   if key not in rewritten]
        for message in dict.fromkeys(failing[row] for row in lasting):
            found = rows.take([row for row in lasting if failing[row] == message])
            dropped = dropped_rows(never_late(found, self._plan, _UNKNOWN_VERSION), range(found.num_rows), "error",
                                   self._plan, found.num_rows)
            self.dropped.drop("error", dropped, message)
        kept = np.ones(rows.num_rows, bool)
        kept[list(failing)] = False
        return rows.filter(pa.array(kept))

    def retried(self, rows: pa.Table) -> tuple[pa.Table, list[RowKey]]:
        """Returns rows without those that were tried once more in vain, and the keys of the others tried."""
        held = self.dropped.quarantine.holds(rows)
        if not held.any():
            return rows, []
        tried = rows.filter(pa.array(held))
        if self._plan.policies.leaves_out_errors:
            tried = self.of(tried)
        return pa.concat_tables([rows.filter(pa.array(~held)), tried]), keys_of(tried, self._plan.source)

    def compute(self, rows: pa.Table) -> pa.RecordBatch:
        """Returns what stored rows yield, but for those that can't be computed."""
        try:
            return self._first_stage.compute(rows)
        except InvalidValueError:
            if not self._plan.policies.leaves_out_errors:
                raise
            return self._first_stage.compute(self.of(rows))
