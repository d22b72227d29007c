"""Penstock's own code as one file, for machines that have none: what Spark ships to the workers of a cluster."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "penstock"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same files make the same archive


@dataclass(frozen=True, slots=True)
class CodeArchive:
    """A zip file that Python imports from. `name` has a checksum: other code has another name."""

    name: str
    data: bytes


def code_archive(package: Path) -> CodeArchive:
    """Returns the archive of all Python files of the package in this directory."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(_python_files(package)):
            name = f"{PACKAGE}/{path.relative_to(package).as_posix()}"
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)
    data = target.getvalue()
    return CodeArchive(f"{PACKAGE}-{hashlib.sha256(data).hexdigest()[:16]}.zip", data)


def _python_files(package: Path) -> list[Path]:
    # The parts are links to folders beside it when Penstock isn't installed but worked on.
    return [Path(folder) / name for folder, _, names in os.walk(package, followlinks=True) for name in names
            if name.endswith(".py")]
