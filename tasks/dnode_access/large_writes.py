"""Sends a sink task's large writes to the dnode over a connection of its own, and hears their acknowledgements."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.flight as flight

from penstock.common.errors import PenstockError, UnavailableError
from penstock.common.sent_errors import decode_error
from penstock.tasks.dnode_access.small_writes import Heard
from penstock.tasks.dnode_access.write_messages import ACKNOWLEDGED, WritesOf, fresh_in
from penstock.tasks.protocol.messages import ResultWrite
from penstock.tasks.protocol.wire import encode, error_of_flight

if TYPE_CHECKING:
    from penstock.tasks.dnode_access.dnode_client import DnodeClient


class LargeWrites:
    """A connection for one attempt of one sink task.

    Sending large writes may have to wait, and so may opening: one thread does that; another one hears answers. After
    a failure nothing is sent any more.
    """

    def __init__(self, client: DnodeClient, name: str, heard: Heard) -> None:
        """`heard` is called by another thread; after it was told of a failure, no more."""
        self._client = client
        self._name = name
        self._heard = heard
        self._changed = threading.Condition()
        self._waiting: deque[ResultWrite] = deque()
        self._failed = False
        self._closing = False
        self._stream: flight.FlightStreamWriter | None = None
        self._children_sent = 0
        threading.Thread(target=self._send_waiting, name=f"write {name}", daemon=True).start()

    def submit(self, write: ResultWrite) -> None:
        """Hands a write over and returns at once."""
        with self._changed:
            self._waiting.append(write)
            self._changed.notify()

    def close(self) -> None:
        """Ends the connection once the writes that were sent are answered; doesn't wait for that."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def _fail(self, error: PenstockError) -> None:
        with self._changed:
            failed, self._failed = self._failed, True
        if not failed:
            self._heard(error)

    # -- the sending thread ----------------------------------------------------------------------------------

    def _send_waiting(self) -> None:
        while (write := self._next_waiting()) is not None:
            try:
                self._send(write)
            except (flight.FlightError, pa.ArrowException) as error:
                self._fail(error_of_flight(error, f"{write.task}: writing results failed"))
            except PenstockError as error:
                self._fail(error)
        if self._stream is not None:
            with contextlib.suppress(flight.FlightError, pa.ArrowException):  # a broken one has been reported
                self._stream.done_writing()
            self._stream = None  # it holds its connection as long as it is referred to

    def _next_waiting(self) -> ResultWrite | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or (self._waiting and not self._failed))
            return None if self._closing else self._waiting.popleft()

    def _send(self, write: ResultWrite) -> None:
        if self._stream is None:
            self._stream, answers = self._client.open_writes(encode(WritesOf.of(write)), write.rows.schema)
            threading.Thread(target=self._receive_answers, args=(self._stream, answers),
                             name=f"answers {self._name}", daemon=True).start()
        known = len(write.children)  # the task may be adding others
        fresh = fresh_in(write, self._children_sent, known)
        self._children_sent = known
        self._stream.write_with_metadata(write.rows, encode(fresh) if fresh else b"")

    # -- the hearing thread ----------------------------------------------------------------------------------

    def _receive_answers(self, stream: flight.FlightStreamWriter, answers: flight.FlightMetadataReader) -> None:
        doing = f"{self._name}: writing results failed"
        try:
            while (answer := answers.read()) is not None:
                if answer.to_pybytes() != ACKNOWLEDGED:
                    raise decode_error(answer.to_pybytes())
                self._heard(None)
            stream.close()  # tells why it ended
        except (flight.FlightError, pa.ArrowException) as error:
            self._fail(error_of_flight(error, doing))
        except PenstockError as error:
            self._fail(error)
        else:
            if not self._closing:
                self._fail(UnavailableError(f"{self._name}: the dnode ended the stream of writes"))
