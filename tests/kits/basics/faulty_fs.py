"""A file system that fails where a test wants it to; used by the storage tests."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from pathlib import Path

from penstock.common.errors import StorageError
from penstock.common.fs import AppendFile, Fs, OsFs, ReadFile


@dataclass
class FaultyFs(OsFs):
    """Counts changing calls; the call number `fail_at` (from 1) fails with `fault`: "error", "short" or "sync".

    "short" lets half of the bytes through before it fails, as a full disk does; "sync" fails only sync calls.
    Nothing is really synced: tests don't cut the power, and syncing is slow.
    """

    fail_at: int = 0
    fault: str = "error"
    calls: int = 0
    failed: list[str] = field(default_factory=list)
    inner: Fs = field(default_factory=OsFs)

    def trip(self, what: str, *, sync: bool = False) -> bool:
        """Counts a call and tells whether it must fail."""
        if self.fault == "sync" and not sync:
            return False
        self.calls += 1
        if self.calls != self.fail_at:
            return False
        self.failed.append(what)
        return True

    def check(self, what: str, *, sync: bool = False) -> None:
        """Counts a call and raises when it must fail."""
        if self.trip(what, sync=sync):
            raise StorageError(f"injected fault in {what}")

    def open_append(self, path: Path) -> AppendFile:
        self.check(f"open {path.name}")
        return FaultyAppendFile(self, self.inner.open_append(path), path)

    def open_read(self, path: Path) -> ReadFile:
        return self.inner.open_read(path)

    def write_atomic(self, path: Path, data: bytes) -> None:
        self.check(f"write {path.name}")
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_bytes(data)
        temporary.replace(path)
        self.check(f"sync the directory of {path.name}", sync=True)  # the new file is there all the same

    def map_shared(self, path: Path, size: int) -> mmap.mmap:
        self.check(f"map {path.name}")
        return self.inner.map_shared(path, size)

    def rename(self, source: Path, target: Path) -> None:
        self.check(f"rename {source.name}")
        self.inner.rename(source, target)

    def fsync_dir(self, path: Path) -> None:
        self.check(f"sync {path.name}")

    def remove(self, path: Path) -> None:
        self.check(f"remove {path.name}")
        self.inner.remove(path)


class FaultyAppendFile:
    """An AppendFile whose calls count towards the faults of its file system."""

    def __init__(self, fs: FaultyFs, inner: AppendFile, path: Path) -> None:
        self._fs = fs
        self._inner = inner
        self._name = path.name

    @property
    def size(self) -> int:
        return self._inner.size

    def append(self, data: bytes) -> None:
        if self._fs.trip(f"append {self._name}"):
            if self._fs.fault == "short":
                self._inner.append(data[:len(data) // 2])
            raise StorageError(f"injected fault in append to {self._name}")
        self._inner.append(data)

    def sync(self) -> None:
        self._fs.check(f"sync {self._name}", sync=True)

    def truncate(self, size: int) -> None:
        self._fs.check(f"truncate {self._name}")
        self._inner.truncate(size)

    def close(self) -> None:
        self._inner.close()
