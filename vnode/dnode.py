"""The process that stores data: the lock on its directory, its open vnodes, and one thread that maintains them."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

from penstock.common.access import check_access
from penstock.common.aside import set_aside
from penstock.common.clock import Clock
from penstock.common.errors import DataDirectoryInUseError, NotFoundError, PenstockError, StorageError
from penstock.common.fs import Fs
from penstock.common.paths import DataPaths
from penstock.common.private import make_private, open_private
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode

_log = logging.getLogger(__name__)


class DirectoryLock:
    """Holds a data directory for this process; the system frees it when the process ends, however it ends."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def release(self) -> None:
        """Gives the directory back; a second call does nothing."""
        self._file.close()


def lock_data_directory(paths: DataPaths) -> DirectoryLock:
    """Locks a data directory, creating it when missing. Raises DataDirectoryInUseError naming the holder."""
    try:
        make_private(paths.root)
        check_access([paths.lock])
        file = open_private(paths.lock, "a+b")  # the lock lives as long as the file is open
    except OSError as error:
        raise StorageError(f"cannot open {paths.lock}: {error.strerror}",
                           hint="start Penstock as the user who owns the directory") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = file.read().decode(errors="replace").strip() or "unknown"
        file.close()
        raise DataDirectoryInUseError(
            f"the data directory {paths.root} is in use by the engine with process id {holder}",
            hint="connect to it with penstock --host if it is penstock serve, or stop it first") from error
    file.truncate(0)
    file.write(b"%d\n" % os.getpid())
    file.flush()
    return DirectoryLock(file)


class Dnode:
    """Owns the vnodes of this process. Thread-safe.

    The maintenance thread flushes, compacts and applies retention; a vnode whose upkeep fails is reported once per
    change of its error in `problems` and in the log, and is tried again.
    """

    def __init__(self, paths: DataPaths, *, fs: Fs, clock: Clock, interval_s: float = 0.25) -> None:
        self._paths = paths
        self._fs = fs
        self._clock = clock
        self._interval_s = interval_s
        self._lock = threading.Lock()
        #: held by who writes beside a vnode's own files: its folder stays meanwhile, or is gone for good
        self.folders_lock = threading.Lock()
        self._vnodes: dict[int, Vnode] = {}
        self._problems: dict[int, PenstockError] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def paths(self) -> DataPaths:
        return self._paths

    def open_vnode(self, vgroup_id: int, options: VnodeOptions, behind: int | None = None) -> Vnode:
        """Opens a vnode, creating it when missing; one that is open already is returned as it is.

        `behind`: the vnode is a new one whose log goes on behind this version.
        """
        with self._lock:
            vnode = self._vnodes.get(vgroup_id)
            if vnode is None:
                directory = self._paths.vnode(vgroup_id)
                if behind is not None:
                    Vnode.begin(directory, options, behind, fs=self._fs, clock=self._clock)
                vnode = Vnode.open(directory, options, fs=self._fs, clock=self._clock)
                self._vnodes[vgroup_id] = vnode
                found = vnode.recovery
                if found.cut_bytes or found.lost_versions:
                    _log.warning("the log of vnode %d had a torn tail: %d bytes cut off, %d acknowledged records lost",
                                 vgroup_id, found.cut_bytes, found.lost_versions)
            return vnode

    def vnode(self, vgroup_id: int) -> Vnode:
        """Returns an open vnode. Raises NotFoundError."""
        vnode = self._vnodes.get(vgroup_id)
        if vnode is None:
            raise NotFoundError(f"vnode {vgroup_id} is not open in this process")
        return vnode

    def find(self, vgroup_id: int) -> Vnode | None:
        """Returns a vnode if it is open."""
        return self._vnodes.get(vgroup_id)

    def vnodes(self) -> dict[int, Vnode]:
        """Returns all open vnodes by vgroup id."""
        with self._lock:
            return dict(self._vnodes)

    def replace_vnode(self, vgroup_id: int, options: VnodeOptions, received: Path) -> Vnode:
        """Opens a vnode whose files another node has given: the folder `received`, of the same disk, takes its place.

        What there was is moved out of the way; after a crash in between there is no vnode. Raises StorageError,
        CorruptionError.
        """
        self._close_vnode(vgroup_id)
        directory = self._paths.vnode(vgroup_id)
        with self.folders_lock:
            if directory.is_dir():
                set_aside(self._fs, self._paths, directory)
            self._fs.make_dirs(directory.parent)
            self._fs.rename(received, directory)
            self._fs.fsync_dir(received.parent)
            self._fs.fsync_dir(directory.parent)
        return self.open_vnode(vgroup_id, options)

    def drop_vnode(self, vgroup_id: int) -> None:
        """Closes a vnode and deletes all its files; an unknown one is no error."""
        self._close_vnode(vgroup_id)
        with self.folders_lock:
            _remove_tree(self._fs, self._paths.vnode(vgroup_id))

    def _close_vnode(self, vgroup_id: int) -> None:
        with self._lock:
            vnode = self._vnodes.pop(vgroup_id, None)
            self._problems.pop(vgroup_id, None)
        if vnode is not None:
            vnode.close(flush=False)

    @property
    def problems(self) -> dict[int, PenstockError]:
        """The last upkeep error of each vnode that has one now."""
        with self._lock:
            return dict(self._problems)

    def start(self) -> None:
        """Starts the maintenance thread; a second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-dnode", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._clock.wait(self._stop, self._interval_s):
            self.maintain()

    def maintain(self) -> None:
        """Does one round of upkeep on every vnode."""
        for vgroup_id, vnode in self.vnodes().items():
            self._attempt(vgroup_id, vnode.maintain)

    def flush_all(self) -> None:
        """Flushes every vnode, so that other readers see everything. Raises the first error."""
        for vnode in self.vnodes().values():
            vnode.flush()

    def _attempt(self, vgroup_id: int, action: Callable[[], None]) -> None:
        try:
            action()
        except PenstockError as error:
            with self._lock:
                known = self._problems.get(vgroup_id)
                if vgroup_id in self._vnodes:
                    self._problems[vgroup_id] = error
            if known is None or str(known) != str(error):
                _log.error("upkeep of vnode %d failed: %s", vgroup_id, error)
        else:
            with self._lock:
                self._problems.pop(vgroup_id, None)

    def stop(self) -> None:
        """Ends the maintenance thread; the vnodes stay open."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Stops the thread, flushes and closes every vnode. Raises the first error after closing all."""
        self.stop()
        with self._lock:
            vnodes, self._vnodes = self._vnodes, {}
        errors: list[PenstockError] = []
        for vnode in vnodes.values():
            try:
                vnode.close()
            except PenstockError as error:
                errors.append(error)
        if errors:
            raise errors[0]


def _remove_tree(fs: Fs, directory: Path) -> None:
    for name in fs.list(directory):
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            _remove_tree(fs, path)
        else:
            fs.remove(path)
    fs.remove_dir(directory)
