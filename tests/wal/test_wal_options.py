"""ALTER DATABASE of the log's options: each acts at once on vnodes that are open, and no level promises too much."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from kits.engines.data_directories import T0, config_of
from simulation.disk import Disk

from penstock.common.fs import OsFs
from penstock.mnode.access.session import SessionState
from penstock.mnode.admin.sandbox import VirtualClock
from penstock.mnode.engine import Engine
from penstock.wal.segment import EndFile

SESSION = SessionState("UTC")


class Bed:
    """An engine on a disk that can lose its power."""

    def __init__(self, root: Path) -> None:
        self.root = root / "data"
        self.disk = Disk(self.root, Random(1))
        self.lives = 0
        self.clock = VirtualClock(T0 + 1_000_000)
        self.open()

    def open(self) -> None:
        self.lives += 1
        self.engine = Engine(self.root, config_of(disableStream=True), clock=self.clock,
                             fs=self.disk.view(f"engine {self.lives}"))

    def execute(self, text: str) -> None:
        self.engine.execute(text, SESSION)

    def insert(self, number: int) -> None:
        self.execute(f"INSERT INTO d.t VALUES ({T0 + number}, {number})")

    def lose_power(self) -> None:
        """Cuts the power; of each log only what was synced is left."""
        self.engine.abandon()
        self.disk.kill(f"engine {self.lives}")
        for path, synced in self.disk._synced.items():
            if path.suffix == ".log" and path.exists():
                path.write_bytes(path.read_bytes()[:synced])
        for kept in (self.disk._synced, self.disk._maps, self.disk._removed, self.disk._renamed):
            kept.clear()
        self.open()

    @property
    def values(self) -> list[int]:
        table = self.engine.execute("SELECT v FROM d.t ORDER BY ts", SESSION).table
        assert table is not None
        found: list[int] = table.column(0).to_pylist()
        return found


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    made = Bed(tmp_path)
    made.execute("CREATE DATABASE d VGROUPS 1 WAL_LEVEL 1 WAL_FSYNC_PERIOD 180000 KEEP 36500d")
    made.execute("CREATE TABLE d.t (ts TIMESTAMP, v INT)")
    return made


def test_level_2_holds_from_the_statement_on(bed: Bed) -> None:
    """What was written before ALTER and what comes after it survive a power cut."""
    for number in range(3):
        bed.insert(number)
    assert bed.engine.storage.vnode(2).reader.stats().synced_version == 0
    bed.execute("ALTER DATABASE d WAL_LEVEL 2")
    assert bed.engine.storage.vnode(2).reader.stats().synced_version == 3
    bed.insert(3)
    bed.lose_power()
    assert bed.engine.storage.problem(2) is None
    assert bed.values == [0, 1, 2, 3]
    bed.execute("ALTER DATABASE d WAL_LEVEL 1")
    bed.insert(4)
    assert bed.engine.storage.vnode(2).reader.stats().synced_version < bed.engine.storage.vnode(2).acknowledged_version
    bed.engine.close()


def test_a_tail_that_nobody_promised_is_cut_off_and_counted(bed: Bed) -> None:
    """Records of level 1 that a power cut took are counted, also when the catalog says level 2 by then."""
    bed.execute("ALTER DATABASE d WAL_LEVEL 1")
    for number in range(3):
        bed.insert(number)
    bed.engine.storage.vnode(2).sync()
    bed.insert(3)
    # as a crash between catalog and vnode leaves it
    database = bed.engine.catalog.database("d")
    assert database is not None
    bed.engine.catalog.schema.alter_database("d", replace(database.options, wal_level=2))
    bed.lose_power()
    assert bed.engine.storage.problem(2) is None
    table = bed.engine.execute("SELECT status, reason, lost_records FROM information_schema.ins_vnodes", SESSION).table
    assert table is not None
    assert table.to_pylist() == [{"status": "leader", "reason": None, "lost_records": 1}]
    assert bed.values == [0, 1, 2]
    bed.engine.close()


def test_the_period_and_retention_act_at_once(bed: Bed) -> None:
    """WAL_FSYNC_PERIOD counts from now on; segments go as the new retention says."""
    vnode = bed.engine.storage.vnode(2)
    bed.insert(0)
    bed.execute("ALTER DATABASE d WAL_FSYNC_PERIOD 1000")
    bed.clock.advance(1.5)
    bed.engine.maintain()
    assert vnode.reader.stats().synced_version == 1
    text = "x" * 20_000
    bed.execute("CREATE TABLE d.long (ts TIMESTAMP, v VARCHAR(30000))")
    for number in range(12):
        bed.execute(f"INSERT INTO d.long VALUES ({T0 + number}, '{text}')")
    vnode.flush()
    bed.clock.advance(60)
    bed.engine.maintain()
    before = vnode.reader.stats().wal_segments
    assert before > 2
    bed.execute("ALTER DATABASE d WAL_RETENTION_PERIOD 0 WAL_RETENTION_SIZE 0")
    bed.clock.advance(60)
    bed.engine.maintain()
    assert vnode.reader.stats().wal_segments < before
    bed.engine.close()


def test_level_2_promises_what_it_acknowledged(bed: Bed) -> None:
    """A log of level 2 that has lost acknowledged records is an error still: those were synced."""
    bed.execute("ALTER DATABASE d WAL_LEVEL 2")
    bed.insert(0)
    bed.insert(1)
    bed.engine.abandon()
    (segment,) = (bed.root / "vnode" / "2" / "wal").glob("*.log")
    segment.write_bytes(segment.read_bytes()[:-40])
    assert EndFile.open(OsFs(), segment.parent).read().synced == 2
    bed.open()
    assert "were synced" in str(bed.engine.storage.problem(2))
    bed.engine.close()
