"""When Spark is asked for more executors, and which it gets back. Pure; Spark itself starts and ends them.

Barrier stages exclude Spark's dynamic allocation, so the engine does by Spark's own calls what that would do.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from penstock.tasks.worker.spark_executors import Executors


@dataclass(frozen=True, slots=True)
class Scale:
    """Spark shall have so many executors in all, once it has ended those that are `released`."""

    executors: int
    released: tuple[str, ...] = ()


class ExecutorKeeper:
    """Looks at each count of the executors; see `decide`. `idle_timeout_s`: how long one may host nothing."""

    def __init__(self, idle_timeout_s: float) -> None:
        self._idle_timeout_s = idle_timeout_s
        self._idle_since: dict[str, float] = {}
        self._asked = 0
        self._slots_each = 1
        self._released: set[str] = set()

    def remaining(self, found: Executors) -> Executors:
        """Returns the executors without those that were given back, which take a while to go."""
        self._released &= {executor.id for executor in found.all}
        return replace(found, all=tuple(executor for executor in found.all if executor.id not in self._released))

    def failed(self, scale: Scale) -> None:
        """Takes notice that Spark could not be asked for this."""
        self._released.difference_update(scale.released)
        self._asked = 0

    def decide(self, found: Executors, hosting: Set[str], missing: int, placed: bool, now: float) -> Scale | None:
        """Returns what Spark shall be asked for, None: nothing. `found`: those that remain.

        `hosting`: executors with workers; Spark's own count may be late. `missing`: how many slots groups wait for.
        `placed`: it is known of all workers where they are; else any executor may be theirs.
        """
        idle = {executor.id for executor in found.all if not executor.busy} - hosting
        if missing or not placed:
            idle = set()
        self._idle_since = {id_: self._idle_since.get(id_, now) for id_ in idle}
        if not found.elastic:
            return None
        self._slots_each = max([executor.slots for executor in found.all], default=self._slots_each)
        if missing:
            wanted = len(found.all) + -(-missing // self._slots_each)
            if wanted <= self._asked:
                return None
            self._asked = wanted
            return Scale(wanted)
        self._asked = 0
        released = tuple(sorted(id_ for id_, since in self._idle_since.items() if now - since >= self._idle_timeout_s))
        self._released.update(released)
        return Scale(len(found.all) - len(released), released) if released else None
