"""Copies of checkpoints that nodes of a cluster give to each other: what they consist of, piece by piece.

A copy is all that a stream, or an ingest, has below `streams/`: its commit records, and the states of its tasks as of
the newest of them. The manifest has the checksum of each piece of 1 MiB; pieces that a standby's own state has already
don't travel. The copy takes the place of what a standby had when all of it is there, and not before.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from penstock.common.errors import CorruptionError, InvalidValueError, NotFoundError, PenstockError
from penstock.common.fs import AppendFile, Fs
from penstock.common.logging import logger
from penstock.common.paths import DataPaths, numbered
from penstock.mnode.checkpoints.checkpoint_manifest import (
    PIECE_BYTES,
    CopyManifest,
    StateFile,
    copy_order,
    pieces_of,
)
from penstock.mnode.checkpoints.commit_records import CommitRecord, CommitRecords
from penstock.mnode.checkpoints.staged_streams import StagedStreams
from penstock.mnode.cluster.cluster_messages import CheckpointCopy, CheckpointName
from penstock.tasks.state.state_copy import copy_states

_log = logger(__name__)


#: Epoch, by log the versions that must be here, and what is to be done then.
Put = Callable[[int | None, Sequence[tuple[int, int]], Callable[[], None]], None]


def name_of(record: CommitRecord) -> CheckpointName:
    """Returns by what nodes tell this checkpoint of a stream from others."""
    return CheckpointName(record.stream_id, record.attempt, record.checkpoint_id)


def copy_of(manifest: CopyManifest) -> CheckpointCopy:
    """Returns what the copy is called, and which versions it has."""
    return CheckpointCopy(name_of(manifest.record), manifest.record.versions)


class CheckpointsToGive:
    """The active's side: copies are made of checkpoints that were offered, and read piece by piece. Thread-safe."""

    def __init__(self, paths: DataPaths, fs: Fs, records: CommitRecords, *, gives: bool) -> None:
        """`gives`: whether there are other nodes."""
        self._gives = gives
        self._paths = paths
        self._folder = paths.scratch / "given"
        self._fs = fs
        self._records = records
        self._lock = threading.Lock()
        self._news: set[int] = set()
        self._copying: dict[int, frozenset[int]] = {}
        self._made: dict[CheckpointName, CopyManifest] = {}

    def clear(self) -> None:
        """Removes all copies: a tenure begins, or has ended."""
        with self._lock:
            self._made.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def offer(self, stream_id: int) -> None:
        """A stream has a new checkpoint. There is nothing to be done where there are no other nodes."""
        if not self._gives:
            return
        with self._lock:
            self._news.add(stream_id)

    def news(self) -> frozenset[int]:
        """Returns the streams whose newest checkpoint has not been copied."""
        with self._lock:
            return frozenset(self._news)

    def held(self, stream_id: int) -> frozenset[int]:
        """Returns the checkpoints that must stay while they are copied."""
        return self._copying.get(stream_id, frozenset())

    def with_checkpoints(self) -> list[int]:
        """Returns the streams that have a commit record here."""
        return [stream_id for stream_id in numbered(self._paths.streams, 16) if self._records.all(stream_id)]

    def make(self, stream_ids: Iterable[int]) -> tuple[list[CheckpointCopy], dict[int, str]]:
        """Copies the newest checkpoints of streams; returns the copies, and by stream why there is none.

        Each takes the place of the copy that was made of its stream before. What isn't copied, also since this raises
        something, stays among the `news`.
        """
        with self._lock:
            self._news.difference_update(stream_ids)
        found: list[tuple[list[CommitRecord], Path]] = []
        for stream_id in stream_ids:
            records = [one.record for one in reversed(self._records.all(stream_id)) if one.record is not None]
            if records:
                self._copying[stream_id] = frozenset(record.checkpoint_id for record in records)
                found.append((records, self._folder_of(name_of(records[-1]))))
        lacking = {records[-1].stream_id for records, _ in found}
        try:
            copies, failed = self._copy(found)
            lacking = set(failed)
            return copies, failed
        finally:
            with self._lock:
                self._news |= lacking
            for records, _ in found:
                self._copying.pop(records[-1].stream_id, None)

    def _copy(self, found: Sequence[tuple[list[CommitRecord], Path]]) -> tuple[list[CheckpointCopy], dict[int, str]]:
        orders = []
        for records, folder in found:
            shutil.rmtree(folder, ignore_errors=True)
            orders.append(copy_order(self._paths, records[-1], folder))
        copies, failed = [], {}
        for (records, folder), problem in zip(found, copy_states(orders) if orders else (), strict=True):
            stream_id = records[-1].stream_id
            if problem is not None:
                failed[stream_id] = f"checkpoint {records[-1].checkpoint_id}: {problem}"
                shutil.rmtree(folder, ignore_errors=True)
                continue
            manifest = CopyManifest(tuple(records), tuple(
                StateFile.of(part.task, folder / part.task / "data.mdb") for part in records[-1].tasks))
            with self._lock:
                before = [name for name in self._made if name.stream == stream_id]
                self._made[name_of(records[-1])] = manifest
            self._remove(name for name in before if name != name_of(records[-1]))
            copies.append(copy_of(manifest))
        return copies, failed

    def manifest(self, name: CheckpointName) -> bytes:
        """Raises NotFoundError if there is no such copy (any more)."""
        return self._find(name).encode()

    def piece(self, name: CheckpointName, number: int) -> bytes:
        """Raises NotFoundError, StorageError."""
        for file in self._find(name).files:
            if number < len(file.pieces):
                path = self._folder_of(name) / file.task / "data.mdb"
                try:
                    source = self._fs.open_read(path)
                except FileNotFoundError as error:
                    raise NotFoundError("the copy was removed just now") from error
                try:
                    return source.read(number * PIECE_BYTES, PIECE_BYTES)
                finally:
                    source.close()
            number -= len(file.pieces)
        raise NotFoundError("the copy has fewer pieces")

    def keep_only(self, stream_ids: Collection[int]) -> None:
        """Removes copies of streams that were dropped."""
        with self._lock:
            self._news.intersection_update(stream_ids)
            gone = [name for name in self._made if name.stream not in stream_ids]
        self._remove(gone)

    def _remove(self, names: Iterable[CheckpointName]) -> None:
        for name in names:
            with self._lock:
                self._made.pop(name, None)
            shutil.rmtree(self._folder_of(name), ignore_errors=True)

    def _find(self, name: CheckpointName) -> CopyManifest:
        manifest = self._made.get(name)
        if manifest is None:
            raise NotFoundError(f"checkpoint {name.checkpoint} of stream {name.stream:x} isn't offered any more")
        return manifest

    def _folder_of(self, name: CheckpointName) -> Path:
        return self._folder / f"{name.stream:x}-{name.attempt}-{name.checkpoint}"


