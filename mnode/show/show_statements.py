"""SHOW and DESCRIBE: system tables cut down to what was asked for, and statements that would create an object again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import pyarrow.compute as pc

from penstock.common.errors import InvalidStatementError, NotFoundError, NotSupportedError
from penstock.common.suggestions import did_you_mean
from penstock.mnode.access.session import Result, rows_result
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.name_lookup import (
    NO_DATABASE,
    require_database,
    require_table,
    require_view,
    table_missing,
)
from penstock.mnode.catalog.system_schema import DATABASES, INFORMATION_SCHEMA, PERFORMANCE_SCHEMA, SCHEMAS
from penstock.mnode.ddl.database_options import effective_options
from penstock.mnode.ddl.table_statements import require_super
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.mnode.query.view_tables import view_table
from penstock.mnode.show.system_tables import SystemTables
from penstock.mnode.show.table_rows import tag_rows
from penstock.planner.streams.stream_time import kept_defaults
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.sql.cuts import cut_text
from penstock.sql.dialect.create_statements import database_statement, table_statement, view_statement
from penstock.sql.dialect.generator import print_sql, print_view
from penstock.sql.dialect.parser import parse_one
from penstock.sql.dialect.stream_options import altered, given
from penstock.sql.rights import GrantObject
from penstock.sql.schema import Database, Session, Table
from penstock.sql.tree.statements import CreateDatabase, CreateStream, Describe, Name, Show
from penstock.sql.types import DataType, Kind

# SHOW <what>: (system database, table, columns with the names they get). All rows are shown.
_WHOLE: dict[str, tuple[str, str]] = {
    "streams": (INFORMATION_SCHEMA, "ins_streams"),
    "ingests": (INFORMATION_SCHEMA, "ins_ingests"),
    "stream tasks": (INFORMATION_SCHEMA, "ins_stream_tasks"),
    "workers": (INFORMATION_SCHEMA, "ins_stream_workers"),
    "watermarks": (INFORMATION_SCHEMA, "ins_watermarks"),
    "late rows": (INFORMATION_SCHEMA, "ins_late_rows"),
    "incidents": (INFORMATION_SCHEMA, "ins_stream_incidents"),
    "vnodes": (INFORMATION_SCHEMA, "ins_vnodes"),
    "snodes": (INFORMATION_SCHEMA, "ins_snodes"),
    "dnodes": (INFORMATION_SCHEMA, "ins_dnodes"),
    "mnodes": (INFORMATION_SCHEMA, "ins_mnodes"),
    "cluster": (INFORMATION_SCHEMA, "ins_cluster"),
    "users": (INFORMATION_SCHEMA, "ins_users"),
    "grants": (INFORMATION_SCHEMA, "ins_user_privileges"),
    "functions": (INFORMATION_SCHEMA, "ins_functions"),
    "variables": (INFORMATION_SCHEMA, "ins_configs"),
    "cluster variables": (INFORMATION_SCHEMA, "ins_configs"),
    "local variables": (INFORMATION_SCHEMA, "ins_configs"),
    "connections": (INFORMATION_SCHEMA, "ins_connections"),
    "queries": (PERFORMANCE_SCHEMA, "perf_queries"),
}

_STREAM_LINE = (
    "stream_name", "state", "verdict", "reason", "since", "source_db", "target_db", "target_table", "trigger",
    "guarantee", "delivery", "rows_in", "rows_out", "late_rows", "lag", "event_time_watermark", "checkpoint_id",
    "checkpoint_time", "blocked_by", "attempt", "restarts", "history", "last_audit", "mismatches", "create_time",
    "status", "sql",
)
_TASK_LINE = (
    "stream_name", "task_id", "level", "node_id", "state", "reason", "since", "blocked_by", "starved_percent",
    "busy_percent", "blocked_percent", "blocked_seconds", "rows_in", "rows_out",
    "rows_per_turn", "gathering_ms",
    "in_queue", "lag", "event_time_watermark", "idle", "late_rows", "processed_version", "wal_version", "wal_access",
    "status", "history", "worker_group", "placement",
)
_QUEUE_LINE = (
    "stream_name", "task_id", "state", "blocked_by", "blocked_seconds", "blocked_percent",
    "input_bytes", "input_capacity", "input_peak", "output_bytes", "output_capacity", "output_peak", "aside_bytes",
)


class ShowStatements:
    """Executes SHOW and DESCRIBE."""

    def __init__(self, catalog: Catalog, storage: Storage, tables: SystemTables) -> None:
        self._catalog = catalog
        self._storage = storage
        self._tables = tables
        self._special: dict[str, Callable[[Show, Session], Result]] = {
            "databases": lambda show, session: self._databases(show, session, (*DATABASES,), users=True),
            "user databases": lambda show, session: self._databases(show, session, (), users=True),
            "system databases": lambda show, session: self._databases(show, session, (*DATABASES,), users=False),
            "streams": lambda show, session: self._system("ins_streams", show, session, _STREAM_LINE),
            "stream tasks": lambda show, session: self._system("ins_stream_tasks", show, session, _TASK_LINE),
            "queues": lambda show, session: self._system("ins_stream_tasks", show, session, _QUEUE_LINE),
            "checkpoints": lambda show, session: self._of_stream("ins_stream_checkpoints", show, session),
            "savepoints": lambda show, session: self._of_stream("ins_stream_savepoints", show, session),
            "stables": self._stables,
            "tables": self._table_list,
            "normal tables": self._table_list,
            "child tables": self._table_list,
            "views": self._views,
            "vgroups": self._vgroups,
            "cut": self._cut,
            "tags": self._tags,
            "table tags": self._table_tags,
            "table distributed": self._distributed,
            "indexes": self._indexes,
            "create database": self._create_database,
            "create table": self._create_table,
            "create stable": self._create_table,
            "create view": self._create_view,
            "create stream": self._create_stream,
        }

    def show(self, statement: Show, session: Session) -> Result:
        special = self._special.get(statement.what)
        if special is not None:
            return special(statement, session)
        whole = _WHOLE.get(statement.what)
        if whole is None:
            raise NotSupportedError(f"SHOW {statement.what.upper()} is not supported: Penstock has none of these")
        return _like(self._read(*whole, session), statement.like)

    def describe(self, statement: Describe, session: Session) -> Result:
        """Returns field, type, length, note, and comment, one row per column and tag."""
        view = self._catalog.view(statement.name.database or session.database or "", statement.name.name)
        table = (require_table(statement.name, session, self._catalog) if view is None
                 else view_table(view, self._catalog))
        rows = []
        for column in (*table.columns, *table.tags):
            note = "TAG" if column in table.tags else "PRIMARY KEY" if column.primary_key else ""
            rows.append((column.name, str(column.type.kind), column.type.width(), note, column.comment or ""))
        return rows_result((("field", _TEXT), ("type", _TEXT), ("length", _INTEGER), ("note", _TEXT),
                        ("comment", _TEXT)), rows)

    # --- lists -------------------------------------------------------------------------------------------------

    def _read(
        self, database: str, name: str, session: Session, columns: Sequence[str] | None = None
    ) -> Result:
        types = dict(SCHEMAS[database][name])
        wanted = list(types) if columns is None else list(columns)
        table = self._tables.read(database, name, wanted, session)
        return Result(tuple(ResultColumn(column, types[column]) for column in wanted), table)

    def _system(self, name: str, show: Show, session: Session, columns: Sequence[str]) -> Result:
        return _like(self._read(INFORMATION_SCHEMA, name, session, columns), show.like)

    def _of_stream(self, name: str, show: Show, session: Session) -> Result:
        """Returns the rows of a system table, of one stream if FOR names it."""
        result = self._read(INFORMATION_SCHEMA, name, session)
        if show.table is not None:
            wanted = show.table.name
            if self._catalog.streams.named(wanted) is None:
                raise NotFoundError(f"stream {wanted} does not exist", code=0x03F1,
                                    hint=did_you_mean(wanted, (stream.name for stream in self._catalog.streams.all())))
            assert result.table is not None
            result = Result(result.columns, result.table.filter(pc.equal(result.table.column("stream_name"), wanted)))
        return _like(result, show.like)

    def _databases(self, show: Show, session: Session, system: tuple[str, ...], *, users: bool) -> Result:
        known = (database.name for database in self._catalog.databases()) if users else ()
        names = [*system, *filter(session.rights.touch_database, known)]
        return _like(rows_result((("name", _TEXT),), [(name,) for name in names]), show.like)

    def _database_name(self, show: Show, session: Session) -> str:
        name = show.database or session.database
        if name is None:
            raise InvalidStatementError("no database is in use", code=NO_DATABASE, hint="USE a database")
        return require_database(name, self._catalog).name

    def _seen(self, database: str, kind: Literal["super", "normal"], session: Session) -> Iterator[Table]:
        """Yields the tables that somebody has any right on."""
        for table in self._catalog.tables(database, kind):
            if session.rights.touch(GrantObject("table", table.name, database)):
                yield table

    def _stables(self, show: Show, session: Session) -> Result:
        database = self._database_name(show, session)
        rows = [(table.name, table.create_time_ms, len(table.columns), len(table.tags),
                 self._catalog.child_count(table.uid), table.comment)
                for table in self._seen(database, "super", session)]
        return _like(rows_result((("stable_name", _TEXT), ("create_time", _TIME), ("columns", _INTEGER),
                              ("tags", _INTEGER), ("ntables", _LONG), ("table_comment", _TEXT)), rows), show.like)

    def _table_list(self, show: Show, session: Session) -> Result:
        database = self._database_name(show, session)
        rows: list[tuple[object, ...]] = []
        if database in DATABASES:
            rows = [(name, None, len(columns), None, None, "SYSTEM_TABLE")
                    for name, columns in SCHEMAS[database].items()]
        if show.what != "normal tables":
            for table in self._seen(database, "super", session):
                rows += [(child.name, child.create_time_ms, len(table.columns), table.name, child.vgroup_id,
                          "CHILD_TABLE") for child in self._catalog.children(table.uid)]
        if show.what != "child tables":
            rows += [(table.name, table.create_time_ms, len(table.columns), None, table.vgroup_id, "NORMAL_TABLE")
                     for table in self._seen(database, "normal", session)]
        return _like(rows_result((("table_name", _TEXT), ("create_time", _TIME), ("columns", _INTEGER),
                              ("stable_name", _TEXT), ("vgroup_id", _INTEGER), ("type", _TEXT)), rows), show.like)

    def _views(self, show: Show, session: Session) -> Result:
        result = self._read(INFORMATION_SCHEMA, "ins_views", session)
        assert result.table is not None
        chosen = result.table.filter(pc.equal(result.table.column("db_name"), self._database_name(show, session)))
        return _like(Result(result.columns, chosen), show.like)

    def _vgroups(self, show: Show, session: Session) -> Result:
        result = self._read(INFORMATION_SCHEMA, "ins_vgroups", session)
        database = show.database or session.database
        if database is None:
            return result
        name = require_database(database, self._catalog).name
        assert result.table is not None
        return Result(result.columns, result.table.filter(pc.equal(result.table.column("db_name"), name)))

    def _cut(self, show: Show, session: Session) -> Result:
        """Returns the stream cut of now: what BETWEEN CUT takes."""
        name = self._database_name(show, session)
        database = require_database(name, self._catalog)
        return rows_result((("database", _TEXT), ("cut", _TEXT)),
                       [(name, cut_text(tuple(self._storage.whole_writes.cut(database.vgroup_ids).items())))])

    # --- tags --------------------------------------------------------------------------------------------------

    def _named(self, show: Show, session: Session) -> tuple[Name, Table]:
        assert show.table is not None
        return show.table, require_table(show.table, session, self._catalog)

    def _tags(self, show: Show, session: Session) -> Result:
        name, table = self._named(show, session)
        if table.kind != "child":
            raise InvalidStatementError(f"{name} is not a child table: it has no tag values",
                                        hint="SHOW TABLE TAGS FROM a super table")
        database = require_database(table.database, self._catalog)
        assert table.super_uid is not None
        parent = self._catalog.table_by_uid(table.super_uid)
        child = self._catalog.child_by_uid(table.super_uid, table.uid)
        if parent is None or child is None:
            raise table_missing(name, session, self._catalog)
        columns = SCHEMAS[INFORMATION_SCHEMA]["ins_tags"]
        rows = [tuple(row[column] for column, _ in columns) for row in tag_rows(database, parent, child)]
        return rows_result(columns, rows)

    def _table_tags(self, show: Show, session: Session) -> Result:
        name, table = self._named(show, session)
        require_super(table, name)
        rows = [(child.name, *child.tag_values) for child in self._catalog.children(table.uid)]
        return rows_result((("tbname", _TEXT), *((tag.name, tag.type) for tag in table.tags)), rows)

    def _indexes(self, show: Show, session: Session) -> Result:
        self._named(show, session)
        return self._read(INFORMATION_SCHEMA, "ins_indexes", session)

    def _distributed(self, show: Show, session: Session) -> Result:
        """Returns how the rows of a table lie in the vnodes; `rows` may count replaced ones too."""
        name, table = self._named(show, session)
        if table.kind == "system":
            raise InvalidStatementError(f"{name} is a system table")
        database = require_database(table.database, self._catalog)
        vgroups = database.vgroup_ids if table.vgroup_id is None else (table.vgroup_id,)
        counts: dict[int, int] = dict.fromkeys(vgroups, 0)
        for child in self._catalog.children(table.storage_uid):
            if child.vgroup_id in counts:
                counts[child.vgroup_id] += 1
        rows = [(vgroup, counts[vgroup], self._storage.snapshot(vgroup, table.storage_uid).row_count_estimate)
                for vgroup in vgroups]
        return rows_result((("vgroup_id", _INTEGER), ("tables", _LONG), ("rows", _LONG)), rows)

    # --- SHOW CREATE -------------------------------------------------------------------------------------------

    def _create_database(self, show: Show, session: Session) -> Result:
        database = require_database(show.database or "", self._catalog)
        text = print_sql(create_database_statement(database))
        return rows_result((("Database", _TEXT), ("Create Database", _TEXT)), [(database.name, text)])

    def _create_table(self, show: Show, session: Session) -> Result:
        name, table = self._named(show, session)
        if show.what == "create stable" or table.kind == "super":
            require_super(table, name)
        if table.kind == "system":
            raise InvalidStatementError(f"{name} is a system table")
        text = print_sql(table_statement(table))
        return rows_result((("Table", _TEXT), ("Create Table", _TEXT)), [(table.name, text)])

    def _create_view(self, show: Show, session: Session) -> Result:
        assert show.table is not None
        view = require_view(show.table, session, self._catalog)
        return rows_result((("View", _TEXT), ("Create View", _TEXT)), [(view.name, print_view(view_statement(view)))])

    def _create_stream(self, show: Show, session: Session) -> Result:
        assert show.table is not None
        stream = self._catalog.streams.named(show.table.name)
        if stream is None:
            raise NotFoundError(f"stream {show.table.name} does not exist", code=0x03F1,
                                hint=did_you_mean(show.table.name, (s.name for s in self._catalog.streams.all())))
        statement = parse_one(stream.asked.text)
        assert isinstance(statement, CreateStream)
        kept = kept_defaults(statement, stream.asked.defaults)
        text = altered(statement, kept) if given(kept) else stream.asked.text
        return rows_result((("Stream", _TEXT), ("Create Stream", _TEXT)), [(stream.name, text)])


def create_database_statement(database: Database) -> CreateDatabase:
    """Returns the statement that makes a database with all of its options."""
    return database_statement(database.name, effective_options(database.options))


_TEXT, _INTEGER, _LONG = DataType(Kind.VARCHAR), DataType(Kind.INT), DataType(Kind.BIGINT)
_TIME = DataType(Kind.TIMESTAMP)


def _like(result: Result, pattern: str | None) -> Result:
    """Keeps the rows whose first column is LIKE the pattern: `%`, `_`, backslash escapes, case counts."""
    if pattern is None or result.table is None:
        return result
    matches = pc.match_like(result.table.column(0), pattern)
    return Result(result.columns, result.table.filter(matches))
