"""Results of streams: a table of many small upserts, beside one with the same rows that were written once.

`python -m bench.upserts` writes windows of 200 groups, two windows at a time and each three times, as a stream does
that tells of them before they close, with a flush now and then. It prints a JSON line per query: the least milliseconds
of processors of some runs over either table.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock

_FIRST_MS = 1_700_000_000_000
_GROUPS, _WINDOWS, _AT_ONCE, _WRITTEN, _PER_FLUSH = 200, 2000, 2, 3, 200
_TIMES = 5
_QUERIES = (
    "SELECT count(*) FROM {}", "SELECT avg(a), max(n) FROM {}", "SELECT tbname, avg(a) FROM {} PARTITION BY tbname",
    "SELECT _wstart, avg(a) FROM {} INTERVAL(1m)", "SELECT site, max(a) FROM {} GROUP BY site",
    "SELECT tbname, last_row(*) FROM {} PARTITION BY tbname", "SELECT first(ts), last(ts) FROM {}",
)


def results(first: int, count: int, time_written: int, prefix: str) -> pa.Table:
    """Returns so many windows of all groups, from the one of this number on."""
    number = np.arange(_GROUPS * count)
    group = number % _GROUPS
    return pa.table({
        "tbname": pa.array([f"{prefix}{each}" for each in range(_GROUPS)]).take(pa.array(group)),
        "ts": pa.array(_FIRST_MS + 1000 * (first + number // _GROUPS), pa.timestamp("ms")),
        "a": np.sin(number) + time_written, "n": np.full(len(number), time_written),
        "site": pa.array(group % 10, pa.int32())})


def least(cursor: Any, query: str) -> float:
    """Returns milliseconds of processors."""
    found = []
    for _ in range(_TIMES):
        began = time.process_time()
        cursor.execute(query).fetchall()
        found.append(time.process_time() - began)
    return round(1000 * min(found), 1)


def main() -> int:
    """Measures, and prints what was measured."""
    with tempfile.TemporaryDirectory() as folder, penstock.connect(
            Path(folder) / "data", {"disableStream": True, "timezone": "UTC"}) as connection:
        cursor = connection.cursor()
        for statement in ("CREATE DATABASE d VGROUPS 1 KEEP 36500d", "USE d"):
            cursor.execute(statement)
        for table in ("once", "often"):
            cursor.execute(f"CREATE TABLE {table} (ts TIMESTAMP, a DOUBLE, n BIGINT) TAGS (site INT)")
        for first in range(0, _WINDOWS, _AT_ONCE):
            for written in range(_WRITTEN):
                cursor.insert_arrow("often", results(first, _AT_ONCE, written, "o"))
            if (first + _AT_ONCE) % _PER_FLUSH == 0:
                cursor.execute("FLUSH DATABASE d")
        cursor.insert_arrow("once", results(0, _WINDOWS, _WRITTEN - 1, "p"))
        cursor.execute("FLUSH DATABASE d")
        for query in _QUERIES:
            taken = {f"{table}_cpu_ms": least(cursor, query.format(table)) for table in ("once", "often")}
            print(json.dumps({"measure": "upserts", "query": query.format("t"), "groups": _GROUPS, "windows": _WINDOWS,
                              **taken}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
