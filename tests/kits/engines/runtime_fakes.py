"""Small stand-ins for stream tasks and for Spark, for tests of the runtime around them."""

from __future__ import annotations

import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import gettempdir

import pyarrow as pa

from penstock.common.clock import SystemClock
from penstock.common.errors import PenstockError
from penstock.common.fs import OsFs
from penstock.common.paths import DataPaths
from penstock.mnode.coordinator.executor_keeper import Scale
from penstock.mnode.coordinator.running_stream import StreamKeeper
from penstock.mnode.dnode.dnode_service import DnodeService
from penstock.planner.task_plans.plan_tree import PlanNode
from penstock.planner.task_plans.stream_plan import (
    Grouping,
    IsolationClass,
    Policies,
    RowWindow,
    SinkPlan,
    SourcePlan,
    StreamPlan,
    WindowsPlan,
)
from penstock.planner.task_plans.user_calls import UserCall
from penstock.sql.schema import UserFunction
from penstock.sql.types import BIGINT
from penstock.tasks.dnode_access.data_place import mark_place
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.operators.stream_task import TaskEnvironment
from penstock.tasks.protocol import control
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import (
    Barrier,
    Block,
    CheckpointCommitted,
    Item,
    OperatorKind,
    Pause,
    ResultWrite,
    Resume,
    StartCheckpoint,
    TaskCheckpoint,
    TaskEvent,
    TaskId,
    Watermark,
)
from penstock.tasks.protocol.numbered_children import NumberedChildren
from penstock.tasks.protocol.task_graph import Exchange, TaskGraph, TaskKind, TaskNode, Work
from penstock.tasks.protocol.task_status import LogProgress, QueueStatus, TaskProgress, TaskStatus
from penstock.tasks.protocol.worker_nodes import Nodes
from penstock.tasks.worker.spark_executors import Executors
from penstock.tasks.worker.worker_process import Worker, WorkerSpec


@dataclass(frozen=True)
class FakePlan:
    """What the fake tasks do: each source sends `blocks` blocks of `rows` rows to every agg task, round robin."""

    blocks: int = 10
    rows: int = 100
    fail_in: OperatorKind | None = None
    fail_on_attempts: int = 1

    def shipped(self, isolation_class: IsolationClass = IsolationClass.ANY) -> StreamPlan:
        """Returns a plan that workers take, since they take no classes that Penstock doesn't know; see `_unpacked`."""
        function = UserFunction("f", False, None, BIGINT, "f.py")
        source = SourcePlan("db", json.dumps(astuple(self)), 0, None, "ts", True, "ms", (), (), False, "", None, None)
        sink = SinkPlan("db", "out", (), (), "", 0, create=True)
        grouping = Grouping((), colocated=False, by_values=isolation_class is IsolationClass.OPEN_GROUPS)
        windows = WindowsPlan(RowWindow("session"), (), "")
        calls = (UserCall("scalar", function, (), BIGINT),) * (isolation_class is IsolationClass.USER_CODE)
        return StreamPlan(source, grouping, windows, "at_once", Policies(), sink, "UTC", PlanNode("Stream"),
                          functions=calls)


class FakeKeeper(StreamKeeper):
    """Counts the attempts of a stream in `attempts`."""

    def __init__(self, stream_id: int, attempts: dict[int, int]) -> None:
        self._stream_id = stream_id
        self._attempts = attempts

    def next_attempt(self) -> int:
        self._attempts[self._stream_id] = self._attempts.get(self._stream_id, 0) + 1
        return self._attempts[self._stream_id]

    def children(self) -> tuple[bytes, ...]:
        return b"", b""


def fake_graph(snode_ids: tuple[int, ...] = ()) -> TaskGraph:
    """Returns the graph of two vnodes that `build_fakes` builds."""
    kinds: tuple[TaskKind, ...] = ("source", "agg", "sink")
    works: dict[TaskKind, Work] = {"source": "rows", "agg": "windows", "sink": "results"}
    tasks = tuple(TaskNode(kind, n, 2 + n, works[kind]) for kind in kinds for n in range(2))
    return TaskGraph(Nodes((2, 3)), tasks, (Exchange("hash", (0, 1), (2, 3)), Exchange("hash", (2, 3), (4, 5)))).placed(
        snode_ids)


def _unpacked(plan: object) -> FakePlan:
    assert isinstance(plan, StreamPlan)
    return FakePlan(*json.loads(plan.source.table))


def numbers(start: int, rows: int) -> pa.RecordBatch:
    """Returns a batch with one int64 column `n`: start, start + 1, ..."""
    return pa.record_batch({"n": pa.array(range(start, start + rows), pa.int64())})


