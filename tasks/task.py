"""What every task is, and what it may ask of the world: the seam between pure tasks and the runtime at the edge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pyarrow as pa

from penstock.common.clock import Clock
from penstock.common.connection import OpenedConnection
from penstock.tasks.graph import TaskGraph
from penstock.tasks.messages import ReadBack, ResultWrite, SetRates, TaskCheckpoint, TaskEvent, TaskId, TaskStatus
from penstock.tasks.messages_in import Consumer, Positions
from penstock.tasks.queues import ChannelQueue

if TYPE_CHECKING:
    from penstock.planner.streams.ingest_plan import IngestPlan
    from penstock.planner.task_plans.stream_plan import LookupPlan, StreamPlan
    from penstock.tasks.emit.writers import OutsideWriter
    from penstock.tasks.notify.notifier import Notifier
    from penstock.tasks.state_store import StateStore
    from penstock.vnode.snapshot import TimeSpan
    from penstock.wal.reader import WalReader


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The numbers a task works by; each comes from a conf key of the same name. A rate of 0 is unlimited."""

    queue_bytes: int = 60 * 1024 * 1024
    block_rows_max: int = 65_536
    block_bytes_max: int = 8 * 1024 * 1024
    sink_calls_per_second: float = 50.0
    sink_tables_per_second: float = 1000.0
    sink_bytes_per_second: float = 2_000_000.0
    source_rows_per_second: float = 0.0
    history_rows_per_second: float = 0.0
    idle_timeout_s: float = 2.0
    state_map_bytes: int = 64 * 1024**3
    state_memory_bytes: int = 128 * 1024 * 1024
    functions_directory: Path = Path("udf")
    retry_time_s: float = 600.0
    lookup_freshness_s: float = 60.0
    compute_bytes: int = 1024**3
    compute_spill_bytes: int = 10 * 1024**3

    @property
    def rates(self) -> SetRates:
        return SetRates(**{field.name: getattr(self, field.name) for field in fields(SetRates)})

    def with_rates(self, rates: SetRates) -> TaskSettings:
        """Returns the settings with other rates."""
        return replace(self, **asdict(rates))


@dataclass(frozen=True, slots=True)
class StreamDeployment:
    """Everything a worker needs to host the tasks of one stream, shipped over the control connection.

    `graph` says which tasks there are, and on which workers. `start_versions[i]`: the last
    WAL version that does *not* belong to the stream (its creation cut), used when `checkpoint_id` is None; else tasks
    restore that committed checkpoint. `children[i]`: Arrow IPC stream of (uid uint64, name string, tags...) of the
    source's child tables in vnode i as of now; later ones arrive as META records of the WAL. What a worker gets has
    those of its own vnode only. `connection`: what the plan's target outside is reached by; `lookup_connection`: what
    it looks up in.
    """

    stream_id: int
    name: str
    attempt: int
    plan: StreamPlan
    graph: TaskGraph
    start_versions: tuple[int, ...]
    checkpoint_id: int | None
    children: tuple[bytes, ...]
    settings: TaskSettings
    paused: bool = False
    connection: OpenedConnection | None = None
    lookup_connection: OpenedConnection | None = None

    def for_worker(self, index: int) -> StreamDeployment:
        """Returns what worker `index` needs of it: with many vnodes, all child tables would be too much."""
        own = tuple(children if self.graph.worker_of(TaskId(self.stream_id, "source", n)) == index else b""
                    for n, children in enumerate(self.children))
        return replace(self, children=own)


@dataclass(frozen=True, slots=True)
class IngestDeployment:
    """Everything a worker needs to host the tasks of one ingest. As `StreamDeployment`, where that has the same fields.

    `connection` has its secrets: it travels over the control connection and is written nowhere.
    """

    stream_id: int
    name: str
    attempt: int
    plan: IngestPlan
    connection: OpenedConnection
    graph: TaskGraph
    checkpoint_id: int | None
    settings: TaskSettings
    paused: bool = False

    def for_worker(self, index: int) -> IngestDeployment:
        return self


Deployment = StreamDeployment | IngestDeployment


class ResultWriter(Protocol):
    """How a sink task reaches what it writes to. Writes are performed one after the other, in their order.

    Writing the same rows again must change nothing, unless the writer is a `TransactionalWriter`.
    """

    def submit(self, write: ResultWrite) -> None:
        """Hands a write over and returns at once, also while others are under way."""
        ...

    def acknowledged(self) -> int:
        """Returns how many of all submitted writes are acknowledged; raises what one failed with.

        Those behind a write that failed are not performed.
        """
        ...


