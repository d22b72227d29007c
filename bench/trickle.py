"""Small writes and many streams, as devices make them all day: `python -m bench.trickle`; a JSON line for each measure.

What there is, in this order, by the names that `--measures` and `--without` take:

  machine       what the machine takes for a *unit* (1,000 additions in a Python loop) and for a wake-up
  insert        INSERT statements of one row: one connection, some threads, `executemany`, some other ways
  log_space     bytes of log of a row that comes in an INSERT of its own
  peers         SQLite and DuckDB with the like
  requests      requests of one row by REST, line protocol and prepared statements of Flight SQL
  durable       INSERTs that wait for the disk, beside what the disk does by itself
  starts        importing `penstock`, and how soon the first streams of an engine run
  ticks         20 rows every 10 ms beside no, one and ten streams: processors of all processes, waits of threads per
                INSERT, and how long a row takes to its results
  idle          what one, ten and 50 streams cost that have nothing to do, and the threads of their workers
  steady        20,000 rows/s beside no stream, beside Q1 and Q2 on close and at once, and with nine others beside these
  catch_up      streams that catch up, Q1 to Q5 and YSB
  demo          `make demo`
  stream_peers  one stream beside the same job in Spark, and in Flink where `--flink-python` has apache-flink
  hundred       a hundred streams beside 1,000 INSERTs of one row per second

`python -m bench.trickle --without peers stream_peers` measures Penstock alone, in some ten minutes on a quiet machine
with two cores. `hundred` is left out unless it is named: `--measures hundred --seconds 600` lasts ten minutes itself.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

import penstock
from bench.demo_run import measure_demo
from bench.durable import measure_durable
from bench.figures import percentiles
from bench.first_streams import measure_starts
from bench.hundred_streams import measure_hundred
from bench.insert_peers import measure_peers
from bench.isolated import measured
from bench.log_space import measure_log_space
from bench.node import Node
from bench.processes import ask, cpu_seconds, tree
from bench.queries import QUERIES
from bench.requests import measure_requests
from bench.rows import Shape
from bench.setup import DATABASE
from bench.steady_rate import measure_steady
from bench.stream_peers import measure_stream_peers
from bench.throughput import catch_up

_FIRST_MS = 1_700_000_000_000
_CHILDREN = 100
_ROUND_TRIPS = 5000
_WAYS_TIMES = 2000
_WARM_UP_TICKS = 20
_MEASURES = ("machine", "insert", "log_space", "peers", "requests", "durable", "starts", "ticks", "idle", "steady",
             "catch_up", "demo", "stream_peers", "hundred")
_CAUGHT_UP = ("q1", "q2", "q3", "q4", "q5", "ysb")
_NINE_OTHERS = 9
_DURABLE_CLIENTS = 64


def unit_us() -> float:
    """Returns the microseconds of 1,000 additions in a loop in a function, the best of twenty times a hundred."""
    def add() -> int:
        total = 0
        for number in range(1000):
            total += number
        return total

    best = float("inf")
    for _ in range(20):
        begun = time.perf_counter()
        for _ in range(100):
            add()
        best = min(best, time.perf_counter() - begun)
    return best / 100 * 1e6


def thread_round_trip_us() -> float:
    """Returns the microseconds for waking another thread and being woken by it."""
    ping, pong = threading.Event(), threading.Event()

    def answer() -> None:
        for _ in range(_ROUND_TRIPS):
            ping.wait()
            ping.clear()
            pong.set()

    thread = threading.Thread(target=answer)
    thread.start()
    begun = time.perf_counter()
    for _ in range(_ROUND_TRIPS):
        ping.set()
        pong.wait()
        pong.clear()
    taken = time.perf_counter() - begun
    thread.join()
    return taken / _ROUND_TRIPS * 1e6


def process_round_trip_us() -> float:
    """Returns the microseconds for a byte through a pipe to another process and back."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_echo, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    ours.send_bytes(b"x")
    ours.recv_bytes()
    begun = time.perf_counter()
    for _ in range(_ROUND_TRIPS):
        ours.send_bytes(b"x")
        ours.recv_bytes()
    taken = time.perf_counter() - begun
    ours.close()
    process.join()
    return taken / _ROUND_TRIPS * 1e6


def _echo(line: Connection) -> None:
    with suppress(EOFError):
        while True:
            line.send_bytes(line.recv_bytes())


