"""Runs the queries of clients in a process of their own, which is started with the first one and when it has ended."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from penstock.common.errors import InternalError, PenstockError, UnavailableError
from penstock.common.logging import logger
from penstock.common.sent_errors import decode_error
from penstock.mnode.query.json_rows import UTC_ROWS, JsonRows, RowStyle
from penstock.mnode.query.query_execution import QueryRun, RunnableQuery
from penstock.mnode.query.query_frames import (
    ARROW,
    END,
    ERROR,
    JSON,
    REQUEST,
    QueryFrame,
    QueryRequest,
    receive_frame,
    send_frame,
)
from penstock.mnode.query.query_process import ProcessSettings

_log = logger(__name__)
_PROGRAM = "penstock.mnode.query.query_process"
_ROWS = 65_536
_END_S = 10.0
#: What the process knows of the engine's environment: passwords of connections may be there, too.
_ENVIRONMENT = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ")


class ProcessBackend:
    """Starts the process when it is needed, and knows how to reach it; safe for many threads."""

    def __init__(self, settings: ProcessSettings) -> None:
        """`settings`: below its directory for what doesn't fit into memory the process has one of its own."""
        spill = settings.bounds.spill
        self._spill = None if spill is None else spill / "queries"
        self._settings = replace(settings, bounds=replace(settings.bounds, spill=self._spill))
        self._lock = threading.Lock()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process, None while there is none."""
        process = self._process
        return None if process is None else process.pid

    def open(self, query: RunnableQuery) -> QueryRun:
        return ProcessRun(self.connect, query)

    def connect(self, memory: int | None) -> socket.socket:
        """Returns a connection to the process, which has got this shared memory with it. Raises UnavailableError."""
        ours, theirs = socket.socketpair()
        numbers = [theirs.fileno()] if memory is None else [theirs.fileno(), memory]
        with theirs:
            # One that has ended while nobody asked it for anything is replaced.
            for _ in range(2):
                try:
                    with self._lock:
                        socket.send_fds(self._started(), [b"\0"], numbers)
                        return ours
                except OSError:
                    self._forget()
                except BaseException:
                    ours.close()
                    raise
        ours.close()
        raise UnavailableError("the query process ends as soon as it starts",
                               hint="try again; the log says why")

    def close(self) -> None:
        """Ends the process, and what it computes."""
        with self._lock:
            self._closed = True
            process = self._process
        self._forget()
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
                return
            process.kill()

    def _forget(self) -> None:
        with self._lock:
            control, self._control = self._control, None
        if control is not None:
            control.close()

    def _started(self) -> socket.socket:
        """Returns the connection over which connections are sent; with the lock held."""
        if self._closed:
            raise UnavailableError("the engine is closing")
        if self._control is None:
            started: Future[socket.socket] = Future()
            # It ends with the thread that has started it, so that one waits for its end.
            threading.Thread(target=self._keep, args=(started,), name="query process", daemon=True).start()
            self._control = started.result()
        return self._control

    def _keep(self, started: Future[socket.socket]) -> None:
        """Starts the process, and waits for its end."""
        ours, theirs = socket.socketpair()
        if self._spill is not None:
            shutil.rmtree(self._spill, ignore_errors=True)  # of one that was killed
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        try:
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", _PROGRAM, str(theirs.fileno()), self._settings.encode()],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=environment)
        except OSError as error:
            ours.close()
            started.set_exception(UnavailableError(f"the query process can't be started: {error}"))
            return
        self._process = process
        started.set_result(ours)
        code = process.wait()
        with self._lock:
            closed = self._closed
            if self._control is ours:
                self._control = None
            if self._process is process:
                self._process = None
        ours.close()
        if not closed:
            _log.warning("the query process has ended (%d); the next query starts another one", code)


class ProcessRun:
    """A query in the process: a connection to it, which is made when rows are asked for."""

    def __init__(self, connect: Callable[[int | None], socket.socket], query: RunnableQuery) -> None:
        """`connect` returns the connection, after it has given the process shared memory, if there is any."""
        self._connect = connect
        self._query = query
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._ended = False
        self._memory: int | None = None
        self._places: dict[str, tuple[int, int]] = {}
        if query.tables:
            self._memory, self._places = _shared(query.tables)

    def table(self) -> pa.Table:
        return pa.Table.from_batches(list(self.batches(_ROWS)), self._query.schema)

    def batches(self, rows_max: int) -> Iterator[pa.RecordBatch]:
        for frame in self._frames(ARROW, rows_max):
            try:
                batch = pa.ipc.read_record_batch(pa.py_buffer(frame.data), self._query.schema)
                batch.validate()
            except (pa.ArrowException, OSError) as error:
                raise InternalError(f"rows of a query can't be read: {error}") from error
            yield batch

    def json(self, rows_max: int, style: RowStyle = UTC_ROWS) -> Iterator[JsonRows]:
        for frame in self._frames(JSON, rows_max, style):
            yield JsonRows(frame.rows, frame.nbytes, frame.data)

    def interrupt(self) -> None:
        with self._lock:
            if self._connection is not None:
                hang_up(self._connection)

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            memory, self._memory = self._memory, None
        if memory is not None:
            os.close(memory)
        if connection is not None:
            with connection:
                if not self._ended:
                    _wait_for_end(connection)

    def _frames(self, kind: int, rows_max: int, style: RowStyle | None = None) -> Iterator[QueryFrame]:
        connection = self._connect(self._memory)
        with self._lock:
            self._connection = connection
        request = QueryRequest(self._query.sql, self._places, self._query.schema, style, rows_max)
        try:
            send_frame(connection, REQUEST, request.encode())
            while (frame := receive_frame(connection)) is not None:
                if frame.kind == kind:
                    yield frame
                elif frame.kind == END:
                    self._ended = True
                    return
                elif frame.kind == ERROR:
                    self._ended = True
                    raise decode_error(frame.data)
                else:
                    raise InternalError(f"a frame of kind {frame.kind} where rows belong")
        except OSError as error:
            raise gone() from error
        raise gone()


def gone() -> PenstockError:
    """Returns the error that tells of the end of the process."""
    return UnavailableError("the query process has ended",
                            hint="try again: the next query starts another one")


def hang_up(connection: socket.socket) -> None:
    """Says that nobody waits for rows any more."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)


def _wait_for_end(connection: socket.socket) -> None:
    """Ends what runs, and waits until it has ended, so that no more run than may; not for long if it is stuck."""
    hang_up(connection)
    with suppress(OSError):
        connection.settimeout(_END_S)
        while connection.recv(1 << 20):
            pass


def _shared(tables: Mapping[str, pa.Table]) -> tuple[int, dict[str, tuple[int, int]]]:
    """Returns memory with these tables for another process, and where each is in it: first byte, length."""
    number = _new_memory()
    try:
        places: dict[str, tuple[int, int]] = {}
        with pa.OSFile(f"/dev/fd/{number}", "wb") as file:
            for name, table in tables.items():
                first = file.tell()
                with pa.ipc.new_stream(file, table.schema) as stream:
                    stream.write_table(table)
                places[name] = first, file.tell() - first
    except BaseException:
        os.close(number)
        raise
    return number, places


def _new_memory() -> int:
    """Returns the descriptor of memory that goes with it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("penstock-query")
    number, path = tempfile.mkstemp(prefix="penstock-query-")
    Path(path).unlink()
    return number
