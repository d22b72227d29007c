"""What dashboards ask all day, beside plain DuckDB over one Parquet file with the same rows.

`python -m bench.dashboards` prints a JSON line per query: seconds by the clock and of processors, the least of some
runs, and what DuckDB takes. Answers are compared first. Rows come in rounds, one of each child table; the last of them
are in memory, as they are while rows come in. `--writing` lets rows come in meanwhile, and compares nothing.
`--folder` keeps the data there, and uses it again if it is there.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock

_FIRST_MS = 1_700_000_000_000
_ROUNDS_AT_ONCE = 200
_TIMES = 9
_HALF = "ts >= '2023-11-14 23:00:00' AND ts < '2023-11-14 23:30:00'"
_WINDOW = "time_bucket(INTERVAL '1 minute', ts)"
#: Each query, and what DuckDB is asked instead.
QUERIES = {
    "SELECT last_row(*) FROM m": "SELECT ts, v, k FROM m ORDER BY ts DESC LIMIT 1",
    "SELECT tbname, last_row(*) FROM m PARTITION BY tbname": "SELECT tbname, arg_max((ts, v, k), ts) FROM m GROUP BY 1",
    "SELECT tbname, last(*) FROM m PARTITION BY tbname":
        "SELECT tbname, max(ts), arg_max(v, ts), arg_max(k, ts) FROM m GROUP BY 1",
    "SELECT site, last(v) FROM m GROUP BY site": "SELECT site, arg_max(v, ts) FROM m GROUP BY 1",
    "SELECT count(*) FROM m": "SELECT count(*) FROM m",
    f"SELECT count(*) FROM m WHERE {_HALF}": f"SELECT count(*) FROM m WHERE {_HALF}",
    "SELECT min(ts), max(ts), count(ts) FROM m": "SELECT min(ts), max(ts), count(ts) FROM m",
    "SELECT first(ts), last(ts) FROM m": "SELECT min(ts), max(ts) FROM m",
    "SELECT first(v) FROM m": "SELECT arg_min(v, ts) FROM m",
    "SELECT tbname, count(*) FROM m PARTITION BY tbname": "SELECT tbname, count(*) FROM m GROUP BY 1",
    "SELECT avg(v), max(k) FROM m": "SELECT avg(v), max(k) FROM m",
    "SELECT tbname, avg(v) FROM m PARTITION BY tbname": "SELECT tbname, avg(v) FROM m GROUP BY 1",
    "SELECT site, avg(v), max(k) FROM m GROUP BY site": "SELECT site, avg(v), max(k) FROM m GROUP BY 1",
    "SELECT _wstart, avg(v), count(*) FROM m INTERVAL(1m)": f"SELECT {_WINDOW}, avg(v), count(*) FROM m GROUP BY 1",
    "SELECT _wstart, site, avg(v) FROM m PARTITION BY site INTERVAL(1m)":
        f"SELECT {_WINDOW}, site, avg(v) FROM m GROUP BY 1, 2",
    "SELECT _wstart, tbname, max(k) FROM m PARTITION BY tbname INTERVAL(1m)":
        f"SELECT {_WINDOW}, tbname, max(k) FROM m GROUP BY 1, 2",
    f"SELECT _wstart, avg(v) FROM m WHERE {_HALF} INTERVAL(1m)":
        f"SELECT {_WINDOW}, avg(v) FROM m WHERE {_HALF} GROUP BY 1",
    "SELECT _wstart, avg(v) FROM m WHERE tbname = 'd7' INTERVAL(1m)":
        f"SELECT {_WINDOW}, avg(v) FROM m WHERE tbname = 'd7' GROUP BY 1",
    "SELECT tbname, ts, v FROM m ORDER BY v DESC LIMIT 10": "SELECT tbname, ts, v FROM m ORDER BY v DESC LIMIT 10",
}


def rounds(tables: int, first: int, count: int) -> pa.Table:
    """Returns `count` rounds of rows, from the one of this number on."""
    number = np.arange(tables * first, tables * (first + count))
    device = number % tables
    return pa.table({
        "tbname": pa.array([f"d{each}" for each in range(tables)]).take(pa.array(device)),
        "ts": pa.array(_FIRST_MS + 1000 * (number // tables), pa.timestamp("ms")),
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


def fill(cursor: Any, folder: Path, tables: int, rows: int) -> None:
    """Writes the rows, `rows` of each child table, into the database, and into a Parquet file."""
    for statement in ("CREATE DATABASE d VGROUPS 2 KEEP 36500d", "USE d",
                      "CREATE TABLE m (ts TIMESTAMP, v DOUBLE, k INT) TAGS (site INT)"):
        cursor.execute(statement)
    parts = []
    for first in range(0, rows, _ROUNDS_AT_ONCE):
        parts.append(rounds(tables, first, min(_ROUNDS_AT_ONCE, rows - first)))
        cursor.insert_arrow("m", parts[-1])
    pq.write_table(pa.concat_tables(parts), folder / "rows.parquet")


def _same(found: list[Any], expected: list[Any]) -> bool:
    """Tells whether both have the same rows, in any order, sums of floats within what their order changes."""
    rows = [sorted((_values(row) for row in each), key=repr) for each in (found, expected)]
    return len(rows[0]) == len(rows[1]) and all(
        len(one) == len(other) and all(map(_alike, one, other)) for one, other in zip(*rows, strict=True))


def _values(row: Any) -> list[Any]:
    """Returns the values of a row, those of structs in a row; times without their zone, what is rounded last."""
    flat = [value for each in row for value in (each if isinstance(each, tuple) else (each,))]
    plain = [each.replace(tzinfo=None) if hasattr(each, "tzinfo") else each for each in flat]
    return sorted(plain, key=lambda each: isinstance(each, float))


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
    return bool(one == other)


@contextmanager
def _written(connection: Any, tables: int, first: int, *, wanted: bool) -> Iterator[None]:
    """Lets a round of rows come in every 100 ms meanwhile, if that is wanted."""
    ended = threading.Event()

    def write() -> None:
        cursor, number = connection.cursor(), first
        while not ended.wait(0.1):
            cursor.insert_arrow("m", rounds(tables, number, 1))
            number += 1

    writer = threading.Thread(target=write)
    if wanted:
        writer.start()
    try:
        yield
    finally:
        ended.set()
        if wanted:
            writer.join()


def measure(folder: Path, options: argparse.Namespace) -> None:
    """Prints the lines."""
    filled = (folder / "rows.parquet").exists()
    with penstock.connect(folder / "data", {"disableStream": True, "timezone": "UTC"}) as connection:
        cursor = connection.cursor()
        if filled:
            cursor.execute("USE d")
        else:
            fill(cursor, folder, options.tables, options.rows)
        with duckdb.connect() as plain, _written(connection, options.tables, options.rows, wanted=options.writing):
            plain.execute(f"CREATE VIEW m AS FROM '{folder / 'rows.parquet'}'")
            for query, instead in QUERIES.items():
                if options.queries and options.queries not in query:
                    continue
                ask = lambda query=query: cursor.execute(query).fetchall()  # noqa: E731
                expect = lambda instead=instead: plain.execute(instead).fetchall()  # noqa: E731
                if not options.writing and not _same(ask(), expect()):
                    raise RuntimeError(f"{query}: another answer than DuckDB's")
                print(json.dumps({
                    "measure": "dashboards", "query": query, "tables": options.tables,
                    "rows": options.tables * options.rows, "penstock": least(ask), "duckdb": least(expect)}),
                    flush=True)


def main() -> int:
    """Measures, and prints what was measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.dashboards", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=6000, help="of each child table (default 6000)")
    parser.add_argument("--queries", help="only those with this text")
    parser.add_argument("--writing", action="store_true", help="rows come in meanwhile")
    parser.add_argument("--folder", type=Path, help="where the data stays (default: a temporary directory)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        measure(folder, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
