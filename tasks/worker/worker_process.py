"""The process of one place in a worker group: takes orders from the mnode and hosts the streams' tasks.

What it decides is little: the mnode says which attempt of which stream runs here. It knows nothing of Spark.
"""

from __future__ import annotations

import gc
import os
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

from penstock.common.clock import Clock, SystemClock
from penstock.common.errors import UnavailableError
from penstock.common.fs import Fs, OsFs
from penstock.common.logging import about, configure_stderr_logging, logger, speak_about, stop_logging
from penstock.common.paths import DataPaths
from penstock.common.processes import end_with_parent
from penstock.tasks.compiled.compiled_loops import load_when_compiled
from penstock.tasks.dnode_access.data_access import DataAccess, NetworkAccess
from penstock.tasks.dnode_access.data_place import reaches_files
from penstock.tasks.dnode_access.dnode_client import DnodeClient
from penstock.tasks.dnode_access.log_notifier import WalNotifier
from penstock.tasks.dnode_access.remote_log import RemoteLogs
from penstock.tasks.exchange.channel_frames import ChannelId
from penstock.tasks.exchange.exchange_server import ExchangeServer
from penstock.tasks.exchange.outgoing_bundles import OutgoingBundles
from penstock.tasks.flow.queues import ChannelQueue, QueueSet
from penstock.tasks.operators.stream_task import StreamTask, TaskEnvironment
from penstock.tasks.protocol import control
from penstock.tasks.protocol.control import (
    Acknowledged,
    ControlConnection,
    Deployed,
    Hello,
    ReadBackWanted,
    Stopped,
)
from penstock.tasks.protocol.deployment import Deployment, StreamDeployment
from penstock.tasks.protocol.messages import ReadBack, TaskCheckpoint, TaskEvent, TaskId
from penstock.tasks.state.state_cache import DEFAULT_BYTES, StateCache
from penstock.tasks.worker.runner import Link, LocalLink, StreamRunner
from penstock.tasks.worker.turn_threads import TurnThreads
from penstock.tasks.worker.turns import Gathering, TurnQueue
from penstock.tasks.worker.worker_environment import WorkerEnvironment
from penstock.tasks.worker.worker_orders import OrderedWorker, failed
from penstock.tasks.worker.worker_report import WorkerReport
from penstock.wal.shared_reading import RecentReads

_log = logger(__name__)

_CONNECT_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 5.0
_STATUS_TIMEOUT_S = 0.02
_TURN_THREADS = 8
_PROCESSORS = os.cpu_count() or 1

