"""Devices that were offline: late rows, one by one, beside streams that take them: `python -m bench.late_rows`.

Each of many child tables has a newest row. Then rows that are older come at a steady rate, each in an INSERT of its
own, to one table after the other, beside streams with IGNORE EXPIRED 0. A JSON line says whether they were sent in
time, how long it took from the last of them until all results were those of the batch queries, and what processors
took meanwhile, those that send included: in all, and for each process. Where rows can't be sent at that rate, it is
over after `--patience` seconds, and `sent` says how many there were.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.node import Node
from bench.processes import cpu_of_each, cpu_since
from bench.trickle import unit_us

_FIRST_MS = 1_700_000_000_000
_PAST_MS = 600_000
_TIMEOUT_S, _POLL_S, _TAGS = 600.0, 0.1, 10
#: When results are written, and the batch query.
_STREAMS = (
    ("AT_ONCE", "SELECT _wstart ts, count(*) n, sum(v) s FROM d.m PARTITION BY tbname INTERVAL(1m)"),
    ("AT_ONCE", "SELECT _wstart ts, count(*) n, max(v) s FROM d.m PARTITION BY g INTERVAL(10s)"),
    ("WINDOW_CLOSE", "SELECT _wstart ts, count(*) n, avg(v) s FROM d.m PARTITION BY tbname INTERVAL(10s)"),
    ("WINDOW_CLOSE", "SELECT _wstart ts, count(*) n, min(v) s FROM d.m PARTITION BY g INTERVAL(1m)"),
    ("AT_ONCE", "SELECT _wstart ts, count(*) n, last(v) s FROM d.m PARTITION BY g INTERVAL(1m) SLIDING(30s)"),
)


def measure(folder: Path, rows: int, tables: int, streams: int, rate: int, patience_s: float) -> dict[str, Any]:
    """Returns how streams fare beside late rows. Raises TimeoutError if results don't become those of the queries."""
    with Node(folder / "data") as node:
        node.execute("CREATE DATABASE d KEEP 36500")
        node.execute("CREATE STABLE d.m (ts TIMESTAMP, v DOUBLE) TAGS (g INT)")
        for first in range(0, tables, 100):
            node.execute("INSERT INTO " + " ".join(
                f"d.t{table} USING d.m TAGS ({table % _TAGS}) VALUES ({_FIRST_MS + _PAST_MS}, 1)"
                for table in range(first, min(first + 100, tables))))
        for number, (options, query) in enumerate(_STREAMS[:streams]):
            node.execute(f"CREATE STREAM s{number} TRIGGER {options} IGNORE EXPIRED 0 FILL_HISTORY 1 "
                         f"INTO d.o{number} AS {query}")
        node.wait_running()
        chance = np.random.default_rng(1)
        times = (_FIRST_MS + chance.permutation(_PAST_MS)[:rows]).tolist()
        values = np.round(chance.random(rows) * 100, 3).tolist()
        pause, late_s = threading.Event(), 0.0
        unit, began, before, count = unit_us(), time.monotonic(), cpu_of_each(), 0
        for number, (ts, value) in enumerate(zip(times, values, strict=True)):
            if not number % 100:
                wait = began + number / rate - time.monotonic()
                late_s = max(late_s, -wait)
                if time.monotonic() > began + patience_s:
                    break
                pause.wait(max(0.0, wait))
            node.execute(f"INSERT INTO d.t{number % tables} VALUES ({ts}, {value})")
            count += 1
        sent = time.monotonic()
        wanted = [_of_closed(node, f"({query})") for _, query in _STREAMS[:streams]]
        while any(_of_closed(node, f"d.o{number}") != wanted[number] for number in range(streams)):
            if time.monotonic() > sent + _TIMEOUT_S:
                raise TimeoutError("results are not those of the batch queries")
            pause.wait(_POLL_S)
        done, after = time.monotonic(), cpu_of_each()
        spent = cpu_since(before, after) / count * 1e6
        each = sorted((round((now - before.get(process, 0.0)) / count * 1e6 / unit, 1)
                       for process, now in after.items()), reverse=True)
        return {"measure": "late_rows", "rows": rows, "tables": tables, "streams": streams, "rate": rate, "sent": count,
                "sent_seconds": round(sent - began, 2), "late_seconds": round(late_s, 2),
                "equal_after_seconds": round(done - sent, 2), "cpu_us_per_row": round(spent),
                "unit_us": round(unit, 1), "units_per_row": round(spent / unit, 1),
                "units_of_processes": [units for units in each if units], "load": round(os.getloadavg()[0], 1)}


def _of_closed(node: Node, rows: str) -> list[dict[str, Any]]:
    """Returns what rows of windows come to that are closed whatever their stream tells of others."""
    return node.rows("SELECT count(*) c, sum(n) n, round(sum(s), 3) s "
                     f"FROM {rows} WHERE ts < {_FIRST_MS + _PAST_MS - 60_000}")


def main() -> int:
    """Measures, and prints what was measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.late_rows", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--tables", type=int, default=1_000)
    parser.add_argument("--streams", type=int, default=len(_STREAMS))
    parser.add_argument("--rate", type=int, default=10_000, help="rows per second")
    parser.add_argument("--patience", type=float, default=30.0, metavar="SECONDS", help="to send for (default 30)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder), options.rows, options.tables, options.streams, options.rate,
                                 options.patience)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
