"""Starts streams of the catalog: when they are created, when the engine starts, and after they were stopped."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from penstock.common.errors import CorruptionError
from penstock.common.logging import about, logger
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.checkpoints.commit_records import require_layout
from penstock.mnode.coordinator import stored_plan
from penstock.mnode.coordinator.running_stream import RunningStream
from penstock.mnode.coordinator.stored_plan import StoredPlan
from penstock.mnode.dnode.stream_cuts import READER_PIN_PREFIX
from penstock.mnode.streams.known_streams import KnownStreams
from penstock.mnode.streams.stored_stream_keeper import StoredStreamKeeper
from penstock.mnode.streams.stream_pins import HOLD_PREFIX, PIN_PREFIX, pin_of
from penstock.mnode.streams.stream_planning import StreamPlanning
from penstock.mnode.streams.stream_services import StreamServices
from penstock.mnode.streams.stream_settings import state_limit
from penstock.tasks.state.state_layout import layout_of

_log = logger(__name__)


class StreamStarts:
    """Starts streams by their stored plans."""

    def __init__(self, services: StreamServices, known: KnownStreams, planning: StreamPlanning) -> None:
        self._services = services
        self._known = known
        self._planning = planning

    def start_all(self) -> None:
        """Starts every stream of the catalog again. One that cannot be planned is FAILED, and the others run."""
        catalog = self._services.catalog
        for stream_id, problem in catalog.streams.damaged.items():
            _log.error("stream %x is set aside: %s", stream_id, problem)
        ids = {*(stream.id for stream in catalog.streams.all()), *catalog.streams.damaged}
        self._release_stale_pins({pin_of(stream_id) for stream_id in ids})
        for stream in catalog.streams.all():
            # Those that are refreshed together must know of each other when the first of them begins.
            with suppress(Exception):
                self._known.plans[stream.id] = self._plan_of(stream)
        for stream in catalog.streams.all():
            self.begin(stream)

    def begin(self, stream: StreamRecord) -> None:
        """Starts a stream of the catalog unless it is stopped, by its stored plan; one that has none is FAILED."""
        try:
            stored = self._known.plans[stream.id] = self._plan_of(stream)
            self._known.failures.pop(stream.id, None)
            self._set_misfits_aside(stream, stored.graph.read_vgroup_ids)
            records = self._services.stores.records.all(stream.id)
            newest = next((one.record for one in records if one.record is not None), None)
            if newest is not None:
                require_layout(newest.layout, layout_of(stored.plan))
            if stream.wanted != "stopped" and not self._services.config.disable_stream:
                self.run(stream, stored)
        except Exception as error:  # noqa: BLE001  whatever is wrong with it, the engine opens and the others run
            self._known.note_failure(stream, error)

    def run(self, stream: StreamRecord, stored: StoredPlan) -> None:
        """Has the controller run a stream, from its last checkpoint or from its cut."""
        plan, graph, options = stored.plan, stored.graph, stored.options
        starts = dict(stream.start_cut)
        for vgroup_id, version in stream.start_cut:
            vnode = self._services.storage.vnode(vgroup_id)
            if pin_of(stream.id) not in vnode.reader.stats().pins:
                vnode.set_pin(pin_of(stream.id), version)
        interval = options.checkpoint_interval
        self._services.controller.get().start(RunningStream(
            stream.id, stream.name, plan, graph, tuple(starts[vgroup_id] for vgroup_id in graph.source_vgroup_ids),
            StoredStreamKeeper(stream, stored, self._services), self._services.settings(options),
            stream.wanted == "paused", stream.pause, None if interval is None else interval.in_units("ms") / 1000,
            stream.last_checkpoint_id, state_limit(self._services.config, options)))

    def _plan_of(self, stream: StreamRecord) -> StoredPlan:
        """Returns a stream's stored plan over the vnodes and snodes that there are now.

        A stream whose stored plan this version can't read is planned again. The new plan is stored if it lays out the
        state as before. Raises StateLayoutError if it doesn't, and what CREATE STREAM raises.
        """
        kept = None
        try:
            kept = stored_plan.decode(stream.plan)
            planned = replace(kept, graph=self._planning.graph_of(kept.plan, kept.graph))
        except ValueError as error:
            _log.warning("stream %s is planned again, since its stored plan can't be read: %s", stream.name, error,
                         extra=about(stream=stream.name))
            planned = self._planning.plan_again(stream)
            require_layout(stored_plan.stored_layout(stream.plan), layout_of(planned.plan))
        if planned != kept:
            self._services.catalog.streams.set_plan(stream.id, stream.asked.text, stored_plan.encode(planned))
        return planned

    def _set_misfits_aside(self, stream: StreamRecord, vgroup_ids: tuple[int, ...]) -> None:
        """Sets checkpoints over other vnodes than there are aside: from before a split, or of one that failed.

        Raises CorruptionError if there are no others: then it isn't they that are wrong.
        """
        records = [one.record for one in self._services.stores.records.all(stream.id) if one.record is not None]
        misfits = [record for record in records if not record.is_over(vgroup_ids)]
        if not misfits:
            return
        ids = ", ".join(str(record.checkpoint_id) for record in misfits)
        vnodes = ", ".join(map(str, vgroup_ids))
        if misfits == records:
            raise CorruptionError(
                f"no checkpoint of stream {stream.name} is over the vnodes of its tables ({vnodes}); "
                f"those that there are ({ids}) are kept as they are, and nothing is read",
                hint="restore the folder catalog that belongs to them, or CREATE OR REPLACE STREAM computes it anew "
                     "from history")
        moved = self._services.stores.records.set_aside(stream.id, [record.checkpoint_id for record in misfits])
        self._known.tell(stream.id, f"checkpoints {ids} are for other vnodes than the current ones ({vnodes}), and "
                             f"were moved to {moved[0].parent}")

    def _release_stale_pins(self, known: set[str]) -> None:
        """Lets go of WAL that streams held which a crash kept from being dropped completely."""
        for database in self._services.catalog.databases():
            for vgroup_id in database.vgroup_ids:
                if vgroup_id in self._services.storage.broken:
                    continue
                vnode = self._services.storage.vnode(vgroup_id)
                for owner in vnode.reader.stats().pins:
                    if owner.startswith((PIN_PREFIX, HOLD_PREFIX, READER_PIN_PREFIX)) and owner not in known:
                        vnode.release_pin(owner)
