"""Moves files out of the way instead of removing them."""

from __future__ import annotations

from pathlib import Path

from penstock.common.fs import Fs
from penstock.common.paths import DataPaths


def set_aside(fs: Fs, paths: DataPaths, path: Path) -> Path:
    """Moves a file or folder of the data directory below `damaged/`, where nobody looks for it; returns where it is.

    What it holds must be durable already; that it is moved is, on return. Raises StorageError.
    """
    target = paths.aside / path.relative_to(paths.root)
    number = 1
    while target.exists():
        number += 1
        target = target.with_name(f"{path.name}.{number}")
    fs.make_dirs(target.parent)
    fs.rename(path, target)
    fs.fsync_dir(target.parent)
    fs.fsync_dir(path.parent)
    return target
