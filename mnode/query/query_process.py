"""The process that computes the queries of clients: a program of its own, which `ProcessBackend` starts.

It reads files of the data directory, and what requests hold; it has no port, and nothing else of the engine's. Threads
of DuckDB, and Python while it reads a long statement or makes JSON, hold up other queries here, and not the streams:
whoever has something to do in the engine goes first.
"""

from __future__ import annotations

import json
import mmap
import os
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from penstock.common.closed_duckdb import DuckdbBounds, RenewableDuckdb, closed_duckdb
from penstock.common.errors import InternalError, LimitExceededError, PenstockError, UnavailableError
from penstock.common.private import UMASK
from penstock.common.processes import end_first_when_memory_is_short, end_with_parent
from penstock.common.responsiveness import change_threads_often, leave_out_what_stays
from penstock.common.sent_errors import encode_error
from penstock.mnode.query.json_rows import small_parts
from penstock.mnode.query.query_execution import LocalRun, RunnableQuery
from penstock.mnode.query.query_frames import (
    ARROW,
    END,
    ERROR,
    FRAME_MAX,
    JSON,
    REQUEST,
    REQUEST_MAX,
    QueryRequest,
    receive_frame,
    send_frame,
)

_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """What the process may take and read, and its nice value."""

    bounds: DuckdbBounds
    readable: tuple[Path, ...]
    nice: int

    def encode(self) -> str:
        """Returns the text that `decode` takes."""
        bounds = self.bounds
        return json.dumps([bounds.memory_bytes, bounds.threads, None if bounds.spill is None else str(bounds.spill),
                           bounds.spill_bytes, [str(path) for path in self.readable], self.nice])

    @classmethod
    def decode(cls, text: str) -> ProcessSettings:
        """Returns what was encoded."""
        memory_bytes, threads, spill, spill_bytes, readable, nice = json.loads(text)
        bounds = DuckdbBounds(memory_bytes, threads, None if spill is None else Path(spill), spill_bytes)
        return cls(bounds, tuple(map(Path, readable)), nice)


class WithoutPandas(MetaPathFinder):
    """Has `import pandas` fail: Arrow tries it with its first array, for which a query would wait a third of a second.

    Nothing here takes or gives objects of pandas.
    """

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("the query process does without pandas", name=fullname)


class HangUpWatch:
    """Interrupts what runs for those who have hung up, until it ends: DuckDB forgets it if it comes too early."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._ending: dict[int, Callable[[], None]] = {}

    @contextmanager
    def over(self, connection: socket.socket, interrupt: Callable[[], None]) -> Iterator[None]:
        """Watches a connection over which nothing else comes, in a `with` block around what is interrupted."""
        number = connection.fileno()
        self._selector.register(number, selectors.EVENT_READ, interrupt)
        try:
            yield
        finally:
            with self._lock:
                if self._ending.pop(number, None) is None:
                    self._selector.unregister(number)

    def watch(self) -> None:
        """Goes on for ever."""
        while True:
            found = self._selector.select(_AGAIN_S if self._ending else None)
            with self._lock:
                for key, _ in found:
                    if key.fd in self._selector.get_map():
                        self._selector.unregister(key.fd)
                        self._ending[key.fd] = key.data
                ending = list(self._ending.values())
            for interrupt in ending:
                interrupt()


class QueryServer:
    """Answers requests, each in a thread of its own."""

    def __init__(self, shared: RenewableDuckdb, watch: HangUpWatch) -> None:
        self._shared = shared
        self._watch = watch

    def serve(self, control: socket.socket) -> None:
        """Takes in connections that come over `control`, with shared memory or without it, until that is closed."""
        while True:
            _, numbers, _, _ = socket.recv_fds(control, 1, 2)
            if not numbers:
                return
            threading.Thread(target=self.answer, args=(socket.socket(fileno=numbers[0]), numbers[1:]),
                             name="query", daemon=True).start()

    def answer(self, connection: socket.socket, memory: Sequence[int]) -> None:
        """Answers the request that comes over a connection; `memory`: its shared memory, if any. Closes both."""
        with connection, ExitStack() as stack:
            for number in memory:
                stack.callback(os.close, number)
            with suppress(OSError):  # the engine has hung up: nobody asks any more
                try:
                    self._run(connection, memory)
                except PenstockError as error:
                    send_frame(connection, ERROR, encode_error(error))
                except MemoryError:
                    send_frame(connection, ERROR, encode_error(UnavailableError(
                        "the query needs more memory than there is", hint="narrow the time range")))

    def _run(self, connection: socket.socket, memory: Sequence[int]) -> None:
        frame = receive_frame(connection, REQUEST_MAX)
        if frame is None:
            return
        if frame.kind != REQUEST:
            raise InternalError("a query begins with its request")
        request = QueryRequest.decode(frame.data)
        tables = dict(_tables(request.tables, memory))
        run = LocalRun(self._shared.cursor(), RunnableQuery(request.sql, tables, request.schema),
                       on_error=self._shared.renew_if_broken)
        try:
            with self._watch.over(connection, run.interrupt):
                if request.style is not None:
                    for piece in run.json(request.rows_max, request.style):
                        _send_rows(connection, JSON, piece.text, piece.rows, piece.nbytes)
                else:
                    for batch in run.batches(request.rows_max):
                        for part in small_parts(batch):
                            _send_rows(connection, ARROW, part.serialize(), part.num_rows, part.nbytes)
                send_frame(connection, END)
        finally:
            run.close()


def _send_rows(connection: socket.socket, kind: int, data: Any, rows: int, nbytes: int) -> None:
    if len(data) > FRAME_MAX:
        raise LimitExceededError("a row of the result has more than 1 GiB", hint="take fewer columns or shorter texts")
    send_frame(connection, kind, data, rows, nbytes)


def _tables(places: dict[str, tuple[int, int]], memory: Sequence[int]) -> Iterator[tuple[str, pa.Table]]:
    """Yields tables as they are in the shared memory, of which nothing is copied."""
    if not places:
        return
    if not memory:
        raise InternalError("the tables of a query are missing")
    whole = pa.py_buffer(mmap.mmap(memory[0], 0, prot=mmap.PROT_READ))
    for name, (first, length) in places.items():
        if first < 0 or length < 1 or first + length > whole.size:
            raise InternalError("a table of a query is outside of its memory")
        try:
            yield name, pa.ipc.open_stream(whole.slice(first, length)).read_all()
        except pa.ArrowException as error:
            raise InternalError(f"a table of a query can't be read: {error}") from error


def main(arguments: Sequence[str]) -> None:
    """Serves over the socket with the descriptor that is the first argument; the second one is the settings."""
    end_with_parent()
    end_first_when_memory_is_short()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, where it means what the engine does
    os.umask(UMASK)
    control = socket.socket(fileno=int(arguments[0]))
    settings = ProcessSettings.decode(arguments[1])
    os.nice(settings.nice)
    sys.meta_path.insert(0, WithoutPandas())
    leave_out_what_stays()
    change_threads_often()
    watch = HangUpWatch()
    threading.Thread(target=watch.watch, name="hang-ups", daemon=True).start()
    shared = RenewableDuckdb(partial(closed_duckdb, settings.bounds, settings.readable))
    QueryServer(shared, watch).serve(control)
    os._exit(0)  # whatever still computes has nobody to compute for


if __name__ == "__main__":
    main(sys.argv[1:])