class CheckpointShelf:
    """A standby's side: implements `HeldCheckpoints` in the data directory. Called by one thread."""

    def __init__(self, paths: DataPaths, fs: Fs, records: CommitRecords, put: Put,
                 moved: Callable[[int, Mapping[int, int]], None]) -> None:
        """`put` has something done while this node follows in an epoch and logs go on from these versions, or raises
        UnavailableError. `moved` is told of each stream that has other checkpoints now, and by vgroup, from which
        version on they need the log.
        """
        self._paths = paths
        self._fs = fs
        self._records = records
        self._staged = StagedStreams(paths, fs)
        self._put = put
        self._moved = moved
        self._held: dict[int, CheckpointCopy] | None = None
        self._parted = 0
        self._held_at = -1
        self._coming: _ComingCopy | None = None

    def held(self) -> Mapping[int, CheckpointCopy]:
        """Returns, by stream, what is there whole."""
        if self._held is None or self._held_at != self._parted:
            self._held_at = self._parted
            self._staged.clean()
            found = (self._newest(stream_id) for stream_id in numbered(self._paths.streams, 16))
            self._held = {copy.name.stream: copy for copy in found if copy is not None}
        return self._held

    def begin(self, copy: CheckpointCopy, manifest: bytes) -> Sequence[int]:
        """Begins a copy; returns the numbers of the pieces that aren't here already. Raises CorruptionError."""
        self.give_up()
        stream_id = copy.name.stream
        what = f"the copy of checkpoint {copy.name.checkpoint} of stream {stream_id:x}"
        decoded = CopyManifest.decode(manifest, stream_id, copy.name.checkpoint, what)
        if name_of(decoded.record) != copy.name:
            raise CorruptionError(f"{what} is of another attempt")
        self._staged.begin(stream_id, decoded.size, what)
        mine = {file.task: self._paths.state(stream_id, file.task) / "data.mdb" for file in decoded.files}
        self._coming = _ComingCopy(decoded, self._staged, self._fs, mine)
        return self._coming.wanted

    def write(self, number: int, data: bytes) -> None:
        """Takes the piece that is wanted next. Raises InvalidValueError if it isn't that."""
        if self._coming is None:
            raise InvalidValueError("no copy is under way")
        self._coming.write(number, data)

    def finish(self, epoch: int) -> None:
        """Has the copy take the place of what the stream had."""
        coming, self._coming = self._coming, None
        if coming is None:
            raise InvalidValueError("no copy is under way")
        coming.finish()
        copy = copy_of(coming.manifest)
        stream_id = copy.name.stream

        def replace() -> None:
            self._staged.replace(stream_id)
            self._records.forget(stream_id)

        needed = self._records.oldest_versions(stream_id)
        earlier = {log: version for log, version in copy.versions if version < needed.get(log, version)}
        try:
            if earlier:
                self._moved(stream_id, earlier)  # so that no log is cut behind them while it is looked at
            self._put(epoch, copy.versions, replace)
        except PenstockError:
            self._staged.give_up(stream_id)  # else it would be taken for one whose place a crash has emptied
            if earlier:
                self._moved(stream_id, needed)
            raise
        self._staged.forget_replaced(stream_id)
        self._held = None
        self._moved(stream_id, self._records.oldest_versions(stream_id))
        _log.info("checkpoint %d of stream %x is here, too", copy.name.checkpoint, stream_id)

    def give_up(self) -> None:
        """Forgets the copy under way."""
        if self._coming is not None:
            self._coming.close()
            self._staged.give_up(self._coming.manifest.record.stream_id)
            self._coming = None

    def keep_only(self, streams: Collection[int]) -> None:
        """Removes what is there of streams that were dropped."""
        for stream_id in [one for one in self.held() if one not in streams]:
            self._put(None, (), lambda stream_id=stream_id: self._remove(stream_id))  # type: ignore[misc]
        self._held = None

    def _remove(self, stream_id: int) -> None:
        shutil.rmtree(self._paths.stream(stream_id), ignore_errors=True)
        self._records.forget(stream_id)

    def part(self, log: int, version: int) -> None:
        """Removes the checkpoints that have more of a log than up to a version; may be called by another thread."""
        for stream_id in numbered(self._paths.streams, 16):
            gone = [one.checkpoint_id for one in self._records.all(stream_id)
                    if one.record is not None and dict(one.record.versions).get(log, 0) > version]
            if gone:
                _log.warning("checkpoints %s of stream %x have rows of log %d behind version %d, which the cluster "
                             "doesn't have: they are removed", gone, stream_id, log, version)
                self._records.remove(stream_id, gone)
                self._parted += 1

    def _newest(self, stream_id: int) -> CheckpointCopy | None:
        try:
            record = self._records.newest(stream_id)
        except PenstockError as error:
            _log.warning("no checkpoint of stream %x is of use here: %s", stream_id, error)
            return None
        return None if record is None else CheckpointCopy(name_of(record), record.versions)


