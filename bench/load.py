"""Sends rows on a fixed schedule, from a process of its own: what the engine does never changes when rows are due.

The sender listens on a socket of the file system; the engine's process calls, and may call again after a crash. All
messages are made before the clock starts. Each holds the rows of one tick with the number of the tick and the time at
which it was due (CLOCK_MONOTONIC, one for all processes). A tick that cannot be sent in time, because the receiver
stalls, keeps its due time: so latencies counted from there leave out nothing.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from multiprocessing.process import BaseProcess
from pathlib import Path

import pyarrow as pa

from bench.isolated import SPAWN, end_with_parent
from bench.rows import Shape, arrivals

_HEAD = struct.Struct("<qq")
_LEAD_NS = 200_000_000
_LAST_STRETCH_NS = 300_000

Send = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Schedule:
    """`rows_per_second` as one tick per `tick_ms`. Tick n is due n ticks after the start."""

    rows_per_second: int
    tick_ms: int = 10

    @property
    def rows_per_tick(self) -> int:
        """Raises ValueError if the rows don't divide into ticks."""
        rows, rest = divmod(self.rows_per_second * self.tick_ms, 1000)
        if rest or not rows:
            raise ValueError(f"{self.rows_per_second} rows/s are not a whole number of rows per {self.tick_ms} ms")
        return rows

    def due_ns(self, tick: int, start_ns: int) -> int:
        return start_ns + tick * self.tick_ms * 1_000_000

    def ticks(self, rows: int) -> int:
        return -(-rows // self.rows_per_tick)


def play(
    schedule: Schedule, first: int, ticks: int, start_ns: int, send: Send, now_ns: Callable[[], int],
    wait: Callable[[int], None],
) -> None:
    """Calls `send(tick, due_ns)` for the ticks [first, ticks), none before it is due, and late ones at once.

    `wait` takes ns and may return early.
    """
    for tick in range(first, ticks):
        due = schedule.due_ns(tick, start_ns)
        while (left := due - now_ns()) > 0:
            wait(left)
        send(tick, due)


def start_sender(address: Path, shape: Shape, schedule: Schedule) -> BaseProcess:
    """Starts the sender and returns its process, which ends when all is sent; it listens once `address` exists."""
    process = SPAWN.Process(target=_sender, args=(str(address), shape, schedule), daemon=True)
    process.start()
    return process


@dataclass(frozen=True, slots=True)
class Tick:
    """What arrived: the rows of a tick, when they were due, and when they had been received."""

    number: int
    due_ns: int
    received_ns: int
    rows: pa.RecordBatch


def receive(address: Path, first: int = 0) -> Iterator[Tick]:
    """Yields ticks from `first` on as they come, until the sender has sent all. Raises OSError if it isn't there."""
    with Client(str(address)) as connection:
        connection.send(first)
        while True:
            try:
                message = connection.recv_bytes()
            except EOFError:
                return
            received = time.monotonic_ns()
            if not message:
                return
            number, due = _HEAD.unpack_from(message)
            with pa.ipc.open_stream(pa.py_buffer(message)[_HEAD.size:]) as reader:
                yield Tick(number, due, received, reader.read_next_batch())


def wait_for(address: Path, timeout_s: float = 120.0) -> None:
    """Waits until a sender listens. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not address.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no sender listens at {address}")
        threading.Event().wait(0.05)


def _sender(address: str, shape: Shape, schedule: Schedule) -> None:
    end_with_parent()
    messages = [_message(rows) for rows in arrivals(shape, schedule.rows_per_tick)]
    start_ns: int | None = None
    with Listener(address) as listener:
        while True:
            with listener.accept() as connection, suppress(OSError, EOFError):
                first = connection.recv()
                start_ns = start_ns or time.monotonic_ns() + _LEAD_NS
                _send_all(connection, messages, schedule, first, start_ns)
                return


def _send_all(
    connection: Connection, messages: list[bytes], schedule: Schedule, first: int, start_ns: int
) -> None:
    pause = threading.Event()

    def send(tick: int, due: int) -> None:
        connection.send_bytes(_HEAD.pack(tick, due) + messages[tick])

    def wait(left_ns: int) -> None:
        # A timed wait overshoots by some 50 us or more; the last stretch is spent looking at the clock.
        if left_ns > _LAST_STRETCH_NS:
            pause.wait((left_ns - _LAST_STRETCH_NS) / 1e9)

    play(schedule, first, len(messages), start_ns, send, time.monotonic_ns, wait)
    connection.send_bytes(b"")


def _message(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data
