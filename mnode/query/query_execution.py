"""Runs the SQL of a planned query on a DuckDB of this process; results become Arrow with the dialect's types, or JSON.

The engine does so, and the process that computes for clients. What a query is to run and what a run gives is the same
in both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.errors import (
    InternalError,
    InvalidStatementError,
    InvalidValueError,
    LimitExceededError,
    PenstockError,
    UnavailableError,
)
from penstock.common.responsiveness import LONG_TEXT, one_at_a_time
from penstock.common.result_texts import texts_of_results
from penstock.mnode.query.json_rows import UTC_ROWS, JsonRows, RowStyle, json_rows
from penstock.planner.duckdb_sql.quoting import LIMIT

if TYPE_CHECKING:  # the process of the queries has no use for the planner
    from penstock.planner.task_plans.user_calls import UserCall


_OF_STATEMENTS = ("Could not choose a best candidate", "Could not retrieve required statistics",
                  "EXCLUDE is not supported", "FILL ", "Frame end", "Frame start", "GROUPING statement",
                  "Histogram bin", "LATERAL join cannot contain aggregates", "Non-constant limit",
                  "ORDER BY non-integer literal", "PERCENTILEs", "RESPECT/IGNORE NULLS", "UNNEST",
                  "WHERE clause cannot contain aggregates", "window functions are not allowed in window definitions")
"""How DuckDB begins to say what is wrong with a statement that it only sees as it binds the whole query."""


_ROWS = 10_000
"""So many are taken at once where all are."""


@dataclass(frozen=True, slots=True)
class RunnableQuery:
    """SQL for DuckDB over `tables`, which it finds by these names, and over files; results have the `schema`.

    `functions`: those of users that the SQL calls. `parameters`: values that the SQL is given by name.
    """

    sql: str
    tables: Mapping[str, pa.Table]
    schema: pa.Schema
    functions: tuple[UserCall, ...] = ()
    parameters: Mapping[str, object] = field(default_factory=dict)


class QueryRun(Protocol):
    """One query that runs where its rows are taken, once, by one of these. Raises PenstockErrors only."""

    def table(self) -> pa.Table:
        """Runs the query and returns all rows."""
        ...

    def batches(self, rows_max: int) -> Iterator[pa.RecordBatch]:
        """Runs the query and yields its rows, `rows_max` at a time, as fast as they are taken."""
        ...

    def json(self, rows_max: int, style: RowStyle = UTC_ROWS) -> Iterator[JsonRows]:
        """Does what `batches` does, with the rows as JSON."""
        ...

    def interrupt(self) -> None:
        """Has the query end soon with some error; any thread may call it, at any time."""
        ...

    def close(self) -> None:
        """Ends the query, if it runs, and lets go of its tables."""
        ...


class LocalRun:
    """A run on a DuckDB of this process."""

    def __init__(
        self, cursor: duckdb.DuckDBPyConnection, query: RunnableQuery,
        failure: Callable[[], Exception | None] = lambda: None, on_error: Callable[[], object] = lambda: None,
    ) -> None:
        """`cursor` is closed with the run. `failure`: what went wrong in a function of the user's, if anything did.
        `on_error` is called after an error of DuckDB's, which may have broken it for others.
        """
        self._cursor = cursor
        self._query = query
        self._failure = failure
        self._on_error = on_error
        self._lock = threading.Lock()
        self._closed = False
        self._reader: pa.RecordBatchReader | None = None
        try:
            with self._translated():
                for name, table in query.tables.items():
                    cursor.register(name, table)
        except BaseException:
            self.close()
            raise

    def table(self) -> pa.Table:
        if self._takes_rows:
            return pa.Table.from_batches(list(self.batches(_ROWS)), self._query.schema)
        with self._translated():
            return typed(self._relation().to_arrow_table(), self._query.schema)

    def batches(self, rows_max: int) -> Iterator[pa.RecordBatch]:
        if self._takes_rows:
            yield from self._rows(rows_max)
            return
        with self._translated():
            self._reader = self._relation().to_arrow_reader(rows_max)
            for batch in self._reader:
                yield from typed(pa.Table.from_batches([batch]), self._query.schema).to_batches()

    def json(self, rows_max: int, style: RowStyle = UTC_ROWS) -> Iterator[JsonRows]:
        with texts_of_results():
            yield from json_rows(self.batches(rows_max), style)

    def _relation(self) -> duckdb.DuckDBPyRelation:
        with one_at_a_time(unless=len(self._query.sql) < LONG_TEXT):  # DuckDB reads it in Python first
            return self._cursor.sql(self._query.sql, params={**self._query.parameters} or None)

    @property
    def _takes_rows(self) -> bool:
        """Whether results come row by row: who plans a query once, to run it with other values each time, asks for few
        rows each time. As Arrow DuckDB gives them after it has bound the statement a second time."""
        return bool(self._query.parameters) and all(map(_is_plain, self._query.schema.types))

    def _rows(self, rows_max: int) -> Iterator[pa.RecordBatch]:
        schema = self._query.schema
        with self._translated():
            with one_at_a_time(unless=len(self._query.sql) < LONG_TEXT):
                result = self._cursor.execute(self._query.sql, {**self._query.parameters})
            while rows := result.fetchmany(rows_max):
                columns = zip(*rows, strict=True)
                arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def interrupt(self) -> None:
        with self._lock:
            if not self._closed:
                self._cursor.interrupt()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._reader is not None:
                self._reader.close()
            with suppress(duckdb.FatalException):  # it is broken
                self._cursor.close()  # and the tables go with it

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            self._on_error()
            # What DuckDB says of an exception in a function is less than is known of it.
            raise self._failure() or _translated(error) from error


def _is_plain(kind: pa.DataType) -> bool:
    """Whether Python has values of a type as DuckDB and Arrow have them."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
                or pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_timestamp(kind))


