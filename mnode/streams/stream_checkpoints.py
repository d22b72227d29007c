"""Streams at a checkpoint: taken, ended and altered there, and the hold on the log that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.common.errors import PenstockError, UnavailableError
from penstock.common.logging import about, logger
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.checkpoints.commit_records import CommitRecord, require_layout
from penstock.mnode.controller.stream_controller import StreamController
from penstock.mnode.coordinator import stored_plan
from penstock.mnode.coordinator.stored_plan import StoredPlan
from penstock.mnode.coordinator.task_graph_builder import task_graph
from penstock.mnode.streams.known_streams import KnownStreams, refuse_stopped
from penstock.mnode.streams.stored_stream_keeper import children_of
from penstock.mnode.streams.stream_control import StreamControl
from penstock.mnode.streams.stream_pins import pin_of
from penstock.mnode.streams.stream_planning import StreamPlanning
from penstock.mnode.streams.stream_services import StreamServices
from penstock.mnode.streams.stream_settings import state_limit
from penstock.planner.task_plans.stream_plan import StreamPlan
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.state.state_layout import layout_of

_log = logger(__name__)


class StreamCheckpoints:
    """What other statements do with streams at their checkpoints."""

    def __init__(
        self, services: StreamServices, known: KnownStreams, planning: StreamPlanning, control: StreamControl
    ) -> None:
        self._services = services
        self._known = known
        self._planning = planning
        self._control = control

    def runs(self, stream: StreamRecord) -> bool:
        """Whether the controller has the stream, in whatever state."""
        return self._services.controller.of(stream) is not None

    def progress(self, stream: StreamRecord) -> dict[int, int] | None:
        """Returns up to which version each source task has got, or None while one isn't there or reads history."""
        stored = self._known.plans.get(stream.id)
        controller = self._services.controller.running()
        if stored is None or controller is None:
            return None
        vgroup_ids = stored.graph.source_vgroup_ids
        reached: dict[int, int] = {}
        for status in controller.statuses_of(stream.id):
            if status.task.operator == "source":
                filling = status.history is not None and not status.history.done
                if not filling and status.log.processed_version is not None:
                    reached[status.task.index] = status.log.processed_version
        if len(reached) < len(vgroup_ids):
            return None
        return {vgroup_id: min(reached[n] for n, other in enumerate(vgroup_ids) if other == vgroup_id)
                for vgroup_id in vgroup_ids}

    def plan_of(self, stream: StreamRecord) -> StreamPlan:
        """Returns the plan of a stream that runs."""
        return self._known.plans[stream.id].plan

    def trigger_of(self, stream: StreamRecord) -> str | None:
        """Returns the trigger that the stream was planned with, or None if it could not be planned."""
        stored = self._known.plans.get(stream.id)
        return None if stored is None else stored.plan.trigger

    def checkpoint(self, stream: StreamRecord, timeout_s: float) -> CommitRecord:
        """Takes a checkpoint; returns when it is valid. Raises UnavailableError if it can't be had in time."""
        return self._checkpointing(stream).checkpoint_now(stream.id, timeout_s)

    def begin_checkpoint(self, stream: StreamRecord, timeout_s: float) -> tuple[int, bool]:
        """Has a checkpoint taken; returns its id, and whether it is valid by now, at most so much later."""
        return self._checkpointing(stream).begin_checkpoint(stream.id, timeout_s)

    def end_at_checkpoint(self, stream: StreamRecord, timeout_s: float, *, required: bool) -> None:
        """Ends a stream's tasks right behind a checkpoint: its source tasks rest, so nothing is read after its cut.

        If there can be no checkpoint and one is `required`, the stream runs on and the error tells why.
        """
        controller = self._services.controller.of(stream)
        if controller is None:
            if required:
                raise UnavailableError(f"stream {stream.name} doesn't run", hint="SHOW STREAMS says why")
            return
        try:
            controller.pause(stream.id)
            self._control.await_sources(controller, stream.id, paused=True)
            controller.checkpoint_now(stream.id, timeout_s)
        except PenstockError as error:
            if required:
                if stream.wanted != "paused":
                    controller.resume(stream.id)
                raise
            _log.warning("stream %s is stopped at its last checkpoint: %s", stream.name, error,
                         extra=about(stream=stream.name))
        controller.stop(stream.id)
        self._services.stores.ended(stream.id)

    def checkpointed(self, stream_id: int, versions: Mapping[int, int]) -> None:
        """Lets go of the WAL up to a committed checkpoint of a stream or an ingest, and has it copied."""
        self._services.stores.copies.offer(stream_id)
        if self._services.catalog.streams.by_id(stream_id) is None:
            return  # dropped meanwhile: its pins are released already
        self._services.stores.backups.offer(stream_id)
        for vgroup_id, version in versions.items():
            self._services.storage.vnode(vgroup_id).set_pin(pin_of(stream_id), version)

    def settle(self, stream_id: int) -> None:
        """Makes durable what a stream has read and written, before a checkpoint counts it as done.

        Under WAL_LEVEL 1 a power cut could otherwise take rows: new rows would get their versions, and the stream would
        take them for known ones. It could also take results, which would never be written again. Raises StorageError.
        """
        stream = self._services.catalog.streams.by_id(stream_id)
        if stream is None:
            return
        tables = [self._services.catalog.table_by_uid(uid) for uid in (*stream.source_uids, stream.target_uid)]
        self._services.sync_databases({table.database for table in tables if table is not None})

    def hold(self, stream: StreamRecord, record: CommitRecord) -> None:
        """Holds the log for a stream that is to go on from a checkpoint, in the vnodes that it doesn't read yet."""
        known = dict(stream.start_cut)
        for vgroup_id, version in record.versions:
            if vgroup_id not in known:
                self._services.storage.vnode(vgroup_id).set_pin(pin_of(stream.id), version)

    def deployment(
        self, stream: StreamRecord, vgroup_ids: tuple[int, ...], checkpoint_id: int,
        homes: Mapping[int, int] | None = None,
    ) -> StreamDeployment:
        """Returns how a stream's newest attempt is deployed from a checkpoint over some vnodes.

        `homes`: the vgroups of child tables that are not where the catalog says.
        """
        stored = self._known.plans[stream.id]
        graph = stored.graph if stored.graph.vgroup_ids == vgroup_ids else task_graph(stored.plan, vgroup_ids)
        return StreamDeployment(
            stream.id, stream.name, stream.attempt, stored.plan, graph, tuple(0 for _ in vgroup_ids),
            checkpoint_id, children_of(self._services.catalog, stream.source_uid, vgroup_ids, homes),
            self._services.settings(stored.options))

    def planned_as(self, stream: StreamRecord, text: str, *, live: bool) -> StoredPlan:
        """Returns what an altered statement of a stream is planned to; raises what CREATE STREAM would.

        `live`: it changes nothing that the stream computes. Raises StateLayoutError if this version would lay the
        stream's state out otherwise.
        """
        stored = self._known.plans.get(stream.id)
        planned = self._planning.plan_again(replace(stream, asked=replace(stream.asked, text=text)))
        if stored is None:
            return planned
        if live:
            return replace(stored, options=planned.options)
        require_layout(layout_of(stored.plan), layout_of(planned.plan))
        return replace(planned, graph=stored.graph)

    def alter(self, stream: StreamRecord, text: str, planned: StoredPlan) -> StreamRecord:
        """Keeps another statement of a stream, with what it was planned to; what runs is left as it is."""
        altered = self._services.catalog.streams.set_plan(stream.id, text, stored_plan.encode(planned))
        if stream.id in self._known.plans:
            self._known.plans[stream.id] = planned
        return altered

    def adjust(self, stream: StreamRecord) -> None:
        """Has a stream work by the rates and limits of its statement; one that doesn't run will when it starts."""
        stored = self._known.plans.get(stream.id)
        controller = self._services.controller.of(stream)
        if stored is not None and controller is not None:
            controller.set_rates(stream.id, self._services.settings(stored.options).rates)
            controller.set_state_limit(stream.id, state_limit(self._services.config, stored.options))

    def _checkpointing(self, stream: StreamRecord) -> StreamController:
        controller = self._services.controller.of(stream)
        if controller is None:
            refuse_stopped(stream, "checkpointed")
            raise UnavailableError(f"stream {stream.name} doesn't run", hint="SHOW STREAMS says why")
        return controller