@runtime_checkable
class TransactionalWriter(ResultWriter, Protocol):
    """A writer for what would count rows that are written again. Writes count from their transaction's commit on.

    Under EXACTLY_ONCE a transaction goes from checkpoint to checkpoint: prepared when the checkpoint is taken,
    committed when that is valid. Under AT_LEAST_ONCE it is one write, which a restart may repeat.
    """

    def recover(self, checkpoint_id: int | None) -> None:
        """Commits what was prepared for this checkpoint and earlier ones, and discards everything else."""
        ...

    def prepare(self, checkpoint_id: int) -> None:
        """Makes the writes since the last `prepare` durable, so that `commit` can't fail for their sake."""
        ...

    def commit(self, checkpoint_id: int) -> None:
        """Makes everything count that was prepared for this checkpoint and earlier ones; once more is no error."""
        ...

    def commit_writes(self) -> None:
        """Makes all writes count that were acknowledged."""
        ...


class TaskEnvironment(Protocol):
    """A task's way to the world; the runtime implements it for workers, tests and the simulation in memory."""

    clock: Clock

    @property
    def spill(self) -> Path:
        """A directory for what a task's DuckDB doesn't keep in memory; many share it."""
        ...

    def open_wal(self, vgroup_id: int, after_version: int) -> WalReader:
        """Returns a reader whose next record is `after_version + 1`."""
        ...

    def read_rows(
        self,
        vgroup_id: int,
        table_uid: int,
        tuids: pa.UInt64Array | None,
        first_ts: int,
        last_ts: int,
        as_of: int,
    ) -> pa.Table:
        """Returns the rows of the vnode's store as of WAL version `as_of`, `first_ts <= ts <= last_ts`.

        Columns: `_tuid`, the physical columns, `_ver`; for recalculation.
        """
        ...

    def time_span(
        self, vgroup_id: int, table_uid: int, first_ts: int, last_ts: int, as_of: int
    ) -> TimeSpan | None:
        """Returns where the rows that `read_rows` would give lie, and about how many they are; None: there are none."""
        ...

    def read_lookup(self, plan: LookupPlan, connection: OpenedConnection | None) -> pa.Table:
        """Returns the columns of a table that rows look up in, as it is now. It may have to wait; any thread.

        Raises PenstockErrors; it may be tried again.
        """
        ...

    def in_background(self, work: Callable[[], None], name: str) -> None:
        """Has work done that may have to wait: in a thread of this name, or in memory at once."""
        ...

    def result_writer(self, task: TaskId) -> ResultWriter: ...

    def open_consumer(self, deployment: IngestDeployment, index: int, positions: Positions) -> Consumer:
        """Returns what task `index` of an ingest reads from, from these positions on. The task closes it.

        Raises OutsideErrors; it may be tried again.
        """
        ...

    def outside_writer(self, task: TaskId, deployment: StreamDeployment, store: StateStore) -> OutsideWriter:
        """Returns what a sink task writes to whose target is outside. `store` is the task's own."""
        ...

    def notifier(self, task: TaskId, deployment: StreamDeployment) -> Notifier | None:
        """Returns what a sink task of a stream with NOTIFY tells of windows by; None: nobody is to hear of a trial."""
        ...

    def open_state(self, task: TaskId, map_bytes: int) -> StateStore:
        """Returns the state of a task, of `map_bytes` at most; nobody else has it open. The task closes it."""
        ...

    def acknowledge(self, checkpoint: TaskCheckpoint) -> None: ...

    def read_back(self, order: ReadBack) -> None:
        """Has source tasks compute windows again, soon; the order is lost if the attempt ends before they have it."""
        ...

    def wake(self) -> None:
        """Wakes the stream's runner: something changed that a task may act on."""
        ...


class StreamTask(Protocol):
    """A task as the runtime drives it. `step` and `close` are called by one thread only; `post` by any."""

    id: TaskId

    @property
    def followed_table(self) -> int | None:
        """The uid of the table that a source task follows in its vnode's log; None for other tasks."""
        ...

    @property
    def input(self) -> ChannelQueue[TaskId]: ...

    @property
    def output(self) -> ChannelQueue[TaskId] | None:
        """None for sink tasks."""
        ...

    def step(self) -> bool:
        """Does a small amount of work without blocking; returns whether anything was done."""
        ...

    def next_deadline(self) -> float | None:
        """Returns the monotonic time at which `step` should be called even if nothing changed, or None."""
        ...

    def post(self, event: TaskEvent) -> None: ...

    def status(self) -> TaskStatus: ...

    def close(self) -> None: ...
