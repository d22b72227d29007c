"""Engine and workers as processes of the simulated machine: the real controller and tasks, with lines between them.

Takes the place of Spark, of sockets and of the threads around tasks; decides nothing that the product decides.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from penstock.common.config import Config
from penstock.common.errors import PenstockError, UnavailableError
from penstock.common.paths import DataPaths
from penstock.mnode.access.session import SessionState
from penstock.mnode.controller.controller_settings import ControllerSettings
from penstock.mnode.controller.engine_hooks import EngineHooks
from penstock.mnode.controller.group_runtime import WorkerLaunch
from penstock.mnode.controller.runtime_environment import Entrance, OnHello, OnLost, OnMessage
from penstock.mnode.controller.stream_controller import StreamController
from penstock.mnode.engine import Engine
from penstock.tasks.flow.queues import ChannelQueue, QueueSet
from penstock.tasks.operators.stream_task import StreamTask
from penstock.tasks.protocol import control
from penstock.tasks.protocol.control import concerns
from penstock.tasks.protocol.deployment import Deployment, StreamDeployment
from penstock.tasks.protocol.messages import ReadBack, ResultWrite, TaskCheckpoint, TaskEvent, TaskId
from penstock.tasks.protocol.store_requests import StoreRequest
from penstock.tasks.worker import spark_executors as spark
from penstock.tasks.worker.local_environment import LocalEnvironment
from penstock.tasks.worker.runner import LocalLink, TaskFailure, drive_once, statuses
from penstock.tasks.worker.task_builder import build_tasks
from penstock.tasks.worker.worker_orders import OrderedWorker, failed
from penstock.tasks.worker.worker_process import WorkerSpec, queues_of
from penstock.wal.log import LogFiles
from penstock.wal.shared_reading import RecentReads, SharedWalReader
from simulation.disk import ProcessDied
from simulation.world import World

T = TypeVar("T")

_LOCK_TIMEOUT_S = 15.0
_POLL_MIN_S, _POLL_MAX_S = 0.005, 0.25
_TICK_S = 0.05
#: What a message costs that never arrives is a timeout; those whose loss TCP makes impossible always arrive.
MAY_BE_LOST = (control.Acknowledged, control.Deployed, control.Stopped, control.Heartbeat, control.Deploy,
               control.StopTasks)


@dataclass
class NetworkFaults:
    """How likely a control message gets lost or comes twice, and how long things take at most."""

    lost: float = 0.0
    twice: float = 0.0
    delay_s: float = 0.01


class InlinePool(Executor):
    """Runs everything at once, in the caller's thread."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  # the future carries it to whoever asked
            future.set_exception(error)
        return future


class LaterPool(Executor):
    """Runs everything some time later, in an order of its own, as helper threads do."""

    def __init__(self, world: World, process: str) -> None:
        self._world = world
        self._process = process

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            future.set_result(fn(*args, **kwargs))

        self._world.soon(self._process, run, 0.05)
        return future


class Line:
    """A control connection: the mnode's end. Messages keep their order; each takes its time."""

    def __init__(self, cluster: Cluster, worker: SimWorker) -> None:
        self.group, self.index = worker.spec.group, worker.index
        self.pid, self.exchange_address, self.here = worker.number, worker.process, True
        self._cluster = cluster
        self._worker = worker
        self._sent_until = [0.0, 0.0]
        self.closed = False

    def send(self, message: control.MnodeMessage) -> None:
        self._carry(message, 0, self._worker.process, lambda: self._worker.obey(message))

    def answer(self, message: control.WorkerMessage) -> None:
        """Sends a message of the worker to the mnode."""
        host = self._worker.host
        self._carry(message, 1, host.process, lambda: None if self.closed else host.entrance.on_message(self, message))

    def lost(self, reason: str) -> None:
        """Tells the mnode that the worker is gone."""
        host = self._worker.host
        self._schedule(1, host.process, lambda: host.entrance.on_lost(self, reason))

    def close(self) -> None:
        self.closed = True
        self._cluster.cut_off(self._worker)

    def kill(self) -> None:
        self._cluster.world.kill(self._worker.process, "the engine killed it")

    def _carry(self, message: object, way: int, process: str, action: Callable[[], None]) -> None:
        faults, chance = self._cluster.faults, self._cluster.world.chance
        if chance.random() < faults.lost and isinstance(message, MAY_BE_LOST):
            self._cluster.world.tell(f"{type(message).__name__} of {self._worker.process} is lost")
            return
        self._schedule(way, process, action)
        if chance.random() < faults.twice:
            self._schedule(way, process, action)

    def _schedule(self, way: int, process: str, action: Callable[[], None]) -> None:
        world = self._cluster.world
        at = max(self._sent_until[way], world.clock.monotonic() + world.chance.random() * self._cluster.faults.delay_s)
        self._sent_until[way] = at
        world.later(at - world.clock.monotonic(), process, action)


