"""What many vnodes and streams cost the coordinator: `python -m bench.coordinator`; a JSON line per size.

The coordinator is the real one, with its messages as they cross processes and its commit records as files. In the place
of Spark, sockets and workers stands a simulation in one thread, with a clock of its own and seeded delays: a worker
answers, and computes nothing. So seconds of processors are measured, and are those of the mnode; seconds until
something is done follow from the delays below and from nothing else.

Four things are measured: *start*, until all streams run; *heartbeat*, one of every worker; *checkpoint*, one of every
stream, all at once; *failover*, from the death of one worker until the streams of its group run again.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from bench.queries import Q1, Q2
from bench.rows import Shape
from bench.setup import create_tables
from penstock import __version__
from penstock.common.clock import ManualClock
from penstock.common.fs import OsFs
from penstock.common.paths import DataPaths
from penstock.mnode.admin.sandbox import Sandbox
from penstock.mnode.checkpoints.checkpoint_machine import CheckpointSettings
from penstock.mnode.checkpoints.commit_records import CommitRecords
from penstock.mnode.controller.controller_settings import ControllerSettings
from penstock.mnode.controller.engine_hooks import EngineHooks
from penstock.mnode.controller.group_runtime import WorkerLaunch
from penstock.mnode.controller.runtime_environment import Entrance, OnHello, OnLost, OnMessage
from penstock.mnode.controller.stream_controller import StreamController
from penstock.mnode.coordinator.running_stream import RunningStream, StreamKeeper
from penstock.mnode.coordinator.task_graph_builder import task_graph
from penstock.mnode.groups.group_events import GroupSettings
from penstock.tasks.protocol import control
from penstock.tasks.protocol.deployment import Deployment, StreamDeployment
from penstock.tasks.protocol.messages import StartCheckpoint, TaskCheckpoint
from penstock.tasks.protocol.task_graph import TaskEdges
from penstock.tasks.protocol.task_status import TaskStatus
from penstock.tasks.protocol.wire import decode, encode
from penstock.tasks.worker.spark_executors import Executor as SparkExecutor
from penstock.tasks.worker.spark_executors import Executors
from penstock.tasks.worker.worker_process import WorkerSpec

T = TypeVar("T")

SIZES = ((10, 10), (100, 10), (1000, 10), (10, 100), (100, 100), (1000, 100))
#: Seconds that things take at least and at most: on the way of a message, a helper's call with an fsync, the start of a
#: process by Spark, the building of a stream's tasks, the writing of a task's state.
WAY, HELP, PROCESS, BUILD, STATE = (0.0002, 0.001), (0.001, 0.01), (0.5, 2.0), (0.05, 0.2), (0.01, 0.1)
_PATIENCE_S = 3600.0
_EXECUTOR = SparkExecutor("driver", "simulated", 1_000_000, 0)


class _Keeper(StreamKeeper):
    """Counts the attempts of a stream with these child tables per source task."""

    def __init__(self, children: tuple[bytes, ...]) -> None:
        self._children = children
        self._attempts = 0

    def next_attempt(self) -> int:
        self._attempts += 1
        return self._attempts

    def children(self) -> tuple[bytes, ...]:
        return self._children


class World:
    """A heap of what is going to happen, taken in the order of time; chance is seeded."""

    def __init__(self, seed: int) -> None:
        self.clock = ManualClock()
        self._chance = Random(seed)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def later(self, bounds: tuple[float, float], action: Callable[[], None], not_before: float = 0.0) -> float:
        """Has `action` happen after a delay within `bounds`, in seconds; returns when."""
        at = max(not_before, self.clock.monotonic() + self._chance.uniform(*bounds))
        heapq.heappush(self._heap, (at, next(self._numbers), action))
        return at

    def step(self, until: float) -> None:
        """Lets the next thing happen, or time pass until `until` if there is none before."""
        at = min(until, self._heap[0][0]) if self._heap else until
        self.clock.advance(max(0.0, at - self.clock.monotonic()))
        if self._heap and self._heap[0][0] <= at:
            heapq.heappop(self._heap)[2]()


@dataclass
class Cost:
    """What the mnode has done since the measurement began."""

    seconds: float = 0.0
    messages: int = 0
    sent: int = 0
    received: int = 0


class Worker:
    """The mnode's line to a worker, and the worker behind it."""

    def __init__(self, mnode: Mnode, spec: WorkerSpec, index: int) -> None:
        self.group, self.index, self.pid, self.here = spec.group, index, 1000 + index, False
        self.exchange_address = f"10.0.{index // 250}.{index % 250}:40000"
        self.gone = False
        self._mnode = mnode
        self._said_until = 0.0
        self._statuses: dict[int, tuple[TaskStatus, ...]] = {}

    def send(self, message: control.MnodeMessage) -> None:
        """Is called by the coordinator: what the message costs to encode is the mnode's."""
        data = encode(message)
        self._mnode.cost.messages += 1
        self._mnode.cost.sent += len(data)
        self._mnode.world.later(WAY, lambda: self._hear(message))

    def close(self) -> None:
        self.gone = True

    kill = close  # its process is simulated, too

    def heartbeat(self) -> None:
        self._say(control.Heartbeat(tuple(itertools.chain.from_iterable(self._statuses.values()))))

    def _hear(self, message: control.MnodeMessage) -> None:
        later = self._mnode.world.later
        if self.gone:
            return
        match message:
            case control.Deploy(deployment, _):
                later(BUILD, lambda: self._deployed(deployment))
            case control.StopTasks(stream_id, attempt):
                self._statuses.pop(stream_id, None)
                later(STATE, lambda: self._say(control.Stopped(stream_id, attempt)))
            case control.PostEvent(stream_id, attempt, StartCheckpoint(checkpoint_id)):
                for status in self._statuses[stream_id]:
                    version = 1 if status.task.operator == "source" else None
                    part = TaskCheckpoint(status.task, checkpoint_id, 4096, 20.0, version, "0123456789abcdef", version)
                    done = control.Acknowledged(part, attempt)
                    later(STATE, lambda done=done: self._say(done))  # type: ignore[misc]
            case control.Shutdown():
                self.gone = True

    def _deployed(self, deployment: StreamDeployment) -> None:
        tasks = [edge.task for edge in self._mnode.edges[deployment.stream_id]
                 if deployment.graph.worker_of(edge.task) == self.index]
        self._statuses[deployment.stream_id] = tuple(TaskStatus(task, "RUNNING") for task in tasks)
        self._say(control.Deployed(deployment.stream_id, deployment.attempt, tuple(tasks)))

    def _say(self, message: control.WorkerMessage) -> None:
        if not self.gone:
            data = encode(message)
            self._said_until = self._mnode.world.later(WAY, lambda: self._mnode.hear(self, data), self._said_until)


