"""SQL and line protocol over HTTP: who asks, what is asked, and the answer as JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from itertools import chain
from typing import Protocol
from urllib.parse import parse_qsl

import pyarrow as pa

from penstock.common import errors
from penstock.common.errors import (
    InvalidStatementError,
    InvalidValueError,
    NotFoundError,
    PenstockError,
    UnauthenticatedError,
)
from penstock.mnode.access.audit_log import Origin
from penstock.mnode.access.logins import Logins, read_basic
from penstock.mnode.access.session import Result, SessionState
from penstock.mnode.catalog.name_lookup import DATABASE_MISSING
from penstock.mnode.http.http_body import RequestError
from penstock.mnode.http.http_messages import CutShort, HttpRequest, Response, Route
from penstock.mnode.http.json_rows import column_meta, json_rows
from penstock.mnode.http.partial_writes import write_what_can_be
from penstock.mnode.query.activity import OnCancel
from penstock.mnode.query.query_runner import OpenQuery
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.sql.dialect.generator import print_sql
from penstock.sql.tree.node import dissolve
from penstock.sql.tree.statements import CreateDatabase, Query, Select, SetOperation, Statement
from penstock.sql.types import INT

SQL, LOGIN = "/sql", "/login"
WRITE, QUERY, PING = (
    (f"/{name}", f"/influxdb/v1/{name}") for name in ("write", "query", "ping"))
CHALLENGE = {"WWW-Authenticate": 'Basic realm="penstock"'}
_JSON = "application/json"
_NO_CODE = 0xFFFF
_BATCH_ROWS = 2048
_AFFECTED = (f'{{"code":0,"column_meta":[["affected_rows","{INT.kind}",{INT.width()}]],"data":[[%d]],"rows":1}}\n'
             .encode())
_PRECISIONS = {"n": "ns", "u": "us", "µ": "us"}
_CREATE_DATABASE = re.compile(
    r'\s*CREATE\s+DATABASE\s+(?:"(?P<quoted>(?:[^"\\]|\\.)+)"|(?P<plain>\w+))(?:\s+WITH\s.*)?\s*;?\s*',
    re.IGNORECASE | re.DOTALL)
_STATUSES: tuple[tuple[type[PenstockError], HTTPStatus], ...] = (
    (errors.UnauthenticatedError, HTTPStatus.UNAUTHORIZED),
    (errors.LoginDelayedError, HTTPStatus.TOO_MANY_REQUESTS),
    (errors.PermissionDeniedError, HTTPStatus.FORBIDDEN),
    (errors.NotFoundError, HTTPStatus.NOT_FOUND),
    (errors.AlreadyExistsError, HTTPStatus.CONFLICT),
    (errors.InUseError, HTTPStatus.CONFLICT),
    (errors.SqlSyntaxError, HTTPStatus.BAD_REQUEST),
    (errors.InvalidStatementError, HTTPStatus.BAD_REQUEST),
    (errors.InvalidValueError, HTTPStatus.BAD_REQUEST),
    (errors.NotSupportedError, HTTPStatus.BAD_REQUEST),
    (errors.UserFunctionError, HTTPStatus.BAD_REQUEST),
    (errors.LimitExceededError, HTTPStatus.BAD_REQUEST),
    (errors.CancelledError, HTTPStatus.BAD_REQUEST),
)


class Statements(Protocol):
    """What an engine does with statements and with lines."""

    def execute(self, text: str, state: SessionState, /) -> Result: ...

    def insert_rows(self, text: str, state: SessionState, /) -> Result | None: ...

    def read(self, text: str, state: SessionState, /) -> Statement: ...

    def execute_parsed(
        self, statement: Statement, text: str, state: SessionState, on_cancel: OnCancel | None, /
    ) -> Result: ...

    def open_query(
        self, query: Query, text: str, state: SessionState, on_cancel: OnCancel | None, /
    ) -> AbstractContextManager[OpenQuery]: ...

    def ingest_lines(
        self, data: bytes, database: str, precision: str, state: SessionState, /, *, first_line: int = 1
    ) -> int: ...


@dataclass(frozen=True, slots=True)
class _Call:
    """A place whose errors are JSON."""

    methods: tuple[str, ...]
    make: Callable[[HttpRequest], Response]

    def answer(self, request: HttpRequest) -> Response:
        try:
            return self.make(request)
        except PenstockError as error:
            status = status_of(error)
            headers = CHALLENGE if status == HTTPStatus.UNAUTHORIZED else {}
            if isinstance(error, errors.LoginDelayedError):
                headers = {"Retry-After": str(math.ceil(error.retry_after_s))}
            return _failure(status, error.code or _NO_CODE, str(error), headers)
        except RequestError as error:
            return _failure(error.status, _NO_CODE, error.text, {})


class Rest:
    """The routes of SQL, of line protocol as InfluxDB's clients send it, and of logins."""

    def __init__(self, engine: Statements, logins: Logins, time_zone: str, size_max: int) -> None:
        """`time_zone` is that of the sessions, `size_max` the bound of a request's body in bytes."""
        self._engine = engine
        self._logins = logins
        self._time_zone = time_zone
        self._size_max = size_max

    def routes(self) -> dict[str, Route]:
        sql, write, query = (_Call(("POST",), answer) for answer in (self._sql, self._write, self._query))
        return {
            SQL: sql, f"{SQL}/": sql, LOGIN: _Call(("POST",), self._login),
            **dict.fromkeys(WRITE, write), **dict.fromkeys(QUERY, query),
            **dict.fromkeys(PING, _Call(("GET", "HEAD"), _pong)),
        }

    def _sql(self, request: HttpRequest) -> Response:
        """Executes the statement in the body; what follows /sql/ is the database."""
        state = self._session(request, request.path.removeprefix(SQL).strip("/") or None)
        text = _text(request.read_body(self._size_max))
        written = self._engine.insert_rows(text, state)
        if written is not None:
            return _affected(written.affected)
        statement = self._engine.read(text, state)
        if isinstance(statement, Select | SetOperation) and statement.into_file is None:
            rows = _Streamed(self._engine.open_query(statement, text, state, request.on_gone))
            dissolve(statement)
            return Response(HTTPStatus.OK, rows, _JSON)
        result = self._engine.execute_parsed(statement, text, state, request.on_gone)
        if result.table is None:
            return _affected(result.affected)
        return Response(HTTPStatus.OK, _document(result.columns, result.table.to_batches()), _JSON)

    def _write(self, request: HttpRequest) -> Response:
        """Writes the lines in the body, and says which are wrong, if some are."""
        database = request.query.get("db")
        state = self._session(request, database)
        if not database:
            raise InvalidStatementError("the database is missing", hint="name it: /write?db=name")
        precision = request.query.get("precision") or "ns"
        lines = request.read_body(self._size_max)
        unit = _PRECISIONS.get(precision, precision)
        try:
            dropped = write_what_can_be(lines, lambda data, first_line: self._engine.ingest_lines(
                data, database, unit, state, first_line=first_line))
        except NotFoundError as error:
            if error.code != DATABASE_MISSING:
                raise
            # These words tell clients of InfluxDB to create it and to send the lines again.
            raise NotFoundError(f'database not found: "{database}"', code=error.code, hint=error.hint) from error
        if dropped is not None:
            raise InvalidValueError(f"partial write: {dropped.error.message} dropped={dropped.lines}",
                                    code=dropped.error.code, hint=dropped.error.hint)
        return Response(HTTPStatus.NO_CONTENT)

    def _query(self, request: HttpRequest) -> Response:
        """Creates a database, the one statement of InfluxDB's that those send who write."""
        state = self._session(request, None)
        form = dict(parse_qsl(_text(request.read_body(self._size_max)), keep_blank_values=True))
        text = form.get("q") or request.query.get("q", "")
        found = _CREATE_DATABASE.fullmatch(text)
        if found is None:
            raise InvalidStatementError("of InfluxDB's statements only CREATE DATABASE is known",
                                        hint=f"POST {SQL} takes Penstock's")
        name = found["plain"] or re.sub(r"\\(.)", r"\1", found["quoted"])
        # Lines have nanoseconds: what comes in must not be cut off.
        create = CreateDatabase(name, (("PRECISION", "ns"),), if_not_exists=True)
        self._engine.execute(print_sql(create), state)
        return _document_answer(HTTPStatus.OK, {"results": [{"statement_id": 0}]})

    def _login(self, request: HttpRequest) -> Response:
        """Gives a token for the user and the password of a Basic Authorization."""
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            raise UnauthenticatedError("user and password are needed", hint="send Authorization: Basic")
        with self._logins.noting(Origin("http", request.address)) as note:
            token = self._logins.login(*read_basic(credentials.strip()), request.address)
            note(token.user)
        request.logged_in()
        return _document_answer(HTTPStatus.OK, {"code": 0, "token": token.text, "lifetime_s": token.lifetime_s})

    def _session(self, request: HttpRequest, database: str | None) -> SessionState:
        header, origin = request.headers.get("authorization"), Origin("http", request.address)
        with self._logins.noting(origin, header or "") as note:
            identity = self._logins.authorize(header, origin.address)
            note(identity.name)
        request.logged_in()
        return SessionState(self._time_zone, database, identity, origin=origin)


