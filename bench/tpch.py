"""TPC-H: each of its 22 queries beside plain DuckDB over the Parquet files that the rows come from, and over our own.

`python -m bench.tpch --scale 1` prints a JSON line per query: medians of seconds by the clock and of processors, all
sides in turn, with the same threads and memory. Answers are compared first. tpchgen-cli makes the rows.
`--folder` keeps them and the database there, and uses them again if they are there. `--dates`: orders and their lines
have their dates for times, and lie in the order of these; else all rows lie as they do in the files they come from.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import penstock
from bench.tpch_queries import QUERIES, query_of
from penstock.common.errors import PenstockError

Row = tuple[Any, ...]
TABLES = ("region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem")
_THREADS, _MEMORY_MB = 2, 4096
_TIMES = 5
_ROWS_AT_ONCE = 100_000
_TYPES = {pa.int32(): "INT", pa.int64(): "BIGINT", pa.string(): "VARCHAR(200)", pa.string_view(): "VARCHAR(200)",
          pa.date32(): "TIMESTAMP", pa.timestamp("ms"): "TIMESTAMP"}


@dataclass(frozen=True, slots=True)
class Sides:
    """An engine with the tables in its database, and DuckDB with views of Parquet files; `scale`: of the rows.

    `plain` reads the files that the rows come from, `stored` those that the engine keeps.
    """

    ours: Any
    plain: duckdb.DuckDBPyConnection
    stored: duckdb.DuckDBPyConnection
    scale: float

    def query(self, number: int) -> str:
        """Returns the text of a query, which is the same for both."""
        return query_of(number, self.scale)

    def ask_ours(self, number: int) -> list[Row]:
        """Returns the engine's answer. Raises PenstockError."""
        rows: list[Row] = self.ours.execute(self.query(number)).fetchall()
        return rows

    def ask_plain(self, number: int) -> list[Row]:
        """Returns DuckDB's answer."""
        rows: list[Row] = self.plain.execute(self.query(number)).fetchall()
        return rows

    def ask_stored(self, number: int) -> list[Row]:
        """Returns DuckDB's answer over the engine's files."""
        rows: list[Row] = self.stored.execute(self.query(number)).fetchall()
        return rows


def generate(folder: Path, scale: float) -> None:
    """Writes a Parquet file of each table."""
    program = Path(sysconfig.get_path("scripts")) / "tpchgen-cli"
    subprocess.run([program, "parquet", "--scale-factor", str(scale), "--output-dir", folder], check=True,
                   stdout=subprocess.DEVNULL)


def load(cursor: Any, folder: Path, *, dates: bool) -> None:
    """Creates the tables in a new database, and writes the rows of the files into them.

    Rows have the times 0, 1, 2, ... ms. `dates`: those of orders and lines are dates, with a key beside.
    """
    cursor.execute("CREATE DATABASE tpch VGROUPS 1 KEEP 36500d")
    cursor.execute("USE tpch")
    for name in TABLES:
        file = pq.ParquetFile(folder / f"{name}.parquet")
        keyed = dates and name in ("orders", "lineitem")
        written = 0
        for batch in file.iter_batches(_ROWS_AT_ONCE):
            rows = pa.Table.from_batches([batch])
            rows = _by_date(name, rows) if keyed else rows.add_column(
                0, "ts", pa.array(range(written, written + rows.num_rows), pa.timestamp("ms")))
            if not written:
                first, second, *others = (f"{field.name} {column_type(field.type)}" for field in rows.schema)
                key = " PRIMARY KEY" if keyed else ""
                cursor.execute(f"CREATE TABLE {name} ({', '.join([first, second + key, *others])})")
            cursor.insert_arrow(name, rows)
            written += rows.num_rows


def _by_date(name: str, rows: pa.Table) -> pa.Table:
    """Returns rows of orders or lineitem with the columns first that are the table's key."""
    if name == "orders":
        return rows.select(["o_orderdate", "o_orderkey", *_without(rows, "o_orderdate", "o_orderkey")])
    key = pc.add(pc.multiply(rows.column("l_orderkey"), 8), rows.column("l_linenumber").cast(pa.int64()))
    keyed = rows.append_column("l_key", key)
    return keyed.select(["l_shipdate", "l_key", *_without(rows, "l_shipdate")])


def _without(rows: pa.Table, *names: str) -> list[str]:
    return [name for name in rows.column_names if name not in names]


