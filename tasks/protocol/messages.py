"""What travels between tasks, and what the runtime tells a task: a closed set of frozen dataclasses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Literal

import pyarrow as pa

from penstock.common.connection import OpenedConnection
from penstock.wal.log import Access

OperatorKind = Literal["source", "agg", "sink"]


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """Names a task. `index` is the place of its vnode in the source database, or just a number where an agg task is on
    an snode: `penstock.tasks.protocol.worker_nodes` tells which worker hosts it."""

    stream_id: int
    operator: OperatorKind
    index: int

    def __hash__(self) -> int:
        # Every queue looks its channels up by these, several times per block. The names of operators differ in length.
        return (self.stream_id << 8 | self.index) << 3 | len(self.operator)

    def __str__(self) -> str:
        return f"{self.stream_id:x}-{self.operator}-{self.index}"

    def __reduce__(self) -> tuple[type[TaskId], tuple[int, OperatorKind, int]]:
        return TaskId, (self.stream_id, self.operator, self.index)  # see TaskStatus

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
    """To sink tasks: try at once what a target outside didn't take. To source tasks: go on; `skip_to_end`: leave out
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
class ResultChild:
    """A child table of the result table: created on its first row. `tag_values` in the order of the table's tags."""

    name: str
    tag_values: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Delivered:
    """Which segment of which partition the rows of a write come from; see `penstock.wal.record.IngestOrigin`."""

    partition: str
    segment: str


@dataclass(frozen=True, slots=True)
class ResultWrite:
    """One write call of a sink task: upserts and deletes in one result table, all acknowledged together.

    `rows` has `_child` int32 (index into `children`), `_op` uint8 (0 upsert, 1 delete everything at this time,
    2 upsert as the only row of its time), then the target's columns by name, the primary timestamp first (for deletes
    only that counts). `children` are all that the task has had so far: one list for all of its writes, which grows and
    never changes otherwise, so that each child has to be sent and looked up only once. `attempt` fences: the dnode
    refuses attempts older than the newest it knows for the stream (`StaleAttemptError`). `delivered`: of an ingest that
    can go back; the rows have `_offset` int64 then, and those that a vnode has already are left out.
    """

    stream_id: int
    attempt: int
    task: TaskId
    target_uid: int
    children: Sequence[ResultChild]
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


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late `rows` rows were against what their vnode had seen before: `late` has (at most so late, how many) for
    those that were late at all, ascending, in units of the source's precision."""

    rows: int = 0
    late: tuple[tuple[int, int], ...] = ()

    def quantile(self, share: float) -> int:
        """Returns how late at most this share of the rows was."""
        beyond = self.rows - math.ceil(share * self.rows)
        for edge, count in reversed(self.late):
            beyond -= count
            if beyond < 0:
                return edge
        return 0


# --- status ------------------------------------------------------------------------------------------------------

TaskState = Literal[
    "STARTING",       # deployed, restoring its state
    "RUNNING",        # processing
    "IDLE",           # caught up, nothing to do
    "BACKPRESSURED",  # cannot put its output: somebody downstream is full
    "RATE_LIMITED",   # waits for a token: a sink to write, a source to read on
    "WRITING",        # a sink waits for its target's acknowledgement
    "RETRYING",       # what is outside can't be written to, or read from: it is tried again and again
    "ALIGNING",       # holds channels back until all barriers of a checkpoint are in
    "PAUSED",
    "STOPPED",
    "FAILED",
]


@dataclass(frozen=True, slots=True)
class HistoryProgress:
    """How far a source task is with its vnode's history (FILL_HISTORY 1). Times in units of the source's precision.

    `first_ts`, `last_ts`: the range, None before it is known; `reached_ts`: everything up to it is read. `share` is
    the part of the range's event time that is read, 0 to 1. `remaining_ms` is an estimate, None where there is none.
    """

    first_ts: int | None
    last_ts: int | None
    reached_ts: int | None
    rows: int
    share: float
    remaining_ms: int | None
    done: bool


