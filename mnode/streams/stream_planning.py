"""What CREATE STREAM would run: checked, planned, and planned again from the text that the catalog has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.common.errors import (
    AlreadyExistsError,
    InUseError,
    InvalidStreamError,
    NotFoundError,
    NotSupportedError,
)
from penstock.mnode.catalog.catalog_records import (
    AskedStream,
    Regrouping,
    StreamRecord,
    StreamUses,
    TableRead,
)
from penstock.mnode.catalog.name_lookup import TABLE_MISSING, find_table, require_database
from penstock.mnode.coordinator import stored_plan
from penstock.mnode.coordinator.stored_plan import StoredPlan
from penstock.mnode.coordinator.task_graph_builder import task_graph
from penstock.mnode.coordinator.task_settings import stream_defaults
from penstock.mnode.ddl.column_rules import check_columns
from penstock.mnode.ddl.name_rules import check_name
from penstock.mnode.ddl.tables_in_use import refuse_if_made_by_stream
from penstock.mnode.dnode.vnode_storage import vgroups_of
from penstock.mnode.query.external_tables import external_table
from penstock.mnode.streams.known_streams import KnownStreams
from penstock.mnode.streams.stream_services import StreamServices
from penstock.planner.lower.batch_results import BatchResults
from penstock.planner.query.batch_plan import BatchPlan
from penstock.planner.query.view_queries import views_below
from penstock.planner.streams.stream_calculation import reads_child, session_of, triggered
from penstock.planner.streams.stream_planner import StreamDefaults, plan_results, plan_stream
from penstock.planner.streams.stream_refresh import of_groups, plan_answer
from penstock.planner.streams.stream_time import defaults_for, zoned
from penstock.planner.task_plans.stream_plan import RefreshPlan, StreamPlan
from penstock.sql.dialect.parser import parse_one
from penstock.sql.dialect.stream_options import altered
from penstock.sql.schema import CatalogView, Database, Session, Table, TagValue
from penstock.sql.tree.statements import Calculation, CountWindow, CreateStream, Query, Select, SessionWindow
from penstock.sql.types import UNITS_PER_SECOND
from penstock.tasks.protocol.task_graph import TaskGraph
from penstock.vnode.read.snapshot import TimeSpan
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN

MAX_STREAMS_PER_DATABASE = 61
"""TDengine refuses when there are more than 60 already."""

MAX_HISTORY_WINDOWS = 20_000_000

NO_TARGET = 0
"""The uid that stands for the result table of a stream whose results leave Penstock."""

_TOO_MANY, _TARGET_TAKEN, _TABLE_EXISTS = 0x03F6, 0x03F7, 0x0603


@dataclass(frozen=True, slots=True)
class AskedCalculation:
    """What a stream with a trigger of its own computes, and for whom; `trigger` is the query of its windows.

    `expired`: EXPIRED_TIME in units of the precision. `names_children`: OUTPUT_SUBTABLE is given. `units_per_ms`: of
    the precision. `count`: so many rows a full window has, 0 where that doesn't matter. `by_table`: `%%tbname` is a
    child of the trigger's table. `gap`: of SESSION, in units of the precision.
    """

    does: Calculation
    trigger: Select
    catalog: CatalogView
    session: Session
    expired: int | None
    names_children: bool
    units_per_ms: int
    count: int
    by_table: bool
    gap: int


class StreamPlanning:
    """Plans streams over the catalog; changes nothing."""

    def __init__(self, services: StreamServices, known: KnownStreams) -> None:
        self._services = services
        self._known = known

    def plan(self, statement: CreateStream, session: Session, replaced: StreamRecord | None = None) -> StreamPlan:
        """Returns what CREATE STREAM would run, having checked everything; changes nothing.

        `replaced`: as if this stream and its result table weren't there.
        """
        check_name(statement.name, "stream")
        session = session_of(statement, session)
        target = None if statement.target.external is not None else find_table(
            statement.target.name, session, self._services.catalog, statement.source_text, statement.source_start)
        view: CatalogView = self._services.catalog
        if replaced is not None:
            view = self._without_replaced(replaced, target)
        if target is not None and statement.materialized:
            raise AlreadyExistsError(f"table {target.database}.{target.name} already exists", code=_TABLE_EXISTS,
                                     hint="a materialized view makes its own")
        for stream in self._services.catalog.streams.all():
            if target is not None and stream.target_uid == target.uid and stream != replaced:
                raise InvalidStreamError(
                    f"stream {stream.name} writes into {target.database}.{target.name} already",
                    code=_TARGET_TAKEN, hint="give each stream a super table of its own")
        if target is not None and replaced is None:
            refuse_if_made_by_stream(target, self._services.catalog)
        defaults = replace(stream_defaults(self._services.config), refreshed=self._refreshed())
        plan = plan_stream(statement, view, session, defaults)
        source_database = require_database(plan.source.database, self._services.catalog)
        count = sum(any(source is not None and source.database == source_database.name
                        for source in map(self._services.catalog.table_by_uid, stream.source_uids))
                    for stream in self._services.catalog.streams.all())
        if count >= MAX_STREAMS_PER_DATABASE:
            raise InvalidStreamError(
                f"database {source_database.name} has {count} streams, as many as are allowed", code=_TOO_MANY)
        self._refuse_cycle(plan)
        self.refuse_long_history(plan, source_database)
        if plan.dlq is not None:
            check_name(plan.dlq.table, "table")
        if plan.sink.create:
            check_name(plan.sink.table, "table")
            columns = plan.sink.columns if plan.calculation is None else plan.calculation.columns
            if len(columns) > 1:
                check_columns(columns, plan.sink.tags)
        return plan

    def replacing(self, statement: CreateStream) -> tuple[CreateStream, StreamRecord | None]:
        """Returns CREATE OR REPLACE STREAM as a CREATE STREAM that computes history too, and which stream it replaces.

        Other statements, and those that have nothing to replace, are returned as they are, with None.
        """
        if not statement.or_replace:
            return statement, None
        replaced = self._services.catalog.streams.named(statement.name)
        options = statement.options
        if replaced is not None:
            plans = (self._known.plans[replaced.id].plan,) if replaced.id in self._known.plans else ()
            if statement.calculation is not None or any(plan.calculation is not None for plan in plans):
                raise NotSupportedError("a stream with a trigger of its own can't be replaced, and replaces none",
                                        hint=f"DROP STREAM {replaced.name}, and create it again")
            if options.fill_history is False:
                raise InvalidStreamError("a stream that replaces another computes its history",
                                         hint="leave out FILL_HISTORY 0")
            options = options.with_changes(fill_history=True)
        written = parse_one(altered(statement, options))
        assert isinstance(written, CreateStream)
        return written, replaced

    def plan_again(self, stream: StreamRecord) -> StoredPlan:
        """Returns what the stream's text gave when it was created; raises what CREATE STREAM would."""
        statement, view, session, defaults = self._as_asked(stream)
        plan = self.aimed(plan_stream(statement, view, session, defaults), stream.target_uid)
        return StoredPlan(plan, self.graph_of(plan), statement.options)

    def answer_of(
        self, stream: StreamRecord, names: Sequence[str], groups: Sequence[tuple[TagValue, ...]] | None
    ) -> tuple[BatchPlan, Session]:
        """Returns what the result table of a stream of any query is to hold, planned anew, and for whom it is asked.

        `groups`: only what it is to hold of groups whose keys, called `names`, have these values. Raises what planning
        raises.
        """
        statement, view, session, _ = self._as_asked(stream)
        query = None if groups is None else of_groups(statement.query, names, groups)
        return plan_answer(statement, view, session, query), session

    def calculation_of(self, stream: StreamRecord) -> AskedCalculation:
        """Returns what a stream with a trigger of its own computes whenever that fires."""
        statement, _, session, _ = self._as_asked(stream)
        statement, session = triggered(statement, session)
        does = statement.calculation
        assert does is not None
        source = self._known.plans[stream.id].plan.source
        return AskedCalculation(
            does, statement.select, self._services.catalog, zoned(statement.options, session),
            None if does.expired is None else does.expired.in_units(source.precision),
            statement.target.subtable is not None, UNITS_PER_SECOND[source.precision] // 1000,
            statement.select.window.count if isinstance(statement.select.window, CountWindow) else 0,
            reads_child(statement, self._services.catalog, session),
            statement.select.window.gap.in_units(source.precision)
            if isinstance(statement.select.window, SessionWindow) else 0)

    def results_of(self, stream: StreamRecord) -> BatchResults:
        """Returns what the result table of a stream is to hold, as a query; raises what `plan_results` raises."""
        return plan_results(*self._as_asked(stream))

    def _as_asked(self, stream: StreamRecord) -> tuple[CreateStream, CatalogView, Session, StreamDefaults]:
        """Returns what a stream was planned of when it was created: its statement, and all that this depends on."""
        statement = parse_one(stream.asked.text)
        assert isinstance(statement, CreateStream)
        target = self._services.catalog.table_by_uid(stream.target_uid)
        view: CatalogView = self._services.catalog
        if stream.replaces is not None:
            replaced = self._services.catalog.streams.by_id(stream.replaces)
            target = None if replaced is None else self._services.catalog.table_by_uid(replaced.target_uid)
        if stream.created_target and target is not None:
            # The plan is to be the one of the first time, when the stream's own result table wasn't there yet.
            view = WithoutTable(self._services.catalog, target)
        if stream.uses.external_table is not None:
            # It is as it was then, whatever has become of it: the server may not even answer.
            view = WithExternalTable(view, stream.uses.external_table)
        session = Session(stream.asked.database, stream.asked.time_zone, stream.asked.created_ms)
        return statement, view, session, StreamDefaults(
            time=stream.asked.defaults, refreshed=self._refreshed())

    def _refreshed(self) -> frozenset[int]:
        """Returns the result tables of streams whose answers are computed again."""
        plans = self._known.plans
        return frozenset(stream.target_uid for stream in self._services.catalog.streams.all()
                         if stream.id in plans and isinstance(plans[stream.id].plan.computation, RefreshPlan))

    def planned(self, record: StreamRecord, stored: StoredPlan) -> StreamRecord:
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
            known = external_table(looked_up.connection, looked_up.table, looked_up.described)
        asked = parse_one(record.asked.text)
        assert isinstance(asked, CreateStream)
        views = {(view.database, view.name) for query in _queries_of(asked)
                 for view in views_below(query, record.asked.database or "", self._services.catalog)}
        queried = () if plan.calculation is None else tuple(
            TableRead(table.uid, table.child_uid, table.columns) for table in plan.calculation.reads)
        uses = StreamUses(tuple(reading), plan.function_names, plan.connections,
                          None if plan.dlq is None else (plan.dlq.database, plan.dlq.table), known,
                          tuple(sorted(views)), queried)
        return replace(record, uses=uses, plan=stored_plan.encode(stored), executions_uid=stored.plan.executions_uid)

    def asked(self, statement: CreateStream, session: Session) -> AskedStream:
        """Returns a statement with what it depends on, such that it means the same when it is planned again."""
        return AskedStream(statement.source_text, session.database, session.time_zone, session.now_ms,
                           defaults_for(statement, stream_defaults(self._services.config).time))

    def aimed(self, plan: StreamPlan, target_uid: int) -> StreamPlan:
        """Returns the plan with the tables that it writes to, which are there by now."""
        dlq = plan.dlq
        if dlq is not None:
            table = self._services.catalog.table(dlq.database, dlq.table)
            if table is None:
                raise NotFoundError(f"the DLQ table {dlq.database}.{dlq.table} was dropped", code=TABLE_MISSING)
            dlq = replace(dlq, target_uid=table.uid)
        calculation = plan.calculation
        if calculation is not None:
            table = self._services.catalog.table(plan.sink.database, calculation.table)
            if table is None:
                raise NotFoundError(f"the table of executions {plan.sink.database}.{calculation.table} was dropped",
                                    code=TABLE_MISSING)
            plan = replace(plan, calculation=replace(calculation, uid=table.uid))
        return replace(plan, sink=replace(plan.sink, target_uid=target_uid, create=False), dlq=dlq)

    def graph_of(
        self, plan: StreamPlan, known: TaskGraph | None = None, wanted: Regrouping | None = None
    ) -> TaskGraph:
        """Returns the task graph of a stream that starts now: the `known` one, while the vnodes are the same.

        `wanted`: as it is to be once a database has other vgroups; of a stream of any query.
        """
        vgroup_ids = self._database(plan.source.database, wanted).vgroup_ids
        snode_ids = tuple(snode.id for snode in self._services.catalog.snodes.all())
        if isinstance(plan.computation, RefreshPlan):
            read = [vgroups_of(self._database(source.database, wanted),
                               _placed(self._source_table(source.database, source.table), wanted))
                    for source in plan.sources]
            return task_graph(plan, vgroup_ids, snode_ids, read)
        if known is not None and known.vgroup_ids == vgroup_ids:
            return known.placed(snode_ids)
        return task_graph(plan, vgroup_ids, snode_ids)

    def _database(self, name: str, wanted: Regrouping | None) -> Database:
        if wanted is not None and wanted.database.name == name:
            return wanted.database
        return require_database(name, self._services.catalog)

    def refuse_long_history(self, plan: StreamPlan, database: Database) -> None:
        """Refuses FILL_HISTORY over more windows than TDengine takes, from the oldest row to the newest."""
        if plan.source.history is None or plan.time_windows is None:
            return
        first = TS_MIN if plan.source.history.first_ts is None else plan.source.history.first_ts
        last = TS_MAX if plan.source.history.last_ts is None else plan.source.history.last_ts
        spans = self._spans(plan, database, first, last)
        if not spans:
            return
        count = plan.time_windows.count_between(
            min(span.first_ts for span in spans), max(span.last_ts for span in spans))
        if count > MAX_HISTORY_WINDOWS:
            raise InvalidStreamError(
                f"the history of {plan.source.database}.{plan.source.table} spans {count} windows, at most "
                f"{MAX_HISTORY_WINDOWS} are filled",
                hint=f"take longer windows, or bound the primary timestamp {plan.source.time_column} in WHERE")

    def newest_left_out(self, plan: StreamPlan) -> int | None:
        """Returns a time that no row is newer than which a stream that starts now leaves out; None: it leaves out none.

        Known of streams alone whose windows are handed over with results.
        """
        if plan.calculation is None or not plan.calculation.values or plan.source.history is not None:
            return None
        database = require_database(plan.source.database, self._services.catalog)
        return max((span.last_ts for span in self._spans(plan, database, TS_MIN, TS_MAX)), default=None)

    def _spans(self, plan: StreamPlan, database: Database, first: int, last: int) -> list[TimeSpan]:
        """Returns bounds of the rows of a time that the source has, for each vnode with some."""
        table = self._services.catalog.table(plan.source.database, plan.source.table)
        if table is None or first > last:
            return []
        snapshots = (self._services.storage.snapshot(vgroup_id, plan.source.storage_uid)
                     for vgroup_id in vgroups_of(database, table))
        return [span for snapshot in snapshots if (span := snapshot.span(first, last)) is not None]

    def _without_replaced(self, replaced: StreamRecord, target: Table | None) -> CatalogView:
        """Returns the catalog as it was before a stream that is to be replaced made its result table."""
        known = self._services.catalog.table_by_uid(replaced.target_uid)
        if not replaced.created_target or known is None:
            raise InvalidStreamError(
                f"stream {replaced.name} writes into "
                + ("a connection" if replaced.target_uid == NO_TARGET else "a table that it didn't create"),
                code=_TARGET_TAKEN, hint="what is there can't be replaced: drop the stream and create it again")
        if target is None or target.uid != known.uid:
            raise InvalidStreamError(
                f"stream {replaced.name} writes into {known.database}.{known.name}, and so must what replaces it",
                hint="to write elsewhere, drop the stream and create it again")
        for stream in self._services.catalog.streams.all():
            if known.uid in stream.source_uids:
                raise InUseError(f"stream {stream.name} reads {known.name}, and would lose its place",
                                 hint=f"drop {stream.name} first")
        return WithoutTable(self._services.catalog, known)

    def _refuse_cycle(self, plan: StreamPlan) -> None:
        """Refuses a stream whose results would come back to its source: it would feed itself for ever."""
        reached = {plan.sink.target_uid}
        streams = list(self._services.catalog.streams.all())
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

    def _source_table(self, database: str, name: str) -> Table:
        table = self._services.catalog.table(database, name)
        if table is None:
            raise NotFoundError(f"the stream's source {database}.{name} was dropped", code=TABLE_MISSING)
        return table


