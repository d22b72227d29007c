"""What runs worker groups, and what every worker is launched with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from penstock.tasks.worker.spark_executors import Executors
from penstock.tasks.worker.worker_process import TaskBuilder, WorkerSpec


class Handle(Protocol):
    """A submitted worker group."""

    def cancel(self) -> None: ...

    def places(self) -> Mapping[int, str]:
        """Returns the executors' ids by worker, as far as they are known."""
        ...


class Runtime(Protocol):
    """What runs worker groups; `penstock.tasks.worker.spark_runtime.SparkRuntime` outside of tests."""

    def start(self) -> None:
        """Begins to start what the first group would have to wait for; returns at once."""
        ...

    def submit_group(
        self, spec: WorkerSpec, workers: int, description: str, on_end: Callable[[str | None], None]
    ) -> Handle: ...

    def is_ready(self) -> bool: ...

    def executors(self) -> Executors | None:
        """Returns where workers can be; None while Spark isn't there."""
        ...

    def scale(self, executors: int, released: Sequence[str]) -> None:
        """Asks for so many executors in all, without those `released`. Raises UnavailableError."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerLaunch:
    """What every worker of an engine is launched with.

    `root` is the data directory; `service_address` and `secret` are those of the DnodeService. `build` replaces the
    builder of tasks, for tests.
    """

    root: Path
    service_address: str = ""
    secret: bytes = b""
    build: TaskBuilder | None = None
