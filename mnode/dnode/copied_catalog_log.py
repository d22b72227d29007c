"""The log of the catalog's changes, as the cluster keeps copies of it: log 0."""

from __future__ import annotations

from penstock.common.fs import Fs
from penstock.mnode.catalog.catalog_copying import CatalogCopying
from penstock.mnode.cluster.cluster_messages import LogChunk
from penstock.mnode.cluster.log_epochs import NO_EPOCH, Epochs, EpochStart, cut_to
from penstock.mnode.cluster.stored_logs import LogBounds
from penstock.mnode.dnode.copied_vnode_log import EpochList, append_chunk, read_chunk


class CopiedCatalogLog:
    """The catalog's log with its epochs: a `StoredLog`."""

    def __init__(self, copying: CatalogCopying, fs: Fs) -> None:
        """Raises CorruptionError."""
        self._copying = copying
        self._epochs = EpochList(fs, copying.log.directory)

    @property
    def _written(self) -> int:
        return self._copying.log.writer.written_version

    def bounds(self) -> LogBounds:
        log = self._copying.log
        return LogBounds(log.copied.begin, self._copying.floor, self._written, log.writer.synced_version)

    def epochs(self) -> Epochs:
        return cut_to(self._epochs.all, self._written + 1)

    def note_epoch(self, start: EpochStart) -> None:
        if start.epoch != NO_EPOCH:
            self._epochs.note(start, self._written)

    def read(self, after: int, size_max: int) -> LogChunk | None:
        return read_chunk(self._copying.log.copied, self._epochs.all, after, size_max)

    def append(self, chunk: LogChunk) -> None:
        append_chunk(self._copying, self._epochs, self._written, chunk)

    def sync(self) -> None:
        self._copying.sync()

    def cut(self, version: int) -> int:
        count = self._copying.cut(version)
        self._epochs.cut(version)
        return count

    def acknowledge(self, version: int) -> None:
        self._copying.acknowledge(version)
