"""The engine: opens a data directory and executes statements. It only connects the parts and hands statements out."""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa

from penstock import __version__
from penstock.common.access import check_access
from penstock.common.clock import Clock, SystemClock
from penstock.common.config import CONF_DIRECTORY, Config, is_local
from penstock.common.descriptors import raise_limit, shortage
from penstock.common.errors import (
    InvalidStatementError,
    NotSupportedError,
    OutOfMemoryError,
    PermissionDeniedError,
    UnavailableError,
)
from penstock.common.fs import Fs, OsFs
from penstock.common.logging import configure_file_logging, logger, stop_logging
from penstock.common.memory import available_bytes, measure_tree
from penstock.common.paths import DataPaths
from penstock.common.private import exposed
from penstock.mnode.access.audit_log import Audit, object_of, words_of
from penstock.mnode.access.logins import Logins
from penstock.mnode.access.roles import OWNER, Identity, Need, insert_needs, lines_needs, require, require_needs
from penstock.mnode.access.session import Result, SessionState, text_result
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_check import require_catalog, require_current
from penstock.mnode.catalog.catalog_copies import CatalogKeeper
from penstock.mnode.catalog.catalog_records import PauseCause
from penstock.mnode.catalog.directory_format import check_format, ensure_format
from penstock.mnode.catalog.name_lookup import require_database
from penstock.mnode.catalog.system_schema import INFORMATION_SCHEMA
from penstock.mnode.controller.controller_settings import ControllerSettings
from penstock.mnode.controller.engine_hooks import EngineHooks
from penstock.mnode.controller.group_runtime import Runtime, WorkerLaunch
from penstock.mnode.controller.runtime_environment import RuntimeEnvironment, Threads
from penstock.mnode.controller.stream_controller import StreamController
from penstock.mnode.coordinator.backup_store import open_backup_store
from penstock.mnode.coordinator.checkpoint_backups import Backups, backup_key
from penstock.mnode.coordinator.commit_records import CommitRecords
from penstock.mnode.coordinator.controller_protocol import Controller
from penstock.mnode.coordinator.task_graph_builder import task_graph
from penstock.mnode.coordinator.task_settings import functions_directory, place_bounds, query_bounds, result_limits
from penstock.mnode.ddl.child_creation import Children
from penstock.mnode.ddl.connections import Connections
from penstock.mnode.ddl.function_statements import Functions
from penstock.mnode.ddl.table_statements import Ddl
from penstock.mnode.ddl.user_statements import Users, without_password
from penstock.mnode.dnode.dnode_service import DnodeService
from penstock.mnode.dnode.log_service import Logs
from penstock.mnode.dnode.shared_lock import Gate
from penstock.mnode.dnode.stream_cuts import Cuts
from penstock.mnode.dnode.task_states import TaskStates
from penstock.mnode.dnode.view_keeper import ViewKeeper
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.mnode.http.http_ports import open_doors
from penstock.mnode.http.rest import Rest
from penstock.mnode.query.activity import Activity, OnCancel, Running
from penstock.mnode.query.external_tables import OutsideTables
from penstock.mnode.query.query_runner import UNLIMITED, OpenQuery, ResultLimits
from penstock.mnode.query.query_statements import Queries
from penstock.mnode.query.table_scans import Scans
from penstock.mnode.show.overview import Overview, overview
from penstock.mnode.show.show_statements import Shower
from penstock.mnode.show.system_tables import SystemTables
from penstock.mnode.streams.dead_letter_replay import Replays
from penstock.mnode.streams.explain_stream import explain_graph, explain_ingest, explain_stream
from penstock.mnode.streams.explain_stream_sql import explain_sql
from penstock.mnode.streams.ingest_statements import Ingests
from penstock.mnode.streams.stream_lifecycle import Lifecycle
from penstock.mnode.streams.stream_replacement import Replacements
from penstock.mnode.streams.stream_statements import Streams
from penstock.mnode.streams.vgroup_splitting import Splitting
from penstock.mnode.write.csv_rows import CsvBlock
from penstock.mnode.write.deletes import Deletes
from penstock.mnode.write.inserts import Inserts
from penstock.mnode.write.result_store import ResultStore
from penstock.mnode.write.schemaless import Naming, Schemaless
from penstock.planner.bind.instants import instant
from penstock.planner.task_plans.plan_tree import ResultColumn, render_tree
from penstock.sql.dialect.parser import parse_one, parse_table_name
from penstock.sql.dialect.stream_options import rates_sql
from penstock.sql.schema import Session
from penstock.sql.tree.statements import (
    AlterConnection,
    AlterDatabase,
    AlterStream,
    AlterTable,
    AlterUser,
    AnalyzeStream,
    CheckpointStream,
    CreateChildTables,
    CreateConnection,
    CreateDatabase,
    CreateFunction,
    CreateIngest,
    CreateSnode,
    CreateStream,
    CreateTable,
    CreateUser,
    Delete,
    Describe,
    DropConnection,
    DropDatabase,
    DropFunction,
    DropIngest,
    DropSavepoint,
    DropSnode,
    DropStream,
    DropTable,
    DropUser,
    DryRunStream,
    Explain,
    FlushDatabase,
    Grant,
    Insert,
    KillQuery,
    NoteTime,
    PauseIngest,
    PauseStream,
    Query,
    RecalculateStream,
    ReplayDlq,
    ResumeIngest,
    ResumeStream,
    Revoke,
    Select,
    SetOperation,
    Show,
    SplitVgroup,
    StartStream,
    Statement,
    StopStream,
    TestConnection,
    TrimDatabase,
    UseDatabase,
)
from penstock.tasks.external.connectors.probing import probe
from penstock.tasks.worker.data_place import mark_place
from penstock.tasks.worker.dnode_client import Request, RowsRequest, SpanRequest, TableRequest
from penstock.tasks.worker.remote_log import BytesRequest, EndRequest, SegmentsRequest
from penstock.vnode.dnode import Dnode, lock_data_directory

