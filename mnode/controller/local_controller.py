"""Runs streams in the calling thread, for tests and dry runs: a `Controller` without Spark, threads or waiting.

Nothing runs by itself: `run` drives all streams until none has anything to do. Checkpoints are taken on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from penstock.common.clock import Clock
from penstock.common.connection import OpenedConnection
from penstock.common.errors import CheckpointDamagedError, NotFoundError, PenstockError, UnavailableError
from penstock.common.fs import Fs
from penstock.common.paths import DataPaths
from penstock.mnode.checkpoints.commit_records import CommitRecord, CommitRecords, commit_record
from penstock.mnode.controller.stream_attempts import newest_or_recovered
from penstock.mnode.coordinator.running_stream import RunningStream
from penstock.mnode.coordinator.stream_status import EventInfo, MemoryInfo, StreamStatus, WorkerInfo
from penstock.mnode.coordinator.task_monitor import Monitor, TaskReport
from penstock.mnode.ddl.connections import report_health
from penstock.mnode.write.result_store import ResultStore
from penstock.tasks.external.connectors.consumers import ConsumerFactory, open_consumer
from penstock.tasks.protocol.messages import (
    CheckpointAbandoned,
    CheckpointCommitted,
    Pause,
    ReadBack,
    Recalculate,
    Replay,
    Resume,
    SetRates,
    StartCheckpoint,
    TaskCheckpoint,
    UseConnection,
)
from penstock.tasks.protocol.task_status import ConnectionHealth, TaskStatus
from penstock.tasks.worker.local_environment import LocalEnvironment, LocalStream
from penstock.tasks.worker.runner import TaskFailure

_NEVER_S = 1e18


@dataclass(slots=True)
class _Entry:
    stream: RunningStream
    paused: bool
    running: LocalStream | None = None
    attempt: int = 0
    checkpoint_id: int = 0
    failure: str = ""
    damaged: dict[int, str] = field(default_factory=dict)
    acknowledged: list[TaskCheckpoint] = field(default_factory=list)
    contacts: dict[str, ConnectionHealth] = field(default_factory=dict)


class LocalController:
    """The streams of one engine, driven by `run`."""

    def __init__(
        self,
        paths: DataPaths,
        fs: Fs,
        clock: Clock,
        results: ResultStore,
        records: CommitRecords,
        on_checkpoint: Callable[[int, Mapping[int, int]], None],
        consumers: ConsumerFactory = open_consumer,
    ) -> None:
        """`consumers` opens what ingests read from."""
        self._clock = clock
        self._on_checkpoint = on_checkpoint
        self._results = results
        self._records = records
        self._environment = LocalEnvironment(
            clock, fs, paths, results.read, results.write_results, self._hear, consumers)
        self._entries: dict[int, _Entry] = {}
        self._events: list[EventInfo] = []

    # --- what statements ask for ---------------------------------------------------------------------------------

    def start(self, stream: RunningStream) -> None:
        if stream.stream_id not in self._entries:
            entry = self._entries[stream.stream_id] = _Entry(stream, stream.paused)
            try:
                self._deploy(entry)
            except PenstockError:
                del self._entries[stream.stream_id]
                raise

    def stop(self, stream_id: int, timeout_s: float = 0.0) -> None:
        entry = self._entries.pop(stream_id, None)
        if entry is not None and entry.running is not None:
            entry.running.close()

    def pause(self, stream_id: int) -> None:
        entry = self._entry(stream_id)
        entry.paused = True
        self._running(entry).post(Pause())
        self.run()

    def resume(self, stream_id: int, skip_to_end: bool = False) -> None:
        entry = self._entry(stream_id)
        entry.paused = False
        self._running(entry).post(Resume(skip_to_end))
        self.run()

    def set_rates(self, stream_id: int, rates: SetRates) -> None:
        """Changes nothing that is seen: virtual time doesn't pass while a stream works."""
        entry = self._entry(stream_id)
        entry.stream = replace(entry.stream, settings=entry.stream.settings.with_rates(rates))

    def set_state_limit(self, stream_id: int, limit: int) -> None:
        """Changes nothing that is seen: nothing looks at the streams while they work."""
        entry = self._entry(stream_id)
        entry.stream = replace(entry.stream, state_limit=limit)

    def use_connection(self, stream_id: int, connection: OpenedConnection) -> None:
        self._running(self._entry(stream_id)).post(UseConnection(connection))

    def recalculate(self, stream_id: int, order: Recalculate | Replay) -> None:
        self._running(self._entry(stream_id)).post(order)

    def checkpoint_now(self, stream_id: int, timeout_s: float = 0.0) -> CommitRecord:
        entry = self._entry(stream_id)
        record = self._checkpoint(entry, self._running(entry))
        if record is None:
            raise UnavailableError(f"stream {entry.stream.name} can't be checkpointed: it doesn't get anywhere")
        return record

    def begin_checkpoint(self, stream_id: int, timeout_s: float) -> tuple[int, bool]:
        return self.checkpoint_now(stream_id).checkpoint_id, True

    def close(self) -> None:
        for stream_id in list(self._entries):
            self.stop(stream_id)

    # --- driving -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Drives all streams until none has anything to do, also streams on the results of streams.

        Raises what a task failed with; its stream stays down until `kill` starts it again.
        """
        progressed = True
        while progressed:
            progressed = False
            for entry in list(self._entries.values()):
                progressed |= self._step(entry)
        for entry in self._entries.values():
            if entry.stream.connected and entry.running is not None:
                report_health(entry.running.statuses(), entry.contacts, entry.stream.keeper.note_health)

    def checkpoint(self) -> None:
        """Takes a checkpoint of every stream, in the middle of its work, and commits it."""
        for entry in self._entries.values():
            if entry.running is not None:
                self._checkpoint(entry, entry.running)

    def kill(self) -> None:
        """Ends all tasks as a crash would, and starts them from their last checkpoints."""
        for entry in self._entries.values():
            if entry.running is not None:
                entry.running.close()
                entry.running = None
            self._deploy(entry)

    def local_streams(self) -> dict[int, LocalStream]:
        """Returns the running streams by id."""
        return {stream_id: entry.running for stream_id, entry in self._entries.items() if entry.running is not None}

    # --- what is shown -------------------------------------------------------------------------------------------

    def statuses(self) -> list[TaskStatus]:
        return [status for running in self.local_streams().values() for status in running.statuses()]

    def task_reports(self) -> list[TaskReport]:
        monitor = Monitor(_NEVER_S, _NEVER_S)
        monitor.heartbeat(self.statuses(), self._clock.monotonic())
        return monitor.report(self._clock.monotonic())

    def stream_states(self) -> dict[int, StreamStatus]:
        return {stream_id: StreamStatus(
            "RESTARTING" if entry.failure else "PAUSED" if entry.paused else "RUNNING", entry.failure,
            self._clock.now_ms(), entry.attempt, max(0, entry.attempt - 1), group="local", damaged=dict(entry.damaged))
            for stream_id, entry in self._entries.items()}

    def events(self) -> list[EventInfo]:
        return list(self._events)

    def workers(self) -> list[WorkerInfo]:
        return []

    def memory(self) -> list[MemoryInfo]:
        return []

    # --- inside --------------------------------------------------------------------------------------------------

    def _entry(self, stream_id: int) -> _Entry:
        entry = self._entries.get(stream_id)
        if entry is None:
            raise NotFoundError(f"stream {stream_id:x} doesn't run")
        return entry

    def _running(self, entry: _Entry) -> LocalStream:
        if entry.running is None:
            raise NotFoundError(f"stream {entry.stream.name} is down: {entry.failure}")
        return entry.running

    def _deploy(self, entry: _Entry) -> None:
        stream = entry.stream
        entry.attempt = stream.keeper.next_attempt()
        entry.failure = ""
        entry.acknowledged.clear()
        while entry.running is None:
            record = newest_or_recovered(self._records, stream, entry.attempt, entry.damaged)
            try:
                entry.running = self._built(entry, record)
            except CheckpointDamagedError as error:
                assert record is not None
                entry.damaged[record.checkpoint_id] = str(error)
                continue
            ids = self._records.ids(stream.stream_id)
            entry.checkpoint_id = max([*ids, entry.checkpoint_id, stream.last_checkpoint_id])
            used = None if record is None else record.checkpoint_id
            for checkpoint_id, why in self._records.passed_over(stream.stream_id, used, entry.damaged).items():
                self._events.append(EventInfo(
                    self._clock.now_ms(), stream.stream_id,
                    f"checkpoint {checkpoint_id} is damaged and passed over: {why}"))

    def _built(self, entry: _Entry, record: CommitRecord | None) -> LocalStream:
        stream = entry.stream
        # A rate limit would only make virtual time stand still.
        settings = stream.settings.with_rates(SetRates(0, 0, 0, 0))
        checkpoint_id = None if record is None else record.checkpoint_id
        return LocalStream(stream.deployment(entry.attempt, checkpoint_id, entry.paused, settings), self._environment)

    def _step(self, entry: _Entry) -> bool:
        if entry.running is None:
            return False
        try:
            return entry.running.step()
        except TaskFailure as failure:
            cause = failure.__cause__
            entry.failure = f"task {failure.task}: {cause}"
            entry.running.close()
            entry.running = None
            if isinstance(cause, PenstockError):
                raise cause from None
            raise

    def _hear(self, told: TaskCheckpoint | ReadBack) -> None:
        entry = self._entries[told.task.stream_id]
        if isinstance(told, TaskCheckpoint):
            entry.acknowledged.append(told)
        elif entry.running is not None:
            for first, last in told.ranges:
                entry.running.post(Recalculate(first, last))

    def _checkpoint(self, entry: _Entry, running: LocalStream) -> CommitRecord | None:
        """Takes a checkpoint in the middle of a stream's work and commits it; None if it comes to no end."""
        entry.checkpoint_id += 1
        started_ms = self._clock.now_ms()
        wanted = {task.id for task in running.tasks}
        running.post(StartCheckpoint(entry.checkpoint_id))
        while {ack.task for ack in entry.acknowledged if ack.checkpoint_id == entry.checkpoint_id} != wanted:
            if not self._step(entry):
                running.post(CheckpointAbandoned(entry.checkpoint_id))
                return None
        done = [ack for ack in entry.acknowledged if ack.checkpoint_id == entry.checkpoint_id]
        entry.acknowledged.clear()
        stream = entry.stream
        now_ms = self._clock.now_ms()
        record = commit_record(
            stream.stream_id, entry.checkpoint_id, entry.attempt, stream.graph.source_vgroup_ids,
            [(ack, float(now_ms - started_ms)) for ack in done], started_ms, float(now_ms - started_ms), stream.layout)
        self._records.write(record, stream.keeper.savepoints())
        kept = tuple(id_ for id_ in self._records.ids(stream.stream_id) if id_ != record.checkpoint_id)
        running.post(CheckpointCommitted(record.checkpoint_id, kept))
        self._on_checkpoint(stream.stream_id, self._records.oldest_versions(stream.stream_id))
        return record
