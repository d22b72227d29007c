"""Measures the way of results from a sink task's input queue into the result table: `python -m bench.results`.

One JSON line per case. `store`: the sink task calls the dnode's side directly; `flight`: over the service, as a worker
does, with both ends in this process. Rows per second of processor time count all threads and the writing of Parquet
parts. `latency`: from the put of a small block of results to the moment at which a query would see its rows.
Each run counts the rows of the result table before its speed counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.common.clock import SystemClock
from penstock.common.config import load_config
from penstock.mnode.access.session import SessionState
from penstock.mnode.coordinator.task_graph_builder import task_graph
from penstock.mnode.dnode.dnode_service import DnodeService
from penstock.mnode.engine import Engine
from penstock.planner.streams.stream_planner import plan_stream
from penstock.planner.task_plans.stream_plan import StreamPlan
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Session
from penstock.sql.tree.statements import CreateStream
from penstock.tasks.dnode_access.dnode_client import DnodeClient
from penstock.tasks.dnode_access.flight_result_writer import FlightResultWriter
from penstock.tasks.protocol.block_schema import result_schema
from penstock.tasks.protocol.deployment import StreamDeployment, TaskSettings
from penstock.tasks.protocol.messages import Block, TaskId, Watermark
from penstock.tasks.protocol.result_writers import ResultWriter
from penstock.tasks.sink.sink_task import SinkTask
from penstock.tasks.worker.local_environment import LocalEnvironment, LocalWriter

RUNS = 3
STREAM = 77
SECRET = b"results"
FIRST_MS = 1_700_000_000_000
WINDOW_MS = 10_000
UPSTREAM = TaskId(STREAM, "agg", 0)
SQL = ("CREATE STREAM s INTO bench.out AS SELECT _wstart, avg(v) AS a, max(v) AS m, count(*) AS n "
       "FROM bench.meters PARTITION BY tbname INTERVAL(10s)")


@dataclass(frozen=True, slots=True)
class Setup:
    """An engine with an empty result table, and the plan of the stream that fills it."""

    engine: Engine
    plan: StreamPlan
    root: Path


class NoRuntime:
    """Streams are not started here."""

    def is_ready(self) -> bool:
        return False


@contextmanager
def engine_with_target(folder: Path, vgroups: int, wal_level: int) -> Iterator[Setup]:
    """Opens an engine in an empty directory."""
    root = Path(tempfile.mkdtemp(dir=folder))
    runtime: Any = lambda config, directory: NoRuntime()  # noqa: E731
    engine = Engine(root, load_config({"timezone": "UTC"}, environment={}), runtime=runtime)
    try:
        session = SessionState("UTC")
        for text in (f"CREATE DATABASE bench VGROUPS {vgroups} WAL_LEVEL {wal_level} KEEP 36500d",
                     "CREATE STABLE bench.meters (ts TIMESTAMP, v DOUBLE) TAGS (site INT)",
                     "CREATE STABLE bench.out (wstart TIMESTAMP, a DOUBLE, m DOUBLE, n BIGINT) "
                     "TAGS (group_id BIGINT UNSIGNED)"):
            engine.execute(text, session)
        statement = parse_one(SQL)
        assert isinstance(statement, CreateStream)
        plan = plan_stream(statement, engine.catalog, Session("bench", "UTC", FIRST_MS))
        target = engine.catalog.table("bench", "out")
        assert target is not None
        engine.results.fence(STREAM, 1)
        yield Setup(engine, replace(plan, sink=replace(plan.sink, target_uid=target.uid)), root)
    finally:
        engine.close()
        shutil.rmtree(root)


def results(plan: StreamPlan, groups: int, first_window: int, windows: int) -> pa.RecordBatch:
    """Returns what an agg task sends when it closes windows: window by window, all groups of each."""
    schema = result_schema(plan.grouping.keys, plan.result_fields)
    count = groups * windows
    number = np.tile(np.arange(groups, dtype=np.uint64), windows)
    start = FIRST_MS + WINDOW_MS * np.repeat(np.arange(first_window, first_window + windows), groups)
    names = pa.DictionaryArray.from_arrays(pa.array(number.astype(np.int32)), [f"d{n}" for n in range(groups)])
    values = {"_op": pa.array(np.zeros(count, np.uint8)), "_gid": pa.array(number * np.uint64(0x9E3779B97F4A7C15)),
              "r0": pa.array(start), "r1": pa.array(np.sqrt(start)), "r2": pa.array(np.cbrt(start)),
              "r3": pa.array(np.full(count, 10))}
    return pa.RecordBatch.from_arrays(
        [values.get(field.name, names).cast(field.type) if field.name in values else names.cast(field.type)
         for field in schema], schema=schema)


class _Environment(LocalEnvironment):
    """A `TaskEnvironment` with a result writer of its own."""

    writer: ResultWriter

    def result_writer(self, task: TaskId) -> Any:
        return self.writer

    def wake(self) -> None:
        self.woken()

    woken: Callable[[], None] = staticmethod(lambda: None)


def open_sink(setup: Setup, writer: ResultWriter, woken: Callable[[], None]) -> SinkTask:
    """Returns a sink task without rate limits."""
    fs, paths = setup.engine.fs, setup.engine.paths
    environment: Any = _Environment(SystemClock(), fs, paths, setup.engine.results.read,
                                    setup.engine.results.write_results, lambda checkpoint: None)
    environment.writer, environment.woken = writer, woken
    paths.state(STREAM, "x").mkdir(parents=True, exist_ok=True)
    settings = TaskSettings(sink_bytes_per_second=0, sink_calls_per_second=0, sink_tables_share=1.0,
                            state_map_bytes=1 << 26)
    deployment = StreamDeployment(STREAM, "s", 1, setup.plan, task_graph(setup.plan, (1,)), (0,), None, (b"",),
                                  settings)
    return SinkTask(deployment, 0, [UPSTREAM], environment)


def written(setup: Setup) -> int:
    """Returns how many rows a query finds in the result table."""
    table = setup.engine.execute("SELECT count(*) FROM bench.out", SessionState("UTC")).table
    assert table is not None
    return int(table.column(0)[0].as_py())


@contextmanager
def open_way(setup: Setup, way: str, woken: Callable[[], None]) -> Iterator[ResultWriter]:
    """Gives a sink task its way to the dnode."""
    if way == "store":
        yield LocalWriter(setup.engine.results.write_results)
        return
    service = DnodeService(SECRET, setup.engine.results.begin_write, setup.engine.results.read,
                           lambda checkpoint, changes: None)
    client = DnodeClient(service.address, SECRET)
    writer = FlightResultWriter(client, "bench", woken)
    try:
        yield writer
    finally:
        writer.close()
        client.close()
        service.shutdown()


def drive(sink: SinkTask, flag: threading.Event, done: Callable[[], bool]) -> None:
    """Steps a sink task, as its runner does, until `done`."""
    while not done():
        flag.clear()
        if not sink.step() and not done():
            flag.wait(1.0)


def catch_up(setup: Setup, way: str, groups: int, windows: int, rows: int) -> tuple[float, float]:
    """Returns seconds, and seconds of processors, from full queues to rows in Parquet parts."""
    flag = threading.Event()
    with open_way(setup, way, flag.set) as writer:
        sink = open_sink(setup, writer, flag.set)
        count = 1 + rows // (groups * windows)
        first, *blocks = [results(setup.plan, groups, n * windows, windows) for n in range(count)]
        total = first.num_rows + sum(block.num_rows for block in blocks)
        sink.input.try_put(UPSTREAM, Block(first))  # creates the child tables
        drive(sink, flag, lambda: sink.status().progress.rows_out == first.num_rows)
        start, start_cpu = time.perf_counter(), time.process_time()
        for block in blocks:
            while not sink.input.try_put(UPSTREAM, Block(block)):
                flag.clear()
                if not sink.step():
                    flag.wait(1.0)
        drive(sink, flag, lambda: sink.input.is_empty() and sink.status().progress.rows_out == total)
        setup.engine.execute("FLUSH DATABASE bench", SessionState("UTC"))
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
        sink.close()
    if written(setup) != total:
        raise RuntimeError(f"{total} results were sent, {written(setup)} are there")
    return seconds, cpu_seconds


def latencies(setup: Setup, way: str, groups: int, count: int) -> list[float]:
    """Returns the milliseconds from the put of a block with one result per group to the end of its write."""
    flag = threading.Event()
    found: list[float] = []
    with open_way(setup, way, flag.set) as writer:
        sink = open_sink(setup, writer, flag.set)
        for number in range(count):
            block = Block(results(setup.plan, groups, number, 1))
            expected = groups * (number + 1)
            began = time.perf_counter()
            sink.input.try_put(UPSTREAM, block)
            sink.input.try_put(UPSTREAM, Watermark(number))
            drive(sink, flag, lambda expected=expected: sink.status().progress.rows_out == expected)
            found.append((time.perf_counter() - began) * 1000)
        sink.close()
    return found[count // 10:]


def measure(folder: Path, cases: Sequence[str], rows: int) -> Iterator[dict[str, Any]]:
    """Yields one measurement after the other."""
    for way in ("store", "flight"):
        for groups, windows, vgroups, level in ((1000, 8, 1, 1), (1000, 8, 4, 1), (1000, 8, 1, 2), (100_000, 1, 1, 1)):
            name = f"{way}-{groups}-{windows}-{vgroups}-{level}"
            if cases and not any(case in name for case in cases):
                continue
            runs = []
            for _ in range(1 + RUNS):
                with engine_with_target(folder, vgroups, level) as setup:
                    runs.append(catch_up(setup, way, groups, windows, rows))
            times, cpu_times = zip(*runs[1:], strict=True)  # the first one warms the memory up
            yield {"case": name, "rows": rows, "rows_per_second": round(rows / statistics.median(times)),
                   "per_cpu_second": round(rows / statistics.median(cpu_times)),
                   "best_per_cpu_second": round(rows / min(cpu_times)), "load": round(os.getloadavg()[0], 1)}
        for groups in (1, 100, 1000):
            name = f"latency-{way}-{groups}"
            if cases and not any(case in name for case in cases):
                continue
            with engine_with_target(folder, 1, 1) as setup:
                found = sorted(latencies(setup, way, groups, 500))
            yield {"case": name, "p50_ms": round(found[len(found) // 2], 3),
                   "p99_ms": round(found[len(found) * 99 // 100], 3), "load": round(os.getloadavg()[0], 1)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints one JSON line per measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="parts of the names of cases; all without any")
    parser.add_argument("--rows", type=int, default=1_600_000)
    parser.add_argument("--directory", type=Path, help="where data goes (default: a temporary directory)")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=options.directory))
    try:
        for measurement in measure(folder, options.cases, options.rows):
            sys.stdout.write(json.dumps(measurement) + "\n")
            sys.stdout.flush()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
