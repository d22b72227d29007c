"""Byte-bounded queues between tasks: blocks count, signals keep their place and don't. Nothing here waits."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from typing import Generic, TypeVar

from penstock.common.errors import InternalError
from penstock.tasks.messages import Barrier, Block, Item

K = TypeVar("K", bound=Hashable)


class ChannelQueue(Generic[K]):
    """First in, first out per channel; one bound over all channels' bytes, shared equally.

    An input queue has one channel per upstream task, an output queue one per downstream task. Each channel may hold
    its share of the capacity, so that a channel that is held back (checkpoint alignment) cannot starve the others.
    Blocks are cut to size where they are made; one of a single row may still be larger than a share, and has the
    channel for itself.
    Thread-safe: the task's own thread and exchange threads use it at once.
    """

    def __init__(self, capacity_bytes: int, channels: Sequence[K], on_change: Callable[[], None]) -> None:
        """`on_change` is called when an item was put, and when one was taken after a block had been refused."""
        if not channels:
            raise InternalError("a queue needs at least one channel")
        self.capacity_bytes = capacity_bytes
        self.share_bytes = capacity_bytes // len(channels)
        self.peak_bytes = 0
        self._items: dict[K, deque[Item]] = {channel: deque() for channel in channels}
        self._bytes: dict[K, int] = dict.fromkeys(channels, 0)
        self._total = 0
        self._reserved = 0
        self._awaited = 0
        self._barriers: dict[K, int] = dict.fromkeys(channels, 0)  # the last of each channel
        self._stopped: set[K] = set()
        self._refused = False
        self._on_change = on_change
        self._lock = threading.Lock()

    @property
    def channels(self) -> tuple[K, ...]:
        return tuple(self._items)

    @property
    def used_bytes(self) -> int:
        return self._total

    def fits(self, channel: K, nbytes: int) -> bool:
        """Tells whether a block of `nbytes` would be taken now."""
        reserved = 0 if self._barriers[channel] < self._awaited else self._reserved // len(self._bytes)
        held = self._bytes[channel] + reserved
        return held == 0 or (channel not in self._stopped and held + nbytes <= self.share_bytes)

    def stop(self, channel: K, stopped: bool) -> None:
        """Takes, while `stopped`, no further block for a channel that has one: whoever reads it can't hand it on."""
        if stopped:
            self._stopped.add(channel)
        else:
            self._stopped.discard(channel)

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

    def try_put(self, channel: K, item: Item) -> bool:
        """Appends `item` and returns True, or returns False if it is a block and the channel's share is full."""
        with self._lock:
            if isinstance(item, Block):
                nbytes = item.nbytes
                if not self.fits(channel, nbytes):
                    self._refused = True
                    return False
                self._bytes[channel] += nbytes
                self._total += nbytes
                self.peak_bytes = max(self.peak_bytes, self._total)
            elif isinstance(item, Barrier):
                self._barriers[channel] = item.checkpoint_id
            self._items[channel].append(item)
        self._on_change()
        return True

    def peek(self, channel: K) -> Item | None:
        """Returns the oldest item of the channel without taking it, or None."""
        items = self._items[channel]
        with self._lock:
            return items[0] if items else None

    def peek_many(self, channel: K, limit: int) -> list[Item]:
        """Returns up to `limit` of the channel's oldest items, oldest first, without taking them."""
        with self._lock:
            return list(islice(self._items[channel], limit))

    def take(self, channel: K) -> Item | None:
        """Removes and returns the oldest item of the channel, or returns None."""
        with self._lock:
            items = self._items[channel]
            if not items:
                return None
            item = items.popleft()
            if isinstance(item, Block):
                nbytes = item.nbytes
                self._bytes[channel] -= nbytes
                self._total -= nbytes
            awaited, self._refused = self._refused, False
        if awaited:
            self._on_change()
        return item

    def is_empty(self) -> bool:
        with self._lock:
            return not any(self._items.values())

    def validate(self) -> None:
        """Raises InternalError if the books don't balance."""
        with self._lock:
            for channel, items in self._items.items():
                sizes = [item.nbytes for item in items if isinstance(item, Block)]
                held = sum(sizes)
                if held != self._bytes[channel] or (held > self.share_bytes and len(sizes) > 1):
                    raise InternalError(f"channel {channel}: holds {held} bytes, booked {self._bytes[channel]}")
            if self._total != sum(self._bytes.values()):
                raise InternalError(f"queue books {self._total} bytes of {sum(self._bytes.values())}")
