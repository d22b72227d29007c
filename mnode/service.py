"""The dnode's service for workers: takes results and gives rows, over Arrow Flight on the loopback interface.

It carries calls and errors; what a write or a read means is the callbacks' business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from penstock.common.errors import PenstockError
from penstock.common.logging import logger
from penstock.tasks.environment import RowsRequest, SpanRequest
from penstock.tasks.messages import ResultChild, ResultWrite
from penstock.tasks.result_writer import ACKNOWLEDGED, WritesOf
from penstock.tasks.wire import BoundedFlightServer, decode, encode_error, flight_error

_log = logger(__name__)


class DnodeService(BoundedFlightServer):
    """Serves until `shutdown`. The callbacks are called by many threads at once.

    `write_results` returns once the write is acknowledged by the vnodes; `read` returns the rows asked for.
    What they raise is raised in the caller's process, PenstockErrors in their own class.
    """

    def __init__(
        self,
        secret: bytes,
        write_results: Callable[[ResultWrite], None],
        read: Callable[[RowsRequest | SpanRequest], pa.Table],
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__(secret, host)
        self._write_results = write_results
        self._read = read

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Performs the writes of one sink task, one after the other, and answers each; none behind one that failed."""
        children: list[ResultChild] = []
        failure: bytes | None = None
        try:
            writes_of: WritesOf = decode(descriptor.command, (WritesOf,))
        except PenstockError as error:
            raise flight_error(error) from error
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            if failure is None:
                failure = self._perform(writes_of, children, chunk)
            writer.write(ACKNOWLEDGED if failure is None else failure)

    def do_get(self, context: Any, ticket: Any) -> flight.RecordBatchStream:
        """Returns the rows that a RowsRequest asks for, or what a SpanRequest does."""
        try:
            request: RowsRequest | SpanRequest = decode(ticket.ticket, (RowsRequest, SpanRequest))
            return flight.RecordBatchStream(self._read(request))
        except PenstockError as error:
            raise flight_error(error) from error
        except Exception as error:
            _log.exception("a read of rows failed")
            raise flight_error(error) from error

    def _perform(self, writes_of: WritesOf, children: list[ResultChild], chunk: Any) -> bytes | None:
        """Performs one write; returns what it failed with."""
        try:
            fresh = chunk.app_metadata
            if fresh is not None and fresh.size:
                children += decode(fresh.to_pybytes(), (tuple,))
            self._write_results(writes_of.write(children, chunk.data))
        except PenstockError as error:
            return encode_error(error)
        except Exception as error:  # noqa: BLE001
            _log.exception("a write of results failed")
            return encode_error(error)
        return None
