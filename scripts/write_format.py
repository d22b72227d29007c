"""Writes tests/golden/formats/<version>.tar.xz: a small data directory in the present format, for later versions.

Run it when a format version is raised, and keep the archives of the versions before.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from data_directories import make_directory  # noqa: E402

from penstock.mnode.formats import FORMAT_VERSION  # noqa: E402

_LEFT_OUT = {"LOCK", "OWNER", "lock.mdb", "views.duckdb", "log"}


def main() -> None:
    """Writes the archive and, beside it, the answers that its queries must give."""
    folder = ROOT / "tests" / "golden" / "formats"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "data"
        answers = make_directory(data)
        with tarfile.open(folder / f"{FORMAT_VERSION}.tar.xz", "w:xz") as archive:
            archive.add(data, "data", filter=lambda info: None if Path(info.name).name in _LEFT_OUT else _plain(info))
    text = json.dumps(answers, indent=1, default=str)
    (folder / f"{FORMAT_VERSION}.json").write_text(text + "\n", "utf-8")


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leaves out who made it and when."""
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    main()
