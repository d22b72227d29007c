"""How fast streams catch up with rows that are in the log already: from RESUME STREAM to all results visible.

Streams are created before the rows are written, wait until their tasks run, and are paused; then all rows are written
and flushed, and the clock starts with RESUME. So what is measured is the way from the log to the results, with warm
workers, and nothing of what brings rows in. (FILL_HISTORY reads Parquet parts instead of the log; `history` measures
that.) The time ends with the last result that became visible, plus the checkpoint that is then ordered, which makes the
state of everything durable.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.answers import check, expected, open_windows
from bench.figures import rates
from bench.isolated import Phase
from bench.node import Node
from bench.processes import cpu_seconds
from bench.queries import Query, Trigger
from bench.rows import Shape, arrivals
from bench.setup import create_tables, feed

_TIMEOUT_S = 900.0


def catch_up(
    folder: Path, phase: Phase, query: Query, shape: Shape, trigger: Trigger = "WINDOW_CLOSE", *, vgroups: int = 2,
    batch_rows: int = 20_000, streams: int = 1, config: Mapping[str, Any] | None = None, count_open: bool = False,
) -> dict[str, Any]:
    """Returns the measurement of `streams` equal streams over the rows of a shape. Raises WrongAnswerError.

    `count_open`: also says how many (group, window) pairs are open at the end.
    """
    with Node(folder / "data", config) as node:
        create_tables(node.execute, shape, vgroups)
        created = time.monotonic_ns()
        for n in range(streams):
            node.execute(query.stream(f"s{n}", f"out{n}", trigger))
        node.wait_running()
        ready = time.monotonic_ns()
        for n in range(streams):
            node.execute(f"PAUSE STREAM s{n}")
        rows = feed(node.engine, node.session, shape, arrivals(shape, batch_rows))
        node.engine.flush()
        ends = node.log_ends()
        phase.begin()
        started, cpu_before = time.monotonic_ns(), cpu_seconds()
        for n in range(streams):
            node.execute(f"RESUME STREAM s{n}")
        return {
            "measure": "throughput", "engine": "penstock", "query": query.name, "trigger": trigger,
            "ready_seconds": round((ready - created) / 1e9, 3), "streams": streams, "vgroups": vgroups,
            "rows_per_record": batch_rows, **_described(shape), **(config or {}),
            **_finish(node, phase, query, shape, trigger, rows, streams, ends, started, cpu_before),
            **({"open_windows": open_windows(query, shape)} if count_open else {}),
        }


def history(
    folder: Path, phase: Phase, query: Query, shape: Shape, *, vgroups: int = 2, batch_rows: int = 20_000,
    config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the measurement of a stream with FILL_HISTORY 1 over rows that were there before it.

    The clock starts with CREATE STREAM, when another stream runs already, so that Spark's start isn't measured.
    """
    with Node(folder / "data", config) as node:
        create_tables(node.execute, shape, vgroups)
        node.execute(f"CREATE STREAM warm INTO warm AS SELECT ts, 1 one FROM {shape.source} WHERE ts < 1 "
                     "PARTITION BY tbname")
        node.wait_running()
        node.execute("PAUSE STREAM warm")
        rows = feed(node.engine, node.session, shape, arrivals(shape, batch_rows))
        node.engine.flush()
        ends = node.log_ends()
        phase.begin()
        started, cpu_before = time.monotonic_ns(), cpu_seconds()
        node.execute("DROP STREAM warm")
        node.execute(query.stream("s0", "out0", "WINDOW_CLOSE", "FILL_HISTORY 1"))
        node.wait_running()
        return {
            "measure": "history", "engine": "penstock", "query": query.name, "trigger": "WINDOW_CLOSE",
            "streams": 1, "vgroups": vgroups, "rows_per_record": batch_rows, **_described(shape), **(config or {}),
            **_finish(node, phase, query, shape, "WINDOW_CLOSE", rows, 1, ends, started, cpu_before),
        }


def _finish(
    node: Node, phase: Phase, query: Query, shape: Shape, trigger: Trigger, rows: int, streams: int, ends: list[int],
    started: int, cpu_before: float,
) -> dict[str, Any]:
    """Waits for the results, orders checkpoints, checks the answers, and returns the figures."""
    node.wait_done(ends, _TIMEOUT_S)
    ordered = time.monotonic_ns()
    for n in range(streams):
        node.execute(f"CHECKPOINT STREAM s{n}")
    checkpoint_s = (time.monotonic_ns() - ordered) / 1e9
    cpu = cpu_seconds() - cpu_before
    phase.end()
    log = node.results
    if log.first_ns is None or log.last_ns is None:
        raise RuntimeError(f"{query.name}: no results at all")
    visible_s = (log.last_ns - started) / 1e9
    wanted = expected(query, shape, trigger)
    found: pa.Table | None = None
    for n in range(streams):
        found = node.execute(query.result(f"out{n}")).table
        assert found is not None
        check(query, found, wanted)
    assert found is not None
    return {
        **rates(rows * streams, visible_s + checkpoint_s, cpu), "visible_seconds": round(visible_s, 3),
        "checkpoint_seconds": round(checkpoint_s, 3), "first_result_seconds": round((log.first_ns - started) / 1e9, 3),
        "result_rows": found.num_rows, "written_rows": log.rows, "write_calls": log.calls, "answer": "equal",
    }


def _described(shape: Shape) -> dict[str, Any]:
    described: dict[str, Any] = {"tables": shape.tables, "late": shape.late, "updated": shape.updated}
    if shape.source == "accounts":
        described["groups"] = shape.accounts
    return described
