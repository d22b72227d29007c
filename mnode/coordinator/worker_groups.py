"""Which streams run in which worker group, and what to do when either fails: events in, instructions out.

Pure: no clock, no threads, no Spark. The controller performs the instructions and reports what came of them. A group
serves one source database; streams share it up to a limit, if their tasks are on the same vnodes and snodes. Those that
call users' functions share only with each other, and so do those whose groups nothing bounds: what such a function, or
so much state, does to its process must not be felt by other streams. A failed worker costs its whole group: Spark ends
the job, and each stream of it gets a new attempt in the group's next job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from penstock.common.errors import InternalError, PenstockError
from penstock.planner.task_plans.stream_plan import Company
from penstock.tasks.protocol.worker_nodes import Nodes

_STORY_EVENTS_MAX = 20

# --- settings, events, instructions ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The numbers that the machine works by; seconds unless said otherwise."""

    streams_per_worker: int = 4
    idle_timeout_s: float = 60.0
    start_timeout_s: float = 90.0
    deploy_timeout_s: float = 120.0
    stop_timeout_s: float = 10.0
    restart_delay_min_s: float = 0.5
    restart_delay_max_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Cause:
    """What made an attempt fail; attempts that fail for equal causes fail alike.

    `kind`: the class of the error, or what happened to the workers. `code`: TDengine's code of the error. `level`: of
    the task that failed; "" if it was none. The task itself, its worker and process differ from attempt to attempt.
    """

    kind: str
    code: int | None = None
    level: str = ""

    @classmethod
    def of(cls, error: Exception) -> Cause:
        return cls(type(error).__name__, error.code if isinstance(error, PenstockError) else None)


_WORKER_LOST = Cause("a worker is lost")
_JOB_ENDED = Cause("the job ended")
_NOT_JOINED = Cause("workers have not joined")
_NOT_DEPLOYED = Cause("workers have not deployed")
_NOT_STOPPED = Cause("workers have not stopped")


@dataclass(frozen=True, slots=True)
class AddStream:
    """A stream shall run, on these nodes, in this company."""

    stream_id: int
    database: str
    nodes: Nodes
    company: Company = Company.ANY


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
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class CloseAll:
    """The engine closes: all groups shall end."""


Event = (
    AddStream | RemoveStream | StreamPrepared | PreparationFailed | StreamDeployed | StreamFailed | StreamStopped
    | WorkerJoined | WorkerLost | JobEnded | SlotsKnown | Tick | CloseAll
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SubmitGroup:
    """Start a job of one worker per node."""

    group: str
    database: str
    nodes: Nodes
    company: Company = Company.ANY


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
class Ignored:
    """The event came too late to matter."""

    event: Event
    reason: str


Instruction = (
    SubmitGroup | ShutdownGroup | CancelGroup | ForgetGroup | PrepareStream | DeployStream | LetStreamRun | HaltStream
    | StreamDown | StreamRemoved | Ignored
)  # fmt: skip

# --- states ------------------------------------------------------------------------------------------------------


class GroupState(Enum):
    """Where a worker group is in its life."""

    STARTING = "the job is submitted, not all workers have joined"
    RUNNING = "all workers are there"
    ENDING = "the job shall end, or has lost a worker; it isn't over yet"
    WAITING = "there is no job; the next one is submitted after the backoff, once there are slots for it"
    GONE = "ended for good"


class StreamState(Enum):
    """Where a stream is in its life."""

    WAITING = "its group has no workers yet"
    PREPARING = "the next attempt is being put together"
    DEPLOYING = "workers build its tasks"
    RUNNING = "its tasks run"
    STOPPING = "its tasks are being ended"
    BACKOFF = "failed; the next attempt comes after a while"
    GONE = "removed"


GROUP_TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.STARTING: frozenset({GroupState.RUNNING, GroupState.ENDING, GroupState.WAITING, GroupState.GONE}),
    GroupState.RUNNING: frozenset({GroupState.ENDING, GroupState.WAITING, GroupState.GONE}),
    GroupState.ENDING: frozenset({GroupState.WAITING, GroupState.GONE}),
    GroupState.WAITING: frozenset({GroupState.STARTING, GroupState.GONE}),
    GroupState.GONE: frozenset(),
}

