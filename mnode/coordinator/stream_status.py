"""What is shown of a running stream: plain data between the controller and the system tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from penstock.mnode.catalog.catalog_records import PauseCause
from penstock.mnode.coordinator.stored_plan import StoredPlan
from penstock.mnode.coordinator.task_monitor import TaskReport
from penstock.sql.cuts import Cut
from penstock.tasks.protocol.messages import SetRates

VerdictKind = Literal[
    "down", "silent", "external", "stalled", "intake", "unbalanced", "late", "mismatch", "state", "sink", "source",
    "function", "vnode", "skew", "busy", "idle", "healthy"]
"""What holds a stream up: itself, as it doesn't run; a task; something outside; nothing."""
CheckpointState = Literal["RUNNING", "COMMITTED", "ABANDONED", "DAMAGED"]


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """One checkpoint of a stream. `versions`: (vgroup id, WAL version) pairs of its cut.

    `phase` says how far a running one is. `slowest_task` acknowledged last, `slowest_ms` after the start, or is waited
    for. `rows_to_replay`: what a restart from it would read again, as far as known. `task_bytes`: what each task wrote,
    by its id as text.
    """

    checkpoint_id: int
    state: CheckpointState
    start_ms: int | None = None
    end_ms: int | None = None
    bytes_written: int = 0
    versions: tuple[tuple[int, int], ...] = ()
    reason: str = ""
    phase: str = ""
    slowest_task: str = ""
    slowest_ms: float | None = None
    rows_to_replay: int | None = None
    task_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """How a stream, or an ingest, is now. `reason` says why it isn't running, or can't write its results.

    `state`: WAITING, STARTING, RUNNING, PAUSED, RESTARTING or STOPPING, where somebody runs it; else STOPPED, FAILED or
    MISMATCHED; STALLED if its verdict says so. `attempt` is 0 before the first one is deployed; `restarts` counts those
    after it, `alike` how many in a row have failed for the same cause. `group` are its workers. `pause`: why it is
    paused, if not by its owner. `checkpoints` are those that have no record: the one under way and those abandoned
    lately, oldest first; `damaged` are the ids of recorded ones of which a task found its part damaged, with what it
    said.
    """

    state: str
    reason: str = ""
    since_ms: int | None = None
    attempt: int = 0
    restarts: int = 0
    alike: int = 0
    group: str = ""
    pause: PauseCause | None = None
    checkpoints: tuple[CheckpointInfo, ...] = ()
    damaged: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditInfo:
    """What the audit has found of a stream since the engine started.

    `last_ms`: when it looked last; `cut`: the cut up to which it did; `results`: how many it has found equal.
    `mismatches`: incidents whose results are still wrong. `note`: what keeps it from looking.
    """

    last_ms: int | None = None
    cut: Cut = ()
    results: int = 0
    mismatches: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """How a stream is and what it works by, as it is shown. `stored`: its plan, None if it has none.

    `rates` None: those of all. `state_limit`: bytes of state beyond which it is paused, 0 for no limit. `backup` says
    what is copied elsewhere. `verdict`: what holds it up, in one line, and of which kind that is. `audit`:
    None before it has looked.
    """

    status: StreamStatus
    stored: StoredPlan | None = None
    rates: SetRates | None = None
    state_limit: int = 0
    backup: str = "none"
    verdict: str = ""
    verdict_kind: VerdictKind | None = None
    audit: AuditInfo | None = None


SavepointState = Literal["READY", "LOST", "DAMAGED"]


@dataclass(frozen=True, slots=True)
class SavepointInfo:
    """A savepoint as SHOW SAVEPOINTS has it. `versions`: (vgroup id, WAL version) pairs of its cut."""

    stream: str
    name: str
    checkpoint_id: int
    created_ms: int
    state: SavepointState
    bytes_written: int | None
    versions: tuple[tuple[int, int], ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker process of a group, or, with the state FREE and no group, the free slots of an executor.

    `node_id`: the vnode or snode that it stands for. Without `pid` it has not joined. `heard_ms`: when it last sent a
    heartbeat. `streams`: the names of those that it hosts. `executor`: Spark's id of it. `slots`: how many of the
    executor's it takes, or are free. `nice`: how much lower its priority is. `gathering_ms`: how long its streams
    rest at least between two turns, so that rows gather.
    """

    group: str | None
    index: int | None
    node_id: int | None
    state: str
    reason: str = ""
    pid: int | None = None
    address: str | None = None
    heard_ms: int | None = None
    streams: tuple[str, ...] = ()
    failures: int | None = None
    executor: str | None = None
    host: str | None = None
    slots: int = 0
    nice: int | None = None
    gathering_ms: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """What a process takes: `process` is engine (with all that isn't one of the others), java, worker and its name, or
    all, which has the limit if there is one."""

    process: str
    pid: int | None
    memory_bytes: int
    limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class EventInfo:
    """Something that happened to a stream."""

    at_ms: int
    stream_id: int
    text: str


@dataclass(frozen=True, slots=True)
class StreamsSnapshot:
    """How all streams are, at one moment, by stream id."""

    infos: Mapping[int, StreamInfo] = field(default_factory=dict)
    tasks: Mapping[int, Sequence[TaskReport]] = field(default_factory=dict)
    checkpoints: Mapping[int, Sequence[CheckpointInfo]] = field(default_factory=dict)
    events: Sequence[EventInfo] = ()
    workers: Sequence[WorkerInfo] = ()
    memory: Sequence[MemoryInfo] = ()