def _queries_of(statement: CreateStream) -> tuple[Query, ...]:
    """Returns the query whose rows or windows count, and that of a trigger."""
    queried = None if statement.calculation is None else statement.calculation.query
    return (statement.query,) if queried is None else (statement.query, queried)


def _placed(table: Table, wanted: Regrouping | None) -> Table:
    """Returns a table as it is once others have moved, or itself has."""
    moving = {} if wanted is None else wanted.moving
    return next((replace(table, vgroup_id=vgroup_id) for vgroup_id, tables in moving.items()
                 if table.kind != "super" and table.uid in tables.get(table.storage_uid, ())), table)


class _OtherTime:
    """A catalog that differs in one thing, which a class below says."""

    def __init__(self, view: CatalogView) -> None:
        self._now = view
        self.database = view.database
        self.database_names = view.database_names
        self.view = view.view
        self.table_names = view.table_names
        self.children = view.children
        self.function = view.function
        self.external_connection = view.external_connection
        self.external_connection_names = view.external_connection_names

    def table(self, database: str, name: str) -> Table | None:
        return self._now.table(database, name)

    def external_table(self, connection: str, name: str) -> Table:
        return self._now.external_table(connection, name)


class WithoutTable(_OtherTime):
    """The catalog as it was before one of its tables was created."""

    def __init__(self, view: CatalogView, hidden: Table) -> None:
        super().__init__(view)
        self._hidden = hidden

    def table(self, database: str, name: str) -> Table | None:
        found = self._now.table(database, name)
        return None if found is not None and found.uid == self._hidden.uid else found


class WithExternalTable(_OtherTime):
    """A catalog in which a table of an external server is as it was."""

    def __init__(self, view: CatalogView, table: Table) -> None:
        super().__init__(view)
        self._table = table

    def external_table(self, connection: str, name: str) -> Table:
        return self._table
