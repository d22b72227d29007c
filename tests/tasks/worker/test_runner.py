"""Driving tasks: items move in order, bounds hold, failures name their task, and no wake-up is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.basics.waiting import wait_until
from kits.engines.runtime_fakes import numbers

from penstock.common.clock import ManualClock, SystemClock
from penstock.tasks.flow.queues import ChannelQueue, QueueSet
from penstock.tasks.protocol.control import Heartbeat
from penstock.tasks.protocol.messages import (
    Block,
    CheckpointCommitted,
    Item,
    StartCheckpoint,
    TaskEvent,
    TaskId,
    Watermark,
)
from penstock.tasks.protocol.task_status import Pacing, TaskStatus
from penstock.tasks.worker.runner import LocalLink, StreamRunner, TaskFailure, drive_once, next_deadline, statuses
from penstock.tasks.worker.turn_threads import TurnThreads
from penstock.tasks.worker.turns import Gathering, TurnQueue
from penstock.tasks.worker.worker_report import WorkerReport

SOURCE, AGG, SINK = (TaskId(1, level, 0) for level in ("source", "agg", "sink"))  # type: ignore[arg-type]
ROW_BYTES = numbers(0, 1).nbytes


class ListTask:
    """A task that emits a list, passes on, or collects, one item per step; as `patience` allows."""

    def __init__(self, id: TaskId, capacity: int, to: TaskId | None, wake: Callable[[], None] = lambda: None) -> None:
        self.id = id
        self.input: ChannelQueue[TaskId] = ChannelQueue(capacity, [UPSTREAM[id]], wake)
        self.output = None if to is None else ChannelQueue(capacity, [to], wake)
        self.to_send: list[Item] = []
        self.received: list[Item] = []
        self.patience = 1_000_000
        self.error: Exception | None = None
        self.deadline: float | None = None
        self.events: list[TaskEvent] = []
        self.steps = 0
        self.step_seen = threading.Event()
        self.closed_by: str | None = None

    def step(self) -> bool:
        self.steps += 1
        self.step_seen.set()
        if self.error is not None:
            raise self.error
        if self.patience == 0:
            return False
        item = self.to_send[0] if self.to_send else self.input.peek(UPSTREAM[self.id])
        if item is None:
            return False
        if self.output is not None and not self.output.try_put(self.output.channels[0], item):
            return False
        self.patience -= 1
        if self.to_send:
            self.to_send.pop(0)
        else:
            self.input.take(UPSTREAM[self.id])
            self.received.append(item)
        return True

    def next_deadline(self) -> float | None:
        return self.deadline

    def post(self, event: TaskEvent) -> None:
        self.events.append(event)

    def status(self) -> TaskStatus:
        return TaskStatus(self.id, "BACKPRESSURED" if self.output and not self.output.is_empty() else "IDLE")

    def close(self) -> None:
        self.closed_by = threading.current_thread().name


UPSTREAM = {SOURCE: SOURCE, AGG: SOURCE, SINK: AGG}


def chain(capacity: int, wake: Callable[[], None] = lambda: None) -> tuple[list[ListTask], list[LocalLink]]:
    """Returns source, agg and sink, and the links between them."""
    source, agg, sink = (
        ListTask(id, capacity, to, wake) for id, to in ((SOURCE, AGG), (AGG, SINK), (SINK, None))
    )
    clock = ManualClock()
    assert source.output is not None
    assert agg.output is not None
    links = [
        LocalLink(SOURCE, AGG, source.output, agg.input, clock),
        LocalLink(AGG, SINK, agg.output, sink.input, clock),
    ]
    return [source, agg, sink], links


def drive_all(tasks: list[ListTask], links: list[LocalLink]) -> None:
    while drive_once(tasks, links):
        for task in tasks:
            task.input.validate()


@given(st.lists(st.integers(-1, 20), max_size=60), st.integers(20, 60))
def test_items_arrive_in_order_and_bounds_hold(sizes: list[int], capacity_rows: int) -> None:
    """Whatever the sizes of blocks and queues, a chain delivers every item once, in order, within its bounds."""
    items: list[Item] = [Watermark(n) if rows < 0 else Block(numbers(n, rows)) for n, rows in enumerate(sizes)]
    tasks, links = chain(capacity_rows * ROW_BYTES)
    tasks[0].to_send = list(items)
    drive_all(tasks, links)
    assert tasks[2].received == items
    assert max(task.input.peak_bytes for task in tasks) <= capacity_rows * ROW_BYTES


def test_a_sink_that_stops_stops_the_source() -> None:
    """When the sink takes nothing, input queues fill up and the source keeps the rest; nothing is lost when it goes on.

    An output queue holds the one block that isn't taken: whoever made it makes no more.
    """
    tasks, links = chain(10 * ROW_BYTES)
    source, _, sink = tasks
    sink.patience = 0
    items: list[Item] = [Block(numbers(n, 1)) for n in range(100)]
    source.to_send = list(items)
    drive_all(tasks, links)
    assert len(source.to_send) == 100 - 2 * (10 + 1)
    assert [link.blocked_since() for link in links] == [0.0, 0.0]
    assert [status.blocked_by for status in statuses(tasks, links)] == [AGG, SINK, None]
    sink.patience = 1000
    drive_all(tasks, links)
    assert sink.received == items
    assert [status.blocked_by for status in statuses(tasks, links)] == [None, None, None]


def test_a_failure_names_its_task_and_keeps_its_cause() -> None:
    """An error in a step comes out as TaskFailure of that task."""
    tasks, links = chain(1000)
    tasks[1].error = ValueError("bad value")
    with pytest.raises(TaskFailure) as caught:
        drive_once(tasks, links)
    assert caught.value.task == AGG
    assert caught.value.__cause__ is tasks[1].error


def test_the_earliest_deadline_counts() -> None:
    """The runner waits no longer than the first task allows."""
    tasks, _ = chain(1000)
    assert next_deadline(tasks) is None
    tasks[0].deadline, tasks[2].deadline = 7.0, 5.0
    assert next_deadline(tasks) == 5.0


class Running:
    """A StreamRunner over a chain, with what it reports."""

    def __init__(self, error: Exception | None = None, clock: SystemClock | None = None,
                 latency_s: float | None = None) -> None:
        self.ready, self.failed, self.stopped = threading.Event(), threading.Event(), threading.Event()
        self.failures: list[tuple[TaskId | None, BaseException]] = []
        self.may_build = threading.Event()
        self.may_build.set()
        self.error = error
        self.threads = TurnThreads(clock or SystemClock(), TurnQueue(Gathering(1.0, 0.0)), 2)
        self.runner = StreamRunner(
            "s", clock or SystemClock(), self.threads, self.build, lambda tasks: self.ready.set(), self.fail,
            self.stopped.set, latency_s
        )
        self.tasks, self.links = chain(100 * ROW_BYTES, lambda: self.runner.wake())

    def build(self) -> tuple[list[ListTask], list[LocalLink]]:
        self.may_build.wait()
        if self.error is not None:
            raise self.error
        return self.tasks, self.links

    def fail(self, task: TaskId | None, error: BaseException) -> None:
        self.failures.append((task, error))
        self.failed.set()


def test_tasks_run_only_after_start_and_are_closed_by_a_thread_of_their_own() -> None:
    """Deployed tasks wait for the start signal; closing, which may take long, takes no thread from others' turns."""
    running = Running()
    running.runner.launch()
    assert running.ready.wait(60)
    assert running.tasks[0].steps == 0
    running.runner.start()
    assert running.tasks[0].step_seen.wait(60)
    running.runner.stop()
    assert running.runner.join(60)
    assert running.stopped.is_set()
    assert {task.closed_by for task in running.tasks} == {"close s"}
    assert running.failures == []


