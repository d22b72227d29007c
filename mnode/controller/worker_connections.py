"""The mnode's side of the control connections: accepts workers, receives from each, sends without ever waiting."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from penstock.common.admission import WORKER_PORTS, Admission
from penstock.common.clock import SystemClock
from penstock.common.errors import InternalError, PenstockError, UnavailableError
from penstock.common.logging import logger
from penstock.common.processes import kill_holder
from penstock.tasks.protocol.control import (
    ControlConnection,
    ControlListener,
    Hello,
    MnodeMessage,
    WorkerMessage,
)

_log = logger(__name__)
_CLOCK = SystemClock()
_LEAST_WAIT_S = 0.05


class WorkerConnection:
    """A worker that has said Hello. `send` queues: a worker that doesn't read holds up nobody but itself."""

    def __init__(self, hello: Hello, connection: ControlConnection) -> None:
        """Raises UnavailableError if the worker is gone."""
        self.group = hello.group
        self.index = hello.index
        self.pid = hello.pid
        self.exchange_address = hello.exchange_address
        self.here = hello.here
        self._connection = connection
        self._ends = connection.ends()
        self._outbox: deque[MnodeMessage] = deque()
        self._flag = threading.Event()
        self._closed = False
        name = f"to worker {hello.group}/{hello.index}"
        self._thread = threading.Thread(target=self._send_all, name=name, daemon=True)
        self._thread.start()

    def send(self, message: MnodeMessage) -> None:
        """Sends `message` after those before it; lost if the worker is gone, of which the receiver tells."""
        self._outbox.append(message)
        self._flag.set()

    def close(self) -> None:
        """Closes the connection; the worker's process ends when it sees that."""
        self._closed = True
        self._flag.set()
        self._connection.close()

    def kill(self) -> None:
        """Kills the worker's process if it still holds its end of the connection, and is on this machine.

        A process that is stopped, or stuck, or that Spark has lost doesn't end by itself, and would keep the state's
        locks. What it has left, Spark may use for something else.
        """
        if self.here and kill_holder(self.pid, *self._ends):
            _log.info("process %d of worker %s/%d was still there and is killed", self.pid, self.group, self.index)

    def _send_all(self) -> None:
        while not self._closed:
            self._flag.wait()
            self._flag.clear()
            try:
                while self._outbox and not self._closed:
                    self._connection.send(self._outbox.popleft())
            except UnavailableError:
                return


class WorkerListener:
    """Listens for workers. The callbacks are called by the workers' own receiving threads."""

    def __init__(
        self,
        secret: bytes,
        on_hello: Callable[[WorkerConnection], None],
        on_message: Callable[[WorkerConnection, WorkerMessage], None],
        on_lost: Callable[[WorkerConnection, str], None],
        host: str = "127.0.0.1",
    ) -> None:
        self._secret = secret
        self._on_hello = on_hello
        self._on_message = on_message
        self._on_lost = on_lost
        self._listener = ControlListener(host)
        self._closing = threading.Event()
        self.admission: Admission[ControlConnection] = Admission(WORKER_PORTS)
        self.address = self._listener.address
        threading.Thread(target=self._accept, name="worker listener", daemon=True).start()

    def close(self) -> None:
        """Lets nobody else in."""
        self._closing.set()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            now, due = _CLOCK.monotonic(), self.admission.next_due()
            try:
                caller = self._listener.accept(None if due is None else max(0.0, due - now) + _LEAST_WAIT_S)
            except OSError as error:
                if not self._closing.is_set():
                    _log.warning("a worker could not be let in: %s", error)
                    _CLOCK.wait(self._closing, _LEAST_WAIT_S)  # without descriptors it would fail at once again
                continue
            now = _CLOCK.monotonic()
            if caller is not None:
                connection, address = caller
                self.admission.opened(connection, address, now)
                # A thread each: a caller that doesn't prove itself must not keep the others out.
                threading.Thread(target=self._serve, args=(connection,), name="from worker", daemon=True).start()
            for stranger in self.admission.over(now):
                stranger.close()
            if (text := self.admission.report(now)) is not None:
                _log.warning("connections to the control port were closed: %s", text)

    def _serve(self, connection: ControlConnection) -> None:
        try:
            self._serve_worker(connection)
        finally:
            self.admission.closed(connection)

    def _serve_worker(self, connection: ControlConnection) -> None:
        try:
            connection.authenticate(self._secret)
            hello = connection.receive()
            if not isinstance(hello, Hello):
                raise InternalError(f"it said {type(hello).__name__} instead of Hello")
            worker = WorkerConnection(hello, connection)
        except PenstockError as error:
            _log.warning("a caller was sent away: %s", error)
            connection.close()
            return
        self.admission.logged_in(connection)
        self._on_hello(worker)
        try:
            while True:
                message = connection.receive()
                self._on_message(worker, message)  # type: ignore[arg-type]  # checked by the controller
        except PenstockError as error:
            self._on_lost(worker, str(error))
        finally:
            worker.close()
