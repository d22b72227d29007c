"""When checkpoints start, and when one is valid: events in, instructions out. Pure; records are kept by `records`.

A checkpoint of a stream is valid once all tasks have acknowledged it and its commit record is written. At most one
per stream is under way. One that doesn't come to an end is abandoned, visibly, and the last valid one stays.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from penstock.common.errors import InternalError
from penstock.mnode.checkpoints.commit_records import CommitRecord, commit_record
from penstock.mnode.checkpoints.transitions import check_transition
from penstock.tasks.protocol.messages import TaskCheckpoint, TaskId

_STORY_EVENTS_MAX = 20

Outcome = Literal["committed", "abandoned"]

# --- events and instructions -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """Seconds between the starts of checkpoints, and how long one may take."""

    interval_s: float = 180.0
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class AttemptRuns:
    """An attempt of a stream runs; `tasks` are all of its tasks, `last_id` the highest checkpoint id used so far.

    `interval_s`: the stream's own interval, or None for the one of all. `layout`: of its state, as a fingerprint.
    """

    stream_id: int
    attempt: int
    tasks: frozenset[TaskId]
    vgroup_ids: tuple[int, ...]
    last_id: int
    interval_s: float | None = None
    layout: str = ""


@dataclass(frozen=True, slots=True)
class AttemptEnds:
    """The stream's attempt runs no more."""

    stream_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """Somebody wants a checkpoint now."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A task has made its part durable."""

    checkpoint: TaskCheckpoint
    attempt: int


@dataclass(frozen=True, slots=True)
class RecordWritten:
    """The commit record is durable: the checkpoint is valid."""

    stream_id: int
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class RecordFailed:
    """The commit record could not be written."""

    stream_id: int
    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointTick:
    """Time has passed."""


Event = AttemptRuns | AttemptEnds | CheckpointRequest | Acknowledgement | RecordWritten | RecordFailed | CheckpointTick


@dataclass(frozen=True, slots=True)
class Begin:
    """Send StartCheckpoint to the stream's source tasks."""

    stream_id: int
    attempt: int
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Write the commit record; answer with RecordWritten or RecordFailed."""

    record: CommitRecord


@dataclass(frozen=True, slots=True)
class Announce:
    """Send CheckpointCommitted to all tasks and move the WAL pins to `record.versions`."""

    record: CommitRecord


@dataclass(frozen=True, slots=True)
class CallOff:
    """Send CheckpointAbandoned to all tasks: those that hold channels back for it let them go."""

    stream_id: int
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A checkpoint came to an end."""

    stream_id: int
    checkpoint_id: int
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class LateCheckpointEvent:
    """The event doesn't matter (any more)."""

    event: Event
    reason: str


Instruction = Begin | WriteRecord | Announce | CallOff | Finished | LateCheckpointEvent

# --- states ------------------------------------------------------------------------------------------------------


class CheckpointPhase(Enum):
    """Where a stream's checkpointing is."""

    RESTING = "no checkpoint is under way"
    COLLECTING = "barriers are on their way, tasks write their state"
    COMMITTING = "all tasks have acknowledged, the record is being written"
    ENDED = "the attempt is over"


TRANSITIONS: dict[CheckpointPhase, frozenset[CheckpointPhase]] = {
    CheckpointPhase.RESTING: frozenset({CheckpointPhase.COLLECTING, CheckpointPhase.ENDED}),
    CheckpointPhase.COLLECTING: frozenset({CheckpointPhase.COMMITTING, CheckpointPhase.RESTING, CheckpointPhase.ENDED}),
    CheckpointPhase.COMMITTING: frozenset({CheckpointPhase.RESTING, CheckpointPhase.ENDED}),
    CheckpointPhase.ENDED: frozenset(),
}


@dataclass(slots=True)
class CheckpointProgress:
    """The checkpointing of one attempt of a stream. `checkpoint_id` is the one under way, or the last one."""

    stream_id: int
    attempt: int
    tasks: frozenset[TaskId]
    vgroup_ids: tuple[int, ...]
    checkpoint_id: int
    interval_s: float
    next_at: float
    layout: str
    phase: CheckpointPhase = CheckpointPhase.RESTING
    started_at: float = 0.0
    started_ms: int = 0
    requested: bool = False
    acknowledged: dict[TaskId, TaskCheckpoint] = field(default_factory=dict)
    acknowledged_at: dict[TaskId, float] = field(default_factory=dict)
    record: CommitRecord | None = None
    story: deque[str] = field(default_factory=lambda: deque(maxlen=_STORY_EVENTS_MAX))

    @property
    def under_way(self) -> bool:
        return self.phase in (CheckpointPhase.COLLECTING, CheckpointPhase.COMMITTING)