@dataclass(frozen=True, slots=True)
class ConnectionHealth:
    """How a task fares with what its connection leads to, by a version of the connection's options.

    `problem`: what keeps it from reading or writing there; empty once it has been there.
    """

    connection: str
    version: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A task as heartbeats carry it; counters are totals of this attempt. `None`: does not apply to the task.

    `rows_total`: rows that a source task has read since the stream was created.
    `udf_errors`: values that users' functions could not compute; `udf_report`: how often each failed, and its last
    error. `upper_bound`: the greatest event time that rows have or writers have noted. `late_rows`: came too late and
    are left out; `late_forgotten`: of them per vnode, by its place, those that an agg task left out, because it had
    forgotten their windows; `late_kept`: per vnode those that came after their window had closed and changed its
    result; `future_rows`: too far in the future; `error_rows`: could not be computed. `left_out`: the last of those
    left out (None: as in the status before).
    `held_back_by`: the vnodes, by their places, whose time is the least of an agg task's inputs.
    Of the `elapsed_s` seconds of this attempt the task was `busy_s` in its steps, `udf_s` of them in users' functions,
    most in `slowest_udf`; and `blocked_s` it had something to hand on and couldn't, the last `blocked_now_s` of them
    until now; `limited_s`: by a rate limit, which `limit` names. `state_capacity`: the bound of `state_bytes`,
    of which `state_memory` are in memory.
    `in_flight_bytes`: results of an unaligned checkpoint, which a sink task writes before those in its input queue.
    `messages`: how many an ingest has made rows of or left out since it was created; `messages_lag`: how many it has
    still to read, None where the broker doesn't tell. `unknown_rows`:
    rows of an ingest with fields that no column takes; `last_refused`: the last message that it couldn't use, and why.
    `outage_since_ms`: since when nothing could be delivered to a sink task's target outside, None if all is well.
    `health`: how it fares with its connection, None where there is none, or nothing is known yet.
    `notify_sent`: events of windows that addresses of NOTIFY have taken, `notify_failed` that were dropped,
    `notify_waiting` that are still to be sent, each once per address; `notify_error`: what went wrong last.
    `wal_access`: how a source task reads its vnode's WAL, as files of its machine or over the network.
    """

    task: TaskId
    state: TaskState
    reason: str = ""
    since_ms: int = 0
    blocked_by: str | None = None
    input_bytes: int = 0
    input_capacity: int = 0
    input_peak: int = 0
    output_bytes: int | None = None
    output_capacity: int | None = None
    output_peak: int | None = None
    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    processed_version: int | None = None
    rows_total: int | None = None
    wal_version: int | None = None
    watermark: int | None = None
    max_event_time: int | None = None
    idle: bool = False
    idle_since_ms: int | None = None
    upper_bound: int | None = None
    late_rows: int = 0
    future_rows: int = 0
    error_rows: int = 0
    late_forgotten: tuple[tuple[int, int], ...] = ()
    late_kept: tuple[tuple[int, int], ...] = ()
    lateness: Lateness = Lateness()
    dropped: tuple[DroppedRow, ...] | None = ()
    held_back_by: tuple[int, ...] = ()
    windows_open: int | None = None
    state_bytes: int | None = None
    checkpoint_id: int | None = None
    checkpoint_time_ms: int | None = None
    history: HistoryProgress | None = None
    udf_errors: int = 0
    udf_report: str = ""
    elapsed_s: float = 0.0
    busy_s: float = 0.0
    blocked_s: float = 0.0
    blocked_now_s: float = 0.0
    limited_s: float = 0.0
    limit: str = ""
    udf_s: float = 0.0
    slowest_udf: str = ""
    state_capacity: int | None = None
    state_memory: int = 0
    in_flight_bytes: int = 0
    wal_access: Access | None = None
    messages: int = 0
    messages_lag: int | None = None
    unknown_rows: int = 0
    last_refused: str = ""
    outage_since_ms: int | None = None
    health: ConnectionHealth | None = None
    notify_sent: int = 0
    notify_failed: int = 0
    notify_waiting: int = 0
    notify_error: str = ""

    def __reduce__(self) -> tuple[type[TaskStatus], tuple[Any, ...]]:
        # Heartbeats are full of these: what a dataclass with slots does by itself takes the mnode eight times as long.
        return TaskStatus, _values_of_status(self)


_values_of_status = attrgetter(*(field.name for field in fields(TaskStatus)))
