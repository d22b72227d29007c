"""What an agg task computes from the state of windows: by its kernel where the plan has one, else by the SQL."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.planner.task_plans.stream_plan import WindowsPlan
from penstock.tasks.compute.duckdb_computer import Computer
from penstock.tasks.compute.kernel_vectors import NotInKernelError, Vector, evaluate, mask_of
from penstock.tasks.window.window_state import WindowState


class FinalStage:
    """One agg task's `WindowsPlan.final_sql`, in the schema of results."""

    def __init__(self, plan: WindowsPlan, schema: pa.Schema, computer: Computer) -> None:
        self._plan = plan
        self._schema = schema
        self._types = schema.types
        self._computer = computer

    def compute(self, state: WindowState) -> pa.RecordBatch:
        """Returns a result row per row of the state, in its order."""
        if self._plan.kernel is not None:
            try:
                return self._by_kernel(state)
            except NotInKernelError:
                pass
        return self._computer.run(self._plan.final_sql, self._schema, state=state.table())

    def _by_kernel(self, state: WindowState) -> pa.RecordBatch:
        kernel = self._plan.kernel
        assert kernel is not None
        keys = state.index.key_columns(state.groups)
        known: dict[str, Vector] = {}

        def columns(name: str) -> Vector:
            vector = known.get(name)
            if vector is None:
                end = kernel.end if name == "_wend" else None
                vector = known[name] = state.column(name, keys) if end is None else evaluate(end, columns)
            return vector

        nothing = mask_of(kernel.nothing, columns, len(state))
        arrays = [pa.array(nothing.astype(np.uint8)), pa.array(state.index.ids(state.groups)), *keys]
        count = len(state)
        arrays += [evaluate(result, columns).arrow(type_, count)
                   for result, type_ in zip(kernel.results, self._types[len(arrays):], strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
