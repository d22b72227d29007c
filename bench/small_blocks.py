"""What a pass of a stream over a few rows costs, in one thread, without Spark: `python -m bench.small_blocks`.

Streams that sum rows up per tag as they come are stepped after each INSERT of some rows, all in this process. The
tasks, the vnodes and the writing of results are the real ones; threads, sockets and turns are not there. For each
level of tasks: microseconds of the processor per stream and INSERT, the mean of all INSERTs and the median, which
other work on the machine changes less. `--calls` lists the functions that take most time, and says how many functions
a pass calls, of Python and of C.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from bench.setup import DATABASE
from bench.trickle import create_streams, tick_rows, unit_us
from penstock.common.responsiveness import leave_out_what_stays
from penstock.mnode.admin.sandbox import Sandbox
from penstock.mnode.write.result_store import ResultStore
from penstock.tasks.compiled.compiled_loops import load
from penstock.tasks.protocol.messages import ResultWrite
from penstock.tasks.worker.local_environment import LocalStream

_NOW_MS = 1_800_000_000_000
_WARM_UP = 50


def measure(folder: Path, streams: int, rows: int, inserts: int, calls: int) -> dict[str, Any]:
    """Returns what streams cost per INSERT; with `calls`, prints so many of the most expensive functions to stderr."""
    load()  # both as workers have done before they start
    leave_out_what_stays()
    with Sandbox("UTC", _NOW_MS, {"streamSinkDataRate": 0, "sinkTablesShare": 1, "sinkCallsPerSecond": 100_000},
                 folder) as sandbox:
        writes = _TimedWrites(sandbox.engine.results)
        create_streams(sandbox.execute, streams)
        found = sandbox.streams.local_streams().values()
        parts = {"source": 0.0, "agg": 0.0, "sink": 0.0, "queues": 0.0}
        profiler = cProfile.Profile() if calls else None
        passes = 0
        of_inserts: list[dict[str, float]] = []
        for number in range(_WARM_UP + inserts):
            if number == _WARM_UP:
                parts = dict.fromkeys(parts, 0.0)
                passes, writes.seconds = 0, 0.0
                of_inserts.clear()
            sandbox.engine.insert_arrow(f"{DATABASE}.m", pa.Table.from_batches([tick_rows(number, rows)]),
                                        sandbox.session)
            sandbox.clock.advance(0.01)
            measured = number >= _WARM_UP and profiler is not None
            if measured:
                profiler.enable()
            before = {**parts, "result": writes.seconds}
            for stream in found:
                passes += drive(stream, parts)
            if measured:
                profiler.disable()
            of_inserts.append({name: seconds - before[name]
                               for name, seconds in {**parts, "result": writes.seconds}.items()})
        if profiler is not None:
            stats = pstats.Stats(profiler, stream=sys.stderr)
            stats.sort_stats("tottime").print_stats(calls)
        done = inserts * streams
        parts["sink"] -= writes.seconds
        parts["result"] = writes.seconds
        return {"measure": "small_blocks", "streams": streams, "rows": rows, "inserts": inserts,
                "rounds_per_insert": round(passes / done, 2),
                "cpu_us": {name: round(seconds / done * 1e6, 1) for name, seconds in parts.items()},
                "total_us": round(sum(parts.values()) / done * 1e6, 1), "median_us": _medians(of_inserts, streams),
                **({} if profiler is None else {
                    "calls_per_insert": round(stats.total_calls / done, 1)})}  # type: ignore[attr-defined]


def _medians(of_inserts: Sequence[Mapping[str, float]], streams: int) -> dict[str, float]:
    """Returns the medians over INSERTs, per stream. `result` is part of `sink` in what is given, not in what comes."""
    taken = [{**parts, "sink": parts["sink"] - parts["result"]} for parts in of_inserts]
    found = {name: median(parts[name] for parts in taken) for name in taken[0]}
    found["all"] = median(sum(parts.values()) for parts in taken)
    return {name: round(seconds / streams * 1e6, 1) for name, seconds in found.items()}


class _TimedWrites:
    """Adds up what the engine takes to write results. Made before the streams, which call it."""

    def __init__(self, results: ResultStore) -> None:
        self.seconds = 0.0
        self._write = results.write_results
        results.write_results = self  # type: ignore[method-assign,assignment]

    def __call__(self, write: ResultWrite) -> None:
        begun = time.thread_time()
        self._write(write)
        self.seconds += time.thread_time() - begun


def drive(stream: LocalStream, parts: dict[str, float]) -> int:
    """Steps the tasks until they rest; returns in how many rounds."""
    links = {task.id: [link for link in stream.links if link.upstream == task.id] for task in stream.tasks}
    rounds, progressed = 0, True
    while progressed:
        progressed = False
        rounds += 1
        for task in stream.tasks:
            begun = time.thread_time()
            progressed |= task.step()
            stepped = time.thread_time()
            for link in links[task.id]:
                progressed |= link.move()
            parts[task.id.operator] += stepped - begun
            parts["queues"] += time.thread_time() - stepped
    return rounds


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a JSON line per measure."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.small_blocks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 10], help="how many (default 1 and 10)")
    parser.add_argument("--rows", type=int, default=20, help="rows per INSERT (default 20)")
    parser.add_argument("--inserts", type=int, default=500, help="INSERTs that are measured (default 500)")
    parser.add_argument("--calls", type=int, default=0, help="lists so many functions; the profiler slows all down")
    options = parser.parse_args(arguments)
    for streams in options.streams:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=Path.cwd()) as folder:
            found = measure(Path(folder), streams, options.rows, options.inserts, options.calls)
        sys.stdout.write(json.dumps({**found, "unit_us": round(unit_us(), 1)}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
