"""Copies of vnodes in pieces: whole, while rows come and parts are merged; then the copy follows the log."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from conftest import times
from kits.basics.faulty_fs import FaultyFs
from simulation.disk import Disk, PowerLost

from penstock.common.clock import ManualClock
from penstock.common.errors import InvalidValueError, NotFoundError, StorageError, UnavailableError
from penstock.common.fs import Fs, OsFs
from penstock.common.paths import DataPaths
from penstock.vnode.dnode import Dnode
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode
from penstock.vnode.write.vnode_copy import CopiedFile, ReceivedCopy, VnodeCopySource
from penstock.wal.epoch_file import load_epochs, save_epochs
from penstock.wal.segment import list_segments

OPTIONS = VnodeOptions(1, segment_bytes=1500, compact_min_parts=3, part_grace_s=0.0, wal_retention_period_s=0,
                       replicated=True)
FOLLOWS = UnavailableError("node 2 follows node 1")
SCHEMA = pa.schema([("ts", pa.timestamp("ms")), ("v", pa.int64())])


def opened(directory: Path, fs: Fs | None = None) -> Vnode:
    vnode = Vnode.open(directory, OPTIONS, fs=fs or FaultyFs(), clock=ManualClock())
    for table in (7, 8):
        vnode.tables.define(table, SCHEMA, 1)
    return vnode


def do_some(vnode: Vnode, chance: random.Random, count: int) -> None:
    """Writes, deletes, flushes, merges, lets the log and replaced files go."""
    for _ in range(count):
        table, ts, what = chance.choice((7, 8)), chance.randrange(300), chance.random()
        if what < 0.75:
            vnode.write(table, pa.RecordBatch.from_arrays([
                pa.array([1, 2], pa.uint64()), pa.array([ts, ts + 1], pa.timestamp("ms")),
                pa.array(np.arange(2) + chance.randrange(10**6))], ["_tuid", "ts", "v"]))
        elif what < 0.85:
            vnode.delete(table, None, ts, ts + 9)
        else:
            vnode.copying.acknowledge(vnode.copying.written_version - chance.randrange(4))
            vnode.flush()
            vnode.compact(full=what > 0.95)
            vnode.maintain()


def rows(vnode: Vnode) -> list[pa.Table]:
    return [vnode.reader.snapshot(table).to_arrow() for table in (7, 8)]


def transfer(source: VnodeCopySource, received: ReceivedCopy, size: int, between: Callable[[], None]) -> None:
    """Carries all pieces."""
    while not received.is_whole:
        received.write(source.read(*received.next, size))
        between()
    received.finish()


def follow_up(active: Vnode, copy: Vnode) -> None:
    """Has a copy catch up from the log."""
    copy.copying.follow(FOLLOWS)
    while (records := active.copying.copied.read(copy.copying.written_version, 900)) is not None:
        copy.copying.append(records)
    for vnode in (active, copy):
        vnode.copying.acknowledge(active.copying.written_version)


@pytest.mark.parametrize("seed", range(times(4, 80)))
def test_a_copy_made_under_load_follows(tmp_path: Path, seed: int) -> None:
    """Whatever happens to the vnode meanwhile: the copy opens, is sound, catches up, and then has the same rows."""
    chance = random.Random(seed)
    active = opened(tmp_path / "a")
    do_some(active, chance, chance.randrange(200))
    while True:
        source = active.copying.copy_files("copy to node 2")
        received = ReceivedCopy(tmp_path / "b", source.files, FaultyFs())
        try:
            transfer(source, received, chance.choice((100, 5000)), lambda: do_some(active, chance, chance.randrange(3)))
            break
        except NotFoundError:  # old newest times, which nothing holds longer than readers' grace
            received.close()
            shutil.rmtree(tmp_path / "b", ignore_errors=True)
        finally:
            source.close()
    copy = Vnode.open(tmp_path / "b", OPTIONS, fs=FaultyFs(), clock=ManualClock())
    follow_up(active, copy)
    copy.reader.verify()
    assert rows(copy) == rows(active)
    do_some(active, chance, 30)
    follow_up(active, copy)
    assert rows(copy) == rows(active)
    for first in list_segments(OsFs(), copy.directory / "wal"):
        name = f"wal/{first:020d}.log"
        if (active.directory / name).exists():
            assert (copy.directory / name).read_bytes() == (active.directory / name).read_bytes()
    assert not any("copy" in owner for owner in active.reader.stats().pins)
    copy.close()
    assert rows(opened(tmp_path / "b")) == rows(active)


def test_what_is_damaged_or_not_wanted_is_refused(tmp_path: Path) -> None:
    """Flipped bytes, pieces out of order, and names that lead elsewhere; the copy goes on with the right ones."""
    active = opened(tmp_path / "a")
    do_some(active, random.Random(5), 150)
    save_epochs(OsFs(), tmp_path / "a" / "wal", [(3, 1)])
    source = active.copying.copy_files("copy")
    received = ReceivedCopy(tmp_path / "b", source.files, FaultyFs())
    while not received.is_whole:
        piece = source.read(*received.next, 700)
        for wrong in (replace(piece, data=piece.data[:-1]), replace(piece, data=piece.data[:-1] + b"\xa5" * 2),
                      replace(piece, offset=piece.offset + 1), replace(piece, file=piece.file + 1),
                      replace(piece, data=b"", checksum=0)):
            with pytest.raises(InvalidValueError):
                received.write(wrong)
        with pytest.raises(InvalidValueError, match="missing"):
            received.finish()
        received.write(piece)
    with pytest.raises(InvalidValueError):
        received.write(source.read(0, 0, 10))
    received.finish()
    assert load_epochs(OsFs(), tmp_path / "b" / "wal") == ((3, 1),)
    for name in ("../x", "/etc/passwd", "store/../../x", "DATABASE", ""):
        with pytest.raises(InvalidValueError, match="called"):
            ReceivedCopy(tmp_path / "c", (CopiedFile(name, 1), *source.files), FaultyFs())
    with pytest.raises(InvalidValueError, match="last"):
        ReceivedCopy(tmp_path / "c", source.files[::-1], FaultyFs())


def test_a_file_that_is_gone_asks_for_another_copy(tmp_path: Path) -> None:
    """What a pin couldn't hold, or a disk has lost."""
    active = opened(tmp_path / "a")
    do_some(active, random.Random(5), 50)
    source = active.copying.copy_files("copy")
    (tmp_path / "a" / source.files[0].name).unlink()
    with pytest.raises(NotFoundError, match="copy it anew"):
        source.read(0, 0, 10)


