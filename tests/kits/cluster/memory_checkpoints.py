"""Checkpoints of a node in memory: what streams have on its disk, and copies that come piece by piece."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kits.cluster.memory_logs import MemoryLog, MemoryNode

from penstock.common.errors import InvalidValueError, StorageError, UnavailableError
from penstock.mnode.cluster.cluster_messages import CheckpointCopy, CheckpointName

PIECES = 5
#: By stream, the logs that it reads.
STREAMS: Mapping[int, tuple[int, ...]] = {11: (1,), 12: (2, 3)}


@dataclass(frozen=True)
class MemoryCheckpoint:
    """A checkpoint: sums of what its logs say up to its versions."""

    copy: CheckpointCopy
    pieces: tuple[int, ...]

    @property
    def manifest(self) -> bytes:
        return json.dumps(self.pieces).encode()


def sums_of(logs: Mapping[int, MemoryLog], versions: Mapping[int, int]) -> tuple[int, ...]:
    """Returns what a stream makes of its logs up to these versions."""
    sums = [0] * PIECES
    for log, last in versions.items():
        for version in range(1, last + 1):
            payload = logs[log].payload(version)
            sums[payload % PIECES] += payload
    return tuple(sums)


def checkpoint_of(node: MemoryNode, stream: int, attempt: int, number: int) -> MemoryCheckpoint:
    """Returns the checkpoint of a stream that has read all that is acknowledged."""
    versions = {log: node.stored[log].acknowledged for log in STREAMS[stream]}
    copy = CheckpointCopy(CheckpointName(stream, attempt, number), tuple(versions.items()))
    return MemoryCheckpoint(copy, sums_of(node.stored, versions))


@dataclass
class MemoryShelf:
    """Implements `HeldCheckpoints` on a node's disk. `copied`: the logs that copies are to take the place of."""

    node: MemoryNode
    checkpoints: dict[int, MemoryCheckpoint]
    refusals: int = 0
    copied: Collection[int] = ()
    follows: bool = True
    coming: CheckpointCopy | None = None
    wanted: tuple[int, ...] = ()
    here: dict[int, int] = field(default_factory=dict)

    def held(self) -> Mapping[int, CheckpointCopy]:
        return {stream: one.copy for stream, one in self.checkpoints.items()}

    def begin(self, copy: CheckpointCopy, manifest: bytes) -> Sequence[int]:
        self._may_refuse()
        mine = self.checkpoints.get(copy.name.stream)
        self.coming, self.wanted = copy, tuple(json.loads(manifest))
        self.here = {number: value for number, value in enumerate(self.wanted)
                     if mine is not None and mine.pieces[number] == value}
        return [number for number in range(PIECES) if number not in self.here]

    def write(self, number: int, data: bytes) -> None:
        self._may_refuse()
        if int(data) != self.wanted[number]:
            raise InvalidValueError("a piece of another copy")
        self.here[number] = int(data)

    def finish(self, epoch: int) -> None:
        self._may_refuse()
        assert self.coming is not None
        logs = self.node.stored
        if not self.follows or self.node.largest_epoch != epoch or any(
                log not in self.copied and not logs[log].begin - 1 <= version <= logs[log].written
                for log, version in self.coming.versions):
            raise UnavailableError("another node has become the active one, or the log begins later")
        assert len(self.here) == PIECES, "half a copy is used"
        for log, version in self.coming.versions:
            self.node.stored[log].synced = max(self.node.stored[log].synced, min(
                version, self.node.stored[log].written))
        self.checkpoints[self.coming.name.stream] = MemoryCheckpoint(
            self.coming, tuple(self.here[number] for number in range(PIECES)))
        self.coming = None

    def give_up(self) -> None:
        self.coming = None

    def keep_only(self, streams: Collection[int]) -> None:
        assert set(streams) == set(STREAMS)

    def part(self, log: int, version: int) -> None:
        """Forgets what has more of a log."""
        for stream in [stream for stream, one in self.checkpoints.items()
                       if dict(one.copy.versions).get(log, 0) > version]:
            del self.checkpoints[stream]

    def _may_refuse(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise StorageError("the disk refuses")
