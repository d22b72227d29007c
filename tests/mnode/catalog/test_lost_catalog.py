"""Catalogs that are missing, too old or incomplete: nothing that holds rows or state goes, and there is a way back."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from kits.basics.faulty_fs import FaultyFs
from kits.engines.data_directories import Answers, copy_of, make_directory, open_sandbox, read_directory
from kits.engines.embedded import Embedded

from penstock.common.errors import CorruptionError, PenstockError
from penstock.common.fs import OsFs
from penstock.common.paths import DataPaths
from penstock.mnode.catalog import catalog_copies
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_copies import copies, read_copy
from penstock.mnode.catalog.vnode_descriptions import Description, describe
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.mnode.streams import stream_removal
from penstock.shell.main import main
from penstock.sql.schema import RestoredFrom
from penstock.vnode.dnode import Dnode


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answers]:
    """A healthy directory with a user, and what its queries answer."""
    root = tmp_path_factory.mktemp("healthy") / "data"
    found = make_directory(root)
    with open_sandbox(root) as sandbox:
        sandbox.execute("CREATE USER ann PASS 'a long secret 1' ROLE admin")
    return root, found


@pytest.fixture
def data(made: tuple[Path, Answers], tmp_path: Path) -> Path:
    return copy_of(made[0], tmp_path / "data")


def content(root: Path) -> dict[str, bytes]:
    """Returns all files with rows, states and metadata, by their paths."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*"))
            if path.is_file() and path.name not in ("LOCK", "lock.mdb", "penstock.log")}


