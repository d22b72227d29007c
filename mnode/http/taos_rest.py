"""REST as TDengine's adapter speaks it to connectors and to its Grafana plugin, and the writers that it takes in."""

from __future__ import annotations

import zoneinfo
from dataclasses import replace
from http import HTTPStatus

from penstock.common.errors import PenstockError
from penstock.mnode.http.http_body import RequestError
from penstock.mnode.http.http_messages import HttpRequest, Response, Route
from penstock.mnode.http.http_sessions import by_token, of_schemes
from penstock.mnode.http.influx import Influx
from penstock.mnode.http.json_answers import Answers, Call, EngineRoutes, Failure, document_answer, text_of
from penstock.mnode.http.opentsdb import OpenTsdb
from penstock.mnode.http.taos_codes import code_of
from penstock.mnode.query.json_rows import UTC_ROWS, RowStyle
from penstock.sql.types import DataType, Kind

_SQL, _SQL_NUMBERS, _SQL_UTC = "/rest/sql", "/rest/sqlt", "/rest/sqlutc"
_LOGIN, _PING = "/rest/login/*/", "/-/ping"
_FLAGS = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}
#: What TDengine has at most, for texts of any length.
_WIDTHS = {Kind.VARCHAR: 65_517, Kind.VARBINARY: 65_517, Kind.GEOMETRY: 65_517, Kind.NCHAR: 16_379,
           Kind.OTHER: 65_517}


class TaosRest(EngineRoutes):
    """The routes of TDengine's adapter.

    Errors of statements come with status 200, number and text: its clients look at nothing else of other answers than
    their status.
    """

    def routes(self) -> dict[str, Route]:
        parts = self.engine, self.sessions, self.size_max
        return {
            **self._sql_routes(_SQL, UTC_ROWS), **self._sql_routes(_SQL_UTC, UTC_ROWS),
            **self._sql_routes(_SQL_NUMBERS, RowStyle(None)),
            _LOGIN: Call(("GET",), self._login, _tell), _PING: Call(("GET", "HEAD"), _ping),
            **OpenTsdb(*parts).routes(), **Influx(*parts).routes(),
        }

    def _sql_routes(self, place: str, style: RowStyle) -> dict[str, Route]:
        route = Call(("POST",), lambda request: self._sql(request, place, style), _tell)
        return {place: route, f"{place}/": route}

    def _sql(self, request: HttpRequest, place: str, style: RowStyle) -> Response:
        """Executes the statement in the body; what follows `place` is the database."""
        zone = _zone(request, "conn_tz")
        shown = zone or _zone(request, "tz")
        if style.time_zone is not None and shown is not None:
            style = replace(style, time_zone=shown)
        style = replace(style, as_objects=_flag(request, "row_with_meta"), nested=False)
        _check_number(request, "req_id")
        token = request.query.get("token")
        state = self.sessions.open(request, request.path.removeprefix(place).strip("/") or None,
                                    by_token(token) if token else of_schemes(request, "taosd", "bearer"), zone)
        text = text_of(request.read_body(self.size_max))
        try:
            return Answers(style, _width, _tell).execute(self.engine, text, state, request.on_gone)
        except PenstockError as error:
            return document_answer(HTTPStatus.OK, _tell(HTTPStatus.OK, error))

    def _login(self, request: HttpRequest) -> Response:
        """Gives a token for the user and the password in the path, to stand behind `Authorization: Taosd`."""
        user, _, password = request.path.removeprefix("/rest/login/").partition("/")
        return document_answer(HTTPStatus.OK, {
            "code": 0, "desc": self.sessions.log_in(request, user, password).text})


def _tell(status: HTTPStatus, error: Failure) -> dict[str, object]:
    # Clients put the number before the text.
    return {"code": code_of(error), "desc": error.text}


def _ping(request: HttpRequest) -> Response:
    return document_answer(HTTPStatus.OK, {"code": 0, "desc": ""})


def _zone(request: HttpRequest, name: str) -> str | None:
    """Returns the time zone that a parameter names. Raises RequestError."""
    zone = request.query.get(name)
    if not zone:
        return None
    try:
        zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"{name} is not a time zone; Europe/Berlin is one") from error
    return zone


def _flag(request: HttpRequest, name: str) -> bool:
    """Returns a parameter that is true or false, and false if it isn't there. Raises RequestError."""
    text = request.query.get(name) or "false"
    flag = _FLAGS.get(text.lower())
    if flag is None:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"{name} is true or false")
    return flag


def _check_number(request: HttpRequest, name: str) -> None:
    text = request.query.get(name) or "0"
    if not (text.isascii() and text.isdigit()):
        raise RequestError(HTTPStatus.BAD_REQUEST, f"{name} is a number")


def _width(kind: DataType) -> int:
    """Returns the length of a column: bytes, characters for NCHAR."""
    if kind.length is None and kind.kind in _WIDTHS:
        return _WIDTHS[kind.kind]
    return kind.width()
