"""Performs what the checkpoint machine decides: barriers, commit records, and who waits for them."""

from __future__ import annotations

from concurrent.futures import Future

from penstock.common.clock import Clock
from penstock.common.errors import PenstockError, UnavailableError
from penstock.common.logging import about, logger
from penstock.mnode.checkpoints import checkpoint_machine
from penstock.mnode.checkpoints.commit_records import CommitRecord, CommitRecords
from penstock.mnode.controller.controller_state import ControlledStream, ControllerState
from penstock.mnode.controller.engine_hooks import EngineHooks
from penstock.mnode.controller.mailbox import Mailbox
from penstock.mnode.coordinator.stream_status import CheckpointInfo
from penstock.tasks.protocol.messages import CheckpointAbandoned, CheckpointCommitted, StartCheckpoint

_log = logger(__name__)


class CheckpointDriver:
    """The checkpoints of all streams."""

    def __init__(
        self, clock: Clock, mailbox: Mailbox, state: ControllerState, records: CommitRecords, hooks: EngineHooks
    ) -> None:
        self._clock = clock
        self._mailbox = mailbox
        self._state = state
        self._records = records
        self._hooks = hooks

    def request(self, stream_id: int) -> tuple[int, Future[CommitRecord]]:
        """Returns the id of the checkpoint that will have everything until now, and what waits for it.

        Raises NotFoundError.
        """
        stream = self._state.require(stream_id)
        future: Future[CommitRecord] = Future()
        progress = self._state.checkpoints.progress(stream_id)
        if progress is None:
            future.set_exception(UnavailableError(
                f"stream {stream.stream.name} doesn't run now and can't be checkpointed",
                hint="SHOW STREAMS shows what it waits for"))
            return 0, future
        checkpoint_id = progress.checkpoint_id + 1
        stream.waiters.append((checkpoint_id, future))
        self.handle(checkpoint_machine.CheckpointRequest(stream_id))
        return checkpoint_id, future

    def request_if_running(self, stream_id: int) -> None:
        """Has a checkpoint taken that nobody waits for."""
        if self._state.checkpoints.progress(stream_id) is not None:
            self.handle(checkpoint_machine.CheckpointRequest(stream_id))

    def tick(self) -> None:
        """Handles that time has passed, if that changes anything."""
        at = self._state.checkpoints.next_deadline()
        if at is not None and at <= self._clock.monotonic():
            self.handle(checkpoint_machine.CheckpointTick())

    def handle(self, event: checkpoint_machine.Event) -> None:
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        for instruction in self._state.checkpoints.handle(event, now, now_ms):
            self._perform(instruction)

    def _perform(self, instruction: checkpoint_machine.Instruction) -> None:
        match instruction:
            case checkpoint_machine.Begin(stream_id, _, checkpoint_id):
                stream = self._state[stream_id]
                stream.last_checkpoint_id, stream.begun_ms = checkpoint_id, self._clock.now_ms()
                self._state.order(stream_id, StartCheckpoint(checkpoint_id))
            case checkpoint_machine.WriteRecord(record):
                stream = self._state[record.stream_id]
                stream.record_under_way, stream.after_record = True, None
                self._mailbox.helper(self._write_record, stream, record)
            case checkpoint_machine.Announce(record):
                self._announce(record)
            case checkpoint_machine.CallOff(stream_id, checkpoint_id):
                self._state.order(stream_id, CheckpointAbandoned(checkpoint_id))
            case checkpoint_machine.Finished():
                self._finished(instruction)
            case checkpoint_machine.LateCheckpointEvent(ignored, reason):
                _log.debug("ignored %s: %s", ignored, reason)

    def _write_record(self, stream: ControlledStream, record: CommitRecord) -> None:
        """Writes a commit record, on a helper thread."""
        outcome: checkpoint_machine.Event
        try:
            self._hooks.before_commit(record.stream_id)
            self._records.write(record, stream.stream.keeper.savepoints())
            outcome = checkpoint_machine.RecordWritten(record.stream_id, record.checkpoint_id)
        except PenstockError as error:
            outcome = checkpoint_machine.RecordFailed(record.stream_id, record.checkpoint_id, str(error))
        except Exception as error:  # noqa: BLE001
            _log.exception("a commit record could not be written",
                           extra=about(stream=stream.stream.name, attempt=record.attempt))
            text = f"{type(error).__name__}: {error}"
            outcome = checkpoint_machine.RecordFailed(record.stream_id, record.checkpoint_id, text)
        event = outcome
        self._mailbox.post(lambda: self._record_done(stream, event))

    def _record_done(self, stream: ControlledStream, event: checkpoint_machine.Event) -> None:
        """Lets the next attempt be prepared if it had to wait: it must know of this record.

        Else it would go back behind a checkpoint that counts, and drop the tasks' parts of it.
        """
        stream.record_under_way = False
        self.handle(event)
        if stream.after_record is not None:
            stream.after_record()

    def _announce(self, record: CommitRecord) -> None:
        self._state[record.stream_id].record = record
        kept = tuple(id_ for id_ in self._records.ids(record.stream_id) if id_ != record.checkpoint_id)
        self._state.order(record.stream_id, CheckpointCommitted(record.checkpoint_id, kept))
        self._mailbox.helper(self._call_on_checkpoint, record)

    def _call_on_checkpoint(self, record: CommitRecord) -> None:
        try:
            self._hooks.on_checkpoint(record.stream_id, self._records.oldest_versions(record.stream_id))
        except Exception:  # noqa: BLE001
            # WAL is kept for longer than needed; the next checkpoint tries again.
            _log.exception("the WAL pins of stream %x could not be moved", record.stream_id,
                           extra=about(stream=self._state.name(record.stream_id), attempt=record.attempt))

    def _finished(self, finished: checkpoint_machine.Finished) -> None:
        stream = self._state.get(finished.stream_id)
        if stream is None:
            return
        committed = finished.outcome == "committed"
        last = 0 if stream.record is None else stream.record.checkpoint_id
        if not committed and finished.checkpoint_id > last:
            stream.abandoned.append(CheckpointInfo(
                finished.checkpoint_id, "ABANDONED", stream.begun_ms, self._clock.now_ms(), reason=finished.reason))
            self._state.tell(finished.stream_id, f"checkpoint {finished.checkpoint_id} abandoned: {finished.reason}")
        still_running = self._state.checkpoints.progress(finished.stream_id) is not None
        for lowest_id, waiter in list(stream.waiters):
            if still_running and finished.checkpoint_id < lowest_id:
                continue
            stream.waiters.remove((lowest_id, waiter))
            if committed and stream.record is not None:
                waiter.set_result(stream.record)
            else:
                text = f"checkpoint {finished.checkpoint_id} was abandoned: {finished.reason}"
                waiter.set_exception(UnavailableError(text))
