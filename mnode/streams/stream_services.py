"""What the statements about streams and ingests work with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.common.clock import Clock
from penstock.common.config import Config
from penstock.common.errors import UnavailableError
from penstock.common.logging import about, logger
from penstock.common.paths import DataPaths
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_records import IngestRecord, StreamRecord
from penstock.mnode.catalog.name_lookup import require_database
from penstock.mnode.checkpoints.checkpoint_backups import Backups
from penstock.mnode.checkpoints.checkpoint_copies import CheckpointsToGive
from penstock.mnode.checkpoints.commit_records import CommitRecords
from penstock.mnode.controller.stream_controller import StreamController
from penstock.mnode.ddl.connections import Connections
from penstock.mnode.dnode.task_states import TaskStates
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.mnode.streams.stream_settings import stream_settings
from penstock.mnode.write.result_store import ResultStore
from penstock.sql.tree.statements import StreamOptions
from penstock.tasks.protocol.deployment import TaskSettings

_log = logger(__name__)


class ControllerSource:
    """Who runs streams and ingests: made when the first of them has to run."""

    def __init__(self, make: Callable[[], StreamController]) -> None:
        self._make = make
        self._controller: StreamController | None = None

    def get(self) -> StreamController:
        """Returns the controller, a new one if nothing had to run yet."""
        if self._controller is None:
            self._controller = self._make()
        return self._controller

    def running(self) -> StreamController | None:
        """Returns the controller, None if nothing had to run yet."""
        return self._controller

    def of(self, run: StreamRecord | IngestRecord) -> StreamController | None:
        """Returns the controller if it has the stream, or the ingest, in whatever state."""
        controller = self._controller
        return controller if controller is not None and run.id in controller.stream_states() else None

    def end_tasks(self, run: StreamRecord | IngestRecord, timeout_s: float) -> bool:
        """Returns whether no task of the stream, or the ingest, is left."""
        if self._controller is None:
            return True
        try:
            self._controller.stop(run.id, timeout_s)
        except UnavailableError as error:
            _log.warning("%s is to end, but %s", run.name, error, extra=about(stream=run.name))
            return False
        return True

    def close(self) -> None:
        """Ends all tasks, after a last checkpoint."""
        if self._controller is not None:
            self._controller.close()


@dataclass(frozen=True, slots=True)
class RunStores:
    """What is kept of streams and ingests that run: whose results are taken, their states, their commit records, and
    the copies of those, elsewhere and for other nodes of a cluster."""

    results: ResultStore
    states: TaskStates
    records: CommitRecords
    backups: Backups
    copies: CheckpointsToGive

    def fence(self, run_id: int, attempt: int) -> None:
        """Refuses what attempts before this one still write."""
        self.results.fence(run_id, attempt)
        self.states.fence(run_id, attempt)

    def held(self, run_id: int) -> frozenset[int]:
        """Returns the ids of checkpoints that must stay, since they are being copied, or were."""
        return self.backups.held(run_id) | self.copies.held(run_id)

    def ended(self, run_id: int) -> None:
        """Refuses what a worker that hangs may still try to write, until there is another attempt."""
        self.results.forget(run_id)
        self.states.forget(run_id)


@dataclass(frozen=True, slots=True)
class StreamServices:
    """What the statements about streams and ingests share."""

    catalog: Catalog
    storage: Storage
    stores: RunStores
    connections: Connections
    paths: DataPaths
    config: Config
    clock: Clock
    controller: ControllerSource

    def settings(self, options: StreamOptions) -> TaskSettings:
        """Returns what the tasks of a stream with these options work by."""
        return stream_settings(self.config, self.paths, options)

    def sync_databases(self, names: Iterable[str]) -> None:
        """Makes durable what has been written into these databases. Raises StorageError."""
        for name in names:
            for vgroup_id in require_database(name, self.catalog).vgroup_ids:
                self.storage.vnode(vgroup_id).sync()
