"""Counts Spark's executors and their slots, and asks for more or fewer of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from penstock.common.clock import Clock
from penstock.common.logging import logger
from penstock.mnode.controller.controller_settings import ControllerSettings
from penstock.mnode.controller.group_jobs import GroupJobs
from penstock.mnode.controller.group_runtime import Handle, Runtime
from penstock.mnode.controller.mailbox import Mailbox
from penstock.mnode.coordinator.executor_keeper import ExecutorKeeper, Scale
from penstock.mnode.coordinator.stream_status import WorkerInfo
from penstock.mnode.groups.worker_groups import GroupMachine
from penstock.tasks.worker.spark_executors import Executors

_log = logger(__name__)

_FIRST_COUNT_S = 0.1
"""How often it is looked whether Spark is there and tells its executors."""


class ExecutorScaling:
    """The executors that there are. `on_slots` is told how many slots they have, each time that this changes."""

    def __init__(
        self, clock: Clock, mailbox: Mailbox, groups: GroupMachine, jobs: GroupJobs, runtime: Runtime,
        settings: ControllerSettings, on_slots: Callable[[int], None],
    ) -> None:
        self._clock = clock
        self._mailbox = mailbox
        self._groups = groups
        self._jobs = jobs
        self._runtime = runtime
        self._interval_s = settings.executors_interval_s
        self._on_slots = on_slots
        self._keeper = ExecutorKeeper(settings.groups.idle_timeout_s)
        self._executors: Executors | None = None
        self._counted_at: float | None = clock.monotonic() - self._interval_s  # None: Spark is being asked

    @property
    def hosts(self) -> dict[str, str]:
        """The machines by executor."""
        return {} if self._executors is None else {executor.id: executor.host for executor in self._executors.all}

    def free_slots(self) -> Iterator[WorkerInfo]:
        """Yields a line for each executor that has free slots."""
        for executor in () if self._executors is None else self._executors.all:
            hosted = sum(list(places.values()).count(executor.id) for places in self._jobs.places.values())
            free = executor.slots - max(executor.busy, hosted)
            if free > 0:
                yield WorkerInfo(None, None, None, "FREE", executor=executor.id, host=executor.host, slots=free)

    def next_count(self) -> float | None:
        """Returns when (monotonic seconds) `tick` counts them; None: it needn't."""
        scalable = self._executors is not None and self._executors.elastic and self._executors.all
        if self._counted_at is None or not (self._groups.groups or scalable):
            return None
        return self._counted_at + (_FIRST_COUNT_S if self._executors is None else self._interval_s)

    def tick(self) -> None:
        """Counts the executors if that is due."""
        at = self.next_count()
        if at is not None and at <= self._clock.monotonic():
            self._counted_at = None
            self._mailbox.helper(self._count, self._jobs.unplaced())

    def _count(self, handles: Mapping[str, Handle]) -> None:
        """Asks Spark for its executors, and where the workers of these groups are, on a helper thread."""
        executors: Executors | None = None
        places: dict[str, Mapping[int, str]] = {}
        try:
            executors = self._runtime.executors()
            if executors is not None:
                places = {group: handle.places() for group, handle in handles.items()}
        except Exception:  # noqa: BLE001
            # Spark may be going; it is asked again.
            _log.exception("Spark's executors could not be counted")
        self._mailbox.post(lambda: self._counted(executors, places))

    def _counted(self, executors: Executors | None, found_places: Mapping[str, Mapping[int, str]]) -> None:
        now = self._counted_at = self._clock.monotonic()
        if executors is None:
            return
        places = self._jobs.places
        for group in self._groups.groups:
            found = found_places.get(group.name, {})
            if group.slots and len(found) == group.workers:
                places[group.name] = found
        remaining = self._note(executors)
        missing = self._groups.missing_slots(*(group for group in self._groups.groups if group.lacks_slots))
        placed = all(group.name in places for group in self._groups.groups)
        hosting = {id_ for of_group in places.values() for id_ in of_group.values()}
        scale = self._keeper.decide(remaining, hosting, missing, placed, now)
        if scale is not None:
            self._note(remaining)
            self._mailbox.helper(self._scale, scale)

    def _note(self, found: Executors) -> Executors:
        """Takes notice of those executors that aren't being given back, and returns them."""
        known = None if self._executors is None else self._executors.slots
        self._executors = self._keeper.remaining(found)
        if self._executors.slots != known:
            self._on_slots(self._executors.slots)
        return self._executors

    def _scale(self, scale: Scale) -> None:
        _log.info("Spark is asked for %d executors%s", scale.executors,
                  f", and gets {', '.join(scale.released)} back" if scale.released else "")
        try:
            self._runtime.scale(scale.executors, scale.released)
        except Exception:  # noqa: BLE001
            # The next count decides anew.
            _log.exception("Spark could not be asked for executors")
            self._mailbox.post(lambda: self._keeper.failed(scale))
