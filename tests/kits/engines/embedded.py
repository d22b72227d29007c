"""An engine in a temporary directory for tests of statements: no Spark, a clock that stands still."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kits.basics.faulty_fs import FaultyFs

from penstock.common.clock import Clock, ManualClock
from penstock.common.config import load_config
from penstock.common.fs import Fs
from penstock.mnode.access.session import Result, SessionState
from penstock.mnode.admin.sandbox import dry_run
from penstock.mnode.engine import Engine
from penstock.shell.api.arrow_values import column_values
from penstock.tasks.worker.spark_executors import Executors
from penstock.tasks.worker.worker_process import WorkerSpec

NOW_MS = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC


class StandingClock(ManualClock):
    """Stands still, but really waits, so that background threads don't spin."""

    def wait(self, event: Any, timeout_s: float) -> bool:
        return bool(event.wait(timeout_s))


class NoRuntime:
    """Accepts worker groups and never starts one: streams stay STARTING."""

    def start(self) -> None:
        return

    def submit_group(
        self, spec: WorkerSpec, workers: int, description: str, on_end: Callable[[str | None], None]
    ) -> NoRuntime:
        self._on_end = on_end
        return self

    def cancel(self) -> None:
        self._on_end(None)

    def is_ready(self) -> bool:
        return False

    def executors(self) -> Executors | None:
        return None

    def scale(self, executors: int, released: Sequence[str]) -> None:
        raise AssertionError("nobody is to be asked")

    def places(self) -> dict[int, str]:
        return {}


class Embedded:
    """An engine with one session; `run` executes and returns rows as tuples, or None."""

    def __init__(
        self,
        path: Path,
        config: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        fs: Fs | None = None,
    ) -> None:
        """`fs`: by default one that never really syncs, since no test cuts the power."""
        self.fs = fs or FaultyFs()
        self.path = path
        self.config = load_config({"timezone": "UTC", "trustLoopback": True, **(config or {})}, environment={})
        self.clock = clock or StandingClock(NOW_MS)
        self.engine = self._open()
        self.session = SessionState("UTC")

    def _open(self) -> Engine:
        return Engine(self.path, self.config, clock=self.clock, fs=self.fs, runtime=lambda config, root: NoRuntime(),
                      dry_run=dry_run)

    def execute(self, text: str) -> Result:
        return self.engine.execute(text, self.session)

    def run(self, text: str) -> list[tuple[Any, ...]]:
        """Returns the rows of a statement; those of statements without rows are []."""
        table = self.execute(text).table
        if table is None:
            return []
        columns = [column_values(column, self.session.time_zone) for column in table.columns]
        return list(zip(*columns, strict=True)) if table.num_rows else []

    def all(self, *statements: str) -> None:
        """Executes statements one after the other."""
        for statement in statements:
            self.execute(statement)

    def reopen(self) -> None:
        """Closes the engine and opens it again; the session's database stays in use."""
        self.engine.close()
        self.engine = self._open()

    def close(self) -> None:
        self.engine.close()
