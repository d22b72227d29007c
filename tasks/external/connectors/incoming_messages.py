"""What connections bring: messages with their places, in batches of one partition, and who gives them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.common.errors import PenstockError

_PER_MESSAGE = 64
"""Bytes that a message takes besides its content, roughly."""


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Consecutive messages of one segment of one partition, as columns.

    `partition` and `segment`: see `penstock.wal.record.IngestOrigin`. `times_ms`: when the broker, or else the ingest,
    got them. A tombstone of Kafka is a value without bytes. `topics`: one for all, or each message's own. `keys`: None
    where there are none. `receipts`: what the consumer wants back when a message is done with; empty where offsets do.
    `end`: where the next message begins, if that isn't the last offset and one. `timed`: whether the times are the
    broker's, and so always the same.
    """

    partition: str
    segment: str
    offsets: Sequence[int]
    values: Sequence[bytes]
    times_ms: Sequence[int]
    topics: str | Sequence[str]
    keys: Sequence[bytes | None] | None = None
    receipts: Sequence[int] = ()
    end: int | None = None
    timed: bool = False

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.values)) + _PER_MESSAGE * len(self.values)

    @property
    def next_offset(self) -> int:
        return self.offsets[-1] + 1 if self.end is None else self.end

    def part(self, first: int, stop: int) -> MessageBatch:
        """Returns the messages from place `first` up to `stop`."""
        return MessageBatch(
            self.partition, self.segment, self.offsets[first:stop], self.values[first:stop], self.times_ms[first:stop],
            self.topics if isinstance(self.topics, str) else self.topics[first:stop],
            None if self.keys is None else self.keys[first:stop], self.receipts[first:stop],
            self.offsets[stop] if stop < len(self.offsets) else self.end, self.timed)

    @property
    def mark(self) -> str:
        """What the last message is known by when it is read again; empty where it has no time of its own."""
        return mark_of(self.values[-1], None if self.keys is None else self.keys[-1], self.times_ms[-1]) if (
            self.timed) else ""

    def topic(self, number: int) -> str:
        return self.topics if isinstance(self.topics, str) else self.topics[number]


def mark_of(value: bytes, key: bytes | None, time_ms: int) -> str:
    """Returns what tells a message from another one that has its offset in another topic of the same name."""
    return hashlib.blake2b(repr((key, value, time_ms)).encode(), digest_size=8).hexdigest()


class MessagePosition(NamedTuple):
    """The segment of a partition and the next offset in it; `mark`: of the message before that, if it is known."""

    segment: str
    offset: int
    mark: str = ""

    @property
    def place(self) -> tuple[str, int]:
        """What positions of one partition are ordered by."""
        return self.segment, self.offset


Positions = Mapping[str, MessagePosition]
"""By partition: how far it has been read."""


class Consumer(Protocol):
    """What an ingest reads from. All methods return at once, but for `close`; one thread calls them.

    A consumer that can't reach its source, or is refused, tries again by itself, and `problem` says why it can't.
    """

    replays: bool
    """Whether it can go back to positions. Else what isn't `done` comes again by itself, or never."""

    def poll(self, messages: int) -> Sequence[MessageBatch]:
        """Returns up to about so many messages; offsets of a partition only grow."""
        ...

    def begun(self) -> Positions:
        """Returns where it has begun to read partitions for which it was given no position, or which begin anew.

        What begins anew, in a segment that sorts later, is read once a checkpoint holds that: see `committed`.
        """
        ...

    def hold(self, held: bool) -> None:
        """While `held` nothing more shall be sent; `poll` may return what was sent before."""
        ...

    def done(self, batch: MessageBatch) -> None:
        """The messages are in the vnodes' logs, or left out."""
        ...

    def committed(self, positions: Positions) -> None:
        """A checkpoint holds these positions: nothing before them will be asked for again."""
        ...

    def lag(self) -> int | None:
        """Returns how many messages wait to be read, None where nobody knows."""
        ...

    def reached(self) -> bool:
        """Returns whether the source has answered since it was opened."""
        ...

    def problem(self) -> PenstockError | None: ...

    def close(self) -> None: ...
