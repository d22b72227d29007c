"""How long after its row's arrival a result is visible, with rows coming on a fixed schedule.

For WINDOW_CLOSE: from the arrival of the row that closes a window (the first one that lies the watermark beyond its
end) to the window's result. For AT_ONCE: from the arrival of each row to the first result that counts it. `latency_ms`
counts from when the engine has received the rows of the row's tick, before it writes them into the log;
`latency_from_schedule_ms` from when the sender should have sent them, so that a stall of the intake counts too. The
first seconds are left out. When a result is visible: see `bench.node`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import cycle, islice
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.answers import check, expected
from bench.figures import closed_latencies, closing_rows, percentiles, row_latencies
from bench.isolated import Phase
from bench.load import Schedule, Tick, receive, start_sender, wait_for
from bench.node import Node
from bench.processes import cpu_seconds
from bench.queries import Q1, Q2, Query, Trigger
from bench.rows import Shape, all_rows, names
from bench.setup import DATABASE, create_tables
from penstock.common.placement import place

_TIMEOUT_S = 120.0


def live(
    folder: Path, phase: Phase, query: Query, shape: Shape, schedule: Schedule, trigger: Trigger = "WINDOW_CLOSE", *,
    vgroups: int = 2, warm_seconds: float = 3.0, config: Mapping[str, Any] | None = None, others: int = 0,
) -> dict[str, Any]:
    """Returns the measurement of one stream that keeps up with a sender. Raises WrongAnswerError.

    `others`: so many other streams over the same rows run beside it; they cost, but their results aren't looked at.
    """
    address = folder / "sender"
    sender = start_sender(address, shape, schedule)
    with Node(folder / "data", config, keep=True) as node:
        create_tables(node.execute, shape, vgroups)
        node.execute(query.stream("s", "out", trigger))
        for number, other in enumerate(islice(cycle((Q1, Q2)), others)):
            node.execute(other.stream(f"other{number}", f"other_out{number}", trigger))
        node.wait_running()
        wait_for(address)
        phase.begin()
        started, cpu_before = time.monotonic_ns(), seconds_but_for(sender)
        arrived = Arrivals()
        for tick in arrived.noted(receive(address)):
            node.insert(f"{DATABASE}.{shape.source}", tick.rows)
        seconds, cpu = (time.monotonic_ns() - started) / 1e9, seconds_but_for(sender) - cpu_before
        phase.end()
        sender.join()
        node.wait_done(node.log_ends(), _TIMEOUT_S)
        found, target = node.execute(query.result("out")).table, node.engine.catalog.table(DATABASE, "out")
        assert found is not None
        assert target is not None
        check(query, found, expected(query, shape, trigger))
        rows = sum(arrived.rows)
        return {
            "measure": "latency", "engine": "penstock", "query": query.name, "trigger": trigger,
            "rows_per_second": schedule.rows_per_second, "tables": shape.tables, "vgroups": vgroups, "rows": rows,
            **({"others": others} if others else {}),
            "seconds": round(seconds, 3), "cpu_seconds": round(cpu, 3), "rows_per_cpu_second": round(rows / cpu),
            **(config or {}),
            **latencies(query, trigger, shape, schedule, node.results.visible(query.keys[0], target.uid),
                        arrived, vgroups, warm_seconds),
            "answer": "equal",
        }


def seconds_but_for(sender: BaseProcess) -> float:
    """Returns the seconds of processors of this process and its descendants until now, without the sender's."""
    assert sender.pid is not None
    return cpu_seconds() - cpu_seconds(sender.pid)


class Arrivals:
    """When ticks were due and received, by their number."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.due_ns: list[int] = []
        self.received_ns: list[int] = []

    def noted(self, ticks: Iterable[Tick]) -> Iterable[Tick]:
        """Yields the ticks, noting their times; they must come in order, from the first on."""
        for tick in ticks:
            if tick.number != len(self.rows):
                raise ValueError(f"tick {tick.number} came in the place of {len(self.rows)}")
            self.rows.append(tick.rows.num_rows)
            self.due_ns.append(tick.due_ns)
            self.received_ns.append(tick.received_ns)
            yield tick


def latencies(
    query: Query, trigger: Trigger, shape: Shape, schedule: Schedule, visible: pa.Table, arrived: Arrivals,
    vgroups: int, warm_seconds: float,
) -> dict[str, Any]:
    """Returns the percentiles from arrival and from schedule, and how many results or rows they are of."""
    vnodes = np.array([place(f"{DATABASE}.{name}", vgroups) for name in names(shape)])
    source = with_vnodes(all_rows(shape), vnodes)
    figures: dict[str, Any] = {}
    for name, times in (("latency_ms", arrived.received_ns), ("latency_from_schedule_ms", arrived.due_ns)):
        arrived_ns = np.array(times, np.int64)
        if trigger == "WINDOW_CLOSE":
            closing = closing_rows(query, source, all_vnodes=query.keys[0] != "tn")
            ticks, values = closed_latencies(visible, closing, arrived_ns, query, schedule.rows_per_tick)
        else:
            ticks, values = row_latencies(visible, source, arrived_ns, query, schedule.rows_per_tick)
        values = values[ticks * schedule.tick_ms >= warm_seconds * 1000]
        figures[name] = percentiles(values)
        figures["samples"] = len(values)
    return figures


def with_vnodes(rows: pa.Table, vnodes: npt.NDArray[np.int64]) -> pa.Table:
    """Returns the rows as `bench.figures` takes them: ts in ms, tbname as text, and the vnode of each row's table."""
    numbers = np.concatenate([chunk.indices.to_numpy() for chunk in rows.column("tbname").chunks])
    return pa.table({
        "tbname": rows.column("tbname").cast(pa.string()), "tag": rows.column("tag"), "seq": rows.column("seq"),
        "ts": rows.column("ts").cast(pa.int64()), "vnode": pa.array(vnodes[numbers]),
    })
