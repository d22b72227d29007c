"""The dnode's service for workers, over Arrow Flight: takes results and states, gives rows, logs and states.

It carries calls and errors; what a write or a read means is the callbacks' business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from penstock.common.errors import InternalError, PenstockError
from penstock.common.logging import logger
from penstock.mnode.dnode.small_write_performer import SmallWritePerformer, add_fresh
from penstock.tasks.protocol.messages import ResultChild, ResultWrite
from penstock.tasks.protocol.wire import BoundedFlightServer, decode, encode_error, flight_error
from penstock.tasks.state.copied_state import CheckpointOf
from penstock.tasks.worker.dnode_client import REQUESTS, Request
from penstock.tasks.worker.write_messages import ACKNOWLEDGED, WorkerWrites, WritesOf, fresh_of

_log = logger(__name__)


class DnodeService(BoundedFlightServer):
    """Serves until `shutdown`. The callbacks are called by many threads at once.

    `write_results` returns once the write is acknowledged by the vnodes; `answer` returns what is asked for;
    `keep_state` takes the changes of a task's state, and returns once the checkpoint is durable.
    What they raise is raised in the caller's process, PenstockErrors in their own class.
    """

    def __init__(
        self,
        secret: bytes,
        write_results: Callable[[ResultWrite], None],
        answer: Callable[[Request], pa.Table],
        keep_state: Callable[[CheckpointOf, Iterable[pa.RecordBatch]], None],
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__(secret, host)
        self._write_results = write_results
        self._answer = answer
        self._keep_state = keep_state

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Takes writes of one sink task, small writes of a worker's, or one checkpoint of a task's state."""
        self.let_in(context)
        try:
            what: WritesOf | WorkerWrites | CheckpointOf = decode(
                descriptor.command, (WritesOf, WorkerWrites, CheckpointOf))
            if isinstance(what, CheckpointOf):
                self._keep_state(what, (chunk.data for chunk in _chunks(reader)))
                writer.write(ACKNOWLEDGED)
            elif isinstance(what, WorkerWrites):
                self._perform_small(reader, writer)
            else:
                self._perform_all(what, reader, writer)
        except PenstockError as error:
            raise flight_error(error) from error

    def _perform_small(self, reader: Any, writer: Any) -> None:
        """Performs small writes one after the other, and answers each message; ends with one that isn't one."""
        performer = SmallWritePerformer(self._perform)
        for chunk in _chunks(reader):
            if chunk.data is not None or chunk.app_metadata is None:
                raise InternalError("rows where messages with small writes belong")
            writer.write(performer.perform(chunk.app_metadata.to_pybytes()))

    def _perform_all(self, writes_of: WritesOf, reader: Any, writer: Any) -> None:
        """Performs writes one after the other, and answers each; none behind one that failed."""
        children: list[ResultChild] = []
        failure: bytes | None = None
        for chunk in _chunks(reader):
            if failure is None:
                metadata = chunk.app_metadata
                fresh = fresh_of(metadata.to_pybytes()) if metadata is not None and metadata.size else ()
                delivered = add_fresh(children, fresh)
                failure = self._perform(writes_of.write(children, chunk.data, delivered))
            writer.write(ACKNOWLEDGED if failure is None else failure)

    def do_get(self, context: Any, ticket: Any) -> flight.RecordBatchStream:
        """Answers a request, as its class says."""
        self.let_in(context)
        try:
            request: Request = decode(ticket.ticket, REQUESTS)
            return flight.RecordBatchStream(self._answer(request))
        except PenstockError as error:
            raise flight_error(error) from error
        except Exception as error:
            _log.exception("a request of a worker failed")
            raise flight_error(error) from error

    def _perform(self, write: ResultWrite) -> bytes | None:
        """Performs one write; returns what it failed with."""
        try:
            self._write_results(write)
        except PenstockError as error:
            return encode_error(error)
        except Exception as error:  # noqa: BLE001
            _log.exception("a write of results failed")
            return encode_error(error)
        return None


def _chunks(reader: Any) -> Iterator[Any]:
    while True:
        try:
            yield reader.read_chunk()
        except StopIteration:
            return
