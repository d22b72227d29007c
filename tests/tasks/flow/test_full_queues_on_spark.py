"""With every queue full, on real workers: statements about the stream answer, rates change live, nothing is lost."""

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

ROWS = 200_000
BATCH = 10_000
CONFIG: dict[str, Any] = {
    "streamQueueSize": "512KiB", "blockBytesMax": "64KiB", "heartbeatInterval": "100ms", "timezone": "UTC",
    "streamSinkDataRate": 0.1, "checkpointInterval": "1d",
}
T0 = 1_700_000_000_000


def wait_for(condition: Callable[[], Any], patience_s: float = 120.0) -> None:
    clock = SystemClock()
    deadline = clock.monotonic() + patience_s
    while not condition():
        assert clock.monotonic() < deadline, "waited in vain"
        clock.wait(threading.Event(), 0.05)


def test_statements_answer_while_every_queue_is_full(data_dir: Path, spark_context: Any) -> None:
    """SHOW, CHECKPOINT, PAUSE, RESUME, ALTER and DROP do their work; afterwards the result is the batch answer."""
    with penstock.connect(str(data_dir), CONFIG) as connection:
        cursor = connection.cursor()

        def rows(sql: str) -> list[dict[str, Any]]:
            cursor.execute(sql)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()] if names else []

        def tasks() -> dict[str, dict[str, Any]]:
            return {row["level"]: row for row in rows("select * from information_schema.ins_stream_tasks")}

        def insert() -> None:
            for first in range(0, ROWS, BATCH):
                cursor.insert_arrow("p.d1", pa.table({
                    "ts": pa.array(np.arange(T0 + first, T0 + first + BATCH), pa.timestamp("ms")),
                    "v": np.arange(first, first + BATCH)}))

        def full() -> bool:
            now = tasks()
            return (now["source"]["state"] == "BACKPRESSURED" and bool(now["source"]["lag"])
                    and 2 * (now["sink"]["input_bytes"] + now["sink"]["aside_bytes"]) > now["sink"]["input_capacity"])

        for statement in ("create database p vgroups 1", "create table p.m (ts timestamp, v bigint) tags (g int)",
                          "create table p.d1 using p.m tags (1)",
                          "create stream s trigger at_once into p.o as select ts, v from p.m partition by tbname"):
            rows(statement)
        insert()
        wait_for(full)
        (queue,) = [row for row in rows("show queues") if "sink" in row["task_id"]]
        assert queue["input_bytes"] <= queue["input_capacity"]
        (checkpoint,) = rows("checkpoint stream s")
        # The audit may have taken another one meanwhile.
        wait_for(lambda: "COMMITTED" in [row["state"] for row in rows("show checkpoints")])
        assert checkpoint["checkpoint_id"] in [row["checkpoint_id"] for row in rows("show checkpoints")]
        wait_for(lambda: tasks()["sink"]["aside_bytes"] > 0)
        rows("pause stream s")
        wait_for(lambda: tasks()["source"]["state"] == "PAUSED")
        rows("resume stream s")
        wait_for(full)
        attempt = rows("show streams")[0]["attempt"]
        rows("alter stream s set sink_rate 0")
        wait_for(lambda: rows("select count(*) c from p.o")[0]["c"] == ROWS)
        assert rows("show streams")[0]["attempt"] == attempt
        assert rows("select sum(v) s from p.o") == rows("select sum(v) s from p.m")
        rows("alter stream s set source_rate 1")
        insert()
        wait_for(lambda: rows("show streams")[0]["verdict"]
                 == "source s/v2 is the bottleneck: its rate limit of 1 rows/s")
        rows("alter stream s set source_rate 0 sink_rate 0.1")
        wait_for(full)
        rows("drop stream s")
        assert rows("show streams") == []
