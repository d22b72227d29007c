"""Commit records of checkpoints as files: one per checkpoint, written in one atomic step, verified when read."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.common.aside import set_aside
from penstock.common.errors import CorruptionError, StateLayoutError, StorageError
from penstock.common.fs import Fs
from penstock.common.logging import logger
from penstock.common.paths import DataPaths
from penstock.common.sealed import seal, unseal
from penstock.common.typed_json import TypedJson
from penstock.tasks.protocol.messages import TaskCheckpoint

_log = logger(__name__)

FORMAT_VERSION = 6
_SUFFIX = ".json"


def require_layout(saved: str, layout: str) -> None:
    """Raises StateLayoutError unless state that was saved with a layout may be read with the other."""
    if saved != layout:
        raise StateLayoutError(
            f"its state was saved with another layout ({saved[:8]} instead of {layout[:8]}), by a version of "
            "Penstock that plans its statement otherwise; it is kept as it is, and nothing is read",
            hint="run the version that saved it, or use CREATE OR REPLACE STREAM")


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """One task's part of a checkpoint: the checksum over its state, and how much was written.

    `after_ms`: from the start of the checkpoint to the task's acknowledgement; `write_ms`: of that, writing its state.
    `rows`: all rows that a source task has read by then, since the stream was created; None for other tasks.
    `unwritten`: whether the state of a sink task holds results that are still to be written.
    """

    task: str
    digest: str
    bytes_written: int
    after_ms: float = 0.0
    write_ms: float = 0.0
    rows: int | None = None
    unwritten: bool = False

    @classmethod
    def of(cls, checkpoint: TaskCheckpoint, after_ms: float) -> TaskRecord:
        return cls(str(checkpoint.task), checkpoint.digest, checkpoint.bytes_written, after_ms,
                   checkpoint.duration_ms, checkpoint.rows, checkpoint.unwritten)


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """What makes a checkpoint valid. `versions`: (vgroup id, last WAL version that is in the state).

    `layout`: the fingerprint of the state's layout (`tasks.layout`); empty in records of ingests.
    """

    stream_id: int
    checkpoint_id: int
    attempt: int
    versions: tuple[tuple[int, int], ...]
    tasks: tuple[TaskRecord, ...]
    started_ms: int
    duration_ms: float
    layout: str = ""

    @property
    def bytes_written(self) -> int:
        return sum(task.bytes_written for task in self.tasks)

    @property
    def unwritten(self) -> bool:
        """Whether results from before the checkpoint are still to be written, out of its own state."""
        return any(task.unwritten for task in self.tasks)

    @property
    def slowest(self) -> TaskRecord | None:
        """The task that acknowledged last, or None where that isn't known."""
        last = max(self.tasks, key=lambda task: task.after_ms, default=None)
        return last if last is not None and last.after_ms > 0 else None

    @property
    def rows(self) -> int | None:
        """All rows that the stream had read by then, or None where that isn't known."""
        known = [task.rows for task in self.tasks if task.rows is not None]
        return sum(known) if known else None

    def is_over(self, vgroup_ids: Iterable[int]) -> bool:
        """Tells whether these are the vnodes that the stream read: it can't go on over others from here."""
        return {vgroup_id for vgroup_id, _ in self.versions} == set(vgroup_ids)

    def encode(self) -> bytes:
        """Returns the record as text with its checksum in front."""
        return seal(json.dumps({"format": FORMAT_VERSION, "record": _JSON.encode(self)}, sort_keys=True).encode())

    @classmethod
    def decode(cls, data: bytes, origin: str) -> CommitRecord:
        """Returns the encoded record; raises CorruptionError naming `origin` if it isn't exactly as written."""
        body = json.loads(unseal(data, f"{origin}: the commit record"))
        if body["format"] != FORMAT_VERSION:
            raise CorruptionError(f"{origin}: format {body['format']} of commit records is unknown")
        try:
            return _JSON.decode(body["record"])
        except ValueError as error:
            raise CorruptionError(f"{origin}: the commit record can't be read: {error}") from error


_JSON = TypedJson(CommitRecord)