@dataclass
class FakeTask:
    """A task that passes on what it gets; a source makes it up, a sink writes it to the dnode."""

    id: TaskId
    deployment: StreamDeployment
    environment: TaskEnvironment
    input: ChannelQueue[TaskId]
    output: ChannelQueue[TaskId] | None
    events: deque[TaskEvent] = field(default_factory=deque)
    sent: int = 0
    seen: int = 0
    rows: int = 0
    paused: bool = False
    aligned: dict[TaskId, int] = field(default_factory=dict)
    blocked: bool = False
    committed: int | None = None
    closed: bool = False
    writing: bool = False
    writes: int = 0
    children: NumberedChildren = field(default_factory=lambda: NumberedChildren(["c"], [[1], ["x"]]))

    def __post_init__(self) -> None:
        self.plan = _unpacked(self.deployment.plan)
        self.writer = self.environment.result_writer(self.id) if self.output is None else None
        self.store = None if self.id.operator == "sink" else self.environment.open_state(self.id, 1 << 20)

    @property
    def followed_table(self) -> int | None:
        return 0 if self.id.operator == "source" else None

    def step(self) -> bool:
        self._maybe_fail()
        progressed = False
        while self.events:
            self._handle(self.events.popleft())
            progressed = True
        if self.id.operator == "source":
            return self._produce() or progressed
        if self.writer is not None and self.writing:
            if self.writer.acknowledged() < self.writes:
                return progressed
            self.writing = False
            progressed = True
        for upstream in self.input.channels:
            if upstream not in self.aligned and (item := self.input.peek(upstream)) is not None:
                if not self._pass_on(upstream, item):
                    return progressed
                self.input.take(upstream)
                progressed = True
        return progressed

    def _maybe_fail(self) -> None:
        if self.plan.fail_in == self.id.operator and self.deployment.attempt <= self.plan.fail_on_attempts:
            raise RuntimeError(f"attempt {self.deployment.attempt} fails on purpose")

    def _handle(self, event: TaskEvent) -> None:
        if isinstance(event, StartCheckpoint):
            if self.output is None:
                return  # only says that barriers will come
            for downstream in self.output.channels:
                self.output.try_put(downstream, Barrier(event.checkpoint_id))
            self._acknowledge(event.checkpoint_id, self.sent)
        elif isinstance(event, CheckpointCommitted):
            self.committed = event.checkpoint_id
        elif isinstance(event, Pause | Resume):
            self.paused = isinstance(event, Pause)

    def _acknowledge(self, checkpoint_id: int, version: int | None) -> None:
        self.environment.acknowledge(TaskCheckpoint(self.id, checkpoint_id, 8, 0.1, version, "d"))

    def _produce(self) -> bool:
        if self.paused or self.sent >= self.plan.blocks or self.output is None:
            return False
        channels = self.output.channels
        downstream = channels[self.sent % len(channels)]
        self.blocked = not self.output.try_put(downstream, Block(numbers(self.sent * self.plan.rows, self.plan.rows)))
        if self.blocked:
            return False
        self.sent += 1
        self.rows += self.plan.rows
        self.output.try_put(downstream, Watermark(self.sent))
        return True

    def _pass_on(self, upstream: TaskId, item: Item) -> bool:
        if isinstance(item, Barrier):
            self.aligned[upstream] = item.checkpoint_id
            if len(self.aligned) == len(self.input.channels):
                self.aligned.clear()
                if self.output is not None:
                    for downstream in self.output.channels:
                        self.output.try_put(downstream, item)
                self._acknowledge(item.checkpoint_id, None)
            return True
        if not isinstance(item, Block):
            return True
        if self.output is not None:
            downstream = self.output.channels[self.seen % len(self.output.channels)]
            self.blocked = not self.output.try_put(downstream, item)
            if self.blocked:
                return False
        elif self.writer is not None:
            if self.writing:
                return False
            deployment = self.deployment
            self.writer.submit(
                ResultWrite(deployment.stream_id, deployment.attempt, self.id, 7, self.children, item.data)
            )
            self.writing = True
            self.writes += 1
        self.seen += 1
        self.rows += item.data.num_rows
        return True

    def next_deadline(self) -> float | None:
        return None

    def post(self, event: TaskEvent) -> None:
        self.events.append(event)
        self.environment.wake()

    def status(self) -> TaskStatus:
        state = "PAUSED" if self.paused else "BACKPRESSURED" if self.blocked else "IDLE"
        return TaskStatus(
            self.id,
            state,  # type: ignore[arg-type]
            queues=QueueStatus(self.input.used_bytes, input_peak=self.input.peak_bytes,
                               output_peak=None if self.output is None else self.output.peak_bytes),
            progress=TaskProgress(self.rows),
            log=LogProgress(self.sent, self.plan.blocks),
            checkpoint_id=self.committed,
        )

    def close(self) -> None:
        self.closed = True
        if self.store is not None:
            self.store.close()


