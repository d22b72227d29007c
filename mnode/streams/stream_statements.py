"""CREATE, DROP, PAUSE and RESUME STREAM, and all streams again when the engine starts.

What a stream computes is planned elsewhere, how it runs is the controller's business; here a stream gets its result
table, its start cut, its record in the catalog and its hold on the WAL. What happens at checkpoints is in `lifecycle`.
"""

from __future__ import annotations

import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace

from penstock.common.clock import Clock
from penstock.common.config import Config
from penstock.common.connection import Connection
from penstock.common.errors import (
    AlreadyExistsError,
    CorruptionError,
    InternalError,
    InUseError,
    InvalidStatementError,
    InvalidStreamError,
    NotFoundError,
    NotSupportedError,
    PenstockError,
    StateLayoutError,
    UnavailableError,
)
from penstock.common.logging import about, logger
from penstock.common.paths import DataPaths
from penstock.common.suggestions import did_you_mean
from penstock.mnode.access.session import Result
from penstock.mnode.catalog import catalog_codec as codec
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_records import (
    AskedStream,
    PauseCause,
    StreamRecord,
    StreamUses,
    TableRead,
    Unfinished,
)
from penstock.mnode.catalog.name_lookup import TABLE_MISSING, find_table, require_database
from penstock.mnode.catalog.schema_repository import NO_TABLE
from penstock.mnode.coordinator import stored_plan
from penstock.mnode.coordinator.checkpoint_backups import Backups
from penstock.mnode.coordinator.checkpoint_infos import checkpoint_infos
from penstock.mnode.coordinator.commit_records import CommitRecord, CommitRecords, require_layout
from penstock.mnode.coordinator.controller_protocol import Controller
from penstock.mnode.coordinator.running_stream import RunningStream
from penstock.mnode.coordinator.stored_plan import StoredPlan
from penstock.mnode.coordinator.stream_status import (
    CheckpointInfo,
    EventInfo,
    StreamInfo,
    StreamsSnapshot,
    StreamStatus,
)
from penstock.mnode.coordinator.task_graph_builder import task_graph
from penstock.mnode.coordinator.task_monitor import TaskReport
from penstock.mnode.coordinator.task_settings import (
    BYTES_PER_MEGABYTE,
    functions_directory,
    stream_defaults,
    task_settings,
)
from penstock.mnode.ddl.column_rules import check_columns
from penstock.mnode.ddl.connections import Connections
from penstock.mnode.ddl.name_rules import check_name
from penstock.mnode.ddl.table_statements import TableStatements
from penstock.mnode.dnode.stream_cuts import READER_PIN_PREFIX
from penstock.mnode.dnode.task_states import TaskStates
from penstock.mnode.dnode.vnode_storage import Storage, vgroups_of
from penstock.mnode.query.external_tables import outside_table
from penstock.mnode.streams.explain_analyze import analysis
from penstock.mnode.streams.stream_keeper import CatalogKeeper, children_of
from penstock.mnode.streams.stream_verdict import Names, judged
from penstock.mnode.write.result_store import ResultStore
from penstock.planner.bind.instants import instant
from penstock.planner.streams.dead_letters import dlq_columns, dlq_tags
from penstock.planner.streams.stream_planner import StreamDefaults, plan_stream
from penstock.planner.streams.stream_time import TimeDefaults
from penstock.planner.task_plans.stream_plan import ForcePlan, JoinPlan, StreamPlan
from penstock.sql.dialect.parser import parse_one
from penstock.sql.dialect.stream_options import altered
from penstock.sql.schema import CatalogView, ChildTable, Database, Session, Table, UserFunction
from penstock.sql.tree.statements import (
    AnalyzeStream,
    CreateStream,
    DropStream,
    PauseStream,
    RecalculateStream,
    ResumeStream,
    StreamOptions,
)
from penstock.tasks.protocol.deployment import StreamDeployment, TaskSettings
from penstock.tasks.protocol.messages import DeadRow, Recalculate, Replay, TaskStatus
from penstock.tasks.protocol.task_graph import TaskGraph
from penstock.tasks.protocol.worker_nodes import Nodes
from penstock.tasks.state.state_layout import layout_of
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN

MAX_STREAMS_PER_DATABASE = 61
"""TDengine refuses when there are more than 60 already."""

MAX_HISTORY_WINDOWS = 20_000_000

_EXISTS, _MISSING, _TOO_MANY, _TARGET_TAKEN = 0x03F0, 0x03F1, 0x03F6, 0x03F7
_STOP_TIMEOUT_S = 1.5
_EVENTS_KEPT = 200
_STOP_LATER_S = 60.0
_PAUSE_TIMEOUT_S = 1.5
_PAUSE_POLL_S = 0.02
REPLACEMENT_SUFFIX = "#new"
NO_TARGET = 0
"""The uid that stands for the result table of a stream whose results leave Penstock."""
_PIN_PREFIX, _HOLD = "stream-", "creating-"

_log = logger(__name__)


