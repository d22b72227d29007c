"""What clients of InfluxDB send who write: lines, the one statement before them, and whether anybody is there."""

from __future__ import annotations

import re
from http import HTTPStatus
from urllib.parse import parse_qsl

from penstock import __version__
from penstock.common.errors import InvalidStatementError, InvalidValueError, NotFoundError
from penstock.mnode.access.session import SessionState
from penstock.mnode.http.gathered_requests import Begun
from penstock.mnode.http.http_messages import HttpRequest, Response, Route
from penstock.mnode.http.http_sessions import basic, of_schemes
from penstock.mnode.http.json_answers import Call, EngineRoutes, Failure, document_answer, text_of
from penstock.mnode.http.partial_writes import write_what_can_be
from penstock.sql.dialect.generator import print_sql
from penstock.sql.schema import DATABASE_MISSING
from penstock.sql.tree.statements import CreateDatabase

_WRITE, _QUERY, _PING = ((f"/{name}", f"/influxdb/v1/{name}") for name in ("write", "query", "ping"))
_WRITE_2, _HEALTH = "/api/v2/write", "/health"
_WRITTEN = Response(HTTPStatus.NO_CONTENT)
_PRECISIONS = {"n": "ns", "u": "us", "µ": "us"}
_CREATE_DATABASE = re.compile(
    r'\s*CREATE\s+DATABASE\s+(?:"(?P<quoted>(?:[^"\\]|\\.)+)"|(?P<plain>\w+))(?:\s+WITH\s.*)?\s*;?\s*',
    re.IGNORECASE | re.DOTALL)
#: What version 2 calls its errors.
_WORDS = {
    HTTPStatus.BAD_REQUEST: "invalid", HTTPStatus.UNAUTHORIZED: "unauthorized", HTTPStatus.FORBIDDEN: "forbidden",
    HTTPStatus.NOT_FOUND: "not found", HTTPStatus.CONFLICT: "conflict",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request too large", HTTPStatus.TOO_MANY_REQUESTS: "too many requests",
    HTTPStatus.SERVICE_UNAVAILABLE: "unavailable",
}


class Influx(EngineRoutes):
    """The routes of line protocol."""

    def routes(self) -> dict[str, Route]:
        write = Call(("POST",), self._write, simple=(self.engine.gathered, self._begin))
        query = Call(("POST",), self._query)
        return {
            **dict.fromkeys(_WRITE, write), **dict.fromkeys(_QUERY, query),
            **dict.fromkeys(_PING, Call(("GET", "HEAD"), _pong)),
            _WRITE_2: Call(("POST",), self._write_bucket, _tell_2),
            _HEALTH: Call(("GET", "HEAD"), _health),
        }

    def _write(self, request: HttpRequest) -> Response:
        """Writes the lines in the body, and says which are wrong, if some are."""
        database = request.query.get("db")
        state = self._session(request, database)
        if not database:
            raise InvalidStatementError("the database is missing", hint="name it: /write?db=name")
        try:
            return self._write_lines(request, database, state)
        except NotFoundError as error:
            if error.code != DATABASE_MISSING:
                raise
            # These words tell clients of InfluxDB to create it and to send the lines again.
            raise NotFoundError(f'database not found: "{database}"', code=error.code, hint=error.hint) from error

    def _write_bucket(self, request: HttpRequest) -> Response:
        """Does the same as clients of version 2 ask for it: a bucket is a database; the organization doesn't count."""
        bucket = request.query.get("bucket", "")
        database = bucket.partition("/")[0]  # behind a slash 1.8 has the retention policy
        state = self._session(request, database or None)
        if not database:
            raise InvalidStatementError("the bucket is missing", hint=f"name a database: {_WRITE_2}?bucket=name")
        return self._write_lines(request, database, state)

    def _begin(self, request: HttpRequest) -> tuple[Begun, Response] | None:
        """Begins what `_write` does, for lines that are one record."""
        database = request.query.get("db", "")
        state = self._session(request, database)
        begun = self.engine.begin_lines(request.read_body(self.size_max), database, _unit(request), state)
        return None if begun is None else (begun, _WRITTEN)

    def _write_lines(self, request: HttpRequest, database: str, state: SessionState) -> Response:
        unit = _unit(request)
        dropped = write_what_can_be(request.read_body(self.size_max), lambda data, first_line: (
            self.engine.ingest_lines(data, database, unit, state, first_line=first_line)))
        if dropped is not None:
            raise InvalidValueError(f"partial write: {dropped.error.message} dropped={dropped.lines}",
                                    code=dropped.error.code, hint=dropped.error.hint)
        return _WRITTEN

    def _query(self, request: HttpRequest) -> Response:
        """Creates a database, the one statement of InfluxDB's that those send who write."""
        state = self._session(request, None)
        form = dict(parse_qsl(text_of(request.read_body(self.size_max)), keep_blank_values=True))
        text = form.get("q") or request.query.get("q", "")
        found = _CREATE_DATABASE.fullmatch(text)
        if found is None:
            raise InvalidStatementError("only CREATE DATABASE of InfluxDB's statements is supported",
                                        hint="use POST /sql for Penstock's statements")
        name = found["plain"] or re.sub(r"\\(.)", r"\1", found["quoted"])
        # Lines have nanoseconds: what comes in must not be cut off.
        create = CreateDatabase(name, (("PRECISION", "ns"),), if_not_exists=True)
        self.engine.execute(print_sql(create), state)
        return document_answer(HTTPStatus.OK, {"results": [{"statement_id": 0}]})

    def _session(self, request: HttpRequest, database: str | None) -> SessionState:
        """Lets a client in by its header, `Token` among them, or by `u` and `p` behind the question mark."""
        header = of_schemes(request, "token", "bearer")
        if header is None and "u" in request.query:
            header = basic(request.query["u"], request.query.get("p", ""))
        return self.sessions.open(request, database, header)


def _unit(request: HttpRequest) -> str:
    """Returns the unit of the lines' times."""
    precision = request.query.get("precision") or "ns"
    return _PRECISIONS.get(precision, precision)


def _pong(request: HttpRequest) -> Response:
    """Says what InfluxDB's clients want to hear before they write: 1.8 takes what clients of version 2 send, too."""
    return Response(HTTPStatus.NO_CONTENT, headers={"X-Influxdb-Version": "1.8"})


def _health(request: HttpRequest) -> Response:
    return document_answer(HTTPStatus.OK, {"name": "penstock", "message": "ready for queries and writes",
                                           "status": "pass", "checks": [], "version": __version__})


def _tell_2(status: HTTPStatus, error: Failure) -> dict[str, object]:
    return {"code": _WORDS.get(status, "internal error"), "message": str(error)}
