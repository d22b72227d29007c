"""Which part executes a statement, and what must not run beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, get_args

from penstock.common.errors import InvalidStatementError, NotSupportedError
from penstock.mnode.access.roles import Identity
from penstock.mnode.access.session import Result, SessionState
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.cluster_member import ClusterMember
from penstock.mnode.engine_parts import EngineParts
from penstock.mnode.query.activity import Activity
from penstock.mnode.query.query_runner import ResultLimits
from penstock.mnode.write.inserts import QueryRunner
from penstock.sql.schema import Session
from penstock.sql.tree import statements as sql
from penstock.sql.tree.statements import Statement

R = TypeVar("R")
S = TypeVar("S")

DryRun = Callable[[sql.DryRunStream, Session], Result]


@dataclass(frozen=True, slots=True)
class StatementCall:
    """What a statement is executed in: its text, the session as it goes on, and as it is for this statement."""

    text: str
    state: SessionState
    session: Session
    limits: ResultLimits


Handler = Callable[[Any, StatementCall], Result]
"""Executes a statement of the class that it is listed for."""


class Dispatch:
    """Hands statements to the parts that execute them."""

    def __init__(self, parts: EngineParts, dry_run: DryRun | None, *, streams_rest: bool) -> None:
        """`streams_rest`: streams work only when told to, so there is nothing of them to be measured."""
        self._splitting = parts.splitting
        self._member = parts.directory.member
        self._writing = parts.directory.writing
        self._ddl_lock = parts.directory.ddl_lock
        self._at_any_time = _lookers(parts, streams_rest=streams_rest)
        self._beside_writers = _writers(parts, dry_run)
        self._one_at_a_time = {**_definitions(parts), **_stream_changes(parts, watches=not streams_rest)}

    def execute(self, statement: Statement, call: StatementCall, check_open: Callable[[], None]) -> Result:
        """Executes a statement. Raises PenstockErrors; `check_open` is called again where it had to wait."""
        kind = type(statement)
        if self._member is not None and (kind not in self._at_any_time or kind in (sql.SplitVgroup, sql.Delete)):
            self._member.require_active()
            _refuse_splits(statement)
        if isinstance(statement, sql.AlterDatabase) and "VGROUPS" in dict(statement.options):
            return self._splitting.alter(statement)
        if kind in self._at_any_time:
            return self._at_any_time[kind](statement, call)
        with self._writing.shared():
            if kind in self._beside_writers:
                return self._beside_writers[kind](statement, call)
            with self._ddl_lock:
                check_open()
                if kind not in self._one_at_a_time:
                    raise NotSupportedError(f"{kind.__name__} is not supported")
                return self._one_at_a_time[kind](statement, call)


def _lookers(parts: EngineParts, *, streams_rest: bool) -> dict[type[Statement], Handler]:
    """What only looks, and what takes its turns itself."""
    return {
        **dict.fromkeys(get_args(sql.Query), lambda query, call: parts.queries.run(
            query, call.session, call.limits)),
        sql.KillQuery: lambda statement, call: _kill(parts.directory.activity, statement, call.state.identity),
        sql.Show: _in_session(parts.show.show),
        sql.Describe: _in_session(parts.show.describe),
        sql.Explain: _in_session(parts.explainer.explain),
        sql.AnalyzeStream: _alone(parts.streams.reports.analyze) if not streams_rest else _refused(
            "nothing is to be measured here: streams rest between statements"),
        sql.VerifyStream: _in_session(parts.verification.verify),
        sql.UseDatabase: _of_session(parts.databases.use),
        sql.SetQueryTimeout: _of_session(_set_query_timeout),
        sql.SetAnsiQuotes: _of_session(_set_ansi_quotes),
        sql.FlushDatabase: _alone(parts.databases.flush, parts.views.refresh),
        sql.TestConnection: _alone(parts.connections.test),
        sql.SplitVgroup: _alone(parts.splitting.split),
        sql.Delete: lambda statement, call: parts.deletes.delete(statement, call.text, call.session),
        sql.SwitchOver: lambda statement, call: _switch_over(parts.directory.member, statement.node),
        sql.Promote: lambda statement, call: _switch_over(parts.directory.member, None),
    }


def _writers(parts: EngineParts, dry_run: DryRun | None) -> dict[type[Statement], Handler]:
    """What tables must not change their vnodes beside."""
    def run_query(call: StatementCall) -> QueryRunner:
        """Returns what runs the query whose rows a statement writes: they count as those of a result do."""
        return partial(parts.queries.run, limits=call.limits)

    return {
        sql.Insert: lambda statement, call: parts.inserts.insert(
            statement, call.text, call.session, run_query(call)),
        sql.CreateTableAs: lambda statement, call: parts.tables_from_queries.create(
            statement, call.session, run_query(call)),
        sql.CheckpointStream: _of(parts.streams.known.find, parts.lifecycle.checkpoint),
        sql.StopStream: _of(parts.streams.known.find, parts.lifecycle.stop),
        sql.AlterStream: _of(parts.streams.known.find, parts.lifecycle.alter),
        sql.DryRunStream: _refused("this engine makes no dry runs") if dry_run is None else _in_session(dry_run),
    }


def _definitions(parts: EngineParts) -> dict[type[Statement], Handler]:
    """What changes databases, tables, rows, functions, users, connections and snodes."""
    return {
        sql.CreateDatabase: _alone(parts.databases.create),
        sql.AlterDatabase: _alone(parts.databases.alter),
        sql.DropDatabase: _of_session(parts.databases.drop),
        sql.TrimDatabase: _alone(parts.databases.trim),
        sql.CreateTable: _in_session(parts.tables.create),
        sql.CreateChildTables: _in_session(parts.tables.create_children),
        sql.AlterTable: _in_session(parts.alterations.alter, parts.ingests.table_altered),
        sql.DropTable: _in_session(parts.tables.drop),
        sql.CreateView: _in_session(parts.view_statements.create),
        sql.DropView: _in_session(parts.view_statements.drop),
        sql.NoteTime: _in_session(parts.time_marks.note),
        sql.CreateFunction: _alone(parts.functions.create),
        sql.DropFunction: _alone(parts.functions.drop),
        sql.CreateUser: _alone(parts.users.create),
        sql.AlterUser: _alone(parts.users.alter),
        sql.DropUser: _alone(parts.users.drop),
        sql.Grant: _in_session(parts.users.grant),
        sql.Revoke: _in_session(parts.users.revoke),
        sql.CreateConnection: _alone(parts.connections.create),
        sql.AlterConnection: _alone(parts.connections.alter),
        sql.DropConnection: _alone(parts.connections.drop),
        sql.CreateSnode: _alone(parts.snodes.create),
        sql.DropSnode: _alone(parts.snodes.drop),
    }


def _stream_changes(parts: EngineParts, *, watches: bool) -> dict[type[Statement], Handler]:
    """What changes streams and ingests. `watches`: whether what waits for new versions of streams is started."""
    streams, ingests, find_stream = parts.streams, parts.ingests, parts.streams.known.find

    def create_stream(statement: sql.CreateStream, session: Session) -> Result:
        return streams.creation.create(statement, session, parts.tables)

    def drop_stream(stream: StreamRecord, statement: sql.DropStream) -> Result:
        result = streams.removal.drop(stream, statement)
        if statement.with_table:
            parts.views.schema_changed()
        return result

    def create_ingest(statement: sql.CreateIngest, session: Session) -> Result:
        return ingests.create(statement, session, parts.tables)

    return {
        sql.CreateStream: _in_session(create_stream, parts.replacements.watch if watches else None),
        sql.DropStream: _of(find_stream, drop_stream),
        sql.PauseStream: _of(find_stream, streams.control.pause),
        sql.ResumeStream: _of(find_stream, streams.control.resume),
        sql.RecalculateStream: lambda statement, call: _of(find_stream, partial(
            streams.control.recalculate, session=call.session))(statement, call),
        sql.StartStream: _of(find_stream, parts.lifecycle.start),
        sql.DropSavepoint: _alone(parts.lifecycle.drop_savepoint),
        sql.ReplayDlq: _in_session(parts.replays.replay),
        sql.CreateIngest: _in_session(create_ingest),
        sql.AlterIngest: lambda statement, call: _of(ingests.find, partial(
            ingests.alter, session=call.session, tables=parts.tables))(statement, call),
        sql.DropIngest: _of(ingests.find, ingests.drop),
        sql.PauseIngest: _of(ingests.find, ingests.pause),
        sql.ResumeIngest: _of(ingests.find, ingests.resume),
    }


def _refuse_splits(statement: Statement) -> None:
    """Raises NotSupportedError for what would make vnodes whose logs other nodes can't follow from their begin."""
    if isinstance(statement, sql.SplitVgroup) or (
            isinstance(statement, sql.AlterDatabase) and "VGROUPS" in dict(statement.options)):
        raise NotSupportedError(
            "vgroups can't be split in a cluster",
            hint="CREATE DATABASE another one with more VGROUPS, have writers write there, and bring what was written "
                 "before by INSERT INTO other.t (tbname, ...) SELECT tbname, ... FROM t; see docs/replicas.md")


