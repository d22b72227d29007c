"""Keeps what workers report about their tasks, and computes rates and lag from it; decides nothing."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from penstock.mnode.coordinator.task_intake import IntakeFault, IntakeWatch
from penstock.tasks.protocol.messages import DroppedRow, TaskId
from penstock.tasks.protocol.task_status import TaskStatus
from penstock.vnode.read.vnode_reader import LoggedRows

RATE_WINDOW_S = 5.0

Logged = Callable[[], LoggedRows | None]
"""Returns what the log has by now of what a source task follows; None: nobody can say, or the task is another one."""


def nothing_logged() -> None:
    """Is the `Logged` of tasks that follow no log."""


@dataclass(frozen=True, slots=True)
class TaskReport:
    """A task's latest status and what follows from the last few. Rates are per second over the last seconds.

    `lag` is in WAL records. `silent_s` is set once the task has been silent for longer than the timeout, `stalled_s`
    once it has had something to do for longer than the stall timeout without getting anywhere. `busy`, `blocked` (of
    that `limited`, by a rate limit) and `udf` are shares of the last seconds, None before anything is known. `intake`:
    what a source task doesn't take in, None: nothing.
    """

    status: TaskStatus
    rows_in_rate: float
    bytes_in_rate: float
    bytes_out_rate: float
    lag: int | None
    silent_s: float | None
    stalled_s: float | None
    busy: float | None = None
    blocked: float | None = None
    limited: float | None = None
    udf: float | None = None
    intake: IntakeFault | None = None

    @property
    def starved(self) -> float | None:
        """The share in which the task neither worked nor was blocked: it had no input, or not its turn."""
        return None if self.busy is None else max(0.0, 1.0 - self.busy - (self.blocked or 0.0))


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    rows_in: int
    bytes_in: int
    bytes_out: int
    elapsed_s: float
    busy_s: float
    blocked_s: float
    limited_s: float
    udf_s: float


class _Track:
    """One task's recent history. `logged`: see `Logged`."""

    def __init__(self, logged: Logged) -> None:
        self.status: TaskStatus | None = None
        self.dropped: tuple[DroppedRow, ...] | None = None
        self.worker = 0
        self.at = 0.0  # when it was heard last how the task is, if only that nothing has changed
        self.heard_at = 0.0  # when it was heard last that the task is there
        self.samples: deque[_Sample] = deque()
        self.progress: tuple[int | None, int, int] | None = None
        self.progress_at = 0.0
        self.intake = IntakeWatch()
        self._logged = logged

    def add(self, status: TaskStatus, now: float) -> None:
        self.catch_up()
        passed, spent = status.progress, status.spent
        sample = _Sample(
            now, passed.rows_in, passed.bytes_in, passed.bytes_out, spent.elapsed_s, spent.busy_s,
            spent.blocked_s, spent.limited_s, spent.udf_s)
        before = self.status
        if before is not None and (
                passed.rows_in < before.progress.rows_in or spent.elapsed_s < before.spent.elapsed_s):
            self.samples.clear()  # another attempt counts from zero
        self._append(sample)
        progress = (status.log.processed_version, passed.rows_in, passed.rows_out)
        if progress != self.progress or not _has_work(status):
            self.progress, self.progress_at = progress, now
        if status.dropped is not None:
            self.dropped = status.dropped
        self.status, self.at, self.heard_at = status, now, now
        self.intake.observe(status, self._logged(), now)

    def still(self, now: float) -> None:
        """Takes note that the task rests and is as it was."""
        self.at = self.heard_at = self.progress_at = now
        if self.status is not None:
            self.intake.observe(self.status, self._logged(), now)

    def catch_up(self) -> None:
        """Adds what is known of the time in which the task has rested."""
        if not self.samples:
            return
        for at in (self.at - RATE_WINDOW_S, self.at):
            last = self.samples[-1]
            if at > last.at:
                self._append(dataclasses.replace(last, at=at, elapsed_s=last.elapsed_s + at - last.at))

    def _append(self, sample: _Sample) -> None:
        self.samples.append(sample)
        while len(self.samples) > 2 and sample.at - self.samples[1].at >= RATE_WINDOW_S:
            self.samples.popleft()

    def whole_status(self) -> TaskStatus | None:
        """Returns the latest status with the rows left out. Heartbeats are many more than looks: it is made here."""
        if self.status is None or self.status.dropped is not None:
            return self.status
        return dataclasses.replace(self.status, dropped=self.dropped)


