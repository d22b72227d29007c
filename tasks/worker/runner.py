"""Drives the tasks of one stream on one worker: steps them, moves items between their queues, waits when all rest.

`drive_once` and the links are pure: no threads, no clocks; tests and the simulation use them as they are.
`StreamRunner` has them driven by the worker's threads. Knows nothing of sockets: remote links come from the exchange.
"""

from __future__ import annotations

import contextvars
import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Protocol

from penstock.common.clock import Clock
from penstock.common.errors import OutOfMemoryError
from penstock.common.logging import logger
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.operators.stream_task import StreamTask
from penstock.tasks.protocol.control import concerns
from penstock.tasks.protocol.messages import Block, Item, TaskEvent, TaskId
from penstock.tasks.protocol.task_status import Pacing, TaskStatus
from penstock.tasks.worker.timesheet import Timesheet
from penstock.tasks.worker.turn_threads import TurnThreads

_log = logger(__name__)
_TURN_S = 0.005
#: Where rows gather for so long, a turn for each look at a stream would be most of what it has.
LONG_ROUND_S = 0.1


class Link(Protocol):
    """A channel from one task's output queue to another task's input queue."""

    upstream: TaskId
    downstream: TaskId

    def move(self) -> bool:
        """Moves what fits (or sees that it gets moved) without blocking; returns whether anything was moved."""
        ...

    def blocked_since(self) -> float | None:
        """Returns since when the receiver refuses the next block (monotonic seconds), or None."""
        ...

    def failure(self) -> BaseException | None:
        """Returns what the channel broke with, or None."""
        ...

    def close(self) -> None: ...


class LocalLink:
    """A channel between two tasks of the same worker."""

    def __init__(
        self,
        upstream: TaskId,
        downstream: TaskId,
        output: ChannelQueue[TaskId],
        input: ChannelQueue[TaskId],
        clock: Clock,
    ) -> None:
        self.upstream = upstream
        self.downstream = downstream
        self._output = output
        self._input = input
        self._clock = clock
        self._blocked_since: float | None = None
        self._pieces: deque[Block] = deque()  # of the oldest block, those that the input queue hasn't taken yet

    def move(self) -> bool:
        moved = False
        while (item := self._output.peek(self.downstream)) is not None:
            if not self._put(item):
                if self._blocked_since is None:
                    self._blocked_since = self._clock.monotonic()
                self._output.stop(self.downstream, True)
                return moved
            if self._blocked_since is not None:
                self._output.stop(self.downstream, False)
            self._output.take(self.downstream)
            moved = True
        self._blocked_since = None
        return moved

    def _put(self, item: Item) -> bool:
        if not isinstance(item, Block) or (not self._pieces and item.nbytes <= self._input.share_bytes):
            return self._input.try_put(self.upstream, item)
        if not self._pieces:
            self._pieces.append(item)
        return self._input.put_pieces(self.upstream, self._pieces)

    def blocked_since(self) -> float | None:
        return self._blocked_since

    def failure(self) -> BaseException | None:
        return None

    def close(self) -> None:
        self._blocked_since = None


class TaskFailure(Exception):
    """Carries the task in which an error arose up to whoever reports it; the error is the `__cause__`."""

    def __init__(self, task: TaskId) -> None:
        super().__init__(str(task))
        self.task = task


def drive_once(tasks: Sequence[StreamTask], links: Sequence[Link], timesheet: Timesheet | None = None) -> bool:
    """Gives each task one step, upstream first, and moves what came out; returns whether anything was done.

    `timesheet` is told who is at work. Raises TaskFailure from the error of the task or channel that failed.
    """
    progressed = False
    for place, task in enumerate(tasks):
        if timesheet is not None:
            timesheet.turn_to(place)
        try:
            progressed |= task.step()
            for link in links:
                if link.upstream is task.id or link.upstream == task.id:
                    failure = link.failure()
                    if failure is not None:
                        raise failure
                    progressed |= link.move()
        except Exception as error:
            raise TaskFailure(task.id) from error
    if timesheet is not None:
        timesheet.turn_to(None)
    return progressed


def next_deadline(tasks: Sequence[StreamTask]) -> float | None:
    """Returns the earliest time at which a task wants to be stepped although nothing changed, or None."""
    return min((at for task in tasks if (at := task.next_deadline()) is not None), default=None)


def statuses(tasks: Sequence[StreamTask], links: Sequence[Link]) -> tuple[TaskStatus, ...]:
    """Returns the tasks' statuses; a task that cannot put its output also says which task blocks it."""
    return tuple(_with_blocker(task.status(), links) for task in tasks)


