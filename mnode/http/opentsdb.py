"""Points as OpenTSDB's clients send them over HTTP, in its JSON or in lines of its telnet protocol."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from penstock.common.errors import InvalidStatementError, InvalidValueError
from penstock.mnode.http.http_messages import HttpRequest, Response, Route
from penstock.mnode.http.http_sessions import basic, of_schemes
from penstock.mnode.http.json_answers import Call, EngineRoutes, Failure, document_answer
from penstock.mnode.http.partial_writes import write_what_can_be
from penstock.mnode.http.taos_codes import code_of
from penstock.sql.rows.opentsdb_points import PRECISION, PointLines, from_json, from_telnet

_JSON, _TELNET = "/opentsdb/v1/put/json/", "/opentsdb/v1/put/telnet/"


class OpenTsdb(EngineRoutes):
    """The routes of OpenTSDB. Points become lines of line protocol, and tables by the same rules."""

    def routes(self) -> dict[str, Route]:
        return {place: self._route(place, convert) for place, convert in ((_JSON, from_json), (_TELNET, from_telnet))}

    def _route(self, place: str, convert: Callable[[bytes], PointLines]) -> Route:
        return Call(("POST",), lambda request: self._put(request, place, convert), _tell)

    def _put(self, request: HttpRequest, place: str, convert: Callable[[bytes], PointLines]) -> Response:
        """Writes the points in the body into the database that follows `place`."""
        database = request.path.removeprefix(place)
        header = of_schemes(request, "taosd", "bearer")
        if header is None and "u" in request.query:
            header = basic(request.query["u"], request.query.get("p", ""))
        state = self.sessions.open(request, database or None, header)
        if not database:
            raise InvalidStatementError("the database is missing", hint=f"name it: {place}name")
        converted = convert(request.read_body(self.size_max))
        dropped = write_what_can_be(converted.lines, lambda data, first_line: self.engine.ingest_lines(
            data, database, PRECISION, state, first_line=first_line))
        failed = len(converted.refused) + (dropped.lines if dropped is not None else 0)
        if "details" in request.query or "summary" in request.query:
            return _counted(converted, failed, dropped.error if dropped is not None else None)
        if failed:
            first = converted.refused[0] if dropped is None or converted.refused else dropped.error
            raise InvalidValueError(f"partial write: {first.message} dropped={failed}", code=first.code,
                                    hint=first.hint)
        return Response(HTTPStatus.NO_CONTENT)


def _counted(converted: PointLines, failed: int, error: Failure | None) -> Response:
    """Returns the answer with which OpenTSDB says how many points it has taken."""
    said = [str(refusal) for refusal in converted.refused] + ([] if error is None else [str(error)])
    return document_answer(HTTPStatus.BAD_REQUEST if failed else HTTPStatus.OK, {
        "success": converted.count - failed, "failed": failed, "errors": [{"error": text} for text in said]})


def _tell(status: HTTPStatus, error: Failure) -> dict[str, object]:
    return {"code": code_of(error), "message": error.text}
