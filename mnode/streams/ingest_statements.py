"""CREATE, ALTER, DROP, PAUSE and RESUME INGEST, and all ingests again when the engine starts.

What an ingest does is planned elsewhere, and it runs as streams do, by the same controller; here it gets its record in
the catalog. It holds no log back: it reads none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from penstock.common.connection import ExternalConnection, OpenedConnection
from penstock.common.errors import AlreadyExistsError, NotFoundError, PenstockError
from penstock.common.logging import about, logger
from penstock.common.suggestions import did_you_mean
from penstock.mnode.access.session import Result
from penstock.mnode.catalog.catalog_records import IngestRecord, PauseCause
from penstock.mnode.catalog.name_lookup import TABLE_MISSING, require_database
from penstock.mnode.coordinator.running_stream import RunningStream, StreamKeeper
from penstock.mnode.coordinator.task_graph_builder import task_graph
from penstock.mnode.coordinator.task_settings import task_settings
from penstock.mnode.ddl.connections import problem_text
from penstock.mnode.ddl.name_rules import check_name
from penstock.mnode.ddl.table_statements import TableStatements
from penstock.mnode.ddl.tables_in_use import refuse_if_made_by_stream
from penstock.mnode.streams.known_streams import told_failure
from penstock.mnode.streams.stream_removal import end_tasks, remove_state
from penstock.mnode.streams.stream_services import StreamServices
from penstock.planner.streams.dead_letters import dlq_columns, dlq_tags
from penstock.planner.streams.ingest_plan import IngestPlan, aimed, plan_ingest
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Session
from penstock.sql.tree.statements import AlterIngest, CreateIngest, DropIngest, PauseIngest, ResumeIngest
from penstock.tasks.protocol.task_status import ConnectionHealth, TaskStatus

_STOP_TIMEOUT_S = 1.5
_STOP_LATER_S = 60.0
_CHECKPOINT_TIMEOUT_S = 10.0
_TOLD_FIRST = ("FAILED", "RETRYING", "STARTING")
"""The states of tasks that an ingest has if one of its tasks has it, the worst first."""

_log = logger(__name__)


class IngestKeeper(StreamKeeper):
    """Looks after one ingest."""

    def __init__(self, ingest: IngestRecord, services: StreamServices) -> None:
        self._ingest = ingest
        self._services = services
        self._user = f"ingest {ingest.name}"

    def next_attempt(self) -> int:
        attempt = self._services.catalog.ingests.next_attempt(self._ingest.id).attempt
        self._services.stores.fence(self._ingest.id, attempt)
        return attempt

    def connection(self) -> OpenedConnection:
        return self._services.connections.open_for(self._user, self._ingest.connection)

    def savepoints(self) -> frozenset[int]:
        return self._services.stores.held(self._ingest.id)

    def note_health(self, contact: ConnectionHealth) -> None:
        self._services.connections.note_health(self._user, contact)


@dataclass(frozen=True, slots=True)
class IngestInfo:
    """How an ingest is. `state`: that of its attempt, as a stream's; RETRYING or FAILED if one of its tasks is.

    Counters are since it was created, but for what was read after its last checkpoint before a crash. `lag`: messages
    that wait to be read, None if nobody knows.
    """

    record: IngestRecord
    state: str
    reason: str
    since_ms: int | None
    plan: IngestPlan | None = None
    rows: int | None = None
    messages: int | None = None
    nbytes: int | None = None
    errors: int | None = None
    unknown: int | None = None
    lag: int | None = None
    last_refused: str = ""
    restarts: int = 0


class Ingests:
    """Executes the statements about ingests."""

    def __init__(self, services: StreamServices) -> None:
        self._services = services
        self._plans: dict[int, IngestPlan] = {}
        self._failed: dict[int, tuple[PenstockError, int]] = {}
        services.connections.watch(self._connection_altered)

    # --- statements --------------------------------------------------------------------------------------------

    def find(self, name: str, *, if_exists: bool) -> IngestRecord | None:
        """Returns the ingest of this name; raises NotFoundError unless `if_exists`."""
        ingest = self._services.catalog.ingests.named(name)
        if ingest is None and not if_exists:
            raise NotFoundError(f"ingest {name} does not exist",
                                hint=did_you_mean(name, (other.name for other in self._services.catalog.ingests.all())))
        return ingest

    def plan(self, statement: CreateIngest, session: Session, tasks: int | None = None) -> IngestPlan:
        """Returns what CREATE INGEST would run, having checked everything; changes nothing."""
        check_name(statement.name, "ingest")
        kind = self._services.connections.find(statement.connection).kind
        return plan_ingest(statement, kind, tasks, self._services.catalog, session)

    def create(self, statement: CreateIngest, session: Session, tables: TableStatements) -> Result:
        """Creates an ingest and returns at once; its tasks start in the background."""
        if self._services.catalog.ingests.named(statement.name) is not None:
            if statement.if_not_exists:
                return Result()
            raise AlreadyExistsError(f"ingest {statement.name} already exists")
        plan = self.plan(statement, session)
        target = self._services.catalog.table_by_uid(plan.target_uid)
        if target is not None:
            refuse_if_made_by_stream(target, self._services.catalog)
        self._make_dlq(plan, tables)
        record = self._services.catalog.ingests.create(IngestRecord(
            0, statement.name, statement.source_text, session.database, session.time_zone, plan.target_uid,
            statement.connection, session.now_ms, plan.tasks, _dlq_name(plan)))
        tables.schema_changed()
        self.begin(record)
        return Result()

    def alter(
        self, ingest: IngestRecord, statement: AlterIngest, session: Session, tables: TableStatements
    ) -> Result:
        """Has an ingest treat messages that can't be used otherwise: it goes on from its last checkpoint.

        Nothing is read twice that is told apart, as after a crash. A message that it stands at is treated so, too.
        """
        dlq = statement.dlq
        if dlq is not None and dlq.database is None:
            dlq = dlq.with_changes(database=session.database)
        asked = _statement(ingest).with_changes(on_error=statement.on_error, dlq=dlq)
        plan = self.plan(asked, _session(ingest), ingest.tasks)
        self._make_dlq(plan, tables)
        altered = self._services.catalog.ingests.set_text(ingest.id, asked.sql(), _dlq_name(plan))
        tables.schema_changed()
        end_tasks(self._services, altered, lambda: self._begin_altered(altered.id))
        return Result()

    def drop(self, ingest: IngestRecord, _: DropIngest) -> Result:
        self.drop_record(ingest)
        return Result()

    def drop_record(self, ingest: IngestRecord) -> None:
        """Ends an ingest and forgets it; what it has written stays."""
        stores = self._services.stores
        stores.results.forget(ingest.id)
        self._services.catalog.ingests.drop(ingest.id)
        self._plans.pop(ingest.id, None)
        self._failed.pop(ingest.id, None)
        stores.records.forget(ingest.id)
        stores.states.forget(ingest.id)
        end_tasks(self._services, ingest, lambda: self._remove_state(ingest))

    def pause(self, ingest: IngestRecord, _: PauseIngest) -> Result:
        self._services.catalog.ingests.set_wanted(ingest.id, "paused", ingest.wanted_reason)
        controller = self._services.controller.of(ingest)
        if controller is not None:
            controller.pause(ingest.id)
        return Result()

    def resume(self, ingest: IngestRecord, _: ResumeIngest) -> Result:
        """Lets an ingest go on; one that a message was in the way of tries this message again."""
        ingest = self._services.catalog.ingests.set_wanted(ingest.id, "running")
        controller = self._services.controller.of(ingest)
        if controller is not None:
            controller.resume(ingest.id)
        else:
            self.begin(ingest)
        return Result()

    # --- the engine's start, and others' orders ------------------------------------------------------------------

    def start_all(self) -> None:
        """Starts every ingest of the catalog again. One that cannot be planned is FAILED, and the others run."""
        for ingest in self._services.catalog.ingests.all():
            self.begin(ingest)

    def begin(self, ingest: IngestRecord) -> None:
        """Plans an ingest of the catalog and starts it; one that cannot be planned is FAILED, with the reason."""
        try:
            plan = self._plan_again(ingest)
            self._plans[ingest.id] = plan
            self._failed.pop(ingest.id, None)
            if not self._services.config.disable_stream:
                self._run(ingest, plan)
        except Exception as error:  # noqa: BLE001  whatever is wrong with it, the engine opens and the others run
            self._failed[ingest.id] = (told_failure("ingest", ingest.name, error), self._services.clock.now_ms())

    def table_altered(self) -> None:
        """Has ingests whose tables are others by now go on with what they are; one that can't is FAILED."""
        for ingest in self._services.catalog.ingests.all():
            try:
                changed = self._plan_again(ingest) != self._plans.get(ingest.id)
            except PenstockError:
                changed = True
            if (changed or ingest.id in self._failed) and self._services.controller.end_tasks(ingest, _STOP_TIMEOUT_S):
                self.begin(ingest)

    def writing(self, database: str) -> list[IngestRecord]:
        """Returns the ingests that write into a database."""
        found = []
        for ingest in self._services.catalog.ingests.all():
            target = self._services.catalog.table_by_uid(ingest.target_uid)
            if (target is not None and target.database == database) or (ingest.dlq or ("",))[0] == database:
                found.append(ingest)
        return found

    def end_at_checkpoint(self, ingest: IngestRecord) -> None:
        """Ends an ingest's tasks right behind a checkpoint, if there can be one: else more is read again later."""
        controller = self._services.controller.of(ingest)
        if controller is None:
            return
        try:
            controller.pause(ingest.id)
            controller.checkpoint_now(ingest.id, _CHECKPOINT_TIMEOUT_S)
        except PenstockError as error:
            _log.warning("ingest %s is stopped at its last checkpoint: %s", ingest.name, error,
                         extra=about(stream=ingest.name))
        controller.stop(ingest.id)
        self._services.stores.ended(ingest.id)

    def runs(self, ingest: IngestRecord) -> bool:
        """Whether the controller has the ingest, in whatever state."""
        return self._services.controller.of(ingest) is not None

    def settle(self, ingest: IngestRecord) -> None:
        """Makes durable what an ingest has written, before a checkpoint counts it as done. Raises StorageError."""
        table = self._services.catalog.table_by_uid(ingest.target_uid)
        self._services.sync_databases({*([] if table is None else [table.database]), *(ingest.dlq or ())[:1]})

    # --- what is shown -----------------------------------------------------------------------------------------

    def infos(self) -> list[IngestInfo]:
        """Returns how all ingests are now, in order of creation."""
        controller = self._services.controller.running()
        states = {} if controller is None else controller.stream_states()
        statuses = [] if controller is None else controller.statuses()
        found = []
        for ingest in self._services.catalog.ingests.all():
            mine = [status for status in statuses if status.task.stream_id == ingest.id]
            report = states.get(ingest.id)
            plan, failed = self._plans.get(ingest.id), self._failed.get(ingest.id)
            if failed is not None:
                found.append(IngestInfo(ingest, "FAILED", problem_text(failed[0]), failed[1], plan))
            elif report is None:
                stopped = self._services.config.disable_stream
                found.append(IngestInfo(ingest, "STOPPED" if stopped else "STARTING",
                                        "disableStream is set" if stopped else "", None, plan))
            else:
                info = IngestInfo(ingest, report.state, report.reason, report.since_ms, plan, restarts=report.restarts)
                found.append(_with_tasks(info, mine))
        return found

    # --- inside ------------------------------------------------------------------------------------------------

    def _begin_altered(self, ingest_id: int) -> None:
        """Starts an ingest as it is now: while its tasks ended, it may have been altered again, or dropped."""
        ingest = self._services.catalog.ingests.by_id(ingest_id)
        if ingest is not None:
            self.begin(ingest)

    def _make_dlq(self, plan: IngestPlan, tables: TableStatements) -> None:
        """Creates the DLQ table that isn't there yet. Others may share it, so it stays whatever comes after."""
        if plan.dlq is not None and not plan.dlq.target_uid:
            database = require_database(plan.dlq.database, self._services.catalog)
            tables.create_table_of(
                database, plan.dlq.table, dlq_columns(database.precision), dlq_tags(), super_table=True)

    def _plan_again(self, ingest: IngestRecord) -> IngestPlan:
        """Returns the plan of the ingest's text over the table as it is now."""
        plan = self.plan(_statement(ingest), _session(ingest), ingest.tasks)
        if plan.target_uid != ingest.target_uid:
            raise NotFoundError(f"the table of ingest {ingest.name} was dropped", code=TABLE_MISSING,
                                hint="drop the ingest and create it again")
        if ingest.dlq is None:
            return plan
        table = self._services.catalog.table(*ingest.dlq)
        if table is None:
            raise NotFoundError(f"the DLQ table {'.'.join(ingest.dlq)} was dropped", code=TABLE_MISSING)
        return aimed(plan, table.uid)

    def _run(self, ingest: IngestRecord, plan: IngestPlan) -> None:
        settings = replace(task_settings(self._services.config), state_map_bytes=self._services.config.state_map_size)
        self._services.controller.get().start(RunningStream(
            ingest.id, ingest.name, plan, task_graph(plan, plan.database.vgroup_ids), (),
            IngestKeeper(ingest, self._services), settings,
            ingest.wanted == "paused", PauseCause(ingest.wanted_reason) if ingest.wanted_reason else None,
            self._services.config.ingest_checkpoint_interval))

    def _connection_altered(self, connection: ExternalConnection) -> None:
        """Has ingests from an altered connection read by what it is now."""
        for ingest in self._services.catalog.ingests.all():
            if ingest.connection != connection.name:
                continue
            controller = self._services.controller.of(ingest)
            if ingest.id in self._failed:
                self.begin(ingest)
            elif controller is not None:
                try:
                    controller.use_connection(
                        ingest.id, self._services.connections.open_for(f"ingest {ingest.name}", connection.name))
                except PenstockError as error:
                    _log.warning("connection %s was altered, but can't be used: %s", connection.name, error,
                                 extra=about(stream=ingest.name))

    def _remove_state(self, ingest: IngestRecord) -> None:
        """Removes what is left of an ingest that has ended for good; the vnodes forget how far it was."""
        remove_state(self._services, ingest.id)
        for database in self._services.catalog.databases():
            for vgroup_id in database.vgroup_ids:
                if vgroup_id not in self._services.storage.broken:
                    self._services.storage.vnode(vgroup_id).writer.forget_ingest(ingest.id)


