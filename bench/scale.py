"""Rows per second and latency by vnodes, streams and executors: `python -m bench.scale`; a JSON line per measurement.

Spark's own `local-cluster` starts the executors, each with slots for all workers: so placing, shipping and exchange are
those of a cluster, and the machine is one. What is measured is said in `bench.throughput` and `bench.latency`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from bench.isolated import MeasurementFailedError, measured
from bench.latency import live
from bench.load import Schedule
from bench.queries import Q1
from bench.rows import Shape
from bench.throughput import catch_up
from penstock import __version__

_SLOTS = 64
_MEMORY_MB = 512
_KEPT = ("rows", "rows_per_second", "seconds", "latency_ms")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the lines; returns 1 if a measurement failed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executors", type=_numbers, default=[1, 2])
    parser.add_argument("--vnodes", type=_numbers, default=[1, 2, 4, 8])
    parser.add_argument("--streams", type=_numbers, default=[1, 10, 50], help="on one vnode")
    parser.add_argument("--rows", type=int, default=3_000_000, help="to catch up with, over all streams")
    parser.add_argument("--rate", type=int, default=20_000, help="rows/s of the latencies")
    parser.add_argument("--seconds", type=int, default=8, help="how long a latency is measured")
    options = parser.parse_args(arguments)
    failed = False
    for line in _measurements(options):
        failed |= "failed" in line
        sys.stdout.write(json.dumps({**line, "penstock": __version__, "cores": os.cpu_count(),
                                     "load": round(os.getloadavg()[0], 1)}) + "\n")
        sys.stdout.flush()
    return 1 if failed else 0


def _measurements(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for executors in options.executors:
        config = {"spark.master": f"local-cluster[{executors},{_SLOTS},{_MEMORY_MB}]",
                  "spark.executor.memory": f"{_MEMORY_MB}m"}
        of_rate = Shape(1000, options.rate * options.seconds)
        for vnodes in options.vnodes:
            about = {"executors": executors, "vnodes": vnodes, "streams": 1}
            yield {**about, **_measured(catch_up, shape=Shape(1000, options.rows), vgroups=vnodes, config=config)}
            yield {**about, **_measured(live, shape=of_rate, schedule=Schedule(options.rate), vgroups=vnodes,
                                        config=config | {"sinkCallsPerSecond": 1000})}
        for streams in options.streams:
            shape = Shape(1000, max(60_000, options.rows // streams))
            yield {"executors": executors, "vnodes": 1, "streams": streams,
                   **_measured(catch_up, shape=shape, vgroups=1, streams=streams, config=config)}


def _measured(measurement: Any, **arguments: Any) -> dict[str, Any]:
    try:
        found = measured(measurement, None, query=Q1, **arguments)
    except MeasurementFailedError as error:
        sys.stderr.write(f"{error}\n")
        return {"measure": measurement.__name__, "failed": str(error).strip().splitlines()[-1]}
    return {"measure": found["measure"], **{name: found[name] for name in _KEPT if name in found}}


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