TaskBuilder = Callable[[Deployment, int, TaskEnvironment], Sequence[StreamTask]]


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Everything a worker must know before it can ask the mnode; shipped by Spark, the same for all of a group.

    `nice`: how much lower than its parent's the priority of the process is; 0 to 19. `gather_share`: of one
    processor, how much the turns of its streams may take before they gather rows, for `gather_time_s` at most.
    """

    group: str
    control_address: tuple[str, int]
    dnode_address: str
    secret: bytes
    data_directory: str
    heartbeat_interval_s: float = 1.0
    wal_poll_interval_s: float = 0.0005
    log_level: str = "warning"
    log_format: str = "text"
    state_cache_bytes: int = DEFAULT_BYTES
    nice: int = 0
    gather_share: float = 0.2
    gather_time_s: float = 0.02
    build: TaskBuilder | None = None  # None: penstock.tasks.worker.task_builder.build_tasks


class _ThreadedStream:
    """One attempt of a stream on this worker, driven by a thread of its own."""

    def __init__(self, deployment: Deployment, environment: WorkerEnvironment) -> None:
        self.deployment = deployment
        self.environment = environment
        self.queues = QueueSet()
        self.runner: StreamRunner

    def start(self) -> None:
        self.runner.start()

    def post(self, event: TaskEvent) -> None:
        self.runner.post(event)

    def bound(self, order: int, queue_bytes: int) -> None:
        self.queues.bound(order, queue_bytes)


class Worker(OrderedWorker[_ThreadedStream]):
    """Hosts streams for one mnode. `run` returns when the mnode says Shutdown, and raises when it is gone."""

    def __init__(
        self, spec: WorkerSpec, index: int, connection: ControlConnection, clock: Clock, fs: Fs, scratch: Path
    ) -> None:
        """`scratch`: a folder of this machine for what tasks keep while they run, if the data directory isn't here."""
        super().__init__()
        self._spec = spec
        self._index = index
        self._connection = connection
        self._clock = clock
        self._fs = fs
        self._paths = DataPaths(Path(spec.data_directory))
        # Whoever reaches the mnode from this address can be reached at it: on loopback by nobody else's machine.
        self._exchange = ExchangeServer(spec.secret, connection.own_host)
        self._bundles = OutgoingBundles(spec.secret, clock)
        self._dnode = DnodeClient(spec.dnode_address, spec.secret)
        self._scratch = scratch
        self._logs = (None if reaches_files(self._paths, fs, spec.secret)
                      else RemoteLogs(self._dnode.ask, self._paths, clock))
        self._state_cache = StateCache(spec.state_cache_bytes)
        self._recent_reads = RecentReads()
        self._gathering = Gathering(spec.gather_share, spec.gather_time_s)
        self._turns = TurnThreads(clock, TurnQueue(self._gathering), _TURN_THREADS, self._dnode.small_writes.send)
        self._notifier = WalNotifier(
            clock, spec.wal_poll_interval_s, self._turns.look, lambda: self._gathering.least_s)
        self._leaving = threading.Event()

    def run(self) -> None:
        """Says Hello, then obeys until Shutdown; raises UnavailableError when the mnode is gone."""
        self._connection.send(
            Hello(self._spec.group, self._index, os.getpid(), self._exchange.address, self._logs is None))
        threading.Thread(target=self._send_heartbeats, name="heartbeat", daemon=True).start()
        load_when_compiled(self._leaving)
        while not self._leaving.is_set():
            self.obey(self._connection.receive())

    # --- orders ------------------------------------------------------------------------------------------------

    def _deploy(self, deployment: Deployment, peers: tuple[str, ...]) -> None:
        def wake() -> None:
            stream.runner.wake()
            self._exchange.queue_changed(deployment.stream_id)

        def emit(what: TaskCheckpoint | ReadBack) -> None:
            self._connection.send(ReadBackWanted(what, deployment.attempt) if isinstance(what, ReadBack)
                                  else Acknowledged(what, deployment.attempt))

        environment = WorkerEnvironment(
            self._clock, self._data_access(), self._dnode, self._recent_reads, emit, wake, lambda: stream.runner.turn)
        stream = _ThreadedStream(deployment, environment)
        stream.runner = StreamRunner(
            name=deployment.name,
            clock=self._clock,
            threads=self._turns,
            build=lambda: self._build(stream, peers),
            on_ready=lambda tasks: self._send(
                Deployed(deployment.stream_id, deployment.attempt, tuple(task.id for task in tasks))
            ),
            on_failure=lambda task, error: self.fail(deployment, task, error),
            on_stopped=lambda: self._stopped(stream),
            latency_s=deployment.settings.latency_s,
        )
        self.streams[deployment.stream_id] = stream
        stream.runner.launch()

    def _data_access(self) -> DataAccess:
        if self._logs is None:
            return DataAccess(self._paths, self._fs, self._clock, self._state_cache)
        # Engines of one process may share an executor, and have streams of the same ids.
        own = DataPaths(self._scratch / f"penstock-{sha256(self._spec.secret).hexdigest()[:16]}")
        return NetworkAccess(self._logs, self._dnode, own, self._fs, self._clock, self._state_cache)

    def _build(
        self, stream: _ThreadedStream, peers: tuple[str, ...]
    ) -> tuple[Sequence[StreamTask], Sequence[Link]]:
        deployment = stream.deployment
        speak_about(stream=deployment.name, attempt=deployment.attempt)
        build = self._spec.build or _default_builder()
        tasks = build(deployment, self._index, stream.environment)
        links = connect_tasks(
            tasks, deployment, peers, self._index, self._exchange, self._bundles, self._clock, stream.runner.wake,
        )  # fmt: skip
        stream.queues.add(queues_of(tasks))
        for task in tasks:
            if task.followed_table is not None and isinstance(deployment, StreamDeployment):
                vgroup_id = deployment.graph.source_vgroup_ids[task.id.index]
                self._notifier.follow(
                    vgroup_id, deployment.stream_id, task.followed_table,
                    partial(stream.environment.open_news, vgroup_id), stream.runner.wake)
        return tasks, links

    def _stop(self, stream: _ThreadedStream) -> None:
        # Closing the inboxes first frees senders of other workers that wait for this one.
        self._exchange.unregister(stream.deployment.stream_id)
        stream.environment.abandon()
        stream.runner.stop()

    def leave(self) -> None:
        """Ends all streams and threads of the worker."""
        self._leaving.set()
        streams = list(self.streams.values())
        for stream in streams:
            self._stop(stream)
        for stream in streams:
            stream.runner.join(_STOP_TIMEOUT_S)
        self._notifier.stop()
        self._turns.close()
        self._exchange.shutdown()
        self._dnode.close()

    def _crowded(self, times: float) -> None:
        self._gathering.note_crowd(times / _PROCESSORS)

    # --- reports -----------------------------------------------------------------------------------------------

    def fail(self, deployment: Deployment, task: TaskId | None, error: BaseException) -> None:
        trace = "".join(traceback.format_exception(error))
        _log.error("stream %s, task %s: %s", deployment.name, task, error,
                   extra=about(stream=deployment.name, task=task, attempt=deployment.attempt))
        self._send(failed(deployment, task, error, trace))

    def _stopped(self, stream: _ThreadedStream) -> None:
        deployment = stream.deployment
        self._notifier.unfollow(deployment.stream_id)
        self._exchange.unregister(deployment.stream_id)
        stream.environment.close()
        self.streams.pop(deployment.stream_id, None)
        self._send(Stopped(deployment.stream_id, deployment.attempt))
        # Tasks refer to themselves in circles, and to what they read last: to a map of a segment of the log each. The
        # collector by itself comes too seldom here. It takes long where there is much: nobody waits for it.
        gc.collect()

    def _send_heartbeats(self) -> None:
        report = WorkerReport(self._clock, self._gathering)
        while not self._clock.wait(self._leaving, self._spec.heartbeat_interval_s):
            streams = list(self.streams.values())
            asked = report.ask(streams)
            # A moment for the runners to answer; one that is in a long step is reported as of its last answer.
            if self._clock.wait(self._leaving, _STATUS_TIMEOUT_S):
                return
            self._send(report.heartbeat(streams, asked))

    def _send(self, message: control.WorkerMessage) -> None:
        """Sends a message if the mnode is there; the receiving thread notices if it isn't."""
        try:
            self._connection.send(message)
        except UnavailableError:
            _log.info("the mnode is gone; %s is not sent", type(message).__name__)


