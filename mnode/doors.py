"""Where the engine can be watched from outside: /metrics on one port, a page and its data on another, or on one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from penstock.common.config import Config
from penstock.mnode.http_door import HttpDoor, Page
from penstock.mnode.overview import Overview

_PAGE = Path(__file__).with_name("ui.html")
OVERVIEW_PATH = "/api/overview"


def open_doors(config: Config, look: Callable[[], Overview]) -> list[HttpDoor]:
    """Opens the ports that are configured. Raises UnavailableError; then none stays open."""
    wanted: dict[int, dict[str, Page]] = {}
    if config.metrics_port:
        wanted.setdefault(config.metrics_port, {}).update(_metrics(look))
    if config.ui_port:
        wanted.setdefault(config.ui_port, {}).update(ui_pages(look))
    doors: list[HttpDoor] = []
    try:
        for port, pages in wanted.items():
            doors.append(HttpDoor(config.host, port, pages))
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
