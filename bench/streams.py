"""Measures streams, and peers beside them: `python -m bench.streams [QUERY ...] [options]`; a JSON line each.

Without options all parts run, which takes about a quarter of an hour on two cores. `--parts` picks some, queries
restrict them to theirs, `--profile` does something else: it runs each query in one thread, without Spark, and says what
each task costs. Answers are compared with DuckDB's before a speed is printed. What the measurements are and how they
are taken is said in the modules: bench.throughput, bench.latency, bench.recovery, bench.spark_peer, bench.flink_peer.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from bench.isolated import MeasurementFailedError, measured
from bench.jobs import PARTS, Job, Options
from bench.profiling import profile
from bench.queries import QUERIES
from bench.rows import Shape
from penstock import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints one JSON line per measurement; returns 1 if any failed."""
    options = _parser().parse_args(arguments)
    unknown = sorted({*options.queries} - {*QUERIES} | {*options.parts} - {*PARTS})
    if unknown:
        raise SystemExit(f"no query or part {', '.join(unknown)}; there are {', '.join((*QUERIES, *PARTS))}")
    outputs = [sys.stdout]
    failed = False
    with open(options.output or os.devnull, "a", encoding="utf-8") as file:
        outputs.append(file)
        for measurement in _profiles(options) if options.profile else _measurements(options):
            failed |= "failed" in measurement
            _emit(outputs, measurement)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.streams", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("queries", nargs="*", metavar="QUERY", help=f"some of {', '.join(QUERIES)}; default: all")
    parser.add_argument("--parts", type=_names, default=list(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--rows", type=int, help="rows to catch up with (3,000,000; 1,000,000 with --profile)")
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--vgroups", type=int, help="2 by default, 1 with --profile")
    parser.add_argument("--batch-rows", type=int, default=20_000, help="rows per INSERT")
    parser.add_argument("--accounts", type=int, default=100_000, help="groups of the query `accounts`")
    parser.add_argument("--growth", type=float, default=1.0, help="part of the greatest sizes, in `growth`")
    parser.add_argument("--rates", type=_numbers, default=[20_000, 200_000], help="rows/s of the part `latency`")
    parser.add_argument("--seconds", type=int, default=12, help="how long each latency is measured")
    parser.add_argument("--scale", type=float, default=0.002, help="part of 10,000 x 100,000 rows, in `history`")
    parser.add_argument("--flink-python", type=Path, help="a Python that has apache-flink; without: no Flink")
    parser.add_argument("--directory", type=Path, help="where data goes (default: a temporary directory)")
    parser.add_argument("--output", type=Path, help="a file to which the lines are appended as well")
    profiling = parser.add_argument_group("profile")
    profiling.add_argument("--profile", action="store_true", help="one thread, no Spark: what each task costs")
    profiling.add_argument("--follow", action="store_true", help="the stream works after each INSERT")
    profiling.add_argument("--calls", type=int, default=0, help="so many functions that take most time, to stderr")
    profiling.add_argument("--trigger", choices=("WINDOW_CLOSE", "AT_ONCE"), default="WINDOW_CLOSE")
    profiling.add_argument("--late", type=float, default=0.0, help="share of rows that come late, 0 to 1")
    profiling.add_argument("--updated", type=float, default=0.0, help="share of rows that are written twice, 0 to 1")
    return parser


def _measurements(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    chosen = Options(
        queries=options.queries or list(QUERIES), rows=options.rows or 3_000_000, tables=options.tables,
        vgroups=options.vgroups or 2, batch_rows=options.batch_rows, accounts=options.accounts,
        growth=options.growth, rates=options.rates, seconds=options.seconds, scale=options.scale,
        flink_python=options.flink_python)
    for part in options.parts:
        for job in PARTS[part](chosen):
            yield _of_job(job, options.directory)


def _of_job(job: Job, directory: Path | None) -> dict[str, Any]:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {job.part}: {job.title}\n")
    try:
        measurement = measured(job.measurement, directory, **job.arguments)
    except MeasurementFailedError as error:
        sys.stderr.write(f"{error}\n")
        measurement = {"title": job.title, "failed": str(error).strip().splitlines()[-1]}
    return {"part": job.part, **job.about, **measurement}


def _profiles(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    shape = Shape(options.tables, options.rows or 1_000_000, late=options.late, updated=options.updated,
                  accounts=options.accounts)
    for name in options.queries or QUERIES:
        query = QUERIES[name]
        folder = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=options.directory))
        try:
            yield profile(query, query.of(shape), options.trigger, folder / "data", vgroups=options.vgroups or 1,
                          batch_rows=options.batch_rows, calls=options.calls, follow=options.follow)
        finally:
            shutil.rmtree(folder)


def _emit(outputs: Sequence[TextIO], measurement: dict[str, Any]) -> None:
    line = json.dumps({**measurement, "penstock": __version__, "cores": os.cpu_count(),
                       "load": round(os.getloadavg()[0], 1)})
    for output in outputs:
        output.write(line + "\n")
        output.flush()


def _names(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