class SimGroup:
    """One job of the simulated Spark: a worker per node, or the end of all of them."""

    def __init__(self, cluster: Cluster, host: EngineProcess, spec: WorkerSpec, workers: int,
                 on_end: Callable[[str | None], None]) -> None:
        self._cluster = cluster
        self.host = host
        self._on_end = on_end
        self._ended = False
        self.workers: list[SimWorker] = []
        cluster.world.soon(host.process, lambda: self._start(spec, workers), 0.2)

    def _start(self, spec: WorkerSpec, workers: int) -> None:
        if self._ended:
            return
        for index in range(workers):
            self.workers.append(self._cluster.start_worker(self.host, self, spec, index))

    def cancel(self) -> None:
        self.end(None)

    def places(self) -> dict[int, str]:
        return {worker.index: "driver" for worker in self.workers}

    def end(self, reason: str | None) -> None:
        """Tells the mnode, once, that the job is over. Python workers may live on for a while."""
        if not self._ended:
            for worker in self.workers:
                self._cluster.cut_off(worker)
            self.lose(reason)

    def lose(self, reason: str | None) -> None:
        """Tells the mnode, once, that the job is over, but nobody that is part of it: Spark is gone."""
        if not self._ended:
            self._ended = True
            self._cluster.world.soon(self.host.process, lambda: self._on_end(reason), 0.2)


class EngineProcess:
    """One life of the engine; also its controller's `RuntimeEnvironment` and `Runtime`."""

    threaded = False

    def __init__(self, cluster: Cluster, root: Path, config: Config, settings: ControllerSettings) -> None:
        """Opens the data directory; raises what the engine raises."""
        self._cluster = cluster
        self._world = cluster.world
        self._settings = settings
        self.process = f"engine-{next(cluster.engine_numbers)}"
        self.fs = cluster.world.disk.view(self.process)
        self.controller: StreamController | None = None
        self.entrance: Entrance
        with cluster.world.inside(self.process):
            self.engine = Engine(root, config, clock=cluster.world.clock, fs=self.fs, controller=self._control,
                                 environment=self)
        self.session = SessionState("UTC")

    def _control(self, engine: Engine, hooks: EngineHooks) -> StreamController:
        self.controller = StreamController(
            engine.clock, self._settings, engine.records, self, WorkerLaunch(engine.paths.root), hooks, self)
        return self.controller

    # --- RuntimeEnvironment ------------------------------------------------------------------------------------------

    def pool(self, name: str, threads: int) -> Executor:
        return LaterPool(self._world, self.process) if name == "controller helper" else InlinePool()

    def launch(self, name: str, run: Callable[[], None]) -> None:
        """`turn` is called after every event instead."""

    def listen(
        self, secret: bytes, on_hello: OnHello, on_message: OnMessage, on_lost: OnLost, host: str
    ) -> Entrance:
        self.entrance = Entrance(on_hello, on_message, on_lost)
        return self.entrance

    def is_full(self) -> bool:
        return False

    def result(self, future: Future[T], timeout_s: float) -> T:
        self.turn()
        self._world.pump(future.done, timeout_s)
        if not future.done():
            raise FutureTimeoutError
        return future.result()

    # --- Runtime -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        return

    def submit_group(self, spec: WorkerSpec, workers: int, description: str,
                     on_end: Callable[[str | None], None]) -> SimGroup:
        group = SimGroup(self._cluster, self, spec, workers, on_end)
        self._cluster.groups.append(group)
        return group

    def is_ready(self) -> bool:
        return True

    def executors(self) -> spark.Executors:
        return spark.Executors((spark.Executor("driver", "simulation", 64, 0),), elastic=False)

    def scale(self, executors: int, released: Sequence[str]) -> None:
        """There is one executor, for good."""

    def turn(self) -> None:
        """Has the controller do what is due."""
        if self.controller is not None:
            self.controller.turn()

    def answer(self) -> None:
        """Has the controller handle what has come in, if anything has."""
        if self.controller is not None and self.controller.asked:
            self.controller.turn()