STREAM_TRANSITIONS: dict[StreamState, frozenset[StreamState]] = {
    StreamState.WAITING: frozenset({StreamState.PREPARING, StreamState.GONE}),
    StreamState.PREPARING: frozenset(
        {StreamState.DEPLOYING, StreamState.WAITING, StreamState.BACKOFF, StreamState.GONE}
    ),
    StreamState.DEPLOYING: frozenset({StreamState.RUNNING, StreamState.STOPPING, StreamState.WAITING}),
    StreamState.RUNNING: frozenset({StreamState.STOPPING, StreamState.WAITING}),
    StreamState.STOPPING: frozenset({StreamState.BACKOFF, StreamState.WAITING, StreamState.GONE}),
    StreamState.BACKOFF: frozenset({StreamState.PREPARING, StreamState.WAITING, StreamState.GONE}),
    StreamState.GONE: frozenset(),
}


class InvalidTransitionError(InternalError):
    """A state was to be left in a way that the table doesn't know; the message tells what led there."""


@dataclass(slots=True)
class Group:
    """A worker group. `name` is the name of its current or last job.

    `company`: it is for such streams, and for no others. `lacks_slots`: its next job is submitted once enough of
    Spark's slots are free.
    """

    number: int
    database: str
    nodes: Nodes
    company: Company
    since: float
    state: GroupState = GroupState.WAITING
    reason: str = ""
    submissions: int = 0
    failures: int = 0
    retry_at: float = 0.0
    cancelled: bool = False
    lacks_slots: bool = False
    joined: set[int] = field(default_factory=set)
    streams: set[int] = field(default_factory=set)
    empty_since: float = 0.0
    story: deque[str] = field(default_factory=lambda: deque(maxlen=_STORY_EVENTS_MAX))

    @property
    def name(self) -> str:
        return f"{self.database}-{self.number}.{self.submissions}"

    @property
    def workers(self) -> int:
        return self.nodes.workers

    @property
    def slots(self) -> int:
        """How many slots it takes now."""
        return self.workers if self.state in (GroupState.STARTING, GroupState.RUNNING, GroupState.ENDING) else 0


@dataclass(slots=True)
class Stream:
    """A stream's place and progress. `attempt` is the attempt that is or was deployed last, 0 before the first.

    `alike`: how many attempts in a row, the last one included, have failed for the same cause and soon.
    """

    stream_id: int
    group: Group
    since: float
    state: StreamState = StreamState.WAITING
    reason: str = ""
    attempt: int = 0
    preparation: int = 0
    failures: int = 0
    alike: int = 0
    failed_for: Cause | None = None
    restarts: int = 0
    retry_at: float = 0.0
    remove: bool = False
    answered: set[int] = field(default_factory=set)
    story: deque[str] = field(default_factory=lambda: deque(maxlen=_STORY_EVENTS_MAX))


