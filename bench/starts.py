"""How soon a stream starts on an engine that runs others, and how soon the first row has its result after that."""

from __future__ import annotations

import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

from bench.isolated import Phase
from bench.node import Node
from bench.queries import Query
from bench.rows import Shape, arrivals
from bench.setup import create_tables, feed

_TIMES = 9
_TIMEOUT_S = 60.0
_POLL_S = 0.001


def started(folder: Path, phase: Phase, query: Query, shape: Shape) -> dict[str, Any]:
    """Returns medians over some streams that start one after the other, each beside one that runs.

    `start_seconds`: from CREATE STREAM until the stream is RUNNING. `result_seconds`: from the INSERT of a row
    until its result is visible. The first stream, which starts Spark, isn't among them.
    """
    starts, results = [], []
    with Node(folder / "data") as node:
        create_tables(node.execute, shape, 1)
        node.execute(query.stream("warm", "warm_out", "AT_ONCE"))
        node.wait_running()
        phase.begin()
        for n in range(_TIMES):
            created = time.monotonic()
            node.execute(query.stream(f"s{n}", f"out{n}", "AT_ONCE"))
            node.wait_until(node.all_run, _TIMEOUT_S, _POLL_S)
            starts.append(time.monotonic() - created)
            wanted = node.results.calls + 2  # the warm stream's, and the new one's
            inserted = time.monotonic()
            feed(node.engine, node.session, shape, arrivals(shape, 1))
            node.wait_until(partial(_has_calls, node, wanted), _TIMEOUT_S, _POLL_S)
            results.append(time.monotonic() - inserted)
            node.execute(f"DROP STREAM s{n}")
        phase.end()
    return {"measure": "start", "engine": "penstock", "query": query.name, "trigger": "AT_ONCE", "times": _TIMES,
            "start_seconds": round(statistics.median(starts), 3), "start_seconds_max": round(max(starts), 3),
            "result_seconds": round(statistics.median(results), 4), "result_seconds_max": round(max(results), 4)}


def _has_calls(node: Node, count: int) -> bool:
    return node.results.calls >= count
