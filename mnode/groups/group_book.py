"""Which worker groups and streams there are, in which states, and who is placed where."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from penstock.mnode.checkpoints.transitions import check_transition
from penstock.mnode.groups.group_events import AddStream, Cause, GroupSettings
from penstock.planner.task_plans.stream_plan import IsolationClass
from penstock.tasks.protocol.worker_nodes import Nodes

_STORY_EVENTS_MAX = 20


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

TIMED_STATES = frozenset({StreamState.DEPLOYING, StreamState.STOPPING, StreamState.BACKOFF})
"""What ends after a while if nothing happens."""


@dataclass(slots=True)
class Group:
    """A worker group. `name` is the name of its current or last job.

    `isolation_class`: it is for such streams, and for no others. `lacks_slots`: its next job is submitted once enough
    of Spark's slots are free.
    """

    number: int
    database: str
    nodes: Nodes
    isolation_class: IsolationClass
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
class PlacedStream:
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


class GroupBook:
    """All groups and streams of an engine. `slots`: how many Spark has, None until it has said so."""

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self.groups: dict[int, Group] = {}
        self.streams: dict[int, PlacedStream] = {}
        self._timed: dict[int, PlacedStream] = {}  # those whose state ends by time
        self.slots: int | None = None
        self.closing = False
        self._next_number = 1

    def place(self, event: AddStream, now: float) -> Group:
        """Returns a group with a free place, preferring those that run, or a new one.

        Several processes compute at the same time while there are processors for them. More of them only wake up more
        often, for less each time: then groups are packed.
        """
        order = (GroupState.RUNNING, GroupState.STARTING, GroupState.WAITING)
        free = [
            group
            for group in self.groups.values()
            if group.nodes == event.nodes
            and group.database == event.database
            and group.isolation_class is event.isolation_class
            and group.state in order
            and len(group.streams) < self.settings.streams_max
        ]
        few = [group for group in free if len(group.streams) < self.settings.streams_per_worker]
        if few:
            return min(few, key=lambda group: (order.index(group.state), group.number))
        if free and self._processes() >= self.settings.processors:
            return min(free, key=lambda group: (order.index(group.state), len(group.streams), group.number))
        group = Group(self._next_number, event.database, event.nodes, event.isolation_class, now)
        self.groups[group.number] = group
        self._next_number += 1
        return group

    def _processes(self) -> int:
        over = (GroupState.ENDING, GroupState.GONE)
        return sum(group.workers for group in self.groups.values() if group.state not in over)

    def group(self, name: str) -> Group | None:
        """Returns the group whose current or last job has this name."""
        return next((group for group in self.groups.values() if group.name == name), None)

    def streams_of(self, group: Group) -> list[PlacedStream]:
        return [self.streams[stream_id] for stream_id in sorted(group.streams)]

    @property
    def free_slots(self) -> int | None:
        """How many slots no group takes, None if they aren't counted yet; below 0 if some of them are lost."""
        return None if self.slots is None else self.slots - sum(group.slots for group in self.groups.values())

    def missing_slots(self, *groups: Group) -> int:
        """Returns how many slots these groups, which have no job, would need besides those that are free."""
        free = self.free_slots
        return 0 if free is None else max(0, sum(group.workers for group in groups) - max(0, free))

    def waits_for(self, group: Group) -> str:
        """Returns what a group says that lacks slots."""
        missing = self.missing_slots(group)
        slots = "slot is" if missing == 1 else "slots are"
        return (f"{missing} {slots} missing: its worker group needs {group.workers}, "
                f"{group.workers - missing} of Spark's {self.slots} are free")

    def timed(self) -> list[PlacedStream]:
        """Returns the streams of running groups whose state ends by time, if by nothing else. There are few."""
        return [stream for stream in self._timed.values() if stream.group.state is GroupState.RUNNING]

    def delay(self, failures: int) -> float:
        """Returns how many seconds to wait after so many failures in a row."""
        settings = self.settings
        doublings = min(max(failures - 1, 0), 30)
        return min(settings.restart_delay_max_s, settings.restart_delay_min_s * 2.0**doublings)

    def next_deadline(self) -> float | None:
        """Returns the earliest time at which a GroupTick would change something, or None."""
        settings = self.settings
        times: list[float] = []
        for group in self.groups.values():
            if group.state is GroupState.STARTING:
                times.append(group.since + settings.start_timeout_s)
            elif group.state is GroupState.ENDING and not group.cancelled:
                times.append(group.since + settings.stop_timeout_s)
            elif group.state is GroupState.WAITING and not group.lacks_slots:
                times.append(group.retry_at)
            elif group.state is GroupState.RUNNING and not group.streams:
                times.append(group.empty_since + settings.idle_timeout_s)
        for stream in self.timed():
            if stream.state is StreamState.DEPLOYING:
                times.append(stream.since + settings.deploy_timeout_s)
            elif stream.state is StreamState.STOPPING:
                times.append(stream.since + settings.stop_timeout_s)
            elif stream.state is StreamState.BACKOFF:
                times.append(stream.retry_at)
        return min(times, default=None)

    def move_stream(self, stream: PlacedStream, state: StreamState, reason: str, now: float) -> None:
        """Puts a stream into another state. Raises InvalidTransitionError."""
        check_transition(STREAM_TRANSITIONS, f"stream {stream.stream_id:x}", stream.state, state, reason, stream.story)
        stream.story.append(f"{now:.3f} {stream.state.name} -> {state.name} ({reason})")
        stream.state, stream.reason, stream.since = state, reason, now
        if state in TIMED_STATES:
            self._timed[stream.stream_id] = stream
        else:
            self._timed.pop(stream.stream_id, None)

    def move_group(self, group: Group, state: GroupState, reason: str, now: float) -> None:
        """Puts a group into another state; one that is GONE is forgotten. Raises InvalidTransitionError."""
        check_transition(GROUP_TRANSITIONS, f"group {group.name}", group.state, state, reason, group.story)
        group.story.append(f"{now:.3f} {group.state.name} -> {state.name} ({reason})")
        group.state, group.reason, group.since = state, reason, now
        if state is GroupState.GONE:
            del self.groups[group.number]
