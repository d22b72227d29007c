"""The control connection between a worker and the mnode: authenticated, with messages of its own, never behind data.

A message is pickled and framed by `multiprocessing.connection`, after both ends have proved by HMAC that they know
the deployment's secret. One thread may send while another receives.
"""

from __future__ import annotations

import errno
import hmac
import os
import secrets
import socket
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection

from penstock.common.errors import UnavailableError
from penstock.common.processes import Address
from penstock.tasks.protocol.deployment import Deployment
from penstock.tasks.protocol.messages import (
    CheckpointAbandoned,
    CheckpointCommitted,
    ReadBack,
    Resume,
    SetRates,
    StartCheckpoint,
    TaskCheckpoint,
    TaskEvent,
    TaskId,
    UseConnection,
)
from penstock.tasks.protocol.task_status import TaskStatus
from penstock.tasks.protocol.wire import decode, encode

# --- from the worker ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message: who hosts place `index` of the group, and where its exchange listens.

    `here`: whether it is on the engine's machine, where `pid` means something to the engine.
    """

    group: str
    index: int
    pid: int
    exchange_address: str
    here: bool = True


@dataclass(frozen=True, slots=True)
class Deployed:
    """The tasks of the stream are built and have restored their state; they wait for StartTasks."""

    stream_id: int
    attempt: int
    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """The stream cannot go on here. `task` is None if it failed before it had tasks.

    `error` and `trace` are for people; `kind` is the name of the error's class and `code` TDengine's, where it has one.
    `damaged`: its part of the checkpoint that it was to start from is missing or damaged.
    """

    stream_id: int
    attempt: int
    task: TaskId | None
    error: str
    trace: str
    kind: str
    code: int | None = None
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class Stopped:
    """No task of the stream's attempt is left on this worker."""

    stream_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A task's part of a checkpoint is durable."""

    checkpoint: TaskCheckpoint
    attempt: int


@dataclass(frozen=True, slots=True)
class ReadBackWanted:
    """An agg task needs windows that it has forgotten."""

    order: ReadBack
    attempt: int


@dataclass(frozen=True, slots=True)
class QueuesHeld:
    """What the queues of a stream on this worker hold at most until they get another order; see BoundQueues."""

    stream_id: int
    attempt: int
    order: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The state of the worker's tasks; sent in regular intervals, also when there are none.

    `gathering_s`: how long its streams rest at least between two turns, so that rows gather; 0: it has time for each.
    `busy`: of a processor, what their turns took since the last one. `still`: the streams whose tasks all rest here and
    are as they were said to be last; `untold`: those that something has happened to, of which later ones will tell.
    `queues`: those that have changed.
    """

    statuses: tuple[TaskStatus, ...]
    queues: tuple[QueuesHeld, ...] = ()
    gathering_s: float = 0.0
    busy: float = 0.0
    still: tuple[int, ...] = ()
    untold: tuple[int, ...] = ()


WorkerMessage = Hello | Deployed | Failed | Stopped | Acknowledged | ReadBackWanted | Heartbeat

# --- from the mnode ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Deploy:
    """Build the tasks of the stream; `peers[i]` is the exchange address of worker i of the group."""

    deployment: Deployment
    peers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StartTasks:
    """All workers have deployed the attempt: let its tasks run."""

    stream_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class StopTasks:
    """End the tasks of the stream's attempt; answered with Stopped also if there are none."""

    stream_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class PostEvent:
    """Hand `event` to the tasks of the stream that it concerns."""

    stream_id: int
    attempt: int
    event: TaskEvent


@dataclass(frozen=True, slots=True)
class BoundQueues:
    """Give each queue of the stream's attempt another bound. Orders are numbered from 1, the deployment is order 0."""

    stream_id: int
    attempt: int
    order: int
    queue_bytes: int


