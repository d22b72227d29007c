"""What an engine is made of, and of what each part is made, in order."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random

from penstock import __version__
from penstock.common.memory import available_bytes
from penstock.mnode.access.logins import Logins
from penstock.mnode.catalog.background_keeper import Keeper
from penstock.mnode.catalog.catalog_copies import CopyKeeper
from penstock.mnode.checkpoint_courier import CheckpointCourier
from penstock.mnode.checkpoints.backup_store import open_backup_store
from penstock.mnode.checkpoints.checkpoint_backups import Backups, backup_key
from penstock.mnode.checkpoints.checkpoint_copies import CheckpointShelf, CheckpointsToGive
from penstock.mnode.checkpoints.commit_records import CommitRecords
from penstock.mnode.cluster_member import ClusterMember
from penstock.mnode.controller.stream_controller import StreamController
from penstock.mnode.coordinator.task_settings import functions_directory, place_bounds, query_bounds, result_limits
from penstock.mnode.data_directory import DataDirectory
from penstock.mnode.ddl.alter_table import TableAlterations
from penstock.mnode.ddl.child_creation import ChildCreator
from penstock.mnode.ddl.connections import Connections
from penstock.mnode.ddl.database_statements import DatabaseStatements
from penstock.mnode.ddl.dropped_users import DroppedUsers
from penstock.mnode.ddl.function_statements import Functions
from penstock.mnode.ddl.snode_statements import SnodeStatements
from penstock.mnode.ddl.table_statements import TableStatements
from penstock.mnode.ddl.user_statements import Users
from penstock.mnode.ddl.view_statements import ViewStatements
from penstock.mnode.dnode.log_service import Logs
from penstock.mnode.dnode.stream_cuts import Cuts
from penstock.mnode.dnode.task_states import TaskStates
from penstock.mnode.dnode.view_keeper import ViewKeeper
from penstock.mnode.query.external_tables import ExternalTables
from penstock.mnode.query.query_statements import Queries
from penstock.mnode.query.table_scans import Scans
from penstock.mnode.show.engine_rows import EngineRows
from penstock.mnode.show.explain_statements import Explainer
from penstock.mnode.show.show_statements import ShowStatements
from penstock.mnode.show.stream_rows import StreamRows
from penstock.mnode.show.system_tables import SystemTables
from penstock.mnode.show.table_rows import TableRows
from penstock.mnode.show.user_rows import UserRows
from penstock.mnode.streams.audit_incidents import Incidents
from penstock.mnode.streams.calculations import Calculations
from penstock.mnode.streams.dead_letter_replay import Replays
from penstock.mnode.streams.emitted_answers import EmittedAnswers
from penstock.mnode.streams.ingest_statements import Ingests
from penstock.mnode.streams.stream_answers import StreamAnswers
from penstock.mnode.streams.stream_audit import StreamAudit
from penstock.mnode.streams.stream_comparison import StreamComparison
from penstock.mnode.streams.stream_lifecycle import Lifecycle
from penstock.mnode.streams.stream_refreshes import StreamRefreshes
from penstock.mnode.streams.stream_replacement import Replacements
from penstock.mnode.streams.stream_services import ControllerSource, RunStores, StreamServices
from penstock.mnode.streams.stream_statements import Streams
from penstock.mnode.streams.stream_verification import StreamVerification
from penstock.mnode.streams.vgroup_splitting import Splitting
from penstock.mnode.write.deletes import Deletes
from penstock.mnode.write.inserts import Inserts
from penstock.mnode.write.result_store import ResultStore
from penstock.mnode.write.row_inserts import RowInserts
from penstock.mnode.write.row_lines import LineRows
from penstock.mnode.write.schemaless import Naming, Schemaless
from penstock.mnode.write.table_from_query import TablesFromQueries
from penstock.mnode.write.time_marks import TimeMarks
from penstock.tasks.external.connectors.probing import probe

_CHILDREN_STORED_S = 0.1
"""New child tables are gathered for so long before they are stored in the catalog together."""


class EngineParts:
    """All parts, wired; `start` sets them going. Each is made of those before it."""

    def __init__(self, directory: DataDirectory, start_controller: Callable[[], StreamController]) -> None:
        """`start_controller` is called when the first stream must run."""
        self.directory = directory
        self._connect_stores()
        self._connect_streams(start_controller)
        self._connect_queries()
        self._connect_statements()

    def _connect_stores(self) -> None:
        """What keeps something: copies, views, child tables, results, states, checkpoints."""
        of = self.directory
        config, pool = of.config, of.environment.pool
        interval_s = min(1.0, config.view_refresh_interval)
        self.views = ViewKeeper(
            of.catalog, of.storage.defining, of.paths, of.fs, of.clock, interval_s, config.part_grace)
        self.catalog_keeper = CopyKeeper(
            of.catalog, of.paths, of.fs, of.clock, interval_s, of.dnode.folders_lock)
        self.child_keeper = Keeper("new child tables", of.catalog.settle, of.clock, _CHILDREN_STORED_S)
        of.catalog.gather_children(self.child_keeper.wake)
        self.children = ChildCreator(of.catalog, of.storage, of.clock, self.views.children_changed)
        self.results = ResultStore(of.catalog, of.storage, self.children, pool("penstock-results", 4))
        self.logs = Logs(of.storage, of.paths, of.fs)
        self.states = TaskStates(of.paths, of.fs, of.clock, config.state_map_size)
        self.cuts = Cuts(of.catalog, of.storage)
        self.records = CommitRecords(of.paths, of.fs, config.checkpoints_kept)
        location = config.checkpoint_backup_dir
        self.backups = Backups(
            open_backup_store(location) if location else None, config.checkpoint_backup_interval, of.paths, of.fs,
            self.records, of.clock, lambda stream_id, text: self.streams.known.tell(stream_id, text),
            backup_key(config.checkpoint_backup_key, os.environ, _read_text))
        self.copies = CheckpointsToGive(of.paths, of.fs, self.records, gives=of.member is not None)
        if of.member is not None:
            self._connect_courier(of.member)

    def _connect_courier(self, member: ClusterMember) -> None:
        """Has checkpoints travel between this node and the others."""
        of = self.directory
        place = member.checkpoints
        shelf = CheckpointShelf(of.paths, of.fs, self.records, place.put, place.pin)
        place.on_parted(shelf.part)
        place.needs = lambda: {
            stream_id: self.records.oldest_versions(stream_id) for stream_id in self.copies.with_checkpoints()}
        member.courier = CheckpointCourier(
            place, self.copies, shelf, of.clock, of.config.checkpoint_copy_interval)

    def _connect_streams(self, start_controller: Callable[[], StreamController]) -> None:
        of = self.directory
        self.connections = Connections(of.catalog, of.clock, os.environ, _read_text, probe)
        stores = RunStores(self.results, self.states, self.records, self.backups, self.copies)
        services = StreamServices(
            of.catalog, of.storage, stores, self.connections, of.paths, of.config, of.clock,
            ControllerSource(start_controller))
        self.controller = services.controller
        self.services = services
        self.streams = Streams(services)
        self.ingests = Ingests(services)
        self.incidents = Incidents(of.paths, of.fs)
        self.replacements = Replacements(services, self.streams, self.views, of.ddl_lock, of.config.part_grace)
        self.lifecycle = Lifecycle(services, self.streams, of.ddl_lock)
        self.splitting = Splitting(
            services, self.streams, self.ingests, of.fs, of.writing, of.ddl_lock, of.activity.note_progress)

    def _connect_queries(self) -> None:
        of = self.directory
        self.external_tables = ExternalTables(self.connections)
        of.catalog.describe_external = self.external_tables.table
        started_ms = of.clock.now_ms()
        self.system_tables = SystemTables(of.catalog, (
            TableRows(of.catalog),
            EngineRows(of.catalog, of.storage, of.activity, of.config, of.clock, __version__, started_ms,
                       of.member),
            UserRows(of.catalog, of.audit, self.connections, started_ms),
            StreamRows(of.catalog, self.streams.reports, self.lifecycle, self.ingests, self.incidents,
                       of.config)))
        scans = Scans(of.catalog, of.storage, self.system_tables, self.external_tables)
        self.queries = Queries(
            of.catalog, scans, of.activity, functions_directory(of.config, of.paths), of.paths,
            query_bounds(of.config, of.paths, available_bytes()), place_bounds(of.config))
        self.show = ShowStatements(of.catalog, of.storage, self.system_tables)
        runs = (self.queries.run_planned, self.queries.run_alone)
        self.answers, of_audit = (
            StreamAnswers(self.services, self.streams.known, self.streams.planning, run) for run in runs)
        comparison, audited = (StreamComparison(self.services, self.cuts, self.streams, run, answers)
                               for run, answers in zip(runs, (self.answers, of_audit), strict=True))
        self.verification = StreamVerification(self.streams.known, comparison, of.activity.note_progress, Random())
        self.audit = StreamAudit(self.services, self.streams, audited, self.incidents, of.activity, Random())
        self.streams.control.delete_extra = self.answers.delete_extra
        self.results.refresh = StreamRefreshes(
            self.services, self.streams.known, self.streams.planning, self.queries, of.activity,
            of.writing).answer
        self.results.answer = EmittedAnswers(
            self.services, self.streams.known, self.streams.planning, self.queries.run_planned, of.activity).answer
        self.calculations = Calculations(
            self.services, self.streams.known, self.streams.planning, self.queries, of.activity, of.writing,
            self.children, result_limits(of.config))
        self.results.take_fired, self.results.fire = self.calculations.take, self.calculations.fire
        self.explainer = Explainer(self.queries, self.streams.planning, self.ingests, of.config, of.clock)

    def _connect_statements(self) -> None:
        """What changes something because a user says so."""
        of = self.directory
        changed = self.views.schema_changed
        nodes = 1 if of.member is None else of.member.nodes
        users = DroppedUsers(of.catalog, self.streams.removal.drop_record, self.ingests.drop_record)
        self.databases = DatabaseStatements(
            of.catalog, of.storage, of.clock, nodes, users=users, tell=self.streams.known.tell,
            schema_changed=changed)
        self.tables = TableStatements(
            of.catalog, of.storage, self.children, of.clock, schema_changed=changed,
            children_changed=self.views.children_changed, users=users)
        self.streams.removal.drop_table = self.tables.discard_table
        self.alterations = TableAlterations(
            of.catalog, of.storage, schema_changed=changed, children_changed=self.views.children_changed)
        self.view_statements = ViewStatements(of.catalog, of.clock)
        self.snodes = SnodeStatements(of.catalog, of.clock)
        self.functions = Functions(of.catalog, of.clock, functions_directory(of.config, of.paths))
        self.users = Users(of.catalog, of.clock, secrets.token_bytes)
        self.logins = Logins(of.catalog.users, of.clock, secrets.token_bytes, of.config.token_lifetime,
                             of.config.trust_loopback, of.audit)
        pool = of.environment.pool("penstock-insert", 4)
        self.row_inserts = RowInserts(of.catalog, of.storage, self.children, of.clock, of.writing, pool)
        self.inserts = Inserts(of.catalog, of.storage, self.children, of.clock, pool)
        self.tables_from_queries = TablesFromQueries(of.catalog, self.tables, self.inserts, of.ddl_lock)
        # Not for its turn: statements that change tables would wait for it.
        self.deletes = Deletes(of.catalog, of.storage, self.queries.plan, partial(self.queries.run, waits=False),
                               of.writing, of.ddl_lock, self.results.keyed.lock_of)
        naming = Naming.from_config(of.config)
        self.line_rows = LineRows(of.catalog, of.storage, self.children, of.clock, naming.child)
        self.schemaless = Schemaless(
            of.catalog, self.tables, self.alterations, of.ddl_lock, self.inserts, of.clock, naming, self.line_rows)
        self.time_marks = TimeMarks(of.catalog, of.storage)
        self.replays = Replays(of.catalog, of.storage, self.queries, self.streams.control)

    def start(self, undo: ExitStack, stop_service: Callable[[], None], *, watches: bool) -> None:
        """Sets all going, streams and ingests included, and puts into `undo` what ends them.

        `stop_service` ends what workers call. `watches`: whether streams work by themselves, not only when told to.
        """
        threaded = self.directory.environment.threaded
        member = self.directory.member
        if member is not None:
            undo.callback(member.close)  # behind the streams, whose last checkpoints need an active node
        if threaded:
            undo.callback(self.catalog_keeper.close)
            undo.callback(self.child_keeper.stop)
        for part in (self.queries, self.views, self.results, self.inserts, self.states, self.calculations):
            undo.callback(part.close)
        undo.callback(stop_service)
        for ending in (self.replacements, self.streams, self.splitting, self.audit):
            undo.callback(ending.close)
        if threaded:
            self.directory.dnode.start()
            self.views.start()
            self.child_keeper.start()
        undo.callback(self.backups.close)
        if member is None:
            self._begin_work(watches=watches)
        else:
            member.on_active = partial(self._take_over, watches=watches)
            member.start()

    def _take_over(self, *, watches: bool) -> None:
        """Begins what the active node of a cluster does; what the one before it had to finish is finished."""
        with self.directory.ddl_lock:
            self.directory.storage.open_all()
            self.views.schema_changed()
            self._begin_work(watches=watches)

    def _begin_work(self, *, watches: bool) -> None:
        """Begins what changes something by itself: streams, ingests, copies."""
        if self.directory.environment.threaded:
            self.catalog_keeper.start()
        self.backups.clean()
        self.replacements.clean()
        if watches:
            self.backups.watch()
        self.alterations.confirm_tags()
        self.streams.start_all()
        self.ingests.start_all()
        if watches:
            self.replacements.watch()
            self.audit.watch()

    def abandon(self) -> None:
        """Lets go of everything as the death of the process would: nothing is flushed."""
        self.directory.dnode.stop()
        self.views.stop()
        self.catalog_keeper.stop()
        self.child_keeper.stop()
        self.directory.abandon()


def _read_text(path: str) -> str:
    return Path(path).read_text("utf-8")
