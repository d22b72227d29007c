"""The dnode's service for workers, over Arrow Flight: takes results and states, gives rows, logs and states.

It carries calls and errors; what a write or a read means is the callbacks' business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from penstock.common.errors import InternalError, PenstockError
from penstock.common.logging import logger
from penstock.common.sent_errors import encode_error
from penstock.mnode.dnode.small_write_performer import SmallWritePerformer, add_fresh
from penstock.tasks.dnode_access.dnode_client import REQUESTS, Request
from penstock.tasks.dnode_access.write_messages import ACKNOWLEDGED, WorkerWrites, WritesOf, fresh_of
from penstock.tasks.protocol.messages import ResultWrite
from penstock.tasks.protocol.numbered_children import NumberedChildren
from penstock.tasks.protocol.wire import BoundedFlightServer, decode, flight_error
from penstock.tasks.state.copied_state import CheckpointOf

_log = logger(__name__)


class DnodeService(BoundedFlightServer):
    """Serves until `shutdown`. The callbacks are called by many threads at once.

    `begin_write` begins a write; what it returns is to be called then, and returns once the vnodes have acknowledged
    the write. Between the two, the same thread may begin writes of other sink tasks. `answer` returns what is asked
    for; `keep_state` takes the changes of a task's state, and returns once the checkpoint is durable.
    What they raise is raised in the caller's process, PenstockErrors in their own class.
    """

    def __init__(
        self,
        secret: bytes,
        begin_write: Callable[[ResultWrite], Callable[[], None]],
        answer: Callable[[Request], pa.Table],
        keep_state: Callable[[CheckpointOf, Iterable[pa.RecordBatch]], None],
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__(secret, host)
        self._begin_write = begin_write
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
        """Performs small writes one message after the other, and answers each; ends with one that isn't one."""
        performer = SmallWritePerformer(self._begin)
        for chunk in _chunks(reader):
            if chunk.data is not None or chunk.app_metadata is None:
                raise InternalError("rows where messages with small writes belong")
            writer.write(performer.perform(chunk.app_metadata.to_pybytes()))

    def _perform_all(self, writes_of: WritesOf, reader: Any, writer: Any) -> None:
        """Performs writes one after the other, and answers each; none behind one that failed."""
        children = NumberedChildren()
        failure: bytes | None = None
        for chunk in _chunks(reader):
            if failure is None:
                metadata = chunk.app_metadata
                fresh = fresh_of(metadata.to_pybytes()) if metadata is not None and metadata.size else ()
                delivered = add_fresh(children, fresh)
                failure = self._begin(writes_of.write(children, chunk.data, delivered))()
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

    def _begin(self, write: ResultWrite) -> Callable[[], bytes | None]:
        """Begins one write; what it returns waits for the end, and returns what the write failed with."""
        try:
            wait = self._begin_write(write)
        except Exception as error:  # noqa: BLE001
            failure = _failure(error)
            return lambda: failure
        return partial(_ended, wait)


def _ended(wait: Callable[[], None]) -> bytes | None:
    """Returns what a write failed with, once it has ended."""
    try:
        wait()
    except Exception as error:  # noqa: BLE001
        return _failure(error)
    return None


def _failure(error: Exception) -> bytes:
    if not isinstance(error, PenstockError):
        _log.error("a write of results failed", exc_info=error)
    return encode_error(error)


def _chunks(reader: Any) -> Iterator[Any]:
    while True:
        try:
            yield reader.read_chunk()
        except StopIteration:
            return
