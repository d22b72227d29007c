"""The format version of a data directory: written once, and checked whenever it is opened."""

from __future__ import annotations

from penstock.common.errors import CorruptionError
from penstock.common.fs import Fs
from penstock.common.paths import DataPaths
from penstock.mnode.catalog.catalog import Catalog

FORMAT_VERSION = 6


def ensure_format(fs: Fs, paths: DataPaths) -> None:
    """Writes the version into a directory that has none, after `check_format`."""
    if not paths.format.exists():
        fs.write_atomic(paths.format, f"{FORMAT_VERSION}\n".encode())


def check_format(fs: Fs, paths: DataPaths, catalog: Catalog | None = None) -> None:
    """Raises CorruptionError unless the directory has this version's format; the text says which it has.

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
    if int(text) != FORMAT_VERSION:
        raise CorruptionError(
            f"the data directory {paths.root} has format {text}; this version of Penstock knows {FORMAT_VERSION}",
            hint="use the version that wrote it")
