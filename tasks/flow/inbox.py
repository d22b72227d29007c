"""Takes items from the channels of an input queue in turn, and tells when all barriers of a checkpoint have arrived."""

from __future__ import annotations

from collections.abc import Collection

from penstock.common.errors import InternalError
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.protocol.messages import Barrier, Block, Item, TaskId, Watermark


class Inbox:
    """The reading side of a task's input queue.

    `aligned` (EXACTLY_ONCE): a channel whose barrier is in is held back until those of the others are, so that the
    state has nothing from behind a barrier. Otherwise (AT_LEAST_ONCE) no channel ever waits, and the state may have
    rows that a restart from the checkpoint reads again.
    """

    def __init__(self, queue: ChannelQueue[TaskId], *, aligned: bool = True) -> None:
        self._queue = queue
        self._aligned = aligned
        self._turn = 0
        self._held: set[TaskId] = set()
        self._barrier: int | None = None
        #: the newest barrier of each channel that no one is held for
        self._passed: dict[TaskId, int] = {}
        #: barriers up to this one are of checkpoints that are over
        self._over = 0

    @property
    def aligning(self) -> bool:
        """Whether at least one channel waits for the barriers of the others."""
        return bool(self._held)

    def next(self, ahead: Collection[TaskId] = ()) -> tuple[TaskId, Item] | None:
        """Takes the next item of the next channel that is not held back and has one.

        Channels that are `ahead` of the others wait too, but not while barriers are awaited: one of them may have the
        barrier that the others wait for.
        """
        for channel in self._readable(ahead):
            item = self._queue.take(channel)
            if item is not None:
                self._pass_turn(channel)
                return channel, item
        return None

    def next_before(self, checkpoint_id: int) -> tuple[TaskId, Item] | None:
        """Takes what `next` might of a channel whose barrier of this checkpoint isn't in."""
        for channel in self._readable(()):
            if self._passed.get(channel, 0) < checkpoint_id and (item := self._queue.take(channel)) is not None:
                self._pass_turn(channel)
                return channel, item
        return None

    def next_block(self, ahead: Collection[TaskId], but: Collection[TaskId]) -> tuple[TaskId, Block] | None:
        """Takes what `next` might if it is a block and its channel is none of `but`."""
        for channel in self._readable(ahead):
            if channel not in but and isinstance(block := self._queue.peek(channel), Block):
                self._queue.take(channel)
                self._pass_turn(channel)
                return channel, block
        return None

    def time_behind(self, channel: TaskId) -> Watermark | None:
        """Takes the watermark that follows what was just taken from this channel, if one does."""
        item = self._queue.peek(channel)
        if not isinstance(item, Watermark):
            return None
        self._queue.take(channel)
        return item

    def _readable(self, ahead: Collection[TaskId]) -> tuple[TaskId, ...]:
        """Returns the channels that don't wait for others, in turn."""
        channels = self._queue.channels
        if len(channels) == 1 and not self._held and not ahead:
            return channels
        if self._held or (ahead and any(barrier > self._over for barrier in self._passed.values())):
            ahead = ()
        in_turn = channels[self._turn:] + channels[:self._turn]
        if not self._held and not ahead:
            return in_turn
        return tuple(channel for channel in in_turn if channel not in self._held and channel not in ahead)

    def _pass_turn(self, channel: TaskId) -> None:
        channels = self._queue.channels
        if len(channels) > 1:
            self._turn = (channels.index(channel) + 1) % len(channels)

    def barrier(self, channel: TaskId, barrier: Barrier) -> bool:
        """Notes a barrier; returns True once all channels have it: now is the moment of the checkpoint.

        A newer barrier replaces an alignment that was abandoned: its channels are let go.
        """
        if barrier.checkpoint_id <= self._over:
            return False
        complete = self._align(channel, barrier) if self._aligned else self._pass(channel, barrier)
        if complete:
            self._over = barrier.checkpoint_id
        return complete

    def is_over(self, checkpoint_id: int) -> bool:
        """Whether nobody waits for barriers of this checkpoint any more: all are in, or it was abandoned."""
        return checkpoint_id <= self._over

    def abandon(self, checkpoint_id: int) -> None:
        """Lets go of all channels that are held for a checkpoint which won't be; its barriers count no more."""
        self._over = max(self._over, checkpoint_id)
        if self._barrier is not None and self._barrier <= checkpoint_id:
            self._held.clear()
            self._barrier = None

    def waiting_for(self) -> list[TaskId]:
        """Returns the channels whose barrier is still missing, if an alignment is under way."""
        return [channel for channel in self._queue.channels if channel not in self._held] if self._held else []

    def _align(self, channel: TaskId, barrier: Barrier) -> bool:
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

    def _pass(self, channel: TaskId, barrier: Barrier) -> bool:
        self._passed[channel] = barrier.checkpoint_id
        return all(self._passed.get(other, 0) >= barrier.checkpoint_id for other in self._queue.channels)
