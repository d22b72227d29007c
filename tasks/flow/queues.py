"""Byte-bounded queues between tasks: blocks count, signals keep their place and don't. Nothing here waits.

The bound of a queue may change while it is used: what is more than a lower one drains, and nothing is put meanwhile.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

from penstock.common.errors import InternalError
from penstock.tasks.protocol.messages import Barrier, Block, Item

K = TypeVar("K", bound=Hashable)


class _Channel:
    """What one channel holds. `draining`: what was there when the bound was changed last; `barrier`: the last one."""

    __slots__ = ("barrier", "draining", "held", "items", "stopped")

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.held = 0
        self.draining = 0
        self.barrier = 0
        self.stopped = False


class ChannelQueue(Generic[K]):
    """First in, first out per channel; one bound over all channels' bytes, shared equally.

    An input queue has one channel per upstream task, an output queue one per downstream task. Each channel may hold
    its share of the capacity, so that a channel that is held back (checkpoint alignment) cannot starve the others.
    Blocks are cut to the share; one of a single row may still be larger, and has the channel for itself.
    Thread-safe: the task's own thread and exchange threads use it at once.
    """

    def __init__(self, capacity_bytes: int, channels: Sequence[K], on_change: Callable[[], None]) -> None:
        """`on_change` is called when an item was put, and when one was taken after a block had been refused."""
        if not channels:
            raise InternalError("a queue needs at least one channel")
        self.channels = tuple(channels)
        self.capacity_bytes = capacity_bytes
        self.share_bytes = capacity_bytes // len(channels)
        self.peak_bytes = 0
        self._states = {channel: _Channel() for channel in channels}
        self._total = 0
        self._reserved = 0
        self._awaited = 0
        self._refused = False
        self._on_change = on_change
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        return self._total

    @property
    def held_bytes(self) -> int:
        """What the queue may hold from now on at most, if its bound stays as it is."""
        with self._lock:
            return max(self.capacity_bytes, self._total)

    def bound(self, capacity_bytes: int) -> None:
        """Changes the bound; tells whoever waits."""
        with self._lock:
            self.capacity_bytes = capacity_bytes
            self.share_bytes = capacity_bytes // len(self._states)
            for state in self._states.values():
                state.draining = state.held
            self._refused = False
        self._on_change()

    def fits(self, channel: K, nbytes: int) -> bool:
        """Tells whether a block of `nbytes` would be taken now."""
        return self._fits(self._states[channel], nbytes)

    def _fits(self, state: _Channel, nbytes: int) -> bool:
        reserved = 0 if state.barrier < self._awaited else self._reserved // len(self._states)
        held = state.held + reserved
        return held == 0 or (not state.stopped and held + nbytes <= self.share_bytes)

    def stop(self, channel: K, stopped: bool) -> None:
        """Takes, while `stopped`, no further block for a channel that has one: whoever reads it can't hand it on."""
        self._states[channel].stopped = stopped

    def reserve(self, nbytes: int, awaited: int = 0) -> bool:
        """Lets so many bytes, which the queue's reader holds elsewhere, count as if they were in the queue.

        They don't count for a channel until the barrier of the checkpoint `awaited` has been put into it. Returns
        whether something may fit now that was refused.
        """
        with self._lock:
            more_fits = self._refused and (nbytes < self._reserved or awaited > self._awaited)
            self._reserved, self._awaited = nbytes, awaited
            self._refused &= not more_fits
        if more_fits:
            self._on_change()
        return more_fits

    def put_pieces(self, channel: K, pieces: deque[Block]) -> bool:
        """Puts blocks, the first one first, cut to the channel's share where they are larger.

        What was put is taken out of `pieces`. Returns whether all were; the rest may be put later.
        """
        while pieces:
            share = self.share_bytes
            first, *rest = self.fitted(pieces[0])
            if rest:
                pieces.popleft()
                pieces.extendleft(reversed((first, *rest)))
            if self.try_put(channel, first):
                pieces.popleft()
            elif share == self.share_bytes:
                return False
        return True

    def fitted(self, block: Block) -> list[Block]:
        """Returns a block cut to what a channel may hold now."""
        return cut(block, self.share_bytes)

    def try_put(self, channel: K, item: Item) -> bool:
        """Appends `item` and returns True.

        Returns False if it is a block, and the channel's share is full or smaller than several rows of it.
        """
        state = self._states[channel]
        with self._lock:
            if isinstance(item, Block):
                nbytes = item.nbytes
                if not self._fits(state, nbytes) or (nbytes > self.share_bytes and item.rows > 1):
                    self._refused = True
                    return False
                state.held += nbytes
                self._total += nbytes
                self.peak_bytes = max(self.peak_bytes, self._total)
            elif isinstance(item, Barrier):
                state.barrier = item.checkpoint_id
            state.items.append(item)
        self._on_change()
        return True

    def peek(self, channel: K) -> Item | None:
        """Returns the oldest item of the channel without taking it, or None."""
        items = self._states[channel].items
        if not items:
            return None
        with self._lock:
            return items[0] if items else None

    def peek_many(self, channel: K, limit: int) -> list[Item]:
        """Returns up to `limit` of the channel's oldest items, oldest first, without taking them."""
        with self._lock:
            return list(islice(self._states[channel].items, limit))

    def take(self, channel: K) -> Item | None:
        """Removes and returns the oldest item of the channel, or returns None."""
        state = self._states[channel]
        items = state.items
        if not items:
            return None
        with self._lock:
            if not items:
                return None
            item = items.popleft()
            if isinstance(item, Block):
                nbytes = item.nbytes
                state.held -= nbytes
                self._total -= nbytes
            awaited, self._refused = self._refused, False
        if awaited:
            self._on_change()
        return item

    def is_empty(self) -> bool:
        with self._lock:
            return not any(state.items for state in self._states.values())

    def validate(self) -> None:
        """Raises InternalError if the books don't balance."""
        with self._lock:
            for channel, state in self._states.items():
                sizes = [item.nbytes for item in state.items if isinstance(item, Block)]
                held = sum(sizes)
                allowed = max(self.share_bytes, state.draining)
                if held != state.held or (held > allowed and len(sizes) > 1):
                    raise InternalError(f"channel {channel}: holds {held} bytes, booked {state.held}")
            if self._total != sum(state.held for state in self._states.values()):
                raise InternalError(f"the queue books {self._total} bytes, its channels others")


