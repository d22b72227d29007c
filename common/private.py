"""Files and directories that only their owner may use: all that Penstock makes is made so, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
UMASK = 0o077


def make_private(directory: Path) -> None:
    """Makes a directory, and those above it that are missing; what is there stays as it is. Raises OSError."""
    try:
        directory.mkdir(DIRECTORY_MODE)
    except FileNotFoundError:
        make_private(directory.parent)
        directory.mkdir(DIRECTORY_MODE, exist_ok=True)
    except FileExistsError:
        if not directory.is_dir():
            raise


def open_private(path: Path, mode: str, **arguments: Any) -> IO[Any]:
    """Opens a file as `open` does; one that is made by that is its owner's alone."""
    return open(path, mode, opener=_opener, **arguments)


def write_private(path: Path, data: bytes) -> None:
    """Writes a whole file that is its owner's alone."""
    with open_private(path, "wb") as file:
        file.write(data)


def sync(path: Path | str) -> None:
    """Returns once the disk has a file, or which files a directory has."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def private_umask() -> Iterator[None]:
    """What this process and those it starts make meanwhile is its owner's alone: for files that others' code makes."""
    before = os.umask(UMASK)
    try:
        yield
    finally:
        os.umask(before)


def exposed(directory: Path) -> str | None:
    """Returns what to say of a directory that others than its owner may enter, or None."""
    mode = directory.stat().st_mode & 0o777
    if not mode & UMASK:
        return None
    return (f"{directory} is open to others than its owner (mode {mode:o}): they may read rows and digests of "
            f"passwords; to close it: chmod -R go= {directory}")


def cache_directory(name: str) -> Path:
    """Returns where this user keeps what can be made anew; it need not exist. Raises RuntimeError without a home."""
    caches = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(caches) if caches.startswith("/") else Path.home() / ".cache") / "penstock" / name


def writable_by_others(directory: Path) -> Path | None:
    """Returns the directory itself or one above it that others can write, or None: what is in it may be run then."""
    directory = directory.resolve()
    own = directory.stat()
    if own.st_uid != os.geteuid() or stat.S_IMODE(own.st_mode) & ~DIRECTORY_MODE:
        return directory
    for above in directory.parents:
        found = above.stat()
        # Where the sticky bit is set, others may make files but not replace this user's.
        if found.st_uid not in (0, os.geteuid()) or (found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX):
            return above
    return None


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