def test_every_put_from_outside_is_noticed() -> None:
    """A thousand items put one by one from another thread, each after the last one was seen, all get through."""
    running = Running()
    running.runner.launch()
    running.runner.start()
    source, _, sink = running.tasks
    arrived = threading.Semaphore(0)
    original = sink.received

    class Counting(list[Item]):
        def append(self, item: Item) -> None:
            super().append(item)
            arrived.release()

    sink.received = Counting(original)
    for n in range(1000):
        source.input.try_put(SOURCE, Watermark(n))
        assert arrived.acquire(timeout=60), f"item {n} was not noticed"
    running.runner.stop()
    assert running.runner.join(60)
    assert sink.received == [Watermark(n) for n in range(1000)]


def test_statuses_tell_how_rows_gather() -> None:
    """Turns in which nothing was done don't count; the bound is that of the stream."""
    running = Running(latency_s=0.5)
    running.runner.launch()
    assert running.ready.wait(60)
    running.runner.start()
    source, _, sink = running.tasks

    def pacing() -> Pacing:
        running.runner.ask_statuses()
        (found,) = {status.pacing for status in running.runner.statuses()}
        return found

    wait_until(lambda: source.steps > 0)
    assert pacing() == Pacing(0, 0.0, 0.5)
    source.input.try_put(SOURCE, Watermark(1))
    wait_until(lambda: sink.received == [Watermark(1)])
    wait_until(lambda: pacing().turns > 0)
    turns = pacing().turns
    assert pacing().turns == turns
    running.runner.stop()
    assert running.runner.join(60)


