"""Where frames from other workers go: the receiving end of all channels of a worker.

Decides only: no threads, no sockets. A frame whose block doesn't fit is parked, one per channel at most, so that it
holds up no other channel of its connection. It is answered as blocked, and as taken once it is in the input queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pyarrow as pa

from penstock.common.errors import InternalError, PenstockError, StaleAttemptError
from penstock.tasks.exchange.channel_frames import BLOCKED, REFUSED, TAKEN, ChannelId, Frame, FrameAnswer, Message
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.protocol.messages import Block, TaskId
from penstock.tasks.protocol.wire import decode


class _Inbox:
    """The receiving end of a channel: the downstream task's input queue and how far the channel has come."""

    __slots__ = ("channel", "open", "parked", "queue", "sequence")

    def __init__(self, channel: ChannelId, queue: ChannelQueue[TaskId]) -> None:
        self.channel = channel
        self.queue = queue
        self.sequence = 0
        self.open = True
        self.parked: _Parked | None = None


class _Parked:
    """A frame that came to `place`, and the pieces of its block that the queue hasn't taken yet."""

    __slots__ = ("frame", "pieces", "place")

    def __init__(self, frame: Frame, place: _IncomingChannel) -> None:
        self.frame = frame
        self.place = place
        self.pieces: deque[Block] = deque(() if frame.block is None else (frame.block,))


class _IncomingChannel:
    """A channel of a connection. `inbox`: None if the receiver knows none for it."""

    __slots__ = ("_connection", "_number", "channel", "inbox", "schema")

    def __init__(
        self, connection: IncomingConnection, number: int, channel: ChannelId, inbox: _Inbox | None
    ) -> None:
        self._connection = connection
        self._number = number
        self.channel = channel
        self.inbox = inbox
        self.schema: pa.Schema | None = None  # of its last block

    def say(self, kind: bytes, sequence: int, error: PenstockError | None = None) -> None:
        self._connection.say(FrameAnswer(kind, self._number, sequence, error))

    def refuse(self, sequence: int, error: PenstockError) -> None:
        """Says that the channel won't be taken from any more, and forgets it."""
        self._connection.places.pop(self._number, None)
        self.say(REFUSED, sequence, error)

    def inbox_for(self, frame: Frame) -> _Inbox:
        """Returns where a frame goes; raises what keeps it from being taken for good."""
        inbox = self.inbox
        if inbox is None or inbox.channel != self.channel:
            known = "none" if inbox is None else f"attempt {inbox.channel.attempt}"
            raise StaleAttemptError(f"channel {self.channel} is refused: the receiver knows {known}")
        if not inbox.open:
            raise _closed(inbox)
        if inbox.parked is not None or frame.sequence != inbox.sequence:
            raise InternalError(f"channel {self.channel}: got frame {frame.sequence}, expected {inbox.sequence}")
        return inbox


class IncomingConnection:
    """A connection from another worker: the channels that it carries, by their numbers."""

    def __init__(self, say: Callable[[FrameAnswer], None]) -> None:
        """`say` takes answers, in the order in which they are to be sent."""
        self.say = say
        self.places: dict[int, _IncomingChannel] = {}


