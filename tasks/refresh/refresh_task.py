"""The task that keeps the result table of a stream of any query up to date: it has the engine compare the two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.errors import PenstockError
from penstock.common.logging import logger
from penstock.planner.task_plans.stream_plan import RefreshPlan
from penstock.tasks.external.emit.async_sink_writer import delay_after
from penstock.tasks.flow.inbox import Inbox
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.operators.base_task import ComputingTask
from penstock.tasks.operators.stream_task import TaskEnvironment
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import Barrier, Block, Pause, Resume, TaskEvent, TaskId
from penstock.tasks.protocol.refreshing import Refreshed, RefreshRequest
from penstock.tasks.protocol.task_status import TaskProgress, TaskStatus

_SHARE = 0.25
"""The engine computes whole answers for at most this part of the time."""

_TABLES_MAX = 1_000
"""With more child tables that have changed, the answer is computed as a whole."""

_log = logger(__name__)


def rest_after(took: float) -> float:
    """Returns how long the engine rests after it has computed for so many seconds."""
    return took * (1 / _SHARE - 1)


class RefreshTask(ComputingTask):
    """Has the answer computed once at the start, and again when its source tasks tell of changes, one at a time.

    Nothing is kept but what the result table holds: an attempt that begins compares it anew, so a checkpoint needn't
    wait for what is still to be compared.
    """

    def __init__(
        self, deployment: StreamDeployment, index: int, upstream: Sequence[TaskId], environment: TaskEnvironment
    ) -> None:
        super().__init__(TaskId(deployment.stream_id, "sink", index), deployment, environment)
        assert isinstance(deployment.plan.computation, RefreshPlan)
        self.input: ChannelQueue[TaskId] = ChannelQueue(
            deployment.settings.queue_bytes, list(upstream), environment.wake)
        self.output: ChannelQueue[TaskId] | None = None
        self._inbox = Inbox(self.input, aligned=deployment.plan.policies.guarantee == "exactly_once")
        self._paused = deployment.paused
        self._by_tables = bool(deployment.plan.computation.groups)
        #: child tables that have changed since the last comparison; None: any may
        self._changed: set[int] | None = None
        self._allowed_at = self._clock.monotonic()
        self._begun_at: float | None = None
        self._again = False
        self._asked: set[int] | None = None
        self._answer: pa.Table | PenstockError | None = None
        self._failure: Exception | None = None
        self._outage = ""
        self._tries = 0
        self._rows_in = self._rows_out = 0
        self._restore(deployment.checkpoint_id)

    def _restore(self, checkpoint_id: int | None) -> None:
        """Goes back to a checkpoint."""
        self._restore_store(checkpoint_id)

    # -- what the runtime calls ------------------------------------------------------------------------------

    def step(self) -> bool:
        progressed = self._handle_events()
        progressed |= self._finish()
        if self._begun_at is None and self._may_begin:
            self._begin()
            return True
        return self._take() or progressed

    @property
    def _is_behind(self) -> bool:
        """Whether there are changes that the result table doesn't have."""
        return self._changed is None or bool(self._changed)

    @property
    def _has_unwritten(self) -> bool:
        return self._is_behind or self._begun_at is not None

    @property
    def _may_begin(self) -> bool:
        return self._is_behind and not self._paused and self._clock.monotonic() >= self._allowed_at

    def _take(self) -> bool:
        """Hears what has changed, and of checkpoints."""
        taken = self._inbox.next()
        if taken is None:
            self._rest()
            return False
        channel, item = taken
        match item:
            case Block(data=data):
                rows = pc.sum(data.column(1)).as_py()
                self._rows_in += rows
                # Somebody has asked for it, or deleted rows of any table.
                self._again |= not rows and bool(data.column(0).null_count)
                self._note(data)
            case Barrier(checkpoint_id) as barrier:
                if self._inbox.barrier(channel, barrier):
                    self._checkpoint(checkpoint_id, None)
        return True

    def _note(self, changes: pa.RecordBatch) -> None:
        if self._changed is None or not self._by_tables or changes.column(0).null_count:
            self._changed = None
            return
        self._changed.update(changes.column(0).to_pylist())
        if len(self._changed) > _TABLES_MAX:
            self._changed = None

    def _rest(self) -> None:
        if self._begun_at is not None:
            self._tracker.enter("WRITING", "waits for the engine, which compares the result table with the query")
        elif self._paused:
            self._tracker.enter("PAUSED", "paused by PAUSE STREAM")
        elif self._outage:
            self._tracker.enter("RETRYING", self._outage)
        elif self._inbox.aligning:
            waiting = ", ".join(str(channel) for channel in self._inbox.waiting_for())
            self._tracker.enter("ALIGNING", f"waits for the barrier of {waiting}")
        elif self._is_behind:
            self._tracker.enter("IDLE", "gathers changes: the last comparison took a while")
        else:
            self._tracker.enter("IDLE", "nothing has changed")

    def next_deadline(self) -> float | None:
        return self._allowed_at if self._is_behind and self._begun_at is None and not self._paused else None

    def status(self) -> TaskStatus:
        return self._status(TaskProgress(self._rows_in, self._rows_out))

    # -- the comparison ----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._asked, again = self._changed, self._again
        tuids = None if self._changed is None else tuple(sorted(self._changed))
        request = RefreshRequest(self.id.stream_id, self._attempt, tuids, again)
        self._changed, self._again = set(), False
        self._begun_at = self._clock.monotonic()
        self._environment.in_background(partial(self._refresh, request), f"refresh {self.id}")

    def _refresh(self, request: RefreshRequest) -> None:
        try:
            self._answer = self._ask(request)
        except PenstockError as error:
            self._answer = error
        except Exception as error:  # noqa: BLE001 - a thread has nobody above it: the task raises it
            _log.exception("refreshing the results of %s failed", self.id)
            self._failure = error
        self._environment.wake()

    def _ask(self, request: RefreshRequest) -> pa.Table:
        """Returns what the engine answers; runs in a thread of its own."""
        return self._environment.ask(request)

    def _done(self, answer: pa.Table, took: float) -> Refreshed:
        """Takes an answer that took so many seconds; returns what was done."""
        return Refreshed.of(answer)

    def _finish(self) -> bool:
        """Takes note of a comparison that is done; returns whether one is."""
        if self._failure is not None:
            raise self._failure
        if self._begun_at is None or self._answer is None:
            return False
        now, answer = self._clock.monotonic(), self._answer
        took, self._begun_at, self._answer = now - self._begun_at, None, None
        if isinstance(answer, PenstockError):
            self._changed = None
            self._tries += 1
            self._outage = str(answer)
            self._allowed_at = now + delay_after(self._tries)
            return True
        self._tries, self._outage = 0, ""
        done = self._done(answer, took)
        self._rows_out += done.written
        self._allowed_at = now + done.rest_s
        if done.again:
            self._changed = None if self._asked is None or self._changed is None else self._changed | self._asked
        return True

    # -- events and checkpoints --------------------------------------------------------------------------------

    def _handle(self, event: TaskEvent) -> None:
        match event:
            case Pause():
                self._paused = True
            case Resume():
                self._paused, self._allowed_at = False, self._clock.monotonic()
            case _:
                super()._handle(event)

    def _abandon(self, checkpoint_id: int) -> None:
        self._inbox.abandon(checkpoint_id)

    def _state(self) -> Mapping[str, Any]:
        return {}
