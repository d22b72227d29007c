"""A hundred streams beside INSERTs of one row, for minutes: whether they keep up, and what memory they take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.figures import NewestRowLatencies, percentiles
from bench.node import Node
from bench.processes import cpu_seconds, memory_of

_CHILDREN = 100
_FIRST_MS = 1_700_000_000_000
_WARM_UP_S, _POLL_S = 10.0, 0.5
_LISTENED_TO = 10  # streams whose results are timed
_DATABASES = ("hundred0", "hundred1")  # one may have 61
_LOOKS = 24  # at the memory, which takes long with many processes


def measure_hundred(
    folder: Path, create_streams: Callable[[Callable[[str], object], int, str], None], streams: int, per_second: int,
    seconds: float, streams_per_worker: int,
) -> dict[str, Any]:
    """Returns how streams fare beside so many INSERTs per second.

    Latency is from when an INSERT was due to a result of its row being visible, of those whose row is the newest of a
    result write.
    """
    with Node(folder / "hundred", {"streamsPerWorker": streams_per_worker}) as node:
        for database in _DATABASES:
            create_streams(node.execute, streams // len(_DATABASES), database)
        node.wait_running()
        begun = time.monotonic()
        latencies = NewestRowLatencies(lambda ts: 1e3 * (begun + (ts - _FIRST_MS) / per_second), _LISTENED_TO)
        node.results.hear = latencies.note
        memory = _Memory(begun + _WARM_UP_S, seconds / _LOOKS)
        pause = threading.Event()
        cpu, counted_since = 0.0, 0.0
        inserts = int((seconds + _WARM_UP_S) * per_second)
        for number in range(inserts):
            pause.wait(max(0.0, begun + number / per_second - time.monotonic()))
            if number == int(_WARM_UP_S * per_second):
                cpu, counted_since = cpu_seconds(), time.monotonic()
                latencies.found.clear()
            table = f"{_DATABASES[number % 2]}.d{number // 2 % _CHILDREN}"
            node.execute(f"INSERT INTO {table} VALUES ({_FIRST_MS + number}, {number * 0.5}, {number})")
            memory.look()
        sent = time.monotonic()
        results = [f"{database}.o{stream}" for database in _DATABASES for stream in range(streams // len(_DATABASES))]
        node.wait_until(lambda: all(node.rows(f"SELECT sum(c) n FROM {result}")[0]["n"] * 2 == inserts
                                    for result in results), 300, _POLL_S)
        done = time.monotonic()
        cpu = cpu_seconds() - cpu
        return {"measure": "hundred", "streams": streams, "streams_per_worker": streams_per_worker,
                "inserts_per_second": per_second, "planned_s": seconds + _WARM_UP_S,
                "sent_in_s": round(sent - begun, 1), "all_counted_after_s": round(done - sent, 1),
                "cpu_of_a_core": round(cpu / (done - counted_since), 3),
                "latency_ms": percentiles(np.array(latencies.found)), "pss_mib": memory.found}


class _Memory:
    """What all processes hold now and then, in MiB."""

    def __init__(self, first: float, every_s: float) -> None:
        self._next = first
        self._every_s = every_s
        self.found: list[int] = []

    def look(self) -> None:
        """Looks if it is time."""
        if time.monotonic() >= self._next:
            self._next += self._every_s
            self.found.append(memory_of().pss)