def _affected(rows: int) -> Response:
    """Returns the answer to a statement that has no rows but changes some."""
    return Response(HTTPStatus.OK, _AFFECTED % rows, _JSON)


def status_of(error: PenstockError) -> HTTPStatus:
    """Returns the status that says who is to act: 4xx the client, 503 nobody but later, 500 the operator."""
    known = next((status for kind, status in _STATUSES if isinstance(error, kind)), None)
    if known is not None:
        return known
    return HTTPStatus.SERVICE_UNAVAILABLE if error.retry else HTTPStatus.INTERNAL_SERVER_ERROR


class _Streamed:
    """The document of a query's rows, which is made as it is sent; the query runs until `close`.

    What goes wrong before the first rows are there is raised by the constructor. Later, the document breaks off, and a
    line with the error follows: it is no JSON then, and the answer isn't complete in the sense of HTTP either.
    """

    def __init__(self, query: AbstractContextManager[OpenQuery]) -> None:
        self._stack = ExitStack()
        try:
            opened = self._stack.enter_context(query)
            batches = opened.batches(_BATCH_ROWS)
            first = next(batches, None)
        except BaseException:
            self.close()
            raise
        self._pieces = _document(opened.columns, () if first is None else chain([first], batches))

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._pieces
        except PenstockError as error:
            raise CutShort(f"\n{json.dumps(_told(error.code or _NO_CODE, str(error)))}\n".encode()) from error

    def close(self) -> None:
        """Ends the query."""
        self._stack.close()