_log = logger(__name__)

RuntimeFactory = Callable[[Config, Path], Runtime]
ControllerFactory = Callable[["Engine", Callable[[int, Mapping[int, int]], None]], Controller]
"""(engine, what to call with a stream's id and the versions of its committed checkpoint)"""
DryRunner = Callable[["Engine", DryRunStream, Session], Result]
"""Executes DRY RUN for an engine."""


def spark_runtime(config: Config, root: Path) -> Runtime:
    """Returns Spark, not yet started."""
    from penstock.tasks.worker.spark_runtime import SparkRuntime

    log_directory = config.log_dir if config.log_dir.is_absolute() else root / config.log_dir
    return SparkRuntime(config.spark_properties(), CONF_DIRECTORY, log_directory / "spark.log")


def _read_text(path: str) -> str:
    return Path(path).read_text("utf-8")


class Engine:
    """One data directory, open. `execute` may be called by many threads; statements that change schemas take turns.

    A vnode that is damaged makes only the statements fail that need it.
    """

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
        """Raises `DataDirectoryInUseError`, `StorageError` or `CorruptionError`; then nothing stays open."""
        self.paths = DataPaths(path)
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.fs: Fs = fs or OsFs()
        self._runtime_factory = runtime
        self._controller_factory = controller
        self._dry_run = dry_run
        self._runtime: Runtime | None = None
        self._service: DnodeService | None = None
        self._environment: RuntimeEnvironment = environment or Threads()
        self._secret = secrets.token_bytes(32)
        self._ddl_lock = threading.RLock()
        self._close_lock = threading.Lock()
        self._closed = False
        #: what writes, or copies rows, passes it; it is closed while tables change their vnodes
        self._gate = Gate()
        self.activity = Activity(self.clock, config.query_timeout)
        with ExitStack() as undo:
            self._lock = lock_data_directory(self.paths)
            undo.callback(self._lock.release)
            check_access(self.paths.needed)
            check_format(self.fs, self.paths)
            require_catalog(self.paths)
            self._log_handler = configure_file_logging(config, path)
            undo.callback(stop_logging, self._log_handler)
            problem = exposed(path)
            if problem is not None:
                _log.warning("%s", problem)
            self.audit = Audit(path / config.log_dir, config, self.clock)
            undo.callback(self.audit.close)
            self._reserve_descriptors()
            self.catalog = Catalog(self.paths.catalog)
            undo.callback(self.catalog.close)
            require_current(self.paths, self.fs, self.catalog)
            check_format(self.fs, self.paths, self.catalog)
            ensure_format(self.fs, self.paths)
            # What DuckDB has left there when the process was killed. Nothing else is kept in it.
            shutil.rmtree(self.paths.spill, ignore_errors=True)
            self._dnode = Dnode(self.paths, fs=self.fs, clock=self.clock)
            undo.callback(self._dnode.close)
            self.storage = Storage(self._dnode, self.catalog, config)
            self.storage.open_all()
            self._connect_parts()
            if self._environment.threaded:
                undo.callback(self.catalog_keeper.close)
            undo.callback(self._queries.close)
            undo.callback(self._views.close)
            undo.callback(self.results.close)
            undo.callback(self._inserts.close)
            undo.callback(self._states.close)
            undo.callback(self._stop_service)
            undo.callback(self.replacements.close)
            undo.callback(self._streams.close)
            undo.callback(self._splitting.close)
            if self._environment.threaded:
                self._dnode.start()
                self._views.start()
                self.catalog_keeper.start()
            undo.callback(self.backups.close)
            self.backups.clean()
            self.replacements.clean()
            if self._controller_factory is None:
                self.backups.watch()
            self._streams.start_all()
            self._ingests.start_all()
            self._watch_replacements()
            rest = Rest(self, self.logins, config.timezone, config.request_size_max)
            for door in open_doors(config, self.overview, rest, self.logins, self.catalog.users):
                undo.callback(door.close)
                self.activity.port_opened(door.port, "HTTP", door.counts)
            self._undo = undo.pop_all()

    def _reserve_descriptors(self) -> None:
        """Sees to it that clients can't take all descriptors of this process."""
        config = self.config
        ports = {config.http_port, config.metrics_port, config.ui_port} - {0}
        # Flight may have twice as many for a moment.
        problem = shortage(raise_limit(), config.connections_max * (len(ports) + 2))
        if problem is not None:
            _log.warning("%s", problem)

    def _connect_parts(self) -> None:
        catalog, storage, clock = self.catalog, self.storage, self.clock
        interval_s = min(1.0, self.config.view_refresh_interval)
        self._views = ViewKeeper(catalog, self.paths, self.fs, clock, interval_s, self.config.part_grace)
        self.catalog_keeper = CatalogKeeper(catalog, self.paths, self.fs, clock, interval_s)
        self._children = Children(catalog, storage, clock, self._views.children_changed)
        self.results = ResultStore(
            catalog, storage, self._children, self._environment.pool("penstock-results", 4))
        self.records = CommitRecords(self.paths, self.fs, self.config.checkpoints_kept)
        location = self.config.checkpoint_backup_dir
        self.backups = Backups(
            open_backup_store(location) if location else None, self.config.checkpoint_backup_interval, self.paths,
            self.fs, self.records, clock, lambda stream_id, text: self._streams.tell(stream_id, text),
            backup_key(self.config.checkpoint_backup_key, os.environ, _read_text))
        self._logs = Logs(storage, self.paths, self.fs)
        self._states = TaskStates(self.paths, self.fs, clock, self.config.state_map_size)
        self.connections = Connections(catalog, clock, os.environ, _read_text, probe)
        self.outside_tables = OutsideTables(self.connections)
        catalog.describe_outside = self.outside_tables.table
        self._streams = Streams(
            catalog, storage, self.results, self._states, self.records, self.backups, self.paths, self.config, clock,
            self._start_controller, self.connections)
        self._ingests = Ingests(
            catalog, storage, self.results, self._states, self.records, self.connections, self.paths, self.config,
            clock, self._streams.controller, self._streams.running)
        self.replacements = Replacements(
            catalog, storage, self.results, self._streams, self._views, clock, self._ddl_lock, self.config.part_grace)
        self._lifecycle = Lifecycle(catalog, storage, self.records, self._streams, clock, self._ddl_lock)
        self._splitting = Splitting(
            catalog, storage, self.records, self._streams, self._ingests, self.results, self.paths, self.fs, clock,
            self._gate, self._ddl_lock, self.activity.note_progress)
        self.system_tables = SystemTables(
            catalog, storage, self._streams, self._lifecycle, self.connections, self._ingests, self.activity,
            self.audit, self.config, clock, __version__, clock.now_ms())
        directory = functions_directory(self.config, self.paths)
        self._functions = Functions(catalog, clock, directory)
        self._users = Users(catalog, clock, secrets.token_bytes)
        self.logins = Logins(catalog.users, clock, secrets.token_bytes, self.config.token_lifetime,
                             self.config.trust_loopback, self.audit)
        self._queries = Queries(
            catalog, Scans(catalog, storage, self.system_tables, self.outside_tables), self.activity, directory,
            self.paths, query_bounds(self.config, self.paths, available_bytes()), place_bounds(self.config))
        self.cuts = Cuts(catalog, storage)
        self._replays = Replays(catalog, storage, self._queries, self._streams)
        self._inserts = Inserts(catalog, storage, self._children, clock, self._queries.run,
                              self._environment.pool("penstock-insert", 4))
        # Not for its turn: statements that change tables would wait for it.
        self._deletes = Deletes(catalog, storage, self._queries.plan, partial(self._queries.run, waits=False))
        self._ddl = Ddl(
            catalog, storage, self._children, clock, drop_stream=self._streams.drop_record,
            schema_changed=self._views.schema_changed, children_changed=self._views.children_changed)
        self._schemaless = Schemaless(
            catalog, self._ddl, self._ddl_lock, self._inserts, clock, Naming.from_config(self.config))
        self._show = Shower(catalog, storage, self.system_tables)

    # --- what users do -----------------------------------------------------------------------------------------

    def execute(self, text: str, state: SessionState) -> Result:
        """Executes one statement and returns its rows, or how much it changed. Raises PenstockErrors.

        What the session's identity may not do is refused here, wherever the statement comes from.
        """
        return self.execute_parsed(self.read(text, state), text, state)

    def read(self, text: str, state: SessionState) -> Statement:
        """Returns the statement that a text is. Raises SqlSyntaxError, NotSupportedError, and LimitExceededError for
        queries that are longer than those of the session's user may be.
        """
        return parse_one(text, None if state.identity.role == "admin" else self.config.query_words_max or None)

    def execute_parsed(
        self, statement: Statement, text: str, state: SessionState, on_cancel: OnCancel | None = None
    ) -> Result:
        """Does what `execute` does, with a statement that has been read from `text` already.

        `on_cancel` is told how to end it when nobody waits for the answer any more.
        """
        self._check_open()
        self._admit(statement, state)
        with self._listed(state, without_password(statement, text), on_cancel):
            return self._execute(statement, text, state)

    def query_columns(self, query: Query, state: SessionState) -> tuple[ResultColumn, ...]:
        """Returns what columns the rows of a query would have, without running it. Raises PenstockErrors."""
        self._check_open()
        self._admit(query, state, runs=False)
        return self._queries.plan(query, state.freeze(self.clock.now_ms())).columns

    @contextmanager
    def open_query(
        self, query: Query, text: str, state: SessionState, on_cancel: OnCancel | None = None
    ) -> Iterator[OpenQuery]:
        """Gives a query whose rows can be taken batch by batch, and cancelled, inside of a `with` block.

        `on_cancel`: as in `execute_parsed`.
        """
        self._check_open()
        self._admit(query, state)
        with (self._listed(state, text, on_cancel),
              self._queries.open(query, state.freeze(self.clock.now_ms()), self._limits(state)) as opened):
            yield opened

    def _limits(self, state: SessionState) -> ResultLimits:
        """Returns how much the result of a query may have; admins set it for the others."""
        return UNLIMITED if state.identity.role == "admin" else result_limits(self.config)

    def _execute(self, statement: Statement, text: str, state: SessionState) -> Result:
        session = state.freeze(self.clock.now_ms())
        match statement:
            case Select() | SetOperation():
                return self._queries.run(statement, session, self._limits(state))
            case KillQuery():
                self.activity.kill(
                    statement.number, state.identity.name, of_anybody=state.identity.role == "admin")
                return Result()
            case Show():
                return self._show.show(statement, session)
            case Describe():
                return self._show.describe(statement, session)
            case Explain():
                return self._explain(statement, session)
            case AnalyzeStream():
                if self._controller_factory is not None:
                    raise NotSupportedError("nothing is to be measured here: streams rest between statements")
                return self._streams.analyze(statement)
            case UseDatabase():
                return self._ddl.use_database(statement, state)
            case FlushDatabase():
                result = self._ddl.flush_database(statement)
                self._views.refresh()
                return result
            case TestConnection():
                return self.connections.test(statement)
            case SplitVgroup():
                return self._splitting.split(statement)
            case AlterDatabase(options=options) if "VGROUPS" in dict(options):
                return self._splitting.alter(statement)
        with self._gate.passing():
            match statement:
                case Insert():
                    return self._inserts.insert(statement, text, session)
                case DryRunStream():
                    if self._dry_run is None:
                        raise NotSupportedError("this engine makes no dry runs")
                    return self._dry_run(self, statement, session)
                case CheckpointStream():
                    return self._lifecycle.checkpoint(statement)
                case StopStream():
                    return self._lifecycle.stop(statement)
                case AlterStream():
                    return self._lifecycle.alter(statement)
            with self._ddl_lock:
                self._check_open()
                return self._change(statement, state, session, text)

    def _change(self, statement: Statement, state: SessionState, session: Session, text: str) -> Result:
        match statement:
            case CreateDatabase():
                return self._ddl.create_database(statement)
            case AlterDatabase():
                return self._ddl.alter_database(statement)
            case DropDatabase():
                return self._ddl.drop_database(statement, state)
            case TrimDatabase():
                return self._ddl.trim_database(statement)
            case CreateTable():
                return self._ddl.create_table(statement, session)
            case CreateChildTables():
                return self._ddl.create_children(statement, session)
            case AlterTable():
                result = self._ddl.alter_table(statement, session)
                self._ingests.table_altered()
                return result
            case DropTable():
                return self._ddl.drop_tables(statement, session)
            case Delete():
                return self._deletes.delete(statement, text, session)
            case CreateStream():
                result = self._streams.create(statement, session, self._ddl)
                self._watch_replacements()
                return result
            case DropStream():
                return self._streams.drop(statement)
            case PauseStream():
                return self._streams.pause(statement)
            case ResumeStream():
                return self._streams.resume(statement)
            case CreateIngest():
                return self._ingests.create(statement, session, self._ddl)
            case DropIngest():
                return self._ingests.drop(statement)
            case PauseIngest():
                return self._ingests.pause(statement)
            case ResumeIngest():
                return self._ingests.resume(statement)
            case StartStream():
                return self._lifecycle.start(statement)
            case DropSavepoint():
                return self._lifecycle.drop_savepoint(statement)
            case NoteTime():
                return self._note_time(statement, session)
            case ReplayDlq():
                return self._replays.replay(statement, session)
            case RecalculateStream():
                return self._streams.recalculate(statement, session)
            case CreateFunction():
                return self._functions.create(statement)
            case DropFunction():
                return self._functions.drop(statement)
            case CreateUser():
                return self._users.create(statement)
            case AlterUser():
                return self._users.alter(statement)
            case DropUser():
                return self._users.drop(statement)
            case Grant():
                return self._users.grant(statement, session)
            case Revoke():
                return self._users.revoke(statement, session)
            case CreateConnection():
                return self.connections.create(statement)
            case AlterConnection():
                return self.connections.alter(statement)
            case DropConnection():
                return self.connections.drop(statement)
            case CreateSnode():
                return self._ddl.create_snode(statement)
            case DropSnode():
                return self._ddl.drop_snode(statement)
        raise NotSupportedError(f"{type(statement).__name__} is not supported")

    def _note_time(self, statement: NoteTime, session: Session) -> Result:
        """Puts a writer's promise into the logs of a database, behind all rows that it has written."""
        database = require_database(statement.database, self.catalog)
        ts_ms = instant(statement.instant, "ms", session)
        for vgroup_id in database.vgroup_ids:
            self.storage.vnode(vgroup_id).write_time_mark(statement.writer or session.user, ts_ms)
        return Result()

    def check_insert(self, table: str, state: SessionState) -> None:
        """Raises PermissionDeniedError if a session must not insert rows into a table, before it sends any."""
        self._check_open()
        self._admit_rows(state, insert_needs(parse_table_name(table), state.database, self.catalog), "INSERT", table)

    def insert_arrow(self, table: str, rows: pa.Table, state: SessionState, *, first_row: int = 0) -> Result:
        """Inserts an Arrow table into a table; see `Cursor.insert_arrow`. Errors count rows from `first_row`."""
        self.check_insert(table, state)
        with self._listed(state, f"INSERT INTO {table} (an Arrow table)"), self._gate.passing():
            return self._inserts.insert_arrow(table, rows, state.freeze(self.clock.now_ms()), first_row)

    def insert_csv(self, table: str, names: Sequence[str] | None, block: CsvBlock, state: SessionState) -> Result:
        """Inserts a piece of a CSV file into a table; `names` are its columns (None: those of the table)."""
        self.check_insert(table, state)
        with self._listed(state, f"INSERT INTO {table} ({block.name})"), self._gate.passing():
            return self._inserts.insert_csv(table, names, block, state.freeze(self.clock.now_ms()))

    def ingest_lines(
        self, data: bytes, database: str, precision: str, state: SessionState, *, first_line: int = 1
    ) -> int:
        """Writes lines of InfluxDB's line protocol; see `Connection.ingest_lines`."""
        self._check_open()
        self._admit_rows(state, lines_needs(database), "line protocol", database)
        with self._listed(state, f"line protocol into {database} ({len(data)} bytes)"), self._gate.passing():
            return self._schemaless.ingest_lines(data, database, precision, first_line)

    def overview(self, identity: Identity = OWNER) -> Overview:
        """Returns everything of the streams that somebody may see."""
        reader = SessionState(self.config.timezone, identity=identity).freeze(self.clock.now_ms())
        return overview(lambda name: self.system_tables.read(INFORMATION_SCHEMA, name, reader=reader),
                        self.clock.now_ms(), __version__)

    @property
    def streams(self) -> Streams:
        """The streams; for those who watch them."""
        return self._streams

    @property
    def children(self) -> Children:
        """The child tables; for those who write rows without statements."""
        return self._children

    def flush(self) -> None:
        """Makes everything written so far visible to other DuckDB processes."""
        self._check_open()
        self._dnode.flush_all()
        self._views.refresh()

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
        self._dnode.maintain()

    def abandon(self) -> None:
        """Lets go of the directory as the death of the process would: nothing is flushed. For tests and simulation."""
        self._closed = True
        self._undo.pop_all()
        self._dnode.stop()
        self._views.stop()
        self.catalog_keeper.stop()
        self.catalog.close()
        stop_logging(self._log_handler)
        self._lock.release()

    # --- inside ------------------------------------------------------------------------------------------------

    def _admit(self, statement: Statement, state: SessionState, *, runs: bool = True) -> None:
        """Lets a statement be executed, or raises PermissionDeniedError; every door leads here."""
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
        return self.activity.statement(state.connection_id, text, state.identity.name, on_cancel)

    def _explain(self, statement: Explain, session: Session) -> Result:
        if isinstance(statement.statement, CreateStream):
            stream, replaced = self._streams.replacing(statement.statement)
            plan = self._streams.plan(stream, session, replaced)
            graph = self._streams.graph_of(plan)
            match statement.part:
                case "logical":
                    return text_result("Logical Plan", render_tree(plan.tree))
                case "sql":
                    return text_result("SQL", explain_sql(plan))
                case "tasks":
                    return text_result("Task Graph", explain_graph(graph))
            lines = explain_stream(plan, graph, self._streams.state_limit(stream.options),
                                   cluster=not is_local(self.config.spark["spark.master"]))
            rates = rates_sql(stream.options)
            if rates:
                lines.append(f"Rates of each task, per second: {rates}")
            if replaced is not None:
                lines.append(f"Replaces stream {replaced.name}: computed from history, nothing of its state is used")
            return text_result("Query Plan", lines)
        if isinstance(statement.statement, CreateIngest):
            ingest = self._ingests.plan(statement.statement, session)
            if statement.part == "tasks":
                return text_result("Task Graph", explain_graph(task_graph(ingest, ingest.database.vgroup_ids)))
            if statement.part is not None:
                raise InvalidStatementError(f"an ingest has no {statement.part.upper()}",
                                            hint="EXPLAIN (TASKS) shows its tasks")
            return text_result("Query Plan", explain_ingest(ingest))
        assert isinstance(statement.statement, Select | SetOperation)
        if statement.part == "tasks":
            raise InvalidStatementError("a query has no tasks",
                                        hint="EXPLAIN (TASKS) is for CREATE STREAM and CREATE INGEST")
        if statement.part == "sql":
            return self._queries.explain_sql(statement.statement, session)
        return self._queries.explain(statement.statement, session, self.clock, analyze=statement.analyze)

    def _watch_replacements(self) -> None:
        """Starts what waits for new versions of streams, except where streams work only when told to."""
        if self._controller_factory is None:
            self.replacements.watch()

    def _start_controller(self) -> Controller:
        """Returns a new controller with the service that its workers call; called when the first stream must run."""
        if self._controller_factory is not None:
            return self._controller_factory(self, self._streams.checkpointed)
        mark_place(self.paths, self.fs, self._secret)
        self._service = DnodeService(
            self._secret, self.results.write_results, self._answer, self._states.keep, self.config.worker_host)
        self.activity.port_opened(self._service.port, "dnode service", self._service.guard.admission.counts)
        self._runtime = self._runtime_factory(self.config, self.paths.root)
        hooks = EngineHooks(
            self._streams.checkpointed, self._settle, self._note_paused,
            partial(measure_tree, os.getpid()) if self._environment.threaded else None, self._end_queries)
        return StreamController(
            self.clock, ControllerSettings.from_config(self.config, available_bytes()), self.records, self._runtime,
            WorkerLaunch(self.paths.root, self._service.address, self._secret), hooks, self._environment)

    def _answer(self, request: Request) -> pa.Table:
        """Returns what a worker asks the dnode for."""
        match request:
            case RowsRequest() | SpanRequest() | TableRequest():
                return self.results.read(request)
            case EndRequest() | SegmentsRequest() | BytesRequest():
                return self._logs.answer(request)
        return self._states.answer(request)

    def _end_queries(self, shortage: str) -> int:
        """Ends the queries that run, since memory is short; returns how many."""
        error = OutOfMemoryError(
            f"the query was ended: {shortage}", hint="try again; queryMemory and queriesMax bound what queries take")
        return self.activity.end_computing(error, sparing_lookers=True)

    def _note_paused(self, stream_id: int, cause: PauseCause) -> None:
        with self._ddl_lock:
            self._streams.note_paused(stream_id, cause)

    def _settle(self, stream_id: int) -> None:
        ingest = self.catalog.ingests.by_id(stream_id)
        if ingest is not None:
            self._ingests.settle(ingest)
        else:
            self._streams.settle(stream_id)

    def _stop_service(self) -> None:
        if self._service is not None:
            self._service.shutdown()

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the engine is closed")

