"""Performs what the machine of worker groups decides: jobs, attempts, and what workers are told."""

from __future__ import annotations

from concurrent.futures import Future

from penstock.common.clock import Clock
from penstock.common.logging import logger
from penstock.mnode.controller.controller_state import ControllerState
from penstock.mnode.controller.group_jobs import GroupJobs
from penstock.mnode.controller.stream_attempts import StreamAttempts
from penstock.mnode.groups import group_events
from penstock.tasks.protocol import control

_log = logger(__name__)


class GroupDriver:
    """The worker groups, and which streams they host."""

    def __init__(self, clock: Clock, state: ControllerState, jobs: GroupJobs, attempts: StreamAttempts) -> None:
        self._clock = clock
        self._state = state
        self._jobs = jobs
        self._attempts = attempts
        self._gone: Future[None] | None = None

    def close_all(self) -> Future[None]:
        """Ends all groups; the answer is there when none is left."""
        gone = self._gone = Future()
        self.handle(group_events.CloseAll())
        return gone

    def tick(self) -> None:
        """Handles that time has passed, if that changes anything."""
        at = self._state.groups.next_deadline()
        if at is not None and at <= self._clock.monotonic():
            self.handle(group_events.GroupTick())

    def worker_lost(self, group: str, index: int, reason: str) -> None:
        self.handle(group_events.WorkerLost(group, index, reason))

    def handle(self, event: group_events.Event) -> None:
        for instruction in self._state.groups.handle(event, self._clock.monotonic()):
            self._perform(instruction)
        if self._gone is not None and not self._gone.done() and not self._state.groups.groups:
            self._gone.set_result(None)

    def _perform(self, instruction: group_events.Instruction) -> None:
        workers = self._state.workers
        match instruction:
            case group_events.SubmitGroup():
                self._jobs.submit(instruction, self.handle)
            case group_events.ShutdownGroup(group):
                workers.send(group, control.Shutdown())
            case group_events.CancelGroup(group):
                self._jobs.cancel(group)
            case group_events.ForgetGroup(group):
                self._jobs.forget(group)
            case group_events.PrepareStream(stream_id, preparation):
                self._attempts.prepare(stream_id, preparation, self.handle)
            case group_events.DeployStream(stream_id, _, group):
                self._attempts.deploy(stream_id, group)
            case group_events.LetStreamRun(stream_id, attempt, group):
                self._attempts.let_run(stream_id, attempt, group)
            case group_events.HaltStream(stream_id, attempt, group):
                workers.send(group, control.StopTasks(stream_id, attempt))
            case group_events.StreamDown(stream_id, reason):
                self._attempts.down(stream_id, reason)
            case group_events.StreamRemoved(stream_id):
                self._attempts.forget(stream_id)
            case group_events.LateGroupEvent(ignored, reason):
                _log.debug("ignored %s: %s", ignored, reason)
