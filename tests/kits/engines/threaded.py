"""An engine in this process with real tasks, queues and sockets, but without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kits.basics.faulty_fs import FaultyFs
from kits.basics.waiting import wait_until
from kits.engines.runtime_fakes import ThreadRuntime

from penstock.common.clock import SystemClock
from penstock.common.config import load_config
from penstock.mnode.access.session import SessionState
from penstock.mnode.engine import Engine
from penstock.shell.api.arrow_values import column_values

CONFIG = {"timezone": "UTC", "heartbeatInterval": "20ms", "idleTimeout": "1h", "streamBufferSize": "1MiB"}
PATIENCE_S = 90.0


class Threaded:
    """An engine whose workers are threads of this process, with real tasks and queues."""

    def __init__(self, path: Path, **config: Any) -> None:
        self.path, self.config = path, load_config({**CONFIG, **config}, environment={})
        self.session = SessionState("UTC")
        self.runtime = ThreadRuntime()
        self.engine = self._open()

    def _open(self) -> Engine:
        return Engine(self.path, self.config, clock=SystemClock(), fs=FaultyFs(),
                      runtime=lambda config, root: self.runtime)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Executes statements and returns the rows of the last one."""
        table = [self.engine.execute(statement, self.session).table for statement in statements][-1]
        if table is None or not table.num_rows:
            return []
        return list(zip(*[column_values(column, "UTC") for column in table.columns], strict=True))

    def stream(self, name: str, *columns: str) -> tuple[Any, ...]:
        """Returns some columns of SHOW STREAMS."""
        (row,) = self.run(
            f"SELECT {', '.join(columns)} FROM information_schema.ins_streams WHERE stream_name = '{name}'")
        return row

    def until(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, PATIENCE_S)

    def reopen(self) -> None:
        self.engine.close()
        self.engine = self._open()