def column_type(type: pa.DataType) -> str:
    """Returns the type of a column of the generator as a statement writes it."""
    if pa.types.is_decimal(type):
        return f"DECIMAL({type.precision}, {type.scale})"
    return _TYPES[type]


@contextmanager
def opened(folder: Path, scale: float, *, dates: bool = False) -> Iterator[Sides]:
    """Opens all sides over the rows in a folder; they are generated and loaded if they aren't there yet. See `load`."""
    files, data = folder / f"tpch-{scale:g}", folder / f"tpch-{scale:g}-{'dates' if dates else 'data'}"
    if not files.exists():
        files.mkdir()
        generate(files, scale)
    settings = {"disableStream": True, "timezone": "UTC", "queryThreads": _THREADS, "queryMemory": f"{_MEMORY_MB}MiB"}
    if not data.exists():
        with penstock.connect(data, settings) as connection:
            load(connection.cursor(), files, dates=dates)
    # Files that are merged while DuckDB reads them would count twice.
    with penstock.connect(data, {**settings, "compactMinParts": 1000}) as connection, _duckdb() as plain, (
            _duckdb()) as stored:
        cursor = connection.cursor()
        cursor.execute("USE tpch")
        parts = sorted(data.glob("vnode/*/store/parts/*"))  # in the order of the tables' creation
        for name, folder_of_table in zip(TABLES, parts, strict=True):
            plain.execute(f"CREATE VIEW {name} AS FROM '{files / name}.parquet'")
            stored.execute(f"CREATE VIEW {name} AS FROM '{folder_of_table}/0*.parquet'")
        yield Sides(cursor, plain, stored, scale)


def _duckdb() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": _THREADS, "memory_limit": f"{_MEMORY_MB}MiB"})


def measured(sides: Sides, numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yields the medians of each query, or why there are none."""
    for number in numbers:
        line: dict[str, Any] = {"measure": "tpch", "query": number, "scale": sides.scale, "threads": _THREADS}
        try:
            found = difference(sides.ask_ours(number), sides.ask_plain(number))
        except PenstockError as error:
            found = str(error)
        if found is not None:
            yield {**line, "failed": found}
            continue
        asked = (sides.ask_ours, sides.ask_plain, sides.ask_stored)
        taken = [[_seconds(ask, number) for ask in asked] for _ in range(_TIMES)]
        ours, plain, stored = (_medians(each) for each in zip(*taken, strict=True))
        yield {**line, "penstock": ours, "duckdb": plain, "duckdb_stored": stored,
               "ratio": round(ours["seconds"] / plain["seconds"], 2),
               "ratio_stored": round(ours["seconds"] / stored["seconds"], 2)}


def difference(ours: Sequence[Row], theirs: Sequence[Row]) -> str | None:
    """Returns what is different of two answers, or None."""
    if len(ours) != len(theirs):
        return f"{len(ours)} rows instead of {len(theirs)}"
    return next((f"{one} instead of {other}" for one, other in zip(ours, theirs, strict=True)
                 if not all(map(_alike, one, other))), None)


def _seconds(ask: Callable[[int], Any], number: int) -> tuple[float, float]:
    began, computed = time.perf_counter(), time.process_time()
    ask(number)
    return time.perf_counter() - began, time.process_time() - computed


def _medians(taken: Sequence[tuple[float, float]]) -> dict[str, float]:
    seconds, processors = (round(statistics.median(each), 4) for each in zip(*taken, strict=True))
    return {"seconds": seconds, "cpu_seconds": processors}


def _alike(one: Any, other: Any) -> bool:
    """Tells whether values are equal: times of days are dates, and numbers differ by what DOUBLE rounds at most."""
    if isinstance(one, int | float | Decimal) and isinstance(other, int | float | Decimal):
        return math.isclose(one, other, rel_tol=1e-9)
    if isinstance(one, datetime) and isinstance(other, date):
        return one.replace(tzinfo=None) == datetime(other.year, other.month, other.day)
    return bool(one == other)


def main() -> int:
    """Measures, and prints what was measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.tpch", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--queries", type=int, nargs="+", default=list(QUERIES), choices=list(QUERIES), metavar="N")
    parser.add_argument("--folder", type=Path, help="where rows and database stay (default: a temporary directory)")
    parser.add_argument("--dates", action="store_true", help="orders and lines have dates for their times")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with opened(folder, options.scale, dates=options.dates) as sides:
            for line in measured(sides, options.queries):
                print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