def waits() -> int:
    """Returns how often threads of this process and its descendants have waited for something so far."""
    total = 0
    for process in tree(psutil.Process()):
        for path in Path(f"/proc/{process.pid}/task").glob("*/status"):
            with suppress(OSError):
                total += sum(int(line.split()[1]) for line in path.read_text().splitlines()
                             if line.startswith("voluntary_ctxt"))
    return total


# --- statements of one row -------------------------------------------------------------------------------------------


def measure_inserts(folder: Path, statements: int, threads: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yields how fast INSERTs of one row are, by `penstock.connect`, each thread with child tables of its own."""
    with penstock.connect(folder / "inserts", {"timezone": "UTC"}) as connection:
        for text in (f"CREATE DATABASE {DATABASE}", f"USE {DATABASE}",
                     "CREATE TABLE m (ts TIMESTAMP, v DOUBLE, k INT) TAGS (g INT)",
                     "CREATE TABLE " + " ".join(f"d{n} USING m TAGS ({n})" for n in range(_CHILDREN))):
            connection.execute(text)
        first = _FIRST_MS
        for count in (threads[0], *threads):  # the first time warms up
            seconds, cpu = _insert(folder / "inserts", count, statements // count, first)
            first += statements
            found = {"measure": "insert", "engine": "penstock", "rows_per_statement": 1, "threads": count,
                     "statements_per_second": round(statements / seconds),
                     "cpu_us_per_statement": round(cpu / statements * 1e6, 1)}
            if first > _FIRST_MS + statements:
                yield found
        rows = [(first + number, number * 0.5, number) for number in range(1000)]
        begun, cpu_begun = time.perf_counter(), time.process_time()
        for place in range(20):
            connection.cursor().executemany(f"INSERT INTO d{place} VALUES (?, ?, ?)", rows)
        yield {"measure": "insert", "way": "executemany", "rows_per_call": len(rows),
               "rows_per_second": round(20 * len(rows) / (time.perf_counter() - begun)),
               "cpu_us_per_row": round((time.process_time() - cpu_begun) / (20 * len(rows)) * 1e6, 2)}
        first += len(rows)
        for way, values in {"ten tables": _of_several_tables, "ten names": _by_name,
                            "late": lambda number, _: f"INSERT INTO d{number % _CHILDREN} VALUES "
                                                      f"({_FIRST_MS - 10**6 + number}, 0.5, 1)"}.items():
            cpu_begun = time.process_time()
            for number in range(_WAYS_TIMES):
                connection.execute(values(number, first + number))
            first += _WAYS_TIMES
            yield {"measure": "insert", "way": way,
                   "cpu_us_per_statement": round((time.process_time() - cpu_begun) / _WAYS_TIMES * 1e6, 1)}


def _of_several_tables(number: int, time_ms: int) -> str:
    """Returns an INSERT with a row for each of ten child tables."""
    return "INSERT INTO " + " ".join(
        f"d{(10 * number + place) % _CHILDREN} VALUES ({time_ms}, 0.5, {place})" for place in range(10))


def _by_name(number: int, time_ms: int) -> str:
    """Returns the same, as rows of the super table that name their child tables."""
    return "INSERT INTO m (tbname, ts, v, k) VALUES " + " ".join(
        f"('d{(10 * number + place) % _CHILDREN}', {time_ms}, 0.5, {place})" for place in range(10))


def _insert(directory: Path, threads: int, statements: int, first: int) -> tuple[float, float]:
    """Returns the seconds, and those of processors, of so many statements in each of some threads."""
    connections = [penstock.connect(directory) for _ in range(threads)]
    share = _CHILDREN // threads

    def run(place: int) -> None:
        cursor = connections[place].execute(f"USE {DATABASE}")
        for number in range(statements):
            child = place * share + number % share
            cursor.execute(f"INSERT INTO d{child} VALUES ({first + number}, {number * 0.5}, {number})")

    workers = [threading.Thread(target=run, args=(place,)) for place in range(threads)]
    begun, cpu_begun = time.perf_counter(), time.process_time()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu_begun
    for connection in connections:
        connection.close()
    return seconds, cpu


# --- rows in ticks, and streams --------------------------------------------------------------------------------------


def measure_ticks(folder: Path, streams: int, rows: int, tick_ms: int, seconds: float) -> dict[str, Any]:
    """Returns what rows in ticks cost beside some streams, which sum them up by table and by tag as they come."""
    with Node(folder / f"ticks{streams}", keep=True) as node:
        _start(node, streams)
        ticks = int(seconds * 1000 / tick_ms)
        made = [tick_rows(tick, rows) for tick in range(_WARM_UP_TICKS + ticks)]  # what this takes isn't Penstock's
        for tick in made[:_WARM_UP_TICKS]:
            node.insert("m", tick)
        if streams:
            node.wait_done(node.log_ends(), 60)
        seen = len(node.results.writes())
        cpu, waited, begun = cpu_seconds(), waits(), time.monotonic()
        inserting = 0.0
        sent: dict[int, int] = {}
        pause = threading.Event()
        for number, tick in enumerate(made[_WARM_UP_TICKS:]):
            due = begun + number * tick_ms / 1000
            pause.wait(max(0.0, due - time.monotonic()))
            sent[_FIRST_MS + (_WARM_UP_TICKS + number) * 10] = int(due * 1e9)
            before = time.thread_time()
            node.insert("m", tick)
            inserting += time.thread_time() - before
        sending = time.monotonic() - begun
        if streams:
            node.wait_done(node.log_ends(), 120)
        taken = time.monotonic() - begun
        return {
            "measure": "ticks", "streams": streams, "rows_per_tick": rows, "tick_ms": tick_ms, "inserts": ticks,
            "sent_in_s": round(sending, 2), "done_in_s": round(taken, 2),
            "cpu_of_a_core": round((cpu_seconds() - cpu) / taken, 3),
            "inserting_of_a_core": round(inserting / taken, 3),
            "waits_per_insert": round((waits() - waited) / ticks, 1),
            **_latency(node, seen, sent)}


def create_streams(execute: Callable[[str], object], streams: int, database: str = DATABASE) -> None:
    """Creates the table and the streams that ticks are measured with."""
    for text in (f"CREATE DATABASE {database} VGROUPS 1 KEEP 36500d", f"USE {database}",
                 "CREATE TABLE m (ts TIMESTAMP, v DOUBLE, k INT) TAGS (g INT)",
                 "CREATE TABLE " + " ".join(f"d{n} USING m TAGS ({n % 10})" for n in range(_CHILDREN))):
        execute(text)
    for number in range(streams):
        execute(stream_text(database, number))


def stream_text(database: str, number: int, options: str = "") -> str:
    """Returns the statement of a stream that sums up `m`, the current database's, per tag as its rows come."""
    return (f"CREATE STREAM {database}_s{number} TRIGGER AT_ONCE{options} INTO o{number} AS SELECT _wstart, "
            f"count(*) c, avg(v) a, max(ts) latest FROM m PARTITION BY g INTERVAL({1 + number % 10}s)")


def _start(node: Node, streams: int) -> None:
    create_streams(node.execute, streams)
    if streams:
        node.wait_running()


def tick_rows(tick: int, rows: int) -> pa.RecordBatch:
    """Returns the rows of a tick: the next tables in turn, all at one time."""
    tables = (np.arange(rows) + tick * rows) % _CHILDREN
    ts = np.full(rows, _FIRST_MS + tick * 10)
    return pa.record_batch({
        "tbname": pa.array([f"d{table}" for table in tables]), "ts": pa.array(ts, pa.int64()).cast(pa.timestamp("ms")),
        "v": pa.array(np.random.default_rng(tick).random(rows)), "k": pa.array(tables.astype(np.int32))})


def _latency(node: Node, seen: int, sent: dict[int, int]) -> dict[str, Any]:
    """Returns how long ticks take from when they were due to a result that has their newest row."""
    shown = [(at, int(write.rows.column("latest").cast(pa.int64()).to_numpy().max()))
             for at, write in node.results.writes()[seen:] if "latest" in write.rows.schema.names]
    waits = [(at - sent[latest]) / 1e6 for at, latest in shown if latest in sent]
    return {"latency_ms": percentiles(np.array(waits))} if waits else {}


def measure_idle(folder: Path, streams: int, seconds: float) -> dict[str, Any]:
    """Returns what streams cost that have nothing to do."""
    with Node(folder / f"idle{streams}", {"heartbeatInterval": "1s"}) as node:  # the default: heartbeats are waits
        _start(node, streams)
        threading.Event().wait(5.0)
        cpu, waited = cpu_seconds(), waits()
        threading.Event().wait(seconds)
        return {"measure": "idle", "streams": streams, "cpu_of_a_core": round((cpu_seconds() - cpu) / seconds, 4),
                "waits_per_second": round((waits() - waited) / seconds, 1),
                "threads_of_workers": _threads_of_workers()}


def _threads_of_workers() -> list[int]:
    """Returns how many threads each worker has: workers are what the processes fork that Java has started."""
    below = [process for root in tree(psutil.Process()) if ask(root.name) == "java" for process in tree(root)[1:]]
    started = {process.pid for process in below if (parent := ask(process.parent)) and ask(parent.name) == "java"}
    found = [ask(process.num_threads) for process in below if process.pid not in started]
    return sorted(count for count in found if count is not None)


def measure_catching_up(folder: Path, rows: int) -> Iterator[dict[str, Any]]:
    """Yields how fast streams catch up with rows that are in the log already; see `bench.throughput`."""
    for name in _CAUGHT_UP:
        query = QUERIES[name]
        found = measured(catch_up, folder, query=query, shape=query.of(Shape(1000, rows)))
        yield {**found, "measure": "catch_up"}


# --- the command -----------------------------------------------------------------------------------------------------


def measure(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Yields all measures that are asked for."""
    measures: dict[str, Callable[[], Iterable[dict[str, Any]]]] = {
        "machine": lambda: [measure_machine()],
        "insert": lambda: measure_inserts(folder, options.statements, options.threads),
        "log_space": lambda: measure_log_space(folder),
        "peers": lambda: measure_peers(folder, options.statements, options.threads),
        "requests": lambda: measure_requests(folder, options.statements // 2, (1, 8)),
        "durable": lambda: measure_durable(folder, options.statements, _DURABLE_CLIENTS),
        "starts": lambda: measure_starts(folder),
        "ticks": lambda: (measure_ticks(folder, streams, options.rows, options.tick_ms, options.seconds)
                          for streams in options.streams),
        "idle": lambda: (measure_idle(folder, streams, options.seconds) for streams in options.idle_streams),
        "steady": lambda: measure_steady(folder, options.steady_rate, options.seconds, _NINE_OTHERS),
        "catch_up": lambda: measure_catching_up(folder, options.catch_up_rows),
        "demo": lambda: measure_demo(folder),
        "stream_peers": lambda: measure_stream_peers(folder, options.rate, options.seconds, options.flink_python),
        "hundred": lambda: [measure_hundred(
            folder, create_streams, 100, 1000, options.seconds, options.streams_per_worker)],
    }
    for name, take in measures.items():
        if name in options.measures and name not in options.without:
            yield from take()


def measure_machine() -> dict[str, Any]:
    """Returns what the machine takes for what differs most between machines, and what else keeps it busy."""
    return {"measure": "machine", "unit_us": round(unit_us(), 1), "cores": os.cpu_count(),
            "thread_round_trip_us": round(thread_round_trip_us(), 1),
            "process_round_trip_us": round(process_round_trip_us(), 1), "load": round(os.getloadavg()[0], 1)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints one JSON line per measure."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.trickle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measures", nargs="+", choices=_MEASURES, default=list(_MEASURES[:-1]),
                        help="some of these (default: all but hundred, for which --seconds 600 are meant)")
    parser.add_argument("--without", nargs="+", choices=_MEASURES, default=[], help="but not these")
    parser.add_argument("--statements", type=int, default=20_000, help="INSERTs of one row (default 20,000)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--streams", type=int, nargs="+", default=[0, 1, 10], help="how many (default 0, 1 and 10)")
    parser.add_argument("--idle-streams", type=int, nargs="+", default=[1, 10, 50],
                        help="how many have nothing to do (default 1, 10 and 50)")
    parser.add_argument("--rows", type=int, default=20, help="rows per tick (default 20)")
    parser.add_argument("--tick-ms", type=int, default=10, help="from one INSERT to the next (default 10)")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long rows come, or nothing (default 10)")
    parser.add_argument("--rate", type=int, default=2000, help="rows per second of stream_peers (default 2,000)")
    parser.add_argument("--steady-rate", type=int, default=20_000, help="rows per second of steady (default 20,000)")
    parser.add_argument("--catch-up-rows", type=int, default=3_000_000, help="of catch_up (default 3,000,000)")
    parser.add_argument("--flink-python", type=Path, help="a Python that has apache-flink")
    parser.add_argument("--streams-per-worker", type=int, default=4, help="of hundred (default 4, as configured)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=Path.cwd()) as folder:
        for found in measure(options, Path(folder)):
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
