"""Creates and drops many streams on a real Spark, in waves, and tells what stays: `python -m programs.many_streams`.

Counted are descriptors, threads and memory of the engine, of Spark's Java and of the workers, processes, files of the
data directory, and shared memory. Exits with 1 if more stays than a few, or more memory than `--bytes` for each stream.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from kits.basics.waiting import wait_until

import penstock

CONFIG = {"timezone": "UTC", "idleTimeout": "1h", "checkpointInterval": "1s", "spark.ui.enabled": False,
          "partGrace": "0s"}
_WARM_WAVES = 4
_PATIENCE_S = 120.0


@dataclass(frozen=True)
class Held:
    """What is held at one moment, when no stream is there. `*_mib`: resident memory."""

    descriptors: int
    threads: int
    engine_mib: int
    java_descriptors: int
    java_threads: int
    java_mib: int
    workers: int
    worker_descriptors: int
    worker_threads: int
    worker_mib: int
    files: int
    shared: int


def held(data: Path) -> Held:
    """Counts."""
    gc.collect()
    engine = psutil.Process()
    java = next(process for process in engine.children() if "java" in process.name())
    workers = java.children(recursive=True)
    return Held(
        engine.num_fds(), engine.num_threads(), engine.memory_info().rss >> 20, java.num_fds(), java.num_threads(),
        java.memory_info().rss >> 20, len(workers), sum(worker.num_fds() for worker in workers),
        sum(worker.num_threads() for worker in workers), sum(worker.memory_info().rss for worker in workers) >> 20,
        sum(len(files) + len(folders) for _, folders, files in os.walk(data)), len(os.listdir("/dev/shm")))


def waves(cursor: Any, data: Path, streams: int, wave: int) -> Iterator[Held]:
    """Creates `streams` streams, `wave` at a time; yields what is held whenever those of a wave are gone."""
    cursor.execute("CREATE DATABASE d VGROUPS 2 KEEP 36500d")
    cursor.execute("CREATE STABLE d.m (ts TIMESTAMP, v INT) TAGS (site INT)")
    for first in range(0, streams, wave):
        names = range(first, min(first + wave, streams))
        for n in names:
            window = ("INTERVAL(10s)", "SESSION(ts, 10s)", "STATE_WINDOW(v)")[n % 3]
            cursor.execute(f"CREATE STREAM s{n} TRIGGER AT_ONCE INTO d.o{n} AS SELECT _wstart ts, count(*) c FROM d.m "
                           f"PARTITION BY tbname {window}")
        cursor.execute("INSERT INTO " + " ".join(
            f"d.t{n} USING d.m TAGS (1) VALUES ({1_700_000_000_000 + first * 1000}, {n})" for n in range(4)))
        for n in names:
            wait_until(lambda n=n: count(cursor, f"SELECT count(*) FROM d.o{n}") == 4, _PATIENCE_S,
                       f"stream s{n} has no results")
        for n in names:
            cursor.execute(f"DROP STREAM s{n}")
            cursor.execute(f"DROP TABLE d.o{n}")
        wait_until(lambda: not list(data.glob("streams/*")), _PATIENCE_S, "files of streams stayed")
        yield held(data)


def count(cursor: Any, query: str) -> int:
    cursor.execute(query)
    ((found,),) = cursor.fetchall()
    return int(found)


def left_over(before: Held, after: Held, streams: int, bytes_max: int) -> list[str]:
    """Returns what stayed of `streams` streams between two moments, in words."""
    gone_up = {name: value - asdict(before)[name] for name, value in asdict(after).items()}
    grown = streams * bytes_max >> 20
    allowed = dict.fromkeys(gone_up, 0) | {
        # Open parts are kept in a bounded cache, threads in pools; log and source table grow with their own rows.
        "descriptors": 64, "threads": 8, "java_descriptors": 64, "java_threads": 32, "workers": 2,
        "worker_descriptors": 64, "worker_threads": 64, "files": 128, "shared": 16,
        "engine_mib": grown, "java_mib": 128 + grown, "worker_mib": 128 + grown}
    return [f"{name} went up by {value}" for name, value in gone_up.items() if value > allowed[name]]


def main() -> int:
    """Runs as the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m programs.many_streams", description=__doc__)
    parser.add_argument("--streams", type=int, default=1_000, help="how many (default 1,000)")
    parser.add_argument("--wave", type=int, default=20, help="how many at a time (default 20)")
    parser.add_argument("--bytes", type=int, default=64 << 10, help="of memory that each may leave (default 64 KiB)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-many-") as folder:
        data = Path(folder) / "data"
        samples: list[Held] = []
        with penstock.connect(str(data), CONFIG) as connection:
            for sample in waves(connection.cursor(), data, options.streams, options.wave):
                samples.append(sample)
                sys.stdout.write(f"{min(len(samples) * options.wave, options.streams)} {sample}\n")
                sys.stdout.flush()
    warm = samples[min(_WARM_WAVES, len(samples) - 1)]
    problems = left_over(warm, samples[-1], options.streams, options.bytes)
    sys.stdout.write("\n".join(problems or ["nothing stayed"]) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
