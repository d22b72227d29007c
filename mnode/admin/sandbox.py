"""A whole engine in a temporary directory, without Spark, by a clock that moves only when told to.

Statements work as they do elsewhere; streams are driven to rest after each, so that what follows is certain.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.common.clock import ManualClock
from penstock.common.closing import Closing
from penstock.common.config import load_config
from penstock.common.errors import InternalError
from penstock.common.fs import Fs
from penstock.mnode.access.session import Result, SessionState
from penstock.mnode.admin.dry_run import DryRun
from penstock.mnode.controller.engine_hooks import EngineHooks
from penstock.mnode.controller.local_runtime import LocalRuntime
from penstock.mnode.controller.stream_controller import StreamController
from penstock.mnode.engine import Engine
from penstock.sql.schema import Session
from penstock.sql.tree.statements import DryRunStream
from penstock.tasks.external.connectors.consumers import ConsumerFactory, open_consumer
from penstock.tasks.worker.local_environment import LocalEnvironment


class VirtualClock(ManualClock):
    """Moves only by `advance`; who waits on it is woken by its event alone."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait()


class Sandbox(Closing):
    """Construct, `execute`, `close`; also a context manager. Not thread-safe."""

    def __init__(
        self,
        time_zone: str = "UTC",
        now_ms: int = 1_700_000_000_000,
        config: Mapping[str, Any] | None = None,
        directory: Path | None = None,
        fs: Fs | None = None,
        consumers: ConsumerFactory = open_consumer,
    ) -> None:
        """`directory`: an existing one to work in and leave behind; by default a temporary one. `consumers` opens what
        ingests read from.
        """
        self._temporary = tempfile.TemporaryDirectory(prefix="penstock-") if directory is None else None
        root = Path(self._temporary.name) if self._temporary is not None else directory
        assert root is not None
        self.clock = VirtualClock(now_ms)
        self.session = SessionState(time_zone)
        settings = {"timezone": time_zone, **(config or {})}
        self._runtime: LocalRuntime | None = None
        self._controller: StreamController | None = None
        self._consumers = consumers
        self.engine = Engine(root, load_config(settings, environment={}), clock=self.clock, fs=fs,
                             controller=self._make_controller, dry_run=dry_run)

    def execute(self, text: str) -> Result:
        """Executes one statement, lets the streams work until they rest, and returns the statement's answer."""
        result = self.engine.execute(text, self.session)
        self.run()
        return result

    def run(self) -> None:
        """Lets the streams work until they rest, and puts new versions of streams in place that have caught up."""
        if self._runtime is not None:
            self._runtime.run()
            self.engine.parts.replacements.poll()
            self._runtime.go_on()
            self.engine.parts.backups.poll()

    def advance(self, seconds: float) -> None:
        """Lets time pass."""
        self.clock.advance(seconds)
        self.run()

    def checkpoint(self) -> None:
        """Takes a checkpoint of every stream."""
        if self._runtime is not None:
            self._runtime.checkpoint()

    def kill(self) -> None:
        """Kills all tasks and starts them from their last checkpoints."""
        if self._runtime is not None:
            self._runtime.kill()
            self._runtime.run()

    @property
    def streams(self) -> LocalRuntime:
        """Who runs the streams; there must have been one."""
        if self._runtime is None:
            raise InternalError("no stream was created in this sandbox")
        return self._runtime

    def close(self) -> None:
        if self._controller is not None:
            self._controller.close(final_checkpoint=False)
        self.engine.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _make_controller(self, engine: Engine, hooks: EngineHooks) -> StreamController:
        self._runtime = LocalRuntime(LocalEnvironment(
            engine.clock, engine.fs, engine.paths, engine.results.read, engine.results.write_results, lambda _: None,
            self._consumers))
        self._controller = self._runtime.open_controller(engine.records, hooks)
        return self._controller


def dry_run(engine: Engine, statement: DryRunStream, session: Session) -> Result:
    """Executes DRY RUN for an engine, in a sandbox."""
    return DryRun(engine, Sandbox).run(statement, session)