def build_fakes(
    deployment: StreamDeployment, index: int, environment: TaskEnvironment, kind: type[FakeTask] = FakeTask
) -> list[FakeTask]:
    """Builds the tasks of worker `index`: every source feeds every agg, every agg feeds every sink."""
    places = range(len(deployment.graph.vgroup_ids))

    def all_of(level: OperatorKind) -> list[TaskId]:
        return [TaskId(deployment.stream_id, level, place) for place in places]

    def queue(channels: list[TaskId]) -> ChannelQueue[TaskId]:
        return ChannelQueue(deployment.settings.queue_bytes, channels, environment.wake)

    def build(task: TaskId) -> FakeTask:
        match task.operator:
            case "source":
                return kind(task, deployment, environment, queue([task]), queue(all_of("agg")))
            case "agg":
                return kind(task, deployment, environment, queue(all_of("source")), queue(all_of("sink")))
            case "sink":
                return kind(task, deployment, environment, queue(all_of("agg")), None)

    ids = [*all_of("source"), *all_of("agg"), *all_of("sink")]
    return [build(task) for task in ids if deployment.graph.worker_of(task) == index]


def serve(root: Path, secret: bytes, results: Results) -> DnodeService:
    """Returns a service for workers that reach the data directory and read no rows."""
    mark_place(DataPaths(root), OsFs(), secret)

    def refuse(*message: object) -> pa.Table:
        raise AssertionError(f"a worker asked for {message}")

    return DnodeService(secret, results.begin_write, refuse, refuse)


class ThreadGroup:
    """A worker group whose workers are threads of this process."""

    def __init__(self, spec: WorkerSpec, workers: int, on_end: Callable[[str | None], None]) -> None:
        self.connections = [control.connect(spec.control_address, spec.secret, 5.0) for _ in range(workers)]
        self._left = workers
        self._reason: str | None = None
        self._on_end = on_end
        self._lock = threading.Lock()
        self.threads = [
            threading.Thread(target=self._run, args=(spec, index), daemon=True) for index in range(workers)
        ]
        for thread in self.threads:
            thread.start()

    def kill(self, index: int) -> None:
        """Cuts a worker off, as the death of its process would."""
        self.connections[index].close()

    def cancel(self) -> None:
        for connection in self.connections:
            connection.close()

    def places(self) -> dict[int, str]:
        return dict.fromkeys(range(len(self.connections)), "driver")

    def _run(self, spec: WorkerSpec, index: int) -> None:
        worker = Worker(spec, index, self.connections[index], SystemClock(), OsFs(), Path(gettempdir()))
        reason = None
        try:
            worker.run()
        except PenstockError as error:
            reason = str(error)
        worker.leave()
        self.connections[index].close()
        with self._lock:
            self._left -= 1
            self._reason = self._reason or reason
            last = self._left == 0
        if last:
            self._on_end(self._reason)


class ThreadRuntime:
    """Runs worker groups as threads instead of on Spark, for which the data directory is `data_directory` if given."""

    def __init__(self, data_directory: str | None = None) -> None:
        self.data_directory = data_directory
        self.groups: list[ThreadGroup] = []
        self.descriptions: list[str] = []
        self.specs: list[WorkerSpec] = []
        self.found: Executors | None = None
        self.scaled: list[Scale] = []
        self.started = False

    def start(self) -> None:
        self.started = True

    def submit_group(
        self, spec: WorkerSpec, workers: int, description: str, on_end: Callable[[str | None], None]
    ) -> ThreadGroup:
        if self.data_directory is not None:
            spec = replace(spec, data_directory=self.data_directory)
        self.descriptions.append(description)
        self.specs.append(spec)
        group = ThreadGroup(spec, workers, on_end)
        self.groups.append(group)
        return group

    def is_ready(self) -> bool:
        return True

    def executors(self) -> Executors | None:
        return self.found

    def scale(self, executors: int, released: Sequence[str]) -> None:
        self.scaled.append(Scale(executors, tuple(released)))


class Results:
    """Takes result writes as the dnode would, and lets tests wait for rows."""

    def __init__(self) -> None:
        self.writes: list[ResultWrite] = []
        self._changed = threading.Condition()
        self.gate = threading.Event()
        self.gate.set()

    def begin_write(self, write: ResultWrite) -> Callable[[], None]:
        return partial(self.write, write)

    def write(self, write: ResultWrite) -> None:
        self.gate.wait()
        with self._changed:
            self.writes.append(write)
            self._changed.notify_all()

    def rows(self, stream_id: int, attempt: int | None = None) -> list[int]:
        """Returns the sorted values of column `n` that a stream (an attempt of it) has written."""
        return sorted(
            value
            for write in list(self.writes)
            if write.stream_id == stream_id and attempt in (None, write.attempt)
            for value in write.rows.column("n").to_pylist()
        )

    def wait_rows(self, stream_id: int, count: int, attempt: int | None = None, timeout_s: float = 120.0) -> list[int]:
        """Waits until a stream has written `count` rows, and returns them."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.rows(stream_id, attempt)) >= count, timeout_s)
        return self.rows(stream_id, attempt)


@contextmanager
def silent_listener() -> Iterator[tuple[str, int]]:
    """Yields the address of a mnode that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[:2]
