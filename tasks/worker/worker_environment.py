"""A worker's `TaskEnvironment`: rows and results by Flight to the dnode, logs and state by files or by Flight, too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from penstock.common.clock import Clock
from penstock.common.connection import OpenedConnection
from penstock.common.errors import InternalError
from penstock.planner.task_plans.stream_plan import LookupPlan
from penstock.tasks.dnode_access.data_access import DataAccess
from penstock.tasks.dnode_access.dnode_client import DnodeClient
from penstock.tasks.dnode_access.flight_result_writer import FlightResultWriter
from penstock.tasks.external.connectors.consumers import open_consumer
from penstock.tasks.external.connectors.incoming_messages import Consumer, Positions
from penstock.tasks.external.emit.external_writers import ExternalWriter
from penstock.tasks.external.notify.window_notifier import Notifier, notifier_of
from penstock.tasks.protocol.block_schema import block_type
from penstock.tasks.protocol.deployment import IngestDeployment, StreamDeployment
from penstock.tasks.protocol.messages import ReadBack, TaskCheckpoint, TaskId
from penstock.tasks.protocol.result_writers import ResultWriter
from penstock.tasks.protocol.store_requests import StoreRequest, TableRequest
from penstock.tasks.sink.external_writer_builder import external_writer
from penstock.tasks.state.state_store import StateStore
from penstock.wal.news import WalNews
from penstock.wal.shared_reading import RecentReads, SharedWalReader


def _call_nobody() -> None:
    """Stands for waking a runner that has ended."""


def _emit_nowhere(what: TaskCheckpoint | ReadBack) -> None:
    """Stands for what tasks tell once they are closed."""


def read_lookup(
    plan: LookupPlan, connection: OpenedConnection | None, ask: Callable[[StoreRequest], pa.Table]
) -> pa.Table:
    """Returns what `TaskEnvironment.read_lookup` does; `ask` answers for normal tables."""
    names = [column.name for column in plan.columns]
    if plan.connection is None:
        rows = ask(TableRequest(plan.table_uid, tuple(column.physical for column in plan.columns)))
        arrays = [rows.column(column.physical).cast(block_type(column.type)) for column in plan.columns]
        return pa.table(arrays, names=names)
    if connection is None:
        raise InternalError(f"there is no connection to look up in {plan.table} by")
    from penstock.tasks.external.connectors.postgres_tables import read  # needed for external tables only

    found = read(connection, plan.table, [(column.physical, column.type) for column in plan.columns])
    return found.rename_columns(names)


class WorkerEnvironment:
    """The `TaskEnvironment` of one attempt of a stream on one worker."""

    def __init__(
        self,
        clock: Clock,
        data: DataAccess,
        dnode: DnodeClient,
        recent: RecentReads,
        emit: Callable[[TaskCheckpoint | ReadBack], None],
        wake: Callable[[], None],
        turn: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`recent` is the worker's; `emit` sends over the control connection; `wake` wakes the runner and what waits
        for queues; `turn` is the runner's.
        """
        self.clock = clock
        self._data = data
        self._dnode = dnode
        self._recent = recent
        self._emit = emit
        self._wake = wake
        self._turn = turn
        self._writers: list[FlightResultWriter] = []

    @property
    def turn(self) -> int | None:
        return self._turn()

    @property
    def spill(self) -> Path:
        return self._data.spill

    def open_wal(self, vgroup_id: int, after_version: int, table_uid: int) -> SharedWalReader:
        return self._recent.reader(vgroup_id, self._data.log(vgroup_id), after_version + 1, table_uid)

    def open_news(self, vgroup_id: int) -> WalNews:
        """Opens a vnode's log for who wakes the streams that follow it."""
        return WalNews(self._data.log(vgroup_id))

    def ask(self, request: StoreRequest) -> pa.Table:
        return self._dnode.ask(request)

    def read_lookup(self, plan: LookupPlan, connection: OpenedConnection | None) -> pa.Table:
        return read_lookup(plan, connection, self._dnode.ask)

    def in_background(self, work: Callable[[], None], name: str) -> None:
        threading.Thread(target=work, name=name, daemon=True).start()

    def result_writer(self, task: TaskId) -> ResultWriter:
        writer = FlightResultWriter(self._dnode, str(task), self.wake)
        self._writers.append(writer)
        return writer

    def open_consumer(self, deployment: IngestDeployment, index: int, positions: Positions) -> Consumer:
        return open_consumer(deployment, index, positions, self.clock, self.wake)

    def external_writer(self, task: TaskId, deployment: StreamDeployment, store: StateStore) -> ExternalWriter:
        def dead_writer() -> ResultWriter:
            writer = FlightResultWriter(self._dnode, f"{task} dead results", _call_nobody)
            self._writers.append(writer)
            return writer

        writer, sink_writer = external_writer(task, deployment, store, self.clock, self.wake, dead_writer)
        sink_writer.start(f"deliver {task}")
        return writer

    def notifier(self, task: TaskId, deployment: StreamDeployment) -> Notifier:
        notifier = notifier_of(deployment, self.clock, self.wake)
        notifier.start(f"notify {task}")
        return notifier

    def open_state(self, task: TaskId, map_bytes: int) -> StateStore:
        return self._data.open_state(task, map_bytes)

    def acknowledge(self, checkpoint: TaskCheckpoint) -> None:
        self._emit(checkpoint)

    def read_back(self, order: ReadBack) -> None:
        self._emit(order)

    def wake(self) -> None:
        self._wake()

    def abandon(self) -> None:
        """Ends what may make a task wait while it is being built; any thread."""
        self._data.abandon()

    def close(self) -> None:
        """Releases writers, the states' folders and whoever gave the callbacks; call it after the tasks are closed."""
        while self._writers:
            self._writers.pop().close()
        self._data.close()
        # Tasks refer to themselves in circles, and so keep this environment until the collector comes.
        self._wake, self._emit = _call_nobody, _emit_nowhere
