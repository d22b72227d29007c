"""What the parts of the controller share, and only its thread touches."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

from penstock.common.clock import Clock
from penstock.common.errors import NotFoundError
from penstock.common.logging import about, logger
from penstock.mnode.catalog.catalog_records import PauseCause
from penstock.mnode.checkpoints.checkpoint_machine import CheckpointMachine
from penstock.mnode.checkpoints.commit_records import CommitRecord
from penstock.mnode.controller.worker_roster import WorkerRoster
from penstock.mnode.coordinator.running_stream import RunningStream
from penstock.mnode.coordinator.stream_status import CheckpointInfo, EventInfo
from penstock.mnode.coordinator.task_monitor import Monitor
from penstock.mnode.groups.group_book import StreamState
from penstock.mnode.groups.worker_groups import GroupMachine
from penstock.tasks.protocol import control
from penstock.tasks.protocol.deployment import Deployment
from penstock.tasks.protocol.messages import TaskEvent, TaskId
from penstock.tasks.protocol.task_status import ConnectionHealth

_log = logger(__name__)

_EVENTS_KEPT = 1000
_ABANDONED_KEPT = 5


@dataclass(slots=True)
class ControlledStream:
    """What the controller keeps of a stream besides the machines' states."""

    stream: RunningStream
    paused: bool
    #: why, if nobody has asked for it
    pause: PauseCause | None = None
    #: it was paused for want of memory, as the n-th one; 0: it wasn't
    until_room: int = 0
    #: since when; 0: since it was started
    paused_ms: int = 0
    #: when it was resumed last: its external target has the whole time again
    resumed_ms: int = 0
    #: what was said last of the health of its connections, by name
    contacts: dict[str, ConnectionHealth] = field(default_factory=dict)
    #: RESUME IGNORE UNTREATED came while no attempt ran: the next one skips what it hasn't read
    skip_pending: bool = False
    deployment: Deployment | None = None
    tasks: set[TaskId] = field(default_factory=set)
    record: CommitRecord | None = None
    last_checkpoint_id: int = 0
    begun_ms: int = 0
    abandoned: deque[CheckpointInfo] = field(default_factory=lambda: deque(maxlen=_ABANDONED_KEPT))
    #: a commit record is being written
    record_under_way: bool = False
    #: what waits for that: the next attempt, which is to be prepared
    after_record: Callable[[], None] | None = None
    #: checkpoints that a task couldn't restore, with its reason
    damaged: dict[int, str] = field(default_factory=dict)
    #: damaged checkpoints that an event has told of
    told_damaged: set[int] = field(default_factory=set)
    #: (lowest checkpoint id that satisfies the waiter, waiter)
    waiters: list[tuple[int, Future[CommitRecord]]] = field(default_factory=list)
    removed: Future[None] = field(default_factory=Future)
    running: Future[None] = field(default_factory=Future)

    @property
    def stream_id(self) -> int:
        return self.stream.stream_id

    def runs_attempt(self, attempt: int) -> bool:
        """Whether this attempt is the one that is, or was, deployed last."""
        return self.deployment is not None and self.deployment.attempt == attempt


class ControllerState:
    """The two state machines, the streams, what tasks tell, and the workers that are there."""

    def __init__(
        self, clock: Clock, groups: GroupMachine, checkpoints: CheckpointMachine, monitor: Monitor,
        workers: WorkerRoster,
    ) -> None:
        self.groups = groups
        self.checkpoints = checkpoints
        self.monitor = monitor
        self.workers = workers
        self._clock = clock
        self._streams: dict[int, ControlledStream] = {}
        self._events: deque[EventInfo] = deque(maxlen=_EVENTS_KEPT)

    def __iter__(self) -> Iterator[ControlledStream]:
        return iter(self._streams.values())

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._streams

    def __getitem__(self, stream_id: int) -> ControlledStream:
        return self._streams[stream_id]

    def get(self, stream_id: int) -> ControlledStream | None:
        return self._streams.get(stream_id)

    def require(self, stream_id: int) -> ControlledStream:
        """Returns a stream that somebody names; raises NotFoundError."""
        found = self._streams.get(stream_id)
        if found is None:
            raise NotFoundError(f"stream {stream_id:x} doesn't run")
        return found

    def add(self, stream: ControlledStream) -> None:
        self._streams[stream.stream_id] = stream

    def remove(self, stream_id: int) -> ControlledStream | None:
        return self._streams.pop(stream_id, None)

    def name(self, stream_id: int) -> str:
        found = self._streams.get(stream_id)
        return f"0x{stream_id:x}" if found is None else found.stream.name

    def runs(self, stream_id: int) -> bool:
        """Whether tasks of the stream run now."""
        stream = self.groups.stream(stream_id)
        return stream is not None and stream.state is StreamState.RUNNING

    def order(self, stream_id: int, event: TaskEvent) -> None:
        """Sends an event to the tasks of a stream; lost if none run."""
        stream = self.groups.stream(stream_id)
        if stream is not None and stream.state is StreamState.RUNNING:
            self.workers.send(stream.group.name, control.PostEvent(stream_id, stream.attempt, event))

    def tell(self, stream_id: int, text: str, level: int = logging.INFO) -> None:
        """Notes something that people should hear of; see `ins_stream_events`."""
        found = self._streams.get(stream_id)
        attempt = None if found is None or found.deployment is None else found.deployment.attempt
        _log.log(level, "stream %x: %s", stream_id, text, extra=about(stream=self.name(stream_id), attempt=attempt))
        self._events.append(EventInfo(self._clock.now_ms(), stream_id, text))

    def events(self) -> list[EventInfo]:
        """Returns what happened lately, oldest first."""
        return list(self._events)
