"""Who asks by HTTP: a request's credentials, in the forms that various clients give them, become a session."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from penstock.common.errors import UnauthenticatedError
from penstock.mnode.access.audit_log import Origin
from penstock.mnode.access.logins import Logins, Token, read_basic
from penstock.mnode.access.session import SessionState
from penstock.mnode.http.http_messages import HttpRequest


@dataclass(frozen=True, slots=True)
class HttpSessions:
    """Lets requests in; each is a session of its own, in `time_zone`."""

    logins: Logins
    time_zone: str

    def open(
        self, request: HttpRequest, database: str | None, authorization: str | None = None, time_zone: str | None = None
    ) -> SessionState:
        """Returns the session of who asks. `authorization`: by default what the header says.

        Raises UnauthenticatedError or LoginDelayedError.
        """
        header = request.headers.get("authorization") if authorization is None else authorization
        admitted = request.passes.get(header)
        if admitted is None or not self.logins.holds(admitted):
            if request.only_known:
                raise UnauthenticatedError("who this is must be found out first")
            request.passes.clear()
            admitted = self.logins.admit(header, Origin("http", request.address))
            request.passes[header] = admitted
            request.logged_in()
        return SessionState(time_zone or self.time_zone, database, admitted.identity, origin=admitted.origin)

    def log_in(self, request: HttpRequest, user: str, password: str) -> Token:
        """Returns a new token. Raises UnauthenticatedError or LoginDelayedError."""
        with self.logins.noting(Origin("http", request.address)) as note:
            token = self.logins.login(user, password, request.address)
            note(token.user)
        request.logged_in()
        return token

    def log_in_by_header(self, request: HttpRequest) -> Token:
        """Returns a new token for the user and the password of a Basic authorization, as `log_in`."""
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            raise UnauthenticatedError("user and password are needed", hint="send Authorization: Basic")
        return self.log_in(request, *read_basic(credentials.strip()))


def basic(user: str, password: str) -> str:
    """Returns the header that says user and password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def by_token(token: str) -> str:
    """Returns the header for what a client calls a token: one that a login gave, or user and password with a colon."""
    user, colon, password = token.partition(":")
    return basic(user, password) if colon else f"Bearer {token}"


def of_schemes(request: HttpRequest, *schemes: str) -> str | None:
    """Returns the header where its scheme is among those (in lower case) behind which a client gives its token; the
    header as it is where it is another one; None if there is none.
    """
    header = request.headers.get("authorization")
    scheme, _, credentials = (header or "").strip().partition(" ")
    return by_token(credentials.strip()) if scheme.lower() in schemes else header
