"""Takes items from the channels of an input queue in turn, holding back channels whose barrier is already in."""

from __future__ import annotations

from collections.abc import Collection

from penstock.common.errors import InternalError
from penstock.tasks.messages import Barrier, Item, TaskId
from penstock.tasks.queues import ChannelQueue


class Inbox:
    """The reading side of a task's input queue, with barrier alignment (design: checkpoints, EXACTLY_ONCE)."""

    def __init__(self, queue: ChannelQueue[TaskId]) -> None:
        self._queue = queue
        self._turn = 0
        self._held: set[TaskId] = set()
        self._barrier: int | None = None

    @property
    def aligning(self) -> bool:
        """Whether at least one channel waits for the barriers of the others."""
        return bool(self._held)

    def next(self, ahead: Collection[TaskId] = ()) -> tuple[TaskId, Item] | None:
        """Takes the next item of the next channel that is not held back and has one.

        Channels that are `ahead` of the others wait too, but not while barriers are aligned: one of them may have the
        barrier that the others wait for.
        """
        channels = self._queue.channels
        for step in range(len(channels)):
            channel = channels[(self._turn + step) % len(channels)]
            if channel in self._held or (channel in ahead and not self._held):
                continue
            item = self._queue.take(channel)
            if item is not None:
                self._turn = (self._turn + step + 1) % len(channels)
                return channel, item
        return None

    def barrier(self, channel: TaskId, barrier: Barrier) -> bool:
        """Notes a barrier and holds its channel back; returns True, and lets all go on, once all channels have it.

        A newer barrier replaces an alignment that was abandoned: its channels are let go.
        """
        if self._barrier is not None and barrier.checkpoint_id < self._barrier:
            return False
        if self._barrier is not None and barrier.checkpoint_id > self._barrier:
            self._held.clear()
        self._barrier = barrier.checkpoint_id
        if channel in self._held:
            raise InternalError(f"two barriers {barrier.checkpoint_id} came on channel {channel}")
        self._held.add(channel)
        if len(self._held) < len(self._queue.channels):
            return False
        self._held.clear()
        self._barrier = None
        return True

    def waiting_for(self) -> list[TaskId]:
        """Returns the channels whose barrier is still missing, if an alignment is under way."""
        return [channel for channel in self._queue.channels if channel not in self._held] if self._held else []
