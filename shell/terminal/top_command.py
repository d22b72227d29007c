"""The sub-command `penstock top`: opens the data directory, or looks at the engine that has it open."""

from __future__ import annotations

import argparse
from pathlib import Path

from prompt_toolkit.input import create_input
from rich.console import Console

from penstock.common.clock import SystemClock
from penstock.common.config import Config
from penstock.common.errors import DataDirectoryInUseError
from penstock.shell.api.dbapi import Connection, connect
from penstock.shell.terminal.top import ConnectedEngine, OtherEngine, run_top


def top_of(connection: Connection, interval_s: float) -> None:
    """Shows the engine of a connection until the user leaves."""
    clock = SystemClock()
    run_top(ConnectedEngine(connection, clock), Console(), create_input(), clock, interval_s)


def show_top(options: argparse.Namespace, config: Config, login: tuple[str, str] | None = None) -> None:
    """Shows what `--url` names, else the engine of the data directory. `login`: user and password for a page. Raises
    PenstockErrors.
    """
    url = options.url
    if url is not None:
        _top_at(url, login, options.interval)
        return
    try:
        connection = connect(str(Path(options.data)), config)
    except DataDirectoryInUseError as error:
        if not config.ui_port:
            raise DataDirectoryInUseError(
                error.message, hint="start that engine with uiPort set, and use penstock top --url; or, for a server, "
                                    ".top in a shell with --host") from error
        _top_at(f"http://{config.host}:{config.ui_port}", login, options.interval)
        return
    with connection:
        top_of(connection, options.interval)


def _top_at(url: str, login: tuple[str, str] | None, interval_s: float) -> None:
    run_top(OtherEngine(url, login), Console(), create_input(), SystemClock(), interval_s)
