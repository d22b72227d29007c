"""Answers in JSON: of statements with and without rows, and of errors, each with the status that says who is to act."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from http import HTTPStatus
from itertools import chain
from typing import Protocol

from penstock.common import errors
from penstock.common.errors import PenstockError
from penstock.mnode.access.session import Result, SessionState
from penstock.mnode.http.gathered_requests import Begun, GatheredRequests
from penstock.mnode.http.http_body import RequestError
from penstock.mnode.http.http_messages import CutShort, HttpRequest, Response
from penstock.mnode.http.http_sessions import HttpSessions
from penstock.mnode.query.activity import OnCancel
from penstock.mnode.query.json_rows import UTC_ROWS, JsonRows, RowStyle, json_rows
from penstock.mnode.query.query_runner import OpenQuery
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.sql.tree.statements import Query, Statement
from penstock.sql.types import INT, VARCHAR, DataType, Kind

CHALLENGE = {"WWW-Authenticate": 'Basic realm="penstock"'}
JSON = "application/json"
_REFUSAL_S = 1.0
"""How long the answer to a login that comes too early takes: who tries again and again does so no more often."""
NO_CODE = 0xFFFF
_BATCH_ROWS = 2048
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

    @property
    def lag_s(self) -> float | None: ...

    @property
    def gathered(self) -> GatheredRequests: ...

    def begin_insert(self, text: str, state: SessionState, /) -> Begun | None: ...

    def begin_lines(self, data: bytes, database: str, precision: str, state: SessionState, /) -> Begun | None: ...

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
class EngineRoutes:
    """Routes on which an engine is asked. `size_max` is the bound of a request's body in bytes."""

    engine: Statements
    sessions: HttpSessions
    size_max: int


LAG = "Penstock-Lag-Seconds"
"""The header of rows from a node of a cluster that isn't active: how old they may be."""
Failure = PenstockError | RequestError
Begin = Callable[[HttpRequest], tuple[Begun, Response] | None]
"""Begins what a request asks for, if that is simple; with the answer once that is acknowledged."""
TellError = Callable[[HTTPStatus, Failure], dict[str, object]]
"""Returns the document that tells clients of an error, whose answer has this status."""


def tell(status: HTTPStatus, error: Failure) -> dict[str, object]:
    """Tells in words that several clients read: `desc` those of SQL, `error` those of line protocol, `results` those
    who create databases.
    """
    text = str(error)
    return {"code": error.code or NO_CODE, "desc": text, "error": text, "results": [{"statement_id": 0, "error": text}]}


@dataclass(frozen=True, slots=True)
class Call:
    """A place whose errors are JSON, told by `tell`; requests that are simple may be begun by `simple`."""

    methods: tuple[str, ...]
    make: Callable[[HttpRequest], Response]
    tell: TellError = tell
    simple: tuple[GatheredRequests, Begin] | None = None

    def refusal(self, error: PenstockError) -> Response:
        """Returns the answer to a request that failed."""
        status = status_of(error)
        headers = CHALLENGE if status == HTTPStatus.UNAUTHORIZED else {}
        answer = document_answer(status, self.tell(status, error), headers)
        return delayed(answer, error) if isinstance(error, errors.LoginDelayedError) else answer

    def answer(self, request: HttpRequest) -> Response:
        try:
            return self.make(request)
        except PenstockError as error:
            return self.refusal(error)
        except RequestError as error:
            return document_answer(error.status, self.tell(error.status, error))


def delayed(answer: Response, error: errors.LoginDelayedError) -> Response:
    """Returns the answer to a login that comes too early: it says when to come again, and takes a moment itself."""
    headers = {"Retry-After": str(math.ceil(error.retry_after_s))}
    return replace(answer, headers=headers, delay_s=min(error.retry_after_s, _REFUSAL_S))


def lag_headers(lag_s: float | None) -> dict[str, str]:
    """Returns the headers that say how old rows may be."""
    return {} if lag_s is None else {LAG: f"{lag_s:.3f}"}


def status_of(error: PenstockError) -> HTTPStatus:
    """Returns the status that says who is to act: 4xx the client, 503 nobody but later, 500 the operator."""
    known = next((status for kind, status in _STATUSES if isinstance(error, kind)), None)
    if known is not None:
        return known
    return HTTPStatus.SERVICE_UNAVAILABLE if error.retry else HTTPStatus.INTERNAL_SERVER_ERROR


