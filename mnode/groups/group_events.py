"""What the machine of worker groups is told, and what it orders: plain data."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.common.errors import PenstockError
from penstock.planner.task_plans.stream_plan import IsolationClass
from penstock.tasks.protocol.worker_nodes import Nodes


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The numbers that the machine works by; seconds unless said otherwise.

    A group has up to `streams_per_worker` streams, and up to `packed_streams_per_worker`, if that is more, once there
    are worker processes for all `processors`; 0: there are always more processors.
    """

    streams_per_worker: int = 4
    packed_streams_per_worker: int = 60
    processors: int = 0

    @property
    def streams_max(self) -> int:
        """How many streams a group has at most. With one per worker, none ever shares its processes."""
        if not self.processors or self.streams_per_worker == 1:
            return self.streams_per_worker
        return max(self.streams_per_worker, self.packed_streams_per_worker)

    idle_timeout_s: float = 60.0
    start_timeout_s: float = 90.0
    deploy_timeout_s: float = 120.0
    stop_timeout_s: float = 10.0
    restart_delay_min_s: float = 0.5
    restart_delay_max_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Cause:
    """What made an attempt fail; attempts that fail for equal causes fail alike.

    `kind`: the class of the error, or what happened to the workers. `code`: TDengine's code of the error. `operator`:
    of the task that failed; "" if it was none. The task itself, its worker and process differ between attempts.
    """

    kind: str
    code: int | None = None
    operator: str = ""

    @classmethod
    def of(cls, error: Exception) -> Cause:
        return cls(type(error).__name__, error.code if isinstance(error, PenstockError) else None)


WORKER_LOST = Cause("a worker is lost")
JOB_ENDED = Cause("the job ended")
NOT_JOINED = Cause("workers have not joined")
NOT_DEPLOYED = Cause("workers have not deployed")
NOT_STOPPED = Cause("workers have not stopped")


@dataclass(frozen=True, slots=True)
class AddStream:
    """A stream shall run, on these nodes, in this isolation_class."""

    stream_id: int
    database: str
    nodes: Nodes
    isolation_class: IsolationClass = IsolationClass.ANY


@dataclass(frozen=True, slots=True)
class RemoveStream:
    """A stream shall end and be forgotten."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class StreamPrepared:
    """What PrepareStream asked for is there: the stream's new attempt has this number."""

    stream_id: int
    preparation: int
    attempt: int


@dataclass(frozen=True, slots=True)
class PreparationFailed:
    """What PrepareStream asked for cannot be had."""

    stream_id: int
    preparation: int
    reason: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class StreamDeployed:
    """A worker has built the attempt's tasks."""

    stream_id: int
    attempt: int
    index: int


@dataclass(frozen=True, slots=True)
class StreamFailed:
    """A task of the attempt failed."""

    stream_id: int
    attempt: int
    reason: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class StreamStopped:
    """A worker has no tasks of the attempt any more."""

    stream_id: int
    attempt: int
    index: int


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker of the group's job said Hello."""

    group: str
    index: int


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker's connection broke, or it fell silent."""

    group: str
    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """Spark's job of the group is over; None: all workers returned normally, or it was cancelled."""

    group: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class SlotsKnown:
    """Spark has so many slots: at most so many workers can be there at once."""

    slots: int


@dataclass(frozen=True, slots=True)
class GroupTick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class CloseAll:
    """The engine closes: all groups shall end."""


Event = (
    AddStream | RemoveStream | StreamPrepared | PreparationFailed | StreamDeployed | StreamFailed | StreamStopped
    | WorkerJoined | WorkerLost | JobEnded | SlotsKnown | GroupTick | CloseAll
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SubmitGroup:
    """Start a job of one worker per node."""

    group: str
    database: str
    nodes: Nodes
    isolation_class: IsolationClass = IsolationClass.ANY


@dataclass(frozen=True, slots=True)
class ShutdownGroup:
    """Tell the workers to end their streams and leave."""

    group: str


@dataclass(frozen=True, slots=True)
class CancelGroup:
    """Drop the workers' connections, and have them killed, by Spark where they are elsewhere."""

    group: str


@dataclass(frozen=True, slots=True)
class ForgetGroup:
    """Drop the connections of workers that are left, and see to it that they end: Spark knows of them no more."""

    group: str


@dataclass(frozen=True, slots=True)
class PrepareStream:
    """Persist the next attempt and collect its deployment; answer with StreamPrepared or PreparationFailed."""

    stream_id: int
    preparation: int


@dataclass(frozen=True, slots=True)
class DeployStream:
    """Send the prepared deployment to all workers of the group."""

    stream_id: int
    attempt: int
    group: str


@dataclass(frozen=True, slots=True)
class LetStreamRun:
    """All workers have deployed: the attempt runs from now on."""

    stream_id: int
    attempt: int
    group: str


@dataclass(frozen=True, slots=True)
class HaltStream:
    """Tell all workers of the group to end the attempt."""

    stream_id: int
    attempt: int
    group: str


@dataclass(frozen=True, slots=True)
class StreamDown:
    """The attempt runs no more (it may go on stopping): checkpoints of it are void."""

    stream_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class StreamRemoved:
    """Nothing of the stream is left on any worker."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class LateGroupEvent:
    """The event came too late to matter."""

    event: Event
    reason: str


Instruction = (
    SubmitGroup | ShutdownGroup | CancelGroup | ForgetGroup | PrepareStream | DeployStream | LetStreamRun | HaltStream
    | StreamDown | StreamRemoved | LateGroupEvent
)  # fmt: skip
