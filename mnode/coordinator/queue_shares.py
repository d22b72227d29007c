"""Who may queue how much: one budget for all queues of an engine, shared equally, never exceeded. Pure.

A share is lowered at once, but what is queued above it still has to drain: until the workers say that it has, it counts
as held, and nobody else gets it. A stream that comes finds room all the same: as many bytes as one more of the largest
stream would get are shared out to nobody, and nobody is given more than half of what is free. So streams whose full
queues nobody empties leave others less, but never nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_WORTH_TELLING = 8
"""A share that can't grow to the full grows by this part of itself at least."""


@dataclass(frozen=True, slots=True)
class QueueShare:
    """An order to all workers of a stream: each of its queues may hold `queue_bytes`. Orders are numbered."""

    stream_id: int
    order: int
    queue_bytes: int


@dataclass(slots=True)
class _Lease:
    """What a stream has: queues and bytes held per worker. `queue_bytes_max`: what it may have per queue at most."""

    queues: tuple[int, ...]
    queue_bytes_max: int
    queue_bytes: int
    held: list[int]
    order: int = 0

    @property
    def count(self) -> int:
        return sum(self.queues)


class QueueShares:
    """The shares of all streams. `budget`: bytes that all queues together may hold, 0 for any number."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._leases: dict[int, _Lease] = {}
        self._settled = True  # nothing has changed since nobody was to get another share

    @property
    def held(self) -> int:
        """Bytes that the queues of all streams hold at most."""
        return sum(sum(lease.held) for lease in self._leases.values())

    def enter(self, stream_id: int, queues: Sequence[int], queue_bytes_max: int) -> int:
        """Returns what each queue of a stream's new attempt may hold. `queues`: how many there are on each worker.

        Nothing is left of an earlier attempt.
        """
        self.leave(stream_id)
        lease = _Lease(tuple(queues), queue_bytes_max, 0, [0] * len(queues))
        self._leases[stream_id] = lease
        lease.queue_bytes = self._affordable(lease, self._target(lease, self._fair()), self._budget - self.held)
        lease.held = [count * lease.queue_bytes for count in lease.queues]
        return lease.queue_bytes

    def leave(self, stream_id: int) -> None:
        """Nothing is left of a stream."""
        self._leases.pop(stream_id, None)
        self._settled = False

    def heard(self, stream_id: int, worker: int, order: int, held: int) -> None:
        """A worker holds at most `held` bytes for the current attempt of a stream, since it has got this order."""
        lease = self._leases.get(stream_id)
        if lease is not None and order == lease.order and held != lease.held[worker]:
            lease.held[worker] = held
            self._settled = False

    def decide(self) -> list[QueueShare]:
        """Returns the shares that change now: lower ones for those who have too much, then more for the others."""
        if self._settled:
            return []
        changed: list[QueueShare] = []
        fair, free = self._fair(), self._budget - self.held
        for stream_id, lease in self._leases.items():
            target = self._target(lease, fair)
            if lease.queue_bytes > target:
                changed.append(self._give(stream_id, lease, target))
        for stream_id, lease in sorted(self._leases.items(), key=lambda item: item[1].queue_bytes):
            target = self._target(lease, fair)
            more = self._affordable(lease, target, free)
            growth = more - lease.queue_bytes
            if growth > 0 and (more == target or growth >= more // _WORTH_TELLING):
                lease.held = [held + count * growth for held, count in zip(lease.held, lease.queues, strict=True)]
                free -= lease.count * growth
                changed.append(self._give(stream_id, lease, more))
        self._settled = not changed
        return changed

    def _give(self, stream_id: int, lease: _Lease, queue_bytes: int) -> QueueShare:
        lease.queue_bytes = queue_bytes
        lease.order += 1
        return QueueShare(stream_id, lease.order, queue_bytes)

    def _fair(self) -> int | None:
        """Returns what each queue gets once everybody has drained to it, if there is a budget."""
        if not self._budget:
            return None
        counts = [lease.count for lease in self._leases.values()]
        return self._budget // (sum(counts) + max(counts, default=1))

    @staticmethod
    def _target(lease: _Lease, fair: int | None) -> int:
        return lease.queue_bytes_max if fair is None else min(lease.queue_bytes_max, fair)

    def _affordable(self, lease: _Lease, target: int, free: int) -> int:
        """Returns how much each of its queues may have now, on top of what it has, up to its target."""
        return min(target, lease.queue_bytes + free // 2 // lease.count) if self._budget else target
