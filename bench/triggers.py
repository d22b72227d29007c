"""Streams with a trigger of their own: many windows at once, one alone, and many by the clock.

`python -m bench.triggers`: the windows of many groups close within a second, each with a query over its rows of a
minute; then windows close one by one, and each result's latency is taken; last, streams run by PERIOD(1s), and how late
their executions are is read from their tables. A JSON line for each.

`--measures periods --seconds 600` is ten minutes of a hundred such streams.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.node import Node
from bench.processes import cpu_seconds
from bench.trickle import unit_us
from penstock.mnode.streams.calculation_jobs import ComputedOrder
from penstock.mnode.streams.execution_writes import ExecutionWrites

_BASE_MS = 1_700_000_000_000 // 60_000 * 60_000
_ROWS, _MINUTE_MS = 60, 60_000
_TIMEOUT_S, _POLL_S = 300.0, 0.005
_OF_WINDOW = "ts >= _twstart AND ts < _twend"
#: What is computed by the tasks that have a window's rows, and what a query is run for.
_KINDS = {"aggregates": "avg(v) mean, max(v) most, count(*) n",
          "query": "avg(v) mean, max(v) most, count(*) n, stddev(v) spread"}


def windows(node: Node, groups: int, kind: str) -> dict[str, Any]:
    """Returns how long it takes until the windows of all groups are executed, from the row that closes the first."""
    node.execute("CREATE STABLE d.m (ts TIMESTAMP, v DOUBLE) TAGS (g INT)")
    for first in range(0, groups, 500):
        node.execute("INSERT INTO " + " ".join(
            f"d.t{group} USING d.m TAGS ({group % 10}) VALUES ({_BASE_MS - _MINUTE_MS}, 0)"
            for group in range(first, min(first + 500, groups))))
    node.execute(f"CREATE STREAM many INTERVAL(1m) SLIDING(1m) FROM d.m PARTITION BY tbname INTO d.o AS "
                 f"SELECT _twstart, {_KINDS[kind]} FROM %%tbname WHERE {_OF_WINDOW}")
    node.wait_running()
    for first in range(0, groups, 100):
        node.execute("INSERT INTO " + " ".join(
            f"d.t{group} VALUES " + " ".join(f"({_BASE_MS + second * 1000}, {second})" for second in range(_ROWS))
            for group in range(first, min(first + 100, groups))))
    _wait(lambda: _count(node, "d.o") >= 0)
    began, before = time.monotonic(), cpu_seconds()
    for first in range(0, groups, 500):
        node.execute("INSERT INTO " + " ".join(
            f"d.t{group} VALUES ({_BASE_MS + _MINUTE_MS}, 0)" for group in range(first, min(first + 500, groups))))
    sent = time.monotonic()
    _wait(lambda: _count(node, f"d.o WHERE _twstart = {_BASE_MS}") == groups)
    done = time.monotonic()
    right = node.rows(f"SELECT count(*) c FROM d.o WHERE _twstart = {_BASE_MS} AND mean = 29.5 AND most = 59 "
                      "AND n = 60")
    return {"measure": "windows", "kind": kind, "groups": groups, "sent_seconds": round(sent - began, 2),
            "executed_seconds": round(done - began, 2), "cpu_seconds": round(cpu_seconds() - before, 2),
            "right": right[0]["c"]}


def latency(node: Node, count: int, kind: str) -> dict[str, Any]:
    """Returns how long after the row that closes a window its result is there, of windows that close alone.

    A result is there once the engine has written it: every query that begins from then on finds it.
    """
    node.execute("CREATE TABLE d.one (ts TIMESTAMP, v DOUBLE)")
    node.execute("CREATE STREAM alone INTERVAL(1s) SLIDING(1s) FROM d.one INTO d.oa AS "
                 f"SELECT _twstart, {_KINDS[kind]} FROM d.one WHERE {_OF_WINDOW}")
    node.wait_running()
    written, seen = threading.Semaphore(0), [0.0]
    write = ExecutionWrites.write

    def noting(writes: ExecutionWrites, some: Sequence[ComputedOrder]) -> list[Exception | None]:
        errors = write(writes, some)
        seen[0] = time.monotonic()
        written.release()
        return errors

    node.execute(f"INSERT INTO d.one VALUES ({_BASE_MS}, 1)")
    took, pause = [], threading.Event()
    ExecutionWrites.write = noting  # type: ignore[method-assign]
    try:
        for number in range(1, count + 1):
            began = time.monotonic()
            node.execute(f"INSERT INTO d.one VALUES ({_BASE_MS + number * 1000}, {number})")
            if not written.acquire(timeout=_TIMEOUT_S):
                raise TimeoutError("the stream doesn't come that far")
            took.append((seen[0] - began) * 1000)
            pause.wait(0.05)
    finally:
        ExecutionWrites.write = write  # type: ignore[method-assign]
    half, most = np.percentile(took, [50, 99])
    return {"measure": "latency", "kind": kind, "windows": count, "results": _count(node, "d.oa"),
            "p50_ms": round(half, 1), "p99_ms": round(most, 1)}


def periods(node: Node, streams: int, seconds: float) -> dict[str, Any]:
    """Returns how late executions of PERIOD(1s) begin."""
    node.execute("CREATE TABLE d.one (ts TIMESTAMP, v DOUBLE)")
    for number in range(streams):
        node.execute(f"CREATE STREAM p{number} PERIOD(1s) INTO d.p{number} AS "
                     "SELECT CAST(_tlocaltime / 1000000 AS TIMESTAMP) ts, count(*) n FROM d.one")
    node.wait_running()
    before, of_engine = cpu_seconds(), time.process_time()
    began = time.time() * 1000
    threading.Event().wait(seconds)
    used, of_engine = cpu_seconds() - before, time.process_time() - of_engine
    late: list[float] = []
    for number in range(streams):
        late += [row["late"] for row in node.rows(
            f"SELECT CAST(executed AS BIGINT) - CAST(ts AS BIGINT) late FROM d.p{number}_executions "
            f"WHERE ts >= {int(began)} AND ts < {int(began + seconds * 1000) - 1000}")]
    half, most = np.percentile(late, [50, 99])
    return {"measure": "periods", "streams": streams, "seconds": seconds, "executions": len(late),
            "wanted": int(streams * (seconds - 1)), "late_p50_ms": round(half, 1), "late_p99_ms": round(most, 1),
            "late_most_ms": max(late), "cores": round(used / seconds, 2),
            "engine_ms_each": round(of_engine * 1000 / len(late), 2)}


def _count(node: Node, rows: str) -> int:
    return int(node.rows(f"SELECT count(*) c FROM {rows}")[0]["c"])


def _wait(condition: Any) -> None:
    end, pause = time.monotonic() + _TIMEOUT_S, threading.Event()
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the stream doesn't come that far")
        pause.wait(_POLL_S)


def main() -> int:
    """Measures, and prints what was measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.triggers", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--windows", type=int, default=200, help="that close alone")
    parser.add_argument("--periods", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--measures", choices=("windows", "latency", "periods"), nargs="*",
                        default=["windows", "latency", "periods"])
    options = parser.parse_args()
    measures = [*(partial(windows, groups=options.groups, kind=kind) for kind in _KINDS),
                *(partial(latency, count=options.windows, kind=kind) for kind in _KINDS),
                partial(periods, streams=options.periods, seconds=options.seconds)]
    for measure in measures:
        if measure.func.__name__ in options.measures:
            with tempfile.TemporaryDirectory() as folder, Node(Path(folder) / "data") as node:
                node.execute("CREATE DATABASE d KEEP 36500")
                print(json.dumps({**measure(node), "unit_us": round(unit_us(), 1)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
