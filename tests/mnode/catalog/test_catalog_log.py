"""The catalog's changes as a log: in step with the catalog whatever fails, and the same on nodes that copy it."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.basics.faulty_fs import FaultyFs

from penstock.common.clock import ManualClock
from penstock.common.errors import CorruptionError, InvalidValueError, StorageError, UnavailableError
from penstock.common.fs import OsFs
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_codec import seal
from penstock.mnode.catalog.catalog_copy_source import CATALOG_FOLDERS, CatalogCopySource
from penstock.mnode.catalog.catalog_copying import CatalogCopying
from penstock.mnode.catalog.catalog_lock import CatalogLock
from penstock.mnode.catalog.catalog_log import CatalogLog, CatalogLogBounds, EntryChange
from penstock.mnode.catalog.catalog_store import META, STREAMS, TABLES, CatalogStore
from penstock.mnode.cluster.log_epochs import EpochStart
from penstock.mnode.dnode.copied_stored_log import CopiedStoredLog
from penstock.vnode.write.vnode_copy import ReceivedCopy
from penstock.wal.epoch_file import EPOCHS_NAME
from penstock.wal.segment import list_segments, segment_name

FOLLOWS = UnavailableError("node 2 follows node 1")
Entries = dict[tuple[bytes, bytes], bytes]


class CatalogMember:
    """A catalog of one node, with its log."""

    def __init__(self, directory: Path, *, follows: bool = False, bounds: CatalogLogBounds | None = None) -> None:
        self.directory = directory
        self.follows = follows
        self.bounds = bounds
        self.fs = FaultyFs()
        self.open()

    def open(self) -> None:
        log = CatalogLog(self.directory / "catalog-log", self.fs, ManualClock(), self.bounds)
        self.store = CatalogStore(self.directory / "catalog", 1 << 24, log)
        self.copying = CatalogCopying(self.store)
        self.log = CopiedStoredLog(self.copying, self.copying.log.directory, self.fs)
        if self.follows:
            self.copying.follow(FOLLOWS)

    def reopen(self) -> None:
        self.store.close()
        self.open()

    def entries(self) -> Entries:
        """Returns what is stored, but for what a catalog has for itself."""
        return {(one.store, one.key): one.value for one in self.store.entries.all()
                if (one.store, one.key) != (META, b"logged")}

    @property
    def written(self) -> int:
        return self.log.bounds().written

    def copy_from(self, other: CatalogMember) -> bool:
        chunk = other.log.read(self.written, 300)
        if chunk is not None:
            self.log.append(chunk)
        return chunk is not None

    def segments(self) -> list[bytes]:
        folder = self.directory / "catalog-log"
        return [(folder / segment_name(first)).read_bytes() for first in list_segments(OsFs(), folder)]


def change(store: CatalogStore, number: int) -> None:
    """Does a transaction told by `number`: some entries are set, again, or deleted."""
    with store.transaction() as write:
        for place in range(number % 4):
            key = bytes([(number + place * place) % 5])
            if (number + place) % 3 == 2:
                write.delete(STREAMS, key)
            else:
                write.put(TABLES if place % 2 else STREAMS, key, {"number": number})
        write.take_ids(number % 3)


@settings(max_examples=times(16, 400), deadline=None)
@given(st.lists(st.tuples(
    st.sampled_from(["change"] * 3 + ["copy"] * 2 + ["sync", "reopen", "takeover", "acknowledge"]),
    st.integers(0, 40)), max_size=25))
def test_nodes_have_the_same_catalog(script: list[tuple[str, int]]) -> None:
    """What is synced is applied; what is cut off is taken back; who takes over goes on with what it has."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        active, standby = CatalogMember(Path(folder, "a")), CatalogMember(Path(folder, "b"), follows=True)
        states: list[Entries] = [{}]
        epoch = 1
        active.log.note_epoch(EpochStart(epoch, 1))
        for action, number in script:
            if action == "change":
                change(active.store, number)
                states.append(active.entries())
            elif action == "copy":
                standby.copy_from(active)
            elif action == "sync":
                standby.log.sync()
                assert standby.entries() == states[standby.written]
            elif action == "reopen":
                (active, standby)[number % 2].reopen()
            elif action == "acknowledge":
                for one in (active, standby):
                    one.log.acknowledge(min(standby.written, active.written))
            else:
                active.copying.follow(FOLLOWS)
                assert active.log.cut(standby.written) == len(states) - 1 - standby.written
                del states[standby.written + 1:]
                assert active.entries() == states[-1]
                standby.copying.lead()
                active.follows, standby.follows = True, False
                active, standby = standby, active
                epoch += 1
                active.log.note_epoch(EpochStart(epoch, active.written + 1))
            assert active.entries() == states[active.written]
            assert active.store.logged_version == active.written == len(states) - 1
        while standby.copy_from(active):
            pass
        standby.log.sync()
        assert standby.entries() == active.entries()
        assert standby.store.counters == active.store.counters
        assert standby.segments() == active.segments()


