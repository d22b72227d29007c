"""penstock fsck: finds every kind of damage, says where it is and what it means, and mends what can be mended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kits.engines.data_directories import (
    T0,
    Answers,
    answers,
    copy_of,
    log_segments,
    make_directory,
    open_sandbox,
    read_directory,
)

from penstock.shell.main import FAILED, main

SCENARIOS = ("log_record", "part", "missing_part", "all_parts", "manifest", "last_times", "commit_record", "state")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answers]:
    """A healthy directory, and what its queries answer."""
    root = tmp_path_factory.mktemp("healthy") / "data"
    return root, make_directory(root)


@pytest.fixture
def data(made: tuple[Path, Answers], tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return copy_of(made[0], tmp_path / "data")


def fsck(directory: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    """Runs the command; returns its exit code and its findings."""
    code = main(["fsck", str(directory), "--json", "--no-progress", *options])
    return code, json.loads(capsys.readouterr().out)


def flip(path: Path, at: int | None = None) -> None:
    """Damages one byte of a file, in its middle by default."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 0x10
    path.write_bytes(content)


def part_of(directory: Path) -> Path:
    return min(path for path in directory.glob("vnode/*/store/parts/*/*.parquet") if path.name != "schema.parquet")


def damage(directory: Path, scenario: str) -> Path:
    """Damages a directory and returns the file that must be named."""
    segment = log_segments(directory)[0]
    if scenario == "log_record":
        flip(segment)
        return segment
    if scenario == "part":
        flip(part_of(directory))
        return part_of(directory)
    if scenario == "missing_part":
        path = part_of(directory)
        path.unlink()
        return path
    if scenario == "all_parts":
        for path in directory.glob("vnode/*/store/parts/*/0*.parquet"):
            path.write_bytes(b"")
        return part_of(directory)
    if scenario == "manifest":
        path = segment.parent.parent / "store" / "MANIFEST"
        flip(path)
        return path
    if scenario == "last_times":
        path = max(directory.glob("vnode/*/store/last/*.parquet"))
        flip(path)
        return path
    if scenario == "commit_record":
        path = max(directory.glob("streams/*/checkpoints/*.json"))
        flip(path)
        return path
    path = next(directory.glob("streams/*/state/*-agg-0/data.mdb"))
    path.write_bytes(b"")
    return path