class _ComingCopy:
    """A copy under way: its files are written in order, of pieces that come and of those that the stream here has."""

    def __init__(self, manifest: CopyManifest, staged: StagedStreams, fs: Fs, mine: Mapping[str, Path]) -> None:
        self.manifest = manifest
        self._staged = staged
        self._fs = fs
        self._stream_id = manifest.record.stream_id
        self._pieces = [(file, place, checksum) for file in manifest.files
                        for place, checksum in enumerate(file.pieces)]
        self._here: dict[tuple[str, str], tuple[Path, int]] = {}
        for file in manifest.files:
            for place, data in enumerate(pieces_of(mine[file.task])):
                self._here[file.task, hashlib.sha256(data).hexdigest()] = mine[file.task], place * PIECE_BYTES
        self.wanted = [number for number, (file, _, checksum) in enumerate(self._pieces)
                       if (file.task, checksum) not in self._here]
        self._next = 0
        self._open: AppendFile | None = None
        self._fill()

    def write(self, number: int, data: bytes) -> None:
        if number != self._next or number >= len(self._pieces):
            raise InvalidValueError(f"piece {number} comes, but {self._next} is wanted")
        file, place, checksum = self._pieces[number]
        if hashlib.sha256(data).hexdigest() != checksum or (
                len(data) != min(PIECE_BYTES, file.size - place * PIECE_BYTES)):
            raise InvalidValueError(f"piece {number} was damaged on its way")
        self._append(data)
        self._fill()

    def _fill(self) -> None:
        """Writes what follows and is here already."""
        while self._next < len(self._pieces):
            file, _, checksum = self._pieces[self._next]
            found = self._here.get((file.task, checksum))
            if found is None:
                return
            source = self._fs.open_read(found[0])
            try:
                self._append(source.read(found[1], PIECE_BYTES))
            finally:
                source.close()

    def _append(self, data: bytes) -> None:
        file, place, _ = self._pieces[self._next]
        if self._open is None:
            self._open = self._fs.open_append(self._staged.file(self._stream_id, file.task))
        self._open.append(data)
        self._next += 1
        if place == len(file.pieces) - 1:
            self._open.sync()
            self.close()

    def finish(self) -> None:
        """Raises InvalidValueError if pieces are missing."""
        if self._next < len(self._pieces):
            raise InvalidValueError(f"{len(self._pieces) - self._next} pieces are missing")
        self._staged.finish(self._stream_id, [file.task for file in self.manifest.files], self.manifest.records)

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None
