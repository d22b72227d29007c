"""What travels between tasks, and what the runtime tells a task: a closed set of frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from penstock.common.connection import OpenedConnection
from penstock.tasks.protocol.numbered_children import NumberedChildren

OperatorKind = Literal["source", "agg", "sink"]


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """Names a task. `index` is the place of its vnode in the source database, or just a number where an agg task is on
    an snode: `penstock.tasks.protocol.worker_nodes` tells which worker hosts it."""

    stream_id: int
    operator: OperatorKind
    index: int
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Every queue looks its channels up by these, several times per block. The names of operators differ in length.
        object.__setattr__(self, "_hash", hash((self.stream_id << 8 | self.index) << 3 | len(self.operator)))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return f"{self.stream_id:x}-{self.operator}-{self.index}"

    def __reduce__(self) -> tuple[type[TaskId], tuple[int, OperatorKind, int]]:
        return TaskId, (self.stream_id, self.operator, self.index)  # as a TaskStatus: heartbeats are full of these

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Returns the id that `str()` printed."""
        stream, operator, index = text.split("-")
        if operator not in ("source", "agg", "sink"):
            raise ValueError(f"not an operator: {operator}")
        return cls(int(stream, 16), operator, int(index))  # type: ignore[arg-type]


# --- data and signals: what queues hold ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """A batch of rows on its way between two tasks.

    `nbytes`: about what they take; who hands over a part of a larger batch says so, else all buffers count as a whole.
    """

    data: pa.RecordBatch
    nbytes: int = field(default=-1, compare=False)

    def __post_init__(self) -> None:
        if self.nbytes < 0:
            # What the rows refer to exactly takes Arrow longer to find out than most tasks take for a small block.
            object.__setattr__(self, "nbytes", int(self.data.get_total_buffer_size()))

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return int(self.data.num_rows)

    def part(self, first: int, rows: int) -> Block:
        """Returns `rows` of the rows, from the one at place `first` on; they take their share of the bytes."""
        return Block(self.data.slice(first, rows), self.nbytes * rows // self.data.num_rows)


@dataclass(frozen=True, slots=True)
class Watermark:
    """Event time of one channel has reached `ts` (units of the source's precision; None: no row seen yet).

    `idle`: the sender's vnode has caught up with its WAL and been quiet, for `quiet_s` seconds until now; its watermark
    doesn't hold time back.
    """

    ts: int | None
    idle: bool = False
    quiet_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Barrier:
    """Everything before this in the channel belongs to checkpoint `checkpoint_id`, nothing after it does."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class Retract:
    """What the sender had contributed to windows that start in [first, last] is void; what follows takes its place."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class RetractEnd:
    """What follows `Retract` is complete: the windows can be emitted again, once the others have sent theirs."""


@dataclass(frozen=True, slots=True)
class End:
    """Nothing more will come on this channel."""


Signal = Watermark | Barrier | Retract | RetractEnd | End
Item = Block | Signal


# --- events: what the runtime posts into a task ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartCheckpoint:
    """To source tasks: put a barrier behind what has been sent. To sink tasks: don't keep it waiting."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """To all tasks: this checkpoint is valid. Of older ones only `kept` may still be gone back to."""

    checkpoint_id: int
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Pause:
    """To source tasks: stop reading until Resume."""


@dataclass(frozen=True, slots=True)
class Resume:
    """To sink tasks: try at once what an external target didn't take. To source tasks: go on; `skip_to_end`: leave out
    what was written meanwhile (IGNORE UNTREATED)."""

    skip_to_end: bool = False


@dataclass(frozen=True, slots=True)
class SetRates:
    """To all tasks: work by these rates from now on; the fields are those of `TaskSettings`."""

    sink_calls_per_second: float
    sink_bytes_per_second: float
    source_rows_per_second: float
    history_rows_per_second: float


@dataclass(frozen=True, slots=True)
class UseConnection:
    """To sink tasks: write by this version of the connection from now on."""

    connection: OpenedConnection


@dataclass(frozen=True, slots=True)
class Recalculate:
    """To source tasks: compute [first_ts, last_ts] again (units of the source's precision; the last may be TS_MAX)."""

    first_ts: int
    last_ts: int


@dataclass(frozen=True, slots=True)
class CheckpointAbandoned:
    """To all tasks: this checkpoint will never be valid; nobody waits for its barriers any more."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class Replay:
    """To source tasks: try rows once more that were left out, `rows` of (vgroup id, row), and compute their windows."""

    rows: tuple[tuple[int, DeadRow], ...]


TaskEvent = (
    StartCheckpoint | CheckpointCommitted | CheckpointAbandoned | Pause | Resume | SetRates | UseConnection
    | Recalculate | Replay
)


@dataclass(frozen=True, slots=True)
class TaskCheckpoint:
    """A task's acknowledgement: its state for `checkpoint_id` is durable.

    `version` is the source task's WAL position (the last processed version), None for other tasks.
    `digest` is a checksum over what was written, kept in the commit record. `rows`: all rows that a source task has
    read since the stream was created, None for other tasks. `unwritten`: whether a sink task's state holds in-flight
    results from before the checkpoint, which are still to be written.
    """

    task: TaskId
    checkpoint_id: int
    bytes_written: int
    duration_ms: float
    version: int | None = None
    digest: str = ""
    rows: int | None = None
    unwritten: bool = False


@dataclass(frozen=True, slots=True)
class ReadBack:
    """What an agg task asks for: all source tasks of its stream compute the windows in these ranges of time again."""

    task: TaskId
    ranges: tuple[tuple[int, int], ...]


# --- results: what a sink task asks the dnode to write -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Delivered:
    """Which segment of which partition the rows of a write come from; see `penstock.wal.record.IngestOrigin`."""

    partition: str
    segment: str


REPLACE, CLEAR = 2, 3
"""Operations of result writes beside upsert and delete."""


@dataclass(frozen=True, slots=True)
class ResultWrite:
    """One write call of a sink task: upserts and deletes in one result table, all acknowledged together.

    `rows` has `_child` int32 (index into `children`), `_op` uint8 (0 upsert, 1 delete everything at this time,
    REPLACE upsert as the only row of its time), then the target's columns by name, the primary timestamp first (for
    deletes only that counts). Tables with a KEY have rows by that and not by a time: REPLACE makes the row the only one
    of its table there, CLEAR leaves that without any. `children` are all that the task has had so far: the same object
    in all of its writes, so that each child has to be sent and looked up only once. `attempt` fences: the dnode
    refuses attempts older than the newest it knows for the stream (`StaleAttemptError`). `delivered`: of an ingest that
    can go back; the rows have `_offset` int64 then, and those that a vnode has already are left out.
    """

    stream_id: int
    attempt: int
    task: TaskId
    target_uid: int
    children: NumberedChildren
    rows: pa.RecordBatch
    delivered: Delivered | None = None


# --- rows that are left out --------------------------------------------------------------------------------------

Reason = Literal["late", "future", "error", "refused"]


RowKey = tuple[int, int, int | str | None]
"""What tells a row from others: its table's id, its primary timestamp, and the second part of a composite key."""


@dataclass(frozen=True, slots=True)
class DroppedRow:
    """A row that a stream left out. `ts` in units of the source's precision, and so is `lateness`: how far the row is
    behind the newest event time that its vnode had seen (negative: beyond the newest that is allowed). `version` and
    `ingest_time_ms` are those of the WAL record that it came with. `key`: the second part of its primary key, if its
    table has a composite one."""

    tuid: int
    ts: int
    lateness: int
    reason: Reason
    version: int
    ingest_time_ms: int
    key: int | str | None = None
    message: str = ""

    @property
    def row_key(self) -> RowKey:
        return self.tuid, self.ts, self.key


@dataclass(frozen=True, slots=True)
class DeadRow:
    """A row on its way to a DLQ table. `id` tells it from others there. `table`: the name of its table.
    `content`: its columns as JSON. `attempts`: how often it was tried."""

    row: DroppedRow
    id: int
    table: str
    message: str
    content: str
    attempts: int = 1
