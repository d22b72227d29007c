"""Whatever the umask: what Penstock writes is its owner's alone, and a directory that isn't is told of."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.basics.places import ROOT
from kits.engines.data_directories import copy_of, make_directory, open_sandbox

from penstock.common.private import DIRECTORY_MODE, FILE_MODE, exposed
from penstock.shell.main import main


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(root: Path) -> dict[str, int]:
    """Returns what has another mode than it should have."""
    found = {}
    for path in (root, *sorted(root.rglob("*"))):
        mode = path.lstat().st_mode & 0o777
        if mode != (DIRECTORY_MODE if path.is_dir() else FILE_MODE):
            found[str(path.relative_to(root))] = mode
    return found


def test_everything_that_is_written_is_its_owners(tmp_path: Path) -> None:
    """Rows, logs, states, catalog with its copies, views, log files; backups and dumps, too."""
    data, backups, dump = tmp_path / "data", tmp_path / "backups", tmp_path / "dump"
    data.mkdir(0o700)
    make_directory(data)
    with open_sandbox(data, checkpointBackupDir=str(backups), checkpointBackupInterval="1s") as sandbox:
        sandbox.execute("INSERT INTO d.t0 VALUES (1700000300000, 1, 'y')")
        sandbox.checkpoint()
        sandbox.engine.parts.backups.poll()
    assert main(["dump", str(dump), "-d", str(data), "--no-progress"]) == 0
    assert list(backups.rglob("*"))
    for root in (data, backups, dump):
        assert modes(root) == {}, root


def test_a_directory_that_is_made_is_private(tmp_path: Path) -> None:
    """Also those above it that were missing; what was there keeps its mode."""
    tmp_path.chmod(0o755)
    data = tmp_path / "a" / "b"
    assert main(["-d", str(data), "-c", "SHOW DATABASES"]) == 0
    assert data.stat().st_mode & 0o777 == data.parent.stat().st_mode & 0o777 == 0o700
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    assert modes(data) == {}


def test_an_open_directory_is_told_of(tmp_path: Path) -> None:
    """The log says which directory others may enter, and how to close it; it works as before."""
    make_directory(tmp_path / "made")
    data = copy_of(tmp_path / "made", tmp_path / "data")
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with open_sandbox(data) as sandbox:
        assert sandbox.execute("SELECT count(*) FROM d.m").table is not None
    text = (data / "log" / "penstock.log").read_text()
    assert f"{data} is open to others than its owner (mode 755)" in text
    assert f"chmod -R go= {data}" in text
    data.chmod(0o700)
    assert exposed(data) is None


def test_the_systemd_unit_keeps_others_out() -> None:
    """What libraries write below the service is private, too, and systemd makes the directory so."""
    unit = (ROOT / "conf" / "systemd" / "penstock.service").read_text("utf-8").splitlines()
    assert {"UMask=0077", "StateDirectoryMode=0700"} <= set(unit)
