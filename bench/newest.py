"""What dashboards ask all day: the newest row of each child table, beside plain DuckDB over the same rows.

`python -m bench.newest` prints a JSON line per query: seconds by the clock and of processors, the least of some runs,
and what DuckDB takes over one Parquet file. Rows come in rounds, one of each child table; the last of them are in
memory, as they are while rows come in.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock

_FIRST_MS = 1_700_000_000_000
_ROUNDS_AT_ONCE = 200
_TIMES = 7
#: Each query, and what DuckDB is asked instead.
QUERIES = {
    "SELECT last_row(*) FROM m": "SELECT * FROM m ORDER BY ts DESC LIMIT 1",
    "SELECT tbname, last_row(*) FROM m PARTITION BY tbname": "SELECT tbname, arg_max((ts, v, k), ts) FROM m GROUP BY 1",
    "SELECT tbname, last(*) FROM m PARTITION BY tbname":
        "SELECT tbname, max(ts), arg_max(v, ts), arg_max(k, ts) FROM m GROUP BY 1",
    "SELECT site, last(v) FROM m GROUP BY site": "SELECT site, arg_max(v, ts) FROM m GROUP BY 1",
    "SELECT count(*) FROM m": "SELECT count(*) FROM m",
}


def rounds(tables: int, first: int, count: int) -> pa.Table:
    """Returns `count` rounds of rows, from the one of this number on."""
    number = np.arange(tables * count)
    device = number % tables
    return pa.table({
        "tbname": pa.array([f"d{each}" for each in range(tables)]).take(pa.array(device)),
        "ts": pa.array(_FIRST_MS + 1000 * (first + number // tables), pa.timestamp("ms")),
        "v": np.sin(number), "k": pa.array(number, pa.int32()), "site": pa.array(device % 10, pa.int32())})


def least(run: Callable[[], Any]) -> dict[str, float]:
    """Returns the least seconds of some runs, by the clock and of processors."""
    found = []
    for _ in range(_TIMES):
        began, computed = time.perf_counter(), time.process_time()
        run()
        found.append((time.perf_counter() - began, time.process_time() - computed))
    clock, processors = (round(min(each), 4) for each in zip(*found, strict=True))
    return {"seconds": clock, "cpu_seconds": processors}


def measure(folder: Path, tables: int, rows: int) -> None:
    """Prints the lines; `rows` are those of each child table."""
    parts = []
    with penstock.connect(folder / "data") as connection:
        cursor = connection.cursor()
        for statement in ("CREATE DATABASE d VGROUPS 2", "USE d",
                          "CREATE TABLE m (ts TIMESTAMP, v DOUBLE, k INT) TAGS (site INT)"):
            cursor.execute(statement)
        for first in range(0, rows, _ROUNDS_AT_ONCE):
            parts.append(rounds(tables, first, min(_ROUNDS_AT_ONCE, rows - first)))
            cursor.insert_arrow("m", parts[-1])
        pq.write_table(pa.concat_tables(parts), folder / "rows.parquet")
        with duckdb.connect() as plain:
            plain.execute(f"CREATE VIEW m AS FROM '{folder / 'rows.parquet'}'")
            for query, instead in QUERIES.items():
                print(json.dumps({
                    "measure": "newest", "query": query, "tables": tables, "rows": tables * rows,
                    "penstock": least(lambda query=query: cursor.execute(query).fetchall()),
                    "duckdb": least(lambda instead=instead: plain.execute(instead).fetchall())}), flush=True)


def main() -> int:
    """Measures, and prints what was measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.newest", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=6000, help="of each child table (default 6000)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), options.tables, options.rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