def _statement(ingest: IngestRecord) -> CreateIngest:
    statement = parse_one(ingest.text)
    assert isinstance(statement, CreateIngest)
    return statement


def _session(ingest: IngestRecord) -> Session:
    return Session(ingest.database, ingest.time_zone, ingest.created_ms)


def _dlq_name(plan: IngestPlan) -> tuple[str, str] | None:
    return None if plan.dlq is None else (plan.dlq.database, plan.dlq.table)


def _with_tasks(info: IngestInfo, statuses: Iterable[TaskStatus]) -> IngestInfo:
    """Returns what is known of an ingest, with what its tasks tell."""
    tasks = list(statuses)
    if not tasks:
        return info
    if info.state == "RUNNING":
        for state in _TOLD_FIRST:
            worst = next((task for task in tasks if task.state == state), None)
            if worst is not None:
                info = replace(info, state=state, reason=worst.reason, since_ms=worst.since_ms)
                break
    lags = [task.ingest.lag for task in tasks]
    return replace(
        info, rows=sum(task.progress.rows_total or 0 for task in tasks),
        messages=sum(task.ingest.messages for task in tasks),
        nbytes=sum(task.progress.bytes_in for task in tasks),
        errors=sum(task.late.error_rows for task in tasks), unknown=sum(task.ingest.unknown_rows for task in tasks),
        lag=sum(lag or 0 for lag in lags) if any(lag is not None for lag in lags) else None,
        last_refused=next((task.ingest.last_refused for task in tasks if task.ingest.last_refused), ""))
