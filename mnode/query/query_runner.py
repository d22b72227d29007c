"""Runs planned queries on DuckDB: scans become CTEs, results become Arrow tables with the dialect's types."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.clock import SystemClock
from penstock.common.errors import (
    InternalError,
    InvalidStatementError,
    InvalidValueError,
    LimitExceededError,
    PenstockError,
    UnavailableError,
)
from penstock.common.quantities import size_text
from penstock.common.responsiveness import LONG_TEXT, one_at_a_time
from penstock.mnode.query.activity import Running
from penstock.planner.duckdb_sql.quoting import LIMIT
from penstock.planner.logical.operators import Scan
from penstock.planner.query.batch_plan import BatchPlan
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.sql.types import Kind
from penstock.tasks.compute.function_runtime import UserFunctions

_ROWS = 65_536

OpenDuckdb = Callable[[], duckdb.DuckDBPyConnection]
"""Opens a DuckDB of one's own."""


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


@dataclass(frozen=True, slots=True)
class ResultLimits:
    """How much a result may have; 0 is unlimited."""

    rows: int = 0
    nbytes: int = 0


UNLIMITED = ResultLimits()


class OpenQuery:
    """A query that is about to run, with the rows that it reads; columns are named and typed as `plan.columns` says.

    Works on a cursor of its own, so that queries may run side by side. Raises PenstockErrors only.
    """

    def __init__(
        self, plan: BatchPlan, provider: ScanProvider, connection: duckdb.DuckDBPyConnection, functions_directory: Path,
        open_duckdb: OpenDuckdb = duckdb.connect, running: Running | None = None, limits: ResultLimits = UNLIMITED,
    ) -> None:
        """A plan with users' functions, whose code is in `functions_directory` or on the Python path, gets a DuckDB
        of its own, by `open_duckdb`, instead of a cursor of `connection`. `running` is the statement that it is part
        of: what ends that ends it.
        """
        self.columns = plan.columns
        self._limits = limits
        self._running = running or Running()
        self._functions: UserFunctions | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._registered: list[str] = []
        self._reader: pa.RecordBatchReader | None = None
        if plan.functions:
            self._functions = UserFunctions(plan.functions, functions_directory, SystemClock(), strict=True)
            self._cursor = open_duckdb()
            self._functions.register(self._cursor)
        else:
            self._cursor = connection.cursor()
        try:
            self._running.hold(self._interrupt)
            self._prepare(plan, provider)
        except BaseException:
            self.close()
            raise

    def _prepare(self, plan: BatchPlan, provider: ScanProvider) -> None:
        # Kept until the query is done, and with it the files and snapshots that it reads.
        self._scanned = []
        for scan in plan.scans:
            self._scanned.append((scan.name, provider.relation(scan)))
            self._running.check()
        self._sql = plan.sql_over([(name, rows.sql) for name, rows in self._scanned])
        tables = dict(plan.tables)
        for _, rows in self._scanned:
            tables.update(rows.tables)
        with self._translated():
            for name, table in tables.items():
                self._cursor.register(name, table)
                self._registered.append(name)

    def table(self) -> pa.Table:
        """Runs the query and returns all rows."""
        if self._limits != UNLIMITED:
            batches = list(self.batches(_ROWS))
            return pa.Table.from_batches(batches, self._schema())
        with self._translated():
            self._running.check()
            return typed(self._relation().to_arrow_table(), self.columns)

    def batches(self, rows_max: int) -> Iterator[pa.RecordBatch]:
        """Runs the query and yields its rows, `rows_max` at a time, as fast as they are taken."""
        rows, nbytes = 0, 0
        with self._translated():
            self._running.check()
            self._reader = self._relation().to_arrow_reader(rows_max)
            for batch in self._reader:
                self._running.check()
                found = typed(pa.Table.from_batches([batch]), self.columns)
                rows, nbytes = rows + found.num_rows, nbytes + found.nbytes
                self._check_limits(rows, nbytes)
                yield from found.to_batches()

    def _relation(self) -> duckdb.DuckDBPyRelation:
        with one_at_a_time(unless=len(self._sql) < LONG_TEXT):  # DuckDB reads it in Python first
            return self._cursor.sql(self._sql)

    def cancel(self) -> None:
        """Ends the query, which raises CancelledError; any thread may call it, at any time."""
        self._running.cancel()

    def close(self) -> None:
        """Lets go of the rows."""
        self._running.let_go(self._interrupt)
        with self._lock:
            self._closed = True
            if self._reader is not None:
                self._reader.close()
            for name in self._registered:
                self._cursor.unregister(name)
            self._cursor.close()
        self._scanned = []

    def __enter__(self) -> OpenQuery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _interrupt(self) -> None:
        with self._lock:
            if not self._closed:
                self._cursor.interrupt()

    def _check_limits(self, rows: int, nbytes: int) -> None:
        if self._limits.rows and rows > self._limits.rows:
            raise LimitExceededError(f"the result has more than {self._limits.rows} rows",
                                     hint="add a LIMIT; resultRowsMax says how many there may be")
        if self._limits.nbytes and nbytes > self._limits.nbytes:
            raise LimitExceededError(f"the result has more than {size_text(self._limits.nbytes)}",
                                     hint="add a LIMIT or take fewer columns; resultSizeMax says how much there may be")

    def _schema(self) -> pa.Schema:
        return pa.schema([(column.name, pa.null() if column.type.kind is Kind.NULL else column.type.arrow())
                          for column in self.columns])

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            self._running.check()
            failure = self._functions.failure if self._functions is not None else None
            # What DuckDB says of an exception in a function is less than is known of it.
            raise failure or _translated(error) from error


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


def _translated(error: Exception) -> PenstockError:
    """Returns the PenstockError that tells what an error of DuckDB means to the user.

    Errors that come while rows are taken are Arrow's, with DuckDB's text.
    """
    kind, _, text = str(error).splitlines()[0].partition("Error: ")
    kind = kind.strip()
    if text.startswith(LIMIT):
        return LimitExceededError(text.removeprefix(LIMIT), hint="shorten the time range or take longer windows")
    if kind.endswith(("Conversion", "Out of Range", "Invalid Input")):
        return InvalidValueError(f"a value in the query is not possible: {text}")
    if kind.endswith("Out of Memory"):
        return UnavailableError(f"the query needs more memory than there is: {text}",
                                hint="narrow the time range, or raise queryMemory or spillMax")
    if "expression depth limit" in text:
        return InvalidStatementError("the query nests more than DuckDB computes",
                                     hint="compute a part in a sub-query, or split the query")
    return InternalError(f"the planned query failed: {text or kind}")
