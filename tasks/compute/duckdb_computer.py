"""Runs the planner's SQL over Arrow tables in a DuckDB of the task's own."""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import pyarrow as pa

from penstock.common.closed_duckdb import UNBOUNDED, DuckdbBounds, closed_duckdb
from penstock.common.errors import InternalError, InvalidValueError, OutOfMemoryError
from penstock.tasks.compute.function_runtime import UserFunctions


class Computer:
    """One in-memory DuckDB. Relations are registered by name; one thread, since workers share the machine.

    It is opened when something is computed for the first time: many tasks leave everything to kernels.
    """

    def __init__(self, functions: UserFunctions | None = None, bounds: DuckdbBounds = UNBOUNDED) -> None:
        """`functions`: the users' functions that the SQL calls."""
        self._functions = functions
        self._bounds = bounds
        self._opened: duckdb.DuckDBPyConnection | None = None

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        if self._opened is None:
            self._opened = closed_duckdb(self._bounds)
            if self._functions is not None:
                self._functions.register(self._opened)
        return self._opened

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
        if self._opened is not None:
            self._opened.close()


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