def test_a_catalog_that_there_was_is_told_as_a_whole(tmp_path: Path) -> None:
    """The log of a catalog that had none begins with all of it; so it does if it was changed without one since."""
    for turn in range(2):
        alone = CatalogStore(tmp_path / "a" / "catalog", 1 << 24)
        for number in range(20 * turn, 20 * turn + 20):
            change(alone, number)
        alone.close()
        active = CatalogMember(tmp_path / "a")
        assert (active.log.bounds().begin, active.written) == (1, 1)
        assert not (active.directory / "catalog-log" / EPOCHS_NAME).exists()
        active.log.note_epoch(EpochStart(1, 2))
        change(active.store, 7)
        standby = CatalogMember(tmp_path / f"b{turn}", follows=True)
        while standby.copy_from(active):
            pass
        standby.log.sync()
        assert standby.entries() == active.entries()
        active.store.close()
        standby.store.close()


def test_what_the_log_has_alone_is_done_by_the_next_start(tmp_path: Path) -> None:
    """A crash may come between log and catalog; then there are no more transactions before the start."""
    member = CatalogMember(tmp_path)
    change(member.store, 3)
    before = member.entries()
    member.copying.log.append([EntryChange(TABLES, b"k", None, seal(1))])
    with pytest.raises(StorageError, match="behind its log"):
        change(member.store, 4)
    assert member.entries() == before
    member.reopen()
    assert member.entries() == before | {(TABLES, b"k"): seal(1)}
    change(member.store, 4)


@pytest.mark.parametrize("fault", ["error", "short", "sync"])
def test_a_log_that_refuses_leaves_all_as_it_was(tmp_path: Path, fault: str) -> None:
    """The transaction fails; those after it go on, after a restart if a sync has failed."""
    member = CatalogMember(tmp_path)
    change(member.store, 3)
    for number in range(6, 10):
        before = member.entries()
        member.fs.fault, member.fs.calls, member.fs.fail_at = fault, 0, 1
        with pytest.raises(StorageError):
            change(member.store, number)
        member.fs.fail_at = 0
        assert member.entries() == before
        if member.copying.log.writer.failed is not None:
            member.store._env.close()
            member.open()
            before = member.entries()
        change(member.store, number)
        assert member.store.logged_version == member.written
        assert member.entries() != before


