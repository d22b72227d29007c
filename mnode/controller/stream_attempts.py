"""The attempts of streams: what the next one starts from, how it is deployed, run and ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from penstock.common.errors import CorruptionError, InternalError, PenstockError
from penstock.common.logging import about, logger
from penstock.mnode.checkpoints import checkpoint_machine
from penstock.mnode.checkpoints.commit_records import CommitRecord, CommitRecords, require_layout
from penstock.mnode.controller.checkpoint_driver import CheckpointDriver
from penstock.mnode.controller.controller_state import ControlledStream, ControllerState
from penstock.mnode.controller.mailbox import Mailbox
from penstock.mnode.controller.queue_bounds import QueueBounds
from penstock.mnode.coordinator.running_stream import RunningStream
from penstock.mnode.groups import group_events
from penstock.tasks.protocol import control
from penstock.tasks.protocol.deployment import Deployment
from penstock.tasks.protocol.messages import Pause, Resume

_log = logger(__name__)

Answer = Callable[[group_events.Event], None]


class StreamAttempts:
    """Prepares, deploys, runs and ends the attempts of all streams."""

    def __init__(
        self, mailbox: Mailbox, state: ControllerState, records: CommitRecords, queues: QueueBounds,
        checkpoints: CheckpointDriver,
    ) -> None:
        self._mailbox = mailbox
        self._state = state
        self._records = records
        self._queues = queues
        self._checkpoints = checkpoints

    # --- preparing -------------------------------------------------------------------------------------------------

    def prepare(self, stream_id: int, preparation: int, answer: Answer) -> None:
        """Collects what the next attempt needs; `answer` is called with what comes of it, on the mailbox's thread.

        A commit record that is being written is waited for.
        """
        stream = self._state[stream_id]
        begin = partial(self._mailbox.helper, self._prepare, stream, preparation, answer)
        if stream.record_under_way:
            stream.after_record = begin
        else:
            begin()

    def _prepare(self, stream: ControlledStream, preparation: int, answer: Answer) -> None:
        """Does so on a helper thread, since files and the catalog may be slow."""
        running = stream.stream
        try:
            attempt = running.keeper.next_attempt()
            record = newest_or_recovered(self._records, running, attempt, stream.damaged)
            ids = self._records.ids(running.stream_id)
            deployment = running.deployment(attempt, None if record is None else record.checkpoint_id, stream.paused)
        except Exception as error:  # noqa: BLE001
            reason = str(error)
            if not isinstance(error, PenstockError):
                _log.exception("stream %s could not be prepared", running.name, extra=about(stream=running.name))
                reason = f"{type(error).__name__}: {error}"
            failed = group_events.PreparationFailed(
                running.stream_id, preparation, reason, group_events.Cause.of(error))
            self._mailbox.post(lambda: answer(failed))
            return
        last_id = max([*ids, stream.last_checkpoint_id, running.last_checkpoint_id])
        done = group_events.StreamPrepared(running.stream_id, preparation, attempt)

        def take() -> None:
            self._take(stream, deployment, record, last_id)
            answer(done)

        self._mailbox.post(take)

    def _take(
        self, stream: ControlledStream, deployment: Deployment, record: CommitRecord | None, last_checkpoint_id: int
    ) -> None:
        stream.deployment = deployment
        stream.record = record
        stream.last_checkpoint_id = last_checkpoint_id
        stream.tasks.clear()
        self._tell_damaged(stream, record)

    def _tell_damaged(self, stream: ControlledStream, record: CommitRecord | None) -> None:
        """Says once of each checkpoint that is newer than the one to start from why it is passed over."""
        used = None if record is None else record.checkpoint_id
        for checkpoint_id, why in self._records.passed_over(stream.stream_id, used, stream.damaged).items():
            if checkpoint_id not in stream.told_damaged:
                stream.told_damaged.add(checkpoint_id)
                self._state.tell(stream.stream_id, f"checkpoint {checkpoint_id} is damaged and skipped: {why}")

    # --- deploying and running -------------------------------------------------------------------------------------

    def deploy(self, stream_id: int, group: str) -> None:
        """Sends the prepared deployment to the workers of a group."""
        stream = self._state[stream_id]
        if stream.deployment is None:
            raise InternalError(f"stream {stream_id:x} is to be deployed without a deployment")
        settings = stream.deployment.settings
        queue_bytes = self._queues.enter(stream_id, stream.stream.graph.queue_counts(), settings.queue_bytes)
        deployment = replace(stream.deployment, settings=replace(settings, queue_bytes=queue_bytes))
        workers = self._state.workers.group(group)
        peers = tuple(workers[index].connection.exchange_address for index in sorted(workers))
        since = "the start" if deployment.checkpoint_id is None else f"checkpoint {deployment.checkpoint_id}"
        self._state.tell(stream_id, f"attempt {deployment.attempt} is deployed, from {since}")
        for index, worker in workers.items():
            worker.connection.send(control.Deploy(deployment.for_worker(index), peers))
        self._queues.share()

    def let_run(self, stream_id: int, attempt: int, group: str) -> None:
        """Starts the tasks of an attempt that is deployed everywhere, as the stream is by now."""
        stream = self._state[stream_id]
        running = stream.stream
        if stream.skip_pending and not stream.paused:
            self._state.order(stream_id, Resume(skip_to_end=True))
            stream.skip_pending = False
        elif stream.deployment is not None and stream.deployment.paused != stream.paused:
            # Before the tasks start: a stream that was paused meanwhile must not read a single row.
            self._state.order(stream_id, Pause() if stream.paused else Resume())
        if stream.deployment is not None and stream.deployment.settings != running.settings:
            self._state.order(stream_id, running.settings.rates)  # they changed since it was prepared
        self._state.workers.send(group, control.StartTasks(stream_id, attempt))
        self._checkpoints.handle(checkpoint_machine.AttemptRuns(
            stream_id, attempt, frozenset(stream.tasks), running.graph.source_vgroup_ids, stream.last_checkpoint_id,
            running.checkpoint_interval_s, running.layout))
        self._state.tell(stream_id, f"attempt {attempt} runs")
        if not stream.running.done():
            stream.running.set_result(None)

    # --- ending ----------------------------------------------------------------------------------------------------

    def down(self, stream_id: int, reason: str) -> None:
        """The attempt runs no more: its checkpoints are void."""
        self._state.tell(stream_id, f"down: {reason}")
        self._state.monitor.forget(stream_id)
        self._checkpoints.handle(checkpoint_machine.AttemptEnds(stream_id, reason))

    def forget(self, stream_id: int) -> None:
        """Nothing of the stream is left on any worker."""
        self._checkpoints.handle(checkpoint_machine.AttemptEnds(stream_id, "the stream was removed"))
        stream = self._state.remove(stream_id)
        self._state.monitor.forget(stream_id)
        self._queues.leave(stream_id)
        if stream is not None and not stream.removed.done():
            stream.removed.set_result(None)


def newest_or_recovered(
    records: CommitRecords, stream: RunningStream, attempt: int, damaged: dict[int, str]
) -> CommitRecord | None:
    """Returns the newest checkpoint that can be used, from the stream's backup if none is there; None: the beginning.

    `damaged` are those that can't be; what comes from the backup can. Raises CorruptionError, and StateLayoutError if
    the state was saved by another plan.
    """
    record = _newest_or_recovered(records, stream, attempt, damaged)
    if record is not None:
        require_layout(record.layout, stream.layout)
    return record


def _newest_or_recovered(
    records: CommitRecords, stream: RunningStream, attempt: int, damaged: dict[int, str]
) -> CommitRecord | None:
    try:
        record = records.newest(stream.stream_id, damaged)
    except CorruptionError:
        if not stream.keeper.recover():
            raise
        damaged.clear()
        return records.newest(stream.stream_id)
    if record is None and attempt > 1 and stream.keeper.recover():
        return records.newest(stream.stream_id)
    return record
