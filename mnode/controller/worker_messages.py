"""What workers say, handed to whom it concerns."""

from __future__ import annotations

from penstock.common.clock import Clock
from penstock.common.errors import InternalError
from penstock.common.logging import about, logger
from penstock.mnode.checkpoints import checkpoint_machine
from penstock.mnode.controller.checkpoint_driver import CheckpointDriver
from penstock.mnode.controller.controller_state import ControllerState
from penstock.mnode.controller.group_driver import GroupDriver
from penstock.mnode.controller.group_jobs import GroupJobs
from penstock.mnode.controller.queue_bounds import QueueBounds
from penstock.mnode.controller.runtime_environment import WorkerLine
from penstock.mnode.controller.stream_pauses import StreamPauses
from penstock.mnode.groups import group_events
from penstock.tasks.protocol import control
from penstock.tasks.protocol.messages import Recalculate

_log = logger(__name__)


class WorkerMessages:
    """Handles them on the mailbox's thread."""

    def __init__(
        self, clock: Clock, state: ControllerState, jobs: GroupJobs, groups: GroupDriver,
        checkpoints: CheckpointDriver, queues: QueueBounds, pauses: StreamPauses,
    ) -> None:
        self._clock = clock
        self._state = state
        self._jobs = jobs
        self._groups = groups
        self._checkpoints = checkpoints
        self._queues = queues
        self._pauses = pauses

    def hello(self, connection: WorkerLine) -> None:
        """A worker has come."""
        if connection.group not in self._jobs:
            _log.info("worker %s/%d comes too late and is sent away", connection.group, connection.index)
            connection.close()
            return
        self._state.workers.join(connection)
        self._groups.handle(group_events.WorkerJoined(connection.group, connection.index))

    def lost(self, connection: WorkerLine, reason: str) -> None:
        """The connection to a worker is broken."""
        if self._state.workers.of(connection) is not None:
            self._groups.worker_lost(connection.group, connection.index, reason)

    def handle(self, connection: WorkerLine, message: control.WorkerMessage) -> None:
        """A worker says something. Raises InternalError for what no worker says."""
        worker = self._state.workers.of(connection)
        if worker is None:
            return
        worker.heard_at = self._clock.monotonic()
        match message:
            case control.Heartbeat():
                worker.gathering_s, worker.busy = message.gathering_s, message.busy
                self._state.workers.tell_crowd(worker)
                self._heartbeat(message, connection.index)
            case control.Deployed():
                self._deployed(message, connection.index)
            case control.Failed():
                self._failed(message, connection.index)
            case control.Stopped():
                self._groups.handle(
                    group_events.StreamStopped(message.stream_id, message.attempt, connection.index))
            case control.ReadBackWanted():
                self._read_back(message)
            case control.Acknowledged():
                self._checkpoints.handle(checkpoint_machine.Acknowledgement(message.checkpoint, message.attempt))
            case _:
                raise InternalError(f"worker {connection.index} sent a {type(message).__name__}")

    def _heartbeat(self, message: control.Heartbeat, index: int) -> None:
        known = [status for status in message.statuses if status.task.stream_id in self._state]
        now = self._clock.monotonic()
        self._state.monitor.heartbeat(known, now, index)
        self._state.monitor.still(message.still, now, index)
        self._state.monitor.untold(message.untold, now, index)
        for stream_id in {*(status.task.stream_id for status in known), *message.still}:
            if stream_id in self._state:
                self._pauses.watch(stream_id)
        self._queues.heard(message.queues, index)

    def _deployed(self, message: control.Deployed, index: int) -> None:
        stream = self._state.get(message.stream_id)
        if stream is not None and stream.runs_attempt(message.attempt):
            stream.tasks.update(message.tasks)
        self._groups.handle(group_events.StreamDeployed(message.stream_id, message.attempt, index))

    def _failed(self, message: control.Failed, index: int) -> None:
        where = f"task {message.task}" if message.task else f"worker {index}"
        _log.error("stream %x, %s: %s\n%s", message.stream_id, where, message.error, message.trace,
                   extra=about(stream=self._state.name(message.stream_id), task=message.task, attempt=message.attempt))
        if message.damaged:
            self._note_damage(message)
        cause = group_events.Cause(message.kind, message.code, message.task.operator if message.task else "")
        self._groups.handle(group_events.StreamFailed(
            message.stream_id, message.attempt, f"{where}: {message.error}", cause))

    def _note_damage(self, message: control.Failed) -> None:
        """Sees to it that the next attempt starts from the checkpoint before."""
        stream = self._state.get(message.stream_id)
        if stream is None or stream.deployment is None or not stream.runs_attempt(message.attempt):
            return
        if stream.deployment.checkpoint_id is not None:
            stream.damaged[stream.deployment.checkpoint_id] = message.error

    def _read_back(self, message: control.ReadBackWanted) -> None:
        """Hands an agg task's order to the source tasks; what comes of it is part of its stream's next checkpoints."""
        stream_id = message.order.task.stream_id
        stream = self._state.groups.stream(stream_id)
        if stream is not None and stream.attempt == message.attempt:
            for first, last in message.order.ranges:
                self._state.order(stream_id, Recalculate(first, last))
