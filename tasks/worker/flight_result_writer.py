"""Sends a sink task's writes to the dnode over Flight, several at once, and hears their acknowledgements."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.flight as flight

from penstock.common.errors import InternalError, PenstockError, UnavailableError
from penstock.tasks.protocol.messages import Delivered, ResultChild, ResultWrite, TaskId
from penstock.tasks.protocol.wire import SENT_AHEAD, decode_error, encode, error_of_flight

if TYPE_CHECKING:
    from penstock.tasks.worker.dnode_client import DnodeClient

ACKNOWLEDGED = b"ok"


@dataclass(frozen=True, slots=True)
class WritesOf:
    """Whose writes a connection carries: all of a ResultWrite that stays the same.

    What follows on the connection are the rows of one write after the other; the metadata of a write's rows holds the
    children that no write before it had and where the rows were `Delivered` from, or nothing. The dnode answers
    each write, in order.
    """

    stream_id: int
    attempt: int
    task: TaskId
    target_uid: int

    @classmethod
    def of(cls, write: ResultWrite) -> WritesOf:
        return cls(write.stream_id, write.attempt, write.task, write.target_uid)

    def write(
        self, children: Sequence[ResultChild], rows: pa.RecordBatch, delivered: Delivered | None = None
    ) -> ResultWrite:
        return ResultWrite(self.stream_id, self.attempt, self.task, self.target_uid, children, rows, delivered)


class FlightResultWriter:
    """A `ResultWriter` with a connection of its own, which serves one attempt of one sink task.

    Small writes are sent by the caller, since handing them to another thread takes longer than sending them. What may
    have to wait, large writes and the opening of the connection, is done by one thread; another one hears answers.
    After a failure nothing is sent any more.
    """

    def __init__(self, client: DnodeClient, name: str, wake: Callable[[], None]) -> None:
        """`wake` is called by another thread after each answer and after a failure."""
        self._client = client
        self._name = name
        self._wake = wake
        self._changed = threading.Condition()
        self._waiting: deque[ResultWrite] = deque()
        self._sending = False  # the sending thread has a write that isn't among those that wait
        self._sent: deque[int] = deque()  # bytes of writes that aren't answered
        self._sent_bytes = 0
        self._acknowledged = 0
        self._failure: PenstockError | None = None
        self._closing = False
        self._writes_of: WritesOf | None = None
        self._schema: pa.Schema | None = None
        self._stream: flight.FlightStreamWriter | None = None
        self._children_sent = 0
        self._thread = threading.Thread(target=self._send_waiting, name=f"write {name}", daemon=True)
        self._thread.start()

    def submit(self, write: ResultWrite) -> None:
        with self._changed:
            if self._failure is not None or self._closing:
                return
            size = write.rows.nbytes
            ahead = self._stream is not None and not self._waiting and not self._sending
            if not ahead or self._sent_bytes + size > SENT_AHEAD:
                self._waiting.append(write)
                self._changed.notify()
                return
            self._note_sent(size)
        try:
            self._send(write)
        except (flight.FlightError, pa.ArrowException) as error:
            self._fail(error_of_flight(error, f"{write.task}: writing results failed"))

    def acknowledged(self) -> int:
        if self._failure is not None:
            raise self._failure
        return self._acknowledged

    def close(self) -> None:
        """Ends the connection once the writes that were sent are answered; doesn't wait for that."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def _note_sent(self, size: int) -> None:
        self._sent.append(size)
        self._sent_bytes += size

    def _fail(self, error: PenstockError) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._waiting.clear()
        self._wake()

    # -- the sending thread ----------------------------------------------------------------------------------

    def _send_waiting(self) -> None:
        while (write := self._next_waiting()) is not None:
            try:
                self._send(write)
            except (flight.FlightError, pa.ArrowException) as error:
                self._fail(error_of_flight(error, f"{write.task}: writing results failed"))
            except PenstockError as error:
                self._fail(error)
            self._sending = False
        if self._stream is not None:
            with contextlib.suppress(flight.FlightError, pa.ArrowException):  # a broken one has been reported
                self._stream.done_writing()
            self._stream = None  # it holds its connection as long as it is referred to

    def _next_waiting(self) -> ResultWrite | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._waiting)
            if self._closing:
                return None
            write = self._waiting.popleft()
            self._sending = True
            self._note_sent(write.rows.nbytes)
            return write

    def _send(self, write: ResultWrite) -> None:
        """Called by one thread at a time: by the caller's only while the sending thread has nothing."""
        stream = self._stream
        if stream is None:
            stream = self._open(write)
        elif self._writes_of != WritesOf.of(write) or self._schema != write.rows.schema:
            raise InternalError(f"{write.task} sends another kind of write over the same connection")
        fresh: tuple[ResultChild | Delivered, ...] = tuple(write.children[self._children_sent:])
        self._children_sent += len(fresh)
        if write.delivered is not None:
            fresh = (*fresh, write.delivered)
        stream.write_with_metadata(write.rows, encode(fresh) if fresh else b"")

    def _open(self, write: ResultWrite) -> flight.FlightStreamWriter:
        self._writes_of, self._schema = WritesOf.of(write), write.rows.schema
        stream, answers = self._client.open_writes(encode(self._writes_of), self._schema)
        threading.Thread(target=self._receive_answers, args=(stream, answers), name=f"answers {self._name}",
                         daemon=True).start()
        self._stream = stream
        return stream

    # -- the hearing thread ----------------------------------------------------------------------------------

    def _receive_answers(self, stream: flight.FlightStreamWriter, answers: flight.FlightMetadataReader) -> None:
        doing = f"{self._name}: writing results failed"
        try:
            while (answer := answers.read()) is not None:
                self._answered(answer.to_pybytes())
            stream.close()  # tells why it ended
        except (flight.FlightError, pa.ArrowException) as error:
            self._fail(error_of_flight(error, doing))
        except PenstockError as error:
            self._fail(error)
        else:
            if not self._closing:
                self._fail(UnavailableError(f"{self._name}: the dnode ended the stream of writes"))

    def _answered(self, answer: bytes) -> None:
        if answer != ACKNOWLEDGED:
            raise decode_error(answer)
        with self._changed:
            self._sent_bytes -= self._sent.popleft()
        self._acknowledged += 1
        self._wake()
