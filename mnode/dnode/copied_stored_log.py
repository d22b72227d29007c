"""The log of a vnode or of the catalog, with its epochs, as nodes of a cluster copy it from each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from penstock.common.errors import InternalError, InvalidValueError
from penstock.common.fs import Fs
from penstock.mnode.catalog.catalog_copying import CatalogCopying
from penstock.mnode.cluster.cluster_messages import LogChunk
from penstock.mnode.cluster.log_epochs import NO_EPOCH, Epochs, EpochStart, added, cut_to, start_of
from penstock.mnode.cluster.stored_logs import LogBounds
from penstock.vnode.write.log_copying import LogCopying
from penstock.wal.copied_log import CopiedLog
from penstock.wal.copied_records import CopiedRecords
from penstock.wal.epoch_file import load_epochs, save_epochs

LogAndWhatItChanges = LogCopying | CatalogCopying
"""A log with what its records change, kept in step."""


class EpochList:
    """The list of epochs beside a log, which is durable before a record of an epoch is in it. Thread-safe."""

    def __init__(self, fs: Fs, directory: Path) -> None:
        """Raises CorruptionError."""
        self._fs = fs
        self._directory = directory
        self._lock = threading.Lock()
        self._epochs: Epochs = tuple(EpochStart(epoch, first) for epoch, first in load_epochs(fs, directory))

    @property
    def all(self) -> Epochs:
        return self._epochs

    def note(self, start: EpochStart, last: int) -> None:
        """Adds an epoch whose first record comes behind version `last`, the log's end.

        Raises StorageError; InternalError if a later epoch has records already, or records are missing.
        """
        with self._lock:
            if self._epochs and self._epochs[-1] == start:
                return
            known = cut_to(self._epochs, last)  # what a crash has left of a log that is shorter now
            if known and known[-1] == start:
                self._keep(known)
                return
            if start.first != last + 1:
                raise InternalError(f"{start} isn't the end of the log in {self._directory}, which is at {last}")
            self._keep(added(known, start))

    def cut(self, last: int) -> None:
        """Forgets epochs of a log that ends with version `last` now."""
        with self._lock:
            known = cut_to(self._epochs, last)
            if known != self._epochs:
                self._keep(known)

    def _keep(self, epochs: Epochs) -> None:
        save_epochs(self._fs, self._directory, [(one.epoch, one.first) for one in epochs])
        self._epochs = epochs


def read_chunk(log: CopiedLog, epochs: Epochs, after: int, size_max: int) -> LogChunk | None:
    """Returns records of one epoch and one segment behind a version; see `StoredLog.read`."""
    start = start_of(epochs, after + 1)
    last = min((one.first - 1 for one in epochs if one.first > after + 1), default=None)
    records = log.read(after, size_max, last)
    if records is None:
        return None
    return LogChunk(records.after, records.last, start, records.opens_segment, records.data)


def append_chunk(log: CopiedLog | LogAndWhatItChanges, epochs: EpochList, end: int, chunk: LogChunk) -> None:
    """Appends records and notes their epoch before; see `StoredLog.append`. `end`: the log's last version."""
    def note() -> None:
        known = cut_to(epochs.all, end)
        if (known[-1] if known else EpochStart(NO_EPOCH, 1)) == chunk.start:
            epochs.cut(end)
            return
        try:
            epochs.note(chunk.start, end)
        except InternalError as error:
            raise InvalidValueError(error.message) from error

    log.append(CopiedRecords(chunk.after, chunk.last, chunk.opens_segment, chunk.data), note)


class CopiedStoredLog:
    """A log with its epochs: a `StoredLog`."""

    def __init__(self, copying: LogAndWhatItChanges, directory: Path, fs: Fs,
                 on_parted: Callable[[int], None] = lambda version: None) -> None:
        """`directory`: the log's. `on_parted` does what `parted` is to do. Raises CorruptionError."""
        self.parted = on_parted
        self._copying = copying
        self._epochs = EpochList(fs, directory)

    def bounds(self) -> LogBounds:
        copying = self._copying
        return LogBounds(copying.copied.begin, copying.floor, copying.written_version, copying.synced_version)

    def epochs(self) -> Epochs:
        return cut_to(self._epochs.all, self._copying.written_version + 1)

    def note_epoch(self, start: EpochStart) -> None:
        if start.epoch != NO_EPOCH:
            self._epochs.note(start, self._copying.written_version)

    def read(self, after: int, size_max: int) -> LogChunk | None:
        return read_chunk(self._copying.copied, self._epochs.all, after, size_max)

    def append(self, chunk: LogChunk) -> None:
        append_chunk(self._copying, self._epochs, self._copying.written_version, chunk)

    def sync(self) -> None:
        self._copying.sync()

    def cut(self, version: int) -> int:
        count = self._copying.cut(version)
        # Behind the cut: a list that is too long for a while does no harm, one that is too short would.
        self._epochs.cut(version)
        return count

    def acknowledge(self, version: int) -> None:
        self._copying.acknowledge(version)
