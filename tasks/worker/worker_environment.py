"""A worker's `TaskEnvironment`: rows and results by Flight to the dnode, logs and state by files or by Flight, too."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, get_args

import pyarrow as pa
import pyarrow.flight as flight

from penstock.common.clock import Clock
from penstock.common.connection import OpenedConnection
from penstock.common.errors import InternalError, UnavailableError
from penstock.common.fs import Fs
from penstock.common.paths import DataPaths
from penstock.planner.task_plans.stream_plan import LookupPlan
from penstock.tasks.external.connectors.consumers import open_consumer
from penstock.tasks.external.connectors.incoming_messages import Consumer, Positions
from penstock.tasks.external.emit.external_writers import OutsideWriter
from penstock.tasks.external.notify.window_notifier import Notifier, notifier_of
from penstock.tasks.protocol.block_schema import block_type
from penstock.tasks.protocol.deployment import IngestDeployment, StreamDeployment
from penstock.tasks.protocol.messages import ReadBack, TaskCheckpoint, TaskId
from penstock.tasks.protocol.result_writers import ResultWriter
from penstock.tasks.protocol.wire import call_options, encode, error_of_flight
from penstock.tasks.sink.external_writer_builder import outside_writer
from penstock.tasks.state.copied_state import CHANGES, CheckpointOf, CopiedState, StateKeeper, StateOrder
from penstock.tasks.state.state_cache import StateCache
from penstock.tasks.state.state_store import StateStore
from penstock.tasks.worker.flight_result_writer import FlightResultWriter
from penstock.tasks.worker.remote_log import LogRequest, RemoteLogs
from penstock.vnode.read.snapshot import TimeSpan
from penstock.wal.log import Log, LogFiles
from penstock.wal.news import WalNews
from penstock.wal.reader import WalReader

LOCK_NAME = "OWNER"
_LOCK_RETRY_S = 0.02
_LOCK_TIMEOUT_S = 15.0
_HOLDER_BYTES = 200


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """The ticket of a read: rows of one table of a vnode as of a WAL version; `tuids` None: all child tables."""

    vgroup_id: int
    table_uid: int
    tuids: pa.UInt64Array | None
    first_ts: int
    last_ts: int
    as_of: int


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


StoreRequest = RowsRequest | SpanRequest | TableRequest
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


class StateDirectories:
    """The state folders of one stream on one worker, each held by a file lock.

    A worker process that was given up may live on for seconds; the lock keeps it and its successor from writing the
    same LMDB environment.
    """

    def __init__(self, paths: DataPaths, fs: Fs, clock: Clock) -> None:
        self._paths = paths
        self._fs = fs
        self._clock = clock
        self._locks: dict[Path, int] = {}
        self._closing = threading.Event()

    def open(self, task: TaskId) -> Path:
        """Returns the locked folder of a task; raises UnavailableError if another process doesn't give it up."""
        directory = self._paths.state(task.stream_id, str(task))
        if directory in self._locks:
            return directory
        self._fs.make_dirs(directory)
        descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = self._clock.monotonic() + _LOCK_TIMEOUT_S
        while not _try_lock(descriptor):
            if self._closing.is_set() or self._clock.monotonic() >= deadline:
                holder = _read_holder(descriptor)
                os.close(descriptor)
                raise UnavailableError(
                    f"the state of {task} in {directory} is still held by {holder}",
                    hint="an earlier worker of the stream hasn't ended yet; if it stays, end that process",
                )
            self._clock.wait(self._closing, _LOCK_RETRY_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()}".encode(), 0)
        self._locks[directory] = descriptor
        return directory

    def abandon(self) -> None:
        """Ends an `open` that waits; any thread."""
        self._closing.set()

    def discard(self) -> None:
        """Removes all folders, and gives them up."""
        for directory in self._locks:
            shutil.rmtree(directory, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Gives all folders up."""
        self._closing.set()
        while self._locks:
            _, descriptor = self._locks.popitem()
            os.close(descriptor)


def _read_holder(descriptor: int) -> str:
    """Returns what the holder of a lock has written of itself."""
    text = os.pread(descriptor, _HOLDER_BYTES, 0).decode(errors="replace")
    return text if text.startswith("process ") and text.isprintable() else "another process"


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class DataAccess(Protocol):
    """One attempt's way to what is in the data directory."""

    @property
    def spill(self) -> Path: ...

    def log(self, vgroup_id: int) -> Log: ...

    def open_state(self, task: TaskId, map_bytes: int) -> StateStore:
        """Returns the state of a task, which the task closes. UnavailableError if it can't be had yet."""
        ...

    def abandon(self) -> None:
        """Ends an `open_state` that waits; any thread."""
        ...

    def close(self) -> None:
        """Gives all back; the states are closed by then."""
        ...


class FileAccess:
    """The data directory's own files."""

    def __init__(self, paths: DataPaths, fs: Fs, clock: Clock, cache: StateCache) -> None:
        self._paths = paths
        self._fs = fs
        self._cache = cache
        self._directories = StateDirectories(paths, fs, clock)

    @property
    def spill(self) -> Path:
        return self._paths.spill

    def log(self, vgroup_id: int) -> Log:
        return LogFiles(self._paths.wal(vgroup_id), self._fs)

    def open_state(self, task: TaskId, map_bytes: int) -> StateStore:
        return StateStore(self._directories.open(task), map_bytes, self._cache)

    def abandon(self) -> None:
        self._directories.abandon()

    def close(self) -> None:
        self._directories.close()


class NetworkAccess:
    """What the dnode sends, and folders of this machine's for as long as the attempt lasts.

    What a worker that was killed has left there the next one on this machine takes over, and with it away.
    """

    def __init__(
        self, logs: RemoteLogs, keeper: StateKeeper, scratch: DataPaths, fs: Fs, clock: Clock, cache: StateCache
    ) -> None:
        self._logs = logs
        self._keeper = keeper
        self._cache = cache
        self._scratch = scratch
        self._directories = StateDirectories(scratch, fs, clock)

    @property
    def spill(self) -> Path:
        return self._scratch.spill

    def log(self, vgroup_id: int) -> Log:
        return self._logs.log(vgroup_id)

    def open_state(self, task: TaskId, map_bytes: int) -> StateStore:
        return CopiedState(self._directories.open(task), map_bytes, self._cache, self._keeper, task)

    def abandon(self) -> None:
        self._directories.abandon()

    def close(self) -> None:
        self._directories.discard()


def _call_nobody() -> None:
    """Stands for waking a runner that has ended."""


def _tell_nobody(what: TaskCheckpoint | ReadBack) -> None:
    """Stands for what tasks tell once they are closed."""


def read_lookup(
    plan: LookupPlan, connection: OpenedConnection | None, read_table: Callable[[TableRequest], pa.Table]
) -> pa.Table:
    """Returns what `TaskEnvironment.read_lookup` does; `read_table` answers for normal tables."""
    names = [column.name for column in plan.columns]
    if plan.connection is None:
        rows = read_table(TableRequest(plan.table_uid, tuple(column.physical for column in plan.columns)))
        arrays = [rows.column(column.physical).cast(block_type(column.type)) for column in plan.columns]
        return pa.table(arrays, names=names)
    if connection is None:
        raise InternalError(f"there is no connection to look up in {plan.table} by")
    from penstock.tasks.external.connectors.postgres_tables import read  # needed by who looks up outside only

    found = read(connection, plan.table, [(column.physical, column.type) for column in plan.columns])
    return found.rename_columns(names)


class WorkerEnvironment:
    """The `TaskEnvironment` of one attempt of a stream on one worker."""

    def __init__(
        self,
        clock: Clock,
        data: DataAccess,
        dnode: DnodeClient,
        tell: Callable[[TaskCheckpoint | ReadBack], None],
        wake: Callable[[], None],
    ) -> None:
        """`tell` sends over the control connection; `wake` wakes the runner and what waits for queues."""
        self.clock = clock
        self._data = data
        self._dnode = dnode
        self._tell = tell
        self._wake = wake
        self._writers: list[FlightResultWriter] = []

    @property
    def spill(self) -> Path:
        return self._data.spill

    def open_wal(self, vgroup_id: int, after_version: int) -> WalReader:
        return WalReader(self._data.log(vgroup_id), after_version + 1)

    def open_news(self, vgroup_id: int) -> WalNews:
        """Opens a vnode's log for who wakes the streams that follow it."""
        return WalNews(self._data.log(vgroup_id))

    def read_rows(
        self,
        vgroup_id: int,
        table_uid: int,
        tuids: pa.UInt64Array | None,
        first_ts: int,
        last_ts: int,
        as_of: int,
    ) -> pa.Table:
        return self._dnode.read_rows(RowsRequest(vgroup_id, table_uid, tuids, first_ts, last_ts, as_of))

    def time_span(
        self, vgroup_id: int, table_uid: int, first_ts: int, last_ts: int, as_of: int
    ) -> TimeSpan | None:
        return self._dnode.time_span(SpanRequest(vgroup_id, table_uid, first_ts, last_ts, as_of))

    def read_lookup(self, plan: LookupPlan, connection: OpenedConnection | None) -> pa.Table:
        return read_lookup(plan, connection, self._dnode.read_table)

    def in_background(self, work: Callable[[], None], name: str) -> None:
        threading.Thread(target=work, name=name, daemon=True).start()

    def result_writer(self, task: TaskId) -> ResultWriter:
        writer = FlightResultWriter(self._dnode, str(task), self.wake)
        self._writers.append(writer)
        return writer

    def open_consumer(self, deployment: IngestDeployment, index: int, positions: Positions) -> Consumer:
        return open_consumer(deployment, index, positions, self.clock, self.wake)

    def outside_writer(self, task: TaskId, deployment: StreamDeployment, store: StateStore) -> OutsideWriter:
        def dead_writer() -> ResultWriter:
            writer = FlightResultWriter(self._dnode, f"{task} dead results", _call_nobody)
            self._writers.append(writer)
            return writer

        writer, courier = outside_writer(task, deployment, store, self.clock, self.wake, dead_writer)
        courier.start(f"deliver {task}")
        return writer

    def notifier(self, task: TaskId, deployment: StreamDeployment) -> Notifier:
        notifier = notifier_of(deployment, self.clock, self.wake)
        notifier.start(f"notify {task}")
        return notifier

    def open_state(self, task: TaskId, map_bytes: int) -> StateStore:
        return self._data.open_state(task, map_bytes)

    def acknowledge(self, checkpoint: TaskCheckpoint) -> None:
        self._tell(checkpoint)

    def read_back(self, order: ReadBack) -> None:
        self._tell(order)

    def wake(self) -> None:
        self._wake()

    def abandon(self) -> None:
        """Ends what may make a task wait while it is being built; any thread."""
        self._data.abandon()

    def close(self) -> None:
        """Releases writers, the states' folders and whoever gave the callbacks; call it after the tasks are closed."""
        while self._writers:
            self._writers.pop().close()
        self._data.close()
        # Tasks refer to themselves in circles, and so keep this environment until the collector comes.
        self._wake, self._tell = _call_nobody, _tell_nobody
