"""The files of a vnode's table store: names for new ones, and those that are no longer valid until they are deleted."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.common.clock import Clock
from penstock.common.errors import CorruptionError
from penstock.common.fs import Fs
from penstock.vnode.store.manifest import SCHEMA_FILE, LastTimes, Manifest, PartInfo, unknown_tables
from penstock.vnode.store.table_state import PartHandle, TableState

_KINDS = ("parts", "tombstones")  # of each of them a table has a folder


@dataclass(frozen=True, slots=True)
class _ReplacedFile:
    """A file that is no longer valid, but may be open in a reader of another process."""

    path: Path
    since: float
    handle: weakref.ReferenceType[PartHandle] | None
    table_uid: int
    info: PartInfo | None


class StoreFiles:
    """What is in the folder of a table store, except for the MANIFEST.

    Guarded by the vnode's `lock`. What deletes files needs the `manifest_lock`, too: no file goes that a MANIFEST
    which is being written lists.
    """

    def __init__(self, folder: Path, manifest: Manifest, *, fs: Fs, clock: Clock) -> None:
        self._folder = folder
        self._fs = fs
        self._clock = clock
        self._replaced: list[_ReplacedFile] = []
        #: the number of the next file
        self.next_number = manifest.next_file
        #: tables that were dropped and still have files
        self.dropped: set[int] = set(manifest.dropped)
        #: tables that the MANIFEST doesn't know and nobody dropped, but which have files: they stay as they are
        self.unknown_tables: list[int] = []

    def parts(self, table_uid: int) -> Path:
        """Returns the folder of a table's parts."""
        return self._folder / "parts" / str(table_uid)

    def tombstones(self, table_uid: int) -> Path:
        """Returns the folder in which readers of other processes find the deletes of a table."""
        return self._folder / "tombstones" / str(table_uid)

    def last_times(self, name: str) -> Path:
        """Returns the path of a file of newest times."""
        return self._folder / "last" / name

    def new_name(self) -> str:
        """Returns a name that no file of the store has had."""
        name = f"{self.next_number:012d}.parquet"
        self.next_number += 1
        return name

    # What is there when the vnode is opened

    def adopt(self, manifest: Manifest) -> None:
        """Checks that every part is there, and lists left-over files for deletion. Raises CorruptionError."""
        valid = self._valid(manifest)
        for path, size in valid.items():
            try:
                found = self._fs.size(path)
            except FileNotFoundError as error:
                raise CorruptionError(f"{path} is missing, but the MANIFEST lists it") from error
            if size not in (None, found):
                raise CorruptionError(f"{path} has {found} bytes instead of {size}")
        self.unknown_tables = unknown_tables(self._fs, self._folder, manifest)
        self._list_left_over(valid, manifest)
        for table_uid in manifest.dropped:
            self._forget_dropped(table_uid)
        for name in self._fs.list(self._folder):
            if name.endswith(".tmp"):
                self._fs.remove(self._folder / name)
        for name in self._fs.list(self._folder / "last"):
            if self.last_times(name) not in valid:
                self._fs.remove(self.last_times(name))

    def _valid(self, manifest: Manifest) -> dict[Path, int | None]:
        """Returns the files that the MANIFEST lists, with their sizes where it has them."""
        valid: dict[Path, int | None] = {}
        for table in manifest.tables.values():
            valid.update({self.parts(table.table_uid) / part.name: part.size for part in table.parts})
            if table.last_times is not None:
                valid[self.last_times(table.last_times.name)] = None
        return valid

    def _list_left_over(self, valid: Container[Path], manifest: Manifest) -> None:
        now = self._clock.monotonic()
        for kind in _KINDS:
            for uid in filter(str.isdigit, self._fs.list(self._folder / kind)):
                if int(uid) in self.unknown_tables:
                    continue
                for name in self._fs.list(self._folder / kind / uid):
                    path = self._folder / kind / uid / name
                    if name.startswith("0") and path.suffix == ".parquet":
                        self.next_number = max(self.next_number, int(path.stem) + 1)
                    if path not in valid and name != SCHEMA_FILE:
                        self._replaced.append(_ReplacedFile(path, now, None, int(uid), None))
                if int(uid) not in manifest.tables:
                    self._remove_folders(int(uid))

    # What isn't valid any more

    def replace_parts(self, table_uid: int, old: Sequence[PartHandle], new: Sequence[PartHandle] = ()) -> None:
        """Notes parts that no MANIFEST will list again, unless they are among the new ones."""
        now = self._clock.monotonic()
        self._replaced.extend(_ReplacedFile(part.path, now, weakref.ref(part), table_uid, part.info)
                              for part in old if part not in new)

    def replace_last_times(self, table_uid: int, times: LastTimes | None) -> None:
        """Notes a file of newest times that isn't valid any more; no reader of another process has it."""
        if times is not None:
            self._replaced.append(_ReplacedFile(self.last_times(times.name), -math.inf, None, table_uid, None))

    def replace_tombstones(self, table_uid: int, name: str) -> None:
        """Notes a file of deletes that isn't valid any more."""
        path = self.tombstones(table_uid) / name
        self._replaced.append(_ReplacedFile(path, self._clock.monotonic(), None, table_uid, None))

    def replace_all(self, table: TableState) -> None:
        """Notes all files of a table that was dropped."""
        self.replace_parts(table.uid, table.parts)
        now = self._clock.monotonic()
        for folder in self._folders(table.uid):
            known = {entry.path for entry in self._replaced}
            self._replaced.extend(_ReplacedFile(folder / name, now, None, table.uid, None)
                                  for name in self._fs.list(folder) if folder / name not in known)
        self.replace_last_times(table.uid, table.last_times)

    def replaced_parts(self, table_uid: int) -> list[PartInfo] | None:
        """Returns the parts of a table that aren't valid, but are still there; None if some are unknown."""
        entries = [entry for entry in self._replaced if entry.table_uid == table_uid]
        if any(entry.info is None and entry.path.parent.parent.name == "parts" for entry in entries):
            return None
        return [entry.info for entry in entries if entry.info is not None]

    def delete_replaced(self, grace_s: float, tables: Container[int], forget: Callable[[Path], None]) -> None:
        """Deletes files that were replaced `grace_s` ago and that nobody in this process reads.

        `tables`: those that the vnode knows; of others the folders go, too. `forget` is called for each file before.
        """
        now = self._clock.monotonic()
        kept = []
        for entry in self._replaced:
            held = entry.handle is not None and entry.handle() is not None
            if held or now - entry.since < grace_s:
                kept.append(entry)
                continue
            forget(entry.path)
            self._fs.remove(entry.path)
        gone = {entry.table_uid for entry in self._replaced} - {entry.table_uid for entry in kept}
        self._replaced = kept
        for uid in gone:
            if uid not in tables:
                self._remove_folders(uid)

    def _remove_folders(self, table_uid: int) -> None:
        """Removes the folders of a table that is gone, with the files of its schema if a crash has left them."""
        for folder in self._folders(table_uid):
            if self._fs.list(folder) == [SCHEMA_FILE]:
                self._fs.remove(folder / SCHEMA_FILE)
            if not self._fs.list(folder):
                self._fs.remove_dir(folder)
        self._forget_dropped(table_uid)

    def _forget_dropped(self, table_uid: int) -> None:
        """Lets the next MANIFEST forget a dropped table that has no files any more."""
        if not any(self._fs.list(folder) for folder in self._folders(table_uid)):
            self.dropped.discard(table_uid)

    def _folders(self, table_uid: int) -> Iterator[Path]:
        return (self._folder / kind / str(table_uid) for kind in _KINDS)
