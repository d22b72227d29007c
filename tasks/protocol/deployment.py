"""What a worker is given to host the tasks of a stream or of an ingest."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.common.connection import OpenedConnection
from penstock.tasks.protocol.messages import SetRates, TaskId
from penstock.tasks.protocol.task_graph import TaskGraph

if TYPE_CHECKING:
    from penstock.planner.streams.ingest_plan import IngestPlan
    from penstock.planner.task_plans.stream_plan import StreamPlan


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The numbers a task works by; each comes from a conf key of the same name. A rate of 0 is unlimited.

    `latency_s`: how long gathering may hold rows of the stream back; None: as long as those of all, by `gatherTime`.
    """

    queue_bytes: int = 60 * 1024 * 1024
    block_rows_max: int = 65_536
    block_bytes_max: int = 8 * 1024 * 1024
    sink_calls_per_second: float = 50.0
    sink_tables_share: float = 0.1
    sink_bytes_per_second: float = 2_000_000.0
    source_rows_per_second: float = 0.0
    history_rows_per_second: float = 0.0
    idle_timeout_s: float = 2.0
    state_map_bytes: int = 64 * 1024**3
    state_memory_bytes: int = 128 * 1024 * 1024
    functions_directory: Path = Path("udf")
    retry_time_s: float = 600.0
    sent_record_bytes: int = 16 * 1024 * 1024
    lookup_freshness_s: float = 60.0
    latency_s: float | None = None
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
    those of its own vnode only. `connection`: what the plan's external target is reached by; `lookup_connection`: what
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