def document_answer(
    status: HTTPStatus, document: dict[str, object], headers: dict[str, str] | None = None
) -> Response:
    return Response(status, f"{json.dumps(document, ensure_ascii=False)}\n".encode(), JSON, headers or {})


@lru_cache(maxsize=64)
def _affected(rows: int, *, as_objects: bool) -> Response:
    """Returns the answer to a statement that has no rows but changes some."""
    row = f'{{"affected_rows":{rows}}}' if as_objects else f"[{rows}]"
    document = f'{{"code":0,"column_meta":[["affected_rows","{INT.kind}",{INT.width()}]],"data":[{row}],"rows":1}}\n'
    return Response(HTTPStatus.OK, document.encode(), JSON)


@dataclass(frozen=True, slots=True)
class Answers:
    """How an interface answers statements.

    `style` is that of rows, `width` gives a column's length, `tell` tells of errors that come when some of the rows are
    sent already.
    """

    style: RowStyle
    width: Callable[[DataType], int]
    tell: TellError

    def execute(
        self, engine: Statements, text: str, state: SessionState, on_cancel: OnCancel | None
    ) -> Response:
        """Executes a statement. Rows of queries are sent as they are made."""
        written = engine.insert_rows(text, state)
        if written is not None:
            return _affected(written.affected, as_objects=self.style.as_objects)
        statement = engine.read(text, state)
        if isinstance(statement, Query) and statement.into_file is None:
            rows = _Streamed(engine.open_query(statement, text, state, on_cancel), self)
            return Response(HTTPStatus.OK, rows, JSON, lag_headers(engine.lag_s))
        result = engine.execute_parsed(statement, text, state, on_cancel)
        if result.table is None:
            return _affected(result.affected, as_objects=self.style.as_objects)
        pieces = json_rows(result.table.to_batches(), self.style)
        return Response(HTTPStatus.OK, self.document(result.columns, pieces), JSON)

    def begin(self, engine: Statements, text: str, state: SessionState) -> tuple[Begun, Response] | None:
        """Begins a statement that is an INSERT of one row; None, and nothing, if it isn't that simple."""
        begun = engine.begin_insert(text, state)
        return None if begun is None else (begun, _affected(1, as_objects=self.style.as_objects))

    def _type_name(self, kind: DataType) -> str:
        return kind.name_of_kind() if self.style.nested or kind.kind is not Kind.OTHER else VARCHAR.name_of_kind()

    def document(self, columns: Sequence[ResultColumn], pieces: Iterable[JsonRows]) -> Iterator[bytes]:
        """Yields the JSON document of a result."""
        meta = json.dumps([[column.name, self._type_name(column.type), self.width(column.type)] for column in columns],
                          ensure_ascii=False)
        yield f'{{"code":0,"column_meta":{meta},"data":['.encode()
        rows = 0
        for piece in pieces:
            if rows:
                yield b",\n"
            rows += piece.rows
            yield piece.text
        yield f'],"rows":{rows}}}\n'.encode()


PLAIN = Answers(UTC_ROWS, DataType.width, tell)
"""The answers of our own interface."""


class _Streamed:
    """The document of a query's rows, which is made as it is sent; the query runs until `close`.

    What goes wrong before the first rows are there is raised by the constructor. Later, the document breaks off, and a
    line with the error follows: it is no JSON then, and the answer isn't complete in the sense of HTTP either.
    """

    def __init__(self, query: AbstractContextManager[OpenQuery], answers: Answers) -> None:
        self._answers = answers
        self._stack = ExitStack()
        try:
            opened = self._stack.enter_context(query)
            pieces = opened.json(_BATCH_ROWS, answers.style)
            first = next(pieces, None)
        except BaseException:
            self.close()
            raise
        self._pieces = answers.document(opened.columns, () if first is None else chain([first], pieces))

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._pieces
        except PenstockError as error:
            raise CutShort(f"\n{json.dumps(self._answers.tell(HTTPStatus.OK, error))}\n".encode()) from error

    def close(self) -> None:
        """Ends the query."""
        self._stack.close()


def text_of(body: bytes) -> str:
    """Returns a body as text. Raises RequestError."""
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"the body is not valid UTF-8: {error.reason}") from error
