"""Runs streams on worker groups, checkpoints them, and tells how they are.

One thread takes all events, in order, and never waits for anything: slow work (starting jobs, writing records,
collecting a deployment) is done elsewhere and comes back as an event. The public methods may be called by any thread.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from penstock.common.clock import Clock
from penstock.common.errors import UnavailableError
from penstock.common.logging import about, logger
from penstock.mnode.checkpoints.checkpoint_machine import CheckpointMachine
from penstock.mnode.checkpoints.commit_records import CommitRecord, CommitRecords
from penstock.mnode.controller.checkpoint_driver import CheckpointDriver
from penstock.mnode.controller.controller_reports import ControllerReports
from penstock.mnode.controller.controller_settings import ControllerSettings
from penstock.mnode.controller.controller_state import ControlledStream, ControllerState
from penstock.mnode.controller.engine_hooks import EngineHooks
from penstock.mnode.controller.executor_scaling import ExecutorScaling
from penstock.mnode.controller.group_driver import GroupDriver
from penstock.mnode.controller.group_jobs import GroupJobs
from penstock.mnode.controller.group_runtime import Runtime, WorkerLaunch
from penstock.mnode.controller.mailbox import Mailbox
from penstock.mnode.controller.memory_control import MemoryControl
from penstock.mnode.controller.queue_bounds import QueueBounds
from penstock.mnode.controller.runtime_environment import RuntimeEnvironment, Threads, WorkerLine
from penstock.mnode.controller.stream_attempts import StreamAttempts
from penstock.mnode.controller.stream_pauses import StreamPauses
from penstock.mnode.controller.worker_messages import WorkerMessages
from penstock.mnode.controller.worker_roster import WorkerRoster
from penstock.mnode.coordinator.running_stream import RunningStream
from penstock.mnode.coordinator.stream_status import EventInfo, MemoryInfo, StreamStatus, WorkerInfo
from penstock.mnode.coordinator.task_monitor import Logged, Monitor, TaskReport, nothing_logged
from penstock.mnode.groups.group_events import AddStream, RemoveStream, SlotsKnown
from penstock.mnode.groups.worker_groups import GroupMachine
from penstock.tasks.protocol import control
from penstock.tasks.protocol.messages import Recalculate, Replay, SetRates, TaskId, UseConnection
from penstock.tasks.protocol.task_status import TaskStatus

if TYPE_CHECKING:
    from penstock.common.connection import OpenedConnection

_log = logger(__name__)

_ORDER_TIMEOUT_S = 1.5
_STOP_TIMEOUT_S = 30.0


class StreamController:
    """Runs the streams of one engine; see the methods. Construct, use, `close`."""

    def __init__(
        self,
        clock: Clock,
        settings: ControllerSettings,
        records: CommitRecords,
        runtime: Runtime,
        launch: WorkerLaunch,
        hooks: EngineHooks,
        environment: RuntimeEnvironment | None = None,
    ) -> None:
        """`environment`: threads and sockets by default."""
        environment = environment or Threads()
        self._clock = clock
        self._settings = settings
        self._mailbox = Mailbox(clock, environment)
        self._hooks = hooks
        monitor = Monitor(max(3.0 * settings.heartbeat_interval_s, 1.0), settings.stall_timeout_s, self._follow)
        workers = WorkerRoster(clock, self._mailbox, settings.heartbeat_timeout_s, environment.is_full)
        self._state = ControllerState(
            clock, GroupMachine(settings.groups), CheckpointMachine(settings.checkpoints), monitor, workers)
        self._listener = environment.listen(launch.secret, self._hello, self._message, self._lost, settings.host)
        queues = QueueBounds(self._state, settings.queue_budget_bytes)
        self._pauses = StreamPauses(clock, self._mailbox, self._state, hooks.on_pause)
        self._checkpoints = CheckpointDriver(clock, self._mailbox, self._state, records, hooks)
        attempts = StreamAttempts(self._mailbox, self._state, records, queues, self._checkpoints)
        self._jobs = GroupJobs(self._mailbox, workers, runtime, launch, settings, self._listener.address)
        self._groups = GroupDriver(clock, self._state, self._jobs, attempts)
        self._executors = ExecutorScaling(
            clock, self._mailbox, self._state.groups, self._jobs, runtime, settings,
            lambda slots: self._groups.handle(SlotsKnown(slots)))
        self._memory = MemoryControl(clock, self._mailbox, self._state, self._pauses, settings, hooks)
        self._reports = ControllerReports(
            clock, self._state, settings, runtime, self._jobs, self._executors, self._memory)
        self._messages = WorkerMessages(
            clock, self._state, self._jobs, self._groups, self._checkpoints, queues, self._pauses)
        self._mailbox.open(self._tick, self._next_deadline)

    # --- what others ask for -----------------------------------------------------------------------------------

    def start(self, stream: RunningStream) -> None:
        """Begins to run a stream; returns at once. Nothing happens if it runs already."""
        self._mailbox.ask(lambda: self._start(stream))

    def wait_running(self, stream_id: int, timeout_s: float) -> bool:
        """Waits until the stream's tasks run for the first time; returns whether they do."""
        future = self._mailbox.ask(lambda: self._state.require(stream_id).running)
        with contextlib.suppress(FutureTimeoutError):
            self._mailbox.result(future, timeout_s)
        return future.done()

    def stop(self, stream_id: int, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Ends a stream and forgets it; returns when none of its tasks is left.

        Raises UnavailableError if that takes longer than `timeout_s`; it goes on being ended all the same.
        """
        removed = self._mailbox.ask(lambda: self._remove(stream_id))
        if removed is None:
            return
        try:
            self._mailbox.result(removed, timeout_s)
        except FutureTimeoutError:
            raise UnavailableError(f"stream {stream_id:x} has not ended within {timeout_s:g} s") from None

    def pause(self, stream_id: int) -> None:
        """Lets the source tasks of a stream rest, also those of later attempts."""
        self._mailbox.ask(lambda: self._pauses.pause(stream_id))

    def resume(self, stream_id: int, skip_to_end: bool = False) -> None:
        """Lets a paused stream go on; `skip_to_end` leaves out what was written meanwhile."""
        self._mailbox.ask(lambda: self._resume(stream_id, skip_to_end))

    def set_rates(self, stream_id: int, rates: SetRates) -> None:
        """Has the tasks of a stream work by other rates from now on, also those of later attempts."""
        self._mailbox.ask(lambda: self._set_rates(stream_id, rates))

    def set_state_limit(self, stream_id: int, limit: int) -> None:
        """Gives a stream another limit, 0 for none; a paused stream stays so."""
        self._mailbox.ask(lambda: self._set_state_limit(stream_id, limit))

    def use_connection(self, stream_id: int, connection: OpenedConnection) -> None:
        """Has a stream write, or an ingest read, by this version of its connection. A later attempt opens it itself."""
        self._mailbox.ask(lambda: self._state.order(stream_id, UseConnection(connection)))

    def recalculate(self, stream_id: int, order: Recalculate | Replay) -> None:
        """Has a running stream compute a range of time, or rows that it left out, again.

        Returns once a checkpoint holds the order. If that takes long the order stands all the same. Raises
        NotFoundError, or UnavailableError if it doesn't run.
        """
        future = self._mailbox.ask(lambda: self._recalculate(stream_id, order))
        try:
            self._mailbox.result(future, _ORDER_TIMEOUT_S)
        except FutureTimeoutError:
            _log.info("stream %x: RECALCULATE is under way, but no checkpoint holds it yet", stream_id)

    def checkpoint_now(self, stream_id: int, timeout_s: float = 30.0) -> CommitRecord:
        """Takes a checkpoint of a running stream; returns its record once it is valid.

        Raises NotFoundError for an unknown stream, UnavailableError if the checkpoint is abandoned or takes too long.
        """
        _, future = self._mailbox.ask(lambda: self._checkpoints.request(stream_id))
        try:
            return self._mailbox.result(future, timeout_s)
        except FutureTimeoutError:
            text = f"the checkpoint of stream {stream_id:x} is not done within {timeout_s:g} s"
            raise UnavailableError(text) from None

    def begin_checkpoint(self, stream_id: int, timeout_s: float) -> tuple[int, bool]:
        """Has a checkpoint of a running stream taken; returns its id, and whether it became valid within `timeout_s`.

        One that takes longer goes on. Raises NotFoundError for an unknown stream, UnavailableError if it is abandoned.
        """
        checkpoint_id, future = self._mailbox.ask(lambda: self._checkpoints.request(stream_id))
        try:
            return self._mailbox.result(future, timeout_s).checkpoint_id, True
        except FutureTimeoutError:
            return checkpoint_id, False

    def close(self, final_checkpoint: bool = True) -> None:
        """Ends all streams and workers; takes at most about as long as the two timeouts for it together.

        With `final_checkpoint`, running streams are checkpointed first, so that they go on from here next time.
        """
        if self._mailbox.closed:
            return
        timeout_s = self._settings.close_timeout_s
        if final_checkpoint:
            self._checkpoint_all(self._settings.final_checkpoint_timeout_s)
        gone = self._mailbox.ask(self._groups.close_all)
        try:
            self._mailbox.result(gone, timeout_s)
        except FutureTimeoutError:
            _log.warning("some workers have not left within %g s; they are cut off", timeout_s)
        self._mailbox.ask(self._jobs.cancel_all)
        self._mailbox.close()
        self._listener.close()
        self._mailbox.end_helpers()

    # --- what is shown -----------------------------------------------------------------------------------------

    def statuses(self) -> list[TaskStatus]:
        """Returns the latest status of each task, ordered by task."""
        return self._mailbox.ask(self._state.monitor.statuses)

    def statuses_of(self, stream_id: int) -> list[TaskStatus]:
        """Returns the latest status of each task of a stream, in no order and without the rows left out."""
        return self._mailbox.ask(lambda: self._state.monitor.statuses_of(stream_id))

    def task_reports(self) -> list[TaskReport]:
        """Returns the latest status of each task with its rates and lag, ordered by task."""
        return self._mailbox.ask(lambda: self._state.monitor.report(self._clock.monotonic()))

    def stream_states(self) -> dict[int, StreamStatus]:
        """Returns how each stream is."""
        return self._mailbox.ask(self._reports.streams)

    def events(self) -> list[EventInfo]:
        """Returns what happened lately, oldest first."""
        return self._mailbox.ask(self._state.events)

    def worker_pids(self) -> dict[str, dict[int, int]]:
        """Returns the process ids of the workers by group and place."""
        return self._mailbox.ask(self._state.workers.pids)

    def memory(self) -> list[MemoryInfo]:
        """Returns what each process took when memory was measured last, and all together."""
        return self._mailbox.ask(self._memory.infos)

    def workers(self) -> list[WorkerInfo]:
        """Returns all worker processes that there are or should be."""
        return self._mailbox.ask(self._reports.workers)

    # --- for environments without threads ------------------------------------------------------------------------

    @property
    def asked(self) -> bool:
        """Whether something has come in that `turn` would handle, besides what is due by time."""
        return self._mailbox.waiting

    def turn(self) -> None:
        """Handles everything that has come in, and what is due; the body of the controller's thread."""
        self._mailbox.turn()

    # --- inside, on the mailbox's thread -------------------------------------------------------------------------

    def _start(self, stream: RunningStream) -> None:
        if stream.stream_id in self._state:
            return
        self._state.add(ControlledStream(stream, stream.paused, stream.pause))
        self._groups.handle(AddStream(
            stream.stream_id, stream.database, stream.graph.nodes, stream.isolation_class))

    def _remove(self, stream_id: int) -> Future[None] | None:
        stream = self._state.get(stream_id)
        if stream is None:
            return None
        self._groups.handle(RemoveStream(stream_id))
        return stream.removed

    def _resume(self, stream_id: int, skip_to_end: bool) -> None:
        self._pauses.resume(stream_id, skip_to_end)
        if skip_to_end:
            # An attempt that starts from an older checkpoint would read what was to be skipped.
            self._checkpoints.request_if_running(stream_id)

    def _set_rates(self, stream_id: int, rates: SetRates) -> None:
        found = self._state.require(stream_id)
        found.stream = replace(found.stream, settings=found.stream.settings.with_rates(rates))
        self._state.order(stream_id, rates)

    def _set_state_limit(self, stream_id: int, limit: int) -> None:
        found = self._state.require(stream_id)
        found.stream = replace(found.stream, state_limit=limit)

    def _recalculate(self, stream_id: int, order: Recalculate | Replay) -> Future[CommitRecord]:
        self._state.require(stream_id)
        if not self._state.runs(stream_id):
            raise UnavailableError(f"stream {stream_id:x} isn't running", hint="try again once SHOW STREAMS says so")
        self._state.order(stream_id, order)
        return self._checkpoints.request(stream_id)[1]

    def _follow(self, task: TaskId) -> Logged:
        """Returns what tells how far the log is that a task follows."""
        stream = self._state.get(task.stream_id)
        followed = None if stream is None else stream.stream.followed_by(task)
        return nothing_logged if followed is None else partial(self._hooks.logged, *followed)

    def _tick(self) -> None:
        self._groups.tick()
        self._checkpoints.tick()
        self._state.workers.check_silence(self._groups.worker_lost)
        self._memory.tick()
        self._executors.tick()

    def _next_deadline(self) -> float | None:
        deadlines = (
            self._state.groups.next_deadline(), self._state.checkpoints.next_deadline(),
            self._state.workers.next_check(), self._memory.next_measurement(), self._executors.next_count())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # --- inside, on others ---------------------------------------------------------------------------------------

    def _checkpoint_all(self, timeout_s: float) -> None:
        running = [stream_id for stream_id, status in self.stream_states().items() if status.state == "RUNNING"]
        futures = [self._mailbox.ask(partial(self._checkpoints.request, stream_id))[1] for stream_id in running]
        deadline = self._clock.monotonic() + timeout_s
        for stream_id, future in zip(running, futures, strict=True):
            try:
                self._mailbox.result(future, max(0.0, deadline - self._clock.monotonic()))
            except FutureTimeoutError:
                _log.warning("stream %x is closed without a last checkpoint: it took too long", stream_id,
                             extra=about(stream=self._state.name(stream_id)))
            except UnavailableError as error:
                _log.warning("stream %x is closed without a last checkpoint: %s", stream_id, error,
                             extra=about(stream=self._state.name(stream_id)))

    def _hello(self, connection: WorkerLine) -> None:
        self._mailbox.post(lambda: self._messages.hello(connection))

    def _message(self, connection: WorkerLine, message: control.WorkerMessage) -> None:
        self._mailbox.post(lambda: self._messages.handle(connection, message))

    def _lost(self, connection: WorkerLine, reason: str) -> None:
        self._mailbox.post(lambda: self._messages.lost(connection, reason))
