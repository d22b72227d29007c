"""Streams that are put together beside their place, from a copy elsewhere: whole, or nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from penstock.common.errors import StorageError
from penstock.common.fs import Fs
from penstock.common.logging import logger
from penstock.common.paths import DataPaths, numbered
from penstock.mnode.checkpoints.commit_records import CommitRecord, CommitRecords

_log = logger(__name__)


class StagedStreams:
    """The folders of streams below `scratch/whole`. Methods raise StorageError."""

    def __init__(self, paths: DataPaths, fs: Fs) -> None:
        self._paths = paths
        self._staged = paths.staged
        self._fs = fs

    def clean(self) -> None:
        """Gives a stream that is whole here its place if that is empty: a crash came in between."""
        for stream_id in numbered(self._staged.streams, 16):
            is_whole = any(one.record is not None for one in CommitRecords(self._staged, self._fs).all(stream_id))
            if is_whole and not self._paths.stream(stream_id).exists():
                _log.warning("stream %x, which was set aside, gets the state that was taken from a copy", stream_id)
                self.put_in_place(stream_id)

    def begin(self, stream_id: int, size: int, what: str) -> None:
        """Begins anew with a stream whose state has `size` bytes."""
        self.give_up(stream_id)
        self._fs.make_dirs(self._staged.checkpoints(stream_id))
        free = shutil.disk_usage(self._staged.root).free
        if size > free:
            raise StorageError(f"{what} has {size} bytes, of which {free} fit here", hint="make room")

    def file(self, stream_id: int, task: str) -> Path:
        """Returns where the state of a task goes, in a folder that is there."""
        path = self._staged.state(stream_id, task) / "data.mdb"
        self._fs.make_dirs(path.parent)
        return path

    def finish(self, stream_id: int, tasks: Iterable[str], records: Sequence[CommitRecord]) -> None:
        """Makes a stream whole, whose files are synced: its commit records, oldest first, come last."""
        made = [self._staged.checkpoints(stream_id), *(self._staged.state(stream_id, task) for task in tasks)]
        for directory in {above for folder in made for above in (folder, *folder.parents)}:
            if directory.is_relative_to(self._paths.root):
                self._fs.fsync_dir(directory)
        kept = CommitRecords(self._staged, self._fs, len(records))
        for record in records:
            kept.write(record)

    def put_in_place(self, stream_id: int) -> None:
        """Gives a stream that is whole, and has no folder, its place."""
        self._fs.make_dirs(self._paths.streams)
        self._fs.rename(self._staged.stream(stream_id), self._paths.stream(stream_id))
        self._fs.fsync_dir(self._paths.streams)
        self._fs.fsync_dir(self._staged.streams)

    def replace(self, stream_id: int) -> None:
        """Does so with one that has a folder; `forget_replaced` removes that."""
        self.forget_replaced(stream_id)
        if self._paths.stream(stream_id).exists():
            self._fs.rename(self._paths.stream(stream_id), self._replaced(stream_id))
        self.put_in_place(stream_id)

    def forget_replaced(self, stream_id: int) -> None:
        """Removes what a stream had before, which may take a while."""
        shutil.rmtree(self._replaced(stream_id), ignore_errors=True)

    def _replaced(self, stream_id: int) -> Path:
        return self._paths.scratch / f"replaced-{stream_id:x}"

    def give_up(self, stream_id: int) -> None:
        """Removes what is here of a stream."""
        shutil.rmtree(self._staged.stream(stream_id), ignore_errors=True)
