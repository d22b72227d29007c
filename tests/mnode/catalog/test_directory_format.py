"""Formats on disk: directories of this format can be opened; others are refused by name; see also fsck."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from kits.basics.places import TESTS
from kits.engines.data_directories import config_of, copy_of, log_segments, make_directory, open_sandbox, read_directory

from penstock.common.clock import ManualClock
from penstock.common.errors import CorruptionError, PenstockError
from penstock.common.fs import OsFs
from penstock.mnode.catalog import catalog_store as catalogs
from penstock.mnode.catalog import directory_format as formats
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.engine import Engine
from penstock.shell.main import main
from penstock.wal.segment import SegmentHeader, decode_segment_header


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of the present format."""
    root = tmp_path_factory.mktemp("present") / "data"
    make_directory(root)
    return root


def test_a_directory_of_this_format_can_be_opened(tmp_path: Path) -> None:
    """One that was written when the format was raised answers as it did then; its streams go on where they were.

    Who raises the version writes its directory (scripts/write_format.py).
    """
    archive = TESTS / "golden" / "formats" / f"{formats.FORMAT_VERSION}.tar.xz"
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    wanted = json.loads(archive.with_suffix("").with_suffix(".json").read_text("utf-8"))
    assert json.loads(json.dumps(read_directory(tmp_path / "data"), default=str)) == wanted
    assert main(["fsck", str(tmp_path / "data"), "--no-progress"]) == 0


@pytest.mark.parametrize("other", [formats.FORMAT_VERSION - 1, formats.FORMAT_VERSION + 1])
def test_a_directory_of_another_format_is_refused(made: Path, tmp_path: Path, other: int) -> None:
    """The text names the directory, both versions, and what to do."""
    data = copy_of(made, tmp_path / "data")
    (data / "FORMAT").write_text(f"{other}\n")
    with pytest.raises(CorruptionError, match=rf"{data} has format {other}.*use the version that wrote it"):
        open_sandbox(data)
    assert main(["fsck", str(data), "--no-progress"]) == 1


def test_a_manifest_of_another_format_is_refused(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A MANIFEST of another format is no damage: the text says which version is needed; other vnodes work."""
    data = copy_of(made, tmp_path / "data")
    with open_sandbox(data) as sandbox:
        monkeypatch.setattr("penstock.vnode.store.manifest.FORMAT", 7)
        sandbox.engine.storage.vnode(2).set_pin("new", 0)
        monkeypatch.undo()
        sandbox.engine.abandon()
    with open_sandbox(data, disableStream=True) as sandbox:
        problem = sandbox.engine.storage.problem(2)
        assert problem is not None
        assert "MANIFEST has format 7" in problem
        assert "use the version that wrote it" in problem
        assert sandbox.engine.storage.problem(3) is None


def test_a_segment_of_another_format_is_refused_and_stays(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment of another format is neither taken for a torn one nor removed."""
    data = copy_of(made, tmp_path / "data")
    path = log_segments(data)[0]
    content = path.read_bytes()
    header, _ = decode_segment_header(content, path)
    with monkeypatch.context() as patch:
        patch.setattr("penstock.wal.segment.FORMAT", 9)
        newer = SegmentHeader(header.vgroup_id, header.first_version, header.created_ms, 0, 0).encode()[0]
    path.write_bytes(newer + bytes(100))
    with open_sandbox(data, disableStream=True) as sandbox:
        problem = sandbox.engine.storage.problem(int(path.parent.parent.name))
        assert problem is not None
        assert f"{path} has format 9" in problem
    assert path.read_bytes() == newer + bytes(100)


def test_a_damaged_stream_is_set_aside(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one stream's entry in the catalog is damaged, everything else works, and its state is kept."""
    data = copy_of(made, tmp_path / "data")
    catalog = Catalog(data / "catalog")
    (stream,) = catalog.streams.all()
    with monkeypatch.context() as patch:
        seal = catalogs.codec.seal
        patch.setattr(catalogs.codec, "seal", lambda value: b"\0\0\0\0{}" if isinstance(value, list) else seal(value))
        catalog.streams.set_wanted(stream.id, "paused")
    catalog.close()
    before = sorted(path.name for path in (data / "streams").rglob("*"))
    with open_sandbox(data) as sandbox:
        assert sandbox.engine.catalog.streams.all() == ()
        assert "checksum mismatch" in sandbox.engine.catalog.streams.damaged[stream.id]
        assert sandbox.execute("SELECT count(*) FROM d.m").table is not None
    assert sorted(path.name for path in (data / "streams").rglob("*")) == before
    assert main(["fsck", str(data), "--no-progress"]) == 1


def test_safe_mode_starts_nothing_and_shows_everything(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--safe-mode: no Spark, no tasks; tables can be read, streams are STOPPED with the reason, and can be dropped."""
    data = copy_of(made, tmp_path / "data")
    sql = "SELECT count(*) FROM d.out; SHOW STREAMS; DROP STREAM s; SELECT count(*) FROM d.m"
    assert main(["--safe-mode", "--jsonlines", "-d", str(data), "-c", sql]) == 0
    text = capsys.readouterr().out
    assert "STOPPED" in text
    assert "disableStream" in text


def test_a_damaged_vnode_keeps_only_its_own_tables_away(made: Path, tmp_path: Path) -> None:
    """A vnode that cannot be opened is set aside with its reason; what needs it fails by name, the rest works."""
    data = copy_of(made, tmp_path / "data")
    (data / "vnode" / "2" / "store" / "MANIFEST").write_text("nonsense")
    engine = Engine(data, config_of(disableStream=True), clock=ManualClock(), fs=OsFs())
    try:
        assert 2 in engine.storage.broken
        with pytest.raises(PenstockError, match="vnode 2 cannot be used"):
            engine.storage.vnode(2)
        assert engine.storage.vnode(3).acknowledged_version > 0
    finally:
        engine.close()
