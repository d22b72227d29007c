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
from penstock.tasks.environment import ACK_OK, RowsRequest, WriteHeader
from penstock.tasks.messages import ResultWrite
from penstock.tasks.wire import BoundedFlightServer, decode, encode_error, flight_error

_log = logger(__name__)


class DnodeService(BoundedFlightServer):
    """Serves until `shutdown`. The callbacks are called by many threads at once.

    `write_results` returns once the write is acknowledged by the vnodes; `read_rows` returns the rows asked for.
    What they raise is raised in the caller's process, PenstockErrors in their own class.
    """

    def __init__(
        self,
        secret: bytes,
        write_results: Callable[[ResultWrite], None],
        read_rows: Callable[[RowsRequest], pa.Table],
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__(secret, host)
        self._write_results = write_results
        self._read_rows = read_rows

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Performs the writes of one sink task, one after the other, and answers each."""
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            writer.write(self._perform(chunk))

    def do_get(self, context: Any, ticket: Any) -> flight.RecordBatchStream:
        """Returns the rows that a RowsRequest asks for."""
        try:
            request: RowsRequest = decode(ticket.ticket, (RowsRequest,))
            return flight.RecordBatchStream(self._read_rows(request))
        except PenstockError as error:
            raise flight_error(error) from error
        except Exception as error:
            _log.exception("a read of rows failed")
            raise flight_error(error) from error

    def _perform(self, chunk: Any) -> bytes:
        try:
            header: WriteHeader = decode(chunk.app_metadata.to_pybytes(), (WriteHeader,))
            self._write_results(header.with_rows(chunk.data))
        except PenstockError as error:
            return encode_error(error)
        except Exception as error:  # noqa: BLE001
            _log.exception("a write of results failed")
            return encode_error(error)
        return ACK_OK