@dataclass
class Group:
    """A job of Spark: a worker per vnode, which all end with it."""

    mnode: Mnode
    spec: WorkerSpec
    on_end: Callable[[str | None], None]
    workers: list[Worker] = field(default_factory=list)

    def begin(self, workers: int) -> None:
        for index in range(workers):
            worker = Worker(self.mnode, self.spec, index)
            self.workers.append(worker)
            self.mnode.world.later(PROCESS, lambda worker=worker: self.mnode.entrance.on_hello(worker))  # type: ignore[misc]

    def places(self) -> dict[int, str]:
        return {worker.index: _EXECUTOR.id for worker in self.workers}

    def cancel(self) -> None:
        for worker in self.workers:
            worker.gone = True
        self.mnode.world.later(WAY, lambda: self.on_end(None))


class Helpers(Executor):
    """Runs everything some time later, as threads do that wait for a disk; what they compute is the mnode's cost."""

    def __init__(self, world: World, measured: Callable[[Callable[[], None]], None]) -> None:
        self._world = world
        self._measured = measured

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        self._world.later(HELP, lambda: self._measured(lambda: future.set_result(fn(*args, **kwargs))))
        return future


class Mnode:
    """A coordinator over `vnodes` vnodes; also its `RuntimeEnvironment` and its `Runtime`."""

    threaded = False

    def __init__(self, directory: Path, vnodes: int, streams_per_worker: int, seed: int) -> None:
        self.world = World(seed)
        self.cost = Cost()
        self.edges: dict[int, tuple[TaskEdges, ...]] = {}
        self.entrance: Entrance
        self._vnodes = vnodes
        self._groups: list[Group] = []
        paths = DataPaths(directory)
        settings = ControllerSettings(GroupSettings(streams_per_worker, start_timeout_s=_PATIENCE_S),
                                      CheckpointSettings(_PATIENCE_S, _PATIENCE_S), heartbeat_timeout_s=_PATIENCE_S)
        self.records = CommitRecords(paths, OsFs())
        self.controller = StreamController(
            self.world.clock, settings, self.records, self, WorkerLaunch(paths.root), EngineHooks(), self)

    # --- what happens ------------------------------------------------------------------------------------------

    def start(self, streams: Iterable[StreamDeployment]) -> None:
        """Starts streams like `streams`, over all vnodes."""
        vgroup_ids = tuple(range(2, 2 + self._vnodes))
        for model in streams:
            # Copies: an object that occurs twice in a message is encoded once.
            children = tuple(bytes(bytearray(model.children[n % 2])) for n in range(self._vnodes))
            graph = task_graph(model.plan, vgroup_ids)
            self.edges[model.stream_id] = graph.edges(model.stream_id)
            self.controller.start(RunningStream(
                model.stream_id, model.name, model.plan, graph, (0,) * self._vnodes, _Keeper(children), model.settings))

    def until_all_run(self) -> None:
        """Lets time pass until every stream runs."""
        self._until(lambda: all(each.state == "RUNNING" for each in self.controller.stream_states().values()))

    def heartbeats(self) -> None:
        """Lets every worker send a heartbeat."""
        workers = self._living()
        for worker in workers:
            worker.heartbeat()
        wanted = self.cost.messages + len(workers)
        self._until(lambda: self.cost.messages >= wanted)

    def checkpoints(self) -> None:
        """Takes a checkpoint of every stream, all at once."""
        ids = {stream_id: self.controller.begin_checkpoint(stream_id, 0.0)[0] for stream_id in self.edges}
        self._until(lambda: all(ids[stream_id] in self.records.ids(stream_id) for stream_id in ids))

    def kill_one(self) -> None:
        """Ends one worker, which the coordinator hears of as it hears of a closed connection."""
        worker = self._living()[0]
        group = next(group for group in self._groups if worker in group.workers)
        self.entrance.on_lost(worker, "killed")
        group.cancel()
        self.turn()

    def hear(self, worker: Worker, data: bytes) -> None:
        """Takes a message from a worker."""
        self.cost.messages += 1
        self.cost.received += len(data)

        def handle() -> None:
            message: control.WorkerMessage = decode(
                data, (control.Deployed, control.Stopped, control.Acknowledged, control.Heartbeat))
            self.entrance.on_message(worker, message)

        self._measured(handle)

    def turn(self) -> None:
        """Has the coordinator do what has come in and what is due."""
        self._measured(self.controller.turn)

    def _measured(self, action: Callable[[], None]) -> None:
        started = time.process_time()
        action()
        self.cost.seconds += time.process_time() - started

    def _until(self, done: Callable[[], bool]) -> None:
        """Lets things happen until `done`, which is asked seldom: it may cost more than what happens."""
        deadline, ask_at = self.world.clock.monotonic() + _PATIENCE_S, 0.0
        while True:
            now = self.world.clock.monotonic()
            if now >= ask_at:
                if done():
                    return
                ask_at = now + 0.01
            if now > deadline:
                raise AssertionError(f"{self._vnodes} vnodes, {len(self.edges)} streams: nothing more happens")
            self.world.step(now + 0.01)
            if self.controller.asked:
                self.turn()

    def _living(self) -> list[Worker]:
        return [worker for group in self._groups for worker in group.workers if not worker.gone]

    # --- RuntimeEnvironment and Runtime ------------------------------------------------------------------------------

    def pool(self, name: str, threads: int) -> Executor:
        return Helpers(self.world, self._measured)

    def launch(self, name: str, run: Callable[[], None]) -> threading.Thread | None:
        return None

    def listen(self, secret: bytes, on_hello: OnHello, on_message: OnMessage, on_lost: OnLost, host: str) -> Entrance:
        self.entrance = Entrance(on_hello, on_message, on_lost)
        return self.entrance

    def is_full(self) -> bool:
        return False

    def result(self, future: Future[T], timeout_s: float) -> T:
        self.controller.turn()
        return future.result(0)

    def submit_group(self, spec: WorkerSpec, workers: int, description: str,
                     on_end: Callable[[str | None], None]) -> Group:
        group = Group(self, spec, on_end)
        self._groups.append(group)
        group.begin(workers)
        return group

    def is_ready(self) -> bool:
        return True

    def executors(self) -> Executors:
        return Executors((_EXECUTOR,), elastic=False)

    def scale(self, executors: int, released: Sequence[str]) -> None:
        """There is room for all."""