class Streams:
    """Executes the statements about streams. `controller` is asked for one when the first stream has to run."""

    def __init__(
        self,
        catalog: Catalog,
        storage: Storage,
        results: ResultStore,
        states: TaskStates,
        records: CommitRecords,
        backups: Backups,
        paths: DataPaths,
        config: Config,
        clock: Clock,
        controller: Callable[[], Controller],
        connections: Connections,
    ) -> None:
        self._catalog = catalog
        self._connections = connections
        connections.watch(self._use_connection)
        self._storage = storage
        self._results = results
        self._states = states
        self._records = records
        self._backups = backups
        self._events: deque[EventInfo] = deque(maxlen=_EVENTS_KEPT)
        self._paths = paths
        self._config = config
        self._clock = clock
        self._make_controller = controller
        self._controller: Controller | None = None
        self._closing = threading.Event()
        self._stored: dict[int, StoredPlan] = {}
        self._failed: dict[int, tuple[PenstockError, int]] = {}

    # --- statements --------------------------------------------------------------------------------------------

    def plan(self, statement: CreateStream, session: Session, replaced: StreamRecord | None = None) -> StreamPlan:
        """Returns what CREATE STREAM would run, having checked everything; changes nothing.

        `replaced`: as if this stream and its result table weren't there.
        """
        check_name(statement.name, "stream")
        inside = statement.target.outside is None
        target = find_table(statement.target.name, session, self._catalog, statement.source_text) if inside else None
        view: CatalogView = self._catalog
        if replaced is not None:
            view = self._without_replaced(replaced, target)
        for stream in self._catalog.streams.all():
            if target is not None and stream.target_uid == target.uid and stream != replaced:
                raise InvalidStreamError(
                    f"stream {stream.name} writes into {target.database}.{target.name} already",
                    code=_TARGET_TAKEN, hint="give each stream a super table of its own")
        plan = plan_stream(statement, view, session, stream_defaults(self._config))
        source_database = require_database(plan.source.database, self._catalog)
        count = sum(any(source is not None and source.database == source_database.name
                        for source in map(self._catalog.table_by_uid, stream.source_uids))
                    for stream in self._catalog.streams.all())
        if count >= MAX_STREAMS_PER_DATABASE:
            raise InvalidStreamError(
                f"database {source_database.name} has {count} streams, as many as are allowed", code=_TOO_MANY)
        self._refuse_cycle(plan)
        self._refuse_long_history(plan, source_database)
        if plan.dlq is not None:
            check_name(plan.dlq.table, "table")
        if plan.sink.create:
            check_name(plan.sink.table, "table")
            if len(plan.sink.columns) > 1:
                check_columns(plan.sink.columns, plan.sink.tags)
        return plan

    def _without_replaced(self, replaced: StreamRecord, target: Table | None) -> CatalogView:
        """Returns the catalog as it was before a stream that is to be replaced made its result table."""
        known = self._catalog.table_by_uid(replaced.target_uid)
        if not replaced.created_target or known is None:
            raise InvalidStreamError(
                f"stream {replaced.name} writes into "
                + ("a connection" if replaced.target_uid == NO_TARGET else "a table that it didn't create"),
                code=_TARGET_TAKEN, hint="what is there can't be replaced: drop the stream and create it again")
        if target is None or target.uid != known.uid:
            raise InvalidStreamError(
                f"stream {replaced.name} writes into {known.database}.{known.name}, and so must what replaces it",
                hint="to write elsewhere, drop the stream and create it again")
        for stream in self._catalog.streams.all():
            if known.uid in stream.source_uids:
                raise InUseError(f"stream {stream.name} reads {known.name}, and would lose its place",
                                 hint=f"drop {stream.name} first")
        return _Without(self._catalog, known)

    def _refuse_cycle(self, plan: StreamPlan) -> None:
        """Refuses a stream whose results would come back to its source: it would feed itself for ever."""
        reached = {plan.sink.target_uid}
        streams = list(self._catalog.streams.all())
        while True:
            further = {stream.target_uid for stream in streams if reached.intersection(stream.source_uids)} - reached
            for source in plan.sources:
                if source.storage_uid in reached:
                    raise InvalidStreamError(
                        f"{plan.sink.database}.{plan.sink.table} leads back to the source {source.table}: the stream "
                        "would feed itself", hint="write into another table")
            if not further:
                return
            reached |= further

    def _refuse_long_history(self, plan: StreamPlan, database: Database) -> None:
        """Refuses FILL_HISTORY over more windows than TDengine takes, from the oldest row to the newest."""
        if plan.source.history is None or plan.time_windows is None:
            return
        first = TS_MIN if plan.source.history.first_ts is None else plan.source.history.first_ts
        last = TS_MAX if plan.source.history.last_ts is None else plan.source.history.last_ts
        table = self._catalog.table(plan.source.database, plan.source.table)
        snapshots = [self._storage.snapshot(vgroup_id, plan.source.storage_uid)
                     for vgroup_id in (() if table is None else vgroups_of(database, table))]
        spans = [span for snapshot in snapshots if first <= last and (span := snapshot.span(first, last)) is not None]
        if not spans:
            return
        count = plan.time_windows.count_between(
            min(span.first_ts for span in spans), max(span.last_ts for span in spans))
        if count > MAX_HISTORY_WINDOWS:
            raise InvalidStreamError(
                f"the history of {plan.source.database}.{plan.source.table} spans {count} windows, at most "
                f"{MAX_HISTORY_WINDOWS} are filled",
                hint=f"take longer windows, or bound the primary timestamp {plan.source.time_column} in WHERE")

    def create(self, statement: CreateStream, session: Session, ddl: TableStatements) -> Result:
        """Creates a stream and returns at once; its tasks start in the background."""
        if self._config.disable_stream:
            raise InvalidStreamError("streams are switched off", hint="set disableStream to false")
        if not statement.or_replace and self._catalog.streams.named(statement.name) is not None:
            if statement.if_not_exists:
                return Result()
            raise AlreadyExistsError(f"stream {statement.name} already exists", code=_EXISTS)
        statement, replaced = self.replacing(statement)
        plan = self.plan(statement, session, replaced)
        if replaced is not None:
            for pending in self._replacements_of(replaced):
                self.drop_record(pending)
        graph = self.graph_of(plan)
        vgroup_ids = graph.read_vgroup_ids
        # Rows as of the start cut must stay readable from the moment that the cut is taken.
        hold = f"{_HOLD}{statement.name}"
        for vgroup_id, version in self._storage.acknowledged(vgroup_ids):
            self._storage.vnode(vgroup_id).set_pin(hold, version)
        try:
            return self._create(statement, session, ddl, StoredPlan(plan, graph, statement.options), replaced)
        finally:
            for vgroup_id in vgroup_ids:
                self._storage.vnode(vgroup_id).release_pin(hold)

    def _create(
        self, statement: CreateStream, session: Session, ddl: TableStatements, wanted: StoredPlan,
        replaced: StreamRecord | None,
    ) -> Result:
        plan = wanted.plan
        target_uid = plan.sink.target_uid
        if plan.dlq is not None and not plan.dlq.target_uid:
            # Other streams may share it, so it stays if this one cannot be created.
            database = require_database(plan.dlq.database, self._catalog)
            ddl.create_table_of(database, plan.dlq.table, dlq_columns(database.precision), dlq_tags(), super_table=True)
        if plan.sink.create:
            target_database = require_database(plan.sink.database, self._catalog)
            target_uid = ddl.create_table_of(
                target_database, plan.sink.table, plan.sink.columns, plan.sink.tags, super_table=True,
                replaces=NO_TABLE if replaced is None else replaced.target_uid).uid
        try:
            stored = replace(wanted, plan=self._aimed(plan, target_uid))
            record = self._catalog.streams.create(self._planned(StreamRecord(
                id=0,
                name=statement.name if replaced is None else f"{statement.name}{REPLACEMENT_SUFFIX}",
                replaces=None if replaced is None else replaced.id,
                asked=AskedStream(statement.source_text, session.database, session.time_zone, session.now_ms,
                                  asdict(stream_defaults(self._config).time)),
                target_uid=target_uid,
                created_target=plan.sink.create,
                start_cut=self._storage.durable_cut(wanted.graph.read_vgroup_ids),
            ), stored))
        except PenstockError:
            if plan.sink.create:
                ddl.discard_table(target_uid)
            raise
        ddl.schema_changed()
        try:
            self._stored[record.id] = stored
            self._run(record, stored)
        except PenstockError:
            self.drop_record(record, with_target=record.created_target)
            ddl.schema_changed()
            raise
        return Result()

    def _planned(self, record: StreamRecord, stored: StoredPlan) -> StreamRecord:
        """Returns the record of a stream with its plan, and what that reads and uses."""
        plan, looked_up = stored.plan, stored.plan.source.lookup
        reading = []
        for source in plan.sources:
            table = self._source_table(source.database, source.table)
            reading.append(TableRead(table.storage_uid, table.uid if table.kind == "child" else None,
                                     tuple(column.physical for column in source.columns)))
        known = None
        if looked_up is not None and looked_up.connection is None:
            reading.append(TableRead(looked_up.table_uid, None, tuple(column.physical for column in looked_up.columns)))
        elif looked_up is not None and looked_up.connection is not None:
            known = codec.table_to_json(outside_table(looked_up.connection, looked_up.table, looked_up.described), ())
        uses = StreamUses(tuple(reading), plan.function_names, plan.connections,
                          None if plan.dlq is None else (plan.dlq.database, plan.dlq.table), known)
        return replace(record, uses=uses, plan=stored_plan.encode(stored))

    def _source_table(self, database: str, name: str) -> Table:
        table = self._catalog.table(database, name)
        if table is None:
            raise NotFoundError(f"the stream's source {database}.{name} was dropped", code=TABLE_MISSING)
        return table

    def restore(self, record: StreamRecord) -> StreamRecord:
        """Puts a stream of another instance, or of an earlier time, into the catalog over tables that are here already.

        Of `record` its id, its source and its cut are made anew: it reads what is written from now on, and what is
        there if its text says FILL_HISTORY 1. It starts with the next start of the engine, unless it is stopped.
        Raises what CREATE STREAM would.
        """
        if self._catalog.streams.named(record.name) is not None:
            raise AlreadyExistsError(f"stream {record.name} already exists", code=_EXISTS)
        stored = self.plan_again(record)
        plan = stored.plan
        self._refuse_long_history(plan, require_database(plan.source.database, self._catalog))
        cut = self._storage.durable_cut(stored.graph.read_vgroup_ids)
        restored = self._catalog.streams.create(replace(
            self._planned(record, stored), id=0, start_cut=cut, attempt=0,
            savepoints=(), last_checkpoint_id=0, replaces=None))
        for vgroup_id, version in cut:
            self._storage.vnode(vgroup_id).set_pin(_pin(restored.id), version)
        return restored

    def drop(self, statement: DropStream) -> Result:
        """Ends a stream and forgets it; the result table stays."""
        stream = self.find(statement.name, if_exists=statement.if_exists)
        if stream is not None:
            self.drop_record(stream)
        return Result()

    def drop_record(self, stream: StreamRecord, *, with_target: bool = False) -> None:
        """Ends a stream and forgets it, and with it a stream that was to replace it.

        The result table goes too if no name leads to it yet, or `with_target`.
        """
        if self._catalog.streams.by_id(stream.id) is None:
            return  # went with the stream that it was to replace
        for pending in self._replacements_of(stream):
            self.drop_record(pending)
        self._results.forget(stream.id)
        target = self._catalog.table_by_uid(stream.target_uid) if with_target or stream.replaces is not None else None
        self._catalog.streams.drop(stream.id, None if target is None else target.uid)
        self.end_for_good(stream)
        if target is not None:
            self._storage.drop_table(require_database(target.database, self._catalog), target)

    def _replacements_of(self, stream: StreamRecord) -> list[StreamRecord]:
        return [other for other in self._catalog.streams.all() if other.replaces == stream.id]

    def replacing(self, statement: CreateStream) -> tuple[CreateStream, StreamRecord | None]:
        """Returns CREATE OR REPLACE STREAM as a CREATE STREAM that computes history too, and which stream it replaces.

        Other statements, and those that have nothing to replace, are returned as they are, with None.
        """
        if not statement.or_replace:
            return statement, None
        replaced = self._catalog.streams.named(statement.name)
        options = statement.options
        if replaced is not None:
            if options.fill_history is False:
                raise InvalidStreamError("a stream that replaces another computes its history",
                                         hint="leave out FILL_HISTORY 0")
            options = options.with_changes(fill_history=True)
        written = parse_one(altered(statement, options))
        assert isinstance(written, CreateStream)
        return written, replaced

    def progress(self, stream: StreamRecord) -> dict[int, int] | None:
        """Returns up to which version each source task has got, or None while one isn't there or reads history."""
        stored = self._stored.get(stream.id)
        if stored is None or self._controller is None:
            return None
        vgroup_ids = stored.graph.source_vgroup_ids
        reached: dict[int, int] = {}
        for status in self._controller.statuses():
            if status.task.stream_id == stream.id and status.task.operator == "source":
                filling = status.history is not None and not status.history.done
                if not filling and status.processed_version is not None:
                    reached[status.task.index] = status.processed_version
        if len(reached) < len(vgroup_ids):
            return None
        return {vgroup_id: min(reached[n] for n, other in enumerate(vgroup_ids) if other == vgroup_id)
                for vgroup_id in vgroup_ids}

    def end_for_good(self, stream: StreamRecord) -> None:
        """Ends the tasks of a stream that isn't in the catalog any more, and removes what was kept for it."""
        self._stored.pop(stream.id, None)
        self._failed.pop(stream.id, None)
        self._records.forget(stream.id)
        self._states.forget(stream.id)
        self._backups.forget(stream.id)
        if self._end_tasks(stream, _STOP_TIMEOUT_S):
            self._remove_state(stream.id)
        else:
            # Whoever drops a stream doesn't wait for a worker that hangs; its state goes when it has ended.
            threading.Thread(target=self._remove_later, args=(stream,), name="penstock-drop", daemon=True).start()
        for vgroup_id, _ in stream.start_cut:
            try:
                self._storage.vnode(vgroup_id).release_pin(_pin(stream.id))
            except PenstockError as error:
                _log.warning("the WAL pin of stream %s stays in vnode %d: %s", stream.name, vgroup_id, error,
                             extra=about(stream=stream.name))

    def _end_tasks(self, stream: StreamRecord, timeout_s: float) -> bool:
        """Returns whether no task of the stream is left."""
        if self._controller is None:
            return True
        try:
            self._controller.stop(stream.id, timeout_s)
        except UnavailableError as error:
            _log.warning("stream %s is dropped, but %s", stream.name, error, extra=about(stream=stream.name))
            return False
        return True

    def _remove_later(self, stream: StreamRecord) -> None:
        if self._end_tasks(stream, _STOP_LATER_S):
            self._remove_state(stream.id)

    def _remove_state(self, stream_id: int) -> None:
        """Removes the state of a stream, or an ingest, that was dropped; what can't be goes at the next start."""
        directory = self._paths.stream(stream_id)
        shutil.rmtree(directory, ignore_errors=True)
        if directory.exists():
            _log.warning("the state of the dropped stream %x stays until the next start: %s", stream_id, directory)
            return
        try:
            self._catalog.unfinished.finish([Unfinished("remove_stream", stream_id)])
        except PenstockError as error:
            _log.warning("that stream %x is dropped completely can't be noted: %s", stream_id, error)

    def pause(self, statement: PauseStream) -> Result:
        stream = self.find(statement.name, if_exists=statement.if_exists)
        if stream is not None:
            _refuse_stopped(stream, "paused")
            self._catalog.streams.set_wanted(stream.id, "paused", stream.pause)
            if self._controller is not None and stream.id not in self._failed:
                self._controller.pause(stream.id)
                self._await_sources(self._controller, stream.id, paused=True)
        return Result()

    def note_paused(self, stream_id: int, cause: PauseCause) -> None:
        """Keeps in mind that the controller has paused a stream, unless it was resumed or ended since."""
        stream = self._catalog.streams.by_id(stream_id)
        status = None if self._controller is None else self._controller.stream_states().get(stream_id)
        if stream is not None and stream.wanted == "running" and status is not None and status.pause == cause:
            self._catalog.streams.set_wanted(stream_id, "paused", cause)

    def _await_sources(self, controller: Controller, stream_id: int, *, paused: bool) -> None:
        """Waits, not for long, until all source tasks rest, or none does.

        So rows that are written after PAUSE are not processed, and those after RESUME IGNORE UNTREATED are.
        """
        deadline = self._clock.monotonic() + _PAUSE_TIMEOUT_S
        while self._clock.monotonic() < deadline:
            state = controller.stream_states().get(stream_id)
            if state is None or state.state not in ("RUNNING", "PAUSED"):
                return
            sources = [status for status in controller.statuses()
                       if status.task.stream_id == stream_id and status.task.operator == "source"]
            if sources and all((status.state == "PAUSED") is paused for status in sources):
                return
            self._clock.wait(self._closing, _PAUSE_POLL_S)

    def resume(self, statement: ResumeStream) -> Result:
        stream = self.find(statement.name, if_exists=statement.if_exists)
        if stream is not None:
            _refuse_stopped(stream, "resumed")
            stream = self._catalog.streams.set_wanted(stream.id, "running")
            if stream.id in self._failed:
                self.begin(stream)
            elif self._controller is not None:
                self._controller.resume(stream.id, statement.ignore_untreated)
                if statement.ignore_untreated:
                    self._await_sources(self._controller, stream.id, paused=False)
        return Result()

    def recalculate(self, statement: RecalculateStream, session: Session) -> Result:
        """Orders a stream to compute a range of time again, beside its live flow; returns once that is sure to happen.

        The range is part of the stream's next checkpoint, which is awaited for a moment: from then on no crash can
        make it forgotten.
        """
        stream = self.find(statement.name, if_exists=statement.if_exists)
        if stream is None:
            return Result()
        plan = self._check_recalculates(stream, "RECALCULATE STREAM")
        assert self._controller is not None
        first = instant(statement.first, plan.source.precision, session)
        last = TS_MAX if statement.last is None else instant(statement.last, plan.source.precision, session)
        if first > last:
            raise InvalidStatementError("RECALCULATE STREAM: the range ends before it begins")
        self._controller.recalculate(stream.id, Recalculate(first, last))
        return Result()

    def check_replay(self, name: str) -> None:
        """Raises unless the stream runs and can compute single windows again."""
        stream = self.find(name, if_exists=False)
        assert stream is not None
        self._check_recalculates(stream, "REPLAY DLQ")

    def replay(self, name: str, rows: Sequence[tuple[int, DeadRow]]) -> None:
        """Orders rows of a stream's DLQ, each with its vnode, to be tried again; as sure as `recalculate`."""
        stream = self.find(name, if_exists=False)
        assert stream is not None
        assert self._controller is not None
        self._controller.recalculate(stream.id, Replay(tuple(rows)))

    def _check_recalculates(self, stream: StreamRecord, statement: str) -> StreamPlan:
        _refuse_stopped(stream, "recalculated")
        stored = self._stored.get(stream.id)
        if stored is None or self._controller is None or stream.id in self._failed:
            raise UnavailableError(f"stream {stream.name} doesn't run", hint="RESUME it first")
        plan = stored.plan
        if isinstance(plan.computation, JoinPlan):
            raise NotSupportedError(f"{statement} is not for joins: changes are taken into account anyway",
                                    hint="CREATE OR REPLACE STREAM computes all of it again, beside the running one")
        if isinstance(plan.computation, ForcePlan) or plan.policies.time.clock != "event":
            raise NotSupportedError(f"{statement} works for streams by event time only: what goes by the clock is "
                                    "computed once")
        return plan

    def _use_connection(self, connection: Connection) -> None:
        """Has streams into an altered connection write by what it is now; those that were paused for it go on."""
        for stream in self._catalog.streams.all():
            stored = self._stored.get(stream.id)
            if stored is None or connection.name not in stored.plan.connections:
                continue
            if self._controller is None or not self.runs(stream):
                continue
            try:
                self._controller.use_connection(
                    stream.id, self._connections.open_for(f"stream {stream.name}", connection.name))
            except PenstockError as error:
                self.tell(stream.id, f"connection {connection.name} was altered, but can't be used: {error}")
                continue
            if stream.wanted == "paused" and stream.pause is not None and stream.pause.connection == connection.name:
                self._catalog.streams.set_wanted(stream.id, "running")
                self._controller.resume(stream.id)

    # --- at a checkpoint: for `lifecycle` ------------------------------------------------------------------------

    def find(self, name: str, *, if_exists: bool) -> StreamRecord | None:
        """Returns the stream of this name; raises NotFoundError unless `if_exists`."""
        stream = self._catalog.streams.named(name)
        if stream is None and not if_exists:
            raise NotFoundError(f"stream {name} does not exist", code=_MISSING,
                                hint=did_you_mean(name, (other.name for other in self._catalog.streams.all())))
        return stream

    def plan_of(self, stream: StreamRecord) -> StreamPlan:
        """Returns the plan of a stream that runs."""
        return self._stored[stream.id].plan

    def deployment(
        self, stream: StreamRecord, vgroup_ids: tuple[int, ...], checkpoint_id: int,
        homes: Mapping[int, int] | None = None,
    ) -> StreamDeployment:
        """Returns how a stream's newest attempt is deployed from a checkpoint over some vnodes.

        `homes`: the vgroups of child tables that are not where the catalog says.
        """
        stored = self._stored[stream.id]
        graph = stored.graph if stored.graph.vgroup_ids == vgroup_ids else task_graph(stored.plan, vgroup_ids)
        return StreamDeployment(
            stream.id, stream.name, stream.attempt, stored.plan, graph, tuple(0 for _ in vgroup_ids),
            checkpoint_id, children_of(self._catalog, stream.source_uid, vgroup_ids, homes),
            self._settings(stored.options))

    def hold(self, stream: StreamRecord, record: CommitRecord) -> None:
        """Holds the log for a stream that is to go on from a checkpoint, in the vnodes that it doesn't read yet."""
        known = dict(stream.start_cut)
        for vgroup_id, version in record.versions:
            if vgroup_id not in known:
                self._storage.vnode(vgroup_id).set_pin(_pin(stream.id), version)

    def runs(self, stream: StreamRecord) -> bool:
        """Whether the controller has the stream, in whatever state."""
        return self._controller is not None and stream.id in self._controller.stream_states()

    def trigger_of(self, stream: StreamRecord) -> str | None:
        """Returns the trigger that the stream was planned with, or None if it could not be planned."""
        stored = self._stored.get(stream.id)
        return None if stored is None else stored.plan.trigger

    def checkpoint(self, stream: StreamRecord, timeout_s: float) -> CommitRecord:
        """Takes a checkpoint; returns when it is valid. Raises UnavailableError if it can't be had in time."""
        return self._checkpointing(stream).checkpoint_now(stream.id, timeout_s)

    def begin_checkpoint(self, stream: StreamRecord, timeout_s: float) -> tuple[int, bool]:
        """Has a checkpoint taken; returns its id, and whether it is valid by now, at most so much later."""
        return self._checkpointing(stream).begin_checkpoint(stream.id, timeout_s)

    def _checkpointing(self, stream: StreamRecord) -> Controller:
        if self._controller is None or not self.runs(stream):
            _refuse_stopped(stream, "checkpointed")
            raise UnavailableError(f"stream {stream.name} doesn't run", hint="SHOW STREAMS says why")
        return self._controller

    def end_at_checkpoint(self, stream: StreamRecord, timeout_s: float, *, required: bool) -> None:
        """Ends a stream's tasks right behind a checkpoint: its source tasks rest, so nothing is read after its cut.

        If there can be no checkpoint and one is `required`, the stream runs on and the error tells why.
        """
        controller = self._controller
        if controller is None or not self.runs(stream):
            if required:
                raise UnavailableError(f"stream {stream.name} doesn't run", hint="SHOW STREAMS says why")
            return
        try:
            controller.pause(stream.id)
            self._await_sources(controller, stream.id, paused=True)
            controller.checkpoint_now(stream.id, timeout_s)
        except PenstockError as error:
            if required:
                if stream.wanted != "paused":
                    controller.resume(stream.id)
                raise
            _log.warning("stream %s is stopped at its last checkpoint: %s", stream.name, error,
                         extra=about(stream=stream.name))
        controller.stop(stream.id)
        # What a worker that hangs may still try to write must not come in between.
        self._results.forget(stream.id)
        self._states.forget(stream.id)

    def planned_as(self, stream: StreamRecord, text: str, *, live: bool) -> StoredPlan:
        """Returns what an altered statement of a stream is planned to; raises what CREATE STREAM would.

        `live`: it changes nothing that the stream computes. Raises StateLayoutError if this version would lay the
        stream's state out otherwise.
        """
        planned = self.plan_again(replace(stream, asked=replace(stream.asked, text=text)))
        stored = self._stored.get(stream.id)
        if stored is None:
            return planned
        if live:
            return replace(stored, options=planned.options)
        require_layout(layout_of(stored.plan), layout_of(planned.plan))
        return replace(planned, graph=stored.graph)

    def alter(self, stream: StreamRecord, text: str, planned: StoredPlan) -> StreamRecord:
        """Keeps another statement of a stream, with what it was planned to; what runs is left as it is."""
        altered = self._catalog.streams.set_plan(stream.id, text, stored_plan.encode(planned))
        if stream.id in self._stored:
            self._stored[stream.id] = planned
        return altered

    def adjust(self, stream: StreamRecord) -> None:
        """Has a stream work by the rates and limits of its statement; one that doesn't run will when it starts."""
        stored = self._stored.get(stream.id)
        if stored is not None and self._controller is not None and self.runs(stream):
            self._controller.set_rates(stream.id, self._settings(stored.options).rates)
            self._controller.set_state_limit(stream.id, self.state_limit(stored.options))

    def begin(self, stream: StreamRecord) -> None:
        """Starts a stream of the catalog unless it is stopped, by its stored plan; one that has none is FAILED."""
        try:
            stored = self._stored[stream.id] = self._plan_of(stream)
            self._failed.pop(stream.id, None)
            self._set_misfits_aside(stream, stored.graph.read_vgroup_ids)
            newest = next((one.record for one in self._records.all(stream.id) if one.record is not None), None)
            if newest is not None:
                newest.check_layout(layout_of(stored.plan))
            if stream.wanted != "stopped" and not self._config.disable_stream:
                self._run(stream, stored)
        except PenstockError as error:
            _log.error("stream %s cannot be started: %s", stream.name, error, extra=about(stream=stream.name))
            self._failed[stream.id] = (error, self._clock.now_ms())
        except Exception as error:  # noqa: BLE001  whatever is wrong with it, the engine opens and the others run
            _log.exception("stream %s cannot be started", stream.name, extra=about(stream=stream.name))
            self._failed[stream.id] = (InternalError.of(error), self._clock.now_ms())

    def _plan_of(self, stream: StreamRecord) -> StoredPlan:
        """Returns a stream's stored plan over the vnodes and snodes that there are now.

        A stream of a version that stored none, or one that this version can't read, is planned again, which is stored
        if its state is laid out as it was. Raises StateLayoutError if it isn't, and what CREATE STREAM would.
        """
        kept = None
        if stream.plan is not None:
            try:
                kept = stored_plan.decode(stream.plan)
            except ValueError as error:
                _log.warning("stream %s is planned again, since its stored plan can't be read: %s", stream.name, error,
                             extra=about(stream=stream.name))
        if kept is not None:
            planned = replace(kept, graph=self.graph_of(kept.plan, kept.graph))
        else:
            planned = self.plan_again(stream)
            if stream.plan is not None:
                require_layout(stored_plan.stored_layout(stream.plan), layout_of(planned.plan))
        if planned != kept:
            self._catalog.streams.set_plan(stream.id, stream.asked.text, stored_plan.encode(planned))
        return planned

    def _set_misfits_aside(self, stream: StreamRecord, vgroup_ids: tuple[int, ...]) -> None:
        """Sets checkpoints over other vnodes than there are aside: from before a split, or of one that failed.

        Raises CorruptionError if there are no others: then it isn't they that are wrong.
        """
        records = [one.record for one in self._records.all(stream.id) if one.record is not None]
        misfits = [record for record in records if not record.is_over(vgroup_ids)]
        if not misfits:
            return
        ids = ", ".join(str(record.checkpoint_id) for record in misfits)
        vnodes = ", ".join(map(str, vgroup_ids))
        if misfits == records:
            raise CorruptionError(
                f"no checkpoint of stream {stream.name} is over the vnodes of its tables ({vnodes}); "
                f"those that there are ({ids}) are kept as they are, and nothing is read",
                hint="restore the folder catalog that belongs to them, or CREATE OR REPLACE STREAM computes it anew "
                     "from history")
        moved = self._records.set_aside(stream.id, [record.checkpoint_id for record in misfits])
        self.tell(stream.id, f"checkpoints {ids} are over other vnodes than there are now ({vnodes}), and were "
                             f"moved to {moved[0].parent}")

    def plan_again(self, stream: StreamRecord) -> StoredPlan:
        """Returns what the stream's text gave when it was created; raises what CREATE STREAM would."""
        statement = parse_one(stream.asked.text)
        assert isinstance(statement, CreateStream)
        target = self._catalog.table_by_uid(stream.target_uid)
        view: CatalogView = self._catalog
        if stream.replaces is not None:
            replaced = self._catalog.streams.by_id(stream.replaces)
            target = None if replaced is None else self._catalog.table_by_uid(replaced.target_uid)
        if stream.created_target and target is not None:
            # The plan is to be the one of the first time, when the stream's own result table wasn't there yet.
            view = _Without(self._catalog, target)
        if stream.uses.outside_table is not None:
            # It is as it was then, whatever has become of it: the server may not even answer.
            view = _Remembering(view, codec.table_from_json(dict(stream.uses.outside_table))[0])
        session = Session(stream.asked.database, stream.asked.time_zone, stream.asked.created_ms)
        defaults = StreamDefaults(time=TimeDefaults(**stream.asked.defaults))
        plan = self._aimed(plan_stream(statement, view, session, defaults), stream.target_uid)
        return StoredPlan(plan, self.graph_of(plan), statement.options)

    # --- the engine's start and end ----------------------------------------------------------------------------

    def start_all(self) -> None:
        """Starts every stream of the catalog again. One that cannot be planned is FAILED, and the others run."""
        for stream_id, problem in self._catalog.streams.damaged.items():
            _log.error("stream %x is set aside: %s", stream_id, problem)
        ids = {*(stream.id for stream in self._catalog.streams.all()), *self._catalog.streams.damaged}
        for entry in self._catalog.unfinished.of_kind("remove_stream"):
            self._remove_state(entry.id)
        self._release_stale_pins({_pin(stream_id) for stream_id in ids})
        for stream in self._catalog.streams.all():
            self.begin(stream)

    def _release_stale_pins(self, known: set[str]) -> None:
        """Lets go of WAL that streams held which a crash kept from being dropped completely."""
        for database in self._catalog.databases():
            for vgroup_id in database.vgroup_ids:
                if vgroup_id in self._storage.broken:
                    continue
                vnode = self._storage.vnode(vgroup_id)
                for owner in vnode.stats().pins:
                    if owner.startswith((_PIN_PREFIX, _HOLD, READER_PIN_PREFIX)) and owner not in known:
                        vnode.release_pin(owner)

    def close(self) -> None:
        """Ends all tasks, after a last checkpoint."""
        self._closing.set()
        if self._controller is not None:
            self._controller.close()

    def checkpointed(self, stream_id: int, versions: Mapping[int, int]) -> None:
        """Lets go of the WAL up to a committed checkpoint."""
        if self._catalog.streams.by_id(stream_id) is None:
            return  # dropped meanwhile: its pins are released already
        self._backups.offer(stream_id)
        for vgroup_id, version in versions.items():
            self._storage.vnode(vgroup_id).set_pin(_pin(stream_id), version)

    def settle(self, stream_id: int) -> None:
        """Makes durable what a stream has read and written, before a checkpoint counts it as done.

        Else a power cut could take rows under WAL_LEVEL 1 whose versions are then given to others, which the stream
        would take for rows that it knows; or results that it would never write again. Raises StorageError.
        """
        stream = self._catalog.streams.by_id(stream_id)
        if stream is None:
            return
        tables = [self._catalog.table_by_uid(uid) for uid in (*stream.source_uids, stream.target_uid)]
        for name in dict.fromkeys(table.database for table in tables if table is not None):
            for vgroup_id in require_database(name, self._catalog).vgroup_ids:
                self._storage.vnode(vgroup_id).sync()

    def tell(self, stream_id: int, text: str) -> None:
        """Notes something that people should hear of; see `ins_stream_events`."""
        _log.info("stream %x: %s", stream_id, text)
        self._events.append(EventInfo(self._clock.now_ms(), stream_id, text))

    def analyze(self, statement: AnalyzeStream) -> Result:
        """Watches a running stream for a while; returns what its tasks did meanwhile. Raises UnavailableError."""
        stream = self.find(statement.name, if_exists=False)
        assert stream is not None
        before = self.snapshot()
        info, stored = before.infos[stream.id], self._stored.get(stream.id)
        if stored is None or info.status.state not in ("RUNNING", "STALLED", "PAUSED"):
            raise UnavailableError(f"stream {stream.name} isn't running: {info.verdict or info.status.state}")
        self._clock.wait(self._closing, statement.seconds)
        after = self.snapshot()
        return analysis(stored.plan, stored.graph, self._names(stream), before.tasks.get(stream.id, ()),
                        after.tasks.get(stream.id, ()), after.infos.get(stream.id, info))

    # --- what is shown -----------------------------------------------------------------------------------------

    def snapshot(self) -> StreamsSnapshot:
        """Returns how all streams are now."""
        if self._controller is None:
            streams = self._catalog.streams.all()
            return StreamsSnapshot(
                {stream.id: self._judged(stream, self._idle_info(stream)) for stream in streams},
                checkpoints={stream.id: checkpoint_infos(self._records.all(stream.id), None, None)
                             for stream in streams})
        states = self._controller.stream_states()
        tasks: dict[int, list[TaskReport]] = {}
        for report in self._controller.task_reports():
            tasks.setdefault(report.status.task.stream_id, []).append(report)
        infos: dict[int, StreamInfo] = {}
        checkpoints: dict[int, list[CheckpointInfo]] = {}
        for stream in self._catalog.streams.all():
            status = states.get(stream.id)
            if status is None:
                infos[stream.id] = self._judged(stream, self._idle_info(stream))
                checkpoints[stream.id] = checkpoint_infos(self._records.all(stream.id), None, None)
                continue
            info = replace(self._idle_info(stream), status=status)
            known = tasks.get(stream.id, [])
            tasks[stream.id] = self._with_silent_tasks(stream, info, known)
            infos[stream.id] = self._judged(stream, info, tasks[stream.id])
            checkpoints[stream.id] = checkpoint_infos(self._records.all(stream.id), status, _rows_total(known))
        events = sorted([*self._controller.events(), *self._events], key=lambda event: event.at_ms)
        return StreamsSnapshot(infos, tasks, checkpoints, events, self._controller.workers(), self._controller.memory())

    def _judged(self, stream: StreamRecord, info: StreamInfo, reports: Sequence[TaskReport] = ()) -> StreamInfo:
        return judged(info, reports, self._names(stream))

    def _names(self, stream: StreamRecord) -> Names:
        stored = self._stored.get(stream.id)
        if stored is None:
            return Names(stream.name, Nodes(()))
        return Names(stream.name, stored.graph.nodes, stored.graph.right_vgroup_ids)

    def _with_silent_tasks(
        self, stream: StreamRecord, info: StreamInfo, reports: list[TaskReport]
    ) -> list[TaskReport]:
        """Returns the reports with one for each task that has not sent a heartbeat yet: it is shown as starting."""
        heard = {report.status.task for report in reports}
        stored = self._stored.get(stream.id)
        known = () if stored is None else stored.graph.edges(stream.id)
        silent = [
            TaskReport(TaskStatus(edges.task, "STARTING", info.status.reason, info.status.since_ms or 0),
                       0, 0, 0, 0, None, None, None)
            for edges in known if edges.task not in heard
        ]
        return reports + silent

    def _idle_info(self, stream: StreamRecord) -> StreamInfo:
        """Returns what is known of a stream that the controller doesn't have."""
        stored = self._stored.get(stream.id)
        info = StreamInfo(self._idle_status(stream))
        if stored is None:
            return info
        return replace(info, stored=stored, rates=self._settings(stored.options).rates,
                       state_limit=self.state_limit(stored.options), backup=self._backup_text(stream.id))

    def _idle_status(self, stream: StreamRecord) -> StreamStatus:
        failed = self._failed.get(stream.id)
        if stream.wanted == "stopped":
            return StreamStatus("STOPPED", "by STOP STREAM")
        if failed is not None:
            state = "MISMATCHED" if isinstance(failed[0], StateLayoutError) else "FAILED"
            return StreamStatus(state, str(failed[0]), failed[1])
        if self._config.disable_stream:
            return StreamStatus("STOPPED", "disableStream is set")
        return StreamStatus("STARTING", since_ms=stream.asked.created_ms)

    # --- inside ------------------------------------------------------------------------------------------------

    def _aimed(self, plan: StreamPlan, target_uid: int) -> StreamPlan:
        """Returns the plan with the tables that it writes to, which are there by now."""
        dlq = plan.dlq
        if dlq is not None:
            table = self._catalog.table(dlq.database, dlq.table)
            if table is None:
                raise NotFoundError(f"the DLQ table {dlq.database}.{dlq.table} was dropped", code=TABLE_MISSING)
            dlq = replace(dlq, target_uid=table.uid)
        return replace(plan, sink=replace(plan.sink, target_uid=target_uid, create=False), dlq=dlq)

    def _run(self, stream: StreamRecord, stored: StoredPlan) -> None:
        plan, graph, options = stored.plan, stored.graph, stored.options
        starts = dict(stream.start_cut)
        for vgroup_id, version in stream.start_cut:
            vnode = self._storage.vnode(vgroup_id)
            if _pin(stream.id) not in vnode.stats().pins:
                vnode.set_pin(_pin(stream.id), version)
        interval = options.checkpoint_interval
        keeper = CatalogKeeper(
            stream, stored, self._catalog, self._results, self._states, self._backups, self._connections)
        self.controller().start(RunningStream(
            stream.id, stream.name, plan, graph, tuple(starts[vgroup_id] for vgroup_id in graph.source_vgroup_ids),
            keeper, self._settings(options), stream.wanted == "paused", stream.pause,
            None if interval is None else interval.in_units("ms") / 1000, stream.last_checkpoint_id,
            self.state_limit(options)))

    def controller(self) -> Controller:
        """Returns what runs the streams, and ingests; made when the first of them has to run."""
        if self._controller is None:
            self._controller = self._make_controller()
        return self._controller

    def running(self) -> Controller | None:
        """Returns what runs the streams, None if nothing had to run yet."""
        return self._controller

    def graph_of(self, plan: StreamPlan, known: TaskGraph | None = None) -> TaskGraph:
        """Returns the task graph of a stream that starts now: the `known` one, while the vnodes are the same."""
        vgroup_ids = require_database(plan.source.database, self._catalog).vgroup_ids
        snode_ids = tuple(snode.id for snode in self._catalog.snodes.all())
        if known is not None and known.vgroup_ids == vgroup_ids:
            return known.placed(snode_ids)
        return task_graph(plan, vgroup_ids, snode_ids)

    def state_limit(self, options: StreamOptions) -> int:
        """Returns how many bytes of state a stream may have, 0 for any number."""
        return self._config.state_limit if options.state_limit is None else options.state_limit

    def _settings(self, options: StreamOptions) -> TaskSettings:
        settings = replace(task_settings(self._config),
                           functions_directory=functions_directory(self._config, self._paths))
        if options.sink_rate is not None:
            settings = replace(settings, sink_bytes_per_second=options.sink_rate * BYTES_PER_MEGABYTE)
        if options.sink_calls is not None:
            settings = replace(settings, sink_calls_per_second=options.sink_calls)
        if options.source_rate is not None:
            settings = replace(settings, source_rows_per_second=options.source_rate)
        if options.history_rate is not None:
            settings = replace(settings, history_rows_per_second=options.history_rate)
        if options.retry_time is not None:
            settings = replace(settings, retry_time_s=options.retry_time.in_units("ms") / 1000)
        if options.lookup_freshness is not None:
            settings = replace(settings, lookup_freshness_s=options.lookup_freshness.in_units("ms") / 1000)
        return settings

    def _backup_text(self, stream_id: int) -> str:
        info = self._backups.info(stream_id)
        if info is None:
            return "none"
        copied = "nothing yet" if info.checkpoint_id is None else f"checkpoint {info.checkpoint_id}"
        return f"{copied}; failed: {info.problem}" if info.problem else copied


