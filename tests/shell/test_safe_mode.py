"""--safe-mode: everything can be looked at, and not a byte of the data directory changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from kits.engines.data_directories import log_segments, make_directory, tree

from penstock.common.paths import DataPaths
from penstock.shell.main import main
from penstock.vnode.dnode import lock_data_directory

SQL = ("SELECT count(*) AS n FROM d.m; SHOW STREAMS; INSERT INTO d.plain VALUES (1700000900000, 1.5); "
       "FLUSH DATABASE d; DROP STREAM s; CREATE DATABASE other; DROP TABLE d.plain; DROP DATABASE other")


@pytest.mark.parametrize("torn", [False, True])
def test_nothing_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str], torn: bool) -> None:
    """Whatever statements say, and even where an engine would cut off the torn tail of a log."""
    data = tmp_path / "data"
    make_directory(data)
    if torn:
        with log_segments(data)[0].open("ab") as file:
            file.write(b"half a record")
    before = tree(data)
    assert main(["--safe-mode", "--jsonlines", "-d", str(data), "-c", SQL]) == 0
    found = capsys.readouterr()
    assert '"n":6' in found.out.replace(" ", "")
    assert "STOPPED" in found.out
    assert "thrown away" in found.err
    assert tree(data) == before


def test_a_file_of_statements_that_is_not_there_makes_no_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is looked for before anything is opened."""
    assert main(["-d", str(tmp_path / "data"), "-f", str(tmp_path / "nosuch.sql")]) == 1
    assert "nosuch.sql" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_who_has_it_open_is_respected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory that an engine has open, or that isn't there, is an error; nothing is made."""
    make_directory(tmp_path / "data")
    lock = lock_data_directory(DataPaths(tmp_path / "data"))
    assert main(["--safe-mode", "-d", str(tmp_path / "data"), "-c", "SHOW DATABASES"]) == 1
    lock.release()
    assert "in use" in capsys.readouterr().err
    assert main(["--safe-mode", "-d", str(tmp_path / "nothing"), "-c", "SHOW DATABASES"]) == 1
    assert not (tmp_path / "nothing").exists()
