"""The sending edge of a worker: one Flight exchange to each other worker, which carries the frames of all channels.

Small frames are sent by the thread that made them, since handing them to another one takes longer than sending them.
What may have to wait for the peer, a bundle's sending thread does: it opens the connection and sends large frames. Its
hearing thread takes the answers, and sends what small frames come next. Both threads begin with the first frame, and
end with the last channel.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pyarrow as pa
import pyarrow.flight as flight

from penstock.common.clock import Clock
from penstock.common.errors import InternalError, OutOfMemoryError, PenstockError, UnavailableError
from penstock.common.logging import logger
from penstock.tasks.exchange.channel_frames import WRAPPED, ChannelId, answers_from_wire
from penstock.tasks.exchange.exchange_server import CHANNELS
from penstock.tasks.exchange.outgoing_channels import Outgoing, OutgoingChannel, OutgoingChannels
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.protocol.wire import SENT_AHEAD, call_options, error_of_flight

_log = logger(__name__)

_BROKEN = (flight.FlightError, pa.ArrowException, OSError)


class RemoteLink:
    """The sending end of a channel to another worker. A `runner.Link`."""

    def __init__(self, bundle: _Bundle, channel: OutgoingChannel) -> None:
        """Use `OutgoingBundles.link`."""
        self.upstream = channel.id.upstream
        self.downstream = channel.id.downstream
        self._bundle = bundle
        self._channel = channel

    @property
    def resting(self) -> bool:
        """Whether no frame is under way."""
        return self._channel.frame is None

    def move(self) -> bool:
        """Sends the next frame, or lets a thread do it. Returns False: the items leave when they are answered."""
        self._bundle.move(self._channel)
        return False

    def blocked_since(self) -> float | None:
        return self._channel.blocked_since

    def failure(self) -> BaseException | None:
        return self._channel.failure

    def close(self) -> None:
        """Breaks off what is under way; what the peer hasn't acknowledged stays in the output queue."""
        self._bundle.close(self._channel)


class OutgoingBundles:
    """The connections of a worker to others, by address. Thread-safe."""

    def __init__(self, secret: bytes, clock: Clock) -> None:
        self._secret = secret
        self._clock = clock
        self._bundles: dict[str, _Bundle] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._bundles)

    def link(
        self, channel: ChannelId, address: str, output: ChannelQueue[TaskId], on_change: Callable[[], None]
    ) -> RemoteLink:
        """Returns the sending end of a channel; it connects when the first item is there.

        `on_change` is called when the channel breaks or gets blocked.
        """
        with self._lock:
            bundle = self._bundles.get(address)
            outgoing = None if bundle is None else bundle.add(channel, output, on_change)
            if bundle is None or outgoing is None:
                bundle = self._bundles[address] = _Bundle(address, self._secret, self._clock, self._forget)
                outgoing = bundle.add(channel, output, on_change)
            assert outgoing is not None
            return RemoteLink(bundle, outgoing)

    def _forget(self, bundle: _Bundle) -> None:
        with self._lock:
            if self._bundles.get(bundle.address) is bundle:
                del self._bundles[bundle.address]


