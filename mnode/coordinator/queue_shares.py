"""Who may queue how much: one budget for all queues of an engine, shared equally, never exceeded. Pure.

A share is lowered at once, but what is queued above it still has to drain: until the workers say that it has, it counts
as held, and nobody else gets it. A stream that comes finds room all the same: as many bytes as one more of the largest
stream would get are shared out to nobody, and nobody is given more than half of what is free. So streams whose full
queues nobody empties leave others less, but never nothing.

Shares are lowered in steps: else each stream that comes would change those of all others, by less each time, and a
thousand streams would be told a thousand times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_WORTH_TELLING = 8
"""A share that can't grow to the full grows by this part of itself at least."""

_STEPS = 8
"""As many steps are there from a number of queues to its double; of less than twice so many, each one counts."""


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
        self._counts: Counter[int] = Counter()  # how many leases have so many queues
        self._queues = 0  # of all of them
        self._held = 0  # by all of them
        self._settled = True  # nothing has changed since nobody was to get another share
        self._settled_fair: int | None = None  # what was fair then

    @property
    def held(self) -> int:
        """Bytes that the queues of all streams hold at most."""
        return self._held

    def enter(self, stream_id: int, queues: Sequence[int], queue_bytes_max: int) -> int:
        """Returns what each queue of a stream's new attempt may hold. `queues`: how many there are on each worker.

        Nothing is left of an earlier attempt.
        """
        self.leave(stream_id)
        lease = _Lease(tuple(queues), queue_bytes_max, 0, [0] * len(queues))
        self._leases[stream_id] = lease
        self._count(lease, 1)
        fair = self._fair()
        target = self._target(lease, fair)
        lease.queue_bytes = self._affordable(lease, target, self._budget - self._held)
        self._hold(lease, [count * lease.queue_bytes for count in lease.queues])
        # The others have what they should as before, and this one has it, too.
        self._settled = self._settled and fair == self._settled_fair and lease.queue_bytes == target
        return lease.queue_bytes

    def leave(self, stream_id: int) -> None:
        """Nothing is left of a stream."""
        lease = self._leases.pop(stream_id, None)
        if lease is not None:
            self._count(lease, -1)
            self._hold(lease, [])
            self._settled = False

    def heard(self, stream_id: int, worker: int, order: int, held: int) -> None:
        """A worker holds at most `held` bytes for the current attempt of a stream, since it has got this order."""
        lease = self._leases.get(stream_id)
        if lease is not None and order == lease.order and held != lease.held[worker]:
            self._hold(lease, [*lease.held[:worker], held, *lease.held[worker + 1:]])
            self._settled = False

    def decide(self) -> list[QueueShare]:
        """Returns the shares that change now: lower ones for those who have too much, then more for the others."""
        if self._settled:
            return []
        changed: list[QueueShare] = []
        fair, free = self._fair(), self._budget - self._held
        for stream_id, lease in self._leases.items():
            target = self._target(lease, fair)
            if lease.queue_bytes > target:
                changed.append(self._give(stream_id, lease, target))
        for stream_id, lease in sorted(self._leases.items(), key=lambda item: item[1].queue_bytes):
            target = self._target(lease, fair)
            more = self._affordable(lease, target, free)
            growth = more - lease.queue_bytes
            if growth > 0 and (more == target or growth >= more // _WORTH_TELLING):
                self._hold(
                    lease, [held + count * growth for held, count in zip(lease.held, lease.queues, strict=True)])
                free -= lease.count * growth
                changed.append(self._give(stream_id, lease, more))
        self._settled, self._settled_fair = not changed, fair
        return changed

    def _count(self, lease: _Lease, times: int) -> None:
        """Counts the queues of a lease that comes (1) or goes (-1)."""
        self._counts[lease.count] += times
        self._counts = +self._counts
        self._queues += times * lease.count

    def _hold(self, lease: _Lease, held: list[int]) -> None:
        """Books what the queues of a lease hold from now on, by worker."""
        self._held += sum(held) - sum(lease.held)
        lease.held = held

    def _give(self, stream_id: int, lease: _Lease, queue_bytes: int) -> QueueShare:
        lease.queue_bytes = queue_bytes
        lease.order += 1
        return QueueShare(stream_id, lease.order, queue_bytes)

    def _fair(self) -> int | None:
        """Returns what each queue gets once everybody has drained to it, if there is a budget."""
        if not self._budget:
            return None
        queues = self._queues + max(self._counts, default=1)
        step = 1 << max(0, queues.bit_length() - _STEPS.bit_length())
        return self._budget // (-(-queues // step) * step)

    @staticmethod
    def _target(lease: _Lease, fair: int | None) -> int:
        return lease.queue_bytes_max if fair is None else min(lease.queue_bytes_max, fair)

    def _affordable(self, lease: _Lease, target: int, free: int) -> int:
        """Returns how much each of its queues may have now, on top of what it has, up to its target."""
        return min(target, lease.queue_bytes + free // 2 // lease.count) if self._budget else target
