"""Data directories that belong to somebody else: a clear error before anything is changed, for each kind of file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kits.engines.data_directories import open_sandbox, tree

from penstock.common.errors import StorageError
from penstock.shell.main import main

NOBODY = 65_534
PLACES = ("LOCK", "FORMAT", "catalog", "catalog/data.mdb", "vnode", "vnode/*/wal", "vnode/*/wal/*.log", "vnode/*/store",
          "vnode/*/store/MANIFEST", "vnode/*/store/parts/*/*1.parquet", "streams", "streams/*/checkpoints/*.json",
          "streams/*/state/*/data.mdb")


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A data directory with a stream, where every user of the machine may go."""
    root = Path(tempfile.mkdtemp(prefix="penstock-access-"))
    root.chmod(0o755)
    with open_sandbox(root / "data") as sandbox:
        for text in ("CREATE DATABASE d VGROUPS 1", "CREATE TABLE d.t (ts TIMESTAMP, v INT)",
                     "CREATE STREAM s TRIGGER AT_ONCE INTO d.out AS SELECT _wstart, count(*) FROM d.t INTERVAL(10s)",
                     "INSERT INTO d.t VALUES (1700000000000, 1)", "FLUSH DATABASE d"):
            sandbox.execute(text)
        sandbox.checkpoint()
    yield root / "data"
    shutil.rmtree(root)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Is a user for whom permissions count; who isn't root already is."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def give(root: Path) -> None:
    """Gives all of a directory to that user."""
    if os.geteuid() == 0:
        for path in (root, *root.rglob("*")):
            os.chown(path, NOBODY, NOBODY)


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*")
            if path.is_file() and path.name not in ("LOCK", "lock.mdb", "penstock.log")}


@pytest.mark.parametrize("place", PLACES)
def test_a_file_of_somebody_else_is_named_and_nothing_is_changed(directory: Path, place: str) -> None:
    """The engine doesn't start, names file and users, and leaves all as it is; with the file back, all is there."""
    root = directory.with_name("copy")
    shutil.copytree(directory, root)
    try:
        before = content(root)
        give(root)
        denied = next(iter(root.glob(place)))
        mode = denied.stat().st_mode
        if os.geteuid() == 0:
            os.chown(denied, 0, 0)
        denied.chmod(0)
        with unprivileged(), pytest.raises(StorageError, match="it belongs to") as error:
            open_sandbox(root).close()
        assert str(denied) in str(error.value)
        assert "start Penstock as the user who owns" in str(error.value)
        denied.chmod(mode)
        assert content(root) == before
        with open_sandbox(root) as sandbox:
            assert sandbox.execute("SELECT count(*) FROM d.t").table.to_pylist() == [{"count(*)": 1}]
    finally:
        shutil.rmtree(root)


def test_results_of_somebody_else_are_not_verified(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """penstock verify names what it can't read, be it the whole directory or a file of it; nothing is changed."""
    root, copies = directory.with_name("verified"), directory.with_name("copies")
    shutil.copytree(directory, root)
    copies.mkdir()
    copies.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    try:
        before = tree(root)
        assert main(["verify", "-d", str(root)]) == 0  # another account may not be able to load what this takes
        if os.geteuid() != 0:
            root.chmod(0)
        with unprivileged():
            assert main(["verify", "-d", str(root)]) == 2
        root.chmod(0o755)
        segment = next(iter(root.glob("vnode/*/wal/*.log")))
        segment.chmod(0)
        with unprivileged():
            assert main(["verify", "-d", str(root)]) == 2
        segment.chmod(0o600)
        first, second = (line for line in capsys.readouterr().err.splitlines() if line.startswith("ERROR"))
        assert first == f"ERROR: cannot read {root / 'LOCK'}: Permission denied"
        assert second.startswith(f"ERROR: cannot read {root}")
        assert {path: content for path, (_, _, content) in tree(root).items()} == {
            path: content for path, (_, _, content) in before.items()}
    finally:
        root.chmod(0o700)
        shutil.rmtree(root)


def test_a_data_directory_of_oneself_opens(directory: Path) -> None:
    """The user who owns the directory works with it as root does."""
    root = directory.with_name("own")
    shutil.copytree(directory, root)
    try:
        give(root)
        with unprivileged(), open_sandbox(root) as sandbox:
            sandbox.execute("INSERT INTO d.t VALUES (1700000010000, 2)")
            assert sandbox.execute("SELECT count(*) FROM d.out").table.num_rows == 1
    finally:
        shutil.rmtree(root)