def test_a_follower_changes_nothing_by_itself(tmp_path: Path) -> None:
    """Its transactions are refused; what is acknowledged isn't cut; who leads takes no copies."""
    active, standby = CatalogMember(tmp_path / "a"), CatalogMember(tmp_path / "b", follows=True)
    for number in (1, 2, 3):
        change(active.store, number)
    while standby.copy_from(active):
        pass
    standby.log.sync()
    with pytest.raises(UnavailableError, match="node 2 follows"):
        change(standby.store, 1)
    standby.log.acknowledge(3)
    with pytest.raises(InvalidValueError, match="acknowledged up to version 3"):
        standby.log.cut(2)
    chunk = active.log.read(0, 300)
    assert chunk is not None
    with pytest.raises(InvalidValueError, match="written to"):
        active.log.append(chunk)
    standby.store.close()
    for first in list_segments(OsFs(), tmp_path / "b" / "catalog-log"):
        (tmp_path / "b" / "catalog-log" / segment_name(first)).unlink()
    (tmp_path / "b" / "catalog-log" / "END").unlink()
    with pytest.raises(CorruptionError, match="ends at version 0"):
        standby.open()


def test_a_transaction_waits_for_the_cluster(tmp_path: Path) -> None:
    """When it is done; what that raises reaches the caller, and the change stands."""
    member = CatalogMember(tmp_path)
    asked: list[int] = []
    member.store.await_cluster = asked.append
    change(member.store, 1)

    def refuse(version: int) -> None:
        raise UnavailableError(f"version {version} has no replica")

    member.store.await_cluster = refuse
    with pytest.raises(UnavailableError, match="version 2 has no"):
        change(member.store, 2)
    assert asked == [1]
    assert member.store.logged_version == 2


def test_who_follows_does_not_wait_for_who_waits(tmp_path: Path) -> None:
    """A transaction that waits for the cluster, also one of who has locked the catalog, keeps nobody from the catalog,
    nor a node from following another.
    """
    member = CatalogMember(tmp_path)
    waits, may_end = threading.Event(), threading.Event()

    def wait(version: int) -> None:
        waits.set()
        assert may_end.wait(60)

    def locked() -> None:
        with member.store.lock:
            change(member.store, 1)
            change(member.store, 2)
            assert not waits.is_set()

    member.store.await_cluster = wait
    thread = threading.Thread(target=locked)
    thread.start()
    assert waits.wait(60)
    with member.store.lock:  # such as who logs in
        assert member.store.logged_version == 2
    member.copying.follow(FOLLOWS)
    may_end.set()
    thread.join(60)
    with pytest.raises(UnavailableError, match="node 2 follows"):
        change(member.store, 3)
    assert member.store.logged_version == 2


def test_a_lock_whose_holder_fails_waits_for_nothing() -> None:
    """What he has been told is the failure; the next holder has nothing to wait for, either."""
    lock, waited = CatalogLock(), list[int]()

    def fail() -> None:
        with lock:
            lock.when_free(lambda: waited.append(1))
            raise UnavailableError("it can't be had")

    with pytest.raises(UnavailableError):
        fail()
    with lock:
        with lock:
            lock.when_free(lambda: waited.append(2))
        assert not waited
    with lock:
        pass
    assert waited == [2]


def test_a_catalog_is_opened_from_what_was_copied(tmp_path: Path) -> None:
    """Users, and what else a catalog keeps, are those of the active node."""
    log = CatalogLog(tmp_path / "a" / "log", OsFs(), ManualClock())
    catalog = Catalog(tmp_path / "a" / "catalog", map_bytes=1 << 24, log=log)
    catalog.snodes.create(1, 17)
    copying = catalog.copying()
    active = CopiedStoredLog(copying, copying.log.directory, OsFs())
    standby = CatalogMember(tmp_path / "b", follows=True)
    while (chunk := active.read(standby.written, 300)) is not None:
        standby.log.append(chunk)
    standby.log.sync()
    standby.store.close()
    opened = Catalog(tmp_path / "b" / "catalog", map_bytes=1 << 24)
    assert opened.snodes.all() == catalog.snodes.all() != ()
    assert opened.generation == catalog.generation
    opened.close()
    catalog.close()


SMALL = CatalogLogBounds(segment=2000, kept=6000, needed_max=20_000)


def size(member: CatalogMember) -> int:
    return sum(map(len, member.segments()))


