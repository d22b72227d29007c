"""A thousand streams on one engine: what creating them takes, what they cost idle, and whether rows keep flowing.

`python -m bench.thousand_streams` prints a JSON line for each hundred streams that were created, one for the idle
engine, and one for each size of INSERT. The streams are those of bench.trickle: sums by tag as rows come, in windows of
1 to 10 s. Each database has one vnode and a table that fifty streams read. All seconds of processors are those of all
processes. At the end the results of all streams are compared with the answers of queries over their sources.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.figures import NewestRowLatencies, percentiles
from bench.node import Node
from bench.processes import cpu_seconds, memory_of

_CHILDREN, _GROUPS = 100, 10
_FIRST_MS = 1_700_000_000_000
_PATIENCE_S, _POLL_S = 600.0, 0.5
_REPORT_EVERY = 100
_LISTENED_TO = 40  # streams whose results are timed
_WARM_UP = 0.25  # of the time that rows come


class Thousand:
    """The engine with its streams. `streams` in databases of `per_database`."""

    def __init__(self, node: Node, streams: int, per_database: int) -> None:
        self._node = node
        self._streams = streams
        self._per_database = per_database
        self._databases = [f"many{number}" for number in range(-(-streams // per_database))]
        self._next_ms = _FIRST_MS

    def create(self) -> Iterator[dict[str, Any]]:
        """Creates all, and yields what each hundred of them took until their tasks ran."""
        cpu, begun = cpu_seconds(), time.monotonic()
        for number in range(self._streams):
            database, place = self._databases[number // self._per_database], number % self._per_database
            if not place:
                self._create_table(database)
            self._node.execute(
                f"CREATE STREAM {database}_s{place} TRIGGER AT_ONCE INTO {database}.o{place} AS SELECT _wstart, "
                f"count(*) c, avg(v) a, max(ts) latest FROM {database}.m PARTITION BY g INTERVAL({1 + place % 10}s)")
            if (number + 1) % _REPORT_EVERY == 0 or number + 1 == self._streams:
                said = time.monotonic()
                self._node.wait_running()
                cpu, before = cpu_seconds(), cpu
                yield {"measure": "create", "streams": number + 1, "cpu_s": round(cpu - before, 1),
                       "statements_s": round(said - begun, 1), "until_running_s": round(time.monotonic() - begun, 1)}
                begun = time.monotonic()

    def _create_table(self, database: str) -> None:
        for text in (f"CREATE DATABASE {database} VGROUPS 1 KEEP 36500d",
                     f"CREATE TABLE {database}.m (ts TIMESTAMP, v DOUBLE, k INT) TAGS (g INT)",
                     "CREATE TABLE " + " ".join(f"{database}.d{n} USING {database}.m TAGS ({n % _GROUPS})"
                                                for n in range(_CHILDREN))):
            self._node.execute(text)

    def idle(self, seconds: float) -> dict[str, Any]:
        """Returns what the streams cost that have nothing to do."""
        threading.Event().wait(seconds / 2)
        cpu, begun = cpu_seconds(), time.monotonic()
        threading.Event().wait(seconds)
        return {"measure": "idle", "streams": self._streams,
                "cpu_of_a_core": round((cpu_seconds() - cpu) / (time.monotonic() - begun), 3),
                "pss_mib": memory_of().pss}

    def first_rows(self) -> dict[str, Any]:
        """Returns what the first rows of all streams take, which make their child tables and have code loaded."""
        missing = dict.fromkeys(self._stream_ids(), _GROUPS)
        self._node.results.hear = lambda _, write: missing.update(
            {write.stream_id: missing[write.stream_id] - write.rows.num_rows})
        cpu, begun = cpu_seconds(), time.monotonic()
        for number in range(len(self._databases)):
            self._insert(number, self._next_ms, _CHILDREN)
        self._next_ms += 60_000
        self._node.wait_until(lambda: max(missing.values()) <= 0, _PATIENCE_S, _POLL_S)
        self._node.results.hear = None
        return {"measure": "first rows", "streams": self._streams, "cpu_s": round(cpu_seconds() - cpu, 1),
                "seconds": round(time.monotonic() - begun, 1)}

    def _stream_ids(self) -> list[int]:
        return [stream.id for stream in self._node.engine.catalog.streams.all()]

    def flow(self, rows_per_second: int, rows_per_insert: int, seconds: float) -> dict[str, Any]:
        """Returns how the streams fare beside rows that come into all sources in turn.

        Latency is from when an INSERT was due to a result of its row being visible, of those whose row is the newest
        of a result write.
        """
        inserts = int(seconds * rows_per_second / rows_per_insert)
        gap_s = rows_per_insert / rows_per_second
        first_ms = self._next_ms
        self._next_ms += int(inserts * gap_s * 1000) + 60_000
        begun = time.monotonic()
        latencies = NewestRowLatencies(lambda ts: 1e3 * begun + ts - first_ms, _LISTENED_TO)
        self._node.results.hear = latencies.note
        pause = threading.Event()
        cpu, counted_since, calls = cpu_seconds(), begun, self._node.results.calls
        warm_up = int(inserts * _WARM_UP)
        for number in range(inserts):
            pause.wait(max(0.0, begun + number * gap_s - time.monotonic()))
            if number == warm_up:
                cpu, counted_since, calls = cpu_seconds(), time.monotonic(), self._node.results.calls
                latencies.found.clear()
            self._insert(number, first_ms + int(number * gap_s * 1000), rows_per_insert)
        sent, counted_cpu = time.monotonic(), cpu_seconds() - cpu
        calls = self._node.results.calls - calls
        counted = self._wait_counted()
        last_ns = self._node.results.last_ns
        self._node.results.hear = None
        return {"measure": "flow", "streams": self._streams, "rows_per_second": rows_per_second,
                "rows_per_insert": rows_per_insert, "planned_s": seconds, "sent_in_s": round(sent - begun, 1),
                "last_result_after_s": round(0.0 if last_ns is None else max(0.0, last_ns / 1e9 - sent), 1),
                "cpu_of_a_core": round(counted_cpu / (sent - counted_since), 2),
                "result_writes_per_second": round(calls / (sent - counted_since)),
                "latency_ms": percentiles(np.array(latencies.found)), "pss_mib": memory_of().pss, **counted}

    def _insert(self, number: int, ts: int, rows: int) -> None:
        database = self._databases[number % len(self._databases)]
        first = number // len(self._databases) * rows
        if rows == 1:
            self._node.execute(f"INSERT INTO {database}.d{first % _CHILDREN} VALUES ({ts}, {number * 0.5}, {number})")
            return
        tables = (first + np.arange(rows)) % _CHILDREN
        self._node.insert(f"{database}.m", pa.record_batch({
            "tbname": pa.array([f"d{table}" for table in tables]),
            "ts": pa.array(np.full(rows, ts), pa.int64()).cast(pa.timestamp("ms")),
            "v": pa.array(number * 0.5 + tables), "k": pa.array(tables.astype(np.int32))}))

    def _wait_counted(self) -> dict[str, Any]:
        """Waits until all results are the batch query's; returns how many rows were compared."""
        waiting = [(database, place) for number in range(self._streams)
                   for database, place in [(self._databases[number // self._per_database],
                                            number % self._per_database)]]
        expected: dict[tuple[str, int], list[tuple[Any, ...]]] = {}

        def all_equal() -> bool:
            while waiting:
                database, place = waiting[-1]
                key = database, 1 + place % 10
                if key not in expected:
                    expected[key] = self._answer(
                        f"SELECT _wstart w, count(*) c, avg(v) a, max(ts) l FROM {database}.m "
                        f"PARTITION BY g INTERVAL({key[1]}s)")
                if self._answer(f"SELECT _wstart w, c, a, latest l FROM {database}.o{place}") != expected[key]:
                    return False
                waiting.pop()
            return True

        self._node.wait_until(all_equal, _PATIENCE_S, _POLL_S)
        return {"results_equal": self._streams, "rows_compared": sum(map(len, expected.values()))}

    def _answer(self, query: str) -> list[tuple[Any, ...]]:
        return sorted((row["w"], row["c"], round(row["a"], 6), row["l"]) for row in self._node.rows(query))


def measure(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields all measures."""
    config = {"heartbeatInterval": "1s", "streamsPerWorker": options.streams_per_worker}
    with Node(folder / "thousand", config) as node:
        thousand = Thousand(node, options.streams, options.per_database)
        yield from thousand.create()
        yield thousand.idle(options.idle_seconds)
        yield thousand.first_rows()
        for rows in options.rows_per_insert:
            yield thousand.flow(options.rows_per_second, rows, options.seconds)


def main() -> None:
    """Prints one JSON line per measure."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.thousand_streams", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000, help="how many (default 1,000)")
    parser.add_argument("--per-database", type=int, default=50, help="streams on one source (default 50)")
    parser.add_argument("--streams-per-worker", type=int, default=60, help="as configured (default 60)")
    parser.add_argument("--idle-seconds", type=float, default=20.0)
    parser.add_argument("--rows-per-second", type=int, default=1000, help="into all sources (default 1,000)")
    parser.add_argument("--rows-per-insert", type=int, nargs="*", default=[50, 10, 1], help="default 50, 10 and 1")
    parser.add_argument("--seconds", type=float, default=40.0, help="how long rows come (default 40)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=Path.cwd()) as folder:
        said: Callable[[dict[str, Any]], str] = lambda found: json.dumps(  # noqa: E731
            {**found, "load": round(os.getloadavg()[0], 1)})
        for found in measure(Path(folder), options):
            sys.stdout.write(said(found) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