@dataclass
class Hosted:
    """One attempt of a stream on a worker."""

    deployment: Deployment
    worker: SimWorker
    deadline: float
    tasks: list[StreamTask] = field(default_factory=list)
    links: list[LocalLink | SimLink] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    built: bool = False
    started: bool = False
    over: bool = False
    poll_s: float = _POLL_MIN_S
    early: list[TaskEvent] = field(default_factory=list)
    queues: QueueSet = field(default_factory=QueueSet)

    def start(self) -> None:
        if not self.started:
            self.started = True
            self.worker.schedule(self)

    def post(self, event: TaskEvent) -> None:
        if not self.built:
            self.early.append(event)
            return
        for task in self.tasks:
            if concerns(event, task.id):
                task.post(event)

    def bound(self, order: int, queue_bytes: int) -> None:
        self.queues.bound(order, queue_bytes)


class SimWorker(OrderedWorker[Hosted]):
    """A Python worker: obeys the mnode as `penstock.tasks.worker.worker_process.Worker` does, one event at a time."""

    def __init__(self, cluster: Cluster, host: EngineProcess, group: SimGroup, spec: WorkerSpec, index: int) -> None:
        super().__init__()
        self.cluster = cluster
        self.host = host
        self.group = group
        self.spec = spec
        self.index = index
        self.number = next(cluster.worker_numbers)
        self.process = f"worker-{self.number}"
        self.fs = cluster.world.disk.view(self.process)
        self.paths = DataPaths(Path(spec.data_directory))
        self.recent_reads = RecentReads()
        self.line = Line(cluster, self)
        host.entrance.on_hello(self.line)
        self._heartbeat()

    def leave(self) -> None:
        """Ends all streams and the process, as Shutdown asks for."""
        for hosted in list(self.streams.values()):
            self._end(hosted)
        self.line.lost("end of file")
        self.cluster.world.kill(self.process, "it was told to leave")

    def _heartbeat(self) -> None:
        found = [status for hosted in self.streams.values() if hosted.built
                 for status in statuses(hosted.tasks, hosted.links)]
        held = [control.QueuesHeld(hosted.deployment.stream_id, hosted.deployment.attempt, *known)
                for hosted in self.streams.values() if (known := hosted.queues.held()) is not None]
        self.line.answer(control.Heartbeat(tuple(found), tuple(held)))
        self.cluster.world.later(self.spec.heartbeat_interval_s, self.process, self._heartbeat)

    # --- streams -----------------------------------------------------------------------------------------------

    def _deploy(self, deployment: Deployment, peers: tuple[str, ...]) -> None:
        assert isinstance(deployment, StreamDeployment)
        world = self.cluster.world
        hosted = Hosted(deployment, self, world.clock.monotonic() + _LOCK_TIMEOUT_S)
        self.streams[deployment.stream_id] = hosted
        world.soon(self.process, lambda: self._build(hosted), 0.05)

    def _stop(self, stream: Hosted) -> None:
        self.cluster.world.soon(self.process, lambda: self._end(stream), 0.1)

    def _build(self, hosted: Hosted) -> None:
        if hosted.over:
            return
        deployment, world = hosted.deployment, self.cluster.world
        edges = deployment.graph.edges(deployment.stream_id)
        folders = [self.paths.state(deployment.stream_id, str(each.task))
                   for each in edges if deployment.graph.worker_of(each.task) == self.index]
        held = [folder for folder in folders if self.cluster.owners.get(folder, self.process) != self.process]
        if held and world.clock.monotonic() < hosted.deadline:
            world.later(0.05, self.process, lambda: self._build(hosted))
            return
        if held:
            self._give_up(hosted, None, UnavailableError(
                f"the state in {held[0].name} is still held by another process"))
            return
        for folder in folders:
            self.cluster.owners[folder] = self.process
        hosted.folders = folders
        environment = SimEnvironment(self, hosted)
        try:
            hosted.tasks = build_tasks(deployment, self.index, environment)
        except PenstockError as error:
            self._give_up(hosted, None, error)
            return
        self._connect(hosted)
        hosted.queues.add(queues_of(hosted.tasks))
        hosted.built = True
        for event in hosted.early:
            hosted.post(event)
        self.line.answer(control.Deployed(
            deployment.stream_id, deployment.attempt, tuple(task.id for task in hosted.tasks)))

    def _connect(self, hosted: Hosted) -> None:
        attempt, worker_of = hosted.deployment.attempt, hosted.deployment.graph.worker_of
        by_id = {task.id: task for task in hosted.tasks}
        for task in hosted.tasks:
            for upstream in task.input.channels:
                self.cluster.channels[attempt, upstream, task.id] = (self, hosted, task.input)
        for task in hosted.tasks:
            for downstream in () if task.output is None else task.output.channels:
                if worker_of(downstream) == self.index:
                    hosted.links.append(LocalLink(
                        task.id, downstream, task.output, by_id[downstream].input, self.cluster.world.clock))
                else:
                    hosted.links.append(SimLink(self.cluster, attempt, task.id, downstream, task.output))

    def wake(self, hosted: Hosted) -> None:
        hosted.poll_s = _POLL_MIN_S

    def schedule(self, hosted: Hosted) -> None:
        self.cluster.world.later(hosted.poll_s * (0.5 + self.cluster.world.chance.random()), self.process,
                                 lambda: self._step(hosted))

    def _step(self, hosted: Hosted) -> None:
        if hosted.over or not hosted.built:
            return
        try:
            progressed = drive_once(hosted.tasks, hosted.links)
        except TaskFailure as failure:
            cause = failure.__cause__
            if not isinstance(cause, PenstockError):
                raise
            self._give_up(hosted, failure.task, cause)
            return
        hosted.poll_s = _POLL_MIN_S if progressed else min(_POLL_MAX_S, hosted.poll_s * 2)
        self.schedule(hosted)

    def fail(self, deployment: Deployment, task: TaskId | None, error: BaseException) -> None:
        self.cluster.world.tell(f"{self.process} task {task} of attempt {deployment.attempt}: {error}")
        self._send(failed(deployment, task, error))

    def _send(self, message: control.WorkerMessage) -> None:
        self.line.answer(message)

    def _give_up(self, hosted: Hosted, task: TaskId | None, error: PenstockError) -> None:
        self.fail(hosted.deployment, task, error)
        self._end(hosted)

    def _end(self, hosted: Hosted) -> None:
        if hosted.over:
            return
        self.drop(hosted)
        deployment = hosted.deployment
        if self.streams.get(deployment.stream_id) is hosted:
            del self.streams[deployment.stream_id]
        self.line.answer(control.Stopped(deployment.stream_id, deployment.attempt))

    def drop(self, hosted: Hosted) -> None:
        """Closes the tasks as a crash would, and gives their state up."""
        hosted.over = True
        for task in hosted.tasks:
            task.close()
        for folder in hosted.folders:
            if self.cluster.owners.get(folder) == self.process:
                del self.cluster.owners[folder]


