"""Vnodes that keep copies of each other's logs: what followers hold, what readers see, what is on disk, what is cut."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from conftest import times
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kits.basics.faulty_fs import FaultyFs
from kits.basics.few_rows import write_few

from penstock.common.clock import ManualClock
from penstock.common.errors import InvalidValueError, PenstockError, StorageError, UnavailableError
from penstock.common.fs import OsFs
from penstock.vnode.read.detached_reader import DetachedVnode
from penstock.vnode.store.delivery import IngestDelivery
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode
from penstock.wal.log import LogFiles
from penstock.wal.reader import WalReader
from penstock.wal.segment import list_segments, segment_name

TABLE = 7
SCHEMA = pa.schema([("ts", pa.timestamp("ms")), ("v", pa.int64())])
FOLLOWS = UnavailableError("node 2 follows node 1")
Rows = dict[int, int]


class Member:
    """A vnode of one node."""

    def __init__(self, directory: Path, *, follows: bool = False) -> None:
        self.directory = directory
        self.follows = follows
        self.fs = FaultyFs()
        self.open()

    def open(self) -> None:
        options = VnodeOptions(1, segment_bytes=1500, compact_min_parts=3, part_grace_s=0.0, replicated=True)
        self.vnode = Vnode.open(self.directory, options, fs=self.fs, clock=ManualClock())
        if self.follows:
            self.vnode.copying.follow(FOLLOWS)
        else:
            self.vnode.tables.define(TABLE, SCHEMA, 1)

    def reopen(self) -> None:
        self.vnode.close()
        self.open()

    @property
    def written(self) -> int:
        return self.vnode.copying.written_version

    def copy_from(self, other: Member, size: int = 1 << 20) -> bool:
        """Takes the next records; returns whether there were some."""
        records = other.vnode.copying.copied.read(self.written, size)
        if records is not None:
            self.vnode.copying.append(records)
        return records is not None

    def rows(self) -> Rows:
        """Returns what a reader sees."""
        if TABLE not in self.vnode.reader.table_uids():
            return {}
        found = self.vnode.reader.snapshot(TABLE).to_arrow()
        return dict(zip(found.column("ts").cast(pa.int64()).to_pylist(), found.column("v").to_pylist(), strict=True))

    def rows_on_disk(self) -> Rows:
        """Returns what the parts hold, for who reads files alone."""
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "vnode")
            shutil.copytree(self.directory, copy)
            shutil.rmtree(copy / "wal")
            found = DetachedVnode(copy, 1, OsFs()).snapshot(TABLE).to_arrow()
        return dict(zip(found.column("ts").cast(pa.int64()).to_pylist(), found.column("v").to_pylist(), strict=True))

    def segments(self) -> list[bytes]:
        folder = self.directory / "wal"
        return [(folder / segment_name(first)).read_bytes() for first in list_segments(OsFs(), folder)]

    def log_versions(self) -> list[int]:
        """Returns what a reader of the log gets."""
        reader = WalReader(LogFiles(self.directory / "wal", OsFs()), self.vnode.reader.oldest_version())
        versions = [record.version for record in reader.read()]
        reader.close()
        return versions


def batch(*rows: tuple[int, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([
        pa.array([1] * len(rows), pa.uint64()), pa.array([ts for ts, _ in rows], pa.timestamp("ms")),
        pa.array([v for _, v in rows], pa.int64())], ["_tuid", "ts", "v"])


def do_next(member: Member, states: list[Rows], action: str, key: int) -> None:
    """Writes or deletes, and notes the state of the table as of that version."""
    rows, vnode, number = dict(states[-1]), member.vnode, len(states)
    if action == "write":
        vnode.write(TABLE, batch((key, number)))
        rows[key] = number
    elif action == "append":
        ts = max(rows, default=0) + 1
        if write_few(vnode, TABLE, ("ts", "v"), [(1, ts, number)]) is None:
            vnode.write(TABLE, batch((ts, number)))
        rows[ts] = number
    else:
        vnode.delete(TABLE, None, key, key + 2)
        rows = {ts: v for ts, v in rows.items() if not key <= ts <= key + 2}
    states.append(rows)


ACTIONS = st.lists(st.one_of(
    st.tuples(st.sampled_from(["write", "append", "delete"]), st.integers(0, 12)),
    st.tuples(st.just("copy"), st.sampled_from([1, 400, 9000])),
    st.tuples(st.sampled_from(["flush", "compact", "reopen"]), st.integers(0, 1)),
    st.tuples(st.sampled_from(["acknowledge", "takeover"]), st.integers(0, 6))), max_size=50)


@settings(max_examples=times(48, 1200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ACTIONS)
@example([("write", 0), ("write", 0), ("copy", 1), ("reopen", 0), ("takeover", 0)])
@example([("write", 0), ("write", 0), ("copy", 9000), ("acknowledge", 1), ("takeover", 0)])
def test_nodes_show_and_keep_what_is_acknowledged(script: list[tuple[str, int]]) -> None:
    """Readers see the table as of the acknowledged version, on whatever node; parts have no more; nothing is lost.

    At a takeover the follower goes on with what it has; what the other has beyond is cut off, and it follows.
    """
    with tempfile.TemporaryDirectory() as folder:
        active, standby = Member(Path(folder, "a")), Member(Path(folder, "b"), follows=True)
        states: list[Rows] = [{}]
        acknowledged = 0
        for action, number in script:
            members = (active, standby)
            if action == "copy":
                standby.copy_from(active, number)
            elif action == "flush":
                members[number].vnode.flush()
            elif action == "compact":
                members[number].vnode.compact(full=True)
            elif action == "reopen":
                members[number].reopen()
            elif action == "acknowledge":
                acknowledged = max(acknowledged, min(standby.written - number, active.written))
                for one in members:
                    one.vnode.copying.acknowledge(acknowledged)
            elif action == "takeover":
                lost = active.written - standby.written
                active.vnode.copying.follow(FOLLOWS)
                assert active.vnode.copying.cut(standby.written) == lost
                standby.vnode.copying.lead()
                standby.vnode.tables.define(TABLE, SCHEMA, 1)
                active.follows, standby.follows = True, False
                active, standby = standby, active
                del states[active.written + 1:]
                acknowledged = active.written
                active.vnode.copying.acknowledge(acknowledged)
            else:
                do_next(active, states, action, number)
            for one in (active, standby):
                shown = one.vnode.acknowledged_version
                assert one.vnode.reader.stats().persisted_version <= shown <= acknowledged
                assert one.rows() == states[shown]
                assert one.log_versions() == list(range(1, shown + 1))
        while standby.copy_from(active):
            pass
        for one in (active, standby):
            one.vnode.copying.acknowledge(active.written)
            assert one.rows() == states[-1]
            one.vnode.flush()
            one.reopen()
            assert one.rows() == states[-1]
        assert active.segments() == standby.segments()


def test_parts_stay_behind_what_is_acknowledged(tmp_path: Path) -> None:
    """A flush takes what counts out of the memtable, and leaves the rest there, though they lie in one run."""
    active = Member(tmp_path / "a")
    for number in range(1, 50):
        write_few(active.vnode, TABLE, ("ts", "v"), [(1, number, number)])
    active.vnode.copying.acknowledge(30)
    active.vnode.flush()
    assert active.rows_on_disk() == active.rows() == {number: number for number in range(1, 31)}
    stats = active.vnode.reader.stats()
    assert (stats.persisted_version, stats.part_rows, stats.memtable_rows) == (30, 30, 19)
    active.vnode.flush()
    assert active.vnode.reader.stats().parts == 1
    active.reopen()
    assert active.vnode.acknowledged_version == 30
    active.vnode.copying.acknowledge(49)
    assert len(active.rows()) == 49


def test_a_follower_takes_no_writes_of_its_own(tmp_path: Path) -> None:
    """Rows, deletes and marks are refused with the reason; who leads takes no copies."""
    active, standby = Member(tmp_path / "a"), Member(tmp_path / "b", follows=True)
    active.vnode.write(TABLE, batch((1, 1)))
    standby.copy_from(active)
    standby.vnode.tables.define(TABLE, SCHEMA, 1)
    for write in (lambda: standby.vnode.write(TABLE, batch((2, 2))),
                  lambda: standby.vnode.delete(TABLE, None, 0, 9),
                  lambda: write_few(standby.vnode, TABLE, ("ts", "v"), [(1, 2, 2)]),
                  lambda: standby.vnode.write_meta({}),
                  lambda: standby.vnode.writer.write_time_mark("w", 1)):
        with pytest.raises(UnavailableError, match="node 2 follows"):
            write()
    standby.vnode.copying.acknowledge(1)
    assert standby.rows() == {1: 1}
    records = standby.vnode.copying.copied.read(0, 9000)
    assert records is not None
    with pytest.raises(UnavailableError, match="takes no copies"):
        active.vnode.copying.append(records)


def test_a_write_waits_for_the_cluster(tmp_path: Path) -> None:
    """It returns when its version is acknowledged; where that raises, the row is there, but unseen until then."""
    active = Member(tmp_path / "a")
    asked: list[int] = []
    may_go_on = threading.Event()

    def wait(version: int) -> None:
        asked.append(version)
        may_go_on.wait(60)
        active.vnode.copying.acknowledge(version)

    active.vnode.copying.set_cluster_wait(wait)
    thread = threading.Thread(target=lambda: active.vnode.write(TABLE, batch((1, 1))))
    thread.start()
    while not asked:
        assert thread.is_alive()
    assert active.rows() == {}
    may_go_on.set()
    thread.join(60)
    assert asked == [1]
    assert active.rows() == {1: 1}

    def refuse(version: int) -> None:
        raise UnavailableError(f"version {version} has no replica")

    active.vnode.copying.set_cluster_wait(refuse)
    with pytest.raises(UnavailableError, match="version 2 has no"):
        active.vnode.write(TABLE, batch((2, 2)))
    assert active.rows() == {1: 1}
    active.vnode.copying.acknowledge(2)
    assert active.rows() == {1: 1, 2: 2}


def test_what_is_acknowledged_cannot_be_cut(tmp_path: Path) -> None:
    """Neither what readers may have seen, nor what is in parts."""
    active = Member(tmp_path / "a")
    for number in range(1, 6):
        active.vnode.write(TABLE, batch((number, number)))
    active.vnode.copying.acknowledge(3)
    with pytest.raises(InvalidValueError, match="acknowledged up to version 3"):
        active.vnode.copying.cut(2)
    assert active.vnode.copying.cut(3) == 2
    assert active.rows() == {1: 1, 2: 2, 3: 3}
    active.vnode.write(TABLE, batch((9, 9)))
    active.vnode.copying.acknowledge(4)
    assert active.rows() == {1: 1, 2: 2, 3: 3, 9: 9}


def test_places_of_ingests_go_back_with_the_rows(tmp_path: Path) -> None:
    """What was cut off of an ingest's rows is taken when it is delivered again; what was acknowledged is not."""
    active = Member(tmp_path / "a")

    def deliver(offset: int) -> int:
        delivery = IngestDelivery(3, "p", "", np.array([offset]))
        active.vnode.write(TABLE, batch((offset, offset)), delivery=delivery)
        return active.written

    assert [deliver(offset) for offset in (1, 2, 3)] == [1, 2, 3]
    active.vnode.copying.acknowledge(2)
    active.vnode.flush()
    active.vnode.copying.cut(2)
    active.reopen()
    assert [deliver(offset) for offset in (1, 2, 3)] == [2, 2, 3]


