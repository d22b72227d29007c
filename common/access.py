"""Whether this process may use what is in a directory: asked before anything in it is changed."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock.common.errors import StorageError


def check_access(places: Iterable[Path]) -> None:
    """Raises StorageError if a file or directory at or below `places` can't be read or written; missing ones are none.

    The text names the first one, its owner, and how many more there are.
    """
    refused = [path for place in places for path in _below(place) if not _usable(path)]
    if not refused:
        return
    first = refused[0]
    others = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
    if os.statvfs(first).f_flag & os.ST_RDONLY:
        raise StorageError(f"cannot write {first}{others}: the file system is read-only",
                           hint="mount it for reading and writing")
    owned = first.lstat()
    raise StorageError(
        f"cannot read and write {first}{others}: it belongs to {_user(owned.st_uid)} (mode {owned.st_mode & 0o777:o}), "
        f"and this process runs as {_user(os.geteuid())}",
        hint="start Penstock as the user who owns the data directory, or change the owner of the directory (chown -R)")


def _below(place: Path) -> Iterator[Path]:
    """Yields `place` and what is in it; a directory that can't be entered ends there."""
    if not os.path.lexists(place):
        return
    yield place
    for folder, folders, files in os.walk(place):
        for name in sorted((*folders, *files)):
            yield Path(folder, name)


def _usable(path: Path) -> bool:
    needed = os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0)
    # What vanished meanwhile isn't refused.
    return os.access(path, needed, effective_ids=True) or not os.path.lexists(path)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
