"""The changes of the catalog as a log in the form of vnodes' logs, of which a cluster keeps copies: a record each."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.common.clock import Clock
from penstock.common.errors import CorruptionError, PenstockError
from penstock.common.fs import Fs
from penstock.wal.copied_log import CopiedLog
from penstock.wal.epoch_file import EPOCHS_NAME
from penstock.wal.log import WrittenLogFiles
from penstock.wal.reader import WalReader
from penstock.wal.record import MetaRecord
from penstock.wal.writer import WalOptions, WalWriter

_VGROUP = 0  # no vnode has it
_SEGMENT_BYTES = 16 << 20
_FIELD = "changes"


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

    def __init__(self, directory: Path, fs: Fs, clock: Clock) -> None:
        """Opens the log, creating it when missing."""
        self.directory = directory
        self._fs = fs
        #: the log itself
        self.writer = WalWriter.open(
            directory, WalOptions(_VGROUP, 2, _SEGMENT_BYTES), fs=fs, clock=clock, acknowledged=0)
        self._clock = clock
        #: copies of records, of it and for it
        self.copied = CopiedLog(self.writer, directory, fs, _VGROUP)

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
        self.copied.cut(0)
        self._fs.remove(self.directory / EPOCHS_NAME)
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
        raise CorruptionError(f"the log in {directory} has a record that makes no sense: {error}") from error
