"""Many child tables: how fast they are created and written to, and how long an engine with them takes to open.

`python -m bench.tables` prints a JSON line per measurement, with seconds by the clock and of processors and the memory
that the process has after it. Rows come as Arrow tables that name child tables and tags, as an ingest's do: the first
round creates them, the next ones find them. `--statements` child tables more are created one by one, and as
many as a block has by one statement.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

import penstock

_FIRST_MS = 1_700_000_000_000
_MIB = 1 << 20


def rows(first: int, count: int, number: int, prefix: str = "d") -> pa.Table:
    """Returns a row for each of `count` child tables, from the one of number `first` on."""
    device = np.arange(first, first + count)
    return pa.table({
        "tbname": pa.array([f"{prefix}{each}" for each in device.tolist()]),
        "ts": pa.array(np.full(count, _FIRST_MS + 1000 * number), pa.timestamp("ms")),
        "v": np.sin(device), "k": pa.array(device, pa.int32()), "site": pa.array(device % 1000, pa.int32())})


@contextmanager
def told(measure: str, count: int) -> Iterator[dict[str, Any]]:
    """Prints what happened meanwhile, and what was added to the dictionary."""
    began, computed = time.perf_counter(), time.process_time()
    found: dict[str, Any] = {}
    yield found
    seconds, cpu = time.perf_counter() - began, time.process_time() - computed
    sys.stdout.write(json.dumps({
        "measure": measure, "count": count, "seconds": round(seconds, 3), "cpu_seconds": round(cpu, 3),
        "per_second": round(count / seconds), "us_of_cpu_each": round(1e6 * cpu / count, 1),
        "memory_mib": round(psutil.Process().memory_info().rss / _MIB), **found}) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Measures, and prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1_000_000)
    parser.add_argument("--block", type=int, default=50_000, help="child tables per call")
    parser.add_argument("--rounds", type=int, default=2, help="rows for each child table after the first")
    parser.add_argument("--statements", type=int, default=1000, help="child tables created by a statement each")
    parser.add_argument("--vgroups", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-tables-") as folder:
        settings = {"disableStream": True, "timezone": "UTC"}
        with penstock.connect(Path(folder) / "data", settings) as connection:
            connection.execute(f"CREATE DATABASE d VGROUPS {options.vgroups} KEEP 36500d")
            connection.execute("USE d")
            for table in ("few", "m"):
                connection.execute(f"CREATE TABLE {table} (ts TIMESTAMP, v DOUBLE, k INT) TAGS (site INT)")
            _write(connection, options)
            with told("CREATE TABLE", options.statements):
                for n in range(options.statements):
                    connection.execute(f"CREATE TABLE e{n} USING m TAGS ({n})")
            with told("CREATE TABLE of many", options.block):
                connection.execute("CREATE TABLE " + " ".join(
                    f"f{n} USING m TAGS ({n % 1000})" for n in range(options.block)))
            _ask(connection)
        with told("open", 1), penstock.connect(Path(folder) / "data", settings) as connection:
            connection.execute("USE d")
        with penstock.connect(Path(folder) / "data", settings) as connection:
            connection.execute("USE d")
            _ask(connection)
            with told("DROP TABLE m", 1):
                connection.execute("DROP TABLE m")
        with told("open after DROP TABLE", 1), penstock.connect(Path(folder) / "data", settings):
            pass
    return 0


def _write(connection: Any, options: argparse.Namespace) -> None:
    blocks = [(first, min(options.block, options.tables - first)) for first in range(0, options.tables, options.block)]
    few = pa.concat_tables([rows(0, 1000, n, "few") for n in range(options.block // 1000)])
    connection.cursor().insert_arrow("few", few.slice(0, 1000))
    with told("rows of a thousand child tables", few.num_rows * len(blocks)):
        for _ in blocks:
            connection.cursor().insert_arrow("few", few)
    with told("child tables created with their first row", options.tables):
        for block in blocks:
            connection.cursor().insert_arrow("m", rows(*block, 0))
    with told("rows of all child tables", options.tables * options.rounds):
        for n in range(options.rounds):
            for block in blocks:
                connection.cursor().insert_arrow("m", rows(*block, n + 1))


def _ask(connection: Any) -> None:
    for query in ("SELECT count(*) FROM m",
                  "SELECT count(*) FROM (SELECT tbname, last_row(v) FROM m PARTITION BY tbname)",
                  "SELECT site, count(*) FROM m GROUP BY site", "SELECT count(*) FROM (SELECT DISTINCT tbname FROM m)",
                  "SELECT * FROM d77", "SHOW TABLES LIKE 'd7777%'", "SHOW TABLES",
                  "SELECT count(*) FROM information_schema.ins_tables",
                  "SELECT v FROM m WHERE tbname = 'd99' AND k > 3"):
        with told(query, 1) as found:
            found["rows"] = len(connection.execute(query).fetchall())


if __name__ == "__main__":
    sys.exit(main())
