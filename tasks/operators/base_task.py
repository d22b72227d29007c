"""What all tasks have in common: events, a state store with checkpoints, and most of their status."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from penstock.common.closed_duckdb import DuckdbBounds
from penstock.common.errors import PenstockError
from penstock.planner.task_plans.stream_plan import StreamPlan
from penstock.tasks.compute.duckdb_computer import Computer
from penstock.tasks.compute.function_runtime import UserFunctions
from penstock.tasks.flow.outbox import Outbox
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.operators.state_tracker import StateTracker
from penstock.tasks.operators.stream_task import TaskEnvironment
from penstock.tasks.protocol.deployment import Deployment, StreamDeployment
from penstock.tasks.protocol.messages import (
    Barrier,
    CheckpointAbandoned,
    CheckpointCommitted,
    SetRates,
    TaskCheckpoint,
    TaskEvent,
    TaskId,
)
from penstock.tasks.protocol.task_status import (
    FunctionStatus,
    QueueStatus,
    StateSize,
    TaskProgress,
    TaskStatus,
    TimeSpent,
)

ROWS_TOTAL = "rows"
"""What a checkpoint calls the rows that the task has read since the stream was created."""


class BaseTask:
    """A task of a stream or an ingest. Subclasses set up their queues, work in `step` and say what their state is."""

    input: ChannelQueue[TaskId]
    followed_table: int | None = None

    def __init__(self, task: TaskId, deployment: Deployment, environment: TaskEnvironment) -> None:
        settings = deployment.settings
        self.id = task
        self._attempt = deployment.attempt
        self._settings = settings
        self._environment = environment
        self._clock = environment.clock
        self._store = environment.open_state(task, settings.state_map_bytes)
        self._tracker = StateTracker(self._clock)
        self._events: deque[TaskEvent] = deque()
        self._checkpoint_id = deployment.checkpoint_id
        self._checkpoint_time_ms: int | None = None

    def post(self, event: TaskEvent) -> None:
        self._events.append(event)
        self._environment.wake()

    def close(self) -> None:
        self._release()

    def _release(self) -> None:
        """Gives back what every task has; subclasses have more."""
        self._store.close()

    def _handle_events(self) -> bool:
        """Handles what was posted; returns whether there was anything."""
        handled = False
        while self._events:
            handled = True
            self._handle(self._events.popleft())
        return handled

    def _handle(self, event: TaskEvent) -> None:
        """Handles one event; events that don't concern a level are left alone."""
        match event:
            case CheckpointCommitted(checkpoint_id, kept):
                self._store.committed(checkpoint_id, kept)
                self._checkpoint_id = checkpoint_id
                self._checkpoint_time_ms = self._clock.now_ms()
            case CheckpointAbandoned(checkpoint_id):
                self._abandon(checkpoint_id)
            case SetRates() as rates:
                self._settings = self._settings.with_rates(rates)
                self._apply_rates()

    def _apply_rates(self) -> None:
        """Works by the rates of its settings from now on; a task that has none goes on as before."""

    def _abandon(self, checkpoint_id: int) -> None:
        """Stops waiting for whatever a checkpoint needed that is given up."""
        raise NotImplementedError

    @property
    def _rows_total(self) -> int | None:
        """Rows read since the stream was created; None where nobody counts them."""
        return None

    @property
    def _has_unwritten(self) -> bool:
        """Whether the state holds results that are still to be written; only sink tasks' may."""
        return False

    def _restore_store(self, checkpoint_id: int | None) -> dict[str, Any] | None:
        """Goes back to a checkpoint; returns what `_state` gave then, or None at the stream's beginning."""
        try:
            self._store.enter(self._attempt)
            return self._store.restore(checkpoint_id)
        except PenstockError:
            # The next attempt may open the store in this process, and LMDB allows only one to have it open.
            self._release()
            raise

    def _state(self) -> Mapping[str, Any]:
        """Hands what changed to the store; returns the rest of what a restart needs, as JSON can hold it."""
        raise NotImplementedError

    def _checkpoint(self, checkpoint_id: int, outbox: Outbox | None, version: int | None = None) -> None:
        """Makes the state durable, passes the barrier on and acknowledges; `version` is a source's place in its WAL."""
        started = time.perf_counter()
        stored = self._store.checkpoint(checkpoint_id, {**self._state(), ROWS_TOTAL: self._rows_total})
        if outbox is not None:
            outbox.signal(Barrier(checkpoint_id))
            outbox.flush()
        duration_ms = (time.perf_counter() - started) * 1000
        self._environment.acknowledge(TaskCheckpoint(
            self.id, checkpoint_id, stored.bytes_written, duration_ms, version, stored.digest, self._rows_total,
            self._has_unwritten))

    def _status(self, progress: TaskProgress, output: ChannelQueue[TaskId] | None = None, **more: Any) -> TaskStatus:
        """Returns what every task reports, and `more` fields of `TaskStatus`."""
        state, queue = self._tracker.current, self.input
        queues = QueueStatus(queue.used_bytes, queue.capacity_bytes, queue.peak_bytes,
                             in_flight_bytes=self._in_flight_bytes)
        if output is not None:
            queues = queues._replace(output_bytes=output.used_bytes, output_capacity=output.capacity_bytes,
                                     output_peak=output.peak_bytes)
        blocked = self._tracker.blocked()
        return TaskStatus(
            task=self.id, state=state.name, reason=state.reason, since_ms=state.since_ms, blocked_by=state.blocked_by,
            checkpoint_id=self._checkpoint_id, checkpoint_time_ms=self._checkpoint_time_ms, queues=queues,
            progress=progress._replace(rows_total=self._rows_total), size=self._size(),
            spent=TimeSpent(udf_s=self._udf_seconds, blocked_s=blocked.total_s, blocked_now_s=blocked.now_s,
                            limited_s=blocked.limited_s, limit=blocked.limit), **more)

    def _size(self) -> StateSize:
        """Returns the size of the task's state: what is in its store, and what it has beside that."""
        beside = self._table_bytes
        return StateSize(self._store.used_bytes + beside, self._settings.state_map_bytes,
                         self._store.memory_bytes + beside, self._windows_open, self._forgotten_groups)

    @property
    def _table_bytes(self) -> int:
        """Bytes of state in memory, beside the store."""
        return 0

    @property
    def _in_flight_bytes(self) -> int:
        """Bytes of results that a sink task writes before those in its input queue."""
        return 0

    @property
    def _windows_open(self) -> int | None:
        """How many windows it keeps; None for tasks without windows."""
        return None

    @property
    def _forgotten_groups(self) -> int | None:
        """How many groups STATE_TTL has let go since the stream was created; None without STATE_TTL."""
        return None

    @property
    def _udf_seconds(self) -> float:
        """How long users' functions have computed for the task."""
        return 0.0


class ComputingTask(BaseTask):
    """A task of a stream: it computes what the stream's plan says, with users' functions where that calls them."""

    def __init__(self, task: TaskId, deployment: StreamDeployment, environment: TaskEnvironment) -> None:
        super().__init__(task, deployment, environment)
        plan, settings = deployment.plan, deployment.settings
        self._plan: StreamPlan = plan
        # Only source tasks can tell which row a function failed for.
        strict = plan.policies.on_error != "null" and task.operator == "source"
        self._functions = UserFunctions(plan.functions, settings.functions_directory, self._clock, strict=strict)
        self._computer = Computer(self._functions, DuckdbBounds(
            settings.compute_bytes, spill=environment.spill, spill_bytes=settings.compute_spill_bytes))

    def _release(self) -> None:
        self._computer.close()
        super()._release()

    def _status(self, progress: TaskProgress, output: ChannelQueue[TaskId] | None = None, **more: Any) -> TaskStatus:
        functions = FunctionStatus(self._functions.errors, self._functions.report, self._functions.slowest)
        return super()._status(progress, output, functions=functions, **more)

    @property
    def _udf_seconds(self) -> float:
        return self._functions.seconds
