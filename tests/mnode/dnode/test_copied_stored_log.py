"""The epochs of logs that are copied: chunks are of one epoch, which is noted before the first record of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.basics.faulty_fs import FaultyFs

from penstock.common.clock import ManualClock
from penstock.common.errors import InternalError, InvalidValueError, StorageError
from penstock.common.fs import OsFs
from penstock.mnode.cluster.log_epochs import EpochStart, common_end, epoch_of
from penstock.mnode.dnode.copied_stored_log import EpochList, append_chunk, read_chunk
from penstock.wal.copied_log import CopiedLog
from penstock.wal.segment import list_segments, segment_name
from penstock.wal.writer import WalOptions, WalWriter


class Node:
    """A log and its epochs in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.open()

    def open(self) -> None:
        fs = FaultyFs()
        self.log = WalWriter.open(self.directory, WalOptions(1, 1, 400), fs=fs, clock=ManualClock())
        self.copied = CopiedLog(self.log, self.directory, fs, 1)
        self.epochs = EpochList(fs, self.directory)

    @property
    def end(self) -> int:
        return self.log.acknowledged_version

    def write(self, epoch: int, count: int) -> None:
        """Writes records as the active of an epoch."""
        self.epochs.note(EpochStart(epoch, self.end + 1), self.end)
        for _ in range(count):
            self.log.commit(self.log.enqueue_meta({"epoch": epoch, "version": self.end + 1}, 1))

    def follow(self, active: Node, size: int) -> None:
        """Does what a standby does: cuts where the logs part, and copies what follows."""
        common = common_end(self.epochs.all, self.end, active.epochs.all, active.end)
        self.copied.cut(common)
        self.epochs.cut(common)
        while (chunk := read_chunk(active.copied, active.epochs.all, self.end, size)) is not None:
            first, last = chunk.after + 1, chunk.last
            assert {epoch_of(active.epochs.all, one) for one in range(first, last + 1)} == {chunk.start.epoch}
            append_chunk(self.copied, self.epochs, self.end, chunk)

    def segments(self) -> list[bytes]:
        return [(self.directory / segment_name(first)).read_bytes() for first in list_segments(OsFs(), self.directory)]


@settings(max_examples=times(24, 600), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 2), st.sampled_from([100, 300, 9000])),
                max_size=12))
def test_logs_of_many_epochs_become_the_same(tenures: list[tuple[int, int, int, int]]) -> None:
    """Whoever was active, and wrote what nobody got: who follows ends with the active's bytes and epochs."""
    with tempfile.TemporaryDirectory() as folder:
        nodes = [Node(Path(folder, str(number))) for number in range(3)]
        for epoch, (active, count, follower, size) in enumerate(tenures, 1):
            nodes[active].write(epoch, count)
            if follower != active:
                nodes[follower].follow(nodes[active], size)
                nodes[follower].open()
                assert nodes[follower].segments() == nodes[active].segments()
                for version in range(1, nodes[active].end + 1):
                    assert epoch_of(nodes[follower].epochs.all, version) == epoch_of(nodes[active].epochs.all, version)


def test_an_old_log_is_followed_from_its_start(tmp_path: Path) -> None:
    """What was written before there was a cluster has no epoch, and no list."""
    active, standby = Node(tmp_path / "a"), Node(tmp_path / "b")
    for _ in range(5):
        active.log.commit(active.log.enqueue_meta({}, 1))
    standby.follow(active, 9000)
    assert standby.epochs.all == ()
    active.write(3, 5)
    standby.follow(active, 9000)
    assert standby.epochs.all == (EpochStart(3, 6),)
    assert standby.segments() == active.segments()


def test_an_epoch_is_noted_only_for_records_that_fit(tmp_path: Path) -> None:
    """A chunk that is refused leaves the list as it was; so does one of an epoch that is over."""
    active, standby, other = Node(tmp_path / "a"), Node(tmp_path / "b"), Node(tmp_path / "c")
    active.write(2, 3)
    other.write(1, 4)
    chunk = read_chunk(active.copied, active.epochs.all, 1, 9000)
    late = read_chunk(other.copied, other.epochs.all, 3, 9)
    assert chunk is not None
    assert late is not None
    with pytest.raises(InvalidValueError):
        append_chunk(standby.copied, standby.epochs, 0, chunk)
    assert standby.epochs.all == ()
    standby.follow(active, 9000)
    with pytest.raises(InvalidValueError):
        append_chunk(standby.copied, standby.epochs, 3, late)
    assert standby.epochs.all == (EpochStart(2, 1),)
    with pytest.raises(InternalError):
        standby.epochs.note(EpochStart(1, 4), 3)


def test_an_epoch_that_cannot_be_kept_has_no_records(tmp_path: Path) -> None:
    """If the list can't be written, nothing goes into the log."""
    active, standby = Node(tmp_path / "a"), Node(tmp_path / "b")
    active.write(2, 3)
    chunk = read_chunk(active.copied, active.epochs.all, 0, 9000)
    assert chunk is not None
    refusing = EpochList(FaultyFs(fail_at=1), standby.directory)
    with pytest.raises(StorageError):
        append_chunk(standby.copied, refusing, 0, chunk)
    assert standby.end == 0
    append_chunk(standby.copied, standby.epochs, 0, chunk)
    assert standby.end == chunk.last
