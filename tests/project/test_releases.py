"""What releases promise: one version everywhere, and data directories of each release that go on in this version."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import by_night, times
from kits.basics.places import GOLDEN, ROOT
from kits.engines.released_directory import PERIOD_S, RELEASED, answers, differences
from kits.engines.running_streams import AFTER, STEP_MS, STEPS, STOPPED, extract, go_on, open_streams

import penstock
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.coordinator import stored_plan
from penstock.shell.main import main

ARCHIVES = sorted((GOLDEN / "releases").glob("*.tar.xz"))


def _version(archive: Path) -> str:
    return archive.name.removesuffix(".tar.xz")


def plans(data: Path) -> dict[str, str]:
    """Returns the stored plans of a directory's streams by their names."""
    catalog = Catalog(data / "catalog")
    kept = {stream.name: stream.plan for stream in catalog.streams.all()}
    catalog.close()
    return kept


def make_unreadable(data: Path) -> None:
    """Gives all stored plans a format that no version knows."""
    catalog = Catalog(data / "catalog")
    for stream in catalog.streams.all():
        body = {**json.loads(stream.plan), "format": 0}
        catalog.streams.set_plan(stream.id, stream.asked.text, json.dumps(body))
    catalog.close()


def leave(data: Path) -> None:
    """Changes nothing."""


def test_the_version_is_defined_once() -> None:
    """The wheel's is that of the package; the changelog and the pages that show it have the same."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "penstock.__version__"}
    releases = re.findall(r"^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert releases[0] == penstock.__version__
    assert f"penstock {penstock.__version__} serves" in (ROOT / "docs" / "server.md").read_text("utf-8")


def test_a_version_is_read_in_two_minutes() -> None:
    """What the changelog says of each has at most 60 lines that say something."""
    for section in re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)[1:]:
        assert len([line for line in section.splitlines() if line]) <= 60, section.partition("\n")[0]


def test_each_release_has_a_directory() -> None:
    """Of every version whose last number is 0; scripts/write_format.py writes it."""
    releases = re.findall(r"^## \[([1-9]\d*\.\d+\.0)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert set(releases) <= {_version(archive) for archive in ARCHIVES}


@pytest.mark.parametrize("change", [
    pytest.param(leave, id="stored_plans"), pytest.param(make_unreadable, id="planned_again", marks=by_night)])
@pytest.mark.parametrize("archive", ARCHIVES, ids=_version)
def test_a_directory_of_a_release_goes_on(archive: Path, change: Callable[[Path], None], tmp_path: Path) -> None:
    """Its tables hold what they held; its streams go on from their state, and have what their queries give."""
    data = extract(archive, tmp_path)
    change(data)
    wanted = json.loads(archive.with_name(f"{_version(archive)}.json").read_text("utf-8"))
    with open_streams(data, STOPPED, disableStream=True) as bed:
        assert json.loads(json.dumps(answers(bed))) == wanted
    with open_streams(data, STOPPED) as bed:
        assert bed.rows("SELECT stream_name, reason FROM information_schema.ins_streams WHERE state <> 'RUNNING'") == []
        assert len(bed.rows("SHOW STREAMS")) == len(RELEASED) + 1
        fired = len(bed.rows("SELECT * FROM clock_out"))
        go_on(bed, times(4, 1))
        assert differences(bed) == {}
        periods = AFTER * STEPS * STEP_MS // (PERIOD_S * 1000)
        assert len(bed.rows("SELECT * FROM clock_out")) - fired in (periods, periods + 1)
    for name, text in plans(data).items():
        assert json.loads(text)["format"] == stored_plan._FORMAT, name
    assert main(["fsck", str(data), "--no-progress"]) == 0


def test_plans_of_the_present_format_are_read_as_they_are(tmp_path: Path) -> None:
    """What is stored of streams with a trigger isn't changed without raising the format of stored plans."""
    for archive in ARCHIVES:
        for name, text in plans(extract(archive, tmp_path / _version(archive))).items():
            if json.loads(text)["format"] == stored_plan._FORMAT:
                assert stored_plan.encode(stored_plan.decode(text)) == text, name