class QueueSet:
    """The queues of a stream on one worker, which all have the same bound. Thread-safe.

    Orders to change it are numbered; what comes after a later one is ignored.
    """

    def __init__(self) -> None:
        self._queues: tuple[ChannelQueue[Any], ...] = ()
        self._order = 0
        self._capacity_bytes: int | None = None
        self._lock = threading.Lock()

    def add(self, queues: Iterable[ChannelQueue[Any]]) -> None:
        """Takes the queues in when they are made, which may be after an order."""
        with self._lock:
            self._queues = tuple(queues)
            if self._capacity_bytes is not None:
                self._bound(self._capacity_bytes)

    def bound(self, order: int, capacity_bytes: int) -> None:
        """Gives each queue a new bound."""
        with self._lock:
            if order > self._order:
                self._order, self._capacity_bytes = order, capacity_bytes
                self._bound(capacity_bytes)

    def held(self) -> tuple[int, int] | None:
        """Returns the last order, and what the queues hold from now on at most until the next; None: there are none."""
        with self._lock:
            if not self._queues:
                return None
            return self._order, sum(queue.held_bytes for queue in self._queues)

    def _bound(self, capacity_bytes: int) -> None:
        for queue in self._queues:
            queue.bound(capacity_bytes)


def cut(block: Block, bytes_max: int) -> list[Block]:
    """Returns a block as blocks of about `bytes_max` bytes at most each (a single row is never cut)."""
    rows = block.rows
    if block.nbytes <= bytes_max or rows <= 1:
        return [block]
    half = rows // 2
    return cut(block.part(0, half), bytes_max) + cut(block.part(half, rows - half), bytes_max)
