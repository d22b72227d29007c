"""How fast the queries of NEXMark are: `python -m bench.nexmark_speed [NUMBER ...] [options]`; a JSON line each.

`--parts`: `caught_up`, events that are in the log already, from RESUME STREAM until all results are visible and a
checkpoint is durable, as bench.throughput measures it; `followed`, events that come at a fixed rate while the stream
runs, from the first event until it has all of their results; `flink` and `spark`, the same queries there
(bench.nexmark_peers); `profile`, one thread without Spark, and what each task costs. Answers are compared with DuckDB's
before a speed is printed.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.figures import rates
from bench.isolated import MeasurementFailedError, Phase, measured
from bench.nexmark import Events, Tables, arrivals, side_input
from bench.nexmark_answers import DATABASE, Oracle, create_tables, with_arrival
from bench.nexmark_peers import FLINK_QUERIES, SPARK_QUERIES, flink, spark
from bench.nexmark_queries import QUESTIONS
from bench.node import Node
from bench.processes import cpu_seconds
from bench.profiling import MeasuredResults, drive
from penstock.common.allocators import keep_freed_memory
from penstock.common.responsiveness import leave_out_what_stays
from penstock.mnode.admin.sandbox import Sandbox
from penstock.tasks.compiled.compiled_loops import load

_AT_ONCE = 20_000
_NOW_MS = 1_800_000_000_000
_TICK_MS = 100
_TIMEOUT_S = 600.0


def caught_up(folder: Path, phase: Phase, numbers: Sequence[int], events: Events) -> dict[str, Any]:
    """Returns the throughput of each stream that catches up, one after the other while the others pause."""
    with Node(folder / "data") as node:
        create_tables(node.execute)
        _insert(node.engine, node.session, DATABASE, "side_input", side_input())
        for number in numbers:
            node.execute(QUESTIONS[number].stream(f"q{number}"))
        node.wait_running()
        for number in numbers:
            node.execute(f"PAUSE STREAM q{number}")
        came = [_feed(node, DATABASE, batch) for batch in arrivals(events, _AT_ONCE)]
        node.engine.flush()
        ends = _ends(node, DATABASE)
        phase.begin()
        found = {}
        for number in numbers:
            started, cpu_before = time.monotonic_ns(), cpu_seconds()
            node.execute(f"RESUME STREAM q{number}")
            node.wait_done(ends, _TIMEOUT_S, f"q{number}")
            node.execute(f"CHECKPOINT STREAM q{number}")
            seconds, cpu = (time.monotonic_ns() - started) / 1e9, cpu_seconds() - cpu_before
            node.execute(f"PAUSE STREAM q{number}")
            found[f"q{number}"] = rates(events.count, seconds, cpu)
        phase.end()
        for number in numbers:
            found[f"q{number}"].update(_checked(number, came, node.execute))
        return {"queries": found}


def followed(folder: Path, phase: Phase, numbers: Sequence[int], events: Events) -> dict[str, Any]:
    """Returns what each stream costs beside events that come as fast as their times say, INSERT included.

    `none`: what these cost without a stream. What workers took that end meanwhile is missing: of streams before.
    """
    batches = list(arrivals(events, max(1, events.rate * _TICK_MS // 1000)))
    found = {}
    with Node(folder / "data") as node:
        node.execute("CREATE DATABASE d")
        node.execute("CREATE TABLE d.t (ts TIMESTAMP, v INT)")
        node.execute("CREATE STREAM warm INTO d.warm AS SELECT ts, v FROM d.t")
        node.wait_running()
        phase.begin()
        for number in (None, *numbers):
            name = "none" if number is None else f"q{number}"
            create_tables(node.execute, name)
            _insert(node.engine, node.session, name, "side_input", side_input())
            if number is not None:
                node.execute(QUESTIONS[number].stream(name))
                node.wait_running()
            began, cpu_before = time.monotonic_ns(), cpu_seconds()
            pause, came = threading.Event(), []
            for place, batch in enumerate(batches):
                pause.wait(max(0.0, (began - time.monotonic_ns()) / 1e9 + place * _TICK_MS / 1000))
                came.append(_feed(node, name, batch))
            if number is not None:
                node.wait_done(_ends(node, name), _TIMEOUT_S, name)
            seconds, cpu = (time.monotonic_ns() - began) / 1e9, cpu_seconds() - cpu_before
            found[name] = {**rates(events.count, seconds, cpu),
                           "behind_seconds": round(seconds - len(batches) * _TICK_MS / 1000, 3)}
            if number is not None:
                found[name].update(_checked(number, came, node.execute))
                node.execute(f"DROP STREAM {name}")
            node.execute(f"DROP DATABASE {name}")
        phase.end()
    return {"events_per_second": events.rate, "queries": found}


def _feed(node: Node, database: str, batch: Tables) -> Tables:
    """Inserts events and returns them as DuckDB is to have them."""
    for name, rows in batch.items():
        if rows.num_rows:
            _insert(node.engine, node.session, database, name, rows)
    return {name: with_arrival(rows, int(time.time() * 1e6)) for name, rows in batch.items()}


def _ends(node: Node, name: str) -> list[int]:
    database = node.engine.catalog.database(name)
    assert database is not None
    return [node.engine.storage.vnode(vgroup_id).acknowledged_version for vgroup_id in database.vgroup_ids]


def profile(folder: Path, phase: Phase, number: int, events: Events, calls: int) -> dict[str, Any]:
    """Returns what the tasks of one stream cost, in seconds of the processor; see bench.profiling.

    `calls`: prints so many functions with the most time of their own to stderr.
    """
    load()  # all as workers have done before they start
    leave_out_what_stays()
    keep_freed_memory()
    data = folder / "data"
    data.mkdir()
    with Sandbox("UTC", _NOW_MS, {"streamSinkDataRate": 0, "sinkTablesShare": 1}, data) as sandbox:
        create_tables(sandbox.execute)
        _insert(sandbox.engine, sandbox.session, DATABASE, "side_input", side_input())
        results = MeasuredResults(sandbox.engine.results)
        sandbox.execute(QUESTIONS[number].stream(f"q{number}"))
        (stream,) = sandbox.streams.local_streams().values()
        came = []
        started = time.process_time()
        for batch in arrivals(events, _AT_ONCE):
            for name, rows in batch.items():
                _insert(sandbox.engine, sandbox.session, DATABASE, name, rows)
            came.append({name: with_arrival(rows, _NOW_MS * 1000) for name, rows in batch.items()})
        ingest = time.process_time() - started
        sandbox.engine.flush()
        phase.begin()
        parts = {"source": 0.0, "agg": 0.0, "sink": 0.0, "queues": 0.0}
        profiler = cProfile.Profile() if calls else None
        drive(stream, parts, profiler)
        started = time.process_time()
        sandbox.checkpoint()
        parts["checkpoint"] = time.process_time() - started
        if profiler is not None:
            pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(calls)
        phase.end()
        sandbox.advance(60)
        parts["result"] = results.write_seconds
        parts["sink"] -= results.write_seconds
        if results.read_seconds:
            parts["read_back"] = results.read_seconds
            parts["source"] -= results.read_seconds
        total = sum(parts.values())
        return {"events": events.count, **_checked(number, came, sandbox.execute),
                "events_per_cpu_second": round(events.count / total),
                "cpu_seconds": {name: round(seconds, 3) for name, seconds in parts.items()},
                "ingest_events_per_cpu_second": round(events.count / ingest)}


def _insert(engine: Any, session: Any, database: str, name: str, rows: pa.Table) -> None:
    engine.insert_arrow(f"{database}.{name}", rows, session)


def _checked(number: int, batches: Sequence[Tables], execute: Callable[[str], Any]) -> dict[str, Any]:
    """Returns how many rows the results have, or what is wrong with them."""
    found = execute(f"SELECT * FROM q{number}").table
    oracle = Oracle({name: pa.concat_tables([batch[name] for batch in batches]) for name in batches[0]})
    try:
        difference = oracle.difference(number, found)
    finally:
        oracle.close()
    return {"failed": difference} if difference is not None else {"result_rows": found.num_rows, "answer": "equal"}


def main() -> int:
    """Measures, and prints what was measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.nexmark_speed", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("queries", type=int, nargs="*", metavar="N", help="0 to 22; default: all")
    parser.add_argument("--parts", type=_names, default=["caught_up", "followed"], help=f"some of {','.join(_PARTS)}")
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--rate", type=int, default=10_000, help="events per second of their time")
    parser.add_argument("--seconds", type=int, default=10, help="followed: for how long they come")
    parser.add_argument("--calls", type=int, default=0, help="profile: so many functions that take most, to stderr")
    parser.add_argument("--flink-python", type=Path, help="a Python that has apache-flink")
    parser.add_argument("--directory", type=Path, help="where data goes (default: a temporary directory)")
    options = parser.parse_args()
    failed = False
    for part in options.parts:
        for line in _PARTS[part](options.queries or list(QUESTIONS), options):
            failed |= "failed" in line
            print(json.dumps({"measure": "nexmark", "part": part, **line}), flush=True)
    return 1 if failed else 0


