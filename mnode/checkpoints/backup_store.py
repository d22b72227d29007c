"""Where backups are kept: a directory, or whatever fsspec knows by its URL. Knows nothing of what the files mean."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Protocol

from penstock.common.errors import ConfigError, CorruptionError
from penstock.common.private import make_private, sync, write_private


class BackupStore(Protocol):
    """Files by names such as `a/b/c`. Methods raise OSError, or what the library behind a URL raises."""

    def get(self, name: str, local: Path) -> None:
        """Copies a file from there."""
        ...

    def write(self, name: str, data: bytes) -> None: ...

    def read(self, name: str, most: int) -> bytes:
        """Returns a file's bytes. CorruptionError if there are more than `most`."""
        ...

    def size(self, name: str) -> int:
        """Returns the bytes of a file."""
        ...

    def names(self, directory: str) -> list[str]:
        """Returns the names in a directory, without their path; none if it is missing."""
        ...

    def remove(self, directory: str) -> None:
        """Removes a directory with all that is in it."""
        ...

    def remove_file(self, name: str) -> None: ...


def open_backup_store(location: str) -> BackupStore:
    """Returns the store of a directory or a URL. ConfigError if a URL is given and fsspec isn't there or refuses it."""
    if "://" not in location:
        return DirectoryStore(Path(location).expanduser())
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ConfigError(f"checkpointBackupDir is a URL ({location}), which needs fsspec",
                          hint="pip install 'penstock[backup]'") from error
    try:
        filesystem, root = url_to_fs(location)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"checkpointBackupDir ({location}) cannot be used: {error}",
                          hint="fsspec may need a further package for this kind of URL") from error
    return UrlStore(filesystem, root)


class DirectoryStore:
    """A directory of this machine, or one that is mounted."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def get(self, name: str, local: Path) -> None:
        shutil.copyfile(self._root / name, local)

    def write(self, name: str, data: bytes) -> None:
        target = self._root / name
        make_private(target.parent)
        write_private(target, data)
        sync(target)

    def read(self, name: str, most: int) -> bytes:
        with (self._root / name).open("rb") as file:
            return _bounded(file.read(most + 1), name, most)

    def size(self, name: str) -> int:
        return (self._root / name).stat().st_size

    def names(self, directory: str) -> list[str]:
        path = self._root / directory
        return sorted(os.listdir(path)) if path.is_dir() else []

    def remove(self, directory: str) -> None:
        shutil.rmtree(self._root / directory)

    def remove_file(self, name: str) -> None:
        (self._root / name).unlink()


class UrlStore:
    """A file system of fsspec's below one root."""

    def __init__(self, filesystem: Any, root: str) -> None:
        self._filesystem = filesystem
        self._root = root.rstrip("/")

    def get(self, name: str, local: Path) -> None:
        self._filesystem.get_file(self._path(name), str(local))

    def write(self, name: str, data: bytes) -> None:
        self._filesystem.makedirs(self._parent(name), exist_ok=True)
        self._filesystem.pipe_file(self._path(name), data)

    def read(self, name: str, most: int) -> bytes:
        data: bytes = self._filesystem.cat_file(self._path(name), start=0, end=min(most + 1, self.size(name)))
        return _bounded(data, name, most)

    def size(self, name: str) -> int:
        return int(self._filesystem.size(self._path(name)))

    def names(self, directory: str) -> list[str]:
        path = self._path(directory)
        self._filesystem.invalidate_cache(path)
        if not self._filesystem.exists(path):
            return []
        return sorted(str(found).rstrip("/").rpartition("/")[2] for found in self._filesystem.ls(path, detail=False))

    def remove(self, directory: str) -> None:
        self._filesystem.rm(self._path(directory), recursive=True)

    def remove_file(self, name: str) -> None:
        self._filesystem.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _parent(self, name: str) -> str:
        return self._path(name).rpartition("/")[0]


def _bounded(data: bytes, name: str, most: int) -> bytes:
    if len(data) > most:
        raise CorruptionError(f"backup {name} is longer than {most} bytes")
    return data
