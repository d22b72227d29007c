"""Whether a worker may use the data directory as files: only where the engine itself does, and with its secret."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.common.fs import OsFs
from penstock.common.paths import DataPaths
from penstock.tasks.dnode_access import data_place
from penstock.tasks.dnode_access.data_place import mark_place, reaches_files

SECRET = b"of this engine"


@pytest.fixture
def paths(tmp_path: Path) -> DataPaths:
    paths = DataPaths(tmp_path / "data")
    mark_place(paths, OsFs(), SECRET)
    return paths


def test_files_are_reached_where_the_engine_left_its_mark(paths: DataPaths) -> None:
    """The same directory on the same machine, by the engine's own secret."""
    assert reaches_files(paths, OsFs(), SECRET)
    assert not reaches_files(paths, OsFs(), b"of another engine")


def test_a_path_that_exists_is_not_enough(tmp_path: Path) -> None:
    """Nothing there, an empty directory, a file in its place: none of them is the engine's data directory."""
    assert not reaches_files(DataPaths(tmp_path / "none"), OsFs(), SECRET)
    (tmp_path / "empty").mkdir()
    assert not reaches_files(DataPaths(tmp_path / "empty"), OsFs(), SECRET)
    (tmp_path / "file").write_text("x")
    assert not reaches_files(DataPaths(tmp_path / "file"), OsFs(), SECRET)


def test_what_an_earlier_engine_left_doesnt_count(paths: DataPaths, tmp_path: Path) -> None:
    """A copy that was made before the engine was opened again has another mark."""
    shutil.copytree(paths.root, tmp_path / "copy")
    mark_place(paths, OsFs(), b"of the next engine")
    assert reaches_files(paths, OsFs(), b"of the next engine")
    assert not reaches_files(DataPaths(tmp_path / "copy"), OsFs(), b"of the next engine")


def test_a_directory_mounted_from_another_machine_doesnt_count(
    paths: DataPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same files under another kernel: its shared memory and locks are others."""
    other = tmp_path / "boot_id"
    other.write_text("another kernel\n")
    monkeypatch.setattr(data_place, "_BOOT_ID", other)
    assert not reaches_files(paths, OsFs(), SECRET)