class _Bundle:
    """All channels to one other worker, in one connection."""

    def __init__(self, address: str, secret: bytes, clock: Clock, on_over: Callable[[_Bundle], None]) -> None:
        self.address = address
        self._secret = secret
        self._clock = clock
        self._on_over = on_over
        self._channels = OutgoingChannels(SENT_AHEAD)
        self._lock = threading.Lock()  # of `_channels`
        self._flag = threading.Event()
        self._connection: _PeerConnection | None = None
        self._ready = False  # to be written to
        self._unwritten: Exception | None = None  # what writing failed with
        self._thread: threading.Thread | None = None

    def add(
        self, id: ChannelId, output: ChannelQueue[TaskId], on_change: Callable[[], None]
    ) -> OutgoingChannel | None:
        """Returns a new channel; None if the connection is over."""
        with self._lock:
            return self._channels.add(id, output, on_change)

    def move(self, channel: OutgoingChannel) -> None:
        """Sends the channel's next frame, if none is under way, or has it sent."""
        if channel.frame is None:
            with self._lock:
                if not self._channels.offer(channel):
                    return
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=f"send to {self.address}", daemon=True)
                    self._thread.start()
            self._send()

    def close(self, channel: OutgoingChannel) -> None:
        """Ends a channel, and with the last one the connection and its threads."""
        with self._lock:
            self._channels.remove(channel)
            over, thread, connection = self._channels.over, self._thread, self._connection
        self._flag.set()  # for the end to be told or to be noticed
        if not over:
            return
        self._on_over(self)
        if connection is not None:
            connection.cancel()
        if thread is not None:
            thread.join()

    def _send(self, *, may_wait: bool = False) -> None:
        """Sends what there is to send, as far as the caller may; leaves the rest to the sending thread."""
        connection = self._connection
        while self._ready and connection is not None:
            with self._lock:
                outgoing = self._channels.take(may_wait)
            if outgoing is None:
                break
            try:
                message = self._wire_form(outgoing)
                if message is not None:
                    connection.write(*message)
            except _BROKEN as error:
                self._unwritten = error  # why it broke, the hearing thread hears
                break
            finally:
                with self._lock:
                    self._channels.written()
        if self._unwritten is not None or (not may_wait and self._channels.waits):
            self._flag.set()

    def _wire_form(self, outgoing: Outgoing) -> tuple[bytes, pa.RecordBatch | None] | None:
        """Returns the message; None if there can't be one, which fails the channel alone."""
        try:
            return outgoing.to_wire()
        except Exception as error:  # noqa: BLE001  # it may be another stream's than the caller's
            channel = outgoing.channel
            channel.failure = (OutOfMemoryError.of(error) if isinstance(error, MemoryError)
                               else InternalError(f"channel {channel.id}: a block can't be sent: {error}"))
            channel.on_change()
            return None

    def _run(self) -> None:
        connection: _PeerConnection | None = None
        hearing: threading.Thread | None = None
        try:
            connection = _PeerConnection(self.address, self._secret)
            with self._lock:
                self._connection = connection
                if self._channels.over:
                    return
            hearing = threading.Thread(target=self._hear, args=(connection,), name=f"hear {self.address}", daemon=True)
            hearing.start()
            connection.begin()
            self._ready = True
            while not self._channels.over and self._unwritten is None:
                self._send(may_wait=True)
                self._flag.wait()
                self._flag.clear()
        except _BROKEN as error:
            self._unwritten = error
        except Exception as error:  # noqa: BLE001  # who waits for the channels must be told
            _log.exception("sending to another worker failed")
            self._unwritten = error
            if connection is not None:
                connection.cancel()
        finally:
            if hearing is not None:
                hearing.join()
            if self._unwritten is not None:
                self._broke(self._unwritten)
            if connection is not None:
                connection.close()

    def _hear(self, connection: _PeerConnection) -> None:
        try:
            while True:
                for answer in answers_from_wire(connection.answers()):
                    with self._lock:
                        told = self._channels.answered(answer, self._clock.monotonic())
                    if told is not None:
                        told.on_change()
                self._send()
        except (*_BROKEN, PenstockError) as error:
            self._broke(error)
        except Exception as error:  # noqa: BLE001  # who waits for the channels must be told
            _log.exception("hearing from another worker failed")
            self._broke(error)
        finally:
            connection.cancel()
            self._flag.set()

    def _broke(self, error: Exception) -> None:
        """Fails all channels, if the connection isn't over yet."""
        with self._lock:
            failed = self._channels.broke(lambda id: _named(error, f"channel {id} to {self.address} broke"))
        self._on_over(self)
        for channel in failed:
            channel.on_change()


def _named(error: Exception, doing: str) -> PenstockError:
    """Returns what the connection broke with as an error of one channel."""
    if isinstance(error, flight.FlightError) and not getattr(error, "extra_info", None):
        return error_of_flight(error, doing)
    if isinstance(error, flight.FlightError):
        error = error_of_flight(error, doing)
    if isinstance(error, PenstockError):
        return type(error)(f"{doing}: {error.message}", code=error.code, hint=error.hint)
    return error_of_flight(error, doing)


class _PeerConnection:
    """One Flight exchange: frames out, answers in."""

    def __init__(self, address: str, secret: bytes) -> None:
        self._client = flight.FlightClient(f"grpc://{address}")
        descriptor = flight.FlightDescriptor.for_command(CHANNELS)
        self._writer, self._reader = self._client.do_exchange(descriptor, call_options(secret))
        self._open = True
        self._lock = threading.Lock()  # so that nobody writes while it is closed

    def begin(self) -> None:
        """To be called before anything is written."""
        self._writer.begin(WRAPPED)

    def write(self, header: bytes, wrapped: pa.RecordBatch | None) -> None:
        with self._lock:
            if not self._open:
                return
            if wrapped is None:
                self._writer.write_metadata(header)
            else:
                self._writer.write_with_metadata(wrapped, header)

    def answers(self) -> bytes:
        """Waits for the next answers."""
        try:
            metadata = self._reader.read_chunk().app_metadata
        except StopIteration:
            raise UnavailableError("the receiver ended the connection") from None
        return b"" if metadata is None else metadata.to_pybytes()

    def cancel(self) -> None:
        """Breaks off whatever another thread waits for here."""
        self._reader.cancel()

    def close(self) -> None:
        """Gives back what the connection has, when nobody waits for it any more."""
        self.cancel()
        with self._lock:
            self._open = False
            with contextlib.suppress(*_BROKEN):  # that it is broken off is known
                self._writer.close()
            self._client.close()
