"""What a worker tells of its streams in heartbeats: those whose tasks rest are named, and nothing is told again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from penstock.common.clock import Clock
from penstock.tasks.flow.queues import QueueSet
from penstock.tasks.protocol.control import Heartbeat, QueuesHeld
from penstock.tasks.protocol.deployment import Deployment
from penstock.tasks.protocol.messages import DroppedRow, TaskId
from penstock.tasks.protocol.task_status import TaskStatus
from penstock.tasks.worker.runner import LONG_ROUND_S, StreamRunner
from penstock.tasks.worker.turns import Gathering

_STILL_EVERY = 10  # heartbeats: some of what is told follows from time alone
_BUSY_EVERY = 5  # where rows gather for long
_SHORTEST_S = 1e-3

_Attempt = tuple[int, int]


class Reported(Protocol):
    """A stream on the worker."""

    deployment: Deployment
    queues: QueueSet
    runner: StreamRunner


class WorkerReport:
    """Makes one heartbeat after the other; for one thread.

    To ask a thousand streams each second how they are keeps half a processor busy. Those that rest are asked seldom,
    and so are all while rows gather for long, for then turns are dear: a few in each heartbeat.
    """

    def __init__(self, clock: Clock, gathering: Gathering) -> None:
        self._clock = clock
        self._gathering = gathering
        self._number = 0
        self._spent_s, self._since = 0.0, clock.monotonic()
        #: which answer of each stream was told last, and what its queues hold
        self._told: dict[_Attempt, int] = {}
        self._held: dict[_Attempt, QueuesHeld] = {}
        self._dropped: dict[TaskId, tuple[DroppedRow, ...] | None] = {}

    def ask(self, streams: Sequence[Reported]) -> list[Reported]:
        """Asks the streams for their statuses that may have other ones now; returns those. They answer soon."""
        self._number += 1
        busy = self._gathering.seconds >= LONG_ROUND_S
        asked = [stream for stream in streams if self._is_due(stream, busy)]
        for stream in asked:
            stream.runner.ask_statuses()
        return asked

    def _is_due(self, stream: Reported, busy: bool) -> bool:
        told = self._told.get(_attempt(stream))
        if told is None:
            return True
        still = told == stream.runner.answers and stream.runner.is_still
        every = _STILL_EVERY if still else _BUSY_EVERY if busy else 1
        return (self._number + stream.deployment.stream_id) % every == 0

    def heartbeat(self, streams: Sequence[Reported], asked: Sequence[Reported]) -> Heartbeat:
        """Returns what is to be told of the streams, of which `asked` may have answered."""
        told = {_attempt(stream): stream.runner.answers for stream in asked}  # an answer that comes now is told again
        statuses = tuple(self._news(status) for stream in asked for status in stream.runner.statuses())
        others = [stream for stream in streams if _attempt(stream) not in told]
        still = {stream.deployment.stream_id for stream in others
                 if self._told.get(_attempt(stream)) == stream.runner.answers and stream.runner.is_still}
        untold = tuple(id_ for stream in others if (id_ := stream.deployment.stream_id) not in still)
        held = self._queues(streams)
        there = {_attempt(stream) for stream in streams}
        self._told = {attempt: answer for attempt, answer in (self._told | told).items() if attempt in there}
        ids = {stream.deployment.stream_id for stream in streams}
        self._dropped = {task: rows for task, rows in self._dropped.items() if task.stream_id in ids}
        return Heartbeat(statuses, held, self._gathering.seconds, self._busy(), tuple(still), untold)

    def _news(self, status: TaskStatus) -> TaskStatus:
        """Returns a status without the dropped rows that were told with the one before."""
        known = status.dropped and self._dropped.get(status.task) is status.dropped
        self._dropped[status.task] = status.dropped
        return replace(status, dropped=None) if known else status

    def _queues(self, streams: Sequence[Reported]) -> tuple[QueuesHeld, ...]:
        before, self._held = self._held, {}
        for stream in streams:
            known = stream.queues.held()
            if known is not None:
                attempt = _attempt(stream)
                self._held[attempt] = QueuesHeld(*attempt, *known)
        return tuple(held for attempt, held in self._held.items() if before.get(attempt) != held)

    def _busy(self) -> float:
        spent_s, since = self._gathering.spent_s, self._clock.monotonic()
        busy = (spent_s - self._spent_s) / max(since - self._since, _SHORTEST_S)
        self._spent_s, self._since = spent_s, since
        return busy


def _attempt(stream: Reported) -> _Attempt:
    return stream.deployment.stream_id, stream.deployment.attempt
