"""Reads and plans a query in the process of the queries, where its Python holds up no stream."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from penstock.common.connection import ExternalConnection
from penstock.common.errors import InternalError, InvalidStatementError
from penstock.mnode.query.plan_messages import (
    CatalogAnswer,
    PlannedQuery,
    PlanRequest,
    Question,
    decode_answer,
    encode_question,
)
from penstock.mnode.query.query_frames import ANSWER, PLANNED, QUESTION, receive_frame, send_frame
from penstock.planner.query.batch_plan import BatchPlan
from penstock.planner.query.select import plan_query
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import ChildTable, Database, Table, UserFunction, View
from penstock.sql.tree.statements import Query


def plan_for_engine(connection: socket.socket, request: bytes) -> BatchPlan:
    """Returns the plan of a query, of which the engine is told what it must know; it answers the planner's questions.

    Raises PenstockErrors, and OSError if the engine has hung up.
    """
    asked = PlanRequest.decode(request)
    statement = parse_one(asked.text, asked.words_max)
    if not isinstance(statement, Query) or statement.into_file is not None:
        raise InvalidStatementError("a query is expected", hint="send other statements in less than 16 KiB")
    plan = plan_query(statement, AskedCatalog(connection), asked.session)
    send_frame(connection, PLANNED, PlannedQuery(plan.scans, plan.columns).encode())
    return plan


class AskedCatalog:
    """The engine's catalog, asked over a connection. What the engine rather plans itself it answers by hanging up."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._answers: dict[tuple[str, ...], CatalogAnswer] = {}

    def database(self, name: str) -> Database | None:
        return self._ask("database", name).database

    def database_names(self) -> Iterable[str]:
        return self._ask("database_names").names

    def table(self, database: str, name: str) -> Table | None:
        return self._ask("table", database, name).table

    def view(self, database: str, name: str) -> View | None:
        self._ask("table", database, name)  # the engine plans queries that read views
        return None

    def table_names(self, database: str) -> Iterable[str]:
        return self._ask("table_names", database).names

    def children(self, super_uid: int) -> Iterable[ChildTable]:
        return self._ask("children", str(super_uid)).children

    def function(self, name: str) -> UserFunction | None:
        self._ask("function", name)
        return None

    def external_connection(self, name: str) -> ExternalConnection | None:
        self._ask("connection", name)
        return None

    def external_connection_names(self) -> Iterable[str]:
        return self._ask("connection_names").names

    def external_table(self, connection: str, name: str) -> Table:
        raise InternalError(f"table {name} of connection {connection} isn't planned here")

    def _ask(self, question: Question, *names: str) -> CatalogAnswer:
        known = self._answers.get((question, *names))
        if known is not None:
            return known
        send_frame(self._connection, QUESTION, encode_question(question, names))
        frame = receive_frame(self._connection)
        if frame is None:
            raise ConnectionError("the engine has hung up")
        if frame.kind != ANSWER:
            raise InternalError(f"a frame of kind {frame.kind} where an answer of the catalog belongs")
        answer = self._answers[question, *names] = decode_answer(frame.data)
        return answer
