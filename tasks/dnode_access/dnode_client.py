"""A worker's client of the dnode's service: rows, logs, states and result writes, by Flight."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

import pyarrow as pa
import pyarrow.flight as flight

from penstock.common.errors import UnavailableError
from penstock.tasks.dnode_access.remote_log import LogRequest
from penstock.tasks.dnode_access.small_writes import SmallWrites
from penstock.tasks.protocol.refreshing import AnswerRequest, FireRequest, Refreshed, RefreshRequest
from penstock.tasks.protocol.wire import call_options, encode, error_of_flight
from penstock.tasks.state.copied_state import CHANGES, CheckpointOf, StateOrder
from penstock.vnode.read.snapshot import TimeSpan


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """The ticket of a read: rows of one table of a vnode as of a WAL version; `tuids` None: all child tables.

    `times`: of each of `tuids` a time, as many; only rows at these are read.
    """

    vgroup_id: int
    table_uid: int
    tuids: pa.UInt64Array | None
    first_ts: int
    last_ts: int
    as_of: int
    times: pa.Int64Array | None = None


@dataclass(frozen=True, slots=True)
class SpanRequest:
    """The ticket of a question: where in [first_ts, last_ts] a table of a vnode has rows, as of a WAL version."""

    vgroup_id: int
    table_uid: int
    first_ts: int
    last_ts: int
    as_of: int


@dataclass(frozen=True, slots=True)
class TableRequest:
    """The ticket of a look at a whole normal table as it is now: these of its physical columns.

    Of a super table: these tags of its children, by their names, and `tbname`.
    """

    table_uid: int
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NamesRequest:
    """The ticket of a question: which of these names are those of tables that aren't children of a super table.

    The answer is one column of names.
    """

    table_uid: int
    names: tuple[str, ...]


StoreRequest = RowsRequest | SpanRequest | TableRequest | NamesRequest | RefreshRequest | AnswerRequest | FireRequest
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

    def read_rows(self, request: RowsRequest) -> pa.Table:
        """Returns the rows; raises the error that the dnode raised, or UnavailableError."""
        return self._ask(request, f"reading rows of vnode {request.vgroup_id} failed")

    def time_span(self, request: SpanRequest) -> TimeSpan | None:
        """Returns where there are rows; raises as `read_rows` does."""
        answer = self._ask(request, f"asking vnode {request.vgroup_id} for its time span failed")
        return TimeSpan(**answer.to_pylist()[0]) if answer.num_rows else None

    def read_table(self, request: TableRequest) -> pa.Table:
        """Returns the rows; raises as `read_rows` does."""
        return self._ask(request, "reading the table that is looked up in failed")

    def foreign_names(self, request: NamesRequest) -> list[str]:
        """Returns the names; raises as `read_rows` does."""
        names: list[str] = self._ask(request, "asking for names of tables failed").column(0).to_pylist()
        return names

    def refresh(self, request: RefreshRequest) -> Refreshed:
        """Returns what was done; raises as `read_rows` does."""
        return Refreshed.of(self._ask(request, "comparing the result table with its query failed"))

    def fire(self, request: FireRequest) -> pa.Table:
        """Returns who is to be told of what; raises as `read_rows` does."""
        return self._ask(request, "computing what its trigger has fired failed")

    def answer(self, request: AnswerRequest) -> pa.Table:
        """Returns the rows; raises as `read_rows` does."""
        return self._ask(request, "computing the answer of its query failed")

    def ask_log(self, request: LogRequest) -> pa.Table:
        """Returns what the request's class says; raises as `read_rows` does."""
        return self._ask(request, f"reading the log of vnode {request.vgroup_id} failed")

    def ask_state(self, order: StateOrder) -> pa.Table:
        """Returns what the order's class says; raises as `read_rows` does."""
        return self._ask(order, f"the state of {order.task} cannot be had from the dnode")

    def keep_state(self, checkpoint: CheckpointOf, changes: Iterable[pa.RecordBatch]) -> None:
        """Returns once the dnode has a checkpoint of a task durably; raises as `read_rows` does."""
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

    def _ask(self, request: Request, doing: str) -> pa.Table:
        try:
            return self._connected().do_get(flight.Ticket(encode(request)), call_options(self._secret)).read_all()
        except flight.FlightError as error:
            raise error_of_flight(error, doing) from error

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
