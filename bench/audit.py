"""What the audit costs ten streams: `python -m bench.audit`; a JSON line per run and one with the ratios.

Ten streams of windows by group run beside INSERTs of one row on a fixed schedule, of which one in fifty is late by up
to a minute and one in fifty rewrites a row. Latency is from when an INSERT was due to a result of its row being
visible, of rows that are newer than all before. Runs with and without the audit take turns; what is audited must be
equal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.figures import percentiles
from bench.isolated import Phase, measured
from bench.node import Node
from bench.processes import cpu_seconds
from bench.setup import DATABASE
from penstock import __version__
from penstock.common.config import load_config
from penstock.tasks.protocol.messages import ResultWrite

_STREAMS, _CHILDREN = 10, 100
_T0 = 1_700_000_000_000
_WARM_UP_S, _SETTLE_S = 10.0, 60.0
_EVERY = 50  # of so many rows one is late, and one rewrites another
_LATE_MS = 60_000


def audited(folder: Path, phase: Phase, share: float, seconds: float, per_second: int) -> dict[str, Any]:
    """Returns how ten streams fare, with this auditShare."""
    with Node(folder / "data", {"auditShare": share}) as node:
        for text in (f"CREATE DATABASE {DATABASE} VGROUPS 2 KEEP 36500d", f"USE {DATABASE}",
                     "CREATE TABLE m (ts TIMESTAMP, v DOUBLE) TAGS (g INT)",
                     "CREATE TABLE " + " ".join(f"d{n} USING m TAGS ({n % 10})" for n in range(_CHILDREN)),
                     *(f"CREATE STREAM s{n} TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0 INTO o{n} AS SELECT "
                       f"_wstart, count(*) c, avg(v) a, max(ts) latest FROM m PARTITION BY g INTERVAL({n + 1}s)"
                       for n in range(_STREAMS))):
            node.execute(text)
        node.wait_running()
        begun = time.monotonic()
        latencies = _Latencies(begun, per_second)
        node.results.hear = latencies.note
        pause = threading.Event()
        cpu = since = 0.0
        for number in range(int((seconds + _WARM_UP_S) * per_second)):
            pause.wait(max(0.0, begun + number / per_second - time.monotonic()))
            if number == int(_WARM_UP_S * per_second):
                phase.begin()
                cpu, since = cpu_seconds(), time.monotonic()
                latencies.found.clear()
            shift = {0: -_LATE_MS - number % _LATE_MS, 1: -_CHILDREN}.get(number % _EVERY, 0)
            node.execute(f"INSERT INTO d{number % _CHILDREN} VALUES ({_T0 + number + shift}, {number * 0.5})")
        cpu, passed = cpu_seconds() - cpu, time.monotonic() - since
        phase.end()
        node.wait_until(lambda: all(not row["lag"] for row in node.rows(
            "SELECT lag FROM information_schema.ins_streams")), _SETTLE_S, 0.5)
        found = node.rows("SELECT sum(audited_results) results, count(last_audit) streams, sum(mismatches) wrong "
                          "FROM information_schema.ins_streams")[0]
        return {"measure": "audit", "share": share, "streams": _STREAMS, "inserts_per_second": per_second,
                "cpu_of_a_core": round(cpu / passed, 3), "latency_ms": percentiles(np.array(latencies.found)),
                "audited_streams": found["streams"], "equal": found["results"], "wrong": found["wrong"]}


class _Latencies:
    """How long rows took to their results, in ms: of each stream those rows that are newer than all before."""

    def __init__(self, begun: float, per_second: int) -> None:
        self._begun = begun
        self._per_second = per_second
        self._newest: dict[int, int] = {}
        self.found: list[float] = []

    def note(self, at_ns: int, write: ResultWrite) -> None:
        newest = int(write.rows.column("latest").cast(pa.int64()).to_numpy().max())
        if newest > self._newest.get(write.stream_id, _T0):
            self._newest[write.stream_id] = newest
            self.found.append(at_ns / 1e6 - 1e3 * (self._begun + (newest - _T0) / self._per_second))


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a JSON line per run, and one with the medians of the ratios."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.audit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=load_config(environment={}).audit_share,
                        help="auditShare (default: the engine's)")
    parser.add_argument("--per-second", type=int, default=200, help="INSERTs per second (default 200)")
    parser.add_argument("--seconds", type=int, default=60, help="how long each run is measured (default 60)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind (default 3)")
    options = parser.parse_args(arguments)
    pairs = []
    for _ in range(options.rounds):
        lines = [measured(audited, None, share=share, seconds=options.seconds, per_second=options.per_second)
                 for share in (0.0, options.share)]
        for line in lines:
            print(json.dumps({"version": __version__, **line}), flush=True)
        if lines[1]["wrong"] or not lines[1]["equal"]:
            print("the audit has found wrong results, or has found none", file=sys.stderr)
            return 1
        pairs.append(lines)
    print(json.dumps({"measure": "audit", "version": __version__, "with_to_without": {
        "cpu": round(statistics.median(on["cpu_of_a_core"] / off["cpu_of_a_core"] for off, on in pairs), 3),
        **{share: round(statistics.median(on["latency_ms"][share] / off["latency_ms"][share] for off, on in pairs), 3)
           for share in ("p50", "p99")}}}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