def _of_ours(measurement: Callable[..., dict[str, Any]], numbers: Sequence[int], events: Events,
             directory: Path | None) -> Iterator[dict[str, Any]]:
    """Yields a line for each query of several that one engine runs."""
    for name, figures in measured(measurement, directory, numbers=numbers, events=events)["queries"].items():
        yield {"query": name, "engine": "penstock", **figures}


def _one_by_one(measurement: Callable[..., dict[str, Any]], numbers: Sequence[int | None], directory: Path | None,
                **arguments: Any) -> Iterator[dict[str, Any]]:
    """Yields a line for each query, None among them, of a process of its own."""
    for number in numbers:
        try:
            figures = measured(measurement, directory, number=number, **arguments)
        except MeasurementFailedError as error:
            figures = {"failed": str(error).strip().splitlines()[-1]}
        yield {"query": "read" if number is None else f"q{number}", **figures}


def _taken(numbers: Sequence[int], by: Sequence[int]) -> list[int | None]:
    return [None, *(number for number in numbers if number in by)]


def _names(text: str) -> list[str]:
    return text.split(",")


_PARTS: Mapping[str, Callable[[Sequence[int], argparse.Namespace], Iterator[dict[str, Any]]]] = {
    "caught_up": lambda numbers, given: _of_ours(
        caught_up, numbers, Events(given.events, given.rate), given.directory),
    "followed": lambda numbers, given: _of_ours(
        followed, numbers, Events(given.rate * given.seconds, given.rate), given.directory),
    "flink": lambda numbers, given: _one_by_one(
        flink, _taken(numbers, FLINK_QUERIES), given.directory, events=Events(given.events, given.rate),
        python=given.flink_python),
    "spark": lambda numbers, given: _one_by_one(
        spark, _taken(numbers, SPARK_QUERIES), given.directory, events=Events(given.events, given.rate)),
    "profile": lambda numbers, given: _one_by_one(
        profile, numbers, given.directory, events=Events(given.events, given.rate), calls=given.calls),
}


if __name__ == "__main__":
    sys.exit(main())
