"""What the source tasks have in common: they follow a vnode's WAL, step by step, and may be paused."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.tasks.compute.child_tables import ChildTables
from penstock.tasks.dropped.dead_letter_writer import DeadLetters
from penstock.tasks.flow.outbox import Outbox
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.operators.base_task import ROWS_TOTAL, ComputingTask
from penstock.tasks.operators.stream_task import TaskEnvironment
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import Pause, Resume, StartCheckpoint, TaskEvent, TaskId
from penstock.tasks.protocol.task_status import LogProgress, TaskProgress, TaskStatus, TimeStatus


class BaseSourceTask(ComputingTask):
    """A task that follows one vnode's WAL, and may be paused.

    Subclasses implement `_work`, and open `_wal` once they know the version to go on from.
    """

    def __init__(
        self, deployment: StreamDeployment, index: int, downstream: Sequence[TaskId], environment: TaskEnvironment
    ) -> None:
        super().__init__(TaskId(deployment.stream_id, "source", index), deployment, environment)
        self.input = ChannelQueue(self._settings.queue_bytes, [self.id], environment.wake)
        self.output: ChannelQueue[TaskId] = ChannelQueue(self._settings.queue_bytes, list(downstream), environment.wake)
        self._outbox = Outbox(self.output, self._settings.block_bytes_max)
        self._source = self._plan.source
        self.followed_table = self._source.storage_uid
        self._vgroup_id = deployment.graph.source_vgroup_ids[index]
        self._children = ChildTables(self._source, deployment.children[index])
        self._checkpoints: deque[int] = deque()
        self._begun = 0
        self._paused = deployment.paused
        self._version = deployment.start_versions[index]
        self._skipped_to = 0
        self._rows_in = 0
        self._rows_before = 0
        self._dead_letters: DeadLetters | None = None

    def step(self) -> bool:
        progressed = self._handle_events()
        if not self._outbox.flush():
            self._enter_blocked()
            return self._read_ahead() or progressed
        if self._dead_letters is not None:
            progressed |= self._dead_letters.step()
            if self._dead_letters.full or (self._checkpoints and not self._dead_letters.settled):
                self._tracker.enter("WRITING", "waits for the dnode to acknowledge rows of its DLQ")
                return progressed
        if self._checkpoints:
            self._checkpoint(self._checkpoints.popleft(), self._outbox, self._needed_version())
            return True
        if self._paused:
            self._tracker.enter("PAUSED", "paused by PAUSE STREAM")
            return progressed
        return self._work(progressed)

    def _work(self, progressed: bool) -> bool:
        """Does the next piece of work; returns whether it, or this step before it, did anything."""
        raise NotImplementedError

    def _read_ahead(self) -> bool:
        """Reads more of the WAL if there is room for it; returns whether it did."""
        return False

    def _send(self, rows: pa.RecordBatch) -> None:
        """Sends rows on, where one task gets all of them."""
        self._outbox.send(self.output.channels[0], rows)
        self._outbox.flush()

    def next_deadline(self) -> float | None:
        return None if self._paused or self._outbox.blocked_channel is not None else self._due()

    def _due(self) -> float | None:
        """Returns the monotonic time at which there is something to do even if nothing has changed, or None."""
        return None

    def _monotonic_at(self, ms: int) -> float:
        """Returns the monotonic time at which the machine's clock will have come to a time, if it hasn't yet."""
        return self._clock.monotonic() + max(0, ms - self._clock.now_ms()) / 1000

    def _needed_version(self) -> int:
        """Returns the version that WAL and store must still be readable from for a restart from now."""
        return self._version

    def _handle(self, event: TaskEvent) -> None:
        match event:
            case StartCheckpoint(checkpoint_id):
                if checkpoint_id > self._begun:  # told twice, it is begun once
                    self._begun = checkpoint_id
                    self._checkpoints.append(checkpoint_id)
            case Pause():
                self._paused = True
            case Resume(skip_to_end):
                self._paused = False
                if skip_to_end:
                    self._skip_to_end()
                    self._skipped_to = self._version
            case _:
                super()._handle(event)

    def _abandon(self, checkpoint_id: int) -> None:
        if checkpoint_id in self._checkpoints:
            self._checkpoints.remove(checkpoint_id)

    def _enter_blocked(self) -> None:
        """What it has made isn't taken; a task that rests makes nothing more, and is paused."""
        if self._paused:
            self._tracker.enter("PAUSED", "paused by PAUSE STREAM; what it has sent isn't taken")
        else:
            self._tracker.enter("BACKPRESSURED", "what it has sent isn't taken", self._outbox.blocked_channel)

    @property
    def _rows_total(self) -> int:
        return self._rows_before + self._rows_in

    def _restore_store(self, checkpoint_id: int | None) -> dict[str, Any] | None:
        meta = super()._restore_store(checkpoint_id)
        self._rows_before = 0 if meta is None else meta[ROWS_TOTAL]
        return meta

    def _skip_to_end(self) -> None:
        """Leaves out what is in the WAL and wasn't processed."""
        raise NotImplementedError

    def status(self) -> TaskStatus:
        return self._status(TaskProgress(self._rows_in, self._outbox.rows_out, bytes_out=self._outbox.bytes_out),
                            self.output, log=self._log_progress(), time=self._time_status())

    def _time_status(self) -> TimeStatus:
        return TimeStatus()

    def _log_progress(self) -> LogProgress:
        return LogProgress(self._version, self._wal.acknowledged_version, self._wal.access, self._skipped_to)

    def _state(self) -> Mapping[str, Any]:
        return {"version": self._version}

    def _open_wal(self) -> None:
        """Follows the WAL from the version that was processed last."""
        self._wal = self._environment.open_wal(self._vgroup_id, self._version, self._source.storage_uid)

    def close(self) -> None:
        self._wal.close()
        super().close()
