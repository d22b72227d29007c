"""How streams, workers and checkpoints are, as it is shown."""

from __future__ import annotations

from dataclasses import replace

from penstock.common.clock import Clock
from penstock.mnode.checkpoints.checkpoint_machine import CheckpointProgress
from penstock.mnode.controller.controller_settings import ControllerSettings
from penstock.mnode.controller.controller_state import ControllerState
from penstock.mnode.controller.executor_scaling import ExecutorScaling
from penstock.mnode.controller.group_jobs import GroupJobs
from penstock.mnode.controller.group_runtime import Runtime
from penstock.mnode.controller.memory_control import MemoryControl
from penstock.mnode.coordinator.stream_status import CheckpointInfo, StreamStatus, WorkerInfo
from penstock.mnode.groups.group_book import Group, GroupState, PlacedStream, StreamState


class ControllerReports:
    """Looks at what the controller's parts know; changes nothing."""

    def __init__(
        self, clock: Clock, state: ControllerState, settings: ControllerSettings, runtime: Runtime, jobs: GroupJobs,
        executors: ExecutorScaling, memory: MemoryControl,
    ) -> None:
        self._clock = clock
        self._state = state
        self._settings = settings
        self._runtime = runtime
        self._jobs = jobs
        self._executors = executors
        self._memory = memory

    def streams(self) -> dict[int, StreamStatus]:
        """Returns how each stream is."""
        return {stream.stream_id: self._stream(stream) for stream in self._state.groups.streams}

    def workers(self) -> list[WorkerInfo]:
        """Returns all worker processes that there are or should be, and what slots are free."""
        return [*(self._worker(group, index) for group in self._state.groups.groups for index in range(group.workers)),
                *self._executors.free_slots()]

    def _stream(self, placed: PlacedStream) -> StreamStatus:
        stream = self._state[placed.stream_id]
        reason = placed.reason or placed.group.reason
        if placed.remove:
            state = "STOPPING"
        elif placed.group.lacks_slots:
            state, reason = "WAITING", self._state.groups.waits_for(placed.group)
        elif placed.state is StreamState.RUNNING:
            state = "PAUSED" if stream.paused else "RUNNING"
            reason = reason or ("" if stream.pause is None else stream.pause.text)
        else:
            state = "STARTING" if placed.attempt == 0 and not reason else "RESTARTING"
            if not reason:
                reason = self._what_it_waits_for(placed)
        since_ms = self._clock.now_ms() - round((self._clock.monotonic() - placed.since) * 1000)
        return StreamStatus(
            state, reason, max(since_ms, stream.paused_ms) if state == "PAUSED" else since_ms, placed.attempt,
            placed.restarts, placed.alike, placed.group.name, stream.pause if state == "PAUSED" else None,
            (*stream.abandoned, *self._under_way(placed.stream_id)), dict(stream.damaged))

    def _under_way(self, stream_id: int) -> list[CheckpointInfo]:
        progress = self._state.checkpoints.progress(stream_id)
        return [] if progress is None or not progress.under_way else [_running_info(progress)]

    def _what_it_waits_for(self, placed: PlacedStream) -> str:
        if placed.state is StreamState.WAITING and not self._runtime.is_ready():
            return "Spark is starting"
        if placed.group.state is GroupState.STARTING:
            return f"{len(placed.group.joined)} of {placed.group.workers} workers are there"
        return placed.state.value

    def _worker(self, group: Group, index: int) -> WorkerInfo:
        executor = self._jobs.places.get(group.name, {}).get(index)
        info = WorkerInfo(
            group.name, index, group.nodes.node_of(index).id, group.state.name,
            self._state.groups.waits_for(group) if group.lacks_slots else group.reason, failures=group.failures,
            streams=tuple(self._state[stream_id].stream.name for stream_id in sorted(group.streams)),
            executor=executor, host=None if executor is None else self._executors.hosts.get(executor),
            slots=1 if group.slots else 0, nice=self._settings.nice(group.isolation_class))
        worker = self._state.workers.group(group.name).get(index)
        if worker is None:
            return info
        silent_ms = round((self._clock.monotonic() - worker.heard_at) * 1000)
        return replace(info, state="RUNNING", pid=worker.connection.pid, address=worker.connection.exchange_address,
                       heard_ms=self._clock.now_ms() - silent_ms, gathering_ms=round(worker.gathering_s * 1000, 1),
                       memory_bytes=self._memory.memory.by_pid.get(worker.connection.pid))


def _running_info(progress: CheckpointProgress) -> CheckpointInfo:
    missing = sorted(progress.tasks - progress.acknowledged.keys())
    phase = f"{len(progress.acknowledged)} of {len(progress.tasks)} tasks have written their state"
    return CheckpointInfo(
        progress.checkpoint_id, "RUNNING", progress.started_ms,
        bytes_written=sum(part.bytes_written for part in progress.acknowledged.values()),
        phase=phase if missing else "the commit record is being written",
        slowest_task=str(missing[0]) if missing else "",
        task_bytes={str(task): part.bytes_written for task, part in progress.acknowledged.items()})