class GroupMachine:
    """The state of all groups and streams of an engine. `handle` is the only mutator."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._groups: dict[int, Group] = {}
        self._streams: dict[int, Stream] = {}
        self._next_number = 1
        self._closing = False
        self._slots: int | None = None  # as many as there may be, until Spark says how many there are
        self._handlers: dict[type, Callable[..., list[Instruction]]] = {
            AddStream: self._handle_add_stream,
            RemoveStream: self._handle_remove_stream,
            StreamPrepared: self._handle_stream_prepared,
            PreparationFailed: self._handle_preparation_failed,
            StreamDeployed: self._handle_stream_deployed,
            StreamFailed: self._handle_stream_failed,
            StreamStopped: self._handle_stream_stopped,
            WorkerJoined: self._handle_worker_joined,
            WorkerLost: self._handle_worker_lost,
            JobEnded: self._handle_job_ended,
            SlotsKnown: self._handle_slots_known,
            Tick: self._handle_tick,
            CloseAll: self._handle_close_all,
        }

    @property
    def groups(self) -> tuple[Group, ...]:
        return tuple(self._groups.values())

    @property
    def streams(self) -> tuple[Stream, ...]:
        return tuple(self._streams.values())

    def stream(self, stream_id: int) -> Stream | None:
        return self._streams.get(stream_id)

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Takes an event that happened at `now` (monotonic seconds); returns what is to be done, in order."""
        return self._handlers[type(event)](event, now)

    def next_deadline(self) -> float | None:
        """Returns the earliest time at which a Tick would change something, or None."""
        settings = self._settings
        times: list[float] = []
        for group in self._groups.values():
            if group.state is GroupState.STARTING:
                times.append(group.since + settings.start_timeout_s)
            elif group.state is GroupState.ENDING and not group.cancelled:
                times.append(group.since + settings.stop_timeout_s)
            elif group.state is GroupState.WAITING and not group.lacks_slots:
                times.append(group.retry_at)
            elif group.state is GroupState.RUNNING and not group.streams:
                times.append(group.empty_since + settings.idle_timeout_s)
        for stream in self._streams.values():
            if stream.group.state is not GroupState.RUNNING:
                continue
            if stream.state is StreamState.DEPLOYING:
                times.append(stream.since + settings.deploy_timeout_s)
            elif stream.state is StreamState.STOPPING:
                times.append(stream.since + settings.stop_timeout_s)
            elif stream.state is StreamState.BACKOFF:
                times.append(stream.retry_at)
        return min(times, default=None)

    def validate(self) -> None:
        """Raises InternalError if streams and groups contradict each other."""
        for stream in self._streams.values():
            group = stream.group
            if stream.stream_id not in group.streams or group.number not in self._groups:
                raise InternalError(f"stream {stream.stream_id} and group {group.name} don't know each other")
            active = stream.state in (StreamState.DEPLOYING, StreamState.RUNNING, StreamState.PREPARING)
            if active and group.state is not GroupState.RUNNING:
                raise InternalError(f"stream {stream.stream_id} is {stream.state.name} in a group that isn't")
        for group in self._groups.values():
            if len(group.streams) > self._settings.streams_per_worker:
                raise InternalError(f"group {group.name} holds {len(group.streams)} streams")
            if group.streams - self._streams.keys():
                raise InternalError(f"group {group.name} holds streams that don't exist")
            if group.lacks_slots and (group.state is not GroupState.WAITING or not self.missing_slots(group)):
                raise InternalError(f"group {group.name} is {group.state.name} and waits for slots that are there")
            if group.state is GroupState.RUNNING and len(group.joined) != group.workers:
                raise InternalError(f"group {group.name} runs with {len(group.joined)} of {group.workers} workers")

    # --- streams -----------------------------------------------------------------------------------------------

    def _handle_add_stream(self, event: AddStream, now: float) -> list[Instruction]:
        if event.stream_id in self._streams:
            return [Ignored(event, "the stream is there already")]
        if self._closing:
            return [Ignored(event, "the engine is closing")]
        group = self._place(event, now)
        stream = Stream(event.stream_id, group, now)
        self._streams[event.stream_id] = stream
        group.streams.add(event.stream_id)
        stream.story.append(f"{now:.3f} added to group {group.name}")
        if group.state is GroupState.RUNNING:
            return [self._prepare(stream, now)]
        if group.state is GroupState.WAITING and group.submissions == 0:
            return self._submit(group, now)
        return []

    def _place(self, event: AddStream, now: float) -> Group:
        """Returns a group with a free place, preferring those that run, or a new one."""
        order = (GroupState.RUNNING, GroupState.STARTING, GroupState.WAITING)
        free = [
            group
            for group in self._groups.values()
            if group.nodes == event.nodes
            and group.database == event.database
            and group.company is event.company
            and group.state in order
            and len(group.streams) < self._settings.streams_per_worker
        ]
        if free:
            return min(free, key=lambda group: (order.index(group.state), group.number))
        group = Group(self._next_number, event.database, event.nodes, event.company, now)
        self._groups[group.number] = group
        self._next_number += 1
        return group

    def _handle_remove_stream(self, event: RemoveStream, now: float) -> list[Instruction]:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return [StreamRemoved(event.stream_id)]
        stream.remove = True
        if stream.state in (StreamState.DEPLOYING, StreamState.RUNNING):
            return self._halt(stream, "it is being removed", None, now)
        if stream.state is StreamState.STOPPING or (
            stream.group.state is GroupState.ENDING and stream.attempt > 0
        ):
            return []  # removed once no worker has it
        return self._forget(stream, now)

    def _prepare(self, stream: Stream, now: float) -> Instruction:
        self._move_stream(stream, StreamState.PREPARING, stream.reason, now)
        stream.preparation += 1
        return PrepareStream(stream.stream_id, stream.preparation)

    def _handle_stream_prepared(self, event: StreamPrepared, now: float) -> list[Instruction]:
        stream = self._streams.get(event.stream_id)
        if stream is None or stream.state is not StreamState.PREPARING:
            return [Ignored(event, "nobody waits for it")]
        if stream.preparation != event.preparation:
            return [Ignored(event, "a later preparation is under way")]
        self._move_stream(stream, StreamState.DEPLOYING, stream.reason, now)
        if stream.attempt > 0:
            stream.restarts += 1
        stream.attempt = event.attempt
        stream.answered.clear()
        return [DeployStream(stream.stream_id, event.attempt, stream.group.name)]

    def _handle_preparation_failed(self, event: PreparationFailed, now: float) -> list[Instruction]:
        stream = self._streams.get(event.stream_id)
        if stream is None or stream.state is not StreamState.PREPARING:
            return [Ignored(event, "nobody waits for it")]
        if stream.preparation != event.preparation:
            return [Ignored(event, "a later preparation is under way")]
        self._note_failure(stream, event.cause, now)
        self._back_off(stream, event.reason, now)
        return [StreamDown(stream.stream_id, event.reason)]

    def _handle_stream_deployed(self, event: StreamDeployed, now: float) -> list[Instruction]:
        stream = self._streams.get(event.stream_id)
        if stream is None or stream.state is not StreamState.DEPLOYING or stream.attempt != event.attempt:
            return [Ignored(event, "nobody waits for it")]
        stream.answered.add(event.index)
        if len(stream.answered) < stream.group.workers:
            return []
        self._move_stream(stream, StreamState.RUNNING, "", now)
        return [LetStreamRun(stream.stream_id, stream.attempt, stream.group.name)]

    def _handle_stream_failed(self, event: StreamFailed, now: float) -> list[Instruction]:
        stream = self._streams.get(event.stream_id)
        running = (StreamState.DEPLOYING, StreamState.RUNNING)
        if stream is None or stream.attempt != event.attempt or stream.state not in running:
            return [Ignored(event, "the attempt is over")]
        return self._halt(stream, event.reason, event.cause, now)

    def _halt(self, stream: Stream, reason: str, cause: Cause | None, now: float) -> list[Instruction]:
        if stream.state is StreamState.RUNNING and now - stream.since > self._settings.restart_delay_max_s:
            stream.failures = 0
        if cause is not None:
            self._note_failure(stream, cause, now)
        self._move_stream(stream, StreamState.STOPPING, reason, now)
        stream.answered.clear()
        return [
            StreamDown(stream.stream_id, reason),
            HaltStream(stream.stream_id, stream.attempt, stream.group.name),
        ]

    def _handle_stream_stopped(self, event: StreamStopped, now: float) -> list[Instruction]:
        stream = self._streams.get(event.stream_id)
        if stream is None or stream.state is not StreamState.STOPPING or stream.attempt != event.attempt:
            return [Ignored(event, "nobody waits for it")]
        stream.answered.add(event.index)
        if len(stream.answered) < stream.group.workers:
            return []
        if stream.remove:
            return self._forget(stream, now)
        self._back_off(stream, stream.reason, now)
        return []

    def _note_failure(self, stream: Stream, cause: Cause, now: float) -> None:
        ran = stream.state is StreamState.RUNNING and now - stream.since > self._settings.restart_delay_max_s
        stream.alike = stream.alike + 1 if cause == stream.failed_for and not ran else 1
        stream.failed_for = cause

    def _back_off(self, stream: Stream, reason: str, now: float) -> None:
        stream.failures += 1
        stream.retry_at = now + self._delay(stream.failures)
        self._move_stream(stream, StreamState.BACKOFF, reason, now)

    def _forget(self, stream: Stream, now: float) -> list[Instruction]:
        self._move_stream(stream, StreamState.GONE, stream.reason, now)
        group = stream.group
        group.streams.discard(stream.stream_id)
        del self._streams[stream.stream_id]
        if group.streams:
            return [StreamRemoved(stream.stream_id)]
        group.empty_since = now
        if group.state is GroupState.WAITING:
            self._move_group(group, GroupState.GONE, "no stream needs it", now)
        return [StreamRemoved(stream.stream_id), *self._submit_waiting(now)]

    # --- groups ------------------------------------------------------------------------------------------------

    def _submit(self, group: Group, now: float) -> list[Instruction]:
        """Starts the group's next job, or lets it wait for slots; groups that host nothing give theirs back for it."""
        missing = self.missing_slots(group)
        group.lacks_slots = missing > 0
        if group.lacks_slots:
            return self._end_idle(missing, now)
        group.submissions += 1
        group.joined.clear()
        group.cancelled = False
        self._move_group(group, GroupState.STARTING, group.reason, now)
        return [SubmitGroup(group.name, group.database, group.nodes, group.company)]

    @property
    def free_slots(self) -> int | None:
        """How many slots no group takes, None if they aren't counted yet; below 0 if some of them are lost."""
        return None if self._slots is None else self._slots - sum(group.slots for group in self._groups.values())

    def missing_slots(self, *groups: Group) -> int:
        """Returns how many slots these groups, which have no job, would need besides those that are free."""
        free = self.free_slots
        return 0 if free is None else max(0, sum(group.workers for group in groups) - max(0, free))

    def waits_for(self, group: Group) -> str:
        """Returns what a group says that lacks slots."""
        missing = self.missing_slots(group)
        slots = "slot is" if missing == 1 else "slots are"
        return (f"{missing} {slots} missing: its worker group needs {group.workers}, "
                f"{group.workers - missing} of Spark's {self._slots} are free")

    def _end_idle(self, slots: int, now: float) -> list[Instruction]:
        """Ends groups that host nothing, until so many slots come free, with those of groups that are ending."""
        coming = sum(group.slots for group in self._groups.values() if group.state is GroupState.ENDING)
        instructions: list[Instruction] = []
        for group in list(self._groups.values()):
            if coming < slots and group.state is GroupState.RUNNING and not group.streams:
                coming += group.slots
                instructions += self._end_group(group, "another group needs its slots", now)
        return instructions

    def _submit_waiting(self, now: float) -> list[Instruction]:
        """Starts the jobs of groups that wait for slots, the oldest group first, or sees to it that slots come free."""
        instructions: list[Instruction] = []
        if self._closing:
            return instructions
        for group in list(self._groups.values()):
            if group.lacks_slots:
                instructions += self._submit(group, now)
        return instructions

    def _handle_slots_known(self, event: SlotsKnown, now: float) -> list[Instruction]:
        self._slots = event.slots
        instructions: list[Instruction] = []
        # Jobs that were submitted before their slots were counted would wait in Spark, where nobody sees why.
        excess = -(self.free_slots or 0)
        for group in reversed(self._groups.values()):
            if excess > 0 and group.state is GroupState.STARTING and not group.joined:
                excess -= group.slots
                group.cancelled = True
                self._move_group(group, GroupState.ENDING, "there are no slots for it", now)
                instructions.append(CancelGroup(group.name))
        return instructions + self._submit_waiting(now)

    def _group(self, name: str) -> Group | None:
        return next((group for group in self._groups.values() if group.name == name), None)

    def _handle_worker_joined(self, event: WorkerJoined, now: float) -> list[Instruction]:
        group = self._group(event.group)
        if group is None or group.state is not GroupState.STARTING:
            return [Ignored(event, "the group doesn't wait for workers")]
        group.joined.add(event.index)
        if len(group.joined) < group.workers:
            return []
        self._move_group(group, GroupState.RUNNING, "", now)
        group.empty_since = now
        waiting = [stream for stream in self._streams_of(group) if stream.state is StreamState.WAITING]
        return [*(self._prepare(stream, now) for stream in waiting), *self._submit_waiting(now)]

    def _handle_worker_lost(self, event: WorkerLost, now: float) -> list[Instruction]:
        group = self._group(event.group)
        if group is None or group.state not in (GroupState.STARTING, GroupState.RUNNING):
            return [Ignored(event, "the group is ending anyway")]
        reason = f"worker {event.index} of group {group.name}: {event.reason}"
        return self._fail_group(group, reason, _WORKER_LOST, now)

    def _fail_group(self, group: Group, reason: str, cause: Cause, now: float) -> list[Instruction]:
        """Gives the group's job up; its streams wait for the next one."""
        if group.state is GroupState.RUNNING and now - group.since > self._settings.restart_delay_max_s:
            group.failures = 0
        group.failures += 1
        instructions = self._suspend_streams(group, reason, cause, now)
        self._move_group(group, GroupState.ENDING, reason, now)
        group.cancelled = True
        return [*instructions, CancelGroup(group.name)]

    def _suspend_streams(self, group: Group, reason: str, cause: Cause | None, now: float) -> list[Instruction]:
        """Puts streams of a group that loses its workers back to waiting; those to be removed stay STOPPING.

        `cause` None: it is no failure.
        """
        instructions: list[Instruction] = []
        for stream in self._streams_of(group):
            if stream.state is StreamState.STOPPING and stream.remove:
                continue
            if cause is not None and stream.state is not StreamState.STOPPING:  # it has been noted why
                self._note_failure(stream, cause, now)
            if stream.state in (StreamState.DEPLOYING, StreamState.RUNNING):
                instructions.append(StreamDown(stream.stream_id, reason))
            if stream.state is StreamState.WAITING:
                stream.reason = reason
            else:
                self._move_stream(stream, StreamState.WAITING, reason, now)
        return instructions

    def _handle_job_ended(self, event: JobEnded, now: float) -> list[Instruction]:
        group = self._group(event.group)
        if group is None or group.state in (GroupState.WAITING, GroupState.GONE):
            return [Ignored(event, "the group has no job")]
        # A job that ends because Spark does leaves workers behind, which hold the locks of the next attempt's state.
        instructions: list[Instruction] = [ForgetGroup(group.name)]
        reason = group.reason
        if group.state is not GroupState.ENDING:
            reason = f"the job of group {group.name} ended: {event.reason or 'all workers left'}"
            if group.state is GroupState.RUNNING and now - group.since > self._settings.restart_delay_max_s:
                group.failures = 0
            group.failures += 1
            instructions += self._suspend_streams(group, reason, _JOB_ENDED, now)
        elif event.reason is not None:
            reason = f"{reason}; its job: {event.reason}"
        for stream in self._streams_of(group):
            if stream.remove or self._closing:
                instructions += self._forget(stream, now)
        if group.streams:
            group.retry_at = now + self._delay(group.failures)
            self._move_group(group, GroupState.WAITING, reason, now)
        else:
            self._move_group(group, GroupState.GONE, reason, now)
        return instructions + self._submit_waiting(now)

    def _handle_close_all(self, event: CloseAll, now: float) -> list[Instruction]:
        self._closing = True
        instructions: list[Instruction] = []
        for group in list(self._groups.values()):
            if group.state is GroupState.WAITING:
                for stream in self._streams_of(group):
                    instructions += self._forget(stream, now)
            elif group.state is not GroupState.ENDING:
                instructions += self._suspend_streams(group, "the engine closes", None, now)
                instructions += self._end_group(group, "the engine closes", now)
        return instructions

    def _end_group(self, group: Group, reason: str, now: float) -> list[Instruction]:
        """Ends a group that isn't needed: gently if its workers are there to be told."""
        gently = group.state is GroupState.RUNNING
        self._move_group(group, GroupState.ENDING, reason, now)
        group.cancelled = not gently
        return [ShutdownGroup(group.name) if gently else CancelGroup(group.name)]

    def _handle_tick(self, event: Tick, now: float) -> list[Instruction]:
        instructions: list[Instruction] = []
        for group in list(self._groups.values()):
            instructions += self._tick_group(group, now)
        for stream in list(self._streams.values()):
            if stream.group.state is GroupState.RUNNING:
                instructions += self._tick_stream(stream, now)
        return instructions

    def _tick_group(self, group: Group, now: float) -> list[Instruction]:
        settings = self._settings
        if group.state is GroupState.STARTING and now >= group.since + settings.start_timeout_s:
            missing = group.workers - len(group.joined)
            reason = f"{missing} of {group.workers} workers have not come within {settings.start_timeout_s:g} s"
            return self._fail_group(group, reason, _NOT_JOINED, now)
        if group.state is GroupState.WAITING and not group.lacks_slots and now >= group.retry_at:
            return self._submit(group, now)
        idle = group.state is GroupState.RUNNING and not group.streams
        if idle and now >= group.empty_since + settings.idle_timeout_s:
            return self._end_group(group, "it hosts no stream", now)
        late = group.state is GroupState.ENDING and now >= group.since + settings.stop_timeout_s
        if late and not group.cancelled:
            group.cancelled = True
            return [CancelGroup(group.name)]
        return []

    def _tick_stream(self, stream: Stream, now: float) -> list[Instruction]:
        settings = self._settings
        if stream.state is StreamState.BACKOFF and now >= stream.retry_at:
            return [self._prepare(stream, now)]
        if stream.state is StreamState.DEPLOYING and now >= stream.since + settings.deploy_timeout_s:
            missing = sorted(set(range(stream.group.workers)) - stream.answered)
            reason = f"workers {missing} have not deployed it within {settings.deploy_timeout_s:g} s"
            return self._halt(stream, reason, _NOT_DEPLOYED, now)
        if stream.state is StreamState.STOPPING and now >= stream.since + settings.stop_timeout_s:
            # A worker that doesn't stop one stream cannot be trusted with the others.
            missing = sorted(set(range(stream.group.workers)) - stream.answered)
            reason = f"workers {missing} have not stopped stream {stream.stream_id:x} in time"
            return self._fail_group(stream.group, reason, _NOT_STOPPED, now)
        return []

    # --- helpers -----------------------------------------------------------------------------------------------

    def _streams_of(self, group: Group) -> list[Stream]:
        return [self._streams[stream_id] for stream_id in sorted(group.streams)]

    def _delay(self, failures: int) -> float:
        settings = self._settings
        doublings = min(max(failures - 1, 0), 30)
        return min(settings.restart_delay_max_s, settings.restart_delay_min_s * 2.0**doublings)

    def _move_stream(self, stream: Stream, state: StreamState, reason: str, now: float) -> None:
        if state not in STREAM_TRANSITIONS[stream.state]:
            story = "; ".join(stream.story)
            raise InvalidTransitionError(
                f"stream {stream.stream_id:x}: {stream.state.name} -> {state.name} ({reason}); before: {story}"
            )
        stream.story.append(f"{now:.3f} {stream.state.name} -> {state.name} ({reason})")
        stream.state, stream.reason, stream.since = state, reason, now

    def _move_group(self, group: Group, state: GroupState, reason: str, now: float) -> None:
        if state not in GROUP_TRANSITIONS[group.state]:
            story = "; ".join(group.story)
            raise InvalidTransitionError(
                f"group {group.name}: {group.state.name} -> {state.name} ({reason}); before: {story}"
            )
        group.story.append(f"{now:.3f} {group.state.name} -> {state.name} ({reason})")
        group.state, group.reason, group.since = state, reason, now
        if state is GroupState.GONE:
            del self._groups[group.number]
