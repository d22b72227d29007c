"""Logs read over the network from the dnode that owns them; the dnode's side is `penstock.mnode.dnode.log_service`.

Bytes are asked for in pieces as a reader needs them, so a task that reads nothing is sent nothing. The end is heard of
by whoever waits for it, and kept for all readers of the worker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from penstock.common.clock import Clock
from penstock.common.paths import DataPaths
from penstock.wal.log import Access
from penstock.wal.segment import NO_END, LogEnd

_PIECE = 4 << 20
_REST_S = 0.005
"""Between an answer and the next question about a log's end, which takes the dnode from its other work each time."""
_NO_VERSION = -1


@dataclass(frozen=True, slots=True)
class EndRequest:
    """The ticket of a question: where does a vnode's log end? Answered once that isn't at `version`, or it takes long.

    The answer is a `LogEnd` and whether the dnode could wait for it; it has no row while there is no log.
    """

    vgroup_id: int
    version: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SegmentsRequest:
    """The ticket of a question: which segments does a vnode's log have? The answer are their first versions."""

    vgroup_id: int


@dataclass(frozen=True, slots=True)
class BytesRequest:
    """The ticket of a read of a segment. The answer is its size and the bytes; no row if there is no such segment."""

    vgroup_id: int
    segment: int
    offset: int
    length: int


LogRequest = EndRequest | SegmentsRequest | BytesRequest
Ask = Callable[[LogRequest], pa.Table]


class RemoteLogs:
    """The logs of one dnode, for all streams of a worker; thread-safe."""

    def __init__(self, ask: Ask, paths: DataPaths, clock: Clock) -> None:
        """`paths` are the dnode's, by which errors name what is wrong there."""
        self._ask = ask
        self._paths = paths
        self._clock = clock
        self._ends: dict[int, LogEnd] = {}
        self._lock = threading.Lock()

    def log(self, vgroup_id: int) -> RemoteLog:
        return RemoteLog(self, self._ask, self._paths, self._clock, vgroup_id)

    def end(self, vgroup_id: int) -> LogEnd:
        """Returns the newest end that anybody has heard of."""
        return self._ends.get(vgroup_id, NO_END)

    def note(self, vgroup_id: int, end: LogEnd) -> None:
        """Takes note of an end; answers may overtake each other."""
        with self._lock:
            if end.version >= self.end(vgroup_id).version:
                self._ends[vgroup_id] = end


class RemoteLog:
    """A `Log` of another machine. Its end is as of the last answer to anybody who waited; one must, to follow it."""

    access: Access = "network"

    def __init__(self, logs: RemoteLogs, ask: Ask, paths: DataPaths, clock: Clock, vgroup_id: int) -> None:
        self.path = paths.wal(vgroup_id)
        self._logs = logs
        self._ask = ask
        self._clock = clock
        self._vgroup_id = vgroup_id
        self._asked = False
        self._rested_at = clock.monotonic()

    def end(self) -> LogEnd:
        if not self._asked:
            self._ask_end(_NO_VERSION, 0.0)
        return self._logs.end(self._vgroup_id)

    def wait(self, version: int, timeout_s: float) -> bool:
        self._clock.wait(threading.Event(), max(0.0, self._rested_at - self._clock.monotonic()))
        waited = self._ask_end(version, timeout_s)
        self._rested_at = self._clock.monotonic() + _REST_S
        return waited

    def _ask_end(self, version: int, timeout_s: float) -> bool:
        answer = self._ask(EndRequest(self._vgroup_id, version, timeout_s)).to_pylist()
        self._asked = True
        if not answer:
            return False
        waited: bool = answer[0].pop("waited")
        self._logs.note(self._vgroup_id, LogEnd(**answer[0]))
        return waited

    def segments(self) -> list[int]:
        first_versions: list[int] = self._ask(SegmentsRequest(self._vgroup_id)).column("segment").to_pylist()
        return first_versions

    def open(self, first: int) -> RemoteSegment:
        return RemoteSegment(self._ask, self._vgroup_id, first)

    def close(self) -> None:
        self._asked = False


class RemoteSegment:
    """A segment of a log of another machine."""

    def __init__(self, ask: Ask, vgroup_id: int, first: int) -> None:
        self._ask = ask
        self._vgroup_id = vgroup_id
        self._first = first
        self._size: int | None = None

    def size(self) -> int:
        if self._size is None:
            self._size = int(self._read(0, 0).column("size")[0].as_py())
        return self._size

    def view(self, offset: int, length: int, limit: int) -> tuple[int, pa.Buffer]:
        data = self._read(offset, max(length, min(limit - offset, _PIECE))).column("data")
        return offset, data[0].as_buffer()

    def _read(self, offset: int, length: int) -> pa.Table:
        answer = self._ask(BytesRequest(self._vgroup_id, self._first, offset, length))
        if not answer.num_rows:
            raise FileNotFoundError(f"segment {self._first} of the log of vnode {self._vgroup_id} is gone")
        return answer

    def close(self) -> None:
        """There is nothing to give back."""
