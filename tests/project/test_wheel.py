"""The wheel: what is in it, that it works without this repository, and by night a whole trial of a release."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import by_night
from kits.basics.places import ROOT
from kits.basics.wheels import IMPORT_ALL, build, sources_of_package

import penstock

pytestmark = pytest.mark.slow

#: What the package reads at run time or gives to whoever installs it, beside modules.
DATA = {"penstock/py.typed", "penstock/mnode/http/ui.html", "penstock/conf/penstock.toml",
        "penstock/conf/spark-defaults.conf", "penstock/conf/log4j2.properties", "penstock/conf/grafana/penstock.json",
        "penstock/conf/systemd/penstock.service"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("wheel")
    return build(place / "dist", place)


def test_it_has_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    """All modules of the parts below the one name, the files that they read, the command; no tests."""
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
        entry_points = next(name for name in names if name.endswith("entry_points.txt"))
        commands = wheel.read(entry_points).decode()
    about = f"penstock-{penstock.__version__}.dist-info/"
    package = {name for name in names if not name.startswith(about)}
    assert package == {*sources_of_package(), *DATA}
    assert about + "licenses/LICENSE" in names
    assert "penstock = penstock.shell.main:main" in commands


def test_the_source_archive_has_what_a_build_needs(built: tuple[Path, Path]) -> None:
    """The wheel was built from it; the README and the licence are in it."""
    with tarfile.open(built[1]) as archive:
        names = set(archive.getnames())
    root = f"penstock-{penstock.__version__}"
    assert {f"{root}/{name}" for name in ("pyproject.toml", "README.md", "LICENSE")} <= names
    assert {f"{root}/src/{name}" for name in {*sources_of_package(), *DATA}} <= names


def test_it_works_apart_from_the_repository(built: tuple[Path, Path], tmp_path: Path) -> None:
    """All of its modules can be imported, and the shell answers, where only the wheel is."""
    with zipfile.ZipFile(built[0]) as wheel:
        wheel.extractall(tmp_path / "installed")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}

    def run(*words: str) -> str:
        answer = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True,
                                check=False, timeout=300)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout

    assert Path(run("-c", IMPORT_ALL, "penstock").strip()) == tmp_path / "installed" / "penstock"
    assert run("-m", "penstock", "--csv", "-c", "SELECT 'a' AS one") == "one\na\n"


@by_night
def test_a_release_can_be_used(tmp_path: Path) -> None:
    """In a new environment, from the wheel alone: shell, stream, server, clients of each family, all extras."""
    answer = subprocess.run([sys.executable, str(ROOT / "scripts" / "try_release.py")], cwd=tmp_path,
                            capture_output=True, text=True, check=False, timeout=3600)
    assert answer.returncode == 0, answer.stdout + answer.stderr
