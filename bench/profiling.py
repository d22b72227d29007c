"""Runs a stream in one thread, without Spark and sockets, and says what each of its tasks costs.

The tasks, the vnodes and the writing of results are the real ones (`penstock.tasks.worker.local_environment`); nothing
else runs. Rows per CPU-second are those of the source, so that the parts can be compared and added: 1/total = 1/source
+ 1/agg + ...
`result` is what the dnode does for a sink: it finds the child tables and writes the rows into the vnode.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.answers import check, expected
from bench.queries import Query, Trigger
from bench.rows import Shape, arrivals
from bench.setup import create_tables, feed
from penstock.common.allocators import keep_freed_memory
from penstock.common.responsiveness import leave_out_what_stays
from penstock.mnode.admin.sandbox import Sandbox
from penstock.mnode.write.result_store import ResultStore
from penstock.tasks.compiled.compiled_loops import load
from penstock.tasks.protocol.messages import ResultWrite
from penstock.tasks.protocol.store_requests import RowsRequest, SpanRequest
from penstock.tasks.worker.local_environment import LocalStream

_NOW_MS = 1_800_000_000_000


class MeasuredResults:
    """Adds up what the calls of a ResultStore cost, in seconds of processors. Made before the stream that calls it."""

    def __init__(self, results: ResultStore) -> None:
        self._write_results, self._read = results.write_results, results.read
        results.write_results = self.write_results  # type: ignore[method-assign]
        results.read = self.read  # type: ignore[method-assign]
        self.write_seconds = 0.0
        self.read_seconds = 0.0
        self.rows = 0
        self.calls = 0

    def write_results(self, write: ResultWrite) -> None:
        started = time.process_time()
        self._write_results(write)
        self.write_seconds += time.process_time() - started
        self.rows += write.rows.num_rows
        self.calls += 1

    def read(self, request: RowsRequest | SpanRequest) -> pa.Table:
        started = time.process_time()
        answer = self._read(request)
        self.read_seconds += time.process_time() - started
        return answer


def profile(
    query: Query, shape: Shape, trigger: Trigger, directory: Path, *, vgroups: int = 1, batch_rows: int = 20_000,
    config: Mapping[str, Any] | None = None, calls: int = 0, follow: bool = False,
) -> dict[str, Any]:
    """Returns the measurement of one stream over rows that are in the WAL already. Raises WrongAnswerError.

    `follow`: the stream works after each batch instead, as one that keeps up with its rows does. `calls`: prints so
    many functions with the most time of their own to stderr; the profiler slows everything down.
    """
    load()  # all as workers have done before they start
    leave_out_what_stays()
    keep_freed_memory()
    with Sandbox("UTC", _NOW_MS, config, directory) as sandbox:
        engine, session = sandbox.engine, sandbox.session

        def execute(text: str) -> Any:
            return engine.execute(text, session)

        create_tables(execute, shape, vgroups)
        result = MeasuredResults(engine.results)
        execute(query.stream("s", "out", trigger))
        (stream,) = sandbox.streams.local_streams().values()
        profiler = cProfile.Profile() if calls else None
        parts = {"source": 0.0, "agg": 0.0, "sink": 0.0, "queues": 0.0}
        ingest, rows = 0.0, 0
        for batch in arrivals(shape, batch_rows):
            started = time.process_time()
            rows += feed(engine, session, shape, (batch,))
            ingest += time.process_time() - started
            if follow:
                drive(stream, parts, profiler)
        if not follow:
            engine.flush()
            drive(stream, parts, profiler)
        if profiler is not None:
            profiler.enable()
        started = time.process_time()
        sandbox.checkpoint()
        parts["checkpoint"] = time.process_time() - started
        if profiler is not None:
            profiler.disable()
            pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(calls)
        parts["result"] = result.write_seconds
        parts["sink"] -= result.write_seconds
        if result.read_seconds:
            parts["read_back"] = result.read_seconds
            parts["source"] -= result.read_seconds
        found = execute(query.result("out")).table
        check(query, found, expected(query, shape, trigger))
        total = sum(parts.values())
        return {
            "part": "profile", "measure": "profile", "engine": "penstock", "query": query.name, "trigger": trigger,
            "rows": rows, "tables": shape.tables, "vgroups": vgroups, "late": shape.late,
            "updated": shape.updated, "rows_per_record": batch_rows, "follow": follow, "result_rows": found.num_rows,
            "written_rows": result.rows, "write_calls": result.calls, "rows_per_cpu_second": round(rows / total),
            "cpu_seconds": {name: round(seconds, 3) for name, seconds in parts.items()},
            "rows_per_cpu_second_of": {name: round(rows / seconds) for name, seconds in parts.items() if seconds > 0},
            "ingest_rows_per_cpu_second": round(rows / ingest),
        }


def drive(stream: LocalStream, parts: dict[str, float], profiler: cProfile.Profile | None) -> None:
    """Steps the tasks until they rest; adds up the processors' seconds by level, those of the queues apart."""
    links = {task.id: [link for link in stream.links if link.upstream == task.id] for task in stream.tasks}
    if profiler is not None:
        profiler.enable()
    progressed = True
    while progressed:
        progressed = False
        for task in stream.tasks:
            started = time.process_time()
            progressed |= task.step()
            stepped = time.process_time()
            for link in links[task.id]:
                progressed |= link.move()
            parts[task.id.operator] += stepped - started
            parts["queues"] += time.process_time() - stepped
    if profiler is not None:
        profiler.disable()