class CheckpointMachine:
    """The checkpointing of all running streams of an engine. `handle` is the only mutator."""

    def __init__(self, settings: CheckpointSettings) -> None:
        self._settings = settings
        self._streams: dict[int, CheckpointProgress] = {}
        #: when something is due by time, with the stream; what doesn't hold any more is left out when it comes up
        self._due: list[tuple[float, int]] = []
        self._handlers: dict[type, Callable[..., list[Instruction]]] = {
            AttemptRuns: self._handle_attempt_runs,
            AttemptEnds: self._handle_attempt_ends,
            CheckpointRequest: self._handle_request,
            Acknowledgement: self._handle_acknowledgement,
            RecordWritten: self._handle_record_written,
            RecordFailed: self._handle_record_failed,
            CheckpointTick: self._handle_tick,
        }

    def progress(self, stream_id: int) -> CheckpointProgress | None:
        """Returns the checkpointing of the stream's running attempt, or None if none runs."""
        return self._streams.get(stream_id)

    def handle(self, event: Event, now: float, now_ms: int) -> list[Instruction]:
        """Takes an event of monotonic time `now`, wall time `now_ms`; returns what is to be done, in order."""
        return self._handlers[type(event)](event, now, now_ms)

    def next_deadline(self) -> float | None:
        """Returns the earliest time at which a CheckpointTick would change something, or None."""
        while self._due and not self._holds(*self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def _handle_attempt_runs(self, event: AttemptRuns, now: float, now_ms: int) -> list[Instruction]:
        if not event.tasks:
            raise InternalError(f"stream {event.stream_id:x} runs without tasks")
        instructions = self._end(event.stream_id, "another attempt runs", now)
        interval_s = self._settings.interval_s if event.interval_s is None else event.interval_s
        self._streams[event.stream_id] = CheckpointProgress(
            event.stream_id,
            event.attempt,
            event.tasks,
            event.vgroup_ids,
            event.last_id,
            interval_s,
            now + interval_s,
            event.layout,
        )
        self._note_due(self._streams[event.stream_id])
        return instructions

    def _handle_attempt_ends(self, event: AttemptEnds, now: float, now_ms: int) -> list[Instruction]:
        return self._end(event.stream_id, event.reason, now)

    def _end(self, stream_id: int, reason: str, now: float) -> list[Instruction]:
        progress = self._streams.pop(stream_id, None)
        if progress is None:
            return []
        under_way = progress.under_way
        requested = progress.requested
        self._move(progress, CheckpointPhase.ENDED, reason, now)
        if not under_way and not requested:
            return []
        return [Finished(stream_id, progress.checkpoint_id, "abandoned", reason)]

    def _handle_request(self, event: CheckpointRequest, now: float, now_ms: int) -> list[Instruction]:
        progress = self._streams.get(event.stream_id)
        if progress is None:
            return [Finished(event.stream_id, 0, "abandoned", "the stream isn't running")]
        if progress.phase is CheckpointPhase.RESTING:
            return [self._begin(progress, now, now_ms)]
        # The one under way may have passed rows that the caller wants in: another follows it.
        progress.requested = True
        return []

    def _begin(self, progress: CheckpointProgress, now: float, now_ms: int) -> Instruction:
        progress.checkpoint_id += 1
        progress.started_at, progress.started_ms = now, now_ms
        progress.requested = False
        progress.acknowledged.clear()
        # From start to start; a slow checkpoint delays the next instead of overlapping it.
        progress.next_at = now + progress.interval_s
        self._move(progress, CheckpointPhase.COLLECTING, f"checkpoint {progress.checkpoint_id}", now)
        return Begin(progress.stream_id, progress.attempt, progress.checkpoint_id)

    def _handle_acknowledgement(
        self, event: Acknowledgement, now: float, now_ms: int
    ) -> list[Instruction]:
        checkpoint = event.checkpoint
        progress = self._streams.get(checkpoint.task.stream_id)
        if progress is None or progress.attempt != event.attempt:
            return [LateCheckpointEvent(event, "the attempt is over")]
        if progress.phase is not CheckpointPhase.COLLECTING or progress.checkpoint_id != checkpoint.checkpoint_id:
            return [LateCheckpointEvent(event, "the checkpoint is over")]
        if checkpoint.task not in progress.tasks:
            raise InternalError(f"{checkpoint.task} acknowledged a checkpoint of a stream that it isn't in")
        progress.acknowledged[checkpoint.task] = checkpoint
        progress.acknowledged_at[checkpoint.task] = now
        if progress.acknowledged.keys() != progress.tasks:
            return []
        self._move(progress, CheckpointPhase.COMMITTING, f"checkpoint {progress.checkpoint_id}", now)
        progress.record = self._record(progress, now)
        return [WriteRecord(progress.record)]

    def _record(self, progress: CheckpointProgress, now: float) -> CommitRecord:
        return commit_record(
            progress.stream_id,
            progress.checkpoint_id,
            progress.attempt,
            progress.vgroup_ids,
            [(checkpoint, (progress.acknowledged_at[task] - progress.started_at) * 1000.0)
             for task, checkpoint in progress.acknowledged.items()],
            progress.started_ms,
            (now - progress.started_at) * 1000.0,
            progress.layout,
        )

    def _handle_record_written(self, event: RecordWritten, now: float, now_ms: int) -> list[Instruction]:
        progress = self._committing(event.stream_id, event.checkpoint_id)
        if progress is None or progress.record is None:
            return [LateCheckpointEvent(event, "the attempt is over; the record counts all the same")]
        record = progress.record
        self._move(progress, CheckpointPhase.RESTING, f"checkpoint {event.checkpoint_id} committed", now)
        instructions: list[Instruction] = [
            Announce(record),
            Finished(event.stream_id, event.checkpoint_id, "committed", ""),
        ]
        return instructions + self._follow_up(progress, now, now_ms)

    def _handle_record_failed(self, event: RecordFailed, now: float, now_ms: int) -> list[Instruction]:
        progress = self._committing(event.stream_id, event.checkpoint_id)
        if progress is None:
            return [LateCheckpointEvent(event, "the attempt is over")]
        return self._abandon(progress, f"its record could not be written: {event.reason}", now, now_ms)

    def _committing(self, stream_id: int, checkpoint_id: int) -> CheckpointProgress | None:
        progress = self._streams.get(stream_id)
        if progress is None or progress.checkpoint_id != checkpoint_id:
            return None
        return progress if progress.phase is CheckpointPhase.COMMITTING else None

    def _abandon(self, progress: CheckpointProgress, reason: str, now: float, now_ms: int) -> list[Instruction]:
        # Whoever was too slow now would be so again at once: a full interval to recover, however long this one took.
        progress.next_at = now + progress.interval_s
        self._move(progress, CheckpointPhase.RESTING, reason, now)
        return [
            CallOff(progress.stream_id, progress.checkpoint_id),
            Finished(progress.stream_id, progress.checkpoint_id, "abandoned", reason),
            *self._follow_up(progress, now, now_ms),
        ]

    def _follow_up(self, progress: CheckpointProgress, now: float, now_ms: int) -> list[Instruction]:
        return [self._begin(progress, now, now_ms)] if progress.requested else []

    def _handle_tick(self, event: CheckpointTick, now: float, now_ms: int) -> list[Instruction]:
        instructions: list[Instruction] = []
        while (at := self.next_deadline()) is not None and at <= now:
            progress = self._streams[heapq.heappop(self._due)[1]]
            if progress.phase is CheckpointPhase.RESTING:
                instructions.append(self._begin(progress, now, now_ms))
            else:
                missing = ", ".join(str(t) for t in sorted(progress.tasks - progress.acknowledged.keys()))
                reason = f"not acknowledged by {missing} within {self._settings.timeout_s:g} s"
                instructions += self._abandon(progress, reason, now, now_ms)
        return instructions

    def _move(self, progress: CheckpointProgress, phase: CheckpointPhase, reason: str, now: float) -> None:
        check_transition(TRANSITIONS, f"checkpoints of stream {progress.stream_id:x}", progress.phase, phase, reason,
                         progress.story)
        progress.story.append(f"{now:.3f} {progress.phase.name} -> {phase.name} ({reason})")
        progress.phase = phase
        self._note_due(progress)

    def _note_due(self, progress: CheckpointProgress) -> None:
        """Takes note of when time alone changes something for a stream."""
        at = self._due_at(progress)
        if at is not None:
            heapq.heappush(self._due, (at, progress.stream_id))

    def _due_at(self, progress: CheckpointProgress) -> float | None:
        if progress.phase is CheckpointPhase.COLLECTING:
            return progress.started_at + self._settings.timeout_s
        return progress.next_at if progress.phase is CheckpointPhase.RESTING else None

    def _holds(self, at: float, stream_id: int) -> bool:
        """Tells whether a note of when something is due is still true."""
        progress = self._streams.get(stream_id)
        return progress is not None and self._due_at(progress) == at
