"""Measures how fast rows come in: `python -m bench.ingest [--rows N] [--directory DIR] [--ways values,csv,...]`.

One JSON line per way, number of vgroups and WAL level: the median of three runs, each into a new table of a new
database. Each run counts the rows it finds before its speed counts. Flushing to Parquet goes on in the background, as
it does in use, and counts towards the time of processors (`per_cpu_second`: rows, the best of three), which says more
than the clock where the machine has other things to do.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

import penstock

STATEMENT_ROWS = 1000
CALL_ROWS = 100_000  # lines per call of the line protocol
CHILDREN = 100
DATABASE = "bench"
FIRST_MS = 1_648_791_213_000
RUNS = 3
ROWS = {"values": 200_000, "targets": 200_000, "new_tables": 50_000, "line": 500_000,
        "csv": 2_000_000, "parquet": 4_000_000, "arrow": 4_000_000}


@dataclass(frozen=True, slots=True)
class Input:
    """Rows of one way of ingestion, ready before the clock starts; `ingest` writes all of them."""

    rows: int
    ingest: Callable[[penstock.Connection, str], object]


def readings(count: int) -> pa.Table:
    """Returns rows of `CHILDREN` meters that report in turn, as a gateway would see them."""
    number = np.arange(count)
    rng = np.random.default_rng(7)
    names = pa.DictionaryArray.from_arrays(
        pa.array((number % CHILDREN).astype(np.int32)), pa.array([f"d{each}" for each in range(CHILDREN)]))
    return pa.table({
        "tbname": names.cast(pa.string()),
        "ts": pa.array(FIRST_MS + number, pa.timestamp("ms")),
        "current": pa.array(np.round(rng.normal(10, 1, count), 2)),
        "voltage": pa.array(rng.integers(210, 230, count)),
        "phase": pa.array(np.round(rng.random(count), 2)),
    })


def values_input(rows: pa.Table, folder: Path) -> Input:
    """INSERT statements of 1,000 rows each, into one child table after the other."""
    statements = []
    columns = [rows.column(name).to_pylist() for name in ("current", "voltage", "phase")]
    for start in range(0, rows.num_rows, STATEMENT_ROWS):
        places = range(start, min(start + STATEMENT_ROWS, rows.num_rows))
        texts = ",".join(f"({FIRST_MS + at},{columns[0][at]},{columns[1][at]},{columns[2][at]})" for at in places)
        statements.append((start // STATEMENT_ROWS % CHILDREN, texts))

    def ingest(connection: penstock.Connection, database: str) -> None:
        cursor = connection.cursor()
        for child, texts in statements:
            cursor.execute(f"INSERT INTO {database}.d{child} VALUES {texts}")

    return Input(rows.num_rows, ingest)


def targets_input(rows: pa.Table, folder: Path) -> Input:
    """INSERT statements of 1,000 rows each that name the child table of each row, as a gateway sees them."""
    return _statements(rows, lambda at: f"{DATABASE}.d{at % CHILDREN} VALUES ")


def new_tables_input(rows: pa.Table, folder: Path) -> Input:
    """INSERT statements of 1,000 rows each, each of which creates its child table."""
    return _statements(rows, lambda at: f"{DATABASE}.n{at} USING {DATABASE}.meters TAGS ('city{at}') VALUES ")


def _statements(rows: pa.Table, target: Callable[[int], str]) -> Input:
    """INSERT statements of 1,000 rows each; `target`: what stands before the values of a row, by its number."""
    columns = [rows.column(name).to_pylist() for name in ("current", "voltage", "phase")]
    values = [f"({FIRST_MS + at},{columns[0][at]},{columns[1][at]},{columns[2][at]})" for at in range(rows.num_rows)]
    texts = ["INSERT INTO " + " ".join(target(at) + values[at] for at in range(
        start, min(start + STATEMENT_ROWS, rows.num_rows))) for start in range(0, rows.num_rows, STATEMENT_ROWS)]

    def ingest(connection: penstock.Connection, database: str) -> None:
        cursor = connection.cursor()
        for text in texts:
            cursor.execute(text)

    return Input(rows.num_rows, ingest)


def csv_input(rows: pa.Table, folder: Path) -> Input:
    """One file of unquoted cells, tbname first."""
    path = folder / "rows.csv"
    stamps = rows.column("ts").cast(pa.int64())
    options = pa_csv.WriteOptions(include_header=False, quoting_style="none")
    pa_csv.write_csv(rows.set_column(1, "ts", stamps), path, options)
    columns = ", ".join(rows.column_names)
    return Input(rows.num_rows, lambda connection, database: connection.execute(
        f"INSERT INTO {database}.meters ({columns}) FILE '{path}'"))


def parquet_input(rows: pa.Table, folder: Path) -> Input:
    """One Parquet file."""
    path = folder / "rows.parquet"
    pq.write_table(rows, path)
    return Input(rows.num_rows, lambda connection, database: connection.execute(
        f"INSERT INTO {database}.meters FILE '{path}'"))


def arrow_input(rows: pa.Table, folder: Path) -> Input:
    """One Arrow table in memory."""
    return Input(rows.num_rows, lambda connection, database: connection.cursor().insert_arrow(
        f"{database}.meters", rows))


def line_input(rows: pa.Table, folder: Path) -> Input:
    """Line protocol, 100,000 lines per call."""
    columns = [rows.column(name).to_pylist() for name in ("current", "voltage", "phase")]
    calls = []
    for start in range(0, rows.num_rows, CALL_ROWS):
        places = range(start, min(start + CALL_ROWS, rows.num_rows))
        calls.append("\n".join(
            f"meters,location=city{at % CHILDREN},groupid={at % 10} current={columns[0][at]},voltage={columns[1][at]}i,"
            f"phase={columns[2][at]} {(FIRST_MS + at) * 1_000_000}" for at in places).encode())

    def ingest(connection: penstock.Connection, database: str) -> None:
        for lines in calls:
            connection.ingest_lines(lines, database=database)

    return Input(rows.num_rows, ingest)


WAYS: dict[str, Callable[[pa.Table, Path], Input]] = {
    "values": values_input, "targets": targets_input, "new_tables": new_tables_input, "csv": csv_input,
    "parquet": parquet_input, "arrow": arrow_input, "line": line_input}


def run(
    connection: penstock.Connection, way: str, source: Input, vgroups: int, wal_level: int
) -> tuple[float, float]:
    """Returns the seconds that one run takes, and those of processors. Raises RuntimeError if rows are missing."""
    connection.execute("DROP DATABASE IF EXISTS bench")
    connection.execute(f"CREATE DATABASE bench VGROUPS {vgroups} WAL_LEVEL {wal_level} KEEP 36500d")
    if way != "line":
        connection.execute("CREATE STABLE bench.meters (ts TIMESTAMP, current DOUBLE, voltage BIGINT, phase DOUBLE) "
                           "TAGS (location VARCHAR(16))")
        connection.execute("CREATE TABLE " + " ".join(
            f"bench.d{each} USING bench.meters TAGS ('city{each}')" for each in range(CHILDREN)))
    start, start_cpu = time.perf_counter(), time.process_time()
    source.ingest(connection, DATABASE)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    found = connection.execute("SELECT count(*) FROM bench.meters").fetchone()
    if found != (source.rows,):
        raise RuntimeError(f"{way}: {source.rows} rows were written, {found} are there")
    return seconds, cpu_seconds


def measure(folder: Path, ways: Sequence[str], factor: float) -> Iterator[dict[str, Any]]:
    """Yields one measurement after the other."""
    for way in ways:
        source = WAYS[way](readings(int(ROWS[way] * factor)), folder)
        with penstock.connect(str(folder / "data")) as connection:
            for vgroups in (1, 4):
                for wal_level in (1, 2):
                    runs = [run(connection, way, source, vgroups, wal_level) for _ in range(RUNS)]
                    times, cpu_times = zip(*runs, strict=True)
                    yield {
                        "way": way, "vgroups": vgroups, "wal_level": wal_level, "rows": source.rows,
                        "rows_per_second": round(source.rows / statistics.median(times)),
                        "best": round(source.rows / min(times)),
                        "per_cpu_second": round(source.rows / min(cpu_times)), "cores": os.cpu_count(),
                        "load": round(os.getloadavg()[0], 1),
                    }
            connection.execute("DROP DATABASE IF EXISTS bench")


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints one JSON line per measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ways", default=",".join(WAYS), help=f"some of {', '.join(WAYS)}")
    parser.add_argument("--factor", type=float, default=1.0, help="more or fewer rows")
    parser.add_argument("--directory", type=Path, help="where data and files go (default: a temporary directory)")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=options.directory))
    try:
        for measurement in measure(folder, options.ways.split(","), options.factor):
            sys.stdout.write(json.dumps(measurement) + "\n")
            sys.stdout.flush()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
