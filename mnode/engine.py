"""The engine: opens a data directory and executes statements. What it is made of is in `engine_parts`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa

from penstock import __version__
from penstock.common.clock import Clock, SystemClock
from penstock.common.config import Config
from penstock.common.errors import PermissionDeniedError, UnavailableError
from penstock.common.fs import Fs, OsFs
from penstock.mnode.access.audit_log import object_of, words_of
from penstock.mnode.access.roles import (
    OWNER,
    Identity,
    Need,
    insert_needs,
    lines_needs,
    looks_inside,
    require,
    require_needs,
)
from penstock.mnode.access.session import Result, SessionState
from penstock.mnode.catalog.system_schema import INFORMATION_SCHEMA
from penstock.mnode.controller.engine_hooks import EngineHooks
from penstock.mnode.controller.runtime_environment import RuntimeEnvironment, Threads
from penstock.mnode.controller.stream_controller import StreamController
from penstock.mnode.coordinator.task_settings import result_limits
from penstock.mnode.data_directory import DataDirectory
from penstock.mnode.ddl.user_statements import without_password
from penstock.mnode.engine_parts import EngineParts
from penstock.mnode.http.gathered_requests import GatheredRequests
from penstock.mnode.http.http_ports import open_listeners
from penstock.mnode.http.http_sessions import HttpSessions
from penstock.mnode.http.rest import Rest
from penstock.mnode.query.activity import OnCancel, Running
from penstock.mnode.query.query_runner import UNLIMITED, OpenQuery, ResultLimits
from penstock.mnode.show.overview import Overview, overview
from penstock.mnode.statement_dispatch import Dispatch, StatementCall
from penstock.mnode.worker_side import RuntimeFactory, WorkerSide, spark_runtime
from penstock.mnode.write.csv_rows import CsvCells, CsvLayout
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.sql.dialect.parser import parse_one, parse_table_name
from penstock.sql.rows.child_pattern import read_plain_children
from penstock.sql.schema import Session
from penstock.sql.tree.node import dissolve
from penstock.sql.tree.statements import DryRunStream, Query, Statement
from penstock.vnode.write.vnode_writer import BegunWrite

ControllerFactory = Callable[["Engine", EngineHooks], StreamController]
"""Returns what runs the streams of an engine, of which it asks what the hooks say."""
DryRunner = Callable[["Engine", DryRunStream, Session], Result]
"""Executes DRY RUN for an engine."""


class Engine:
    """One data directory, open. `execute` may be called by many threads; statements that change schemas take turns."""

    def __init__(
        self,
        path: Path,
        config: Config,
        *,
        clock: Clock | None = None,
        fs: Fs | None = None,
        runtime: RuntimeFactory = spark_runtime,
        controller: ControllerFactory | None = None,
        environment: RuntimeEnvironment | None = None,
        dry_run: DryRunner | None = None,
    ) -> None:
        """Raises `DataDirectoryInUseError`, `StorageError` or `CorruptionError`; then nothing stays open.

        With a `clusterNode` it is a node of the configured cluster, and raises ConfigError if that can't be.
        """
        self.config = config
        self._close_lock = threading.Lock()
        self._closed = False
        with ExitStack() as undo:
            directory = DataDirectory(
                path, config, clock or SystemClock(), fs or OsFs(), environment or Threads(), undo)
            self._take_over(directory, controller)
            self._workers = WorkerSide(self.parts, runtime)
            self._dispatch = Dispatch(
                self.parts, None if dry_run is None else lambda statement, session: dry_run(self, statement, session),
                streams_rest=controller is not None)
            if self.member is not None:
                self._workers.prepare()
            self.parts.start(undo, self._workers.close, watches=controller is None)
            self._open_ports(undo)
            self._undo = undo.pop_all()

    def _take_over(self, directory: DataDirectory, controller: ControllerFactory | None) -> None:
        """Connects the parts, and gives the names to those that others use."""
        def start_controller() -> StreamController:
            if controller is not None:
                return controller(self, self._workers.hooks())
            return self._workers.start_controller()

        self.parts = parts = EngineParts(directory, start_controller)
        self.paths = directory.paths
        self.clock = directory.clock
        self.fs = directory.fs
        self.catalog = directory.catalog
        self.storage = directory.storage
        self.member = directory.member
        self.activity = directory.activity
        self.audit = directory.audit
        self._writing = directory.writing
        self.gathered = GatheredRequests(self._writing.shared)
        self.streams = parts.streams
        self.children = parts.children
        self.results = parts.results
        self.records = parts.records
        self.system_tables = parts.system_tables
        self.logins = parts.logins

    def _open_ports(self, undo: ExitStack) -> None:
        undo.callback(self.gathered.close)
        rest = Rest(self, HttpSessions(self.logins, self.config.timezone), self.config.request_size_max)
        for listener in open_listeners(self.config, self.overview, rest, self.logins, self.catalog.users):
            undo.callback(listener.close)
            self.activity.port_opened(listener.port, "HTTP", listener.counts)

    # --- what users do -----------------------------------------------------------------------------------------

    def execute(self, text: str, state: SessionState) -> Result:
        """Executes one statement and returns its rows, or how much it changed. Raises PenstockErrors.

        What the session's identity may not do is refused here, wherever the statement comes from.
        """
        written = self.insert_rows(text, state)
        return written if written is not None else self.execute_parsed(self.read(text, state), text, state)

    def insert_rows(self, text: str, state: SessionState) -> Result | None:
        """Executes a statement that is a small INSERT of plain rows; None if it isn't, or if there is more to it.

        It isn't listed among the statements that run: it is over before anybody could see or end it.
        """
        if not self._takes_simple_rows(state):
            self._check_open()
            return None  # the whole way says why
        written = self.parts.row_inserts.insert(state.in_dialect(text), state)
        if written is not None:
            self.activity.note_access(state.connection_id)
        return written

    def begin_insert(self, text: str, state: SessionState) -> BegunWrite | None:
        """Begins what `insert_rows` does, for one row; None, and nothing, if there is more to it. For `gathered`."""
        if not self._takes_simple_rows(state):
            return None
        begun = self.parts.row_inserts.begin(state.in_dialect(text), state)
        if begun is not None:
            self.activity.note_access(state.connection_id)
        return begun

    def begin_lines(self, data: bytes, database: str, precision: str, state: SessionState) -> BegunWrite | None:
        """Begins what `ingest_lines` does, for few rows; None, and nothing, if there is more to it. For `gathered`."""
        return self.parts.schemaless.begin_few(data, database, precision) if self._takes_simple_rows(state) else None

    def _takes_simple_rows(self, state: SessionState) -> bool:
        """Tells whether rows need no look at rights, at the audit log or at the cluster."""
        return not (self._closed or state.identity.role != "admin" or self.audit.notes_rows or self.follows)

    def read(self, text: str, state: SessionState) -> Statement:
        """Returns the statement that a text is. Raises SqlSyntaxError, NotSupportedError, and LimitExceededError for
        queries that are longer than those of the session's user may be.
        """
        text = state.in_dialect(text)
        words_max = None if state.identity.role == "admin" else self.config.query_words_max or None
        return read_plain_children(text) or parse_one(text, words_max)

    def execute_parsed(
        self, statement: Statement, text: str, state: SessionState, on_cancel: OnCancel | None = None
    ) -> Result:
        """Does what `execute` does, with a statement that has been read from `text` already.

        `on_cancel` is told how to end it when nobody waits for the answer any more.
        """
        self._check_open()
        self._admit(statement, state)
        if isinstance(statement, Query):
            self._await_inherited(statement, state)
        with self._listed(state, without_password(statement, text), on_cancel):
            call = StatementCall(state.in_dialect(text), state, state.freeze(self.clock.now_ms()), self._limits(state))
            return self._dispatch.execute(statement, call, self._check_open)

    def query_columns(self, query: Query, state: SessionState) -> tuple[ResultColumn, ...]:
        """Returns what columns the rows of a query would have, without running it. Raises PenstockErrors."""
        self._check_open()
        self._admit(query, state, runs=False)
        return self.parts.queries.plan(query, state.freeze(self.clock.now_ms())).columns

    @contextmanager
    def open_query(
        self, query: Query, text: str, state: SessionState, on_cancel: OnCancel | None = None
    ) -> Iterator[OpenQuery]:
        """Gives a query whose rows can be taken batch by batch, and cancelled, inside of a `with` block.

        The query is of no use any more then. `on_cancel`: as in `execute_parsed`.
        """
        self._check_open()
        self._await_inherited(query, state)
        self._admit(query, state)
        with (self._listed(state, text, on_cancel),
              self.parts.queries.open(query, state.freeze(self.clock.now_ms()), self._limits(state)) as opened):
            dissolve(query)
            yield opened

    def _limits(self, state: SessionState) -> ResultLimits:
        """Returns how much the result of a query may have; admins set it for the others."""
        return UNLIMITED if state.identity.role == "admin" else result_limits(self.config)

    def check_insert(self, table: str, state: SessionState) -> None:
        """Raises PermissionDeniedError if a session must not insert rows into a table, before it sends any."""
        self._check_open()
        self._require_active()
        self._admit_rows(state, insert_needs(parse_table_name(table), state.database, self.catalog), "INSERT", table)

    def insert_arrow(self, table: str, rows: pa.Table, state: SessionState, *, first_row: int = 0) -> Result:
        """Inserts an Arrow table into a table; see `Cursor.insert_arrow`. Errors count rows from `first_row`."""
        self.check_insert(table, state)
        with self._listed(state, f"INSERT INTO {table} (an Arrow table)"), self._writing.shared():
            return self.parts.inserts.insert_arrow(table, rows, state.freeze(self.clock.now_ms()), first_row)

    def csv_layout(
        self, table: str, names: Sequence[str] | None, state: SessionState, *, has_header: bool | None = None,
        quote: str | None = None,
    ) -> CsvLayout:
        """Returns what the columns of a CSV file for a table may be; `names`: what they are said to be.

        `has_header`: whether it has one, and `quote`: which quotes it has, if that is known.
        """
        self.check_insert(table, state)
        return self.parts.inserts.csv_layout(
            table, names, state.freeze(self.clock.now_ms()), has_header=has_header, quote=quote)

    def insert_cells(self, table: str, cells: CsvCells, state: SessionState) -> Result:
        """Inserts rows whose values are text into a table, as CSV has them."""
        self.check_insert(table, state)
        with self._listed(state, f"INSERT INTO {table} ({cells.num_rows} rows of text)"), self._writing.shared():
            return self.parts.inserts.insert_cells(table, cells, state.freeze(self.clock.now_ms()))

    def ingest_lines(
        self, data: bytes, database: str, precision: str, state: SessionState, *, first_line: int = 1
    ) -> int:
        """Writes lines of InfluxDB's line protocol; see `Connection.ingest_lines`."""
        self._check_open()
        self._require_active()
        self._admit_rows(state, lines_needs(database), "line protocol", database)
        with self._writing.shared():  # it isn't listed, as `insert_rows`
            written, left = self.parts.schemaless.append_few(data, database, precision)
        self.activity.note_access(state.connection_id)
        if not left:
            return written
        with self._listed(state, f"line protocol into {database} ({len(data)} bytes)"), self._writing.shared():
            return written + self.parts.schemaless.ingest_lines(left, database, precision, first_line)

    def overview(self, identity: Identity = OWNER) -> Overview:
        """Returns everything of the streams that somebody may see."""
        reader = SessionState(self.config.timezone, identity=identity).freeze(self.clock.now_ms())
        return overview(lambda name: self.system_tables.read(INFORMATION_SCHEMA, name, reader=reader),
                        self.clock.now_ms(), __version__)

    def flush(self) -> None:
        """Makes everything written so far visible to other DuckDB processes."""
        self._check_open()
        self.parts.directory.dnode.flush_all()
        self.parts.views.refresh()

    def close(self) -> None:
        """Ends streams after a last checkpoint, flushes and closes everything. A second call does nothing.

        Bounded: what doesn't end in time is cut off. Raises the first `StorageError` of the last flush.
        """
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        self.activity.close()
        self._undo.close()

    def maintain(self) -> None:
        """Does one round of upkeep on the vnodes; for runtime environments without threads."""
        self.parts.directory.dnode.maintain()

    def abandon(self) -> None:
        """Lets go of the directory as the death of the process would: nothing is flushed. For tests and simulation."""
        self._closed = True
        self._undo.pop_all()
        self.parts.abandon()

    # --- inside ------------------------------------------------------------------------------------------------

    def _admit(self, statement: Statement, state: SessionState, *, runs: bool = True) -> None:
        """Lets a statement be executed, or raises PermissionDeniedError; whoever sends it."""
        name, origin = state.identity.name, state.origin
        try:
            require(state.identity, statement, state.database, self.catalog)
        except PermissionDeniedError:
            self.audit.refused(name, origin, words_of(statement), object_of(statement))
            raise
        if runs:
            self.audit.statement(name, origin, statement)

    def _admit_rows(self, state: SessionState, wanted: Iterator[Need], what: str, on: str) -> None:
        """Does for rows without a statement what `_admit` does."""
        name, origin = state.identity.name, state.origin
        try:
            if state.identity.role != "admin":
                require_needs(state.identity, wanted, what)
        except PermissionDeniedError:
            self.audit.refused(name, origin, what, on)
            raise
        self.audit.rows(name, origin, what, on)

    def _listed(
        self, state: SessionState, text: str, on_cancel: OnCancel | None = None
    ) -> AbstractContextManager[Running]:
        """Lists what a session executes while it runs."""
        return self.activity.statement(state.connection_id, text, state.identity.name, on_cancel,
                                       served=state.origin.interface != "embedded", timeout_s=state.query_timeout_s)

    @property
    def follows(self) -> bool:
        """Whether it is a node of a cluster that isn't the active one."""
        return self.member is not None and not self.member.is_active

    @property
    def lag_s(self) -> float | None:
        """How old the answers of queries may be here; see `Result.lag_s`."""
        return None if self.member is None or self.member.is_active else self.member.lag_s

    def _await_inherited(self, query: Query, state: SessionState) -> None:
        """Waits for the rows that a query may read; how the cluster is can be asked all the time."""
        if self.member is not None and self.member.inherits and not looks_inside(query, state.database, self.catalog):
            self.member.await_inherited()

    def _require_active(self) -> None:
        if self.member is not None:
            self.member.require_active()

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the engine is closed")
