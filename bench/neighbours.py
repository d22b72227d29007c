"""How much nine streams suffer from a tenth: `python -m bench.neighbours`; a JSON line per run and one with the ratios.

Ten streams run on one engine. Nine pass the rows of a table on, which come on a fixed schedule; their latency is from
the moment at which a row should have been sent to its result being visible. The tenth is one of

- `tame`: the same as the others, the measure of all;
- `udf`: a function in Python that computes for half a second per block, without giving anybody else the processor;
- `state`: sessions by a column that is new with every row, none of which closes, fed as fast as the stream reads;
- `tables`: the same, but sessions close at once, so that every row makes a child table of the result.

The ratio is that of the nine's p50 and p99 beside a hostile tenth to those beside a tame one.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.figures import percentiles
from bench.isolated import Phase, measured
from bench.load import Schedule, play
from bench.node import Node
from bench.setup import DATABASE
from penstock import __version__
from penstock.common.config import load_config

TENTHS = ("tame", "udf", "state", "tables")
_TAME = 9
_T0 = 1_700_000_000_000
_WARM_S = 3.0
_SETTLE_S = 60.0
_HOG_ROWS = 5_000
_FUNCTION = '''"""A function that keeps its processor busy."""

import time

import pyarrow as pa


def crunch(values: pa.Array) -> pa.Array:
    until = time.perf_counter() + 0.5
    while time.perf_counter() < until:
        pass
    return values
'''
_STREAMS: Mapping[str, str] = {
    "tame": "SELECT ts, v FROM m PARTITION BY tbname",
    "udf": "SELECT ts, crunch(v) v FROM hog PARTITION BY tbname",
    "state": "SELECT _wstart, count(*) n, sum(v) s FROM hog PARTITION BY v SESSION(ts, 1h)",
    "tables": "SELECT _wstart, count(*) n, sum(v) s FROM hog PARTITION BY v SESSION(ts, 1h)",
}
_OPTIONS: Mapping[str, str] = {
    "tame": "TRIGGER AT_ONCE",
    "udf": "TRIGGER AT_ONCE",
    "state": "TRIGGER WINDOW_CLOSE WATERMARK 3650d",
    "tables": "TRIGGER WINDOW_CLOSE",
}


def beside(folder: Path, phase: Phase, tenth: str, schedule: Schedule, seconds: int,
           config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the latency of nine streams beside a tenth."""
    functions = folder / "udf"
    functions.mkdir()
    (functions / "hostile.py").write_text(_FUNCTION, encoding="utf-8")
    with Node(folder / "data", {"udfDir": str(functions), **config}, keep=True) as node:
        for statement in (f"CREATE DATABASE {DATABASE} VGROUPS 1 KEEP 36500d", f"USE {DATABASE}",
                          "CREATE STABLE m (ts TIMESTAMP, v BIGINT) TAGS (g INT)", "CREATE TABLE t0 USING m TAGS (0)",
                          "CREATE STABLE hog (ts TIMESTAMP, v BIGINT) TAGS (g INT)",
                          "CREATE TABLE h0 USING hog TAGS (0)",
                          "CREATE FUNCTION crunch(BIGINT) RETURNS BIGINT LANGUAGE PYTHON AS 'hostile:crunch'"):
            node.execute(statement)
        for n in range(_TAME):
            node.execute(f"CREATE STREAM s{n} TRIGGER AT_ONCE INTO o{n} AS {_STREAMS['tame']}")
        node.execute(f"CREATE STREAM tenth {_OPTIONS[tenth]} INTO o AS {_STREAMS[tenth]}")
        node.wait_running()
        watched = {stream.id for stream in node.engine.catalog.streams.all() if stream.name != "tenth"}
        stop = threading.Event()
        hog = threading.Thread(target=_feed_hog, args=(node, stop), daemon=True)
        if tenth != "tame":
            hog.start()
        phase.begin()
        due = send_rows(node, schedule, seconds)
        phase.end()
        stop.set()
        node.wait_until(lambda: rows_shown(node, watched) == _TAME * len(due) * schedule.rows_per_tick, _SETTLE_S)
        return {"measure": "neighbours", "engine": "penstock", "tenth": tenth, "streams": _TAME + 1,
                "rows_per_second": schedule.rows_per_second, "tick_ms": schedule.tick_ms, "seconds": seconds,
                "latency_from_schedule_ms": percentiles(row_latencies(node, watched, due, schedule))}


