"""A worker's client of the dnode's service: rows, logs, states and result writes, by Flight."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import get_args

import pyarrow as pa
import pyarrow.flight as flight

from penstock.common.errors import UnavailableError
from penstock.tasks.dnode_access.remote_log import BytesRequest, EndRequest, LogRequest, SegmentsRequest
from penstock.tasks.dnode_access.small_writes import SmallWrites
from penstock.tasks.protocol.refreshing import AnswerRequest, FireRequest, RefreshRequest
from penstock.tasks.protocol.store_requests import NamesRequest, RowsRequest, SpanRequest, StoreRequest, TableRequest
from penstock.tasks.protocol.wire import call_options, encode, error_of_flight
from penstock.tasks.state.copied_state import CHANGES, CheckpointOf, StateOrder

Request = StoreRequest | LogRequest | StateOrder
REQUESTS: tuple[type, ...] = get_args(Request)
"""All that a worker may ask the dnode's service for; each class says what the answer is."""


class DnodeClient:
    """A worker's connection to the dnode's service; shared by all streams of the worker, thread-safe."""

    def __init__(self, address: str, secret: bytes) -> None:
        self._address = address
        self._secret = secret
        self._client: flight.FlightClient | None = None
        self._lock = threading.Lock()
        self.small_writes = SmallWrites(self.open_writes)

    def ask(self, request: Request) -> pa.Table:
        """Returns what the request's class says; raises the error that the dnode raised, or UnavailableError."""
        try:
            return self._connected().do_get(flight.Ticket(encode(request)), call_options(self._secret)).read_all()
        except flight.FlightError as error:
            raise error_of_flight(error, f"{_doing(request)} failed") from error

    def keep_state(self, checkpoint: CheckpointOf, changes: Iterable[pa.RecordBatch]) -> None:
        """Returns once the dnode has a checkpoint of a task durably; raises as `ask` does."""
        try:
            writer, reader = self.open_writes(encode(checkpoint), CHANGES)
            with writer:
                for batch in changes:
                    writer.write_batch(batch)
                writer.done_writing()
                answer = reader.read()
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise error_of_flight(error, f"the dnode cannot keep the state of {checkpoint.task}") from error
        if answer is None:
            raise UnavailableError(f"the dnode broke off while it was sent the state of {checkpoint.task}")

    def open_writes(
        self, command: bytes, schema: pa.Schema
    ) -> tuple[flight.FlightStreamWriter, flight.FlightMetadataReader]:
        """Opens a connection for what `command` tells of, whose batches have `schema`."""
        descriptor = flight.FlightDescriptor.for_command(command)
        writer, reader = self._connected().do_put(descriptor, schema, call_options(self._secret))
        return writer, reader

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _connected(self) -> flight.FlightClient:
        with self._lock:
            if self._client is None:
                self._client = flight.FlightClient(f"grpc://{self._address}")
            return self._client


def _doing(request: Request) -> str:
    match request:
        case RowsRequest() | SpanRequest():
            return f"reading rows of vnode {request.vgroup_id}"
        case TableRequest():
            return "reading the table that is looked up in"
        case NamesRequest():
            return "asking for names of tables"
        case RefreshRequest() | AnswerRequest():
            return "computing the answer of its query"
        case FireRequest():
            return "computing what its trigger has fired"
        case EndRequest() | SegmentsRequest() | BytesRequest():
            return f"reading the log of vnode {request.vgroup_id}"
        case _:
            return f"asking for the state of {request.task}"
