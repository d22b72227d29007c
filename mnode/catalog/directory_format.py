"""The format version of a data directory: written once, and checked whenever it is opened."""

from __future__ import annotations

from penstock.common.errors import CorruptionError
from penstock.common.fs import Fs
from penstock.common.paths import DataPaths
from penstock.mnode.catalog.catalog import Catalog

# 1 has no packed rows in logs, 2 none of ingests, 3 has a list per child table in META records, 4 has no deleted points
FORMAT_VERSION = 5


def ensure_format(fs: Fs, paths: DataPaths) -> None:
    """Writes the version into a directory that has none, or an older one, after `check_format`."""
    version = f"{FORMAT_VERSION}\n".encode()
    if not paths.format.exists() or fs.read(paths.format) != version:
        fs.write_atomic(paths.format, version)


def check_format(fs: Fs, paths: DataPaths, catalog: Catalog | None = None) -> None:
    """Raises CorruptionError unless the directory's format is known; the text says which versions are.

    A directory without data may have none: neither vnodes, nor anything in the `catalog`.
    """
    try:
        text = fs.read(paths.format).decode(errors="replace").strip()
    except FileNotFoundError:
        if paths.holds_data() or (catalog is not None and not catalog.is_empty):
            raise CorruptionError(
                f"{paths.format} is missing, but {paths.root} holds data: so its format is unknown",
                hint="copy it from the original, or penstock fsck --repair if all else can be read") from None
        return
    if not text.isdigit():
        raise CorruptionError(f"{paths.format} holds {text[:20]!r} instead of a format version",
                              hint=f"write {FORMAT_VERSION} into it if nothing else is damaged: penstock fsck tells")
    if int(text) > FORMAT_VERSION:
        raise CorruptionError(
            f"the data directory {paths.root} has format {text}; this version of Penstock knows formats up "
            f"to {FORMAT_VERSION}", hint="use the newer version that wrote it")
