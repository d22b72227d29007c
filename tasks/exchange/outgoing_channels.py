"""Which frame goes next over the connection to one other worker: the sending end of all channels to it.

Decides only: no threads, no sockets, no clock. Each channel has one frame under way at most, and its items leave the
output queue only when the receiver has them in its input queue: so the bounds of both queues hold, and a full receiver
shows as a full output queue. Each channel waits for its own answers, and none for those of another. Frames go in the
order in which channels offered them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from penstock.common.errors import InternalError, PenstockError
from penstock.tasks.exchange.channel_frames import (
    BLOCKED,
    TAKEN,
    ChannelId,
    Frame,
    FrameAnswer,
    closing_to_wire,
    frame_to_wire,
    next_frame,
)
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.protocol.messages import TaskId


class OutgoingChannel:
    """The sending end of a channel."""

    __slots__ = ("_travels", "blocked_since", "failure", "frame", "id", "named", "number", "on_change", "output",
                 "schema", "sequence")

    def __init__(self, number: int, id: ChannelId, output: ChannelQueue[TaskId], on_change: Callable[[], None]) -> None:
        """Use `OutgoingChannels.add`."""
        self.number = number
        self.id = id
        self.output = output
        self.on_change = on_change
        self.sequence = 0
        self.frame: Frame | None = None  # the one that is under way
        self.named = False  # the receiver is told of the number
        self.schema: pa.Schema | None = None  # the one that the receiver has
        self.blocked_since: float | None = None
        self.failure: PenstockError | None = None
        self._travels = 0

    def sent(self, nbytes: int) -> None:
        """Takes note that so many bytes are on their way."""
        self._travels = nbytes

    def read(self) -> int:
        """Takes note that the peer has read what was on its way; returns how many bytes."""
        nbytes, self._travels = self._travels, 0
        return nbytes


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What is to be written now. Then, or if that fails, `OutgoingChannels.written` must be called."""

    channel: OutgoingChannel
    frame: Frame | None  # None: the channel's end
    first: bool = False

    def to_wire(self) -> tuple[bytes, pa.RecordBatch | None]:
        """Returns header and block. Takes as long as copying the block, and needs no lock."""
        channel = self.channel
        if self.frame is None:
            return closing_to_wire(channel.number), None
        header, wrapped, channel.schema = frame_to_wire(
            channel.number, self.frame, channel.id if self.first else None, channel.schema)
        return header, wrapped


class OutgoingChannels:
    """All channels to one peer. Not thread-safe; at most one message is being written at a time."""

    def __init__(self, ahead_max: int) -> None:
        """`ahead_max`: so many bytes on their way never wait for the peer to read."""
        self._ahead_max = ahead_max
        self._ahead = 0
        self._numbers = 0
        self._channels: dict[int, OutgoingChannel] = {}
        self._line: deque[Outgoing] = deque()
        self._writing = False
        self.over = False

    def add(self, id: ChannelId, output: ChannelQueue[TaskId], on_change: Callable[[], None]) -> OutgoingChannel | None:
        """Returns a new channel; None if it is too late for one: the connection is over.

        `on_change` is called when the channel breaks or gets blocked.
        """
        if self.over:
            return None
        self._numbers += 1  # never used again: what is still said of a channel that was removed must concern no other
        channel = OutgoingChannel(self._numbers, id, output, on_change)
        self._channels[channel.number] = channel
        return channel

    def offer(self, channel: OutgoingChannel) -> bool:
        """Puts the channel's next frame in the line, if none is under way; returns whether it did."""
        if channel.frame is not None or channel.failure is not None or channel.number not in self._channels:
            return False
        channel.frame = next_frame(channel.output, channel.id.downstream, channel.sequence)
        if channel.frame is None:
            return False
        self._line.append(Outgoing(channel, channel.frame))
        return True

    def take(self, may_wait: bool) -> Outgoing | None:
        """Returns what is to be written now, if anything.

        None also if something is being written, or if writing might have to wait for the peer and the caller may not.
        """
        if self._writing or not self._line:
            return None
        nbytes = 0 if self._line[0].frame is None else self._line[0].frame.nbytes
        if not may_wait and self._ahead + nbytes > self._ahead_max:
            return None
        outgoing = self._line.popleft()
        channel = outgoing.channel
        if outgoing.frame is not None:
            outgoing = Outgoing(channel, outgoing.frame, first=not channel.named)
            channel.named = True
            channel.sent(nbytes)
            self._ahead += nbytes
        self._writing = True
        return outgoing

    def written(self) -> None:
        """Takes note that what `take` has returned is written."""
        self._writing = False

    @property
    def waits(self) -> bool:
        """Whether there is something to write, and nobody about to."""
        return bool(self._line) and not self._writing

    def answered(self, answer: FrameAnswer, now: float) -> OutgoingChannel | None:
        """Takes note of an answer, at `now`; returns the channel if whoever owns it must be told.

        Raises InternalError if there is nothing that it can answer.
        """
        channel = self._channels.get(answer.number)
        if channel is None:
            return None  # it was removed meanwhile
        self._ahead -= channel.read()
        frame = channel.frame
        if answer.error is not None:
            channel.failure, channel.blocked_since = answer.error, None
            return channel
        if frame is None or frame.sequence != answer.sequence or not channel.named:
            raise InternalError(f"channel {channel.id}: item {answer.sequence} was answered, which wasn't sent")
        if answer.kind == BLOCKED:
            channel.blocked_since = now
            channel.output.stop(channel.id.downstream, True)
            return channel
        assert answer.kind == TAKEN
        channel.blocked_since = None
        channel.output.stop(channel.id.downstream, False)
        channel.sequence += frame.size
        for _ in range(frame.size):
            channel.output.take(channel.id.downstream)
        channel.frame = None
        self.offer(channel)
        return None

    def remove(self, channel: OutgoingChannel) -> bool:
        """Ends a channel: what the peer hasn't acknowledged stays in the output queue.

        Returns whether it was the last one, with which the connection ends.
        """
        if self._channels.pop(channel.number, None) is None:
            return False
        self._ahead -= channel.read()
        self._line = deque(each for each in self._line if each.channel is not channel)
        if not self._channels:
            self.over = True
            self._line.clear()
            return True
        if channel.named:
            self._line.append(Outgoing(channel, None))
        return False

    def broke(self, error_of: Callable[[ChannelId], PenstockError]) -> list[OutgoingChannel]:
        """Fails all channels, since the connection is lost; returns those whose owners must be told."""
        self.over = True
        self._line.clear()
        failed = [channel for channel in self._channels.values() if channel.failure is None]
        for channel in failed:
            channel.failure, channel.blocked_since = error_of(channel.id), None
        self._channels.clear()
        return failed
