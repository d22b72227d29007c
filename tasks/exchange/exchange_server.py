"""The receiving edge of a worker: one Flight exchange for each worker that sends to it."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from penstock.common.errors import InternalError, PenstockError
from penstock.tasks.exchange.channel_frames import ChannelId, FrameAnswer, Message, answers_to_wire
from penstock.tasks.exchange.incoming_channels import IncomingChannels, IncomingConnection
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.protocol.wire import BoundedFlightServer, flight_error

#: What a sender calls; another version's, whose messages would be read wrong, calls something else.
CHANNELS = b"channels of two workers"


class _Peer:
    """A connection and its answers. Any thread may send them, until `close`."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._answers: deque[FrameAnswer] = deque()
        self._lock = threading.Lock()
        self.connection = IncomingConnection(self._answers.append)

    def send(self) -> None:
        """Sends what has been said, in that order."""
        while self._answers:
            with self._lock:
                said = [self._answers.popleft() for _ in range(len(self._answers))]
                if self._writer is None or not said:
                    return
                # That a connection is broken, whoever reads from it hears.
                with contextlib.suppress(flight.FlightError, pa.ArrowException, OSError):
                    self._writer.write_metadata(answers_to_wire(said))

    def close(self) -> None:
        """Sends no more: Flight's writer ends with the call that it belongs to."""
        with self._lock:
            self._writer = None


class ExchangeServer(BoundedFlightServer):
    """The receiving side of a worker. Start it after the fork: gRPC doesn't survive one.

    The thread of a connection puts its frames into queues; one thread for all tries those again that were parked.
    """

    def __init__(self, secret: bytes, host: str = "127.0.0.1") -> None:
        super().__init__(secret, host)
        self._channels = IncomingChannels()
        self._peers: set[_Peer] = set()
        self._lock = threading.Lock()  # of `_channels` and `_peers`
        self._changed: set[int] = set()
        self._change = threading.Event()
        self._closing = False
        threading.Thread(target=self._unpark, name="parked frames", daemon=True).start()

    def register(self, channel: ChannelId, queue: ChannelQueue[TaskId]) -> None:
        """Lets `channel` deliver into `queue`; an older attempt of the channel is closed."""
        with self._lock:
            self._channels.register(channel, queue)
        self._send_answers()

    def unregister(self, stream_id: int) -> None:
        """Closes all channels into tasks of the stream."""
        with self._lock:
            self._channels.unregister(stream_id)
        self._send_answers()

    def queue_changed(self, stream_id: int) -> None:
        """Lets blocked channels of the stream look at their queues again. Cheap; any thread, whatever it holds."""
        if self._channels.waits(stream_id):
            self._changed.add(stream_id)
            self._change.set()

    def shutdown(self) -> None:
        """Lets nobody else in, and waits a while for the connections to end."""
        self._closing = True
        self._change.set()
        super().shutdown()

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Serves one other worker until it ends the connection."""
        self.let_in(context)
        peer = _Peer(writer)
        with self._lock:
            self._peers.add(peer)
        try:
            if descriptor.command != CHANNELS:
                raise InternalError("a call to a worker that is none for channels")
            while True:
                try:
                    chunk = reader.read_chunk()
                except StopIteration:
                    return
                message = Message.from_wire(chunk.app_metadata, chunk.data)
                with self._lock:
                    self._channels.arrived(peer.connection, message)
                peer.send()
        except PenstockError as error:
            raise flight_error(error) from error
        finally:
            peer.close()
            with self._lock:
                self._peers.discard(peer)
                self._channels.lost(peer.connection)

    def _unpark(self) -> None:
        while True:
            self._change.wait()
            self._change.clear()
            if self._closing:
                return
            while self._changed:
                with self._lock:
                    self._channels.room(self._changed.pop())
                self._send_answers()

    def _send_answers(self) -> None:
        with self._lock:
            peers = tuple(self._peers)
        for peer in peers:
            peer.send()
