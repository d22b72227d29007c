"""What a copy of checkpoints consists of: commit records, and the states of the tasks as of the newest, in pieces."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.common.errors import CorruptionError
from penstock.common.paths import DataPaths
from penstock.common.private import make_private
from penstock.common.sealed import seal, unseal
from penstock.mnode.checkpoints.commit_records import CommitRecord
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.state.state_copy import CopyOrder

FORMAT_VERSION = 3
PIECE_BYTES = 1 << 20
SHELVES = 2
_PIECE = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class StateFile:
    """The state of a task: its size, and the SHA-256 of each of its pieces."""

    task: str
    size: int
    pieces: tuple[str, ...]

    @classmethod
    def of(cls, task: str, path: Path) -> StateFile:
        return cls(task, path.stat().st_size, tuple(hashlib.sha256(data).hexdigest() for data in pieces_of(path)))


@dataclass(frozen=True, slots=True)
class CopyManifest:
    """`records`: oldest first. The pieces of all files are numbered through. `shelf`: where a backup has them."""

    records: tuple[CommitRecord, ...]
    files: tuple[StateFile, ...]
    shelf: int = 0

    @property
    def record(self) -> CommitRecord:
        """The newest."""
        return self.records[-1]

    @property
    def pieces(self) -> frozenset[str]:
        return frozenset(piece for file in self.files for piece in file.pieces)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        return seal(json.dumps({
            "format": FORMAT_VERSION, "records": [record.encode().decode() for record in self.records],
            "shelf": self.shelf, "files": [[file.task, file.size, list(file.pieces)] for file in self.files],
        }, sort_keys=True).encode())

    @classmethod
    def decode(cls, data: bytes, stream_id: int, checkpoint_id: int, what: str) -> CopyManifest:
        """Raises CorruptionError if it isn't exactly as written for that checkpoint, or names what no stream has."""
        try:
            body = json.loads(unseal(data, f"{what}: the manifest"))
            if body["format"] != FORMAT_VERSION:
                raise CorruptionError(f"{what} has the format {body['format']!r:.20}, which is unknown",
                                      hint="it is read by the version of Penstock that wrote it")
            manifest = cls(tuple(CommitRecord.decode(text.encode(), what) for text in body["records"]),
                           tuple(StateFile(task, size, tuple(pieces)) for task, size, pieces in body["files"]),
                           body["shelf"])
            manifest._check(stream_id, checkpoint_id)
        except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            raise CorruptionError(f"{what} is invalid: {error}") from error
        return manifest

    def _check(self, stream_id: int, checkpoint_id: int) -> None:
        """Raises ValueError for names and numbers that no manifest of the checkpoint has."""
        ids = [record.checkpoint_id for record in self.records]
        if ids[-1] != checkpoint_id or ids != sorted(set(ids)) or any(
                record.stream_id != stream_id for record in self.records):
            raise ValueError("it is of other checkpoints")
        if self.shelf not in range(SHELVES):
            raise ValueError(f"it names the shelf {self.shelf!r:.50}")
        tasks = [file.task for file in self.files]
        for task in tasks:
            if str(TaskId.parse(task)) != task or TaskId.parse(task).stream_id != stream_id or tasks.count(task) > 1:
                raise ValueError(f"it names the task {task[:100]!r}")
        if sorted(tasks) != sorted(part.task for part in self.record.tasks):
            raise ValueError("it has other tasks than its checkpoint")
        for file in self.files:
            if type(file.size) is not int or file.size <= 0 or len(file.pieces) != -(-file.size // PIECE_BYTES):
                raise ValueError(f"it has another size of {file.task} than its pieces")
            wrong = next((piece for piece in file.pieces if not _PIECE.fullmatch(piece)), None)
            if wrong is not None:
                raise ValueError(f"it names the piece {wrong[:100]!r}")


def copy_order(paths: DataPaths, record: CommitRecord, folder: Path, operator: str | None = None) -> CopyOrder:
    """Returns the order to copy the states of a checkpoint's tasks, or those of an `operator`, into folders, which are
    made, below `folder`.
    """
    pairs = []
    for part in record.tasks:
        if operator in (None, TaskId.parse(part.task).operator):
            make_private(folder / part.task)
            pairs.append((paths.state(record.stream_id, part.task), folder / part.task))
    return CopyOrder(record.checkpoint_id, pairs)


def pieces_of(path: Path) -> Iterator[bytes]:
    """Yields the pieces of a file; none if it is missing."""
    if path.exists():
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece
