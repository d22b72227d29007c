"""Sends the small writes of all sink tasks of a worker over one connection, and hears what became of them."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Collection

import pyarrow as pa
import pyarrow.flight as flight

from penstock.common.errors import InternalError, PenstockError, UnavailableError
from penstock.common.logging import logger
from penstock.tasks.dnode_access.small_write_queue import SmallWriteQueue
from penstock.tasks.dnode_access.write_messages import (
    SMALL_WRITE_MAX,
    SinkEnd,
    SmallWrite,
    WorkerWrites,
    WritesOf,
    fresh_in,
    is_small,
    outcomes,
)
from penstock.tasks.protocol.messages import ResultWrite
from penstock.tasks.protocol.wire import encode, error_of_flight

OpenWrites = Callable[[bytes, pa.Schema], tuple[flight.FlightStreamWriter, flight.FlightMetadataReader]]
Heard = Callable[[PenstockError | None], None]
"""Is told of each write that it is acknowledged (None), or of what it or the connection failed with."""

_log = logger(__name__)
_NO_ROWS = pa.schema([])


class SmallWrites:
    """A worker's way for small writes; thread-safe. There is a connection while sink tasks use it.

    One that has broken serves nobody any more: who comes then gets a new one.
    """

    def __init__(self, open_writes: OpenWrites) -> None:
        self._open_writes = open_writes
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        self._senders: set[int] = set()

    def join(self, heard: Heard) -> SmallWriter:
        """Returns the way of one sink task. `heard` is called by another thread."""
        with self._lock:
            number = None if self._connection is None else self._connection.admit(heard)
            if self._connection is None or number is None:
                self._connection = _Connection(self._open_writes, self._senders)
                number = self._connection.admit(heard)
                assert number is not None
                self._connection.start()
            return SmallWriter(self._connection, number)

    def send(self) -> None:
        """Sends what was submitted. A thread that has called this once calls it whenever it has submitted something:
        what it submits waits for that, and goes in one message. What other threads submit is sent at once."""
        self._senders.add(threading.get_ident())
        if self._connection is not None:
            self._connection.send()


class SmallWriter:
    """The way of one attempt of one sink task, for one thread at a time; `leave` ends it."""

    def __init__(self, connection: _Connection, number: int) -> None:
        self._connection = connection
        self._number = number
        self._known = False
        self._children_sent = 0

    def submit(self, write: ResultWrite) -> bool:
        """Hands a write over and returns at once; returns whether it was a small one, else nothing has happened."""
        if not is_small(write.rows):
            return False
        known = len(write.children)
        packed = SmallWrite(
            self._number,
            None if self._known else (WritesOf.of(write), write.rows.schema),
            fresh_in(write, self._children_sent, known),
            write.rows.serialize().to_pybytes(),
        ).pack()
        if len(packed) > SMALL_WRITE_MAX:
            return False
        self._known = True
        self._children_sent = known
        self._connection.submit(self._number, packed)
        return True

    def leave(self) -> None:
        """Sends no more, and hears no more; what is on its way may still be performed."""
        self._connection.leave(self._number, known=self._known)


class _Connection:
    """One connection, from its first sink task to its last, or until it breaks.

    Who submits sends, if the connection is open: handing over to another thread takes longer. One thread opens the
    connection, hears answers, and sends what had to wait for them.
    """

    def __init__(self, open_writes: OpenWrites, senders: Collection[int]) -> None:
        """`senders`: the threads that call `send`."""
        self._open_writes = open_writes
        self._senders = senders
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._queue = SmallWriteQueue()
        self._sinks: dict[int, Heard] = {}
        self._stream: flight.FlightStreamWriter | None = None
        self._over = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="answers to small writes", daemon=True).start()

    def admit(self, heard: Heard) -> int | None:
        """Returns the number of a new sink task; None if the connection is over."""
        with self._lock:
            if self._over:
                return None
            number = next(self._numbers)
            self._sinks[number] = heard
            return number

    def submit(self, number: int, packed: bytes) -> None:
        with self._lock:
            if not self._over:
                self._queue.add(number, packed)
                if threading.get_ident() not in self._senders:
                    self._release()

    def send(self) -> None:
        """Sends what was submitted."""
        with self._lock:
            if not self._over:
                self._release()

    def leave(self, number: int, *, known: bool) -> None:
        with self._lock:
            if self._sinks.pop(number, None) is None or self._over:
                return
            self._queue.drop(number)
            if not self._sinks:
                self._over = True
                self._end()
            elif known:
                self._queue.add(number, SinkEnd(number).pack())
                self._release()

    # -- with the lock held ----------------------------------------------------------------------------------

    def _release(self) -> None:
        self._queue.release()
        self._send()

    def _send(self) -> None:
        while self._stream is not None and (message := self._queue.next_message()) is not None:
            with contextlib.suppress(flight.FlightError, pa.ArrowException):  # the hearing thread learns why
                self._stream.write_metadata(message)

    def _end(self) -> None:
        """Lets the dnode know that nothing more comes; it ends the answers then."""
        if self._stream is not None:
            with contextlib.suppress(flight.FlightError, pa.ArrowException):  # nobody is left to care
                self._stream.done_writing()

    # -- the hearing thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        doing = "writing small results failed"
        error: PenstockError
        try:
            stream, answers = self._open_writes(encode(WorkerWrites()), _NO_ROWS)
            with self._lock:
                self._stream = stream
                if self._over:
                    self._end()
                else:
                    self._send()
            while (answer := answers.read()) is not None:
                self._hear(answer.to_pybytes())
            with self._lock:
                self._stream = None
            stream.close()  # tells why it ended
            error = UnavailableError(f"{doing}: the dnode ended the stream of writes")
        except (flight.FlightError, pa.ArrowException, OSError) as broken:
            error = error_of_flight(broken, doing)
        except PenstockError as refused:
            error = refused
        except Exception as defect:  # noqa: BLE001
            _log.exception("hearing what became of small writes failed")
            error = InternalError(f"{doing}: {type(defect).__name__}: {defect}")
        self._break(error)

    def _hear(self, answer: bytes) -> None:
        found = outcomes(answer)
        with self._lock:
            try:
                self._queue.note_answer()
            except IndexError as error:
                raise InternalError("the dnode answers what nobody has sent") from error
            if not self._over:
                self._send()
            heard = [(self._sinks.get(outcome.number), outcome.error) for outcome in found]
        for sink, failure in heard:
            if sink is not None:  # else it has left
                sink(failure)

    def _break(self, error: PenstockError) -> None:
        with self._lock:
            self._over = True
            self._stream = None  # it holds its connection as long as it is referred to
            sinks, self._sinks = list(self._sinks.values()), {}
        for sink in sinks:
            sink(error)