class SimLink:
    """A channel to a task of another worker. An item leaves the sender only when the receiver has it."""

    def __init__(self, cluster: Cluster, attempt: int, upstream: TaskId, downstream: TaskId,
                 output: ChannelQueue[TaskId]) -> None:
        self.upstream = upstream
        self.downstream = downstream
        self._cluster = cluster
        self._attempt = attempt
        self._output = output
        self._ready_at = 0.0
        self._blocked_since: float | None = None

    def move(self) -> bool:
        world = self._cluster.world
        now = world.clock.monotonic()
        moved = False
        while now >= self._ready_at and (item := self._output.peek(self.downstream)) is not None:
            receiver = self._receiver()
            if receiver is None:
                return moved
            worker, hosted, queue = receiver
            if not queue.try_put(self.upstream, item):
                self._blocked_since = self._blocked_since or now
                return moved
            worker.wake(hosted)
            self._output.take(self.downstream)
            moved = True
            if world.chance.random() < 0.3:
                self._ready_at = now + world.chance.random() * self._cluster.faults.delay_s
        self._blocked_since = None
        return moved

    def _receiver(self) -> tuple[SimWorker, Hosted, ChannelQueue[TaskId]] | None:
        found = self._cluster.channels.get((self._attempt, self.upstream, self.downstream))
        if found is None or found[1].over or not self._cluster.world.alive(found[0].process):
            return None
        return found

    def blocked_since(self) -> float | None:
        return self._blocked_since

    def failure(self) -> BaseException | None:
        if self._receiver() is None and self._output.peek(self.downstream) is not None:
            return UnavailableError(f"channel {self.upstream} -> {self.downstream}: the receiver is gone")
        return None

    def close(self) -> None:
        self._blocked_since = None


