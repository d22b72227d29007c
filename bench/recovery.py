"""How long after kill -9 of a worker, or of the whole engine, results flow again, while rows keep coming on schedule.

The time ends with the first result that a later attempt of the stream has made visible. For the engine it holds the
start of a new process with its Python, Java and workers. Afterwards all rows must be in, once.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.answers import check, expected
from bench.isolated import SPAWN, Phase, end_with_parent
from bench.load import Schedule, receive, start_sender, wait_for
from bench.node import Node
from bench.queries import Query
from bench.rows import Shape
from bench.setup import DATABASE, create_tables

_TIMEOUT_S = 120.0


def worker_killed(
    folder: Path, phase: Phase, query: Query, shape: Shape, schedule: Schedule, *, kill_after_s: float = 5.0,
    config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the time from the kill of a stream's only worker to results. Raises WrongAnswerError."""
    address = folder / "sender"
    sender = start_sender(address, shape, schedule)
    with Node(folder / "data", config, keep=True) as node:
        create_tables(node.execute, shape, 1)
        node.execute(query.stream("s", "out", "WINDOW_CLOSE"))
        node.wait_running()
        wait_for(address)
        phase.begin()
        killed_ns: int | None = None
        attempt = 0
        for tick in receive(address):
            node.insert(f"{DATABASE}.{shape.source}", tick.rows)
            if killed_ns is None and tick.number * schedule.tick_ms >= kill_after_s * 1000:
                attempt = max((write.attempt for _, write in node.results.writes()), default=0)
                (worker,) = (one for one in node.status().workers if one.pid is not None)  # others are free slots
                assert worker.pid is not None
                killed_ns = time.monotonic_ns()
                os.kill(worker.pid, signal.SIGKILL)
        sender.join()
        _finish(node, query, shape)
        phase.end()
        if killed_ns is None:
            raise ValueError("the rows ended before the kill")
        back_ns = min(at for at, write in node.results.writes() if write.attempt > attempt)
        return _figures("worker", query, shape, schedule, killed_ns, back_ns)


def engine_killed(
    folder: Path, phase: Phase, query: Query, shape: Shape, schedule: Schedule, *, kill_after_s: float = 5.0,
    config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the time from the kill of the engine, which is started again at once, to results."""
    address = folder / "sender"
    sender = start_sender(address, shape, schedule)
    wait_for(address)
    ours, theirs = SPAWN.Pipe(duplex=False)
    arguments = (theirs, folder / "data", address, query, shape, schedule, dict(config or {}))
    first = SPAWN.Process(target=_serve, args=(*arguments, True))
    first.start()
    ours.recv()
    threading.Event().wait(kill_after_s)
    phase.begin()
    killed_ns = time.monotonic_ns()
    first.kill()
    first.join()
    second = SPAWN.Process(target=_serve, args=(*arguments, False))
    second.start()
    theirs.close()
    back_ns = ours.recv()
    second.join()
    sender.join()
    phase.end()
    return _figures("engine", query, shape, schedule, killed_ns, back_ns)


def _serve(
    answers: Connection, data: Path, address: Path, query: Query, shape: Shape, schedule: Schedule,
    config: Mapping[str, Any], new: bool,
) -> None:
    """Runs an engine: says when its stream runs (`new`), or when its first result was visible, once all is right."""
    end_with_parent()
    table = f"{DATABASE}.{shape.source}"
    with Node(data, config) as node:
        first = 0
        if new:
            create_tables(node.execute, shape, 1)
            node.execute(query.stream("s", "out", "WINDOW_CLOSE"))
            node.wait_running()
            answers.send("running")
        else:
            node.execute(f"USE {DATABASE}")
            # The tick that the crash has cut through, if any, is written again.
            first = node.rows(f"SELECT count(*) n FROM {table}")[0]["n"] // schedule.rows_per_tick
        for tick in receive(address, first):
            node.insert(table, tick.rows)
        _finish(node, query, shape)
        answers.send(node.results.first_ns)


def _finish(node: Node, query: Query, shape: Shape) -> None:
    node.wait_done(node.log_ends(), _TIMEOUT_S)
    found = node.execute(query.result("out")).table
    assert found is not None
    check(query, found, expected(query, shape, "WINDOW_CLOSE"))


def _figures(
    killed: str, query: Query, shape: Shape, schedule: Schedule, killed_ns: int, back_ns: int
) -> dict[str, Any]:
    return {"measure": "recovery", "engine": "penstock", "killed": killed, "query": query.name,
            "trigger": "WINDOW_CLOSE", "rows_per_second": schedule.rows_per_second, "tables": shape.tables,
            "seconds": round((back_ns - killed_ns) / 1e9, 3), "answer": "equal"}