def _switch_over(member: ClusterMember | None, node: int | None) -> Result:
    """Begins to hand over to a node, or (None) to become the active one."""
    if member is None:
        raise InvalidStatementError("this engine is not in a cluster")
    if node is None:
        member.promote()
    else:
        member.switch_over(node)
    return Result()


def _kill(activity: Activity, statement: sql.KillQuery, who: Identity) -> Result:
    activity.kill(statement.number, who.name, of_anybody=who.role == "admin")
    return Result()


def _set_query_timeout(statement: sql.SetQueryTimeout, session: SessionState) -> Result:
    session.query_timeout_s = statement.timeout_s
    return Result()


def _set_ansi_quotes(statement: sql.SetAnsiQuotes, session: SessionState) -> Result:
    session.ansi_quotes = statement.is_on
    return Result()


def _alone(execute: Callable[[S], Result], afterwards: Callable[[], None] | None = None) -> Handler:
    """For statements that need nothing but themselves."""
    def in_any_session(statement: S, session: Session) -> Result:
        return execute(statement)

    return _in_session(in_any_session, afterwards)


def _in_session(execute: Callable[[S, Session], Result], afterwards: Callable[[], None] | None = None) -> Handler:
    """For statements that mean something in a session; `afterwards` is called when they are done."""

    def handle(statement: S, call: StatementCall) -> Result:
        result = execute(statement, call.session)
        if afterwards is not None:
            afterwards()
        return result

    return handle


def _of_session(execute: Callable[[S, SessionState], Result]) -> Handler:
    """For statements that change the session."""
    return lambda statement, call: execute(statement, call.state)


def _of(find: Callable[..., R | None], execute: Callable[[R, Any], Result]) -> Handler:
    """For statements on what has a name; IF EXISTS lets it be missing."""

    def handle(statement: Any, _: StatementCall) -> Result:
        found = find(statement.name, if_exists=statement.if_exists)
        return Result() if found is None else execute(found, statement)

    return handle


def _refused(why: str) -> Handler:
    def refuse(statement: Statement, call: StatementCall) -> Result:
        raise NotSupportedError(why)

    return refuse
