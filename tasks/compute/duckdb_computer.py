"""Runs the planner's SQL over Arrow tables, in a DuckDB of the task's own if they are large."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import duckdb
import pyarrow as pa

from penstock.common.arrow_data import one_array
from penstock.common.closed_duckdb import (
    UNBOUNDED,
    DuckdbBounds,
    closed_duckdb,
    is_broken,
    renew_small_duckdb_if_broken,
    small_duckdb,
)
from penstock.common.errors import InternalError, InvalidValueError, OutOfMemoryError
from penstock.planner.duckdb_sql.quoting import for_duckdb, from_duckdb, renamed
from penstock.tasks.compute.function_runtime import UserFunctions

#: Up to so many rows, planning a statement costs more than running it; a copy of what it gives costs nothing.
_SMALL_ROWS = 10_000
_PREPARED_MAX = 64

# What a prepared statement gives is copied once. That is known, and still takes less than planning it.
warnings.filterwarnings("ignore", "Arrow output on a DB-API result", UserWarning)


class Computer:
    """An in-memory DuckDB. Relations are registered by name; one thread, since workers share the machine.

    It is opened when something is computed for the first time: many tasks leave everything to kernels. Most compute no
    more than the groups and child tables that are new. So the tasks of a process share a DuckDB until they see many
    rows of which it makes others than one of each; then, or if memory is short, one gets its own, with its own bounds.
    Users' functions are always in their task's own. Statements over few rows are planned once.
    """

    def __init__(self, functions: UserFunctions | None = None, bounds: DuckdbBounds = UNBOUNDED) -> None:
        """`functions`: the users' functions that the SQL calls."""
        self._functions = functions
        self._bounds = bounds
        self._alone = functions is not None and bool(functions.calls)
        self._opened: duckdb.DuckDBPyConnection | None = None
        self._places: dict[str, _Place] = {}
        self._prepared: dict[str, str] = {}

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        if self._opened is None:
            self._opened = closed_duckdb(self._bounds) if self._alone else small_duckdb()
            if self._functions is not None:
                self._functions.register(self._opened)
        return self._opened

    def _leave_others(self) -> None:
        """Computes in a DuckDB of its own from now on."""
        if self._alone:
            return
        self._alone = True
        self._leave_connection()

    def _leave_connection(self) -> None:
        """Computes over another connection from now on, with the relations that are registered."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None
        places, self._places = self._places, {}
        self._prepared.clear()
        for name, place in places.items():
            if place.table is not None:
                self.register(name, place.table)

    def register(self, name: str, table: pa.Table) -> None:
        """Makes `table` the relation `name` until the next call with that name."""
        if table.num_rows > _SMALL_ROWS:
            self._leave_others()
        place = self._places.get(name)
        if place is None or not place.schema.equals(table.schema):
            self._leave_place(name)
            place = self._places[name] = _Place(table.schema)
            self._connection.register(name, place)
        place.table = table

    def run(
        self, sql: str, schema: pa.Schema, parameters: Mapping[str, int] | None = None, /, **tables: pa.Table
    ) -> pa.RecordBatch:
        """Returns the result of `sql` over `tables` and the registered ones, as one batch of exactly `schema`."""
        return as_batch(self._computed(sql, parameters, tables), schema)

    def run_by_row(self, sql: str, schema: pa.Schema, /, **tables: pa.Table) -> pa.RecordBatch:
        """Returns what `run` does, for SQL that makes one row of each row of a table.

        DuckDB computes that in small pieces: however many rows they are, it needs no memory of the task's own.
        """
        return as_batch(self._computed(sql, None, tables, by_row=True), schema)

    def table(self, sql: str, parameters: Mapping[str, int] | None = None, /, **tables: pa.Table) -> pa.Table:
        """Returns the result of `sql` over `tables` and the registered ones, with the types that DuckDB gives it.

        `parameters`: values of those that the SQL has, by name.
        """
        return from_duckdb(self._computed(sql, parameters, tables))

    def _computed(
        self, sql: str, parameters: Mapping[str, int] | None, tables: Mapping[str, pa.Table], *, by_row: bool = False,
        again: bool = False,
    ) -> pa.Table:
        small = sum(table.num_rows for table in tables.values()) <= _SMALL_ROWS
        if not small and not by_row:
            self._leave_others()
        try:
            return (self._small if small else self._large)(sql, parameters, tables)
        except duckdb.Error as error:
            if isinstance(error, duckdb.OutOfMemoryException) and not self._alone:
                self._leave_others()
                return self._computed(sql, parameters, tables)
            if self._is_renewed(error) and not again:
                return self._computed(sql, parameters, tables, by_row=by_row, again=True)
            if any(place.missed for place in self._places.values()):
                raise InternalError(f"compiled SQL reads a relation that it is not given: {sql}") from error
            raise classify(error, sql) from error

    def _is_renewed(self, error: duckdb.Error) -> bool:
        """Whether the error, or what another task has computed, had broken DuckDB, of which there is a new one now."""
        if not isinstance(error, duckdb.FatalException | duckdb.InternalException) or self._opened is None \
                or not is_broken(self._opened):
            return False
        if not self._alone:
            renew_small_duckdb_if_broken()
        self._leave_connection()
        return True

    def _small(self, sql: str, parameters: Mapping[str, int] | None, tables: Mapping[str, pa.Table]) -> pa.Table:
        for name, table in tables.items():
            self.register(name, table)
        try:
            if parameters is not None:
                return self._connection.execute(sql, dict(parameters)).to_arrow_table()
            return self._connection.execute(f"EXECUTE {self._prepared.get(sql) or self._prepare(sql)}").to_arrow_table()
        finally:
            for name in tables:
                self._places[name].table = None

    def _large(self, sql: str, parameters: Mapping[str, int] | None, tables: Mapping[str, pa.Table]) -> pa.Table:
        for name, table in tables.items():
            self._leave_place(name)
            self._connection.register(name, for_duckdb(table))
        try:
            values = None if parameters is None else dict(parameters)
            return self._connection.sql(sql, params=values).to_arrow_table()
        finally:
            for name in tables:
                self._connection.unregister(name)

    def _prepare(self, sql: str) -> str:
        """Returns the name of a statement that is prepared; relations that it reads are registered."""
        if len(self._prepared) == _PREPARED_MAX:
            self._forget_prepared()
        name = f"s{len(self._prepared)}"
        called = self._function_calls()
        self._connection.execute(f"PREPARE {name} AS {sql}")
        # What users' functions make of constants is part of the plan: then they are asked each time.
        if self._function_calls() == called:
            self._prepared[sql] = name
        return name

    def _function_calls(self) -> int:
        return 0 if self._functions is None else self._functions.times_called

    def _leave_place(self, name: str) -> None:
        """Has no statement read a relation any more where it has been."""
        if self._places.pop(name, None) is not None:
            self._forget_prepared()

    def _forget_prepared(self) -> None:
        while self._prepared:
            self._connection.execute(f"DEALLOCATE {self._prepared.popitem()[1]}")

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


class _Place:
    """A relation for DuckDB, which doesn't notice that another table takes the place of the one before.

    So what is prepared stays valid as long as tables have these columns. Without a table it can't be read.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._names = renamed(schema.names)
        self.table: pa.Table | None = None
        self.missed = False

    def __arrow_c_schema__(self) -> object:
        schema = self.schema if self._names is None else for_duckdb(self.schema.empty_table()).schema
        return schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        if self.table is None:
            self.missed = True
            raise InternalError("there is no table")
        table = self.table if self._names is None else self.table.rename_columns(self._names)
        return table.__arrow_c_stream__(requested_schema)


def classify(error: duckdb.Error, sql: str) -> Exception:
    """Returns the PenstockError for an error of DuckDB: a value's fault, no memory, or a defect of compiled SQL."""
    text = str(error).splitlines()[0]
    if isinstance(error, duckdb.OutOfMemoryException):
        return OutOfMemoryError.of(text)
    # A query that DuckDB was able to plan fails for the sake of values, even where DuckDB didn't expect them.
    if isinstance(error, (duckdb.OutOfRangeException, duckdb.ConversionException, duckdb.InvalidInputException,
                          duckdb.InternalException, duckdb.FatalException)):
        return InvalidValueError(f"a row cannot be computed: {text}")
    return InternalError(f"compiled SQL failed: {text}; the SQL is: {sql}")


def as_batch(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """Returns `table` as one batch with the columns of `schema`, by position."""
    arrays = []
    for column, field in zip(table.columns, schema, strict=True):
        array = one_array(column)
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