class SimEnvironment(LocalEnvironment):
    """The `TaskEnvironment` of one attempt on one simulated worker."""

    def __init__(self, worker: SimWorker, hosted: Hosted) -> None:
        super().__init__(worker.cluster.world.clock, worker.fs, worker.paths, self._ask,
                         worker.host.engine.results.write_results, self._tell)
        self._worker = worker
        self._hosted = hosted

    def _ask(self, request: StoreRequest) -> pa.Table:
        host, world = self._worker.host, self._worker.cluster.world
        if not world.alive(host.process):
            raise UnavailableError("the dnode is gone")
        try:
            with world.inside(host.process):
                return host.engine.results.read(request)
        except ProcessDied as death:
            if death.process != host.process:
                raise
            world.kill(host.process, "in the middle of a read")
            raise UnavailableError("the dnode is gone") from None

    def _tell(self, what: TaskCheckpoint | ReadBack) -> None:
        attempt = self._hosted.deployment.attempt
        self._worker.line.answer(control.ReadBackWanted(what, attempt) if isinstance(what, ReadBack)
                                 else control.Acknowledged(what, attempt))

    def open_wal(self, vgroup_id: int, after_version: int, table_uid: int) -> SharedWalReader:
        log = LogFiles(self._worker.paths.wal(vgroup_id), self._worker.fs)
        return self._worker.recent_reads.reader(vgroup_id, log, after_version + 1, table_uid)

    def result_writer(self, task: TaskId) -> SimResultWriter:
        return SimResultWriter(self._worker, self._hosted, self.write)

    def wake(self) -> None:
        self._worker.wake(self._hosted)


class SimResultWriter:
    """Sends writes to the dnode, in order; they arrive also if the worker is gone by then. Answers take time, too."""

    def __init__(self, worker: SimWorker, hosted: Hosted, write: Callable[[ResultWrite], None]) -> None:
        self._worker = worker
        self._hosted = hosted
        self._write = write
        self._done = 0
        self._error: PenstockError | None = None
        self._broken = False
        self._sent_until = 0.0

    def submit(self, write: ResultWrite) -> None:
        host, world = self._worker.host, self._worker.cluster.world
        now = world.clock.monotonic()
        self._sent_until = max(self._sent_until, now + world.chance.random() * self._worker.cluster.faults.delay_s)
        world.later(self._sent_until - now, host.process, lambda: self._perform(write))

    def _perform(self, write: ResultWrite) -> None:
        error: PenstockError | None = None
        if self._broken:
            return
        try:
            self._write(write)
        except PenstockError as cause:
            error, self._broken = cause, True

        def answer() -> None:
            self._error = self._error or error
            self._done += error is None
            self._worker.wake(self._hosted)

        self._worker.cluster.world.soon(self._worker.process, answer)

    def acknowledged(self) -> int:
        if self._error is not None:
            raise self._error
        return self._done


class Cluster:
    """All processes there are."""

    def __init__(self, world: World, root: Path, config: Config, settings: ControllerSettings) -> None:
        self.world = world
        self.root = root
        self.config = config
        self.settings = settings
        self.faults = NetworkFaults()
        self.worker_numbers = itertools.count(1)
        self.engine_numbers = itertools.count(1)
        self.groups: list[SimGroup] = []
        self.workers: list[SimWorker] = []
        self.owners: dict[Path, str] = {}
        self.channels: dict[tuple[int, TaskId, TaskId], tuple[SimWorker, Hosted, ChannelQueue[TaskId]]] = {}
        self.host: EngineProcess | None = None
        self.zombie_s = 1.0
        world.on_death.append(self._died)

    def start_engine(self) -> EngineProcess:
        """Opens the data directory; raises what the engine raises."""
        self.host = EngineProcess(self, self.root, self.config, self.settings)
        self._upkeep(self.host)
        self._tick(self.host)
        return self.host

    def _upkeep(self, host: EngineProcess) -> None:
        host.engine.maintain()
        self.world.later(0.25, host.process, lambda: self._upkeep(host))

    def _tick(self, host: EngineProcess) -> None:
        host.turn()
        self.world.later(_TICK_S, host.process, lambda: self._tick(host))

    def start_worker(self, host: EngineProcess, group: SimGroup, spec: WorkerSpec, index: int) -> SimWorker:
        worker = SimWorker(self, host, group, spec, index)
        self.workers.append(worker)
        return worker

    def living_workers(self) -> Sequence[SimWorker]:
        return [worker for worker in self.workers if self.world.alive(worker.process)]

    def cut_off(self, worker: SimWorker) -> None:
        """Ends the process of a worker whose connection was closed: not at once."""
        self.world.soon(worker.process, lambda: self.world.kill(worker.process, "its connection was closed"),
                        self.zombie_s)

    def _died(self, process: str) -> None:
        if self.host is not None and process == self.host.process:
            self.host.engine.abandon()
            for worker in self.living_workers():
                self.cut_off(worker)
            self.host = None
            return
        for worker in self.workers:
            if worker.process != process:
                continue
            for hosted in worker.streams.values():
                if not hosted.over:
                    worker.drop(hosted)
            if self.host is not None and worker.host is self.host:
                worker.line.lost("end of file")
                worker.group.end(f"{process} died")
        self.owners = {folder: owner for folder, owner in self.owners.items() if owner != process}
        self.workers = [worker for worker in self.workers if worker.process != process]
