"""The memory limit of a worker is hit: the stream names it, loses nothing, and comes back when there is memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from kits.basics.waiting import wait_until
from kits.engines.statement_engine import StatementEngine

ROWS = 40_000
BATCHES_MAX = 40
BATCH = "SELECT _wstart, count(*), sum(v) FROM d.m PARTITION BY site INTERVAL(1m) ORDER BY 1, 2"
CONFIG = {"timezone": "UTC", "idleTimeout": "1h", "checkpointInterval": "1s", "restartDelayMin": "50ms",
          "restartDelayMax": "500ms", "spark.ui.enabled": False}


@pytest.fixture
def child(tmp_path: Path) -> Iterator[StatementEngine]:
    engine = StatementEngine(tmp_path / "data", CONFIG)
    yield engine
    engine.end()


def private_bytes(process: psutil.Process) -> int:
    """Returns what counts against the limit of a process's data."""
    line = next(line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmData" in line)
    return int(line.split()[1]) * 1024


def insert(child: StatementEngine, path: Path, first: int) -> None:
    """Inserts ROWS rows, a second apart."""
    path.write_text("".join(f"{(first + n) * 1000},{n % 7}\n" for n in range(ROWS)))
    child.run(f"INSERT INTO d.t USING d.m TAGS (1) FILE '{path}'")


@pytest.mark.spark
@pytest.mark.slow
def test_a_worker_without_memory_is_named_and_its_stream_comes_back(tmp_path: Path, child: StatementEngine) -> None:
    """While workers get no more memory the stream says so and restarts; afterwards it has the batch answer."""
    child.run("CREATE DATABASE d VGROUPS 1 WAL_LEVEL 2 KEEP 36500d")
    child.run("CREATE STABLE d.m (ts TIMESTAMP, v INT) TAGS (site INT)")
    child.run("CREATE STREAM s TRIGGER AT_ONCE INTO d.out TAGS (site INT) AS SELECT _wstart ts, count(*) c, sum(v) s "
              "FROM d.m PARTITION BY site INTERVAL(1m)")
    insert(child, tmp_path / "rows.csv", 1_700_000_000)
    wait_until(equal(child), 60.0)
    assert child.workers()
    for worker in child.workers():
        worker.rlimit(psutil.RLIMIT_DATA, (private_bytes(worker), psutil.RLIM_INFINITY))
    batches = 1
    while not is_short(child):  # until what workers have to spare is used up
        insert(child, tmp_path / "rows.csv", 1_700_000_000 + batches * ROWS)
        batches += 1
        assert batches < BATCHES_MAX
        wait_until(lambda: is_short(child) or equal(child)(), 60.0)
    for worker in child.workers():
        worker.rlimit(psutil.RLIMIT_DATA, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY))
    wait_until(equal(child), 90.0)
    assert child.run("SELECT count(*) FROM d.m") == [[str(batches * ROWS)]]
    child.close()


def is_short(child: StatementEngine) -> bool:
    """Whether the stream was short of memory."""
    return any("out of memory" in text for text in events(child))


def events(child: StatementEngine) -> list[str]:
    """Returns what happened to the stream."""
    return [text for text, in child.run(
        "SELECT event FROM information_schema.ins_stream_events WHERE stream_name = 's'")]


def equal(child: StatementEngine) -> Callable[[], bool]:
    """Returns what tells whether the stream has the batch answer."""
    return lambda: child.run("SELECT ts, c, s FROM d.out ORDER BY 1, 2") == child.run(BATCH)
