"""Measures the memory of all processes; ends queries and pauses streams when there is too little of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.common.clock import Clock
from penstock.common.logging import logger
from penstock.common.memory import Memory
from penstock.mnode.catalog.catalog_records import PauseCause
from penstock.mnode.controller.controller_settings import ControllerSettings
from penstock.mnode.controller.controller_state import ControllerState
from penstock.mnode.controller.engine_hooks import EngineHooks
from penstock.mnode.controller.mailbox import Mailbox
from penstock.mnode.controller.stream_pauses import StreamPauses
from penstock.mnode.coordinator.memory_watch import Holding, MemoryWatch, WorkerPlace
from penstock.mnode.coordinator.stream_status import MemoryInfo
from penstock.mnode.groups.group_book import StreamState

_log = logger(__name__)

_LEAST_INTERVAL_S = 0.5
"""A look at all processes takes milliseconds: more often than so it is not worth it, however fast heartbeats come."""


class MemoryControl:
    """The memory of the engine and its processes."""

    def __init__(
        self, clock: Clock, mailbox: Mailbox, state: ControllerState, pauses: StreamPauses,
        settings: ControllerSettings, hooks: EngineHooks,
    ) -> None:
        self._clock = clock
        self._mailbox = mailbox
        self._state = state
        self._pauses = pauses
        self._interval_s = max(settings.heartbeat_interval_s, _LEAST_INTERVAL_S)
        self._hooks = hooks
        self._watch = MemoryWatch(settings.memory_limit_bytes)
        self._measured_at: float | None = clock.monotonic()  # None: a measurement is under way
        self.memory = Memory({})

    def infos(self) -> list[MemoryInfo]:
        """Returns what each process took when memory was measured last, and all together."""
        workers = {worker.connection.pid: f"worker {group}/{index}"
                   for group, index, worker in self._state.workers if worker.connection.here}
        known = [MemoryInfo("java" if pid in self.memory.java else workers.get(pid, "engine"), pid, nbytes)
                 for pid, nbytes in self.memory.by_pid.items()]
        limit = self._watch.limit
        return [*known, MemoryInfo("all", None, self.memory.total, limit or None)] if known else []

    def next_measurement(self) -> float | None:
        """Returns when (monotonic seconds) `tick` measures; None: it needn't."""
        if self._hooks.measure is None or self._measured_at is None or not self._state.workers:
            return None
        return self._measured_at + self._interval_s

    def tick(self) -> None:
        """Measures if that is due."""
        at = self.next_measurement()
        if at is not None and at <= self._clock.monotonic():
            assert self._hooks.measure is not None
            self._measured_at = None
            self._mailbox.helper(self._measure, self._hooks.measure)

    def _measure(self, measure: Callable[[float], Memory]) -> None:
        """Looks at all processes, on a helper thread."""
        memory = None
        try:
            memory = measure(self._watch.near)
        except Exception:  # noqa: BLE001
            # The next heartbeat tries again.
            _log.exception("memory could not be measured")
        self._mailbox.post(lambda: self._measured(memory))

    def _measured(self, memory: Memory | None) -> None:
        self._measured_at = self._clock.monotonic()
        if memory is None:
            return
        self.memory = memory
        workers = {WorkerPlace(group, index): memory.by_pid.get(worker.connection.pid, 0)
                   for group, index, worker in self._state.workers if worker.connection.here}
        shortage = self._watch.shortage(memory.total)
        if shortage is not None and self._hooks.end_queries(shortage):
            self._watch.note_ended(memory.total)
        found = self._watch.decide(memory.total, workers, [] if shortage is None else list(self._holdings()))
        if found is not None:
            holding, reason = found
            self._pauses.pause_for(self._state[holding.stream_id], PauseCause(reason), until_room=True)
        elif self._watch.has_room(memory.total):
            self._pauses.give_room()

    def _holdings(self) -> Iterator[Holding]:
        """Yields what each stream that isn't paused holds in the memory of each worker."""
        for placed in self._state.groups.streams:
            stream = self._state[placed.stream_id]
            if placed.state is not StreamState.RUNNING or stream.paused:
                continue
            by_worker: dict[int, int] = {}
            for status in self._state.monitor.statuses_of(placed.stream_id):
                held = status.size.memory + status.queues.input_bytes + (status.queues.output_bytes or 0)
                index = stream.stream.graph.worker_of(status.task)
                by_worker[index] = by_worker.get(index, 0) + held
            for index, nbytes in by_worker.items():
                yield Holding(placed.stream_id, stream.stream.name, WorkerPlace(placed.group.name, index), nbytes)