def commit_record(
    stream_id: int,
    checkpoint_id: int,
    attempt: int,
    vgroup_ids: tuple[int, ...],
    acknowledged: Iterable[tuple[TaskCheckpoint, float]],
    started_ms: int,
    duration_ms: float,
    layout: str = "",
) -> CommitRecord:
    """Returns the record of a checkpoint that all tasks have acknowledged, each so many ms after its start.

    `vgroup_ids`: the vnode of each source task. Where both sides of a join read one, the lesser version counts.
    """
    parts = sorted(acknowledged, key=lambda part: part[0].task)
    versions: dict[int, int] = {}
    for checkpoint, _ in parts:
        if checkpoint.version is not None:  # those of an ingest follow no log
            vgroup_id = vgroup_ids[checkpoint.task.index]
            versions[vgroup_id] = min(checkpoint.version, versions.get(vgroup_id, checkpoint.version))
    return CommitRecord(
        stream_id, checkpoint_id, attempt, tuple(sorted(versions.items())),
        tuple(TaskRecord.of(checkpoint, after_ms) for checkpoint, after_ms in parts), started_ms, duration_ms, layout)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as it is on disk: `record` is None if it is damaged, in the way that `damage` tells."""

    checkpoint_id: int
    record: CommitRecord | None
    damage: str = ""


class CommitRecords:
    """The commit records below one data directory; read from disk once per stream. Safe for many threads."""

    def __init__(self, paths: DataPaths, fs: Fs, kept: int = 3) -> None:
        """`kept`: how many of the newest records of a stream stay, besides those of savepoints."""
        self._paths = paths
        self._fs = fs
        self._kept = kept
        self._lock = threading.Lock()
        self._known: dict[int, dict[int, StoredRecord]] = {}

    def write(self, record: CommitRecord, savepoints: Collection[int] = ()) -> None:
        """Writes a record, durably, and removes those that are too old. Raises StorageError if it isn't written.

        Records of `savepoints` (checkpoint ids) stay.
        """
        with self._lock:
            known = self._load(record.stream_id)
            self._fs.make_dirs(self._paths.checkpoints(record.stream_id))
            try:
                self._fs.write_atomic(self.path(record.stream_id, record.checkpoint_id), record.encode())
            except StorageError:
                self._take_back(record)
                raise
            known[record.checkpoint_id] = StoredRecord(record.checkpoint_id, record)
            self._prune(record.stream_id, savepoints)

    def path(self, stream_id: int, checkpoint_id: int) -> Path:
        """Returns where a record is, or would be."""
        return self._paths.checkpoints(stream_id) / f"{checkpoint_id}{_SUFFIX}"

    def prune(self, stream_id: int, savepoints: Collection[int]) -> None:
        """Removes the records that are too old and not of `savepoints`."""
        with self._lock:
            self._prune(stream_id, savepoints)

    def all(self, stream_id: int) -> list[StoredRecord]:
        """Returns a stream's records, intact or not, newest first."""
        with self._lock:
            return [stored for _, stored in sorted(self._load(stream_id).items(), reverse=True)]

    def ids(self, stream_id: int) -> list[int]:
        """Returns the ids of a stream's records, intact or not, newest first."""
        return [stored.checkpoint_id for stored in self.all(stream_id)]

    def newest(self, stream_id: int, unusable: Collection[int] = ()) -> CommitRecord | None:
        """Returns the newest intact record that isn't among `unusable`, or None if the stream has no record.

        Damaged records are passed over with a warning in the log. If there are records but none can be used, raises
        CorruptionError: to start anew would silently forget what the stream has counted.
        """
        stored = self.all(stream_id)
        for one in stored:
            if one.record is not None and one.checkpoint_id not in unusable:
                return one.record
            _log.warning("checkpoint %d of stream %x is skipped: %s", one.checkpoint_id, stream_id,
                         one.damage or "a task's part of it is damaged")
        if stored:
            damage = next((one.damage for one in stored if one.damage), "")
            raise CorruptionError(
                damage or f"no checkpoint of stream {stream_id:x} is intact",
                hint="restore the data directory from a backup, or drop the stream and create it again")
        return None

    def passed_over(self, stream_id: int, used: int | None, unusable: Mapping[int, str]) -> dict[int, str]:
        """Returns the ids of the checkpoints newer than the `used` one that are damaged, each with what is wrong."""
        return {one.checkpoint_id: one.damage or unusable.get(one.checkpoint_id, "")
                for one in self.all(stream_id) if used is not None and one.checkpoint_id > used}

    def oldest_versions(self, stream_id: int) -> dict[int, int]:
        """Returns {vgroup id: version} of the oldest intact record; WAL behind it must stay for a restart from it.

        Empty if there is no intact record.
        """
        intact = [stored.record for stored in self.all(stream_id) if stored.record is not None]
        return dict(intact[-1].versions) if intact else {}

    def remove(self, stream_id: int, checkpoint_ids: Iterable[int]) -> None:
        """Removes records, newest first, so that a crash in between leaves what is before them."""
        with self._lock:
            known = self._load(stream_id)
            for checkpoint_id in sorted(checkpoint_ids, reverse=True):
                if checkpoint_id in known:
                    self._remove(stream_id, checkpoint_id)
            self._fs.fsync_dir(self._paths.checkpoints(stream_id))

    def set_aside(self, stream_id: int, checkpoint_ids: Iterable[int]) -> list[Path]:
        """Moves records out of the way, newest first as `remove` does; returns where they are. Raises StorageError."""
        with self._lock:
            known, moved = self._load(stream_id), []
            for checkpoint_id in sorted(checkpoint_ids, reverse=True):
                moved.append(set_aside(self._fs, self._paths, self.path(stream_id, checkpoint_id)))
                known.pop(checkpoint_id)
            return moved

    def forget(self, stream_id: int) -> None:
        """Drops what is known of a stream whose directory is being removed."""
        with self._lock:
            self._known.pop(stream_id, None)

    # --- inside, with the lock ---------------------------------------------------------------------------------

    def _take_back(self, record: CommitRecord) -> None:
        """Removes a record whose write failed: it may be there all the same, if its directory couldn't be synced."""
        directory = self._paths.checkpoints(record.stream_id)
        try:
            self._fs.remove(self.path(record.stream_id, record.checkpoint_id))
            self._fs.fsync_dir(directory)
        except StorageError as error:
            # Whatever is there counts from now on, as it would after a restart.
            self._known.pop(record.stream_id, None)
            _log.warning("a commit record that could not be written may stay: %s", error)

    def _prune(self, stream_id: int, savepoints: Collection[int]) -> None:
        ordinary = sorted((id_ for id_ in self._load(stream_id) if id_ not in savepoints), reverse=True)
        for checkpoint_id in ordinary[self._kept :]:
            try:
                self._remove(stream_id, checkpoint_id)
            except StorageError as error:
                # The newest record counts; the leftover is tried again after the next checkpoint.
                _log.warning("an old commit record stays: %s", error)

    def _remove(self, stream_id: int, checkpoint_id: int) -> None:
        self._fs.remove(self.path(stream_id, checkpoint_id))
        self._known[stream_id].pop(checkpoint_id)

    def _load(self, stream_id: int) -> dict[int, StoredRecord]:
        known = self._known.get(stream_id)
        if known is None:
            names = self._fs.list(self._paths.checkpoints(stream_id))
            stems = [name[: -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX)]
            known = self._known[stream_id] = {
                int(stem): self._stored(stream_id, int(stem)) for stem in stems if stem.isdigit()}
        return known

    def _stored(self, stream_id: int, checkpoint_id: int) -> StoredRecord:
        try:
            return StoredRecord(checkpoint_id, self._read(stream_id, checkpoint_id))
        except CorruptionError as error:
            return StoredRecord(checkpoint_id, None, str(error))

    def _read(self, stream_id: int, checkpoint_id: int) -> CommitRecord:
        path = self.path(stream_id, checkpoint_id)
        record = CommitRecord.decode(self._fs.read(path), str(path))
        if (record.stream_id, record.checkpoint_id) != (stream_id, checkpoint_id):
            raise CorruptionError(f"{path}: the record belongs to another checkpoint")
        return record
