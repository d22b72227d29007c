"""One stream beside rows in small ticks, and the same job in Spark and Flink: processors of all processes, and latency.

The queries are those of `bench.queries` that sum up per table and per tag, their results those of closed windows, since
that is what all three do. Penstock gets rows every 10 ms, and keeps them in its log and table as well; Spark gets a
file every 100 ms; Flink makes its rows itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import flink_peer, latency, spark_peer
from bench.isolated import measured
from bench.load import Schedule
from bench.queries import QUERIES
from bench.rows import Shape

_NAMES = ("q1", "q2")
_SPARK_TICK_MS = 100
_WARM_UP_S = 5


def measure_stream_peers(
    folder: Path, rate: int, seconds: float, flink_python: Path | None
) -> Iterator[dict[str, Any]]:
    """Yields what each engine takes for `rate` rows per second; Flink only where there is a Python that has it."""
    shape = Shape(tables=100, rows=int(rate * (seconds + _WARM_UP_S)))
    for name in _NAMES:
        query = QUERIES[name]
        same = {"query": query, "shape": query.of(shape), "warm_seconds": _WARM_UP_S}
        yield _figures(rate, measured(latency.live, folder, schedule=Schedule(rate), vgroups=1, **same))
        if flink_python is not None:
            yield _figures(rate, measured(
                flink_peer.live, folder, rows_per_second=rate, python=flink_python, **same))
        yield _figures(rate, measured(spark_peer.live, folder, schedule=Schedule(rate, _SPARK_TICK_MS), **same))


def _figures(rate: int, found: dict[str, Any]) -> dict[str, Any]:
    return {"measure": "stream_peers", "engine": found["engine"], "version": found.get("version"),
            "query": found["query"], "rows_per_second": rate,
            "cpu_of_a_core": round(found["cpu_seconds"] * rate / found["rows"], 3), "latency_ms": found["latency_ms"],
            "memory_mib": found["memory_mib"]}
