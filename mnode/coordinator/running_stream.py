"""A stream, or an ingest, as it is handed to whoever runs it: what it computes, and who looks after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from penstock.common.connection import OpenedConnection
from penstock.common.errors import InternalError
from penstock.mnode.catalog.catalog_records import PauseCause
from penstock.planner.streams.ingest_plan import IngestPlan
from penstock.planner.task_plans.stream_plan import IsolationClass, PeriodPlan, StreamPlan
from penstock.tasks.protocol.deployment import Deployment, IngestDeployment, StreamDeployment, TaskSettings
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.protocol.task_graph import TaskGraph
from penstock.tasks.protocol.task_status import ConnectionHealth
from penstock.tasks.state.state_layout import layout_of


class StreamKeeper(Protocol):
    """What the engine looks up and notes for a stream that runs; by default there is nothing of it.

    All of it is asked for from other threads, and may take its time. What an attempt needs may raise PenstockErrors:
    the attempt is tried again.
    """

    def next_attempt(self) -> int:
        """Persists and returns the next attempt's number, 1 or more, always growing."""
        ...

    def children(self) -> tuple[bytes, ...]:
        """Returns the source's child tables per source task as of now, as `StreamDeployment.children`."""
        return ()

    def connection(self) -> OpenedConnection | None:
        """Opens what the external target is reached by, or what an ingest reads from."""
        return None

    def lookup_connection(self) -> OpenedConnection | None:
        """Opens what its rows look up in."""
        return None

    def recover(self) -> bool:
        """Puts a backup in the place of the stream's state; returns whether there is one."""
        return False

    def savepoints(self) -> frozenset[int]:
        """Returns the ids of the checkpoints that are kept, whatever their age."""
        return frozenset()

    def note_health(self, contact: ConnectionHealth) -> None:
        """Hears how tasks fare with a connection, each time that this has changed."""
        return


@dataclass(frozen=True, slots=True)
class RunningStream:
    """A stream, or an ingest, that shall run. `start_versions` belong to its source tasks, as in `StreamDeployment`.

    `checkpoint_interval_s`: its own, or None for the one of all. Ids up to `last_checkpoint_id` were used, also if they
    aren't on disk any more. `pause`: why it is `paused`, if not by its owner. `state_limit`: bytes of state beyond
    which it is paused; 0 for no limit.
    """

    stream_id: int
    name: str
    plan: StreamPlan | IngestPlan
    graph: TaskGraph
    start_versions: tuple[int, ...]
    keeper: StreamKeeper
    settings: TaskSettings = field(default_factory=TaskSettings)
    paused: bool = False
    pause: PauseCause | None = None
    checkpoint_interval_s: float | None = None
    last_checkpoint_id: int = 0
    state_limit: int = 0

    @property
    def database(self) -> str:
        """The database of what it reads, or that an ingest writes into."""
        return self.plan.database.name if isinstance(self.plan, IngestPlan) else self.plan.source.database

    @property
    def layout(self) -> str:
        """The fingerprint of its state's layout, empty for an ingest, whose state has a form of its own."""
        return "" if isinstance(self.plan, IngestPlan) else layout_of(self.plan)

    def followed_by(self, task: TaskId) -> tuple[int, int] | None:
        """Returns the vnode whose log a source task follows, and the uid of the table; None for other tasks."""
        if isinstance(self.plan, IngestPlan) or task.operator != "source" or isinstance(
                self.plan.computation, PeriodPlan):
            return None
        source = self.plan.sources[self.graph.read_by(task.index)]
        return self.graph.source_vgroup_ids[task.index], source.storage_uid

    @property
    def connected(self) -> bool:
        """Whether it reads from a connection, or writes to one."""
        return isinstance(self.plan, IngestPlan) or bool(self.plan.connections)

    @property
    def isolation_class(self) -> IsolationClass:
        """With whom it shares processes."""
        return IsolationClass.ANY if isinstance(self.plan, IngestPlan) else self.plan.isolation_class

    def deployment(
        self, attempt: int, checkpoint_id: int | None, paused: bool, settings: TaskSettings | None = None
    ) -> Deployment:
        """Returns what workers need to host an attempt. May take its time, and raise PenstockErrors."""
        chosen = settings or self.settings
        if isinstance(self.plan, IngestPlan):
            connection = self.keeper.connection()
            if connection is None:
                raise InternalError(f"ingest {self.name} has no connection")
            return IngestDeployment(
                self.stream_id, self.name, attempt, self.plan, connection, self.graph, checkpoint_id, chosen, paused)
        return StreamDeployment(
            self.stream_id, self.name, attempt, self.plan, self.graph, self.start_versions, checkpoint_id,
            self.keeper.children(), chosen, paused, self.keeper.connection(), self.keeper.lookup_connection())
