"""Runs planned queries on DuckDB: scans become CTEs, results become Arrow tables with the dialect's types."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.clock import SystemClock
from penstock.common.errors import InternalError, InvalidValueError, PenstockError, UnavailableError
from penstock.planner.plan import BatchPlan, ResultColumn, Scan
from penstock.sql.types import Kind
from penstock.tasks.user_functions import UserFunctions


class ScannedRows(Protocol):
    """Rows of a scan: `sql` is a SELECT over `tables`, which are registered by these names before it runs.

    The object is kept until the query is done, and with it whatever else it holds on to (files, snapshots).
    """

    @property
    def sql(self) -> str: ...

    @property
    def tables(self) -> dict[str, pa.Table]: ...


class ScanProvider(Protocol):
    """Knows where the rows of tables are."""

    def relation(self, scan: Scan, /) -> ScannedRows:
        """Returns the rows of a scan, with the columns that `Scan` describes."""
        ...


def run_query(
    plan: BatchPlan, provider: ScanProvider, connection: duckdb.DuckDBPyConnection,
    functions_directory: Path = Path("udf"),
) -> pa.Table:
    """Runs a plan and returns its rows; columns are named and typed as `plan.columns` says.

    Works on a cursor of `connection`, so that queries may run side by side; a plan with users' functions, whose code
    is in `functions_directory` or on the Python path, gets a DuckDB of its own. Raises PenstockErrors only.
    """
    if not plan.functions:
        return _run(plan, provider, connection.cursor())
    functions = UserFunctions(plan.functions, functions_directory, SystemClock(), strict=True)
    own = duckdb.connect(":memory:")
    functions.register(own)
    try:
        return _run(plan, provider, own)
    except PenstockError as error:
        # What DuckDB says of an exception in a function is less than is known of it.
        raise functions.failure or error from error


def _run(plan: BatchPlan, provider: ScanProvider, cursor: duckdb.DuckDBPyConnection) -> pa.Table:
    """Runs a plan on a connection and closes it."""
    scanned = [(scan.name, provider.relation(scan)) for scan in plan.scans]
    registered = dict(plan.tables)
    for _, rows in scanned:
        registered.update(rows.tables)
    relations = ", ".join(f"{name} AS ({rows.sql})" for name, rows in scanned)
    # A plan's own CTEs refer to its scans: both lists become one.
    sql = f"WITH {relations}, {plan.sql.removeprefix('WITH ')}" if relations else plan.sql
    try:
        for name, table in registered.items():
            cursor.register(name, table)
        result = cursor.sql(sql).to_arrow_table()
    except duckdb.Error as error:
        raise _translated(error) from error
    finally:
        for name in registered:
            cursor.unregister(name)
        cursor.close()
    return typed(result, plan.columns)


def typed(table: pa.Table, columns: tuple[ResultColumn, ...]) -> pa.Table:
    """Returns the table with the columns' names and Arrow types; BIGINT turns into timestamps."""
    if table.num_columns != len(columns):
        raise InternalError(f"the query gave {table.num_columns} columns instead of {len(columns)}")
    arrays = [_converted(table.column(index), column) for index, column in enumerate(columns)]
    schema = pa.schema([pa.field(column.name, array.type) for column, array in zip(columns, arrays, strict=True)])
    return pa.Table.from_arrays(arrays, schema=schema)


def _converted(array: pa.ChunkedArray, column: ResultColumn) -> pa.ChunkedArray:
    target = column.type.arrow()
    if array.type == target:
        return array
    if column.type.kind is Kind.TIMESTAMP:
        return pc.cast(pc.cast(array, pa.int64()), target)
    if column.type.kind is Kind.NULL:
        return pa.chunked_array([pa.nulls(len(array))])
    return pc.cast(array, target, safe=False)


def _translated(error: duckdb.Error) -> PenstockError:
    """Returns the PenstockError that tells what a DuckDB error means to the user."""
    text = str(error).partition("Error: ")[2].splitlines()[0] or str(error).splitlines()[0]
    if isinstance(error, duckdb.ConversionException | duckdb.OutOfRangeException | duckdb.InvalidInputException):
        return InvalidValueError(f"a value in the query is not possible: {text}")
    if isinstance(error, duckdb.InterruptException):
        return UnavailableError("the query was interrupted")
    if isinstance(error, duckdb.OutOfMemoryException):
        return UnavailableError(f"the query needs more memory than there is: {text}",
                                hint="narrow the time range or raise the engine's memory limit")
    return InternalError(f"the planned query failed: {text}")
