"""Writes small data directories of the present formats, for tests that they are opened and go on.

tests/golden/formats/<version>.tar.xz has everything that a format covers: write it when a format version is raised.
tests/golden/running_streams/<name>.tar.xz, with the name as argument, has streams of every kind: write it before what
they keep is changed. tests/golden/releases/<version>.tar.xz, with `release` as argument, is what a release leaves.
Archives of the formats before go; those of releases stay.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from kits.engines import released_directory, running_streams  # noqa: E402
from kits.engines.data_directories import make_directory  # noqa: E402

import penstock  # noqa: E402
from penstock.mnode.catalog.directory_format import FORMAT_VERSION  # noqa: E402

_LEFT_OUT = {"LOCK", "OWNER", "lock.mdb", "views.duckdb", "log"}


def main() -> None:
    """Writes an archive and, beside one of a format, the answers that its queries must give."""
    golden = ROOT / "tests" / "golden"
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "data"
        data.mkdir()
        match sys.argv[1:]:
            case []:
                text = json.dumps(make_directory(data), indent=1, default=str)
                _pack(data, golden / "formats" / f"{FORMAT_VERSION}.tar.xz")
                (golden / "formats" / f"{FORMAT_VERSION}.json").write_text(text + "\n", "utf-8")
            case ["release"]:
                found = released_directory.write(data)
                lines = ",\n".join(f"{json.dumps(query)}: {json.dumps(rows)}" for query, rows in found.items())
                _pack(data, golden / "releases" / f"{penstock.__version__}.tar.xz")
                (golden / "releases" / f"{penstock.__version__}.json").write_text(f"{{{lines}}}\n", "utf-8")
            case [name]:
                running_streams.write(data)
                _pack(data, golden / "running_streams" / f"{name}.tar.xz")
            case _:
                sys.exit("usage: write_format.py [release | NAME]")


def _pack(data: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:xz") as archive:
        archive.add(data, "data", filter=lambda info: None if Path(info.name).name in _LEFT_OUT else _plain(info))


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leaves out who made it and when."""
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    main()
