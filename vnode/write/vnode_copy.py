"""Files on their way to another node, in pieces; a vnode's as of one moment, while the vnode goes on being written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.common.errors import InvalidValueError, NotFoundError, StorageError
from penstock.common.fs import AppendFile, Fs
from penstock.common.paths import is_inner
from penstock.vnode.store import manifest as manifests
from penstock.vnode.store.manifest import SCHEMA_FILE
from penstock.vnode.store.table_state import PartHandle
from penstock.vnode.store.table_store import TableStore
from penstock.wal.epoch_file import EPOCHS_NAME
from penstock.wal.record import crc32c
from penstock.wal.segment import Tail, list_segments, segment_name

VNODE_FOLDERS = ("store", "wal")
_MANIFEST = f"store/{manifests.NAME}"


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """A file of the vnode, by its path below the vnode's folder, and how many bytes of it belong to the copy."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class CopiedPiece:
    """Bytes of the file at a place of the list, with their CRC-32C."""

    file: int
    offset: int
    data: bytes
    checksum: int


def next_piece(fs: Fs, folder: Path, files: Sequence[CopiedFile], contents: Mapping[str, bytes], file: int, offset: int,
               size_max: int) -> CopiedPiece:
    """Returns the next bytes of a file, which is in `contents` by its name or below `folder`.

    Raises NotFoundError if it is gone: then another copy must be begun. StorageError.
    """
    copied = files[file]
    size = min(size_max, copied.size - offset)
    data = contents.get(copied.name, b"")[offset:offset + size]
    if copied.name not in contents:
        try:
            source = fs.open_read(folder / copied.name)
        except FileNotFoundError as error:
            raise NotFoundError(f"{copied.name} was removed while it was copied", hint="copy it anew") from error
        try:
            data = source.read(offset, size)
        finally:
            source.close()
    if len(data) < size:
        raise StorageError(f"{copied.name} has become shorter while it was copied")
    return CopiedPiece(file, offset, data, crc32c(data))


def log_files(fs: Fs, directory: Path, tail: Tail, version: int, folder: str) -> list[CopiedFile]:
    """Returns the segments of a log that ends with `tail`, from the one on that has what is behind a version.

    `folder`: the one that they have in the copy.
    """
    segments = [first for first in list_segments(fs, directory) if first <= tail.segment]
    begin = max((first for first in segments if first <= version + 1), default=0)
    return [CopiedFile(f"{folder}/{segment_name(first)}",
                       tail.offset if first == tail.segment else fs.size(directory / segment_name(first)))
            for first in segments if first >= begin]


class VnodeCopySource:
    """A vnode as of one moment. What it consists of stays readable until `close`, but for small files: they come first.

    Methods raise StorageError.
    """

    def __init__(self, store: TableStore, owner: str) -> None:
        """`owner` names the pin that keeps log and row versions meanwhile; one copy at a time has it."""
        self._store = store
        self._owner = owner
        self._contents: dict[str, bytes] = {}
        with store.manifest_lock, store.lock:
            store.require_writable()
            manifest = store.manifest()
            store.set_pin(owner, store.persisted + 1)
            self._handles: tuple[PartHandle, ...] = tuple(
                part for table in store.tables.values() for part in table.parts)
            self._contents[_MANIFEST] = manifests.encode(manifest)
            small = [store.files.last_times(table.last_times.name) for table in store.tables.values()
                     if table.last_times is not None]
            small += [folder(uid) / SCHEMA_FILE for uid in store.tables
                      for folder in (store.files.parts, store.files.tombstones)]
            files = [CopiedFile(self._name(path), store.fs.size(path)) for path in small]
            files += [CopiedFile(self._name(part.path), part.info.size) for part in self._handles]
            files += self._log_files()
        #: in the order in which they are to be read; the MANIFEST, last, makes the others valid
        self.files = (*files, CopiedFile(_MANIFEST, len(self._contents[_MANIFEST])))

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._store.directory))

    def _log_files(self) -> list[CopiedFile]:
        """Returns the segments with what the parts don't have, or pins keep, and the epochs of the log."""
        store, log = self._store, self._store.directory / "wal"
        needed = min([store.persisted + 1, *store.pins.values()])
        files = log_files(store.fs, log, store.wal.tail, needed - 1, "wal")
        if EPOCHS_NAME in store.fs.list(log):
            self._contents[f"wal/{EPOCHS_NAME}"] = data = store.fs.read(log / EPOCHS_NAME)
            files.append(CopiedFile(f"wal/{EPOCHS_NAME}", len(data)))
        return files

    def read(self, file: int, offset: int, size_max: int) -> CopiedPiece:
        """Returns the next bytes of a file; see `next_piece`."""
        return next_piece(self._store.fs, self._store.directory, self.files, self._contents, file, offset, size_max)

    def close(self) -> None:
        """Lets the files go."""
        self._handles = ()
        self._store.release_pin(self._owner)


