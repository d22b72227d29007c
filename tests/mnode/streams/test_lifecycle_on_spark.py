"""STOP, START, ALTER, savepoints, a damaged checkpoint, a backup and a new version of a stream, with real workers."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.common.clock import SystemClock

pytestmark = pytest.mark.spark

T0 = 1_700_000_000_000
CONFIG: dict[str, Any] = {"heartbeatInterval": "100ms", "timezone": "UTC", "restartDelayMin": "50ms",
                          "checkpointBackupInterval": "0s"}
OPTIONS = "TRIGGER AT_ONCE IGNORE EXPIRED 0"
OLD = "SELECT _wstart ts, count(*) n FROM d.m INTERVAL(10s)"
NEW = "SELECT _wstart ts, count(*) n, sum(v) total FROM d.m INTERVAL(5s)"


class Bed:
    """A connection, with answers as lists of rows."""

    def __init__(self, directory: Path, backup: Path) -> None:
        self.connection = penstock.connect(str(directory), {**CONFIG, "checkpointBackupDir": str(backup)})
        self.cursor = self.connection.cursor()
        self.inserted = 0

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        self.cursor.execute(sql)
        return [tuple(row) for row in self.cursor.fetchall()] if self.cursor.description else []

    def insert(self, rows: int) -> None:
        for n in range(self.inserted, self.inserted + rows):
            self.cursor.execute(f"INSERT INTO d.d{n % 4} VALUES ({T0 + n * 1000}, {n})")
        self.inserted += rows

    def wait_equal(self, query: str) -> None:
        """Waits until the result table is the batch answer."""
        columns = "ts, n, total" if query == NEW else "ts, n"
        wait_for(lambda: sorted(self.rows(f"SELECT {columns} FROM d.o")) == sorted(self.rows(query)))

    def state(self) -> str:
        return str(self.rows("SELECT state FROM information_schema.ins_streams")[0][0])

    def events(self) -> list[str]:
        return [row[0] for row in self.rows("SELECT event FROM information_schema.ins_stream_events")]


def wait_for(condition: Callable[[], Any], patience_s: float = 60.0) -> None:
    clock = SystemClock()
    deadline = clock.monotonic() + patience_s
    while not condition():
        assert clock.monotonic() < deadline, "waited in vain"
        clock.wait(threading.Event(), 0.05)


def test_a_life_of_a_stream(tmp_path: Path) -> None:
    """After each step the result is that of the batch, and nothing more than needed was read again."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    bed = Bed(data, backup)
    try:
        for statement in ("CREATE DATABASE d VGROUPS 2", "CREATE STABLE d.m (ts timestamp, v int) TAGS (g int)",
                          *(f"CREATE TABLE d.d{n} USING d.m TAGS ({n})" for n in range(4)),
                          f"CREATE STREAM s {OPTIONS} CHECKPOINT_INTERVAL 1d INTO d.o AS {OLD}"):
            bed.rows(statement)
        bed.insert(20)
        bed.wait_equal(OLD)
        bed.rows("STOP STREAM s WITH SAVEPOINT 'start'")
        assert bed.state() == "STOPPED"
        bed.insert(20)
        bed.rows("START STREAM s")
        bed.wait_equal(OLD)
        bed.rows("ALTER STREAM s SET SINK_RATE 1 GUARANTEE AT_LEAST_ONCE")
        wait_for(lambda: bed.state() == "RUNNING")
        bed.insert(20)
        bed.wait_equal(OLD)
        bed.rows("CHECKPOINT STREAM s")
        shown = bed.rows("SELECT checkpoint_id, state, slowest_task, slowest_ms, rows_to_replay "
                         "FROM information_schema.ins_stream_checkpoints")
        assert [row[:2] for row in shown] == [(number, "COMMITTED") for number in (1, 2, 3)]
        assert all(task and ms > 0 for _, _, task, ms, _ in shown)
        wait_for(lambda: [row[0] for row in bed.rows(
            "SELECT rows_to_replay FROM information_schema.ins_stream_checkpoints")] == [40, 20, 0])
        wait_for(lambda: bed.rows("SELECT checkpoint_backup FROM information_schema.ins_streams")
                 == [("checkpoint 3",)])
        bed.rows("STOP STREAM s")
        bed.rows("START STREAM s FROM SAVEPOINT 'start'")
        bed.wait_equal(OLD)
        bed.rows(f"CREATE OR REPLACE STREAM s {OPTIONS} INTO d.o AS {NEW}")
        bed.insert(20)
        wait_for(lambda: bed.rows("SELECT stream_name FROM information_schema.ins_streams") == [("s",)])
        bed.insert(10)
        bed.wait_equal(NEW)
        for _ in range(2):
            bed.rows("CHECKPOINT STREAM s")
        wait_for(lambda: "checkpoint" in bed.rows(
            "SELECT checkpoint_backup FROM information_schema.ins_streams")[0][0])
        bed.connection.close()

        (stream,) = (data / "streams").iterdir()
        shutil.rmtree(next((stream / "state").glob("*-agg-*")))
        inserted = bed.inserted
        bed = Bed(data, backup)
        bed.inserted = inserted
        bed.insert(10)
        bed.wait_equal(NEW)
        events = bed.events()
        assert any("its state is restored from the backup of checkpoint" in event for event in events), events
    finally:
        bed.connection.close()