def test_a_follower_goes_on_after_its_disk_has_refused(tmp_path: Path) -> None:
    """Whatever call fails: log and tables have the same records afterwards, and what is sent again fits."""
    active = Member(tmp_path / "a")
    states: list[Rows] = [{}]
    for number in range(30):
        do_next(active, states, ("write", "append", "append", "delete")[number % 4], number % 7)
    for fail_at in range(1, 200, times(5, 1)):
        standby = Member(tmp_path / "b", follows=True)
        standby.fs.calls, standby.fs.fail_at = 0, fail_at
        while standby.written < 30:
            try:
                standby.copy_from(active, 300)
                standby.vnode.copying.acknowledge(standby.written - 2)
                standby.vnode.flush()
            except StorageError:
                if standby.vnode._store.wal.failed is not None:
                    standby.open()
        failed, standby.fs.fail_at = bool(standby.fs.failed), 0
        standby.vnode.copying.acknowledge(30)
        assert standby.rows() == states[-1]
        standby.vnode.close()
        shutil.rmtree(tmp_path / "b")
        if not failed:
            break
    assert fail_at > 20


def test_tables_that_were_dropped_stay_away(tmp_path: Path) -> None:
    """Rows of a table that the follower has dropped are in its log alone; it never asks for others' tables."""
    active, standby = Member(tmp_path / "a"), Member(tmp_path / "b", follows=True)
    active.vnode.write(TABLE, batch((1, 1)))
    standby.copy_from(active)
    assert standby.vnode.reader.table_uids() == [TABLE]
    standby.vnode.tables.drop(TABLE)
    active.vnode.write(TABLE, batch((2, 2)))
    standby.copy_from(active)
    assert standby.vnode.reader.table_uids() == []
    assert standby.segments() == active.segments()
    with pytest.raises(PenstockError):
        standby.vnode.reader.snapshot(TABLE)


def test_without_a_cluster_all_that_is_written_counts(tmp_path: Path) -> None:
    """A vnode that isn't replicated acknowledges by itself, also what a cluster hadn't acknowledged before."""
    active = Member(tmp_path / "a")
    for number in range(1, 4):
        active.vnode.write(TABLE, batch((number, number)))
    assert active.rows() == {}
    active.vnode.close()
    alone = Vnode.open(tmp_path / "a", VnodeOptions(1), fs=OsFs(), clock=ManualClock())
    assert alone.acknowledged_version == 3
    alone.write(TABLE, batch((4, 4)))
    assert alone.acknowledged_version == 4
    assert alone.reader.snapshot(TABLE).to_arrow().num_rows == 4
    alone.close()