def queues_of(tasks: Iterable[StreamTask]) -> list[ChannelQueue[TaskId]]:
    """Returns the queues of some tasks."""
    return [queue for task in tasks for queue in (task.input, task.output) if queue is not None]


def connect_tasks(
    tasks: Sequence[StreamTask],
    deployment: Deployment,
    peers: Sequence[str],
    index: int,
    exchange: ExchangeServer,
    bundles: OutgoingBundles,
    clock: Clock,
    wake: Callable[[], None],
) -> list[Link]:
    """Returns the links of all channels that leave `tasks`, and registers the channels that come from other workers."""
    attempt, worker_of = deployment.attempt, deployment.graph.worker_of
    by_id = {task.id: task for task in tasks}
    for task in tasks:
        for upstream in task.input.channels:
            if worker_of(upstream) != index:
                exchange.register(ChannelId(attempt, upstream, task.id), task.input)
    links: list[Link] = []
    for task in tasks:
        if task.output is None:
            continue
        for downstream in task.output.channels:
            if worker_of(downstream) == index:
                links.append(LocalLink(task.id, downstream, task.output, by_id[downstream].input, clock))
            else:
                channel = ChannelId(attempt, task.id, downstream)
                links.append(bundles.link(channel, peers[worker_of(downstream)], task.output, wake))
    return links


def _default_builder() -> TaskBuilder:
    from penstock.tasks.worker.task_builder import build_tasks

    return build_tasks


def run_worker(spec: WorkerSpec, index: int, scratch: Path) -> None:
    """Runs a worker in this process until the mnode sends it away; ends the process if the mnode is gone.

    `scratch`: see `Worker`.

    A lost mnode leaves nothing to save: all state is transactional, and whoever continues starts from a committed
    checkpoint. So the process ends at once instead of waiting for threads that wait for others.
    """
    handler = configure_stderr_logging(spec.log_level, spec.log_format)
    end_with_parent()
    # Before there are threads: each has a priority of its own, which it takes from the one that starts it.
    os.nice(spec.nice)
    try:
        connection = control.connect(spec.control_address, spec.secret, _CONNECT_TIMEOUT_S)
        Worker(spec, index, connection, SystemClock(), OsFs(), scratch).run()
        connection.close()
    except UnavailableError as error:
        _log.warning("worker %d of group %s ends: %s", index, spec.group, error)
        os._exit(1)
    finally:
        # Spark may use this process for another group's worker.
        stop_logging(handler)