def typed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns the table with the schema's names and types; BIGINT turns into timestamps."""
    if table.num_columns != len(schema):
        raise InternalError(f"the query gave {table.num_columns} columns instead of {len(schema)}")
    arrays = [_converted(table.column(place), field.type) for place, field in enumerate(schema)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _converted(array: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    if array.type == target:
        return array
    if pa.types.is_timestamp(target):
        return pc.cast(pc.cast(array, pa.int64()), target)
    if pa.types.is_null(target):
        return pa.chunked_array([pa.nulls(len(array))])
    return pc.cast(array, target, safe=False)


def _translated(error: Exception) -> PenstockError:
    """Returns the PenstockError that tells what an error of DuckDB means to the user.

    Errors that come while rows are taken are Arrow's, with DuckDB's text.
    """
    kind, _, text = str(error).splitlines()[0].partition("Error: ")
    kind = kind.strip()
    if text.startswith(LIMIT):
        return LimitExceededError(text.removeprefix(LIMIT), hint="shorten the time range or take longer windows")
    of_value = kind.endswith(("Conversion", "Out of Range", "Invalid Input", "Not implemented", "Syntax"))
    # Intervals that range() refuses in FROM, and LIMIT, may be constants, which DuckDB sees as it binds the query.
    if of_value or (kind.endswith("Binder") and ("interval" in text or text.startswith("LIMIT"))):
        return InvalidValueError(f"a value in the query is invalid: {text}")
    if kind.endswith(("Binder", "Parser")) and text.startswith(_OF_STATEMENTS):
        return InvalidStatementError(text)
    if "must appear in the GROUP BY clause" in text:
        return InvalidStatementError("an aggregate in a sub-query takes nothing but columns of the query around it",
                                     hint="compute it there: put it into a sub-query of FROM")
    if kind.startswith("Cannot perform list_reduce"):  # DuckDB doesn't say of which kind this error is
        return InvalidValueError(f"a value in the query is invalid: {kind}")
    if kind.endswith("FATAL"):
        return UnavailableError(f"DuckDB failed because of another query, and is restarted: {text}", hint="try again")
    if kind.endswith("Out of Memory"):
        return UnavailableError(f"the query needs more memory than there is: {text}",
                                hint="narrow the time range, or raise queryMemory or spillMax")
    if "expression depth limit" in text:
        return InvalidStatementError("the query is nested too deeply for DuckDB",
                                     hint="compute a part in a sub-query, or split the query")
    return InternalError(f"the planned query failed: {text or kind}")
