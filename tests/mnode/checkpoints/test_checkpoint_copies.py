"""Copies of checkpoints as one node gives them and another takes them: whole, in place, and what is there already."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from kits.engines.sandboxes import T0, TestBed

from penstock.common.errors import CorruptionError, InvalidValueError, NotFoundError, UnavailableError
from penstock.common.fs import OsFs
from penstock.common.paths import DataPaths
from penstock.mnode.checkpoints.checkpoint_copies import CheckpointShelf, CheckpointsToGive
from penstock.mnode.checkpoints.commit_records import CommitRecords
from penstock.mnode.cluster.cluster_messages import CheckpointCopy, CheckpointName

QUERY = "SELECT _wstart ts, count(*) n, sum(v) total FROM d.t INTERVAL(10s)"


class Node:
    """A node that takes copies into a directory; it is active if `follows` is False."""

    def __init__(self, root: Path) -> None:
        self.paths = DataPaths(root)
        self.records = CommitRecords(self.paths, OsFs())
        self.follows = True
        self.pins: list[tuple[int, dict[int, int]]] = []
        self.shelf = CheckpointShelf(self.paths, OsFs(), self.records, self._put,
                                     lambda stream_id, versions: self.pins.append((stream_id, dict(versions))))

    def _put(self, epoch: int | None, versions: Sequence[tuple[int, int]], action: Callable[[], None]) -> None:
        if not self.follows:
            raise UnavailableError("this node has just become the active one")
        action()

    def take(self, giving: CheckpointsToGive, copy: CheckpointCopy) -> int:
        """Takes a copy; returns how many pieces came."""
        wanted = self.shelf.begin(copy, giving.manifest(copy.name))
        for number in wanted:
            self.shelf.write(number, giving.piece(copy.name, number))
        self.shelf.finish(1)
        return len(wanted)


def make(root: Path) -> TestBed:
    made = TestBed(directory=root)
    made.all("CREATE DATABASE d VGROUPS 1", "CREATE TABLE d.t (ts timestamp, v int)",
             f"CREATE STREAM s TRIGGER AT_ONCE INTO d.o AS {QUERY}")
    return made


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[TestBed]:
    with make(tmp_path / "active") as made:
        yield made


def checkpoint(bed: TestBed, second: int) -> None:
    bed.execute(f"INSERT INTO d.t VALUES ({T0 + second * 1000}, {second})")
    bed.execute("CHECKPOINT STREAM s")


def giving_of(bed: TestBed) -> tuple[CheckpointsToGive, int]:
    giving = CheckpointsToGive(bed.engine.paths, OsFs(), bed.engine.records, gives=True)
    (stream_id,) = giving.with_checkpoints()
    return giving, stream_id


def test_a_log_is_held_for_an_earlier_checkpoint_before_it_is_looked_at(
        bed: TestBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not be cut meanwhile; and is held as before if nothing comes of it."""
    node = Node(tmp_path / "standby")
    checkpoint(bed, 1)
    giving, stream_id = giving_of(bed)
    (copy,), _ = giving.make([stream_id])
    needed = {log: version + 1 for log, version in copy.versions}
    monkeypatch.setattr(node.records, "oldest_versions", lambda stream_id: needed)
    node.follows = False
    with pytest.raises(UnavailableError):
        node.take(giving, copy)
    assert node.pins == [(stream_id, dict(copy.versions)), (stream_id, needed)]


def test_a_copy_takes_the_place_of_what_was_there(bed: TestBed, tmp_path: Path) -> None:
    """With all checkpoints that the stream keeps; what hasn't changed doesn't travel, and the log is held for it."""
    node = Node(tmp_path / "standby")
    for second in (1, 2):
        checkpoint(bed, second)
    giving, stream_id = giving_of(bed)
    (first,), _ = giving.make([stream_id])
    assert node.take(giving, first) > 0
    assert node.take(giving, first) == 0
    checkpoint(bed, 13)
    giving.offer(stream_id)
    assert giving.news() == {stream_id}
    (second,), _ = giving.make([stream_id])
    assert not giving.news()
    assert second.name > first.name
    node.take(giving, second)
    assert node.shelf.held() == {stream_id: second}
    assert node.records.ids(stream_id) == bed.engine.records.ids(stream_id) == [3, 2, 1]
    assert node.pins[-1] == (stream_id, bed.engine.records.oldest_versions(stream_id))
    with pytest.raises(NotFoundError, match="isn't offered any more"):
        giving.manifest(first.name)
    assert not list(node.paths.scratch.glob("replaced-*"))


def test_half_a_copy_changes_nothing(bed: TestBed, tmp_path: Path) -> None:
    """Neither one that lacks pieces, nor bytes or manifests that were changed, nor one that comes too late."""
    node = Node(tmp_path / "standby")
    checkpoint(bed, 1)
    giving, stream_id = giving_of(bed)
    (copy,), _ = giving.make([stream_id])
    manifest = giving.manifest(copy.name)
    number, *_ = node.shelf.begin(copy, manifest)
    with pytest.raises(InvalidValueError, match="was damaged on its way"):
        node.shelf.write(number, giving.piece(copy.name, number)[:-1] + b"?")
    with pytest.raises(InvalidValueError, match="pieces are missing"):
        node.shelf.finish(1)
    with pytest.raises(CorruptionError, match="fails its checksum"):
        node.shelf.begin(copy, manifest.replace(b"source", b"sauce!"))
    with pytest.raises(CorruptionError, match="of other checkpoints"):
        node.shelf.begin(CheckpointCopy(CheckpointName(stream_id, 1, 9), ()), manifest)
    node.follows = False
    with pytest.raises(UnavailableError):
        node.take(giving, copy)
    assert not node.shelf.held()
    assert not node.paths.stream(stream_id).exists()


def test_checkpoints_that_the_cluster_never_had_are_removed(bed: TestBed, tmp_path: Path) -> None:
    """A log is cut: what has more of it goes, older ones stay; what was dropped goes altogether."""
    node = Node(tmp_path / "standby")
    for second in (1, 2):
        checkpoint(bed, second)
    giving, stream_id = giving_of(bed)
    node.take(giving, *giving.make([stream_id])[0])
    ((vgroup_id, version),) = node.shelf.held()[stream_id].versions
    node.shelf.part(vgroup_id, version)
    assert node.records.ids(stream_id) == [2, 1]
    node.shelf.part(vgroup_id, version - 1)
    assert node.shelf.held()[stream_id].name.checkpoint == 1
    node.shelf.keep_only({stream_id})
    assert node.shelf.held()
    node.shelf.keep_only(())
    assert not node.shelf.held()
    assert not node.paths.stream(stream_id).exists()


def test_a_stream_goes_on_from_a_copy(tmp_path: Path) -> None:
    """The state of a stream is another node's copy: rows before its cut aren't read again."""
    node, root = Node(tmp_path / "standby"), tmp_path / "active"
    with make(root) as bed:
        for second in (1, 2, 13):
            checkpoint(bed, second)
        giving, stream_id = giving_of(bed)
        node.take(giving, *giving.make([stream_id])[0])
        bed.execute(f"INSERT INTO d.t VALUES ({T0 + 24_000}, 24)")
        bed.execute("CHECKPOINT STREAM s")
    shutil.rmtree(root / "streams")
    shutil.move(node.paths.streams, root / "streams")
    with TestBed(directory=root) as bed:
        bed.run()
        assert bed.rows("SELECT rows_in FROM information_schema.ins_streams")[0][0] == 1
        assert sorted(bed.rows("SELECT ts, n, total FROM d.o")) == sorted(bed.rows(QUERY))
