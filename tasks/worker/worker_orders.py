"""What the mnode orders of a worker, and which of the streams there it concerns: the same wherever workers run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from penstock.common.errors import CheckpointDamagedError, InternalError, PenstockError
from penstock.tasks.protocol import control
from penstock.tasks.protocol.deployment import Deployment
from penstock.tasks.protocol.messages import TaskEvent, TaskId


class HostedStream(Protocol):
    """One attempt of a stream on a worker."""

    deployment: Deployment

    def start(self) -> None:
        """Lets the tasks run."""
        ...

    def post(self, event: TaskEvent) -> None:
        """Hands an event to the tasks that it concerns, also if they are still being built."""
        ...

    def bound(self, order: int, queue_bytes: int) -> None:
        """Gives each queue another bound."""
        ...


H = TypeVar("H", bound=HostedStream)


class OrderedWorker(ABC, Generic[H]):
    """A worker that obeys the mnode. `streams`: those on it, by id."""

    def __init__(self) -> None:
        self.streams: dict[int, H] = {}

    def obey(self, message: control.WorkerMessage | control.MnodeMessage) -> None:
        """Does what the mnode says. Raises InternalError for what no mnode says."""
        match message:
            case control.Deploy(deployment, peers):
                older = self.streams.get(deployment.stream_id)
                if older is None:
                    self._deploy(deployment, peers)
                elif older.deployment.attempt != deployment.attempt:
                    # The mnode stops an attempt before it deploys the next; two must never share state.
                    self.fail(deployment, None, InternalError(
                        f"attempt {deployment.attempt} was deployed while attempt {older.deployment.attempt} is here"))
            case control.StartTasks(stream_id, attempt):
                stream = self._find(stream_id, attempt)
                if stream is not None:
                    stream.start()
            case control.StopTasks(stream_id, attempt):
                stream = self.streams.get(stream_id)
                if stream is None:
                    self._send(control.Stopped(stream_id, attempt))
                else:
                    self._stop(stream)
            case control.PostEvent(stream_id, attempt, event):
                stream = self._find(stream_id, attempt)
                if stream is not None:
                    stream.post(event)
            case control.BoundQueues(stream_id, attempt, order, queue_bytes):
                stream = self._find(stream_id, attempt)
                if stream is not None:
                    stream.bound(order, queue_bytes)
            case control.Crowded(times):
                self._crowded(times)
            case control.Shutdown():
                self.leave()
            case _:
                raise InternalError(f"the mnode sent a {type(message).__name__}")

    def _find(self, stream_id: int, attempt: int) -> H | None:
        stream = self.streams.get(stream_id)
        return stream if stream is not None and stream.deployment.attempt == attempt else None

    def _crowded(self, times: float) -> None:
        """Takes note of what other workers on the machine take; see `control.Crowded`."""

    @abstractmethod
    def leave(self) -> None:
        """Ends all streams and the worker."""

    @abstractmethod
    def _deploy(self, deployment: Deployment, peers: tuple[str, ...]) -> None:
        """Has the tasks of a stream built, and says so."""

    @abstractmethod
    def _stop(self, stream: H) -> None:
        """Ends the tasks of a stream, and says so once none is left."""

    @abstractmethod
    def fail(self, deployment: Deployment, task: TaskId | None, error: BaseException) -> None:
        """Says that a stream cannot go on here."""

    @abstractmethod
    def _send(self, message: control.WorkerMessage) -> None:
        """Sends a message to the mnode, if it is there."""


def failed(deployment: Deployment, task: TaskId | None, error: BaseException, trace: str = "") -> control.Failed:
    """Returns what the mnode is told of an error."""
    return control.Failed(
        deployment.stream_id, deployment.attempt, task, str(error) or type(error).__name__, trace,
        type(error).__name__, error.code if isinstance(error, PenstockError) else None,
        isinstance(error, CheckpointDamagedError))
