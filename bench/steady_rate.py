"""Rows at a steady rate, in ticks of 10 ms: what they cost alone and with a stream, and how soon results are visible.

The queries are those of `bench.queries` that sum up per table and per tag, with results when windows close and at once,
each alone and with others beside it. The sender is a process of its own, whose share of the processor doesn't count.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from bench.isolated import Phase, measured
from bench.jobs import MANY_SINK_CALLS
from bench.latency import live, seconds_but_for
from bench.load import Schedule, receive, start_sender, wait_for
from bench.node import Node
from bench.queries import QUERIES, Trigger
from bench.rows import Shape
from bench.setup import DATABASE, create_tables

_WARM_UP_S = 3
_TABLES = 100
_TRIGGERS: tuple[Trigger, ...] = ("WINDOW_CLOSE", "AT_ONCE")


def measure_steady(folder: Path, rate: int, seconds: float, others: int) -> Iterator[dict[str, Any]]:
    """Yields what `rate` rows per second cost without a stream, with one, and with `others` beside that one."""
    shape, schedule = Shape(_TABLES, int(rate * (seconds + _WARM_UP_S))), Schedule(rate)
    alone = measured(rows_alone, folder, shape=shape, schedule=schedule)
    yield {"measure": "steady", "streams": 0, "rows_per_second": rate,
           "cpu_of_a_core": round(alone["cpu_seconds"] / alone["seconds"], 3)}
    for name, trigger, beside in product(("q1", "q2"), _TRIGGERS, (0, others)):
        query = QUERIES[name]
        found = measured(live, folder, query=query, shape=query.of(shape), schedule=schedule, trigger=trigger,
                         vgroups=1, warm_seconds=_WARM_UP_S, config=MANY_SINK_CALLS, others=beside)
        yield {"measure": "steady", "streams": 1 + beside, "query": name, "trigger": trigger, "rows_per_second": rate,
               "cpu_of_a_core": round(found["cpu_seconds"] / found["seconds"], 3), "latency_ms": found["latency_ms"],
               "latency_from_schedule_ms": found["latency_from_schedule_ms"], "samples": found["samples"]}


def rows_alone(folder: Path, phase: Phase, shape: Shape, schedule: Schedule) -> dict[str, Any]:
    """Returns what rows take that no stream reads."""
    address = folder / "sender"
    sender = start_sender(address, shape, schedule)
    with Node(folder / "data") as node:
        create_tables(node.execute, shape, 1)
        wait_for(address)
        phase.begin()
        started, cpu_before = time.monotonic(), seconds_but_for(sender)
        for tick in receive(address):
            node.insert(f"{DATABASE}.{shape.source}", tick.rows)
        taken, cpu = time.monotonic() - started, seconds_but_for(sender) - cpu_before
        phase.end()
        sender.join()
    return {"seconds": taken, "cpu_seconds": cpu}
