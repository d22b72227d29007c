"""The engine's HTTP ports: /metrics and a page with its data, on two or on one; SQL and line protocol on another.

On all of them one has to log in as soon as there are users, and TLS is spoken where it is configured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path

from penstock.common.admission import ConnectionBounds
from penstock.common.config import Config
from penstock.common.errors import LoginDelayedError, UnauthenticatedError
from penstock.common.tls import Tls
from penstock.mnode.access.audit_log import Origin
from penstock.mnode.access.logins import Logins, UsersView, tls_for_clients
from penstock.mnode.access.roles import Identity
from penstock.mnode.http.http_messages import HttpBounds, HttpRequest, Page, Response, Route
from penstock.mnode.http.http_server import HttpListener
from penstock.mnode.http.json_answers import CHALLENGE, delayed
from penstock.mnode.http.rest import Rest
from penstock.mnode.show.overview import Overview

_PAGE = Path(__file__).with_name("ui.html")
OVERVIEW_PATH = "/api/overview"

PageFor = Callable[[Identity], Page]
"""A page as somebody sees it."""


def open_listeners(
    config: Config, look: Callable[[Identity], Overview], rest: Rest, logins: Logins, users: UsersView
) -> list[HttpListener]:
    """Opens the ports that are configured. Raises UnavailableError and ConfigError; then none stays open."""
    pages: dict[int, dict[str, PageFor]] = {}
    if config.metrics_port:
        pages.setdefault(config.metrics_port, {}).update(_metrics(look))
    if config.ui_port:
        pages.setdefault(config.ui_port, {}).update(ui_pages(look))
    wanted: list[tuple[int, dict[str, Route]]] = [
        (port, {path: _ForUsers(page, logins) for path, page in of_port.items()}) for port, of_port in pages.items()]
    if config.http_port:
        wanted.append((config.http_port, rest.routes()))
    if not wanted:
        return []
    tls = tls_for_clients(config, users)
    listeners: list[HttpListener] = []
    try:
        for port, routes in wanted:
            listeners.append(open_listener(config, port, routes, users, tls))
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def open_listener(
    config: Config, port: int, routes: Mapping[str, Route], users: UsersView, tls: Tls | None
) -> HttpListener:
    """Opens a port within the configured bounds. Raises UnavailableError and ConfigError."""
    bounds = HttpBounds(ConnectionBounds.of_clients(config), config.body_rate_min)
    return HttpListener(config.host, port, routes, bounds=bounds, tls=tls, any_name=lambda: bool(users.all()))


@dataclass(frozen=True, slots=True)
class _ForUsers:
    """A page that every user may look at, and nobody else; it shows what that one may see."""

    page: PageFor
    logins: Logins
    methods: tuple[str, ...] = ("GET",)

    def answer(self, request: HttpRequest) -> Response:
        try:
            identity = self.logins.admit(request.headers.get("authorization"), Origin("http", request.address)).identity
        except LoginDelayedError as error:
            answer = delayed(Response(HTTPStatus.TOO_MANY_REQUESTS, f"{error}\n".encode()), error)
            # A browser that shows the page itself knows this header alone.
            return replace(answer, headers={**answer.headers, "Refresh": answer.headers["Retry-After"]})
        except UnauthenticatedError as error:
            return Response(HTTPStatus.UNAUTHORIZED, f"{error}\n".encode(), headers=CHALLENGE)
        request.logged_in()
        return self.page(identity).answer(request)


def ui_pages(look: Callable[[Identity], Overview]) -> dict[str, PageFor]:
    """Returns the page, what it reads, and the metrics."""
    return {
        "/": lambda _: Page("text/html; charset=utf-8", _PAGE.read_bytes),
        OVERVIEW_PATH: lambda who: Page("application/json", lambda: json.dumps(look(who)).encode()),
        **_metrics(look),
    }


def _metrics(look: Callable[[Identity], Overview]) -> dict[str, PageFor]:
    # Only who wants metrics pays for the library.
    from penstock.mnode.http.metrics import CONTENT_TYPE, exposition

    return {"/metrics": lambda who: Page(CONTENT_TYPE, lambda: exposition(lambda: look(who)))}
