"""The combined state of some windows, as results are computed from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.common.masks import all_set
from penstock.planner.task_plans.stream_plan import Field
from penstock.tasks.compute.accumulators import Slots, Values
from penstock.tasks.compute.group_index import GroupIndex
from penstock.tasks.compute.kernel_vectors import Vector, vector_of
from penstock.tasks.protocol.block_schema import GROUP, ROWS, WINDOW_START, fields_schema


@dataclass(frozen=True, slots=True)
class WindowState:
    """One row per (group, window). `rows` 0: the window has ceased to exist. `columns`: the accumulators' fields."""

    index: GroupIndex
    groups: Slots
    starts: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    fields: Sequence[Field]
    columns: Sequence[Values]

    def __len__(self) -> int:
        return len(self.starts)

    def table(self) -> pa.Table:
        """Returns the relation `state` of `WindowsPlan.final_sql`."""
        arrays = [pa.array(self.index.ids(self.groups)), *self.index.key_columns(self.groups), pa.array(self.starts),
                  pa.array(self.rows), *(column.arrow() for column in self.columns)]
        schema = pa.schema([GROUP, *self.index.key_fields, WINDOW_START, ROWS, *fields_schema(self.fields)])
        return pa.Table.from_arrays(arrays, schema=schema)

    def column(self, name: str, keys: Sequence[pa.Array]) -> Vector:
        """Returns a column of that relation; `keys`: the key columns."""
        for place, field in enumerate(self.fields):
            if field.name == name:
                column = self.columns[place]
                if column.dtype == np.dtype(object):
                    return Vector(column.arrow())
                return Vector(column.data, None if all_set(column.valid) else column.valid)
        match name:
            case GROUP.name:
                return Vector(self.index.ids(self.groups))
            case WINDOW_START.name:
                return Vector(self.starts)
            case ROWS.name:
                return Vector(self.rows)
        return next(vector_of(key) for key, field in zip(keys, self.index.key_fields, strict=True)
                    if field.name == name)
