"""Runs a stream's tasks in the calling thread: no Spark, no sockets, no waiting. For tests and dry runs.

The tasks are the real ones, over real WALs and real state; only what surrounds them is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from penstock.common.clock import Clock
from penstock.common.connection import OpenedConnection
from penstock.common.errors import InternalError
from penstock.common.fs import Fs
from penstock.common.paths import DataPaths
from penstock.planner.task_plans.stream_plan import LookupPlan
from penstock.tasks.external.connectors.consumers import ConsumerFactory, open_consumer
from penstock.tasks.external.connectors.incoming_messages import Consumer, Positions
from penstock.tasks.external.emit.external_writers import ExternalWriter
from penstock.tasks.external.notify.window_notifier import Notifier
from penstock.tasks.operators.stream_task import StreamTask, TaskEnvironment
from penstock.tasks.protocol.control import concerns
from penstock.tasks.protocol.deployment import Deployment, IngestDeployment, StreamDeployment
from penstock.tasks.protocol.messages import ReadBack, ResultWrite, TaskCheckpoint, TaskEvent, TaskId
from penstock.tasks.protocol.store_requests import StoreRequest
from penstock.tasks.protocol.task_status import TaskStatus
from penstock.tasks.sink.external_writer_builder import external_writer
from penstock.tasks.state.state_cache import StateCache
from penstock.tasks.state.state_store import StateStore
from penstock.tasks.worker.runner import LocalLink, drive_once, statuses
from penstock.tasks.worker.task_builder import build_tasks
from penstock.tasks.worker.timesheet import Timesheet
from penstock.tasks.worker.worker_environment import read_lookup
from penstock.wal.log import LogFiles
from penstock.wal.shared_reading import RecentReads, SharedWalReader


class LocalStream:
    """All tasks of one attempt of a stream, on all of its vnodes. `step` until it returns False."""

    def __init__(self, deployments: Sequence[Deployment], tasks: Sequence[StreamTask], clock: Clock) -> None:
        """Connects the tasks. `deployments`: what each worker is told."""
        self.deployments = deployments
        self.tasks = tasks
        self._timesheet = Timesheet(clock, len(tasks))
        by_id = {task.id: task for task in tasks}
        self.links: list[LocalLink] = []
        for edges in self.deployment.graph.edges(self.deployment.stream_id):
            for downstream in edges.downstream:
                output = by_id[edges.task].output
                if output is None:
                    raise InternalError(f"{edges.task} has no output, but feeds {downstream}")
                self.links.append(LocalLink(edges.task, downstream, output, by_id[downstream].input, clock))

    @classmethod
    def built(cls, deployment: Deployment, environment: TaskEnvironment) -> LocalStream:
        """Builds the tasks from the deployment's checkpoint."""
        tasks: list[StreamTask] = []
        try:
            for index in range(deployment.graph.nodes.workers):
                tasks += build_tasks(deployment, index, environment)
        except Exception:
            for task in tasks:
                task.close()
            raise
        return cls([deployment], tasks, environment.clock)

    @property
    def deployment(self) -> Deployment:
        return self.deployments[0]

    def step(self) -> bool:
        """Gives each task one step; returns whether anything was done. Raises TaskFailure."""
        return drive_once(self.tasks, self.links, self._timesheet)

    def post(self, event: TaskEvent) -> None:
        """Hands an event to the tasks that it concerns."""
        for task in self.tasks:
            if concerns(event, task.id):
                task.post(event)

    def statuses(self) -> tuple[TaskStatus, ...]:
        return self._timesheet.filled_in(statuses(self.tasks, self.links))

    def close(self) -> None:
        """Ends the tasks as a crash would: nothing is flushed."""
        for task in self.tasks:
            task.close()


class LocalWriter:
    """A `ResultWriter` whose writes are done at once."""

    def __init__(self, write: Callable[[ResultWrite], None]) -> None:
        self._write = write
        self._done = 0

    def submit(self, write: ResultWrite) -> None:
        self._write(write)
        self._done += 1

    def acknowledged(self) -> int:
        return self._done


@dataclass(slots=True)
class LocalEnvironment:
    """A `TaskEnvironment` of callbacks. `ask` answers as the dnode's service does, `write` performs a result write."""

    clock: Clock
    fs: Fs
    paths: DataPaths
    ask: Callable[[StoreRequest], pa.Table]
    write: Callable[[ResultWrite], None]
    emit: Callable[[TaskCheckpoint | ReadBack], None]
    consumers: ConsumerFactory = open_consumer
    state_cache: StateCache = field(default_factory=StateCache)
    recent: RecentReads = field(default_factory=RecentReads)

    @property
    def turn(self) -> None:
        """Nothing gathers here."""
        return

    @property
    def spill(self) -> Path:
        return self.paths.spill

    def open_wal(self, vgroup_id: int, after_version: int, table_uid: int) -> SharedWalReader:
        log = LogFiles(self.paths.wal(vgroup_id), self.fs)
        return self.recent.reader(vgroup_id, log, after_version + 1, table_uid)

    def read_lookup(self, plan: LookupPlan, connection: OpenedConnection | None) -> pa.Table:
        return read_lookup(plan, connection, self.ask)

    def in_background(self, work: Callable[[], None], name: str) -> None:
        work()

    def result_writer(self, task: TaskId) -> LocalWriter:
        return LocalWriter(self.write)

    def open_consumer(self, deployment: IngestDeployment, index: int, positions: Positions) -> Consumer:
        return self.consumers(deployment, index, positions, self.clock, self.wake)

    def external_writer(self, task: TaskId, deployment: StreamDeployment, store: StateStore) -> ExternalWriter:
        return external_writer(task, deployment, store, self.clock, self.wake, lambda: self.result_writer(task))[0]

    def notifier(self, task: TaskId, deployment: StreamDeployment) -> Notifier | None:
        return None  # nobody else is to hear of a trial

    def open_state(self, task: TaskId, map_bytes: int) -> StateStore:
        return StateStore(self.paths.state(task.stream_id, str(task)), map_bytes, self.state_cache)

    def acknowledge(self, checkpoint: TaskCheckpoint) -> None:
        self.emit(checkpoint)

    def read_back(self, order: ReadBack) -> None:
        self.emit(order)

    def wake(self) -> None:
        """Nobody sleeps."""
