"""Runs the planner's SQL over Arrow tables in a DuckDB of the task's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb
import numpy as np
import pyarrow as pa

from penstock.common.closed_duckdb import UNBOUNDED, DuckdbBounds, closed_duckdb
from penstock.common.errors import InternalError, InvalidValueError, OutOfMemoryError
from penstock.planner.task_plans.stream_plan import Field, StreamPlan, WindowsPlan
from penstock.sql.types import DataType, Kind
from penstock.tasks.user_functions import UserFunctions


class Computer:
    """One in-memory DuckDB. Relations are registered by name; one thread, since workers share the machine."""

    def __init__(self, functions: UserFunctions | None = None, bounds: DuckdbBounds = UNBOUNDED) -> None:
        """`functions`: the users' functions that the SQL calls."""
        self._connection = closed_duckdb(bounds)
        if functions is not None:
            functions.register(self._connection)

    def register(self, name: str, table: pa.Table) -> None:
        """Makes `table` the relation `name` until the next call with that name."""
        self._connection.register(name, table)

    def run(
        self, sql: str, schema: pa.Schema, parameters: Mapping[str, int] | None = None, /, **tables: pa.Table
    ) -> pa.RecordBatch:
        """Returns the result of `sql` over `tables` and the registered ones, as one batch of exactly `schema`."""
        return as_batch(self.table(sql, parameters, **tables), schema)

    def table(self, sql: str, parameters: Mapping[str, int] | None = None, /, **tables: pa.Table) -> pa.Table:
        """Returns the result of `sql` over `tables` and the registered ones, with the types that DuckDB gives it.

        `parameters`: values of those that the SQL has, by name.
        """
        for name, table in tables.items():
            self._connection.register(name, table)
        try:
            values = None if parameters is None else dict(parameters)
            return self._connection.sql(sql, params=values).to_arrow_table()
        except duckdb.Error as error:
            raise classify(error, sql) from error
        finally:
            for name in tables:
                self._connection.unregister(name)

    def count(self, sql: str, **tables: pa.Table) -> int:
        """Returns the single number that `sql` yields."""
        batch = self.run(sql, pa.schema([("n", pa.int64())]), **tables)
        return int(batch.column(0)[0].as_py())

    def close(self) -> None:
        self._connection.close()


def classify(error: duckdb.Error, sql: str) -> Exception:
    """Returns the PenstockError for an error of DuckDB: a value's fault, no memory, or a defect of compiled SQL."""
    text = str(error).splitlines()[0]
    if isinstance(error, duckdb.OutOfMemoryException):
        return OutOfMemoryError.of(text)
    if isinstance(error, (duckdb.OutOfRangeException, duckdb.ConversionException, duckdb.InvalidInputException)):
        return InvalidValueError(f"a row cannot be computed: {text}")
    return InternalError(f"compiled SQL failed: {text}; the SQL is: {sql}")


def as_batch(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """Returns `table` as one batch with the columns of `schema`, by position."""
    arrays = []
    for column, field in zip(table.columns, schema, strict=True):
        array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], field.type)
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


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


OPERATION = pa.field("_op", pa.uint8())
#: What a block of partials says in `_op`: add to what its source contributed, take its place, or add after a restart.
ADD, REPLACE, REPLAYED = 0, 1, 2
#: Rows for a join: 0 to put, 1 to remove; plus this if an earlier attempt may have sent them.
REPLAYED_ROWS = 2
#: What a block of results says in `_op` of each row: write it, or delete what is at its time. The others are for
#: NOTIFY: a window has opened; one that had opened is none any more.
UPSERT, DELETE, OPENED, VOIDED = 0, 1, 3, 4
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
    """Returns the schema of result blocks: `_op` (UPSERT, DELETE, OPENED or VOIDED), group, keys, result columns."""
    return pa.schema([OPERATION, GROUP, *fields_schema(keys), *fields_schema(results)])


def with_operation(batch: pa.RecordBatch, operation: int) -> pa.RecordBatch:
    """Returns the batch with a leading constant `_op`."""
    return batch.add_column(0, OPERATION, pa.array(np.full(batch.num_rows, operation, np.uint8)))
