"""An ingest from Kafka with real workers: one is killed on the way, and each message is there once."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kits.basics.external_servers import Kafka
from kits.basics.waiting import wait_until

import penstock
from penstock.common.fs import OsFs
from penstock.mnode.controller.stream_controller import StreamController
from penstock.mnode.engine import Engine
from penstock.wal.log import LogFiles
from penstock.wal.reader import WalReader
from penstock.wal.record import RowsRecord

pytestmark = pytest.mark.spark

NOW = 1_700_000_000_000
CONFIG: dict[str, Any] = {"heartbeatInterval": "100ms", "timezone": "UTC", "restartDelayMin": "50ms",
                          "ingestCheckpointInterval": "300ms"}
MESSAGES = 12_000


def produce(kafka: Kafka, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": kafka.servers, "queue.buffering.max.messages": 200_000})
    for number in numbers:
        value = {"device": f"d{number % 20}", "ts": NOW + number, "v": number, "site": f"s{number % 3}"}
        producer.produce("spark-meters", json.dumps(value).encode(), key=str(number % 20))
    assert producer.flush(60) == 0


def test_killed_workers_neither_lose_nor_double_a_row(tmp_path: Path, kafka: Kafka) -> None:
    """kill -9 of each worker in turn: table and log have every message once, and the ingest is back by itself."""
    kafka.create_topic("spark-meters", 5)
    connection = penstock.connect(str(tmp_path / "data"), CONFIG)
    cursor = connection.cursor()

    def ask(sql: str) -> list[tuple[Any, ...]]:
        cursor.execute(sql)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    try:
        for statement in ("CREATE DATABASE p VGROUPS 2", "USE p",
                          "CREATE STABLE meters (ts TIMESTAMP, v INT) TAGS (site VARCHAR(8))",
                          f"CREATE CONNECTION k TYPE kafka WITH (servers='{kafka.servers}')",
                          "CREATE INGEST i FROM CONNECTION k (TOPIC 'spark-meters') INTO meters TBNAME ($.device)"):
            ask(statement)
        controller = connection.lease.engine.parts.controller.running()
        assert isinstance(controller, StreamController)
        for part in range(2):
            produce(kafka, range(part * MESSAGES // 2, (part + 1) * MESSAGES // 2))
            wait_until(lambda: ask("SELECT count(*) FROM meters")[0][0] > 0, 60)
            (pids,) = wait_until(lambda: [one for one in controller.worker_pids().values() if len(one) == 2], 60)
            os.kill(pids[part], signal.SIGKILL)
        wait_until(lambda: ask("SELECT count(*) FROM meters") == [(MESSAGES,)], 90,
                   f"{ask('SHOW INGESTS')}")
        assert ask("SELECT sum(v) FROM meters") == [(MESSAGES * (MESSAGES - 1) // 2,)]
        assert logged(connection.lease.engine) == MESSAGES
        query = "SELECT rows FROM information_schema.ins_ingests WHERE state = 'RUNNING' AND restarts > 0 AND lag = 0"
        wait_until(lambda: ask(query) == [(MESSAGES,)], 60, f"{ask('SHOW INGESTS')}")
        wait_until(lambda: ask("SELECT state FROM information_schema.ins_connections") == [("OK",)], 60)
        ask("DROP INGEST i")
        ask("DROP CONNECTION k")
    finally:
        connection.close()


def logged(engine: Engine) -> int:
    """Returns how many rows the logs of all vnodes have."""
    rows = 0
    for database in engine.catalog.databases():
        for vgroup_id in database.vgroup_ids:
            reader = WalReader(LogFiles(engine.paths.wal(vgroup_id), OsFs()), 1)
            while records := reader.read():
                rows += sum(record.batch.num_rows for record in records if isinstance(record, RowsRecord))
            reader.close()
    return rows
