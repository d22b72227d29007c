"""How an attempt reaches logs and states: as files of the data directory, or over the network."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import threading
from pathlib import Path

from penstock.common.clock import Clock
from penstock.common.errors import UnavailableError
from penstock.common.fs import Fs
from penstock.common.paths import DataPaths
from penstock.tasks.dnode_access.remote_log import RemoteLogs
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.state.copied_state import CopiedState, StateKeeper
from penstock.tasks.state.state_cache import StateCache
from penstock.tasks.state.state_store import StateStore
from penstock.wal.log import Log, LogFiles

LOCK_NAME = "OWNER"
_LOCK_RETRY_S = 0.02
_LOCK_TIMEOUT_S = 15.0
_HOLDER_BYTES = 200


class StateDirectories:
    """The state folders of one stream on one worker, each held by a file lock.

    A worker process that was given up may live on for seconds; the lock keeps it and its successor from writing the
    same LMDB environment.
    """

    def __init__(self, paths: DataPaths, fs: Fs, clock: Clock) -> None:
        self._paths = paths
        self._fs = fs
        self._clock = clock
        self._locks: dict[Path, int] = {}
        self._closing = threading.Event()

    def open(self, task: TaskId) -> Path:
        """Returns the locked folder of a task; raises UnavailableError if another process doesn't give it up."""
        directory = self._paths.state(task.stream_id, str(task))
        if directory in self._locks:
            return directory
        self._fs.make_dirs(directory)
        descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = self._clock.monotonic() + _LOCK_TIMEOUT_S
        while not _try_lock(descriptor):
            if self._closing.is_set() or self._clock.monotonic() >= deadline:
                holder = _read_holder(descriptor)
                os.close(descriptor)
                raise UnavailableError(
                    f"the state of {task} in {directory} is still held by {holder}",
                    hint="an earlier worker of the stream hasn't ended yet; if it stays, end that process",
                )
            self._clock.wait(self._closing, _LOCK_RETRY_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()}".encode(), 0)
        self._locks[directory] = descriptor
        return directory

    def abandon(self) -> None:
        """Ends an `open` that waits; any thread."""
        self._closing.set()

    def discard(self) -> None:
        """Removes all folders, and gives them up."""
        for directory in self._locks:
            shutil.rmtree(directory, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Gives all folders up."""
        self._closing.set()
        while self._locks:
            _, descriptor = self._locks.popitem()
            os.close(descriptor)


def _read_holder(descriptor: int) -> str:
    """Returns what the holder of a lock has written of itself."""
    text = os.pread(descriptor, _HOLDER_BYTES, 0).decode(errors="replace")
    return text if text.startswith("process ") and text.isprintable() else "another process"


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class DataAccess:
    """One attempt's way to what is in the data directory: its own files."""

    def __init__(self, paths: DataPaths, fs: Fs, clock: Clock, cache: StateCache) -> None:
        self._paths = paths
        self._fs = fs
        self._cache = cache
        self._directories = StateDirectories(paths, fs, clock)

    @property
    def spill(self) -> Path:
        return self._paths.spill

    def log(self, vgroup_id: int) -> Log:
        return LogFiles(self._paths.wal(vgroup_id), self._fs)

    def open_state(self, task: TaskId, map_bytes: int) -> StateStore:
        """Returns the state of a task, which the task closes. UnavailableError if it can't be had yet."""
        return StateStore(self._directories.open(task), map_bytes, self._cache)

    def abandon(self) -> None:
        """Ends an `open_state` that waits; any thread."""
        self._directories.abandon()

    def close(self) -> None:
        """Gives all back; the states are closed by then."""
        self._directories.close()


class NetworkAccess(DataAccess):
    """What the dnode sends, and folders of this machine's for as long as the attempt lasts.

    What a worker that was killed has left there the next one on this machine takes over, and with it away.
    """

    def __init__(
        self, logs: RemoteLogs, keeper: StateKeeper, scratch: DataPaths, fs: Fs, clock: Clock, cache: StateCache
    ) -> None:
        super().__init__(scratch, fs, clock, cache)
        self._logs = logs
        self._keeper = keeper

    def log(self, vgroup_id: int) -> Log:
        return self._logs.log(vgroup_id)

    def open_state(self, task: TaskId, map_bytes: int) -> StateStore:
        return CopiedState(self._directories.open(task), map_bytes, self._cache, self._keeper, task)

    def close(self) -> None:
        self._directories.discard()
