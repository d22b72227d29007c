"""A disk that fails: real files in a directory stand for the page cache, beside them what of it would survive.

Each process works through a view of its own. A call may fail, be slow, or be the last thing its process does. After a
power cut the files are made to look as a disk may leave them: what wasn't synced is lost, torn or garbled, and names
whose directory wasn't synced may be the old ones.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal

from penstock.common.errors import StorageError
from penstock.common.fs import AppendFile, OsAppendFile, OsFs, OsReadFile, ReadFile

FaultKind = Literal["error", "short", "sync", "die", "power"]
_SECTORS = (512, 4096)


class ProcessDied(BaseException):
    """The process that was about to do something is no more. Passes through all handlers of errors."""

    def __init__(self, process: str) -> None:
        super().__init__(process)
        self.process = process


class PowerLost(BaseException):
    """The machine lost its power in the middle of a call."""


@dataclass
class Disk:
    """One disk for all processes. `chance` decides what a power cut leaves; `slow` is called before every call."""

    root: Path
    chance: Random
    slow: Callable[[], None] = lambda: None
    on_log_sync_failed: Callable[[], None] = lambda: None
    calls: int = 0
    faults: dict[int, FaultKind] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)
    off: bool = False
    _sync_fails: bool = False
    _handles: dict[str, list[_Append]] = field(default_factory=dict)
    _synced: dict[Path, int] = field(default_factory=dict)
    _unnamed: set[Path] = field(default_factory=set)
    _removed: dict[Path, bytes] = field(default_factory=dict)
    _renamed: dict[Path, bytes | None] = field(default_factory=dict)
    _maps: dict[Path, bytes | None] = field(default_factory=dict)

    def view(self, process: str) -> DiskView:
        """Returns the file system as one process sees it."""
        return DiskView(self, process)

    def enter(self, process: str, what: str, *, sync: bool = False) -> FaultKind | None:
        """Counts a call; raises, or returns how the caller must fail."""
        if self.off:
            raise PowerLost
        if process in self.dead:
            raise ProcessDied(process)
        self.slow()
        self.calls += 1
        fault = self.faults.pop(self.calls, None)
        if fault == "sync":
            self._sync_fails = True
            fault = None
        if sync and self._sync_fails:
            self._sync_fails = False
            fault = "error"
        if fault is None:
            return None
        self.failed.append(f"{fault} in {process}: {what}")
        return fault

    def act(self, process: str, what: str, *, sync: bool = False) -> None:
        """Counts a call that is done completely or not at all."""
        self.fail(self.enter(process, what, sync=sync), process, what)

    def fail(self, fault: FaultKind | None, process: str, what: str) -> None:
        """Raises what a fault means."""
        if fault in ("error", "short"):
            raise StorageError(f"injected fault in {what}")
        # What unwinds the call stack from here on must not reach the disk any more.
        if fault == "die":
            self.dead.add(process)
            raise ProcessDied(process)
        if fault == "power":
            self.off = True
            raise PowerLost

    def kill(self, process: str) -> None:
        """The process is gone: its files are closed, and whatever still calls in its name is stopped."""
        self.dead.add(process)
        for handle in self._handles.pop(process, []):
            handle.drop()

    def cut_power(self) -> None:
        """Leaves on disk what a power cut may leave. All processes must be dead."""
        chance = self.chance
        self.off = False
        for path, synced in sorted(self._synced.items()):
            if not path.exists():
                continue
            if path in self._unnamed and chance.random() < 0.5:
                path.unlink()
                continue
            self._garble(path, synced)
        for path, before in sorted(self._renamed.items()):
            if chance.random() < 0.5:
                if before is None:
                    path.unlink(missing_ok=True)
                else:
                    path.write_bytes(before)
        for path, content in sorted(self._removed.items()):
            if chance.random() < 0.3 and path.parent.is_dir() and not path.exists():
                path.write_bytes(content)
        for path, before in sorted(self._maps.items(), key=lambda item: item[0]):
            self._revert_map(path, before)
        for kept in (self._synced, self._removed, self._renamed, self._maps):
            kept.clear()
        self._unnamed.clear()

    def _garble(self, path: Path, synced: int) -> None:
        data = bytearray(path.read_bytes())
        if len(data) <= synced:
            return
        kept = self.chance.choice([synced, self.chance.randint(synced, len(data)), len(data)])
        data = data[:kept]
        sector = self.chance.choice(_SECTORS)
        for start in range(synced - synced % sector, kept, sector):
            # A sector may miss although later ones arrived; what was synced in it stays.
            if self.chance.random() < 0.25:
                first, last = max(start, synced), min(start + sector, kept)
                data[first:last] = self.chance.choice([bytes(last - first), self.chance.randbytes(last - first)])
        path.write_bytes(data)

    def _revert_map(self, path: Path, before: bytes | None) -> None:
        if not path.exists():
            return
        what = self.chance.random()
        if before is not None and what < 0.5:
            path.write_bytes(before)
        elif before is None and what < 0.3:
            path.write_bytes(bytes(path.stat().st_size))
        elif before is None and what < 0.6:
            path.unlink()

    # --- what views tell ---------------------------------------------------------------------------------------

    def opened(self, process: str, handle: _Append, path: Path, *, created: bool) -> None:
        self._handles.setdefault(process, []).append(handle)
        if created:
            self._unnamed.add(path)
        self._synced.setdefault(path, 0 if created else handle.size)

    def synced(self, path: Path, size: int) -> None:
        self._synced[path] = size

    def truncated(self, path: Path, size: int) -> None:
        self._synced[path] = min(self._synced.get(path, 0), size)

    def renamed(self, path: Path, before: bytes | None) -> None:
        self._renamed.setdefault(path, before)

    def removed(self, path: Path) -> None:
        if path.exists():
            self._removed[path] = path.read_bytes()
        self._synced.pop(path, None)
        self._unnamed.discard(path)

    def mapped(self, path: Path, before: bytes | None) -> None:
        self._maps.setdefault(path, before)

    def map_synced(self, path: Path) -> None:
        if not self.off:
            self._maps[path] = path.read_bytes()

    def directory_synced(self, directory: Path) -> None:
        self._unnamed = {path for path in self._unnamed if path.parent != directory}
        for kept in (self._removed, self._renamed):
            for path in [path for path in kept if path.parent == directory]:
                del kept[path]  # type: ignore[attr-defined]


class DiskView(OsFs):
    """The `Fs` of one process."""

    def __init__(self, disk: Disk, process: str) -> None:
        self._disk = disk
        self.process = process

    def open_append(self, path: Path) -> AppendFile:
        self._disk.act(self.process, f"open {path.name}")
        created = not path.exists()
        handle = _Append(self._disk, self.process, path)
        self._disk.opened(self.process, handle, path, created=created)
        return handle

    def open_read(self, path: Path) -> ReadFile:
        self._alive()
        return OsReadFile(path)

    def read(self, path: Path) -> bytes:
        self._alive()
        return super().read(path)

    def write_atomic(self, path: Path, data: bytes) -> None:
        disk, temporary = self._disk, path.with_name(f"{path.name}.{self.process.replace('/', '-')}.tmp")
        fault = disk.enter(self.process, f"write {path.name}")
        if fault is not None:
            temporary.write_bytes(data[:disk.chance.randint(0, len(data))])
            if fault in ("error", "short"):
                temporary.unlink()
            disk.fail(fault, self.process, f"write {path.name}")
        temporary.write_bytes(data)
        fault = disk.enter(self.process, f"sync {path.name}", sync=True)
        if fault in ("error", "short"):
            temporary.unlink()
        disk.fail(fault, self.process, f"sync {path.name}")
        before = path.read_bytes() if path.exists() else None
        os.replace(temporary, path)
        disk.renamed(path, before)
        self.fsync_dir(path.parent)

    def map_shared(self, path: Path, size: int) -> mmap.mmap:
        self._disk.act(self.process, f"map {path.name}")
        self._disk.mapped(path, path.read_bytes() if path.exists() else None)
        super().map_shared(path, size).close()
        with path.open("r+b") as file:
            map_ = _Map(file.fileno(), size)
        map_.on_flush = lambda: self._disk.map_synced(path)
        return map_

    def rename(self, source: Path, target: Path) -> None:
        self._disk.act(self.process, f"rename {source.name}")
        before = target.read_bytes() if target.exists() else None
        super().rename(source, target)
        self._disk.renamed(target, before)

    def fsync_dir(self, path: Path) -> None:
        self._disk.act(self.process, f"sync directory {path.name}", sync=True)
        self._disk.directory_synced(path)

    def remove(self, path: Path) -> None:
        self._disk.act(self.process, f"remove {path.name}")
        self._disk.removed(path)
        super().remove(path)

    def _alive(self) -> None:
        if self._disk.off:
            raise PowerLost
        if self.process in self._disk.dead:
            raise ProcessDied(self.process)


class _Map(mmap.mmap):
    """A shared map that tells when it was made durable."""

    on_flush: Callable[[], None]

    def flush(self, *arguments: int) -> None:
        super().flush(*arguments)
        self.on_flush()


class _Append(OsAppendFile):
    """An appended file whose calls may fail, and that tells what is synced."""

    def __init__(self, disk: Disk, process: str, path: Path) -> None:
        super().__init__(path)
        self._disk = disk
        self._process = process

    def append(self, data: bytes) -> None:
        fault = self._disk.enter(self._process, f"append {self._path.name}")
        if fault is not None:
            if fault != "error":
                super().append(data[:self._disk.chance.randint(0, len(data))])
            self._disk.fail(fault, self._process, f"append {self._path.name}")
        super().append(data)

    def sync(self) -> None:
        what = f"sync {self._path.name}"
        fault = self._disk.enter(self._process, what, sync=True)
        if fault in ("error", "short") and self._path.suffix == ".log":
            self._disk.on_log_sync_failed()
        self._disk.fail(fault, self._process, what)
        self._disk.synced(self._path, self.size)

    def truncate(self, size: int) -> None:
        self._disk.act(self._process, f"truncate {self._path.name}")
        super().truncate(size)
        self._disk.truncated(self._path, size)

    def drop(self) -> None:
        """Closes the file as the end of its process does."""
        self.close()