def test_a_disk_that_refuses_is_asked_again(tmp_path: Path) -> None:
    """The same piece may come once more; what was written of it doesn't count."""
    active = opened(tmp_path / "a")
    do_some(active, random.Random(6), 80)
    source = active.copying.copy_files("copy")
    for fail_at in range(1, 400, 3):
        fs = FaultyFs(fault="short", fail_at=fail_at)
        received = ReceivedCopy(tmp_path / f"b{fail_at}", source.files, fs)
        while not received.is_whole:
            try:
                received.write(source.read(*received.next, 900))
            except StorageError:
                assert fs.failed
        try:
            received.finish()
        except StorageError:
            received.finish()
        copy = opened(tmp_path / f"b{fail_at}")
        follow_up(active, copy)
        assert rows(copy) == rows(active)
        if not fs.failed:
            break
    assert fail_at > 20


def test_a_power_cut_leaves_no_half_vnode(tmp_path: Path) -> None:
    """Before the copy is finished there is no MANIFEST; afterwards all is there."""
    active = opened(tmp_path / "a")
    do_some(active, random.Random(7), 80)
    source = active.copying.copy_files("copy")
    for boundary in range(1, 1000, 2):
        folder = tmp_path / f"b{boundary}"
        disk = Disk(folder, random.Random(boundary), faults={boundary: "power"})
        finished = False
        try:
            received = ReceivedCopy(folder, source.files, disk.view("first"))
            transfer(source, received, 2000, lambda: None)
            finished = True
        except PowerLost:
            pass
        disk.kill("first")
        disk.faults.clear()
        disk.off = True
        disk.cut_power()
        if finished or (folder / "store" / "MANIFEST").exists():
            copy = opened(folder)
            follow_up(active, copy)
            assert rows(copy) == rows(active)
        if finished:
            break
    assert finished


def test_a_copy_takes_the_place_of_a_vnode(tmp_path: Path) -> None:
    """What there was is moved out of the way, and nobody writes to it any more."""
    active = opened(tmp_path / "a")
    do_some(active, random.Random(8), 60)
    dnode = Dnode(DataPaths(tmp_path / "node"), fs=FaultyFs(), clock=ManualClock())
    before = dnode.open_vnode(1, OPTIONS)
    before.tables.define(7, SCHEMA, 1)
    source = active.copying.copy_files("copy")
    received = ReceivedCopy(dnode.paths.scratch / "vnode-1", source.files, FaultyFs())
    transfer(source, received, 9000, lambda: None)
    copy = dnode.replace_vnode(1, OPTIONS, dnode.paths.scratch / "vnode-1")
    follow_up(active, copy)
    assert rows(copy) == rows(active)
    assert dnode.vnode(1) is copy
    assert (dnode.paths.aside / "vnode" / "1" / "store" / "MANIFEST").exists()
    with pytest.raises(UnavailableError):
        before.flush()
    dnode.stop()
