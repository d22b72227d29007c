"""SQL over HTTP at places of our own, and logins; beside them the writers that speak other protocols."""

from __future__ import annotations

from http import HTTPStatus

from penstock.mnode.access.session import SessionState
from penstock.mnode.http.gathered_requests import Begun
from penstock.mnode.http.http_messages import HttpRequest, Response, Route
from penstock.mnode.http.influx import Influx
from penstock.mnode.http.json_answers import PLAIN, Call, EngineRoutes, document_answer, text_of

SQL, LOGIN = "/sql", "/login"


class Rest(EngineRoutes):
    """The routes of SQL, of logins, and of line protocol as InfluxDB's clients send it."""

    def routes(self) -> dict[str, Route]:
        sql = Call(("POST",), self._sql, simple=(self.engine.gathered, self._begin))
        return {SQL: sql, f"{SQL}/": sql, LOGIN: Call(("POST",), self._login),
                **Influx(self.engine, self.sessions, self.size_max).routes()}

    def _sql(self, request: HttpRequest) -> Response:
        """Executes the statement in the body; what follows /sql/ is the database."""
        state, text = self._asked(request)
        return PLAIN.execute(self.engine, text, state, request.on_gone)

    def _begin(self, request: HttpRequest) -> tuple[Begun, Response] | None:
        state, text = self._asked(request)
        return PLAIN.begin(self.engine, text, state)

    def _asked(self, request: HttpRequest) -> tuple[SessionState, str]:
        state = self.sessions.open(request, request.path.removeprefix(SQL).strip("/") or None)
        return state, text_of(request.read_body(self.size_max))

    def _login(self, request: HttpRequest) -> Response:
        """Gives a token for the user and the password of a Basic Authorization."""
        token = self.sessions.log_in_by_header(request)
        return document_answer(HTTPStatus.OK, {"code": 0, "token": token.text, "lifetime_s": token.lifetime_s})
