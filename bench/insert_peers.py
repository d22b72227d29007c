"""Other databases that do what Penstock is measured with: INSERT statements of one row, each committed by itself."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb

_FIRST_MS = 1_700_000_000_000
_CHILDREN = 100
_BUSY_S = 60.0

Insert = Callable[[str], object]
"""Executes a statement, which is committed when it returns."""


def measure_peers(folder: Path, statements: int, threads: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yields how fast SQLite and DuckDB are, each thread with a connection of its own. DuckDB, which takes far longer
    for each, gets a tenth of the statements; its threads share the database.
    """
    for synchronous in ("NORMAL", "FULL"):
        path = folder / f"{synchronous}.sqlite"
        with closing(_sqlite(path, synchronous)) as connection:
            connection.execute("CREATE TABLE m (device TEXT, ts INTEGER, v REAL, k INTEGER, PRIMARY KEY (device, ts)) "
                               "WITHOUT ROWID")
        number = statements if synchronous == "NORMAL" else statements // 20
        for place, count in enumerate(threads):
            connections = [_sqlite(path, synchronous) for _ in range(count)]
            yield _told(f"sqlite, WAL, synchronous {synchronous}",
                        _timed([one.execute for one in connections], number, _FIRST_MS + place * statements), count)
            for connection in connections:
                connection.close()
    with duckdb.connect(str(folder / "peer.duckdb")) as database:
        database.execute("CREATE TABLE m (device VARCHAR, ts TIMESTAMP_MS, v DOUBLE, k INTEGER)")
        for place, count in enumerate(threads):
            cursors = [database.cursor() for _ in range(count)]
            yield _told("duckdb", _timed([one.execute for one in cursors], statements // 10,
                                         _FIRST_MS + place * statements, "make_timestamp_ms({})"), count)


def _sqlite(path: Path, synchronous: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    return connection


def _timed(inserts: Sequence[Insert], statements: int, first: int, time_of: str = "{}") -> tuple[int, float, float]:
    """Returns how many statements there were, and the seconds, and those of processors, that they have taken.

    Their rows have the times from `first` on.
    """
    each = statements // len(inserts)

    def run(place: int, insert: Insert) -> None:
        for number in range(each):
            table = (place + number * len(inserts)) % _CHILDREN
            at = time_of.format(first + number * len(inserts) + place)
            insert(f"INSERT INTO m VALUES ('d{table}', {at}, {number * 0.5}, {number})")

    workers = [threading.Thread(target=run, args=(place, insert)) for place, insert in enumerate(inserts)]
    begun, cpu = time.perf_counter(), time.process_time()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return each * len(inserts), time.perf_counter() - begun, time.process_time() - cpu


def _told(engine: str, taken: tuple[int, float, float], threads: int) -> dict[str, Any]:
    statements, seconds, cpu = taken
    return {"measure": "insert", "engine": engine, "rows_per_statement": 1, "threads": threads,
            "statements_per_second": round(statements / seconds),
            "cpu_us_per_statement": round(cpu / statements * 1e6, 1)}