def _document(columns: Sequence[ResultColumn], batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Yields the JSON document of a result."""
    rows = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in batches:
            rows += batch.num_rows
            yield batch

    meta = json.dumps(column_meta(columns), ensure_ascii=False)
    yield f'{{"code":0,"column_meta":{meta},"data":['.encode()
    yield from json_rows(columns, counted())
    yield f'],"rows":{rows}}}\n'.encode()


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"the body is not UTF-8 text: {error.reason}") from error


def _pong(request: HttpRequest) -> Response:
    """Says what InfluxDB's clients want to hear before they write."""
    return Response(HTTPStatus.NO_CONTENT, headers={"X-Influxdb-Version": "1.8"})


def _failure(status: HTTPStatus, code: int, text: str, headers: dict[str, str]) -> Response:
    return _document_answer(status, _told(code, text), headers)


def _told(code: int, text: str) -> dict[str, object]:
    # `desc` is what clients of SQL read, `error` what those of line protocol do, `results` those who create databases.
    return {"code": code, "desc": text, "error": text, "results": [{"statement_id": 0, "error": text}]}


def _document_answer(
    status: HTTPStatus, document: dict[str, object], headers: dict[str, str] | None = None
) -> Response:
    return Response(status, f"{json.dumps(document, ensure_ascii=False)}\n".encode(), _JSON, headers or {})
