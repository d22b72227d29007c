"""Streams whose workers don't reach the data directory: the batch answer, whatever is killed, wherever they go on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import times
from kits.basics.waiting import wait_until
from kits.engines.embedded import Embedded
from kits.engines.runtime_fakes import ThreadRuntime

from penstock.common.clock import SystemClock
from penstock.common.fs import OsFs
from penstock.mnode.admin.fsck import Fsck
from penstock.mnode.engine import Engine

T0 = 1_700_000_000_000
#: The query of each stream, and of its batch answer.
STREAMS = {
    "across": ("SELECT _wstart ts, g, count(*) n, sum(v) s FROM d.meters PARTITION BY g INTERVAL(10s)", "ts, g, n, s"),
    "plain": ("SELECT ts, v * 2 w, g FROM d.meters WHERE v > 3 PARTITION BY tbname", "ts, w, g"),
    "sessions": ("SELECT _wstart ts, count(*) n, sum(v) s, g FROM d.meters PARTITION BY tbname, g SESSION(ts, 4s)",
                 "ts, n, s, g"),
}


class Bed(Embedded):
    """An engine whose workers are threads, `far` or near."""

    def __init__(self, root: Path, far: bool) -> None:
        self.far = far
        self.runtime = ThreadRuntime()
        super().__init__(root / "data", clock=SystemClock(), fs=OsFs(), config={
            "heartbeatInterval": "50ms", "restartDelayMin": "10ms", "idleTimeout": "50ms", "checkpointInterval": "1h",
            "sinkCallsPerSecond": 1000, "streamSinkDataRate": 0, "stateMapSize": "256MiB",
            "checkpointBackupDir": str(root / "backup"), "checkpointBackupInterval": "0s"})

    def _open(self) -> Engine:
        other = self.path.parent / "other"
        other.mkdir(exist_ok=True)
        self.runtime = ThreadRuntime(str(other) if self.far else None)
        return Engine(self.path, self.config, clock=self.clock, fs=self.fs, runtime=lambda config, root: self.runtime)

    def create(self) -> None:
        self.all("CREATE DATABASE d VGROUPS 2", "CREATE STABLE d.meters (ts timestamp, v int) TAGS (g int)",
                 *(f"CREATE TABLE d.d{n} USING d.meters TAGS ({n % 2})" for n in range(4)),
                 *(f"CREATE STREAM {name} TRIGGER AT_ONCE IGNORE EXPIRED 0 INTO d.{name} AS {query}"
                   for name, (query, _) in STREAMS.items()))

    def insert(self, *seconds: int) -> None:
        for second in seconds:
            self.execute("INSERT INTO " + " ".join(
                f"d.d{n} VALUES ({T0 + (second + 3 * n) * 1000}, {second + n})" for n in range(4)))

    def checkpoint(self) -> None:
        for name in STREAMS:
            wait_until(lambda: self.running() == len(STREAMS))
            self.execute(f"CHECKPOINT STREAM {name}")

    def running(self) -> int:
        return len(self.run("SELECT * FROM information_schema.ins_streams WHERE state = 'RUNNING'"))

    def access(self) -> set[str]:
        rows = self.run("SELECT DISTINCT wal_access FROM information_schema.ins_stream_tasks WHERE level = 'source'")
        return {access for (access,) in rows}

    def kill(self, index: int) -> None:
        self.runtime.groups[-1].kill(index)

    def differing(self) -> list[str]:
        """Returns the streams whose results aren't the batch answer."""
        return [name for name, (query, columns) in STREAMS.items()
                if sorted(self.run(f"SELECT {columns} FROM d.{name}"))
                != sorted(self.run(f"SELECT {columns} FROM ({query})"))]

    def events(self) -> list[str]:
        return [row[-1] for row in self.run("SELECT * FROM information_schema.ins_stream_events")]

    def wait_equal(self) -> None:
        wait_until(lambda: not self.differing(), 60, "results differ from the batch answer")


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    bed = Bed(tmp_path, far=True)
    bed.create()
    yield bed
    bed.close()


def test_streams_equal_the_batch_whatever_is_killed(bed: Bed) -> None:
    """Checkpoints and kills between rows in and out of order, rewrites and deletes: each attempt has what counted."""
    rounds = times(1, 3)
    for number in range(rounds):
        bed.insert(10 * number, 10 * number + 2, 1)
        bed.wait_equal()
        bed.checkpoint()
        bed.insert(10 * number + 4)
        bed.execute(f"DELETE FROM d.d1 WHERE ts = {T0 + (10 * number + 5) * 1000}")
        bed.kill(number % 2)
        bed.insert(10 * number + 6, 2)
        bed.wait_equal()
    assert bed.access() == {"network"}
    assert len([event for event in bed.events() if "is deployed, from checkpoint" in event]) >= rounds * len(STREAMS)


def test_streams_go_on_from_network_to_files_and_back(bed: Bed, tmp_path: Path) -> None:
    """What one kind of worker has left is what the other goes on from; and fsck finds nothing wrong with it."""
    bed.insert(1, 3, 12)
    for number, far in enumerate((False, True, False)[:times(2, 3)]):
        bed.wait_equal()
        bed.checkpoint()
        bed.insert(5 + number, 25)
        bed.far = far
        bed.reopen()
        bed.insert(4 - number, 31 + 20 * number)
        bed.wait_equal()
        wait_until(lambda expected=far: bed.access() == ({"network"} if expected else {"files"}))  # type: ignore[misc]
        assert all("from checkpoint" in event for event in bed.events() if "is deployed" in event)
    bed.close()
    assert Fsck(bed.path, OsFs(), SystemClock(), lambda done, of: None, repair=False).run().healthy


def test_state_that_came_over_the_network_is_backed_up_and_restored(bed: Bed) -> None:
    """Copies are made while the engine has it open; where it is gone, workers elsewhere go on from the copy."""
    bed.insert(1, 3, 12)
    bed.wait_equal()
    bed.checkpoint()
    ids = {row[0] for row in bed.run("SELECT checkpoint_id FROM information_schema.ins_streams")}
    wait_until(lambda: {row[0] for row in bed.run("SELECT checkpoint_backup FROM information_schema.ins_streams")}
               == {f"checkpoint {id_}" for id_ in ids})
    bed.insert(14, 2)
    bed.wait_equal()
    bed.engine.close()
    shutil.rmtree(bed.engine.paths.root / "streams")
    bed.reopen()
    bed.insert(33)
    bed.wait_equal()
    assert len([event for event in bed.events() if "its state is restored from the backup" in event]) == len(STREAMS)


def test_streams_go_on_over_more_vnodes(bed: Bed) -> None:
    """Their state is divided in the engine's own files; workers elsewhere, more of them now, go on from that."""
    bed.insert(1, 3, 12)
    bed.wait_equal()
    bed.execute("ALTER DATABASE d VGROUPS 3")
    bed.insert(14, 2, 33)
    bed.wait_equal()
    wait_until(lambda: bed.access() == {"network"})
    assert len(bed.runtime.groups[-1].connections) == 3
