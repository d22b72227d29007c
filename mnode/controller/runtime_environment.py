"""The runtime environment of the controller: helper threads, the listener for workers, waiting. Decides nothing.

`Threads` is the real thing. `local_runtime` puts the calling thread in its place, and the simulation one thread in
which all happens in a seeded order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from penstock.common.clock import SystemClock
from penstock.common.machine import Processors
from penstock.mnode.controller.worker_connections import WorkerListener
from penstock.tasks.protocol.control import MnodeMessage, WorkerMessage

T = TypeVar("T")


class WorkerLine(Protocol):
    """The mnode's end of the connection to a worker that has said Hello; see `worker_connections.WorkerConnection`."""

    group: str
    index: int
    pid: int
    exchange_address: str
    here: bool

    def send(self, message: MnodeMessage) -> None: ...

    def close(self) -> None: ...

    def kill(self) -> None:
        """Ends the worker's process if it is on this machine and still the worker's; takes milliseconds."""
        ...


class Listener(Protocol):
    """Where workers come in."""

    address: tuple[str, int]

    def close(self) -> None: ...


OnHello = Callable[[WorkerLine], None]
OnMessage = Callable[[WorkerLine, WorkerMessage], None]
OnLost = Callable[[WorkerLine, str], None]


@dataclass(slots=True)
class Entrance:
    """Where workers come in that aren't processes; nobody does by itself."""

    on_hello: OnHello
    on_message: OnMessage
    on_lost: OnLost
    address: tuple[str, int] = ("nowhere", 0)

    def close(self) -> None:
        """There is nothing to be closed."""


class RuntimeEnvironment(Protocol):
    """How work is done beside the caller's own. `threaded`: whether upkeep may have threads of its own."""

    threaded: bool

    def pool(self, name: str, threads: int) -> Executor:
        """Returns what runs calls beside the caller's thread."""
        ...

    def launch(self, name: str, run: Callable[[], None]) -> threading.Thread | None:
        """Runs an endless loop on a thread of its own; None: the caller of `turn` does what the loop would do."""
        ...

    def listen(
        self, secret: bytes, on_hello: OnHello, on_message: OnMessage, on_lost: OnLost, host: str
    ) -> Listener:
        """Lets workers in from now on, who prove that they know the `secret`."""
        ...

    def is_full(self) -> bool:
        """Tells whether the processors of this machine have next to nothing to spare."""
        ...

    def result(self, future: Future[T], timeout_s: float) -> T:
        """Waits for an answer. Raises what the answer raises, or `concurrent.futures.TimeoutError`."""
        ...


class Threads:
    """Real threads and sockets."""

    threaded = True

    def __init__(self) -> None:
        self._processors = Processors(SystemClock())

    def pool(self, name: str, threads: int) -> Executor:
        return ThreadPoolExecutor(threads, thread_name_prefix=name)

    def launch(self, name: str, run: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def listen(self, secret: bytes, on_hello: OnHello, on_message: OnMessage, on_lost: OnLost, host: str) -> Listener:
        return WorkerListener(secret, on_hello, on_message, on_lost, host)

    def is_full(self) -> bool:
        return self._processors.are_full()

    def result(self, future: Future[T], timeout_s: float) -> T:
        return future.result(timeout_s)
