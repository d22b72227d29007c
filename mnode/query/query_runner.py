"""Runs planned queries: scans become CTEs over the rows of now, within the bounds of results, until they are ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import duckdb
import pyarrow as pa

from penstock.common.clock import SystemClock
from penstock.common.closed_duckdb import RenewableDuckdb
from penstock.common.closing import Closing
from penstock.common.errors import LimitExceededError, PenstockError
from penstock.common.quantities import size_text
from penstock.mnode.query.activity import Running
from penstock.mnode.query.json_rows import UTC_ROWS, JsonRows, RowStyle
from penstock.mnode.query.query_execution import LocalRun, QueryRun, RunnableQuery
from penstock.planner.logical.operators import Scan
from penstock.planner.query.batch_plan import QueryPlan
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


class QueryBackend(Protocol):
    """Where queries run, side by side: in this process, or in another one."""

    def open(self, query: RunnableQuery, /) -> QueryRun: ...


@dataclass(frozen=True, slots=True)
class ResultLimits:
    """How much a result may have; 0 is unlimited."""

    rows: int = 0
    nbytes: int = 0


UNLIMITED = ResultLimits()


@dataclass(frozen=True, slots=True)
class EngineBackend:
    """This process, with a connection to `shared` for each query.

    A query with users' functions, whose code is in `functions_directory` or on the Python path, gets a DuckDB of its
    own, by `open_duckdb`.
    """

    shared: RenewableDuckdb
    functions_directory: Path = Path()
    open_duckdb: OpenDuckdb = duckdb.connect

    def open(self, query: RunnableQuery) -> QueryRun:
        if not query.functions:
            return LocalRun(self.shared.cursor(), query, on_error=self.shared.renew_if_broken)
        code = UserFunctions(query.functions, self.functions_directory, SystemClock(), strict=True)
        cursor = self.open_duckdb()
        code.register(cursor)
        return LocalRun(cursor, query, lambda: code.failure)


class OpenQuery(Closing):
    """A query that is about to run, with the rows that it reads; columns are named and typed as `plan.columns` says.

    Raises PenstockErrors only.
    """

    def __init__(
        self, plan: QueryPlan, provider: ScanProvider, backend: QueryBackend, running: Running | None = None,
        limits: ResultLimits = UNLIMITED,
    ) -> None:
        """`running` is the statement that it is part of: what ends that ends it."""
        self.columns = plan.columns
        self._limits = limits
        self._running = running or Running()
        self._run: QueryRun | None = None
        self._schema = pa.schema([
            (column.name, pa.null() if column.type.kind is Kind.NULL else column.type.arrow())
            for column in plan.columns])
        # Kept until the query is done, and with it the files and snapshots that it reads.
        self._scanned: list[tuple[str, ScannedRows]] = []
        try:
            self._running.hold(self._interrupt)
            self._run = self._prepare(plan, provider, backend)
        except BaseException:
            self.close()
            raise

    def _prepare(self, plan: QueryPlan, provider: ScanProvider, backend: QueryBackend) -> QueryRun:
        for scan in plan.scans:
            self._scanned.append((scan.name, provider.relation(scan)))
            self._running.check()
        tables = dict(plan.tables)
        for _, rows in self._scanned:
            tables.update(rows.tables)
        sql = plan.sql_over([(name, rows.sql) for name, rows in self._scanned])
        with self._ended():
            return backend.open(RunnableQuery(sql, tables, self._schema, plan.functions, plan.parameters))

    def table(self) -> pa.Table:
        """Runs the query and returns all rows."""
        if self._limits != UNLIMITED:
            return pa.Table.from_batches(list(self.batches(_ROWS)), self._schema)
        with self._ended():
            return self._opened().table()

    def batches(self, rows_max: int) -> Iterator[pa.RecordBatch]:
        """Runs the query and yields its rows, `rows_max` at a time, as fast as they are taken."""
        rows, nbytes = 0, 0
        with self._ended():
            for batch in self._opened().batches(rows_max):
                self._running.check()
                rows, nbytes = rows + batch.num_rows, nbytes + batch.nbytes
                self._check_limits(rows, nbytes)
                yield batch

    def json(self, rows_max: int, style: RowStyle = UTC_ROWS) -> Iterator[JsonRows]:
        """Runs the query and yields its rows as JSON, at most `rows_max` at a time, as fast as they are taken."""
        rows, nbytes = 0, 0
        with self._ended():
            for piece in self._opened().json(rows_max, style):
                self._running.check()
                rows, nbytes = rows + piece.rows, nbytes + piece.nbytes
                self._check_limits(rows, nbytes)
                yield piece

    def cancel(self) -> None:
        """Ends the query, which raises CancelledError; any thread may call it, at any time."""
        self._running.cancel()

    def close(self) -> None:
        """Lets go of the rows."""
        self._running.let_go(self._interrupt)
        if self._run is not None:
            self._run.close()
        self._scanned = []

    def _opened(self) -> QueryRun:
        assert self._run is not None
        return self._run

    def _interrupt(self) -> None:
        run = self._run
        if run is not None:
            run.interrupt()

    def _check_limits(self, rows: int, nbytes: int) -> None:
        if self._limits.rows and rows > self._limits.rows:
            raise LimitExceededError(f"the result has more than {self._limits.rows} rows",
                                     hint="add a LIMIT, or raise resultRowsMax")
        if self._limits.nbytes and nbytes > self._limits.nbytes:
            raise LimitExceededError(f"the result has more than {size_text(self._limits.nbytes)}",
                                     hint="add a LIMIT, take fewer columns, or raise resultSizeMax")

    @contextmanager
    def _ended(self) -> Iterator[None]:
        """What goes wrong here once the statement was ended is what that was ended with."""
        self._running.check()
        try:
            yield
        except PenstockError:
            self._running.check()
            raise
