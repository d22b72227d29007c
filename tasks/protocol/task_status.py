"""What heartbeats say of a task: one record for each thing that there is to know of it."""

# ruff: noqa: RUF009  # records cannot change: all statuses may share those that are as by default

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from penstock.tasks.protocol.messages import DroppedRow, TaskId
from penstock.wal.log import Access

TaskState = Literal[
    "STARTING",       # deployed, restoring its state
    "RUNNING",        # processing
    "IDLE",           # caught up, nothing to do
    "BACKPRESSURED",  # cannot put its output: somebody downstream is full
    "RATE_LIMITED",   # waits for a token: a sink to write, a source to read on
    "WRITING",        # a sink waits for its target's acknowledgement
    "RETRYING",       # an external system can't be written to, or read from: it is tried again and again
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


class QueueStatus(NamedTuple):
    """A task's queues, in bytes: what they hold, their bounds, and the most they have held.

    Only source and agg tasks have an output queue.
    """

    input_bytes: int = 0
    input_capacity: int = 0
    input_peak: int = 0
    output_bytes: int | None = None
    output_capacity: int | None = None
    output_peak: int | None = None
    in_flight_bytes: int = 0
    """Results of an unaligned checkpoint, which a sink task writes before those in its input queue."""


class TaskProgress(NamedTuple):
    """What has passed through a task in this attempt."""

    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    rows_total: int | None = None
    """Rows read since the stream was created; None where nobody counts them."""
    recalculates: bool = False
    """Ranges of time, or rows of a DLQ, are still to be computed again."""


class LogProgress(NamedTuple):
    """A source task's place in its vnode's log; None for other tasks."""

    processed_version: int | None = None
    wal_version: int | None = None
    """The newest version that the vnode has acknowledged."""
    wal_access: Access | None = None
    """How the task reads the log: as files of its machine, or over the network."""
    skipped_to: int = 0
    """RESUME STREAM IGNORE UNTREATED has passed over everything up to this version."""
    rows_read: int | None = None
    """Rows that it has read in this attempt, of the table that it follows; None where nobody counts them."""


class RowAccount(NamedTuple):
    """What became in this attempt of the rows that a source task took; all 0 where nobody counts them.

    Rows that are read back to be computed again are none of them.
    """

    taken: int = 0
    """Read from the log, of the table that it follows, or from the store, from before the stream."""
    waiting: int = 0
    """Read, and not processed yet."""
    skipped: int = 0
    """RESUME STREAM IGNORE UNTREATED has passed over them after they were read."""
    handed_on: int = 0
    """Computed, and sent on as they are or as part of a window."""
    late: int = 0
    dropped: int = 0
    """They are too far in the future, or can't be computed."""
    filtered: int = 0
    """They are of another child table than the stream reads, or WHERE leaves them out."""

    @property
    def missing(self) -> int:
        """How many more rows were taken than anything became of; negative if these are more."""
        return 2 * self.taken - sum(self)


class TimeStatus(NamedTuple):
    """How far a task is in event time, in units of the source's precision."""

    watermark: int | None = None
    max_event_time: int | None = None
    upper_bound: int | None = None
    """The greatest event time that rows have or writers have noted."""
    idle: bool = False
    idle_since_ms: int | None = None
    held_back_by: tuple[int, ...] = ()
    """The places of the vnodes whose watermark is the least of an agg task's inputs."""


class LeadingRow(NamedTuple):
    """The row that a vnode's time is of, where rows were late since. Times in milliseconds.

    `since_ms`: when the log got it, or the first one by which time was `ahead` of the log's own. Since then `late` rows
    came too late, and `timely` ones in time. The last rows of `silent` tables, among them `silent_tuid`, were late.
    """

    tuid: int
    ts_ms: int
    since_ms: int
    ahead: bool
    late: int
    timely: int
    silent_tuid: int | None
    silent: int


class FutureRows(NamedTuple):
    """The last row that was dropped since it is too far in the future, and since when there are such rows, in
    milliseconds.
    """

    tuid: int
    ts_ms: int
    since_ms: int


class LateRows(NamedTuple):
    """How many rows came late, and how many were dropped."""

    late_rows: int = 0
    """They came too late and are dropped."""
    late_forgotten: tuple[tuple[int, int], ...] = ()
    """(place of the vnode, rows): of `late_rows` those that an agg task dropped, for it had forgotten their windows."""
    late_kept: tuple[tuple[int, int], ...] = ()
    """(place of the vnode, rows): they came after their window had closed, and changed its result."""
    future_rows: int = 0
    """They are too far in the future and are dropped."""
    error_rows: int = 0
    """They can't be computed and are dropped."""
    refused_rows: int = 0
    """Results that don't fit their table and aren't written."""
    lateness: Lateness = Lateness()
    leading: LeadingRow | None = None
    """What makes rows late."""
    future: FutureRows | None = None
    """Which row was dropped last of those from the future."""


class StateSize(NamedTuple):
    """What a task keeps."""

    bytes: int | None = None
    capacity: int | None = None
    """The bound of `bytes`."""
    memory: int = 0
    """Of `bytes`, those in memory."""
    windows_open: int | None = None
    forgotten_groups: int | None = None
    """Groups that STATE_TTL has let go since the stream was created; None without STATE_TTL."""


class TimeSpent(NamedTuple):
    """Where a task's seconds go."""

    elapsed_s: float = 0.0
    """Of this attempt."""
    busy_s: float = 0.0
    """In its steps."""
    udf_s: float = 0.0
    """Of `busy_s`, in users' functions."""
    blocked_s: float = 0.0
    """It had something to hand on and couldn't."""
    blocked_now_s: float = 0.0
    """The last of `blocked_s`, without a break until now."""
    limited_s: float = 0.0
    """Of `blocked_s`, by a rate limit."""
    limit: str = ""
    """The rate limit that held it up last."""
    unanswered_s: float = 0.0
    """So long ago the task said what else its status has: its stream was in one step, or rested, since it was asked."""


class Pacing(NamedTuple):
    """How a task's stream gathers rows on its worker."""

    turns: int = 0
    """How often it had its turn and did something; it takes all rows then that wait."""
    gathering_s: float = 0.0
    """So long rows are held back now at most, to be taken together."""
    bound_s: float = 0.0
    """The bound of `gathering_s`."""

    @property
    def is_at_its_bound(self) -> bool:
        return 0.0 < self.bound_s <= self.gathering_s


class FunctionStatus(NamedTuple):
    """How users' functions fare in a task."""

    errors: int = 0
    """Values that could not be computed."""
    report: str = ""
    """How often each function failed, and its last error."""
    slowest: str = ""
    """The function that has taken most of the task's `udf_s`."""


class IngestProgress(NamedTuple):
    """What an ingest has read, since it was created."""

    messages: int = 0
    """Those that rows were made of, or that were dropped."""
    lag: int | None = None
    """Messages that are still to be read; None where the broker doesn't say."""
    unknown_rows: int = 0
    """Rows with fields that no column takes."""
    last_refused: str = ""
    """The last message that could not be used, and why."""


class ConnectionStatus(NamedTuple):
    """How a task fares with the external system that it reads or writes."""

    outage_since_ms: int | None = None
    """Since when a sink task could deliver nothing; None: all is well."""
    health: ConnectionHealth | None = None
    """None: there is no connection, or nothing is known of it yet."""


class NotifyCounts(NamedTuple):
    """What became of a sink task's notifications, each counted once per address."""

    sent: int = 0
    """Addresses have taken them."""
    failed: int = 0
    """They were given up."""
    waiting: int = 0
    """They are still to be sent."""
    error: str = ""
    """What went wrong last."""


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A task as heartbeats carry it. What doesn't apply to a task is as it is by default."""

    task: TaskId
    state: TaskState
    reason: str = ""
    since_ms: int = 0
    blocked_by: TaskId | None = None
    """The task that it waits for."""
    checkpoint_id: int | None = None
    """The newest checkpoint that is valid."""
    checkpoint_time_ms: int | None = None
    history: HistoryProgress | None = None
    dropped: tuple[DroppedRow, ...] | None = ()
    """The last rows that were dropped; None: as in the status before."""

    queues: QueueStatus = QueueStatus()
    progress: TaskProgress = TaskProgress()
    log: LogProgress = LogProgress()
    account: RowAccount = RowAccount()
    time: TimeStatus = TimeStatus()
    late: LateRows = LateRows()
    size: StateSize = StateSize()
    spent: TimeSpent = TimeSpent()
    pacing: Pacing = Pacing()
    functions: FunctionStatus = FunctionStatus()
    ingest: IngestProgress = IngestProgress()
    connection: ConnectionStatus = ConnectionStatus()
    notified: NotifyCounts = NotifyCounts()

    def __reduce__(self) -> tuple[Callable[..., TaskStatus], tuple[Any, ...]]:
        # Heartbeats are full of these. What dataclasses with slots do themselves takes the mnode eight times as long.
        return _status_of, (*_own_values(self), *chain.from_iterable(_records_of(self)))


_DEFAULTS: dict[str, Any] = {one.name: one.default for one in fields(TaskStatus)}
_RECORDS = {name: type(default) for name, default in _DEFAULTS.items() if hasattr(default, "_fields")}
_OWN = [name for name in _DEFAULTS if name not in _RECORDS]
_own_values, _records_of = attrgetter(*_OWN), attrgetter(*_RECORDS)
_ENDS = accumulate((len(kind._fields) for kind in _RECORDS.values()), initial=len(_OWN))
_PLACES = tuple((kind, slice(*ends)) for kind, ends in zip(_RECORDS.values(), pairwise(_ENDS), strict=True))


def _status_of(*values: Any) -> TaskStatus:
    """Returns the status with these values: its own, then those of its records."""
    return TaskStatus(*values[:len(_OWN)], *[tuple.__new__(kind, values[place]) for kind, place in _PLACES])
