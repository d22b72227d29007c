"""The schemas of the blocks that tasks send to each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.planner.task_plans import column_names
from penstock.planner.task_plans.stream_plan import Field, StreamPlan, WindowsPlan
from penstock.sql.types import DataType, Kind


def block_type(type_: DataType) -> pa.DataType:
    """Returns the Arrow type that values of this type have in blocks: as in the WAL, but timestamps are int64.

    What is only ever NULL is int32, as in compiled SQL.
    """
    if type_.kind is Kind.NULL:
        return pa.int32()
    return pa.int64() if type_.kind is Kind.TIMESTAMP else type_.arrow()


def field_type(field: Field) -> pa.DataType:
    """Returns the Arrow type of a block column."""
    return pa.list_(block_type(field.type)) if field.many else block_type(field.type)


def fields_schema(fields: Sequence[Field]) -> list[pa.Field]:
    """Returns the Arrow fields of block columns."""
    return [pa.field(field.name, field_type(field)) for field in fields]


OPERATION = pa.field(column_names.OPERATION, pa.uint8())
#: What a block of partials says in `_op`: add to what its source contributed, take its place, or add after a restart.
ADD, REPLACE, REPLAYED = 0, 1, 2
#: Rows for a join: 0 to put, 1 to remove; plus this if an earlier attempt may have sent them.
REPLAYED_ROWS = 2
#: What a block of results says in `_op` of each row: write it, or delete what is at its time. The others are for
#: NOTIFY: a window has opened; one that had opened is none any more.
UPSERT, DELETE, OPENED, RETRACTED = 0, 1, 3, 4
GROUP = pa.field("_gid", pa.uint64())
WINDOW_START = pa.field("_wstart", pa.int64())
ROWS = pa.field("_rows", pa.int64())


def partial_schema(keys: Sequence[Field], accumulated: Sequence[Field]) -> pa.Schema:
    """Returns the schema of what `SourcePlan.sql` of a windowed stream yields."""
    return pa.schema([GROUP, *fields_schema(keys), WINDOW_START, ROWS, *fields_schema(accumulated)])


def block_schema(plan: StreamPlan) -> pa.Schema:
    """Returns the schema of what `SourcePlan.sql` yields: partials, or result columns with the number of their row."""
    if isinstance(plan.computation, WindowsPlan):
        return partial_schema(plan.grouping.keys, plan.computation.fields)
    results = result_schema(plan.grouping.keys, plan.result_fields)
    return pa.schema([pa.field("_row", pa.uint64()), *list(results)[1:]])


def result_schema(keys: Sequence[Field], results: Sequence[Field]) -> pa.Schema:
    """Returns the schema of result blocks: `_op` (UPSERT, DELETE, OPENED or RETRACTED), group, keys, result columns."""
    return pa.schema([OPERATION, GROUP, *fields_schema(keys), *fields_schema(results)])


def with_operation(batch: pa.RecordBatch, operation: int) -> pa.RecordBatch:
    """Returns the batch with a leading constant `_op`."""
    return batch.add_column(0, OPERATION, pa.array(np.full(batch.num_rows, operation, np.uint8)))
