"""A worker group in the calling thread: its workers obey at once, and work when they are told to."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from penstock.mnode.controller.runtime_environment import Entrance
from penstock.tasks.operators.stream_task import StreamTask
from penstock.tasks.protocol import control
from penstock.tasks.protocol.control import concerns
from penstock.tasks.protocol.deployment import Deployment
from penstock.tasks.protocol.messages import Pause, ReadBack, Resume, SetRates, TaskCheckpoint, TaskEvent, TaskId
from penstock.tasks.protocol.task_status import TaskStatus
from penstock.tasks.worker.local_environment import LocalEnvironment, LocalStream
from penstock.tasks.worker.runner import TaskFailure
from penstock.tasks.worker.task_builder import build_tasks
from penstock.tasks.worker.worker_orders import OrderedWorker, failed
from penstock.tasks.worker.worker_process import queues_of

#: A rate limit would only make virtual time stand still.
_UNLIMITED = SetRates(0, 0, 0, 0)


@dataclass(eq=False, slots=True)
class _LocalPart:
    """What a worker has of a stream."""

    deployment: Deployment
    tasks: list[StreamTask]
    job: LocalGroup

    def start(self) -> None:
        self.job.start(self.deployment.stream_id)

    def post(self, event: TaskEvent) -> None:
        if isinstance(event, SetRates):
            return
        for task in self.tasks:
            if concerns(event, task.id):
                task.post(event)
        if isinstance(event, Pause | Resume):
            self.job.drive_soon(self.deployment.stream_id)

    def bound(self, order: int, queue_bytes: int) -> None:
        for queue in queues_of(self.tasks):
            queue.bound(queue_bytes)

    def close(self) -> None:
        for task in self.tasks:
            task.close()


class LocalWorker(OrderedWorker[_LocalPart]):
    """A worker, and the mnode's line to it: there is nothing between them."""

    exchange_address = ""
    here = True

    def __init__(self, job: LocalGroup, index: int) -> None:
        super().__init__()
        self.group, self.index, self.pid = job.name, index, os.getpid()
        self._job = job

    def send(self, message: control.MnodeMessage) -> None:
        self._job.on_order()
        self.obey(message)

    def close(self) -> None:
        """The job ends as a whole."""

    def kill(self) -> None:
        """Its process is the engine's."""

    def leave(self) -> None:
        self._job.end(None)

    def drop(self) -> None:
        """Ends all tasks as a crash would."""
        while self.streams:
            self.streams.popitem()[1].close()

    def _deploy(self, deployment: Deployment, peers: tuple[str, ...]) -> None:
        def hear(what: TaskCheckpoint | ReadBack) -> None:
            self._send(control.ReadBackWanted(what, deployment.attempt) if isinstance(what, ReadBack)
                       else control.Acknowledged(what, deployment.attempt))

        unlimited = replace(deployment.settings.with_rates(_UNLIMITED), sink_tables_share=1.0)
        told = replace(deployment, settings=unlimited)
        try:
            tasks = build_tasks(told, self.index, replace(self._job.environment, emit=hear))
        except Exception as error:  # noqa: BLE001  # it is raised where the streams are told to work
            self.fail(deployment, None, error)
            return
        self.streams[deployment.stream_id] = _LocalPart(told, tasks, self._job)
        self._send(control.Deployed(deployment.stream_id, deployment.attempt, tuple(task.id for task in tasks)))

    def _stop(self, stream: _LocalPart) -> None:
        stream_id = stream.deployment.stream_id
        self._job.streams.pop(stream_id, None)
        del self.streams[stream_id]
        stream.close()
        self._send(control.Stopped(stream_id, stream.deployment.attempt))

    def fail(self, deployment: Deployment, task: TaskId | None, error: BaseException) -> None:
        self._job.on_failure(error)
        self._send(failed(deployment, task, error))

    def _send(self, message: control.WorkerMessage) -> None:
        self._job.entrance.on_message(self, message)


class LocalGroup:
    """The workers of one job. `streams`: those that run, each with the tasks of all workers."""

    def __init__(
        self,
        name: str,
        workers: int,
        entrance: Entrance,
        environment: LocalEnvironment,
        later: Callable[[Callable[[], None]], object],
        on_order: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        on_end: Callable[[str | None], None],
    ) -> None:
        """`later` has something done that mustn't be in the midst of what the mnode does. `on_failure` hears what tasks
        fail with, `on_end` that the job is over.
        """
        self.name = name
        self.entrance = entrance
        self.environment = environment
        self.on_order = on_order
        self.on_failure = on_failure
        self.streams: dict[int, LocalStream] = {}
        self.ended = False
        self._later = later
        self._on_end = on_end
        self._workers = [LocalWorker(self, index) for index in range(workers)]
        for worker in self._workers:
            entrance.on_hello(worker)

    def cancel(self) -> None:
        self.end(None)

    def places(self) -> Mapping[int, str]:
        return {}

    def end(self, reason: str | None) -> None:
        """Ends all tasks as a crash would, and tells the mnode."""
        if not self.ended:
            self.drop()
            self._on_end(reason)

    def drop(self) -> None:
        """Ends all tasks as a crash would; the mnode doesn't hear of it."""
        self.ended = True
        self.streams.clear()
        for worker in self._workers:
            worker.drop()

    def start(self, stream_id: int) -> None:
        """Lets the tasks of a stream run, which all workers have built by now."""
        if stream_id not in self.streams:
            parts = [worker.streams[stream_id] for worker in self._workers]
            self.streams[stream_id] = LocalStream(
                [part.deployment for part in parts], [task for part in parts for task in part.tasks],
                self.environment.clock)

    def drive_soon(self, stream_id: int) -> None:
        """Has a stream work until it rests: whoever has ordered that waits for it by a clock that stands still."""
        def drive() -> None:
            while self._step(stream_id):
                pass
            self.heartbeat()

        self._later(drive)

    def step(self) -> bool:
        """Gives each task one step; returns whether anything was done."""
        worked = False
        for stream_id in list(self.streams):
            worked |= self._step(stream_id)
        return worked

    def heartbeat(self) -> tuple[TaskStatus, ...]:
        """Tells the mnode how all tasks are; returns what it told."""
        statuses = tuple(status for stream in self.streams.values() for status in stream.statuses())
        self.entrance.on_message(self._workers[0], control.Heartbeat(statuses))
        return statuses

    def _step(self, stream_id: int) -> bool:
        stream = self.streams.get(stream_id)
        if stream is None:
            return False
        try:
            return stream.step()
        except TaskFailure as failure:
            del self.streams[stream_id]
            worker = self._workers[stream.deployment.graph.worker_of(failure.task)]
            worker.fail(stream.deployment, failure.task, failure.__cause__ or failure)
            return True