def _lag(status: TaskStatus) -> int | None:
    log = status.log
    if log.wal_version is None or log.processed_version is None:
        return None
    return max(0, log.wal_version - log.processed_version)


def _has_work(status: TaskStatus) -> bool:
    """Whether there is something that the task could get on with now; who waits for a token, or for an
    external target, couldn't."""
    waiting = status.queues.input_bytes + status.queues.in_flight_bytes + (_lag(status) or 0)
    return waiting > 0 and status.state not in ("PAUSED", "RATE_LIMITED", "RETRYING")


class Monitor:
    """The latest heartbeats of all tasks. Not thread-safe; `now` is monotonic seconds."""

    def __init__(self, silence_after_s: float, stall_after_s: float,
                 follow: Callable[[TaskId], Logged] = lambda task: nothing_logged) -> None:
        self._follow = follow
        self._silence_after_s = silence_after_s
        self._stall_after_s = stall_after_s
        self._tracks: dict[int, dict[TaskId, _Track]] = {}  # by stream

    def heartbeat(self, statuses: Iterable[TaskStatus], now: float, worker: int = 0) -> None:
        """Tasks are as the worker at this place of their group says."""
        for status in statuses:
            tracks = self._tracks.setdefault(status.task.stream_id, {})
            track = tracks.get(status.task)
            if track is None:
                track = tracks[status.task] = _Track(self._follow(status.task))
            track.worker = worker
            track.add(status, now)

    def still(self, streams: Iterable[int], now: float, worker: int) -> None:
        """The tasks of some streams on the worker at this place rest, and are as it said last."""
        for track in self._of(streams, worker):
            track.still(now)

    def untold(self, streams: Iterable[int], now: float, worker: int) -> None:
        """The tasks of some streams on the worker at this place are there; how they are will be heard later."""
        for track in self._of(streams, worker):
            track.heard_at = now

    def _of(self, streams: Iterable[int], worker: int) -> Iterator[_Track]:
        return (track for stream_id in streams for track in self._tracks.get(stream_id, {}).values()
                if track.worker == worker)

    def forget(self, stream_id: int) -> None:
        """Drops all that is known of a stream's tasks."""
        self._tracks.pop(stream_id, None)

    def statuses(self) -> list[TaskStatus]:
        """Returns the latest status of each task, ordered by task."""
        return [status for track in self._ordered() if (status := track.whole_status()) is not None]

    def statuses_of(self, stream_id: int) -> list[TaskStatus]:
        """Returns the latest status of each task of a stream, in no order and without the rows left out."""
        return [track.status for track in self._tracks.get(stream_id, {}).values() if track.status is not None]

    def report(self, now: float) -> list[TaskReport]:
        """Returns what is known of each task, ordered by task."""
        return [self._report(track, status, now) for track in self._ordered()
                if (status := track.whole_status()) is not None]

    def _ordered(self) -> list[_Track]:
        tracks = {task: track for of_stream in self._tracks.values() for task, track in of_stream.items()}
        return [tracks[task] for task in sorted(tracks)]

    def _report(self, track: _Track, status: TaskStatus, now: float) -> TaskReport:
        track.catch_up()
        first, last = track.samples[0], track.samples[-1]
        seconds = last.at - first.at
        silent_s = now - track.heard_at

        def rate(name: str) -> float:
            if seconds <= 0:
                return 0.0
            return float(getattr(last, name) - getattr(first, name)) / seconds

        measured_s = last.elapsed_s - first.elapsed_s

        def share(name: str) -> float | None:
            if measured_s > 0:
                return min(1.0, max(0.0, float(getattr(last, name) - getattr(first, name)) / measured_s))
            return min(1.0, float(getattr(last, name)) / last.elapsed_s) if last.elapsed_s > 0 else None

        stalled_s = now - track.progress_at
        silent, stalled = silent_s > self._silence_after_s, stalled_s > self._stall_after_s
        if silent:
            reason = f"no heartbeat for {silent_s:.0f} s; was {status.state}"
            status = dataclasses.replace(status, reason=reason)
        elif stalled:
            reason = f"stalled for {stalled_s:.0f} s: {status.reason or status.state}"
            status = dataclasses.replace(status, reason=reason)
        return TaskReport(
            status,
            rate("rows_in"),
            rate("bytes_in"),
            rate("bytes_out"),
            _lag(status),
            silent_s if silent else None,
            stalled_s if stalled else None,
            share("busy_s"),
            share("blocked_s"),
            share("limited_s"),
            share("udf_s"),
            track.intake.fault(now),
        )
