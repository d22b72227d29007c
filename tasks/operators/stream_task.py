"""The interface between tasks and the runtime: what drives a task, and what a task may call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from penstock.common.clock import Clock
from penstock.common.connection import OpenedConnection
from penstock.tasks.external.connectors.incoming_messages import Consumer, Positions
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.protocol.deployment import IngestDeployment, StreamDeployment
from penstock.tasks.protocol.messages import ReadBack, TaskCheckpoint, TaskEvent, TaskId
from penstock.tasks.protocol.result_writers import ResultWriter
from penstock.tasks.protocol.store_requests import StoreRequest
from penstock.tasks.protocol.task_status import TaskStatus

if TYPE_CHECKING:
    from penstock.planner.task_plans.stream_plan import LookupPlan
    from penstock.tasks.external.emit.external_writers import ExternalWriter
    from penstock.tasks.external.notify.window_notifier import Notifier
    from penstock.tasks.state.state_store import StateStore
    from penstock.wal.shared_reading import SharedWalReader


class TaskEnvironment(Protocol):
    """A task's way to the world; the runtime implements it for workers, tests and the simulation in memory."""

    clock: Clock

    @property
    def turn(self) -> int | None:
        """The number of the stream's turn that is under way, if its rows gather up to the next one; else None."""
        ...

    @property
    def spill(self) -> Path:
        """A directory for what a task's DuckDB doesn't keep in memory; many share it."""
        ...

    def open_wal(self, vgroup_id: int, after_version: int, table_uid: int) -> SharedWalReader:
        """Returns a reader whose next record is `after_version + 1`: of the rows and deletes of a table, and perhaps of
        others."""
        ...

    def ask(self, request: StoreRequest) -> pa.Table:
        """Returns what the request's class says. It may have to wait; any thread.

        Raises PenstockErrors; it may be tried again.
        """
        ...

    def read_lookup(self, plan: LookupPlan, connection: OpenedConnection | None) -> pa.Table:
        """Returns the columns of a table that rows look up in, as it is now. It may have to wait; any thread.

        Raises PenstockErrors; it may be tried again.
        """
        ...

    def in_background(self, work: Callable[[], None], name: str) -> None:
        """Has work done that may have to wait: in a thread of this name, or in memory at once."""
        ...

    def result_writer(self, task: TaskId) -> ResultWriter: ...

    def open_consumer(self, deployment: IngestDeployment, index: int, positions: Positions) -> Consumer:
        """Returns what task `index` of an ingest reads from, from these positions on. The task closes it.

        Raises ExternalSystemErrors; it may be tried again.
        """
        ...

    def external_writer(self, task: TaskId, deployment: StreamDeployment, store: StateStore) -> ExternalWriter:
        """Returns what a sink task writes to whose target is outside. `store` is the task's own."""
        ...

    def notifier(self, task: TaskId, deployment: StreamDeployment) -> Notifier | None:
        """Returns what a sink task of a stream with NOTIFY tells of windows by; None: nobody is to hear of a trial."""
        ...

    def open_state(self, task: TaskId, map_bytes: int) -> StateStore:
        """Returns the state of a task, of `map_bytes` at most; nobody else has it open. The task closes it."""
        ...

    def acknowledge(self, checkpoint: TaskCheckpoint) -> None: ...

    def read_back(self, order: ReadBack) -> None:
        """Has source tasks compute windows again, soon; the order is lost if the attempt ends before they have it."""
        ...

    def wake(self) -> None:
        """Wakes the stream's runner: something changed that a task may act on."""
        ...


class StreamTask(Protocol):
    """A task as the runtime drives it. `step` and `close` are called by one thread only; `post` by any."""

    id: TaskId

    @property
    def followed_table(self) -> int | None:
        """The uid of the table that a source task follows in its vnode's log; None for other tasks."""
        ...

    @property
    def input(self) -> ChannelQueue[TaskId]: ...

    @property
    def output(self) -> ChannelQueue[TaskId] | None:
        """None for sink tasks."""
        ...

    def step(self) -> bool:
        """Does a small amount of work without blocking; returns whether anything was done."""
        ...

    def next_deadline(self) -> float | None:
        """Returns the monotonic time at which `step` should be called even if nothing changed, or None."""
        ...

    def post(self, event: TaskEvent) -> None: ...

    def status(self) -> TaskStatus: ...

    def close(self) -> None: ...
