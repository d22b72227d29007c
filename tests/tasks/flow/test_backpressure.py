"""A sink that is slower than its producer: queues stay bounded, the source task stops reading, nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.common.clock import SystemClock

pytestmark = pytest.mark.spark

QUEUE_BYTES = 1 << 20
ROWS = 400_000
CONFIG: dict[str, Any] = {
    "streamQueueSize": QUEUE_BYTES, "blockBytesMax": "64KiB", "heartbeatInterval": "100ms", "timezone": "UTC",
    "streamSinkDataRate": 0.1,
}


def rows_of(cursor: Any, sql: str) -> list[dict[str, Any]]:
    cursor.execute(sql)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def wait_for(condition: Callable[[], Any], patience_s: float = 60.0) -> Any:
    """Returns the first truthy value of `condition`."""
    clock = SystemClock()
    deadline = clock.monotonic() + patience_s
    while not (value := condition()):
        assert clock.monotonic() < deadline, "waited in vain"
        clock.wait(threading.Event(), 0.05)
    return value


def test_slow_sink_holds_the_source_back_and_loses_nothing(
    data_dir: Path, spark_context: Any
) -> None:
    """The task table names who is blocked by whom; with the limit lifted all rows arrive."""
    with penstock.connect(str(data_dir), CONFIG) as connection:
        cursor = connection.cursor()
        cursor.execute("create database p vgroups 1")
        cursor.execute("create table p.m (ts timestamp, v double, w double) tags (g int)")
        cursor.execute("create table p.d1 using p.m tags (1)")
        cursor.execute("create stream s trigger at_once into p.o as select ts, v, w from p.m partition by tbname")
        start = 1_700_000_000_000
        for first in range(0, ROWS, 20_000):
            cursor.insert_arrow("p.d1", pa.table({
                "ts": pa.array(np.arange(start + first, start + first + 20_000), pa.timestamp("ms")),
                "v": np.random.rand(20_000), "w": np.random.rand(20_000)}))

        def blocked() -> dict[str, dict[str, Any]] | None:
            tasks = {row["level"]: row for row in rows_of(cursor, "select * from information_schema.ins_stream_tasks")}
            held = "source" in tasks and tasks["source"]["state"] == "BACKPRESSURED"
            return tasks if held and tasks["sink"]["state"] == "RATE_LIMITED" and tasks["source"]["lag"] else None

        tasks = wait_for(blocked)
        assert tasks["source"]["blocked_by"] == tasks["sink"]["task_id"]
        assert "rate limit of 0.1 MB/s" in tasks["sink"]["reason"]
        verdict = "sink s/v2 is the bottleneck: its rate limit of 0.1 MB/s"
        # At first the start of the tasks is a part of the seconds that count.
        wait_for(lambda: rows_of(cursor, "show streams")[0]["verdict"] == verdict)
        measured = {row["operator"]: row for row in rows_of(cursor, "explain analyze stream s for 1s")}
        assert measured["source s/v2"]["blocked_percent"] > 50
        assert measured["stream"]["remark"] == verdict
        read = tasks["source"]["processed_version"]
        for _ in range(20):
            tasks = wait_for(blocked)
            for task in tasks.values():
                assert task["input_bytes"] <= task["input_peak"] <= QUEUE_BYTES
                assert (task["output_peak"] or 0) <= QUEUE_BYTES
        assert tasks["source"]["processed_version"] <= read + 8
    with penstock.connect(str(data_dir), CONFIG | {"streamSinkDataRate": 0}) as connection:
        cursor = connection.cursor()
        wait_for(lambda: rows_of(cursor, "select count(*) c from p.o")[0]["c"] == ROWS)
        batch = rows_of(cursor, "select sum(v) a, sum(w) b from p.m")[0]
        assert rows_of(cursor, "select sum(v) a, sum(w) b from p.o")[0] == pytest.approx(batch)
