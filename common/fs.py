"""The file system as an argument: what storage code may do with files. Knows nothing of what is in them."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from penstock.common.errors import StorageError
from penstock.common.private import FILE_MODE, make_private, sync

T = TypeVar("T")

_LITTLE = 1 << 20


class AppendFile(Protocol):
    """A file that grows at its end."""

    @property
    def size(self) -> int:
        """Bytes in the file as far as this handle knows; after a failed `append` it may hold more."""
        ...

    def append(self, data: bytes) -> None:
        """Writes all of `data` or raises StorageError; then a part of it may be in the file."""
        ...

    def sync(self) -> None:
        """Makes what was appended durable. After a StorageError the file must not be trusted again."""
        ...

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class ReadFile(Protocol):
    """A file open for reading; stays readable after the file is removed."""

    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """Returns up to `length` bytes from `offset`; fewer only at the end of the file."""
        ...

    def map(self) -> mmap.mmap:
        """Returns a read-only map of the whole file as it is now; the file must not be empty."""
        ...

    def close(self) -> None: ...


class Fs(Protocol):
    """Every method raises StorageError when the system refuses, FileNotFoundError when a file is missing."""

    def open_append(self, path: Path) -> AppendFile:
        """Opens `path` for appending, creating it empty when missing."""
        ...

    def open_read(self, path: Path) -> ReadFile: ...

    def read(self, path: Path) -> bytes: ...

    def write_atomic(self, path: Path, data: bytes) -> None:
        """Replaces `path` by `data` so that a crash leaves the old or the new file: temp, fsync, rename, fsync."""
        ...

    def map_shared(self, path: Path, size: int) -> mmap.mmap:
        """Returns a writable shared map of `path`, created zero-filled with `size` bytes when missing or shorter."""
        ...

    def rename(self, source: Path, target: Path) -> None: ...

    def fsync_dir(self, path: Path) -> None: ...

    def list(self, path: Path) -> list[str]:
        """Returns the sorted names in a directory; none when it is missing."""
        ...

    def size(self, path: Path) -> int: ...

    def remove(self, path: Path) -> None:
        """Removes a file; a missing one is no error."""
        ...

    def remove_dir(self, path: Path) -> None:
        """Removes an empty directory; a missing one is no error."""
        ...

    def make_dirs(self, path: Path) -> None: ...


def shortage(path: Path) -> str:
    """Returns what the disk of `path` lacks, for the end of a message; empty if there is room."""
    try:
        found = os.statvfs(path)
    except OSError:
        return ""
    free = found.f_frsize * (found.f_bfree if os.geteuid() == 0 else found.f_bavail)
    return f" ({free >> 10} KiB are left on the disk)" if free < _LITTLE else ""


def _guard(what: str, path: Path, action: Callable[[], T]) -> T:
    try:
        return action()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _refused(what, path, error) from error


def _refused(what: str, path: Path, error: OSError) -> StorageError:
    denied = error.errno in (errno.EACCES, errno.EPERM)
    hint = "check its owner, and the account that runs Penstock" if denied else "check free space and the disk"
    return StorageError(f"cannot {what} {path}: {error.strerror or error}", hint=hint)


def _write_all(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, memoryview(data)[written:])


class OsAppendFile:
    """An AppendFile of the operating system."""

    def __init__(self, path: Path) -> None:
        self._path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = _guard("open", path, lambda: os.open(path, flags, FILE_MODE))
        self._size = os.fstat(self._descriptor).st_size

    @property
    def size(self) -> int:
        return self._size

    def append(self, data: bytes) -> None:
        try:
            _write_all(self._descriptor, data)
        except OSError as error:
            raise _refused("append to", self._path, error) from error
        self._size += len(data)

    def sync(self) -> None:
        _guard("sync", self._path, lambda: os.fsync(self._descriptor))

    def truncate(self, size: int) -> None:
        _guard("truncate", self._path, lambda: os.ftruncate(self._descriptor, size))
        self._size = size

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class OsReadFile:
    """A ReadFile of the operating system."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = _guard("open", path, lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        return _guard("read", self._path, lambda: os.pread(self._descriptor, length, offset))

    def map(self) -> mmap.mmap:
        return _guard("map", self._path, lambda: mmap.mmap(self._descriptor, 0, prot=mmap.PROT_READ))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class OsFs:
    """The file system of the machine."""

    def open_append(self, path: Path) -> AppendFile:
        return OsAppendFile(path)

    def open_read(self, path: Path) -> ReadFile:
        return OsReadFile(path)

    def read(self, path: Path) -> bytes:
        return _guard("read", path, path.read_bytes)

    def write_atomic(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
            try:
                _write_all(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise _refused("write", path, error) from error
        self.fsync_dir(path.parent)

    def map_shared(self, path: Path, size: int) -> mmap.mmap:
        def map_it() -> mmap.mmap:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            try:
                if os.fstat(descriptor).st_size < size:
                    # A page that has no place on a full disk would end the process when it is written.
                    os.posix_fallocate(descriptor, 0, size)
                return mmap.mmap(descriptor, size)
            finally:
                os.close(descriptor)

        return _guard("map", path, map_it)

    def rename(self, source: Path, target: Path) -> None:
        _guard("rename", source, lambda: os.replace(source, target))

    def fsync_dir(self, path: Path) -> None:
        _guard("sync the directory", path, lambda: sync(path))

    def list(self, path: Path) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _refused("list", path, error) from error

    def size(self, path: Path) -> int:
        return _guard("stat", path, path.stat).st_size

    def remove(self, path: Path) -> None:
        _guard("remove", path, lambda: path.unlink(missing_ok=True))

    def remove_dir(self, path: Path) -> None:
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            raise _refused("remove", path, error) from error

    def make_dirs(self, path: Path) -> None:
        _guard("create", path, lambda: make_private(path))
