"""Tells workers how much the queues of each stream may hold, and hears how much they do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.mnode.controller.controller_state import ControllerState
from penstock.mnode.coordinator.queue_shares import QueueShares
from penstock.tasks.protocol import control


class QueueBounds:
    """The queues of all streams. `budget_bytes`: what all of them together may hold, 0 for any number."""

    def __init__(self, state: ControllerState, budget_bytes: int) -> None:
        self._state = state
        self._shares = QueueShares(budget_bytes)

    def enter(self, stream_id: int, queues: Sequence[int], queue_bytes_max: int) -> int:
        """Returns what each queue of a stream's new attempt may hold. `queues`: how many there are on each worker."""
        return self._shares.enter(stream_id, queues, queue_bytes_max)

    def leave(self, stream_id: int) -> None:
        """Nothing is left of a stream: the others get its share."""
        self._shares.leave(stream_id)
        self.share()

    def heard(self, queues: Iterable[control.QueuesHeld], index: int) -> None:
        """A worker says what queues hold."""
        for held in queues:
            stream = self._state.get(held.stream_id)
            if stream is not None and stream.runs_attempt(held.attempt):
                self._shares.heard(held.stream_id, index, held.order, held.held_bytes)
        self.share()

    def share(self) -> None:
        """Tells workers which bounds have changed."""
        for share in self._shares.decide():
            stream, deployment = self._state.groups.stream(share.stream_id), self._state[share.stream_id].deployment
            if stream is not None and deployment is not None:
                self._state.workers.send(stream.group.name, control.BoundQueues(
                    share.stream_id, deployment.attempt, share.order, share.queue_bytes))