def fsck(directory: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    code = main(["fsck", str(directory), "--json", "--no-progress", *options])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("how", ["folder", "file", "empty"])
def test_without_its_catalog_a_directory_stays_as_it_is(data: Path, capsys: pytest.CaptureFixture[str], how: str
                                                        ) -> None:
    """No engine starts, in safe mode neither; the text names the catalog and the way out; fsck calls it damaged."""
    if how == "folder":
        shutil.rmtree(data / "catalog")
    elif how == "file":
        (data / "catalog" / "data.mdb").unlink()
    else:
        (data / "catalog" / "data.mdb").write_bytes(b"")
    before = content(data)
    with pytest.raises(CorruptionError, match="catalog is missing") as error:
        open_sandbox(data)
    assert "fsck --repair" in str(error.value)
    assert main(["--safe-mode", "-d", str(data), "-c", "SHOW DATABASES"]) == 1
    capsys.readouterr()
    code, found = fsck(data, capsys)
    assert code == 1
    assert [damage["kind"] for damage in found["damages"]] == ["catalog"]
    assert content(data) == before


def test_the_engines_own_copy_brings_everything_back(made: tuple[Path, Answers], data: Path,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    """fsck --repair takes the copy: tables, streams with their state, and users are as before."""
    shutil.rmtree(data / "catalog")
    code, found = fsck(data, capsys, "--repair")
    assert code == 0, found
    assert "copies" in found["repairs"][0]["done"]
    with open_sandbox(data) as sandbox:
        assert [user.name for user in sandbox.engine.catalog.users.all()] == ["ann"]
        sandbox.execute("INSERT INTO d.t0 VALUES (1700000200000, 1, 'y')")
        assert sandbox.execute("SELECT c FROM d.out ORDER BY ts DESC LIMIT 1").table.to_pylist() == [{"c": 1}]
        sandbox.execute("DELETE FROM d.t0 WHERE ts = 1700000200000")
    assert read_directory(data) == made[1]


def test_without_a_copy_the_vnodes_tell_their_tables(made: tuple[Path, Answers], data: Path,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    """Databases, tables, child tables and tags come from the vnodes; the report says that the rest is lost.

    State of streams that nobody knows any more is moved, not removed; and without users nobody gets in.
    """
    shutil.rmtree(data / "catalog")
    shutil.rmtree(data / "copies")
    code, found = fsck(data, capsys, "--repair")
    assert code == 0, found
    assert "users" in found["repairs"][0]["lost"]
    assert list((data / "damaged" / "streams").iterdir())
    with open_sandbox(data) as sandbox:
        assert sandbox.engine.catalog.users.are_lost
        with pytest.raises(PenstockError, match="users were lost"):
            sandbox.engine.logins.authorize(None)
        tags = sandbox.execute("SELECT DISTINCT tbname, site FROM d.m ORDER BY tbname").table.to_pylist()
        sites = {"t0": 0, "t1": 1, **{f"e{number}": number for number in range(20)}}
        assert tags == [{"tbname": name, "site": site} for name, site in sorted(sites.items())]
        sandbox.execute("CREATE TABLE d.t2 USING d.m TAGS (2)")
        sandbox.execute("INSERT INTO d.t2 VALUES (1700000000000, 1, 'y')")
        sandbox.execute("DROP TABLE d.t2")
        sandbox.execute("CREATE USER eve PASS 'another secret 1' ROLE admin")
        assert not sandbox.engine.catalog.users.are_lost
    assert read_directory(data) == made[1]


def test_what_was_made_after_a_catalog_outlives_it(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
                                                   ) -> None:
    """A catalog from before CREATE DATABASE, TABLE or STREAM is refused; repaired, it knows what came later."""
    shutil.copytree(data / "catalog", tmp_path / "older")
    with open_sandbox(data) as sandbox:
        for text in ("CREATE DATABASE later WAL_LEVEL 2 KEEP 36500d", "CREATE TABLE later.t (ts TIMESTAMP, v INT)",
                     "INSERT INTO later.t VALUES (1700000000000, 7)", "ALTER TABLE d.plain ADD COLUMN w INT",
                     "INSERT INTO d.plain VALUES (1700000900000, 1.0, 3)", "DROP STREAM s"):
            sandbox.execute(text)
    shutil.rmtree(data / "catalog")
    shutil.copytree(tmp_path / "older", data / "catalog")
    before = content(data)
    with pytest.raises(CorruptionError, match="is older than the data beside it"):
        open_sandbox(data)
    assert content(data).keys() == before.keys()
    for copy in (data / "copies").iterdir():
        copy.unlink()  # the vnodes alone
    with pytest.raises(CorruptionError, match="is older than the data beside it"):
        open_sandbox(data)
    code, found = fsck(data, capsys, "--repair")
    assert code == 0, found
    with open_sandbox(data) as sandbox:
        assert sandbox.execute("SELECT v FROM later.t").table.to_pylist() == [{"v": 7}]
        assert sandbox.execute("SELECT w FROM d.plain WHERE w > 0").table.to_pylist() == [{"w": 3}]
        assert [one.name for one in sandbox.engine.catalog.databases()] == ["d", "later"]


def test_what_nobody_knows_stays_until_it_is_moved(made: tuple[Path, Answers], data: Path,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    """Vnodes, tables and states without an owner are named; fsck --repair moves them into `damaged`."""
    shutil.copytree(data / "vnode" / "2", data / "vnode" / "1")
    (state,) = (data / "streams").iterdir()
    shutil.copytree(state, state.with_name("1"))
    parts = data / "vnode" / "3" / "store" / "parts"
    shutil.copytree(next(path for path in parts.iterdir() if len(list(path.iterdir())) > 1), parts / "999")
    before = content(data)
    with open_sandbox(data, partGrace="0s") as sandbox:
        sandbox.engine.maintain()
        named = {str(path.relative_to(data)) for path in sandbox.engine.storage.orphans}
        assert named == {"vnode/1", "vnode/3/store/parts/999", "streams/1"}
        shown = sandbox.execute("SELECT reason FROM information_schema.ins_orphans").table
        assert shown.num_rows == 3
    after = content(data)
    kept = [path for path in before if path.startswith(tuple(named))]
    assert [path for path in kept if after.get(path) != before[path]] == []
    assert fsck(data, capsys)[0] == 1
    assert fsck(data, capsys, "--repair")[0] == 0
    moved = content(data / "damaged")
    assert [path for path in kept if moved.get(path) != before[path]] == []
    assert read_directory(data) == made[1]


def test_a_missing_vnode_is_not_made_anew(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its tables fail by name; an empty one in its place would hide that rows are gone."""
    shutil.rmtree(data / "vnode" / "2")
    with open_sandbox(data, disableStream=True) as sandbox:
        assert "is missing" in str(sandbox.engine.storage.problem(2))
        assert not (data / "vnode" / "2").exists()
    assert fsck(data, capsys)[0] == 1
    with open_sandbox(data, disableStream=True) as sandbox:
        sandbox.execute("DROP STREAM s")
        sandbox.execute("DROP DATABASE d")
    assert fsck(data, capsys)[0] == 0


class Crash(Exception):
    """The process is gone."""


@pytest.mark.parametrize("text", ["DROP DATABASE other", "DROP TABLE d.plain", "DROP STREAM s"])
def test_a_drop_that_a_crash_cuts_off_is_finished(data: Path, monkeypatch: pytest.MonkeyPatch, text: str,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    """What the user dropped goes with the next start, since the catalog notes it before anything is removed."""

    def crash(*_: object) -> None:
        raise Crash

    sandbox = open_sandbox(data)
    sandbox.execute("CREATE DATABASE other VGROUPS 1")
    gone = {"DROP DATABASE other": data / "vnode" / "4", "DROP STREAM s": next((data / "streams").iterdir()),
            "DROP TABLE d.plain": next(path for path in data.glob("vnode/*/store/parts/*")
                                       if path.name == str(sandbox.engine.catalog.table("d", "plain").uid))}[text]
    assert gone.exists()
    with monkeypatch.context() as patch:
        patch.setattr(Dnode, "drop_vnode", crash)
        patch.setattr(Storage, "drop_table", crash)
        patch.setattr(stream_removal, "remove_state", crash)
        with pytest.raises(Crash):
            sandbox.execute(text)
    sandbox.engine.abandon()
    assert gone.exists()
    with open_sandbox(data, partGrace="0s") as again:
        assert again.engine.storage.orphans == ()
        again.engine.maintain()
    assert not gone.exists()
    assert fsck(data, capsys)[0] == 0


class _Meanwhile(FaultyFs):
    """Has something begin in a thread of its own right before a vnode's folder goes, and waits for it, but not long."""

    def __init__(self, folders: Path) -> None:
        super().__init__()
        self._folders = folders
        self.action: Callable[[], None] = lambda: None
        self.thread: threading.Thread | None = None

    def remove_dir(self, path: Path) -> None:
        if path.parent == self._folders:
            self.thread = threading.Thread(target=self.action)
            self.thread.start()
            self.thread.join(0.2)
        super().remove_dir(path)


def test_a_vnode_is_dropped_while_it_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a thread was about to write about it neither comes into the way nor stays."""
    paths = DataPaths(tmp_path / "data")
    fs = _Meanwhile(paths.vnodes)
    with closing(Embedded(paths.root, fs=fs)) as db:
        db.execute("CREATE DATABASE d VGROUPS 1")
        catalog, keeper = db.engine.catalog, db.engine.parts.catalog_keeper
        (database,) = catalog.databases()
        old = describe(catalog, database, database.vgroup_ids[0])
        seen: list[int] = []

        def described(*_: object) -> Description:
            seen.append(1)
            return old

        monkeypatch.setattr(catalog_copies, "describe", described)
        monkeypatch.setattr(type(catalog), "databases", lambda self: [database])
        monkeypatch.setattr(Description, "says_the_same", lambda *_: False)
        fs.action = keeper.refresh
        db.execute("DROP DATABASE d")
        assert fs.thread is not None
        fs.thread.join()
        assert seen
        assert not paths.vnode(database.vgroup_ids[0]).exists()
        monkeypatch.undo()


def test_copies_follow_the_catalog_and_are_few(tmp_path: Path) -> None:
    """The newest copy is as the catalog is; older ones lie apart; a damaged one is passed over."""
    paths = DataPaths(tmp_path / "data")
    paths.root.mkdir()
    with open_sandbox(paths.root) as sandbox:
        for number in range(12):
            sandbox.execute(f"CREATE DATABASE d{number} VGROUPS 1")
            sandbox.clock.advance(400)
            sandbox.engine.parts.catalog_keeper.refresh()
            (newest, *_) = found = copies(OsFs(), paths)
            assert newest.generation == sandbox.engine.catalog.generation
            assert len(found) <= 5
        assert all(one.made_ms - two.made_ms >= 400_000 for one, two in pairwise(found[1:]))
        assert read_copy(OsFs(), paths, newest) == sandbox.engine.catalog.entries()
    path = paths.catalog_copies / str(copies(OsFs(), paths)[0])
    path.write_bytes(path.read_bytes()[:-1])
    shutil.rmtree(paths.catalog)
    assert main(["fsck", str(paths.root), "--repair", "--no-progress"]) == 0
    catalog = Catalog(paths.catalog)
    assert len(catalog.databases()) == 12
    catalog.close()


def test_uids_stay_reserved_for_what_is_being_restored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a restore was interrupted, and its catalog lost: what is made before it goes on gets others."""
    data = tmp_path / "data"
    data.mkdir()
    with open_sandbox(data) as sandbox:
        sandbox.execute("CREATE DATABASE d")
        origin = sandbox.engine.catalog.schema.set_origin("d", RestoredFrom("c", 7), (100, 199))
        sandbox.execute("CREATE TABLE d.t (ts TIMESTAMP, v INT)")
        sandbox.execute("DROP TABLE d.t")
    shutil.rmtree(data / "catalog")
    shutil.rmtree(data / "copies")
    assert fsck(data, capsys, "--repair")[0] == 0
    with open_sandbox(data) as sandbox:
        found = sandbox.engine.catalog.database("d")
        assert found is not None
        assert found.origin == origin
        assert origin.uids is not None
        assert sandbox.engine.catalog.next_id > origin.uids[1]
