"""The changes of the catalog as a log in the form of vnodes' logs, of which a cluster keeps copies: a record each."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.common.aside import set_aside
from penstock.common.clock import Clock
from penstock.common.errors import CorruptionError, PenstockError
from penstock.common.fs import Fs
from penstock.common.paths import DataPaths
from penstock.wal.copied_log import CopiedLog
from penstock.wal.epoch_file import EPOCHS_NAME
from penstock.wal.log import WrittenLogFiles
from penstock.wal.reader import WalReader
from penstock.wal.record import MetaRecord
from penstock.wal.retention import segment_infos
from penstock.wal.segment import list_segments, segment_name
from penstock.wal.writer import WalOptions, WalWriter

_VGROUP = 0  # no vnode has it
_FIELD = "changes"


@dataclass(frozen=True, slots=True)
class CatalogLogBounds:
    """Bytes of a segment, bytes of segments that are kept, and bytes that are kept at most while a node needs them."""

    segment: int = 16 << 20
    kept: int = 64 << 20
    needed_max: int = 1 << 30


@dataclass(frozen=True, slots=True)
class EntryChange:
    """An entry as it was stored before and is afterwards, sealed; None where there is none."""

    store: bytes
    key: bytes
    before: bytes | None
    after: bytes | None


class CatalogLog:
    """One record per transaction, on disk before the transaction is. Thread-safe as `WalWriter` is.

    Raises StorageError, CorruptionError.
    """

    def __init__(self, directory: Path, fs: Fs, clock: Clock, bounds: CatalogLogBounds | None = None) -> None:
        """Opens the log, creating it when missing. What was trimmed away had been acknowledged."""
        self.directory = directory
        self._fs = fs
        self._clock = clock
        self._bounds = bounds or CatalogLogBounds()
        self._open()

    def _open(self) -> None:
        self._fs.make_dirs(self.directory)
        first = min(list_segments(self._fs, self.directory), default=1)
        #: the log itself
        self.writer = WalWriter.open(self.directory, WalOptions(_VGROUP, 2, self._bounds.segment), fs=self._fs,
                                     clock=self._clock, acknowledged=first - 1)
        #: copies of records, of it and for it
        self.copied = CopiedLog(self.writer, self.directory, self._fs, _VGROUP)
        self._trimmed_at = 0

    def append(self, changes: Sequence[EntryChange]) -> int:
        """Writes the changes of a transaction; they are on disk for good on return. Returns their version."""
        if self.writer.refused is not None:
            self.writer.take_back()
            self.writer.reset()
        fields = [[one.store.decode(), one.key.hex(), _text(one.before), _text(one.after)] for one in changes]
        self.writer.enqueue_meta({_FIELD: fields}, self._clock.now_ms())
        self.writer.commit_all()
        return self.writer.written_version

    def begin_anew(self) -> None:
        """Takes away, and keeps beside, all that there is."""
        if self.copied.begin > 1:  # it can't be cut to its beginning, which is gone
            self.writer.close()
            set_aside(self._fs, DataPaths(self.directory.parent), self.directory)
            self._open()
            return
        self.copied.cut(0)
        self._fs.remove(self.directory / EPOCHS_NAME)
        self._fs.fsync_dir(self.directory)

    def trim(self, version: int, needed_from: int | None) -> None:
        """Removes the oldest segments while the log is larger than is kept: those that have nothing behind `version`,
        up to which all is part of the catalog for good.

        `needed_from`: the first version that another node still needs; None: none does.
        """
        segment = self.writer.tail.segment
        if segment == self._trimmed_at:
            return  # nothing has been added that could be too much
        segments = segment_infos(self._fs, self.directory, self.writer.written_version)
        size, removed = sum(one.size for one in segments), False
        for one in segments[:-1]:
            needed = needed_from is not None and one.last_version >= needed_from
            if size <= self._bounds.kept:
                self._trimmed_at = segment
                break
            if one.last_version > version or (needed and size <= self._bounds.needed_max):
                break
            self._fs.remove(self.directory / segment_name(one.first_version))
            size, removed = size - one.size, True
        if removed:
            self._fs.fsync_dir(self.directory)

    def changes_behind(self, version: int) -> Iterator[tuple[int, list[EntryChange]]]:
        """Yields what was written behind a version, oldest first, with the versions."""
        reader = WalReader(WrittenLogFiles(self.directory, self._fs, lambda: self.writer.written_end), version + 1)
        try:
            while records := reader.read():
                for record in records:
                    yield record.version, _changes_of(record, self.directory)
        finally:
            reader.close()

    def follow(self, reason: PenstockError) -> None:
        """From now on only copies are taken: transactions raise `reason`."""
        self.writer.following = reason
        self.writer.set_level(1)

    def lead(self) -> None:
        """From now on transactions are written here; all that was copied is on disk for good."""
        self.writer.set_level(2)
        self.writer.following = None

    def close(self) -> None:
        self.writer.close()


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _data(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _changes_of(record: object, directory: Path) -> list[EntryChange]:
    try:
        if not isinstance(record, MetaRecord):
            raise TypeError(f"{type(record).__name__} is no change of the catalog")
        return [EntryChange(store.encode(), bytes.fromhex(key), _data(before), _data(after))
                for store, key, before, after in record.body[_FIELD]]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptionError(f"the log in {directory} has an invalid record: {error}") from error
