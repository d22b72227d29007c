"""INSERTs that wait for the disk (WAL_LEVEL 2), beside what the disk does by itself."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import penstock
from bench.setup import DATABASE

_FIRST_MS = 1_700_000_000_000
_RECORD, _SYNCS = bytes(60), 200


def syncs_per_second(folder: Path, count: int) -> float:
    """Returns how often per second a small record can be appended to a file and synced, one after the other."""
    descriptor = os.open(folder / "syncs", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        begun = time.perf_counter()
        for _ in range(count):
            os.write(descriptor, _RECORD)
            os.fdatasync(descriptor)
        return count / (time.perf_counter() - begun)
    finally:
        os.close(descriptor)


def measure_durable(folder: Path, statements: int, clients: int) -> Iterator[dict[str, Any]]:
    """Yields how fast durable INSERTs of one row are from one and from many connections, in terms of syncs too."""
    directory = folder / "durable"
    with penstock.connect(directory, {"timezone": "UTC"}) as connection:
        for text in (f"CREATE DATABASE {DATABASE} VGROUPS 1 WAL_LEVEL 2", f"USE {DATABASE}",
                     "CREATE TABLE m (ts TIMESTAMP, v DOUBLE, k INT) TAGS (g INT)",
                     "CREATE TABLE " + " ".join(f"d{n} USING m TAGS ({n})" for n in range(clients))):
            connection.execute(text)
        each = statements // clients
        for count in (1, clients):
            before = syncs_per_second(folder, _SYNCS)
            seconds, cpu = _insert(directory, count, each)
            syncs = (before + syncs_per_second(folder, _SYNCS)) / 2
            yield {"measure": "durable", "threads": count, "statements_per_second": round(each * count / seconds),
                   "cpu_us_per_statement": round(cpu / (each * count) * 1e6, 1),
                   "syncs_per_second_of_the_disk": round(syncs),
                   "statements_per_sync_of_the_disk": round(each * count / seconds / syncs, 1)}


def _insert(directory: Path, threads: int, statements: int) -> tuple[float, float]:
    """Returns the seconds, and those of processors, of so many statements in each of some threads."""
    connections = [penstock.connect(directory) for _ in range(threads)]
    first = _FIRST_MS + (threads << 32)

    def run(place: int) -> None:
        cursor = connections[place].execute(f"USE {DATABASE}")
        for number in range(statements):
            cursor.execute(f"INSERT INTO d{place} VALUES ({first + number}, {number * 0.5}, {number})")

    workers = [threading.Thread(target=run, args=(place,)) for place in range(threads)]
    begun, cpu = time.perf_counter(), time.process_time()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    taken = time.perf_counter() - begun, time.process_time() - cpu
    for connection in connections:
        connection.close()
    return taken
