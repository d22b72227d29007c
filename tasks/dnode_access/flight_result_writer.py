"""Sends a sink task's writes to the dnode over Flight, several at once, and hears their acknowledgements."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.common.errors import InternalError, PenstockError
from penstock.tasks.dnode_access.large_writes import LargeWrites
from penstock.tasks.dnode_access.small_writes import SmallWriter
from penstock.tasks.dnode_access.write_messages import WritesOf
from penstock.tasks.protocol.messages import ResultWrite

if TYPE_CHECKING:
    from penstock.tasks.dnode_access.dnode_client import DnodeClient


class FlightResultWriter:
    """A `ResultWriter` that serves one attempt of one sink task.

    Small writes go with those of the worker's other sink tasks, large ones over a connection of its own, which is
    opened for the first. So that all are performed in their order, a write changes from one way to the other only
    when all before it are answered. After a failure nothing is sent any more.
    """

    def __init__(self, client: DnodeClient, name: str, wake: Callable[[], None]) -> None:
        """`wake` is called by another thread as `wake_at` says."""
        self._client = client
        self._name = name
        self._wake = wake
        self._lock = threading.Lock()
        self._kind: tuple[WritesOf, pa.Schema] | None = None
        self._small: SmallWriter | None = None
        self._large: LargeWrites | None = None
        self._small_under_way = 0
        self._large_under_way = 0
        self._waiting: deque[ResultWrite] = deque()  # large ones, and what is behind: until no small one is under way
        self._acknowledged = 0
        self._wake_at: float | None = None
        self._failure: PenstockError | None = None
        self._closing = False

    def submit(self, write: ResultWrite) -> None:
        with self._lock:
            if self._failure is not None or self._closing:
                return
            kind = WritesOf.of(write), write.rows.schema
            if self._kind is None:
                self._kind = kind
            elif self._kind != kind:
                raise InternalError(f"{write.task} sends another kind of write over the same connection")
            if self._waiting:
                self._waiting.append(write)
            elif self._large_under_way or not self._submit_small(write):
                if self._small_under_way:
                    self._waiting.append(write)
                else:
                    self._submit_large(write)

    def acknowledged(self) -> int:
        if self._failure is not None:
            raise self._failure
        return self._acknowledged

    def wake_at(self, count: float) -> bool:
        with self._lock:
            self._wake_at = count
            return self._acknowledged >= count

    def close(self) -> None:
        """Ends the connection once the writes that were sent are answered; doesn't wait for that."""
        with self._lock:
            self._closing = True
            self._waiting.clear()
            if self._small is not None:
                self._small.leave()
            if self._large is not None:
                self._large.close()

    def _submit_small(self, write: ResultWrite) -> bool:
        if self._small is None:
            self._small = self._client.small_writes.join(self._small_heard)
        if not self._small.submit(write):
            return False
        self._small_under_way += 1
        return True

    def _submit_large(self, write: ResultWrite) -> None:
        if self._large is None:
            self._large = LargeWrites(self._client, self._name, self._large_heard)
        self._large_under_way += 1
        self._large.submit(write)

    # -- hearing threads -------------------------------------------------------------------------------------

    def _small_heard(self, error: PenstockError | None) -> None:
        with self._lock:
            self._small_under_way -= 1
            wakes = self._note(error)
            if not self._small_under_way and not self._closing:
                while self._waiting:
                    self._submit_large(self._waiting.popleft())
        if wakes:
            self._wake()

    def _large_heard(self, error: PenstockError | None) -> None:
        with self._lock:
            self._large_under_way -= 1
            wakes = self._note(error)
        if wakes:
            self._wake()

    def _note(self, error: PenstockError | None) -> bool:
        """Takes note of an answer; returns whether the task is to be woken."""
        if error is None:
            self._acknowledged += 1
            return self._wake_at is None or self._acknowledged == self._wake_at
        if self._failure is None:
            self._failure = error
            self._waiting.clear()
        return True
