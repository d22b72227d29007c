"""A server of PostgreSQL's protocol in this process, over an engine without Spark."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from kits.engines.embedded import NOW_MS, NoRuntime, StandingClock

from penstock.common.config import load_config
from penstock.mnode.access.session import Result, SessionState
from penstock.mnode.engine import Engine
from penstock.shell.postgres.postgres_server import PostgresServer


class PostgresHere:
    """An engine, and the port where it speaks PostgreSQL's protocol."""

    def __init__(self, data: Path, config: Mapping[str, Any]) -> None:
        self.config = load_config({"timezone": "UTC", "trustLoopback": True, **config}, environment={})
        self.clock = StandingClock(NOW_MS)
        self.engine = Engine(data, self.config, clock=self.clock, runtime=lambda config, root: NoRuntime())
        self.state = SessionState("UTC")
        self.server = PostgresServer(self.engine, self.config, 0)

    def execute(self, text: str) -> Result:
        """Executes a statement without the server."""
        return self.engine.execute(text, self.state)

    def connect(self, **parameters: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """Returns a connection of psycopg; each statement stands for itself."""
        return psycopg.connect(**{"host": "127.0.0.1", "port": self.server.port, "user": "who", "autocommit": True,
                                  "connect_timeout": 30, **parameters})

    def psql(self, text: str, *words: str, password: str = "") -> subprocess.CompletedProcess[str]:
        """Runs psql, unaligned and without a file of the user's, on a text."""
        environment = {**os.environ, "PGHOST": "127.0.0.1", "PGPORT": str(self.server.port), "PGUSER": "who",
                       "PGPASSWORD": password, "PGCONNECT_TIMEOUT": "30"}
        return subprocess.run(["psql", "-X", "-A", "-q", *words], input=text, capture_output=True, text=True,
                              check=False, timeout=60, env=environment)

    def close(self) -> None:
        self.server.close()
        self.engine.close()


@contextmanager
def postgres_here(data: Path, config: Mapping[str, Any] | None = None) -> Iterator[PostgresHere]:
    """Gives a server over a data directory, and closes it."""
    here = PostgresHere(data, config or {})
    try:
        yield here
    finally:
        here.close()
