"""Spark's Java starts with an archive of its classes, from a directory that nobody else can write, or as ever."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from penstock.tasks.worker import java_classes
from penstock.tasks.worker.java_classes import have_made, make, sharing_options


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "penstock" / "java"


def written(monkeypatch: pytest.MonkeyPatch, data: bytes = b"classes") -> None:
    """Has Java write `data`."""
    monkeypatch.setattr(java_classes, "_start_and_end_spark", lambda archive: archive.write_bytes(data))


def test_an_archive_is_made_once_and_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, Java gets no options; what a user configures about archives counts."""
    assert sharing_options("") == []
    written(monkeypatch)
    assert make()
    (archive,) = cache.glob("*/classes.jsa")
    assert archive.read_bytes() == b"classes"
    assert archive.parent.stat().st_mode & 0o777 == 0o700
    assert sharing_options("-Xmx2g")[:2] == [f"-XX:SharedArchiveFile={archive}", "-XX:+VerifySharedSpaces"]
    for configured in ("-Xshare:off", "-XX:SharedArchiveFile=/mine"):
        assert sharing_options(configured) == []
    written(monkeypatch, b"others")
    assert make()
    assert archive.read_bytes() == b"classes"


def test_java_starts_without_an_archive_that_is_none(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing on standard output, where a program's own output goes."""
    written(monkeypatch)
    assert make()
    options = sharing_options("")
    assert options
    java = subprocess.run(["java", *options, "--version"], capture_output=True, text=True, check=True)
    plain = subprocess.run(["java", "--version"], capture_output=True, text=True, check=True)
    assert java.stdout.partition(")")[0] == plain.stdout.partition(")")[0]


def test_what_fails_is_not_tried_with_each_start(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason stands beside the place of the archive; nothing half made stays."""
    started: list[object] = []
    monkeypatch.setattr(java_classes.subprocess, "Popen", lambda *command, **_: started.append(command))
    have_made("-Xshare:off")
    assert started == []
    have_made("")
    assert len(started) == 1

    def fail(archive: Path) -> None:
        archive.write_bytes(b"half")
        raise RuntimeError("no memory")

    monkeypatch.setattr(java_classes, "_start_and_end_spark", fail)
    assert not make()
    (failed,) = cache.glob("*/failed")
    assert failed.read_text() == "no memory\n"
    assert list(cache.glob("*/classes.jsa*")) == []
    have_made("")
    assert len(started) == 1


def test_a_directory_of_others_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes that others can replace aren't run."""
    written(monkeypatch)
    assert make()
    cache.chmod(0o777)
    assert sharing_options("") == []
    (archive,) = cache.glob("*/classes.jsa")
    archive.unlink()
    started: list[object] = []
    monkeypatch.setattr(java_classes.subprocess, "Popen", lambda *command, **_: started.append(command))
    have_made("")
    assert started == []
    assert not make()


def test_what_was_made_for_another_spark_goes(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is known by a file beside it; a directory without one isn't touched."""
    written(monkeypatch)
    for name, made_for in (("gone", ["/no/java", "/no/jars"]), ("other", [str(tmp_path), str(tmp_path)]), ("odd", [1])):
        (cache / name).mkdir(parents=True)
        (cache / name / "classes.jsa").write_bytes(b"old")
        (cache / name / "made_for.json").write_text(json.dumps(made_for))
    (cache / "mine").mkdir()
    (cache / "mine" / "classes.jsa").write_bytes(b"mine")
    assert make()
    assert sorted(path.read_bytes() for path in cache.glob("*/classes.jsa")) == [b"classes", b"mine", b"old"]
