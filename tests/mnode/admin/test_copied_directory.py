"""Copies of data directories: their views read their own files, and a missing FORMAT isn't made up."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pytest
from kits.engines.data_directories import T0, make_directory, open_sandbox

import penstock
from penstock.common.errors import CorruptionError
from penstock.shell.main import main


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made") / "data"
    make_directory(root)
    return root


@pytest.fixture
def original(made: Path, tmp_path: Path) -> Path:
    root = shutil.copytree(made, tmp_path / "it's here" / "data")
    open_sandbox(root).close()
    return root


@pytest.fixture
def copied(original: Path, tmp_path: Path) -> Path:
    """A copy as `cp -r` makes it; the original gets another row afterwards."""
    copy = tmp_path / "another 'place'" / "data"
    shutil.copytree(original, copy)
    with open_sandbox(original) as sandbox:
        sandbox.execute(f"INSERT INTO d.plain VALUES ({T0 + 700_000}, 7.0)")
        sandbox.execute("FLUSH DATABASE d")
    return copy


def rows(views: Path) -> int:
    """Counts rows as a DuckDB does that knows nothing of Penstock."""
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{str(views).replace(chr(39), 2 * chr(39))}' AS v (READ_ONLY)")
        found = connection.execute("SELECT count(*) FROM v.d.plain").fetchone()
    assert found is not None
    return int(found[0])


def test_a_copy_reads_its_own_files(original: Path, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By `penstock.duckdb` at once; by DuckDB alone after fsck --repair, which says what is wrong before."""
    assert rows(original / "views.duckdb") == 4
    with penstock.duckdb(copied) as connection:
        assert connection.execute("SELECT count(*) FROM d.plain").fetchone() == (3,)
        (text,) = {str(row[0]).partition("vnode")[0][-40:] for row in connection.execute(
            "SELECT regexp_extract(sql, 'read_parquet.*') FROM duckdb_views() WHERE view_name = 'plain'").fetchall()}
        assert "another" in text
    assert main(["fsck", str(copied), "--no-progress"]) == 1
    assert "of which this is a copy" in capsys.readouterr().out
    assert main(["fsck", str(copied), "--no-progress", "--repair"]) == 0
    assert rows(copied / "views.duckdb") == 3
    assert main(["fsck", str(original), "--no-progress"]) == 0


def test_an_engine_puts_the_views_of_a_copy_right(copied: Path) -> None:
    """Once it has opened the copy, any DuckDB reads the copy's files, also without the original."""
    with open_sandbox(copied):
        pass
    assert rows(copied / "views.duckdb") == 3


def test_a_missing_format_is_named_and_not_made_up(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The engine doesn't start, and fsck --repair writes it once everything else is known."""
    (copied / "FORMAT").unlink()
    with pytest.raises(CorruptionError, match="FORMAT is missing") as error:
        open_sandbox(copied)
    assert "fsck --repair" in str(error.value)
    assert not (copied / "FORMAT").exists()
    assert main(["fsck", str(copied), "--no-progress"]) == 1
    assert "FORMAT" in capsys.readouterr().out
    assert main(["fsck", str(copied), "--no-progress", "--repair"]) == 0
    open_sandbox(copied).close()


def test_a_new_directory_gets_its_format(tmp_path: Path) -> None:
    """Nothing, or only what isn't data, may be there before."""
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "f.py").write_text("")
    open_sandbox(tmp_path).close()
    assert (tmp_path / "FORMAT").exists()