def test_a_healthy_directory(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything is read, nothing is found, the exit code is 0, and nothing is changed."""
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file() and path.name != "lock.mdb"}
    code, found = fsck(data, capsys)
    assert code == 0
    assert found["healthy"]
    assert found["damages"] == []
    assert found["records"] > 15
    assert found["parts"] >= 6
    assert found["checkpoints"] == 3
    for path, content in before.items():
        if path.name != "LOCK" and path.parent.name != "catalog":
            assert path.read_bytes() == content, path


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_damage_is_named(data: Path, capsys: pytest.CaptureFixture[str], scenario: str) -> None:
    """The damaged file is named with what it means and what to do, the exit code is 1, and nothing is changed."""
    path = damage(data, scenario)
    for _ in range(2):
        code, found = fsck(data, capsys)
        assert code == 1
        assert str(path) in [damage["path"] for damage in found["damages"]]
        assert all(damage["meaning"] and damage["advice"] for damage in found["damages"])
        assert found["repairs"] == []


@pytest.mark.parametrize("scenario", ["part", "missing_part", "all_parts", "manifest", "last_times", "commit_record"])
def test_repair_without_loss(
    made: tuple[Path, Answers], data: Path, capsys: pytest.CaptureFixture[str], scenario: str
) -> None:
    """Where log or an earlier checkpoint has everything, all answers are as before, and the repair loses nothing."""
    damage(data, scenario)
    code, found = fsck(data, capsys, "--repair")
    assert code == 0
    assert found["repairs"]
    assert all(not repair["lost"] for repair in found["repairs"])
    assert read_directory(data) == made[1]
    assert fsck(data, capsys)[0] == 0


def test_repair_of_a_damaged_state(made: tuple[Path, Answers], data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stream whose state is gone starts from its beginning again: while the log is there, the answer is the same."""
    damage(data, "state")
    code, found = fsck(data, capsys, "--repair")
    assert code == 0
    assert "no checkpoint" in found["repairs"][0]["done"]
    assert read_directory(data) == made[1]


def test_repair_says_what_is_lost(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log damaged behind its parts loses what only it had: the versions are told, everything before stays."""
    sandbox = open_sandbox(data, viewRefreshInterval="1h")
    for number in range(3):
        sandbox.execute(f"INSERT INTO d.plain VALUES ({T0 + 500_000 + number}, 1.0)")
        if number == 0:
            sizes = {segment: segment.stat().st_size for segment in log_segments(data)}
    segment = max(sizes, key=lambda path: path.stat().st_size - sizes[path])
    sandbox.engine.abandon()
    middle = sizes[segment] + 30
    flip(segment, middle)
    code, found = fsck(data, capsys, "--repair")
    assert code == 0
    assert [repair["lost"][:28] for repair in found["repairs"]] == ["rows and deletes of versions"], found
    assert len(plain_rows(data)) == 4  # three in the parts, and the one before the damage


def plain_rows(directory: Path) -> list[Any]:
    with open_sandbox(directory, disableStream=True) as sandbox:
        table = sandbox.execute("SELECT ts FROM d.plain").table
        assert table is not None
        return list(table.column(0).to_pylist())


def test_a_log_damaged_before_its_end(made: tuple[Path, Answers], data: Path,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    """If the parts have all rows, a damaged log is set aside and goes on behind them: no row is lost."""
    segment = damage(data, "log_record")
    code, found = fsck(data, capsys, "--repair")
    assert code == 0
    assert found["repairs"][0]["lost"] == ""
    assert (data / "damaged" / segment.relative_to(data)).exists()
    with open_sandbox(data, disableStream=True) as sandbox:
        assert answers(sandbox) == made[1]
        sandbox.execute(f"INSERT INTO d.plain VALUES ({T0 + 700_000}, 1.0)")


def test_a_part_that_the_log_does_not_have(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A part older than the log is taken out, and the rows that are lost are told with table and times."""
    damage(data, "log_record")
    fsck(data, capsys, "--repair")
    vnode = next(path.parent.parent for path in log_segments(data) if path.stat().st_size < 200)
    flip(min(path for path in vnode.glob("store/parts/*/0*.parquet")))
    code, found = fsck(data, capsys, "--repair")
    assert code == 0
    lost = [repair["lost"] for repair in found["repairs"]]
    assert len(lost) == 1
    assert "rows of table" in lost[0]


def test_a_torn_tail_is_no_damage(made: tuple[Path, Answers], data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half a record at the end of a log is what crashes leave: told, cut off by --repair, exit code 0."""
    segment = log_segments(data)[0]
    whole = segment.stat().st_size
    with segment.open("ab") as file:
        file.write(b"half a record")
    code, found = fsck(data, capsys)
    assert code == 0
    assert found["damages"][0]["kind"] == "torn_tail"
    assert found["damages"][0]["offset"] == whole
    fsck(data, capsys, "--repair")
    assert segment.stat().st_size == whole
    assert read_directory(data) == made[1]


def test_an_open_directory_is_refused(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """While an engine has the directory open, fsck doesn't touch it."""
    with open_sandbox(data):
        assert main(["fsck", str(data), "--no-progress"]) == FAILED
    said = capsys.readouterr()
    assert f"the data directory {data} is in use by the engine with process id" in said.err
    assert said.out == ""


def test_text_for_people(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json the findings are sentences: file, what was found, what it means, what to do."""
    path = damage(data, "part")
    assert main(["fsck", str(data), "--no-progress"]) == 1
    text = capsys.readouterr().out
    assert f"DAMAGED {path}" in text
    assert "checksum does not fit" in text
    assert "--repair" in text
    assert main(["fsck", str(data), "--repair", "--no-progress"]) == 0
    text = capsys.readouterr().out
    assert "lost: nothing" in text
    assert text.endswith("healthy again\n")


def test_no_data_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory without a FORMAT is no data directory; nothing is made of it."""
    assert main(["fsck", str(tmp_path), "--no-progress"]) == 1
    assert "no data directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