def copied_horizon(folder: Path, vgroup_id: int, fs: Fs) -> int:
    """Returns the oldest version from which on a finished copy has the log, and what its rows were.

    Raises CorruptionError, StorageError.
    """
    manifest = manifests.load(fs, folder / "store", vgroup_id)
    if manifest is None:
        raise InvalidValueError(f"{folder} has no MANIFEST: the copy isn't finished")
    first = min(list_segments(fs, folder / "wal"), default=1)
    return max(min([manifest.persisted_version, *manifest.pins.values()]), first - 1)


class ReceivedCopy:
    """A folder that files are written to as their pieces come, in the order of the list; a vnode's, or the catalog's.

    Methods raise StorageError.
    """

    def __init__(self, folder: Path, files: tuple[CopiedFile, ...], fs: Fs, folders: Sequence[str] = VNODE_FOLDERS
                 ) -> None:
        """`folder` is new; `folders` are those in it that the files must be in. Raises InvalidValueError."""
        for file in files:
            if not is_inner(file.name) or file.name.partition("/")[0] not in folders or file.size < 0:
                raise InvalidValueError(f"no file of this copy may be called {file.name[:100]!r}")
        if folders is VNODE_FOLDERS and _MANIFEST not in [file.name for file in files][-1:]:
            raise InvalidValueError("the MANIFEST doesn't come last")
        self._folders = folders
        self._folder = folder
        self._files = files
        self._fs = fs
        self._open: AppendFile | None = None
        self._manifest = b""
        #: which file's which byte is wanted next; behind the last file when all is there
        self.next = (0, 0)
        self._pass_empty()

    @property
    def is_whole(self) -> bool:
        return self.next[0] == len(self._files)

    def write(self, piece: CopiedPiece) -> None:
        """Takes the piece that is wanted next. Raises InvalidValueError for any other, and for damaged ones.

        After a StorageError the whole file is wanted again.
        """
        file, offset = self.next
        if self.is_whole or (piece.file, piece.offset) != self.next or not piece.data:
            raise InvalidValueError(f"byte {piece.offset} of file {piece.file} comes, but {offset} of {file} is wanted")
        wanted = self._files[file]
        if crc32c(piece.data) != piece.checksum or offset + len(piece.data) > wanted.size:
            raise InvalidValueError(f"a piece of {wanted.name} was damaged on its way")
        done = offset + len(piece.data) == wanted.size
        if wanted.name == _MANIFEST:
            self._manifest += piece.data
        else:
            try:
                self._append(self._folder / wanted.name, piece.data, done)
            except StorageError:
                self.close()
                self.next = file, 0
                raise
        self.next = (file + 1, 0) if done else (file, offset + len(piece.data))
        self._pass_empty()

    def _append(self, path: Path, data: bytes, done: bool) -> None:
        if self._open is None:
            self._fs.make_dirs(path.parent)
            self._open = self._fs.open_append(path)
            self._open.truncate(0)
        self._open.append(data)
        if done:
            self._open.sync()
            self.close()

    def _pass_empty(self) -> None:
        while not self.is_whole and self._files[self.next[0]].size == 0:
            self.next = self.next[0] + 1, 0

    def finish(self) -> None:
        """Makes the folder durable: all files are there. Raises InvalidValueError if they aren't."""
        if not self.is_whole:
            raise InvalidValueError(f"{len(self._files) - self.next[0]} files are missing")
        for name in self._folders:
            self._fs.make_dirs(self._folder / name)
        folders = {self._folder / file.name for file in self._files}
        for folder in sorted({parent for path in folders for parent in path.parents
                              if parent == self._folder or self._folder in parent.parents}, reverse=True):
            self._fs.fsync_dir(folder)
        if self._manifest:
            self._fs.write_atomic(self._folder / _MANIFEST, self._manifest)

    def close(self) -> None:
        """Closes the file that is being written."""
        if self._open is not None:
            self._open.close()
            self._open = None