def _with_blocker(status: TaskStatus, links: Sequence[Link]) -> TaskStatus:
    blocked = [
        (since, link.downstream)
        for link in links
        if link.upstream == status.task and (since := link.blocked_since()) is not None
    ]
    if not blocked or status.state != "BACKPRESSURED":
        return status
    return dataclasses.replace(status, blocked_by=min(blocked, key=itemgetter(0))[1])


Failure = Callable[[TaskId | None, BaseException], None]


class StreamRunner:
    """One stream on one worker: builds the tasks, waits for `start`, drives them until `stop`.

    What touches the tasks happens on one thread at a time: a thread of its own builds and closes them, since that may
    take long, and `threads` give it its turns in between. Only `post` and queue operations come from others. No wake-up
    is lost: whoever wakes it during a turn has it get another one.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        threads: TurnThreads,
        build: Callable[[], tuple[Sequence[StreamTask], Sequence[Link]]],
        on_ready: Callable[[Sequence[StreamTask]], None],
        on_failure: Failure,
        on_stopped: Callable[[], None],
        latency_s: float | None = None,
    ) -> None:
        """`build` returns tasks, upstream first, and their links. `latency_s`: how long gathering may hold rows of the
        stream back, None: as long as those of most. Of the callbacks, `on_ready` is called once the tasks
        are built, `on_failure` at most once, `on_stopped` always and last."""
        self._name = name
        self._clock = clock
        self._threads = threads
        self._seat = threads.seat(self._take_turn, latency_s)
        self._on_failure = on_failure
        self._on_stopped = on_stopped
        self._tasks: Sequence[StreamTask] = ()
        self._links: Sequence[Link] = ()
        self._started = False
        self._stopping = False
        self._failed = False
        self._status_wanted = False
        self._stirred = True  # it has had a turn since its tasks were asked how they are
        self.answers = 0  # how often they were
        self._timesheet = Timesheet(clock, 0)
        self._statuses: tuple[TaskStatus, ...] = ()
        self._answered_at = 0.0
        self._early_events: list[TaskEvent] = []
        self._lock = threading.Lock()
        self._built = False
        self._ready = False  # to have turns
        self._turns = 0  # in which something was done
        self._turn = 0
        self._turn_begun = float("-inf")
        self._goes_on = False  # its turn was cut short: others may be waiting
        self._gathers = False
        self._leaving = False
        self._driver: int | None = None
        self._ended = threading.Event()
        self._context = contextvars.copy_context()
        self._building: Callable[[], None] | None = lambda: self._build(build, on_ready)

    @property
    def turn(self) -> int | None:
        """The number of the turn that is under way, if rows gather up to the next one; for the stream's tasks."""
        return self._turn if self._gathers else None

    def launch(self) -> None:
        """Begins to build the tasks, which then wait for `start`."""
        building, self._building = self._building, None
        assert building is not None
        threading.Thread(target=building, name=f"build {self._name}", daemon=True).start()

    def start(self) -> None:
        """Lets the tasks run."""
        self._started = True
        self._threads.wake(self._seat, at_once=True)

    def wake(self) -> None:
        """Sees to it that every task is stepped after this call. Any thread, cheap."""
        # The runner's own changes come up in the pass that follows anyway: a turn ends only after one without any.
        if threading.get_ident() != self._driver:
            self._threads.wake(self._seat)

    def post(self, event: TaskEvent) -> None:
        """Hands an event to the tasks that it concerns, also if they are still being built."""
        with self._lock:
            if not self._built:
                self._early_events.append(event)
                return
        self._deliver(event)

    def ask_statuses(self) -> None:
        """Asks for what `statuses` returns to be renewed: soon, or in the next turn where rows gather for long."""
        self._status_wanted = True
        self._threads.wake(self._seat, at_once=self._threads.gathering_s(self._seat) < LONG_ROUND_S)

    @property
    def is_still(self) -> bool:
        """Whether all tasks rest with nothing to do, and are as their last statuses have it. Any thread."""
        return not self._stirred and not self._status_wanted and all(map(_rests, self._statuses))

    def statuses(self) -> tuple[TaskStatus, ...]:
        """Returns the tasks' statuses as of the last request that was answered.

        Who is busy or blocked they say as of now, also while a task is in a long step.
        """
        if not self._status_wanted:
            return self._statuses
        return self._timesheet.filled_in(self._statuses, self._answered_at)

    def stop(self) -> None:
        """Asks for the end; `on_stopped` tells when it has come."""
        self._stopping = True
        self._threads.wake(self._seat, at_once=True)

    def join(self, timeout_s: float) -> bool:
        """Waits for the end; returns whether it came."""
        return self._ended.wait(timeout_s)

    def _deliver(self, event: TaskEvent) -> None:
        for task in self._tasks:
            if concerns(event, task.id):
                task.post(event)
        self._threads.wake(self._seat, at_once=True)

    def _build(
        self,
        build: Callable[[], tuple[Sequence[StreamTask], Sequence[Link]]],
        on_ready: Callable[[Sequence[StreamTask]], None],
    ) -> None:
        try:
            self._tasks, self._links = build()
            self._context = contextvars.copy_context()  # what log lines are about stays the same in its turns
            with self._lock:
                self._built = True
                for event in self._early_events:
                    self._deliver(event)
            self._timesheet = Timesheet(self._clock, len(self._tasks))
            self._answer()
            on_ready(self._tasks)
        except Exception as error:  # noqa: BLE001
            _log.exception("a stream could not be built")
            self._fail(None, error)
        with self._lock:
            self._leaving = self._failed or self._stopping
            self._ready = True
        if self._leaving:
            self._end()
        else:
            self._threads.wake(self._seat, at_once=True)

    def _take_turn(self) -> float | None:
        """Drives the tasks for a while; returns when that is to go on by itself, None: when it is woken."""
        if not self._ready or self._leaving:
            return None
        self._driver = threading.get_ident()
        if not self._status_wanted:
            self._stirred = True
        now = self._clock.monotonic()
        # What comes from elsewhere may keep tasks busy without end: their own rows don't wait for that.
        if not self._goes_on or now - self._turn_begun > self._threads.bound_s(self._seat):
            self._turn += 1
            self._turn_begun = now
            self._gathers = self._threads.gathering_s(self._seat) > 0.0
        self._goes_on = False
        try:
            return self._context.run(self._drive)
        finally:
            self._driver = None

    def _drive(self) -> float | None:
        begun = self._clock.monotonic()
        idle = True
        try:
            while not self._stopping:
                progressed = self._started and drive_once(self._tasks, self._links, self._timesheet)
                self._turns += idle and progressed
                idle = idle and not progressed
                if progressed and self._clock.monotonic() - begun <= _TURN_S:
                    continue
                if self._status_wanted:
                    # What nothing has woken the tasks for counts as well: records of other tables.
                    self._answer()
                    self._stirred = self._status_wanted = False
                if not self._started:
                    return None
                self._goes_on = progressed
                return begun if progressed else next_deadline(self._tasks)
        except TaskFailure as failure:
            self._fail(failure.task, failure.__cause__ or failure)
        except Exception as error:  # noqa: BLE001
            _log.exception("a stream could not be driven")
            self._fail(None, error)
        self._leave()
        return None

    def _answer(self) -> None:
        pacing = Pacing(self._turns, self._threads.gathering_s(self._seat),
                        self._threads.bound_s(self._seat))
        self._statuses = self._timesheet.filled_in(tuple(
            dataclasses.replace(status, pacing=pacing) for status in statuses(self._tasks, self._links)))
        self._answered_at = self._clock.monotonic()
        self.answers += 1

    def _leave(self) -> None:
        """Has the tasks closed, which may take long, by a thread of their own."""
        self._leaving = True
        context = contextvars.copy_context()
        threading.Thread(target=lambda: context.run(self._end), name=f"close {self._name}", daemon=True).start()

    def _end(self) -> None:
        self._threads.remove(self._seat)
        closeables: tuple[Link | StreamTask, ...] = (*self._links, *self._tasks)
        self._links, self._tasks = (), ()
        for closeable in closeables:
            try:
                closeable.close()
            except Exception as error:  # noqa: BLE001
                _log.exception("closing failed")
                self._fail(None, error)
        try:
            self._on_stopped()
        finally:
            # Who hosts the runner is in what it calls, and would else, with all its sockets, stay until the collector
            # looks for circles, which in a worker takes long.
            self._on_stopped = _nothing
            self._on_failure = _nothing
            self._seat.take_turn = _nothing
            self._ended.set()

    def _fail(self, task: TaskId | None, error: BaseException) -> None:
        if not self._failed:
            self._failed = True
            self._on_failure(task, OutOfMemoryError.of(error) if isinstance(error, MemoryError) else error)


def _rests(status: TaskStatus) -> bool:
    if status.state == "PAUSED":
        return True
    queues, log = status.queues, status.log
    waiting = queues.input_bytes or queues.output_bytes or queues.in_flight_bytes
    return status.state == "IDLE" and not waiting and log.processed_version == log.wal_version


def _nothing(*ignored: object) -> None:
    """Stands for what was to be called while there was a stream."""
