"""CREATE STREAM, and streams that are restored: they get a result table, a cut, a record, and a hold on the WAL."""

from __future__ import annotations

from dataclasses import replace

from penstock.common.errors import AlreadyExistsError, InvalidStreamError, PenstockError
from penstock.mnode.access.session import Result
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.catalog.name_lookup import require_database
from penstock.mnode.catalog.schema_repository import NO_TABLE
from penstock.mnode.coordinator.stored_plan import StoredPlan
from penstock.mnode.ddl.table_statements import TableStatements
from penstock.mnode.streams.known_streams import KnownStreams
from penstock.mnode.streams.stream_pins import hold_of, pin_of
from penstock.mnode.streams.stream_planning import StreamPlanning
from penstock.mnode.streams.stream_removal import StreamRemoval
from penstock.mnode.streams.stream_services import StreamServices
from penstock.mnode.streams.stream_starts import StreamStarts
from penstock.planner.streams.calculated_target import executions_columns
from penstock.planner.streams.dead_letters import dlq_columns, dlq_tags
from penstock.planner.task_plans.stream_plan import CalculationPlan, RefreshPlan, StreamPlan
from penstock.sql.schema import Session
from penstock.sql.tree.statements import CreateStream
from penstock.sql.types import UNITS_PER_SECOND

REPLACEMENT_SUFFIX = "#new"

_EXISTS = 0x03F0


class StreamCreation:
    """Executes CREATE STREAM."""

    def __init__(
        self, services: StreamServices, known: KnownStreams, planning: StreamPlanning, starts: StreamStarts,
        removal: StreamRemoval,
    ) -> None:
        self._services = services
        self._known = known
        self._planning = planning
        self._starts = starts
        self._removal = removal

    def create(self, statement: CreateStream, session: Session, tables: TableStatements) -> Result:
        """Creates a stream and returns at once; its tasks start in the background."""
        if self._services.config.disable_stream:
            raise InvalidStreamError("streams are disabled", hint="set disableStream to false")
        if not statement.or_replace and self._services.catalog.streams.named(statement.name) is not None:
            if statement.if_not_exists:
                return Result()
            raise AlreadyExistsError(f"stream {statement.name} already exists", code=_EXISTS)
        statement, replaced = self._planning.replacing(statement)
        plan = self._planning.plan(statement, session, replaced)
        if replaced is not None:
            for pending in self._removal.replacements_of(replaced):
                self._removal.drop_record(pending)
        graph = self._planning.graph_of(plan)
        vgroup_ids = graph.read_vgroup_ids
        # Rows as of the start cut must stay readable from the moment that the cut is taken.
        hold = hold_of(statement.name)
        for vgroup_id, version in self._services.storage.acknowledged(vgroup_ids):
            self._services.storage.vnode(vgroup_id).set_pin(hold, version)
        try:
            return self._create(statement, session, tables, StoredPlan(plan, graph, statement.options), replaced)
        finally:
            for vgroup_id in vgroup_ids:
                self._services.storage.vnode(vgroup_id).release_pin(hold)

    def _create(
        self, statement: CreateStream, session: Session, tables: TableStatements, wanted: StoredPlan,
        replaced: StreamRecord | None,
    ) -> Result:
        plan = wanted.plan
        target_uid = self._make_tables(plan, tables, replaced)
        stored = replace(wanted, plan=self._planning.aimed(plan, target_uid))
        try:
            record = self._services.catalog.streams.create(self._planning.planned(StreamRecord(
                id=0,
                name=statement.name if replaced is None else f"{statement.name}{REPLACEMENT_SUFFIX}",
                replaces=None if replaced is None else replaced.id,
                asked=self._planning.asked(statement, session),
                target_uid=target_uid,
                created_target=plan.sink.create,
                start_cut=self._services.storage.durable_cut(wanted.graph.read_vgroup_ids),
                newest_at_start=self._planning.newest_left_out(plan),
            ), stored))
        except PenstockError:
            if plan.sink.create:
                tables.discard_table(target_uid)
            tables.discard_table(stored.plan.executions_uid)
            raise
        tables.schema_changed()
        try:
            self._known.plans[record.id] = stored
            self._starts.run(record, stored)
        except PenstockError:
            self._removal.drop_record(record, with_target=record.created_target)
            tables.schema_changed()
            raise
        return Result()

    def _make_tables(self, plan: StreamPlan, tables: TableStatements, replaced: StreamRecord | None) -> int:
        """Creates the tables that a stream writes to; returns the uid of its result table."""
        if plan.dlq is not None and not plan.dlq.target_uid:
            # Other streams may share it, so it stays if this one cannot be created.
            database = require_database(plan.dlq.database, self._services.catalog)
            tables.create_table_of(
                database, plan.dlq.table, dlq_columns(database.precision), dlq_tags(), super_table=True)
        if plan.calculation is not None:
            return self._make_calculated(plan, plan.calculation, tables)
        if not plan.sink.create:
            return plan.sink.target_uid
        database = require_database(plan.sink.database, self._services.catalog)
        return tables.create_table_of(
            database, plan.sink.table, plan.sink.columns, plan.sink.tags,
            super_table=not isinstance(plan.computation, RefreshPlan) and not plan.sink.keyed,
            replaces=NO_TABLE if replaced is None else replaced.target_uid).uid

    def _make_calculated(self, plan: StreamPlan, calculation: CalculationPlan, tables: TableStatements) -> int:
        """Creates the table of executions and that of results, if there is to be one; returns the uid of the latter."""
        database = require_database(plan.sink.database, self._services.catalog)
        executions = tables.create_table_of(
            database, calculation.table, executions_columns(plan.window_columns), (), super_table=False)
        if not plan.sink.create:
            return plan.sink.target_uid
        try:
            return tables.create_table_of(database, plan.sink.table, calculation.columns, plan.sink.tags,
                                          super_table=bool(plan.sink.tags)).uid
        except PenstockError:
            tables.discard_table(executions.uid)
            raise

    def restore(self, record: StreamRecord) -> StreamRecord:
        """Puts a stream of another instance, or of an earlier time, into the catalog over tables that are here already.

        Of `record` its id, its source and its cut are made anew: it reads what is written from now on, and what is
        there if its text says FILL_HISTORY 1. It starts with the next start of the engine, unless it is stopped.
        Raises what CREATE STREAM would.
        """
        if self._services.catalog.streams.named(record.name) is not None:
            raise AlreadyExistsError(f"stream {record.name} already exists", code=_EXISTS)
        stored = self._from_now_on(self._planning.plan_again(record))
        plan = stored.plan
        self._planning.refuse_long_history(plan, require_database(plan.source.database, self._services.catalog))
        cut = self._services.storage.durable_cut(stored.graph.read_vgroup_ids)
        restored = self._services.catalog.streams.create(replace(
            self._planning.planned(record, stored), id=0, start_cut=cut, attempt=0,
            savepoints=(), last_checkpoint_id=0, replaces=None,
            newest_at_start=self._planning.newest_left_out(plan)))
        for vgroup_id, version in cut:
            self._services.storage.vnode(vgroup_id).set_pin(pin_of(restored.id), version)
        return restored

    def _from_now_on(self, stored: StoredPlan) -> StoredPlan:
        """Returns a plan for which the rows that are there have come by now: none is from the future for having come
        after the stream was created first.
        """
        plan, policies = stored.plan, stored.plan.policies
        created = self._services.clock.now_ms() * UNITS_PER_SECOND[plan.source.precision] // 1_000
        time = replace(policies.time, created=created)
        return replace(stored, plan=replace(plan, policies=replace(policies, time=time)))