def send_rows(node: Node, schedule: Schedule, seconds: int) -> list[int]:
    """Writes rows into m on schedule; returns when each tick was due (ns)."""
    pause, due_ns = threading.Event(), []

    def send(tick: int, due: int) -> None:
        _insert(node, "m", "t0", tick * schedule.rows_per_tick, schedule.rows_per_tick)
        due_ns.append(due)

    ticks = seconds * 1000 // schedule.tick_ms
    play(schedule, 0, ticks, time.monotonic_ns(), send, time.monotonic_ns, lambda left: bool(pause.wait(left / 1e9)))
    return due_ns


def _feed_hog(node: Node, stop: threading.Event) -> None:
    """Gives the tenth stream as many rows as it is ready to read, none of them like another."""
    first = 0
    while not stop.wait(0.05):
        if any(report.lag for reports in node.status().tasks.values() for report in reports
               if report.status.task.operator == "source" and (report.lag or 0) > 100):
            continue
        _insert(node, "hog", "h0", first, _HOG_ROWS)
        first += _HOG_ROWS


def _insert(node: Node, table: str, child: str, first: int, rows: int) -> None:
    """Writes rows numbered from `first` on, a millisecond of event time apart."""
    numbers = np.arange(first, first + rows, dtype=np.int64)
    node.insert(f"{DATABASE}.{table}", pa.record_batch({
        "tbname": pa.repeat(child, rows), "ts": pa.array(_T0 + numbers, pa.timestamp("ms")), "v": pa.array(numbers)}))


def rows_shown(node: Node, watched: set[int]) -> int:
    """Returns how many rows of these streams are visible, each of which passes the rows of m on."""
    return sum(write.rows.num_rows for _, write in node.results.writes() if write.stream_id in watched)


def row_latencies(node: Node, watched: set[int], due: Sequence[int], schedule: Schedule) -> np.ndarray[Any, Any]:
    """Returns the latency of each row of each stream in ms, without those of the first seconds."""
    due_ns = np.array(due, np.int64)
    warm = int(_WARM_S * 1000 / schedule.tick_ms)
    found = []
    for at, write in node.results.writes():
        if write.stream_id in watched:
            ticks = (write.rows.column("ts").cast(pa.int64()).to_numpy() - _T0) // schedule.rows_per_tick
            found.append((at - due_ns[ticks[ticks >= warm]]) / 1e6)
    return np.concatenate(found)


def ratios(tame: Mapping[str, float], hostile: Mapping[str, float]) -> dict[str, float]:
    """Returns how many times as long p50 and p99 are."""
    return {share: round(hostile[share] / tame[share], 2) for share in ("p50", "p99")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a JSON line per run, and one with the ratios."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.neighbours", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows-per-second", type=int, default=1000)
    parser.add_argument("--tick-ms", type=int, default=10, help="from one INSERT to the next (default 10)")
    parser.add_argument("--seconds", type=int, default=20, help="how long each latency is measured (default 20)")
    parser.add_argument("--streams-per-worker", type=int, help="instead of the default")
    parser.add_argument("--tables-share", type=float, default=load_config(environment={}).sink_tables_share,
                        help="sinkTablesShare, which other benchmarks don't bound (default: the engine's)")
    parser.add_argument("--tenths", nargs="+", choices=TENTHS[1:], default=TENTHS[1:])
    options = parser.parse_args(arguments)
    config: dict[str, Any] = {"sinkTablesShare": options.tables_share}
    if options.streams_per_worker is not None:
        config["streamsPerWorker"] = options.streams_per_worker
    schedule = Schedule(options.rows_per_second, options.tick_ms)
    latency: dict[str, dict[str, float]] = {}
    for tenth in ("tame", *options.tenths):
        line = measured(beside, None, tenth=tenth, schedule=schedule, seconds=options.seconds, config=config)
        latency[tenth] = line["latency_from_schedule_ms"]
        print(json.dumps({"version": __version__, **config, **line}), flush=True)
    print(json.dumps({"measure": "neighbours", "version": __version__, **config, "ratios": {
        tenth: ratios(latency["tame"], latency[tenth]) for tenth in options.tenths}}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