def models(streams: int, tables_per_vnode: int) -> list[StreamDeployment]:
    """Returns `streams` deployments over two vnodes, by turns of a query per table and of one per tag."""
    shape = Shape(tables=2 * tables_per_vnode, rows=2 * tables_per_vnode)
    with Sandbox("UTC", 1_800_000_000_000) as sandbox:
        create_tables(lambda text: sandbox.engine.execute(text, sandbox.session), shape, 2)
        for query in (Q1, Q2):
            sandbox.engine.execute(query.stream(query.name, f"out_{query.name}", "WINDOW_CLOSE"), sandbox.session)
        made = [_whole(running.deployments) for running in sandbox.streams.local_streams().values()]
    return [replace(made[number % 2], stream_id=1_000 + number, name=f"s{number}") for number in range(streams)]


def _whole(parts: Sequence[Deployment]) -> StreamDeployment:
    """Returns the deployment with all child tables, of which each worker gets its own."""
    streams = [part for part in parts if isinstance(part, StreamDeployment)]
    children = zip(*(part.children for part in streams), strict=True)
    return replace(streams[0], children=tuple(max(told) for told in children))


def measurements(
    sizes: Iterable[tuple[int, int]], directory: Path, streams_per_worker: int, tables_per_vnode: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Yields what each (vnodes, streams) costs."""
    for vnodes, streams in sizes:
        mnode = Mnode(directory / f"{vnodes}-{streams}", vnodes, streams_per_worker, seed)
        deployments = models(streams, tables_per_vnode)
        channels = sum(len(edge.downstream) for each in deployments
                       for edge in task_graph(each.plan, tuple(range(vnodes))).edges(each.stream_id))
        about = {"vnodes": vnodes, "streams": streams, "streams_per_worker": streams_per_worker,
                 "tables_per_vnode": tables_per_vnode, "channels": channels,
                 "workers": vnodes * -(-streams // streams_per_worker), "seed": seed, "penstock": __version__}
        for what, action in (
            ("start", lambda mnode=mnode, deployments=deployments: (mnode.start(deployments), mnode.until_all_run())),
            ("heartbeat", mnode.heartbeats),
            ("checkpoint", mnode.checkpoints),
            ("failover", lambda mnode=mnode: (mnode.kill_one(), mnode.until_all_run())),
        ):
            mnode.cost, began = Cost(), mnode.world.clock.monotonic()
            action()
            cost = mnode.cost
            yield {"measure": what, **about, "cpu_seconds": round(cost.seconds, 3), "messages": cost.messages,
                   "sent_bytes": cost.sent, "received_bytes": cost.received,
                   "simulated_seconds": round(mnode.world.clock.monotonic() - began, 2)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a JSON line per size and thing measured."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.coordinator", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(f"{v}x{s}" for v, s in SIZES), help="VNODESxSTREAMS,...")
    parser.add_argument("--streams-per-worker", type=int, default=100)
    parser.add_argument("--tables-per-vnode", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    sizes = [(int(vnodes), int(streams)) for vnodes, streams in (size.split("x") for size in options.sizes.split(","))]
    with tempfile.TemporaryDirectory(prefix="penstock-coordinator-") as folder:
        for line in measurements(sizes, Path(folder), options.streams_per_worker, options.tables_per_vnode,
                                 options.seed):
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