class OneSeat:
    """`TurnThreads` that gather, and leave it to the test when turns are."""

    def __init__(self) -> None:
        self.take_turn: Callable[[], float | None] = lambda: None

    def seat(self, take_turn: Callable[[], float | None], longest_s: float | None) -> None:
        self.take_turn = take_turn

    def gathering_s(self, seat: object) -> float:
        return 0.02

    bound_s = gathering_s

    def wake(self, seat: object, *, at_once: bool = False) -> None:
        """The test takes the turns."""


def test_a_turn_that_was_cut_short_is_the_same_turn_when_it_goes_on() -> None:
    """So a source that has come to the log's end in it reads no more before the next one."""
    assert turns_of([True, True, False, True]) == [(True, 0), (True, 0), (False, 0), (True, 1)]


def test_a_turn_without_end_is_another_one_after_as_long_as_rows_may_gather() -> None:
    """What other workers send may keep tasks busy for long: the stream's own rows are read all the same."""
    assert turns_of([True] * 7) == [(True, number) for number in (0, 0, 0, 1, 1, 1, 2)]


def turns_of(progress: Sequence[bool]) -> list[tuple[bool, int]]:
    """Returns for steps that make progress, and cut turns short, whether there is another turn, and the numbers of
    turns. Each takes two fifths of the time for which rows may gather."""
    clock, threads, ready = ManualClock(), OneSeat(), threading.Event()
    steps = iter(progress)

    class Slow(ListTask):
        def step(self) -> bool:
            clock.advance(0.008)
            return next(steps)

    runner = StreamRunner(
        "s", clock, threads, lambda: ([Slow(SOURCE, ROW_BYTES, None)], []),  # type: ignore[arg-type]
        lambda tasks: ready.set(), lambda task, error: None, lambda: None)
    runner.launch()
    assert ready.wait(60)
    runner.start()
    found = []
    for _ in progress:
        goes_on, turn = threads.take_turn() is not None, runner.turn
        assert turn is not None
        found.append((goes_on, turn))
    return [(goes_on, turn - found[0][1]) for goes_on, turn in found]


