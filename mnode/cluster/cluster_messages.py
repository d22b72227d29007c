"""What nodes say to each other: a closed set. Any message may be lost, doubled, reordered or delayed.

The transport proves which node has sent a message. `epoch` is always that of the active node which is meant: who has
seen a larger one refuses the message. `session` is drawn by each start of a standby's process, so that what an earlier
one has said is known for that. A standby that finds an active node sends a LogState per log, is told where to cut by
LogMatch, and then gets records.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.mnode.cluster.log_epochs import Epochs, EpochStart

#: The log of the catalog's changes; those of vnodes have the number of their vgroup, from 1 on.
CATALOG_LOG = 0


@dataclass(frozen=True, slots=True)
class Life:
    """Identifies a node's disk contents: what the node has acknowledged in this life is still on its disk.

    `number` is drawn when a data directory is new, and again when something unsynced may be gone: after the machine has
    lost power.
    """

    node: int
    number: int


@dataclass(frozen=True, slots=True)
class LogState:
    """A standby's log as it is: asks where it parts from the active's. `request` counts up within a session.

    `floor`: the standby's tables hold what is up to here, so that it was acknowledged.
    """

    epoch: int
    session: int
    life: Life
    log: int
    request: int
    epochs: Epochs
    written: int
    synced: int
    floor: int


@dataclass(frozen=True, slots=True)
class LogMatch:
    """Answers a LogState: the logs are the same up to `version`; what is behind it was never acknowledged.

    `copy_reason`: None, or why the active cannot send what follows, so that a copy of the vnode is needed.
    """

    epoch: int
    session: int
    log: int
    request: int
    version: int
    copy_reason: str | None = None


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Whole records of one log, byte for byte as the active wrote them: of one epoch, and of one segment.

    They follow version `after` and end with `last`. `opens_segment`: `data` begins with a segment's header.
    """

    after: int
    last: int
    start: EpochStart
    opens_segment: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class Append:
    """Records for a standby whose log has matched. `acknowledged`: up to there the log will never be cut."""

    epoch: int
    session: int
    log: int
    chunk: LogChunk
    acknowledged: int


@dataclass(frozen=True, slots=True)
class Ack:
    """A standby has all records up to `written`, on disk for good up to `synced`. Cumulative.

    It has them since its question `request` was answered: what was acknowledged before a log was replaced by a copy
    counts no more once the active knows the question that came before that. `gap`: something before what has come is
    missing; send again from here on.
    """

    epoch: int
    session: int
    log: int
    request: int
    written: int
    synced: int
    gap: bool = False


@dataclass(frozen=True, slots=True)
class NodeHeartbeat:
    """The active is there. `number` counts up; `acknowledged` has (log, version) for every log, `at_ms` the
    time of the wall clock."""

    epoch: int
    number: int
    at_ms: int
    acknowledged: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class NodeAlive:
    """A standby has seen a heartbeat."""

    epoch: int
    session: int
    life: Life
    number: int


@dataclass(frozen=True, slots=True)
class NewerEpoch:
    """Refuses a message: there is a newer epoch than the sender knows of."""

    epoch: int


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """A standby needs a copy of a vnode: asks for its files, for the next piece of one, or says that it has all.

    `copy` is drawn for each copy that is begun.
    """

    log: int
    copy: int
    file: int
    offset: int


@dataclass(frozen=True, slots=True)
class CopyAnswer:
    """Answers a CopyRequest, whose numbers it repeats: names and sizes of files, or bytes with their CRC-32C.

    `problem`: "", or why there is no copy.
    """

    log: int
    copy: int
    file: int
    offset: int
    checksum: int = 0
    files: tuple[tuple[str, int], ...] = ()
    problem: str = ""
    data: bytes = b""


#: `PieceRequest.number` of who asks for the manifest.
MANIFEST = -1


@dataclass(frozen=True, slots=True, order=True)
class CheckpointName:
    """The checkpoint of a stream, or an ingest, that an attempt has made; of two of one stream the newer is greater."""

    stream: int
    attempt: int
    checkpoint: int


@dataclass(frozen=True, slots=True)
class CheckpointCopy:
    """What a node has of a stream's checkpoints. `versions`: by log, what the newest has; the log behind is needed."""

    name: CheckpointName
    versions: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class CheckpointOffers:
    """The active has copies of checkpoints to give. `number` counts up, `streams` are all that there are.

    `settled`: the cluster never takes back that there are no others. `complete`: each stream that has a checkpoint is
    offered.
    """

    epoch: int
    number: int
    streams: tuple[int, ...]
    settled: bool
    copies: tuple[CheckpointCopy, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class CheckpointsHeld:
    """A standby answers offers: these it has, whole, on disk for good."""

    epoch: int
    held: tuple[CheckpointName, ...]


@dataclass(frozen=True, slots=True)
class PieceRequest:
    """A standby asks for a piece of a checkpoint's copy, or for its MANIFEST, which says what pieces there are."""

    name: CheckpointName
    number: int


@dataclass(frozen=True, slots=True)
class PieceAnswer:
    """Answers a PieceRequest, whose name and number it repeats. `problem`: "", or why there is no such piece."""

    name: CheckpointName
    number: int
    problem: str = ""
    data: bytes = b""


ToStandby = LogMatch | Append | NodeHeartbeat
ToActive = LogState | Ack | NodeAlive | NewerEpoch
ClusterMessage = ToStandby | ToActive
"""What the state machines say and hear."""
CheckpointMessage = CheckpointOffers | CheckpointsHeld | PieceRequest | PieceAnswer
"""What is said of checkpoints that travel."""
WireMessage = ClusterMessage | CopyRequest | CopyAnswer | CheckpointMessage
"""What goes between nodes."""