def test_the_log_is_bounded_by_what_it_is_told(tmp_path: Path) -> None:
    """What the catalog has, nobody may take back and no node needs goes; a node that needs very much gets a copy. The
    next start goes on with what is left."""
    member = CatalogMember(tmp_path, bounds=SMALL)
    for number in range(300):
        change(member.store, 4 * number + 3)
    whole = size(member)
    member.copying.trim(None)
    assert (size(member), member.log.bounds().begin) == (whole, 1)  # nothing is acknowledged
    member.log.acknowledge(member.written)
    with pytest.raises(InvalidValueError, match="acknowledged"):
        member.log.cut(10)
    member.copying.trim(2)
    assert 6000 < size(member) <= 20_000
    needed = member.log.bounds().begin
    member.copying.trim(needed)
    assert member.log.bounds().begin == needed
    member.copying.trim(None)
    assert 2000 < size(member) <= 6000
    begin, entries = member.log.bounds().begin, member.entries()
    assert begin > needed
    for _ in range(2):
        member.reopen()
        assert (member.entries(), member.log.bounds().begin) == (entries, begin)
        assert member.log.bounds().floor >= begin - 1
    change(member.store, 7)
    member.store.close()


def test_a_catalog_that_was_changed_alone_lets_a_bounded_log_go(tmp_path: Path) -> None:
    """A node that left its cluster and comes back has a log of all that there is, and the old one beside."""
    member = CatalogMember(tmp_path, bounds=SMALL)
    for number in range(200):
        change(member.store, 4 * number + 3)
    member.log.acknowledge(member.written)
    member.copying.trim(None)
    member.store.close()
    alone = CatalogStore(tmp_path / "catalog", 1 << 24)
    change(alone, 7)
    alone.close()
    member.open()
    assert (member.log.bounds().begin, member.written) == (1, 1)
    assert list_segments(OsFs(), tmp_path / "damaged/catalog-log")
    member.store.close()


def copied_catalog(active: CatalogMember, folder: Path, between: int) -> Path:
    """Returns a copy of a catalog that was changed `between` meanwhile."""
    source = CatalogCopySource(active.copying, folder / "source", OsFs())
    received = ReceivedCopy(
        folder / "received", tuple(source.files), OsFs(), CATALOG_FOLDERS)
    while not received.is_whole:
        received.write(source.read(*received.next, 700))
        if between:
            between -= 1
            change(active.store, 4 * between + 3)
            active.log.acknowledge(active.written)
            active.copying.trim(None)
    received.finish()
    source.close()
    assert not (folder / "source").exists()
    return folder / "received"


@pytest.mark.parametrize("between", [0, 60])
def test_a_copy_goes_on_with_the_log(tmp_path: Path, between: int) -> None:
    """The log is kept while the catalog is copied; the copy has what there was, takes what follows, and can lead."""
    active = CatalogMember(tmp_path / "a", bounds=SMALL)
    active.log.note_epoch(EpochStart(3, 1))
    for number in range(300):
        change(active.store, 4 * number + 3)
    active.log.acknowledge(active.written - 2)
    active.copying.trim(None)
    assert active.log.bounds().begin > 1
    (tmp_path / "copying").mkdir()
    folder = copied_catalog(active, tmp_path / "copying", between)
    standby = CatalogMember(folder, follows=True, bounds=SMALL)
    assert standby.log.epochs() == active.log.epochs()
    bounds = standby.log.bounds()
    assert bounds.begin - 1 <= bounds.floor <= active.written - 2 - between or between
    if not between:
        assert standby.entries() == active.entries()
        assert standby.log.cut(active.written - 2) == 2  # what isn't acknowledged can be taken back
    while standby.copy_from(active):
        pass
    standby.log.sync()
    assert standby.entries() == active.entries()
    standby.copying.lead()
    change(standby.store, 7)
    for one in (active, standby):
        one.store.close()