def test_a_stream_that_rests_is_told_of_once() -> None:
    """Then heartbeats only name it, until it has had a turn, or has been named for long; its queues are told of when
    what they hold changes."""
    running = Running()
    running.runner.launch()
    assert running.ready.wait(60)
    running.runner.start()
    source, _, sink = running.tasks
    queues = QueueSet()
    queues.add([source.input])
    stream = SimpleNamespace(
        deployment=SimpleNamespace(stream_id=5, attempt=2), queues=queues, runner=running.runner)
    gathering = Gathering(1.0, 0.0)
    report = WorkerReport(SystemClock(), gathering)

    def beat() -> Heartbeat:
        answers = running.runner.answers
        asked = report.ask([stream])
        wait_until(lambda: not asked or running.runner.answers > answers)
        return report.heartbeat([stream], asked)

    wait_until(lambda: source.steps > 0)
    first = beat()
    assert len(first.statuses) == len(running.tasks)
    assert (first.still, [held.attempt for held in first.queues]) == ((), [2])
    wait_until(lambda: beat().still == (5,))
    assert beat().queues == ()
    source.input.try_put(SOURCE, Watermark(1))
    wait_until(lambda: sink.received == [Watermark(1)])
    wait_until(lambda: beat().statuses != ())
    queues.bound(1, 17)
    assert [(held.order, held.held_bytes) for held in beat().queues] == [(1, 17)]
    assert 1 <= [bool(beat().statuses) for _ in range(20)].count(True) < 6
    running.threads.gathering_s = lambda seat: 0.0  # type: ignore[method-assign]  # turns come all the same
    gathering.seconds = 0.5
    told = []
    for n in range(10):
        source.input.try_put(SOURCE, Watermark(2 + n))
        wait_until(lambda n=n: sink.received[-1] == Watermark(2 + n))
        heard = beat()
        told.append((bool(heard.statuses), heard.untold))
    assert told.count((True, ())) == 2
    assert told.count((False, (5,))) == 8
    running.runner.stop()
    assert running.runner.join(60)


class WaitingClock(SystemClock):
    """Tells when, and for how long, somebody begins to wait."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.waiting = threading.Event()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        self.waiting.set()
        return super().wait(event, timeout_s)


def test_an_idle_stream_waits_until_its_next_deadline() -> None:
    """With nothing to do, the thread takes one look at each task and then waits for the first deadline."""
    clock = WaitingClock()
    running = Running(clock=clock)
    running.tasks[1].deadline = clock.monotonic() + 1000
    running.runner.launch()
    running.runner.start()
    assert clock.waiting.wait(60)
    running.runner.stop()
    assert running.runner.join(60)
    assert running.tasks[0].steps <= 2
    assert 900 < clock.waits[-1] <= 1000


def test_a_failing_build_is_reported_once() -> None:
    """If the tasks cannot be built, the stream fails without a task, and stops."""
    running = Running(error=ValueError("no state"))
    running.runner.launch()
    assert running.runner.join(60)
    assert [(task, str(error)) for task, error in running.failures] == [(None, "no state")]
    assert running.stopped.is_set()
    assert not running.ready.is_set()


def test_a_failing_step_stops_the_stream_and_closes_its_tasks() -> None:
    """After a task raised, it is reported by name and all tasks are closed."""
    running = Running()
    running.tasks[2].error = RuntimeError("broken")
    running.runner.launch()
    running.runner.start()
    assert running.runner.join(60)
    assert [(task, str(error)) for task, error in running.failures] == [(SINK, "broken")]
    assert all(task.closed_by for task in running.tasks)


def test_events_posted_before_the_tasks_exist_reach_them() -> None:
    """Events go to the tasks they concern, also if they come while the tasks are being built."""
    running = Running()
    running.may_build.clear()
    running.runner.launch()
    running.runner.post(StartCheckpoint(1))
    running.runner.post(CheckpointCommitted(1))
    running.may_build.set()
    assert running.ready.wait(60)
    running.runner.post(StartCheckpoint(2))
    running.runner.stop()
    assert running.runner.join(60)
    assert running.tasks[0].events == [StartCheckpoint(1), CheckpointCommitted(1), StartCheckpoint(2)]
    assert running.tasks[1].events == [CheckpointCommitted(1)]
    assert running.tasks[2].events == [StartCheckpoint(1), CheckpointCommitted(1), StartCheckpoint(2)]