class _Without:
    """The catalog as it was before one of its tables was created."""

    def __init__(self, catalog: Catalog, hidden: Table) -> None:
        self._catalog = catalog
        self._hidden = hidden

    def database(self, name: str) -> Database | None:
        return self._catalog.database(name)

    def table(self, database: str, name: str) -> Table | None:
        found = self._catalog.table(database, name)
        return None if found is not None and found.uid == self._hidden.uid else found

    def table_names(self, database: str) -> Iterable[str]:
        return self._catalog.table_names(database)

    def children(self, super_uid: int) -> Iterable[ChildTable]:
        return self._catalog.children(super_uid)

    def function(self, name: str) -> UserFunction | None:
        return self._catalog.function(name)

    def outside(self, name: str) -> Connection | None:
        return self._catalog.outside(name)

    def outside_table(self, connection: str, name: str) -> Table:
        return self._catalog.outside_table(connection, name)

    def outside_names(self) -> Iterable[str]:
        return self._catalog.outside_names()


class _Remembering:
    """A catalog in which a table of a server outside is as it was."""

    def __init__(self, view: CatalogView, table: Table) -> None:
        self._table = table
        self.database = view.database
        self.table = view.table
        self.table_names = view.table_names
        self.children = view.children
        self.function = view.function
        self.outside = view.outside
        self.outside_names = view.outside_names

    def outside_table(self, connection: str, name: str) -> Table:
        return self._table


def _refuse_stopped(stream: StreamRecord, verb: str) -> None:
    if stream.wanted == "stopped":
        raise InvalidStatementError(f"stream {stream.name} is stopped and can't be {verb}", hint="START STREAM it")


def _rows_total(reports: Iterable[TaskReport]) -> int | None:
    """Returns how many rows the source tasks have read since the stream was created, or None if none has said it."""
    totals = [report.status.rows_total for report in reports if report.status.rows_total is not None]
    return sum(totals) if totals else None


def _pin(stream_id: int) -> str:
    return f"{_PIN_PREFIX}{stream_id:x}"
