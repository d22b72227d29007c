"""Queries with long texts: the process of the queries reads and plans them, and asks the engine for what it must know.

Reading and planning them is Python for tenths of seconds, which would hold up everything else in the engine.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import pyarrow as pa

from penstock.common.errors import InternalError
from penstock.common.responsiveness import LONG_TEXT
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.query.activity import Running
from penstock.mnode.query.plan_messages import (
    CatalogAnswer,
    PlannedQuery,
    PlanRequest,
    Question,
    decode_question,
    encode_answer,
)
from penstock.mnode.query.process_backend import ProcessBackend, ProcessRun, gone, hang_up
from penstock.mnode.query.query_execution import QueryRun, RunnableQuery
from penstock.mnode.query.query_frames import (
    ANSWER,
    ERROR,
    PLAN,
    PLANNED,
    QUESTION,
    decode_error,
    receive_frame,
    send_frame,
)
from penstock.planner.logical.operators import Scan
from penstock.planner.query.batch_plan import relations_sql
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.planner.task_plans.user_calls import UserCall
from penstock.sql.schema import ChildTable, Session, Table
from penstock.sql.tree.statements import Query, Statement

_QUERY = re.compile(r"[\s(]*(SELECT|WITH)\b", re.IGNORECASE)
_CHILDREN_MAX = 10_000


@dataclass(frozen=True, slots=True)
class QueryPermission:
    """Lets a query that nobody has read yet be executed; both raise PermissionDeniedError.

    `read_table` takes each database and table that the process asks for, None for a table: to know of the database.
    `execute` takes the whole query, if the engine has to read it itself.
    """

    read_table: Callable[[str, str | None], None]
    execute: Callable[[Query], None]


class UnreadQuery(Statement):
    """The text of a query that nobody has read yet. `words_max`: how many words it may have; None: any number."""

    source_text: str
    words_max: int | None = None


def is_long_query(text: str) -> bool:
    """Tells whether a statement is a query with a long text, to look at: what is wrong in it, reading finds."""
    return len(text) >= LONG_TEXT and _QUERY.match(text) is not None and ">>" not in text


def gives_rows(statement: Statement) -> TypeGuard[Query | UnreadQuery]:
    """Tells whether a statement is a query whose rows go to who has sent it, not into a file."""
    return isinstance(statement, UnreadQuery) or (
        isinstance(statement, Query) and statement.into_file is None)


class PlannedHere(Exception):
    """The query has something that only the engine plans: code of users, tables of other servers, many child tables,
    or views.
    """


class ProcessPlan:
    """A query that the process has planned, and waits there for its rows; a `with` block lets go of it.

    It is the plan and where to run it, once.
    """

    tables: tuple[tuple[str, pa.Table], ...] = ()
    functions: tuple[UserCall, ...] = ()

    def __init__(
        self, backend: ProcessBackend, catalog: Catalog, permission: QueryPermission, running: Running
    ) -> None:
        """`running`: what ends it ends planning."""
        self._catalog = catalog
        self._permission = permission
        self._running = running
        self._lock = threading.Lock()
        self._told: dict[tuple[str, str], Table] = {}
        self._planned = PlannedQuery((), ())
        self._connection: socket.socket | None = backend.connect(None)

    @property
    def scans(self) -> Sequence[Scan]:
        return self._planned.scans

    @property
    def columns(self) -> tuple[ResultColumn, ...]:
        return self._planned.columns

    def sql_over(self, relations: Sequence[tuple[str, str]]) -> str:
        """Returns what the process lacks of the SQL."""
        return relations_sql(relations)

    def open(self, query: RunnableQuery) -> QueryRun:
        return ProcessRun(self._handed_over, query)

    def __enter__(self) -> ProcessPlan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the query, unless it runs."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def plan(self, query: UnreadQuery, session: Session) -> None:
        """Has the query planned. Raises what parsing and planning raise, and PlannedHere."""
        connection = self._connection
        assert connection is not None
        self._running.hold(self._interrupt)
        try:
            send_frame(connection, PLAN, PlanRequest.of(query.source_text, query.words_max, session).encode())
            while (frame := receive_frame(connection)) is not None:
                if frame.kind == QUESTION:
                    send_frame(connection, ANSWER, encode_answer(self._answer(*decode_question(frame.data))))
                elif frame.kind == PLANNED:
                    planned = PlannedQuery.decode(frame.data)
                    self._planned = replace(planned, scans=tuple(map(self._known, planned.scans)))
                    return
                elif frame.kind == ERROR:
                    raise decode_error(frame.data)
                else:
                    raise InternalError(f"a frame of kind {frame.kind} where a plan belongs")
        except OSError as error:
            self._running.check()
            raise gone() from error
        finally:
            self._running.let_go(self._interrupt)
        self._running.check()
        raise gone()

    def _answer(self, question: Question, names: Sequence[str]) -> CatalogAnswer:
        """Returns what the user may know of the catalog. Raises PermissionDeniedError, PlannedHere."""
        catalog = self._catalog
        match question, names:
            case "database", [name]:
                self._permission.read_table(name, None)
                return CatalogAnswer(database=catalog.database(name))
            case "database_names", []:
                return CatalogAnswer(names=tuple(catalog.database_names()))
            case "table", [database, name]:
                self._permission.read_table(database, name)
                if catalog.view(database, name) is not None:
                    raise PlannedHere
                table = catalog.table(database, name)
                if table is not None:
                    self._told[table.database, table.name] = table
                return CatalogAnswer(table=table)
            case "table_names", [database]:
                self._permission.read_table(database, None)
                return CatalogAnswer(names=tuple(catalog.table_names(database)))
            case "children", [uid]:
                return CatalogAnswer(children=tuple(self._children(uid)))
            case "function", [name] if catalog.function(name) is None:
                return CatalogAnswer()
            case "connection", [name] if catalog.external_connection(name) is None:
                return CatalogAnswer()
            case "connection_names", []:
                return CatalogAnswer(names=tuple(catalog.external_connection_names()))
        raise PlannedHere

    def _children(self, uid: str) -> Sequence[ChildTable]:
        if not any(str(table.uid) == uid for table in self._told.values()):
            raise InternalError("a query's plan asks for child tables of a table that it doesn't read")
        children = list(self._catalog.children(int(uid)))
        if len(children) > _CHILDREN_MAX:
            raise PlannedHere
        return children

    def _known(self, scan: Scan) -> Scan:
        """Returns the scan with the table as the catalog has it, which the user may read."""
        table = self._told.get((scan.table.database, scan.table.name))
        if table is None:
            raise InternalError("a query's plan reads a table that it didn't ask for")
        return replace(scan, table=table)

    def _handed_over(self, memory: int | None) -> socket.socket:
        """Returns the connection, over which the process has got this memory; it is the caller's now."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is None:
            raise InternalError("a query that was planned for one run runs again")
        try:
            if memory is None:
                connection.sendall(b"\0")
            else:
                socket.send_fds(connection, [b"\0"], [memory])
        except OSError as error:
            connection.close()
            raise gone() from error
        return connection

    def _interrupt(self) -> None:
        with self._lock:
            if self._connection is not None:
                hang_up(self._connection)
