"""What a node keeps of its cluster: its life, its epoch, and logs that state machines carry from disk to disk."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pyarrow as pa
import pytest
from kits.basics.faulty_fs import FaultyFs

from penstock.common.clock import ManualClock
from penstock.common.errors import CorruptionError, StorageError, UnavailableError
from penstock.common.fs import OsFs
from penstock.mnode.catalog.catalog_copying import CatalogCopying
from penstock.mnode.catalog.catalog_log import CatalogLog
from penstock.mnode.catalog.catalog_store import STREAMS, CatalogStore
from penstock.mnode.cluster.cluster_messages import Ack, Append, Life, LogMatch, LogState
from penstock.mnode.cluster.log_epochs import EpochStart, cut_to
from penstock.mnode.cluster.log_following import FollowingPhase, FollowingSettings, LogFollowing
from penstock.mnode.cluster.log_shipping import LogShipping, ShippingSettings
from penstock.mnode.dnode.cluster_directory import ClusterDirectory, running_boot
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode

FOLLOWS = UnavailableError("node 2 follows node 1")
SCHEMA = pa.schema([("ts", pa.timestamp("ms")), ("v", pa.int64())])


class DiskOfNode:
    """A data directory with a catalog and one vnode."""

    def __init__(self, path: Path, *, follows: bool = False, boot: str = "a", fs: FaultyFs | None = None) -> None:
        self.fs = fs or FaultyFs()
        log = CatalogLog(path / "log", self.fs, ManualClock())
        self.store = CatalogStore(path / "catalog", 1 << 22, log)
        options = VnodeOptions(2, segment_bytes=1500, replicated=True)
        self.vnode = Vnode.open(path / "vnode", options, fs=self.fs, clock=ManualClock())
        catalog = CatalogCopying(self.store)
        self.stored = ClusterDirectory(
            path / "CLUSTER", self.fs, itertools.count(1).__next__, boot, catalog, lambda: {2: self.vnode})
        if follows:
            catalog.follow(FOLLOWS)
            self.vnode.copying.follow(FOLLOWS)
        else:
            self.vnode.tables.define(7, SCHEMA, 1)

    def write(self, number: int) -> None:
        """Changes the catalog, and some rows."""
        with self.store.transaction() as write:
            write.put(STREAMS, bytes([number % 9]), number)
        self.vnode.write(7, pa.RecordBatch.from_arrays([
            pa.array([1], pa.uint64()), pa.array([number % 13], pa.timestamp("ms")), pa.array([number])],
            ["_tuid", "ts", "v"]))

    def close(self) -> None:
        self.vnode.close()
        self.store.close()


def test_a_life_lasts_until_something_may_be_gone(tmp_path: Path) -> None:
    """A killed process loses nothing; a machine that has started again may have, unless all was closed before."""
    fs = FaultyFs()
    disk = DiskOfNode(tmp_path, fs=fs)
    numbers = iter(range(100, 200))

    def opened(boot: str) -> ClusterDirectory:
        return ClusterDirectory(tmp_path / "CLUSTER", fs, numbers.__next__, boot, CatalogCopying(disk.store), dict)

    first = disk.stored.life()
    disk.stored.keep_epoch(7)
    disk.stored.keep_epoch(3)
    again = opened("a")
    assert (again.life(), again.epoch()) == (first, 7)
    lost = opened("b")
    assert (lost.life(), lost.epoch()) == (100, 7)
    lost.close()
    assert opened("c").life() == 100
    assert opened("d").life() == 101
    opened("").close()
    assert opened("").life() == 102
    assert opened("").life() == 103
    assert running_boot() == running_boot() != ""


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """Whatever byte is flipped; and what can't be kept is not believed to be."""
    disk = DiskOfNode(tmp_path)
    disk.stored.keep_epoch(7)
    path = tmp_path / "CLUSTER"
    good = path.read_bytes()
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1:])
        with pytest.raises(CorruptionError, match="CLUSTER"):
            ClusterDirectory(path, OsFs(), int, "a", CatalogCopying(disk.store), dict)
    disk.fs.calls, disk.fs.fail_at = 0, 1
    with pytest.raises(StorageError):
        disk.stored.keep_epoch(8)
    assert disk.stored.epoch() == 7


def carry(active: DiskOfNode, standby: DiskOfNode, epoch: int, chance: random.Random) -> None:
    """Ships all logs through both state machines, and loses every third message."""
    for number, log in active.stored.logs().items():
        session = chance.getrandbits(40)
        shipping = LogShipping(epoch, session, number, log, ShippingSettings(400, 900))
        following = LogFollowing(number, standby.stored.logs()[number], Life(2, 1), session, FollowingSettings())
        following.follow(0.0, epoch)
        now = 0.0
        while shipping.progress.synced < log.bounds().written or following.phase is not FollowingPhase.MATCHED:
            now += 1.5
            assert now < 9000.0
            for asked in following.poll(now, True):
                if chance.random() < 0.67:
                    if isinstance(asked, LogState):
                        shipping.on_state(now, asked)
                    else:
                        assert isinstance(asked, Ack)
                        shipping.on_ack(now, asked)
            for told in shipping.poll(now, shipping.progress.synced):
                if chance.random() < 0.67:
                    if isinstance(told, LogMatch):
                        following.on_match(now, told)
                    else:
                        assert isinstance(told, Append)
                        following.on_append(now, told)


@pytest.mark.parametrize("seed", range(4))
def test_nodes_take_turns(tmp_path: Path, seed: int) -> None:
    """Over lossy messages and restarts the follower ends with the active's catalog and rows, tenure after tenure."""
    chance = random.Random(seed)
    paths = [tmp_path / "1", tmp_path / "2"]
    number = 0
    for epoch in range(1, 6):
        active, standby = DiskOfNode(paths[0]), DiskOfNode(paths[1], follows=True)
        for log in active.stored.logs().values():
            log.note_epoch(EpochStart(epoch, log.bounds().written + 1))
        for _ in range(chance.randrange(12)):
            number += 1
            active.write(number)
        carry(active, standby, epoch, chance)
        for one in (active, standby):
            for log in one.stored.logs().values():
                log.acknowledge(log.bounds().written)
        assert standby.vnode.acknowledged_version == active.vnode.acknowledged_version
        assert standby.store.entries.all() == active.store.entries.all()
        for log, here in active.stored.logs().items():
            there = standby.stored.logs()[log]
            assert there.bounds().written == there.bounds().synced == there.bounds().floor == here.bounds().written
            assert cut_to(there.epochs(), there.bounds().written) == cut_to(here.epochs(), here.bounds().written)
        if standby.vnode.reader.table_uids():
            assert standby.vnode.reader.snapshot(7).to_arrow().equals(active.vnode.reader.snapshot(7).to_arrow())
        for _ in range(chance.randrange(3)):  # what nobody gets, and so is cut off
            number += 1
            active.write(number)
        active.close()
        standby.close()
        paths.reverse()
