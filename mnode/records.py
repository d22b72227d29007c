"""Commit records of checkpoints as files: one per checkpoint, written in one atomic step, verified when read."""

from __future__ import annotations

import json
from dataclasses import dataclass

from penstock.common.errors import CorruptionError, StorageError
from penstock.common.fs import Fs
from penstock.common.logging import logger
from penstock.common.paths import DataPaths
from penstock.wal.record import crc32c

_log = logger(__name__)

FORMAT_VERSION = 1
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """One task's part of a checkpoint: the checksum over its state, and how much was written."""

    task: str
    digest: str
    bytes_written: int


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """What makes a checkpoint valid. `versions`: (vgroup id, last WAL version that is in the state)."""

    stream_id: int
    checkpoint_id: int
    attempt: int
    versions: tuple[tuple[int, int], ...]
    tasks: tuple[TaskRecord, ...]
    started_ms: int
    duration_ms: float

    def encode(self) -> bytes:
        """Returns the record as text with its checksum in front."""
        body = {
            "format": FORMAT_VERSION,
            "stream": f"{self.stream_id:x}",
            "checkpoint": self.checkpoint_id,
            "attempt": self.attempt,
            "versions": [list(pair) for pair in self.versions],
            "tasks": [[t.task, t.digest, t.bytes_written] for t in self.tasks],
            "started_ms": self.started_ms,
            "duration_ms": self.duration_ms,
        }
        text = json.dumps(body, sort_keys=True).encode()
        return b"%08x\n%s\n" % (crc32c(text), text)

    @classmethod
    def decode(cls, data: bytes, origin: str) -> CommitRecord:
        """Returns the encoded record; raises CorruptionError naming `origin` if it isn't exactly as written."""
        checksum, _, rest = data.partition(b"\n")
        text = rest[:-1]
        if rest[-1:] != b"\n" or checksum != b"%08x" % crc32c(text):
            raise CorruptionError(f"{origin}: the commit record fails its checksum")
        body = json.loads(text)
        if body["format"] != FORMAT_VERSION:
            raise CorruptionError(f"{origin}: format {body['format']} of commit records is unknown")
        return cls(
            int(body["stream"], 16),
            body["checkpoint"],
            body["attempt"],
            tuple((vgroup_id, version) for vgroup_id, version in body["versions"]),
            tuple(TaskRecord(*fields) for fields in body["tasks"]),
            body["started_ms"],
            body["duration_ms"],
        )


class CommitRecords:
    """The commit records below one data directory. Used by one thread at a time per stream."""

    def __init__(self, paths: DataPaths, fs: Fs, kept: int = 3) -> None:
        """`kept`: how many of the newest records of a stream stay."""
        self._paths = paths
        self._fs = fs
        self._kept = kept

    def write(self, record: CommitRecord) -> None:
        """Writes a record, durably, and removes those that are too old. Raises StorageError if it isn't written."""
        directory = self._paths.checkpoints(record.stream_id)
        self._fs.make_dirs(directory)
        self._fs.write_atomic(directory / f"{record.checkpoint_id}{_SUFFIX}", record.encode())
        for checkpoint_id in self.ids(record.stream_id)[self._kept :]:
            try:
                self._fs.remove(directory / f"{checkpoint_id}{_SUFFIX}")
            except StorageError as error:
                # The record counts; the leftover is tried again after the next checkpoint.
                _log.warning("an old commit record stays: %s", error)

    def ids(self, stream_id: int) -> list[int]:
        """Returns the ids of a stream's records, intact or not, newest first."""
        names = self._fs.list(self._paths.checkpoints(stream_id))
        stems = [name[: -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX)]
        return sorted((int(stem) for stem in stems if stem.isdigit()), reverse=True)

    def newest(self, stream_id: int) -> CommitRecord | None:
        """Returns the newest intact record, or None if the stream has no record.

        Damaged records are passed over with a warning in the log. If there are records but none is intact, raises
        CorruptionError: to start anew would silently forget what the stream has counted.
        """
        damage: CorruptionError | None = None
        for checkpoint_id in self.ids(stream_id):
            try:
                return self._read(stream_id, checkpoint_id)
            except CorruptionError as error:
                _log.warning("a checkpoint is passed over: %s", error)
                damage = damage or error
        if damage is not None:
            raise damage
        return None

    def oldest_versions(self, stream_id: int) -> dict[int, int]:
        """Returns {vgroup id: version} of the oldest intact record; WAL behind it must stay for a restart from it.

        Empty if there is no intact record.
        """
        for checkpoint_id in reversed(self.ids(stream_id)):
            try:
                return dict(self._read(stream_id, checkpoint_id).versions)
            except CorruptionError as error:
                _log.warning("a checkpoint is passed over: %s", error)
        return {}

    def _read(self, stream_id: int, checkpoint_id: int) -> CommitRecord:
        path = self._paths.checkpoints(stream_id) / f"{checkpoint_id}{_SUFFIX}"
        record = CommitRecord.decode(self._fs.read(path), str(path))
        if (record.stream_id, record.checkpoint_id) != (stream_id, checkpoint_id):
            raise CorruptionError(f"{path}: the record belongs to another checkpoint")
        return record
