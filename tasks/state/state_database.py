"""The LMDB environment of one task's state: databases, transactions, and the checksum that each value carries."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c
import lmdb

from penstock.common.errors import CheckpointDamagedError, CorruptionError, StorageError
from penstock.common.fs import shortage
from penstock.common.private import FILE_MODE, make_private

_LAYERS_MAX = 512
_BASE = b"base"
_META = b"meta"
_CHECKSUM = struct.Struct("<I")
_NUMBER = struct.Struct("<Q")


class StateDatabase:
    """`meta` and `base` are the databases that are always there, beside those of deltas.

    `writes`: how many transactions have written.
    """

    def __init__(self, directory: Path, map_bytes: int, *, readonly: bool = False) -> None:
        """Opens or makes it. `readonly`: nothing of it is changed, and nobody else may write it meanwhile.

        Raises CheckpointDamagedError, StorageError.
        """
        self._directory = directory
        if not readonly:
            make_private(directory)
        try:
            self._env = lmdb.open(
                str(directory), map_size=map_bytes, max_dbs=_LAYERS_MAX, subdir=True, max_readers=16, readahead=False,
                mode=FILE_MODE, readonly=readonly, lock=not readonly)
            if not readonly:
                self._env.reader_check()
            self.meta = self._env.open_db(_META)
            self.base = self._env.open_db(_BASE)
        except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.VersionMismatchError) as error:
            raise CheckpointDamagedError(f"the task state in {directory} is damaged: {error}") from error
        except lmdb.Error as error:
            raise StorageError(f"cannot open the task state in {directory}: {error}") from error
        self._deltas: dict[int, Any] = {}
        self._absent: set[int] = set()
        self.writes = 0

    def close(self) -> None:
        self._env.close()

    @property
    def page_bytes(self) -> int:
        return int(self._env.stat()["psize"])

    def delta(self, sequence: int, *, create: bool) -> Any:
        """Returns the database of a delta, None if there is none."""
        if sequence in self._absent and not create:
            return None
        if sequence not in self._deltas:
            try:
                self._deltas[sequence] = self._env.open_db(f"d{sequence:016x}".encode(), create=create)
            except lmdb.NotFoundError:
                self._absent.add(sequence)  # looking for it again would take as long; nobody else makes it
                return None
            except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError) as error:
                raise CheckpointDamagedError(f"the task state in {self._directory} is damaged: {error}") from error
            self._absent.discard(sequence)
        return self._deltas.get(sequence)

    def drop(self, transaction: Any, sequence: int) -> None:
        """Removes the database of a delta that was opened."""
        handle = self._deltas.pop(sequence, None)
        if handle is not None:
            transaction.drop(handle, delete=True)

    @contextmanager
    def reading(self, *, buffers: bool = False) -> Iterator[Any]:
        """A transaction that reads. `buffers`: keys and values aren't copied, and end then. Raises CorruptionError."""
        try:
            with (self._env.begin(buffers=True) if buffers else self._env.begin()) as transaction:
                yield transaction
        except lmdb.Error as error:
            raise CorruptionError(f"the task state in {self._directory} is damaged: {error}") from error

    @contextmanager
    def writing(self) -> Iterator[Any]:
        """A synced transaction that writes. Raises StorageError."""
        try:
            with self._env.begin(write=True) as transaction:
                yield transaction
        except lmdb.MapFullError as error:
            raise StorageError(f"the task state in {self._directory} is full",
                               hint="raise stateMapSize in the configuration") from error
        except lmdb.Error as error:
            raise StorageError(f"cannot write the task state in {self._directory}: {error}{shortage(self._directory)}",
                               hint="check free space and the disk") from error
        finally:
            self.writes += 1

    def checked(self, key: bytes, stored: bytes) -> bytes:
        """Returns the value of what `with_checksum` made. Raises CorruptionError."""
        value = stored[_CHECKSUM.size:]
        if len(stored) < _CHECKSUM.size or _CHECKSUM.unpack_from(stored)[0] != google_crc32c.value(value):
            raise CorruptionError(f"the task state in {self._directory} is damaged at key {key.hex()}")
        return value

    def number(self, name: bytes) -> int | None:
        """Returns a number that was noted for whoever opens this next."""
        with self.reading() as transaction:
            stored = transaction.get(name, db=self.meta)
        return None if stored is None else int(_NUMBER.unpack(self.checked(name, bytes(stored)))[0])

    def put_number(self, name: bytes, number: int) -> None:
        """Notes a number durably."""
        with self.writing() as transaction:
            transaction.put(name, with_checksum(_NUMBER.pack(number)), db=self.meta)


def with_checksum(value: bytes) -> bytes:
    """Returns a value as it is stored."""
    return _CHECKSUM.pack(google_crc32c.value(value)) + value
