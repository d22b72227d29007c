"""The writing side of a task: items that are made but don't fit the output queue yet wait here, a few at most."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.tasks.flow.queues import ChannelQueue, cut
from penstock.tasks.protocol.messages import Block, Item, TaskId

_COUNTED = 256


class Outbox:
    """Puts items into an output queue in order. A task makes nothing new while `flush` returns False."""

    def __init__(self, queue: ChannelQueue[TaskId], block_bytes_max: int) -> None:
        self._queue = queue
        self._block_bytes_max = block_bytes_max
        self._waiting: deque[tuple[TaskId, Item]] = deque()
        self.rows_out = 0
        self.bytes_out = 0

    @property
    def channels(self) -> Sequence[TaskId]:
        return self._queue.channels

    @property
    def blocked_channel(self) -> TaskId | None:
        return self._waiting[0][0] if self._waiting else None

    def send(self, channel: TaskId, data: pa.RecordBatch) -> None:
        """Hands over rows for one channel, cut into blocks that fit."""
        if data.num_rows:
            self.hand_over(channel, Block(data))

    def hand_over(self, channel: TaskId, block: Block) -> None:
        """Hands over a block for one channel, cut into blocks that fit."""
        if block.rows:
            self._waiting.extend((channel, piece) for piece in cut(block, self._block_bytes_max))

    def spread(self, places: npt.NDArray[np.integer[Any]], data: pa.RecordBatch) -> None:
        """Hands over rows, each for the channel at its place."""
        channels = self._queue.channels
        counts = np.bincount(places, minlength=len(channels))
        if counts.max(initial=0) == len(places):
            if len(places):
                self.send(channels[int(places[0])], data)
            return
        # Numbers of 8 bits are sorted by counting.
        order = np.argsort(places if len(channels) > _COUNTED else places.astype(np.uint8, copy=False), kind="stable")
        block = Block(data.take(pa.array(order)))
        for channel, end, count in zip(channels, np.cumsum(counts).tolist(), counts.tolist(), strict=True):
            if count:
                self.hand_over(channel, block.part(end - count, count))

    def signal(self, item: Item) -> None:
        """Hands over a signal for all channels."""
        for channel in self._queue.channels:
            self._waiting.append((channel, item))

    def flush(self) -> bool:
        """Puts what fits; returns whether nothing is left waiting."""
        while self._waiting:
            channel, item = self._waiting[0]
            if isinstance(item, Block) and item.nbytes > self._queue.share_bytes and len(
                    pieces := self._queue.fitted(item)) > 1:
                self._waiting.popleft()
                self._waiting.extendleft((channel, piece) for piece in reversed(pieces))
                item = pieces[0]
            if not self._queue.try_put(channel, item):
                return False
            self._waiting.popleft()
            if isinstance(item, Block):
                self.rows_out += item.rows
                self.bytes_out += item.nbytes
        return True