@dataclass(frozen=True, slots=True)
class Crowded:
    """The turns of all workers on the machine take `times` as much as those of this one, which counts as many times as
    there are workers at most; twice that where nothing of the machine is left."""

    times: float


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End all streams and leave."""


MnodeMessage = Deploy | StartTasks | StopTasks | PostEvent | BoundQueues | Crowded | Shutdown

_MESSAGES = (
    Hello, Deployed, Failed, Stopped, Acknowledged, ReadBackWanted, Heartbeat,
    Deploy, StartTasks, StopTasks, PostEvent, BoundQueues, Crowded, Shutdown,
)  # fmt: skip


def concerns(event: TaskEvent, task: TaskId) -> bool:
    """Tells whether a task is meant by an event.

    The ends of checkpoints and rates go to all tasks, their beginnings, Resume and connections to source and sink
    tasks, the rest to source tasks.
    """
    return (task.operator == "source" or isinstance(event, CheckpointCommitted | CheckpointAbandoned | SetRates)
            or (task.operator == "sink" and isinstance(event, StartCheckpoint | Resume | UseConnection)))


class ControlConnection:
    """One end of a control connection. `send` may be called by any thread, `receive` by one at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._send_lock = threading.Lock()

    def send(self, message: WorkerMessage | MnodeMessage) -> None:
        """Sends a message; raises UnavailableError if the other end is gone."""
        data = encode(message)
        try:
            with self._send_lock:
                self._connection.send_bytes(data)
        except (OSError, ValueError) as error:
            raise UnavailableError(f"the control connection is closed: {error}") from error

    def receive(self) -> WorkerMessage | MnodeMessage:
        """Waits for the next message and returns it; raises UnavailableError once the other end is gone."""
        try:
            data = self._connection.recv_bytes()
        except (OSError, EOFError, ValueError, TypeError) as error:
            raise UnavailableError(f"the control connection is closed: {error or 'end of file'}") from error
        message: WorkerMessage | MnodeMessage = decode(data, _MESSAGES)
        return message

    @property
    def own_host(self) -> str:
        """The address of this machine that the other end sees."""
        return self.ends()[0][0]

    def ends(self) -> tuple[Address, Address]:
        """Returns the addresses of this end and of the other; raises UnavailableError if the other end is gone."""
        try:
            with self._socket() as borrowed:
                return borrowed.getsockname()[:2], borrowed.getpeername()[:2]
        except OSError as error:
            raise UnavailableError(f"the control connection is closed: {error}") from error

    def authenticate(self, secret: bytes) -> None:
        """Returns once the worker at the other end has proved that it knows the secret; raises UnavailableError.

        It waits for ever for a caller that sends part of what it should: whoever accepts callers closes those.
        """
        try:
            _handshake(self._connection, secret, _MNODE, _WORKER)
        except (OSError, EOFError) as error:
            raise UnavailableError(f"a caller could not prove that it knows the secret: {error}") from error

    def _socket(self) -> socket.socket:
        """Returns the connection's socket, with a file descriptor that may be closed."""
        return socket.socket(fileno=os.dup(self._connection.fileno()))

    def close(self) -> None:
        """Ends the connection and wakes threads that wait in `receive`, at both ends.

        The file descriptor itself is closed with the last reference to this object: a thread that still reads from
        it must not find another file there.
        """
        if self._connection.closed:  # after a message that is too long
            return
        with self._socket() as borrowed:
            try:
                borrowed.shutdown(socket.SHUT_RDWR)
            except OSError as error:
                if error.errno != errno.ENOTCONN:  # the other end was faster
                    raise


def connect(address: tuple[str, int], secret: bytes, timeout_s: float) -> ControlConnection:
    """Returns the worker's end of a connection to the mnode; raises UnavailableError if nobody answers."""
    try:
        stream = socket.create_connection(address, timeout=timeout_s)
        stream.settimeout(None)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(stream.detach())
        _handshake(connection, secret, _WORKER, _MNODE)
    except (OSError, EOFError) as error:
        raise UnavailableError(f"no mnode answers at {address[0]}:{address[1]}: {error}") from error
    return ControlConnection(connection)


class ControlListener:
    """The mnode's end: accepts connections on the loopback interface."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._socket = socket.create_server((host, 0), backlog=128)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]

    def accept(self, timeout_s: float | None = None) -> tuple[ControlConnection, str] | None:
        """Waits for a caller and returns its connection, for `authenticate`, and its address; None if nobody came.

        Raises OSError once closed.
        """
        self._socket.settimeout(timeout_s)
        try:
            stream, (host, *_) = self._socket.accept()
        except TimeoutError:
            return None
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return ControlConnection(Connection(stream.detach())), host

    def close(self) -> None:
        """Ends `accept`; connections that exist live on."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        finally:
            self._socket.close()


_MNODE, _WORKER = b"mnode", b"worker"
_NONCE_BYTES = 32
_HANDSHAKE_TIMEOUT_S = 10.0


def _handshake(connection: Connection, secret: bytes, own_role: bytes, other_role: bytes) -> None:
    """Proves the secret to the other end, and has it prove the same; raises OSError or EOFError if it doesn't.

    Each end signs the other's random number together with its own role, so that no answer can be sent back as one's
    own.
    """
    nonce = secrets.token_bytes(_NONCE_BYTES)
    connection.send_bytes(nonce)
    challenge = _receive_soon(connection)
    connection.send_bytes(hmac.digest(secret, own_role + challenge, "sha256"))
    proof = _receive_soon(connection)
    if not hmac.compare_digest(proof, hmac.digest(secret, other_role + nonce, "sha256")):
        raise PermissionError("it doesn't know the secret")


def _receive_soon(connection: Connection) -> bytes:
    if not connection.poll(_HANDSHAKE_TIMEOUT_S):
        raise TimeoutError(f"it said nothing for {_HANDSHAKE_TIMEOUT_S:g} s")
    return connection.recv_bytes(_NONCE_BYTES)