class IncomingChannels:
    """All channels into the tasks of a worker. Not thread-safe, but for `waits`.

    Queues call back while something is put into them; of all this they may then use `waits` alone.
    """

    def __init__(self) -> None:
        self._inboxes: dict[tuple[TaskId, TaskId], _Inbox] = {}
        #: by stream, so that a change of one stream's queues costs the others nothing
        self._parked: dict[int, dict[_Inbox, None]] = {}

    def register(self, channel: ChannelId, queue: ChannelQueue[TaskId]) -> None:
        """Lets `channel` deliver into `queue`; an older attempt of the channel is closed.

        Raises StaleAttemptError if a newer one is there.
        """
        key = channel.upstream, channel.downstream
        old = self._inboxes.get(key)
        if old is not None and old.channel.attempt > channel.attempt:
            raise StaleAttemptError(f"{channel}: attempt {old.channel.attempt} runs already")
        self._inboxes[key] = _Inbox(channel, queue)
        if old is not None:
            self._close(old)

    def unregister(self, stream_id: int) -> None:
        """Closes all channels into tasks of the stream."""
        for key in [key for key in self._inboxes if key[1].stream_id == stream_id]:
            self._close(self._inboxes.pop(key))

    def waits(self, stream_id: int) -> bool:
        """Tells whether a frame of the stream is parked. Any thread, cheap."""
        return stream_id in self._parked

    def arrived(self, connection: IncomingConnection, message: Message) -> None:
        """Puts a frame into its queue, or parks it; says so, or that the channel is refused.

        Raises InternalError if it can't be told which channel it is for, or it can't be read: then nothing was done,
        and nothing more of this connection can be trusted.
        """
        if message.closes:
            self._forget(connection.places.pop(message.number, None))
            return
        place = connection.places.get(message.number) or self._new_place(connection, message)
        frame, place.schema = message.frame(place.schema)
        try:
            inbox = place.inbox_for(frame)
        except PenstockError as error:
            place.refuse(frame.sequence, error)
            return
        inbox.parked = _Parked(frame, place)
        if not self._put(inbox):
            self._parked.setdefault(inbox.channel.stream_id, {})[inbox] = None
            place.say(BLOCKED, frame.sequence)
            # What has changed before the frame was listed, nobody has told.
            self._put(inbox)

    def room(self, stream_id: int) -> None:
        """Tries the parked frames of a stream again, whose queues have changed; says which are taken."""
        for inbox in tuple(self._parked.get(stream_id, ())):
            self._put(inbox)

    def lost(self, connection: IncomingConnection) -> None:
        """Drops what came over a connection and wasn't taken."""
        for place in connection.places.values():
            self._forget(place)
        connection.places.clear()

    def _new_place(self, connection: IncomingConnection, message: Message) -> _IncomingChannel:
        if not message.channel:
            raise InternalError(f"a frame of channel {message.number}, which nobody has opened")
        channel: ChannelId = decode(message.channel, (ChannelId,))
        inbox = self._inboxes.get((channel.upstream, channel.downstream))
        place = _IncomingChannel(connection, message.number, channel, inbox)
        connection.places[message.number] = place
        return place

    def _put(self, inbox: _Inbox) -> bool:
        """Puts what is parked into the queue; returns whether all of it fitted."""
        parked = inbox.parked
        assert parked is not None
        upstream = inbox.channel.upstream
        if not inbox.queue.put_pieces(upstream, parked.pieces):
            return False
        for signal in parked.frame.signals:
            inbox.queue.try_put(upstream, signal)
        inbox.sequence += parked.frame.size
        self._unpark(inbox)
        parked.place.say(TAKEN, parked.frame.sequence)
        return True

    def _unpark(self, inbox: _Inbox) -> None:
        inbox.parked = None
        stream_id = inbox.channel.stream_id
        of_stream = self._parked.get(stream_id)
        if of_stream is not None:
            of_stream.pop(inbox, None)
            if not of_stream:
                del self._parked[stream_id]

    def _forget(self, place: _IncomingChannel | None) -> None:
        """Drops what is parked of a channel whose sender is gone."""
        inbox = None if place is None else place.inbox
        if inbox is not None and inbox.parked is not None and inbox.parked.place is place:
            self._unpark(inbox)

    def _close(self, inbox: _Inbox) -> None:
        inbox.open = False
        parked = inbox.parked
        if parked is not None:
            self._unpark(inbox)
            parked.place.refuse(parked.frame.sequence, _closed(inbox))


def _closed(inbox: _Inbox) -> StaleAttemptError:
    return StaleAttemptError(f"channel {inbox.channel} was closed by its receiver")
