"""A shell over a scripted connection, with its output captured; for the tests of the shell."""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.common.config import load_config
from penstock.common.errors import NotFoundError, Position
from penstock.mnode.access.session import SessionState
from penstock.shell.terminal.screen import Screen
from penstock.shell.terminal.shell_session import ShellOptions, ShellSession

ROWS = pa.table({"n": pa.array([1, 2, 3], pa.int32())})


@dataclass
class ScriptedConnection:
    """Answers `select` with three rows, refuses `fail`, and remembers what it was asked.

    `long` ends when `finish` is set.
    """

    session: SessionState = field(default_factory=lambda: SessionState("UTC"))
    statements: list[str] = field(default_factory=list)
    lag_seconds: float | None = None
    begun: threading.Event = field(default_factory=threading.Event)
    finish: threading.Event = field(default_factory=threading.Event)

    def cursor(self) -> ScriptedCursor:
        return ScriptedCursor(self)


@dataclass
class ScriptedCursor:
    connection: ScriptedConnection
    description: list[tuple[str]] | None = None
    rowcount: int = -1

    def __enter__(self) -> ScriptedCursor:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, statement: str) -> None:
        self.connection.statements.append(statement)
        if statement.startswith("fail"):
            raise NotFoundError("no such thing", position=Position(1, 6, "thing"))
        if statement.startswith("defect"):
            raise ZeroDivisionError("division by zero")
        if statement.startswith("long"):
            self.connection.begun.set()
            self.connection.finish.wait()
        is_query = statement.lower().startswith(("select", "show"))
        self.description = [("n",)] if is_query else None
        self.rowcount = 3 if is_query else 2

    @property
    def lag_seconds(self) -> float | None:
        return self.connection.lag_seconds

    def fetch_arrow(self) -> pa.Table:
        return ROWS


@dataclass
class Shell:
    """A session with its captured output."""

    session: ShellSession
    connection: ScriptedConnection
    output: io.StringIO
    errors: io.StringIO


def make_shell(*, interactive: bool = False, **options: Any) -> Shell:
    connection, output, errors = ScriptedConnection(), io.StringIO(), io.StringIO()
    session = ShellSession(
        connection,  # type: ignore[arg-type]
        load_config(environment={}),
        Screen(output, errors, environment={}),
        ShellOptions(timer=False, **options),
        interactive=interactive,
    )
    return Shell(session, connection, output, errors)
