"""The engine's HTTP ports: /metrics and a page with its data, on two or on one; SQL and line protocol on another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from penstock.common.config import Config
from penstock.mnode.http_door import HttpDoor, Page
from penstock.mnode.logins import UsersView, tls_for_clients
from penstock.mnode.overview import Overview
from penstock.mnode.rest import Rest

_PAGE = Path(__file__).with_name("ui.html")
OVERVIEW_PATH = "/api/overview"


def open_doors(config: Config, look: Callable[[], Overview], rest: Rest, users: UsersView) -> list[HttpDoor]:
    """Opens the ports that are configured. Raises UnavailableError and ConfigError; then none stays open."""
    wanted: dict[int, dict[str, Page]] = {}
    if config.metrics_port:
        wanted.setdefault(config.metrics_port, {}).update(_metrics(look))
    if config.ui_port:
        wanted.setdefault(config.ui_port, {}).update(ui_pages(look))
    doors: list[HttpDoor] = []
    try:
        for port, pages in wanted.items():
            doors.append(HttpDoor(config.host, port, pages))
        if config.http_port:
            doors.append(HttpDoor(
                config.host, config.http_port, rest.places(), tls=tls_for_clients(config, users),
                any_name=lambda: bool(users.users())))
    except BaseException:
        for door in doors:
            door.close()
        raise
    return doors


def ui_pages(look: Callable[[], Overview]) -> dict[str, Page]:
    """Returns the page, what it reads, and the metrics."""
    return {
        "/": Page("text/html; charset=utf-8", _PAGE.read_bytes),
        OVERVIEW_PATH: Page("application/json", lambda: json.dumps(look()).encode()),
        **_metrics(look),
    }


def _metrics(look: Callable[[], Overview]) -> dict[str, Page]:
    # Only who wants metrics pays for the library.
    from penstock.mnode.metrics import CONTENT_TYPE, exposition

    return {"/metrics": Page(CONTENT_TYPE, lambda: exposition(look))}
