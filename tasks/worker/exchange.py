"""Carries items between tasks on different workers over Arrow Flight: in order, without loss, in bounded memory.

One Flight exchange per channel (upstream task -> downstream task). A frame holds at most one block and the signals
that stand right behind it. One frame is under way at a time, and its items leave the sender's output queue only when
the receiver has them in its input queue: so the bounds of both queues hold, and a full receiver shows as a full
output queue. The receiver answers each frame: taken, or blocked and later taken.

Small frames are sent by the thread that made them, since handing them to another one takes longer than sending them.
"""

from __future__ import annotations

import contextlib
import json
import struct
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from penstock.common.clock import Clock
from penstock.common.errors import InternalError, PenstockError, StaleAttemptError, UnavailableError
from penstock.common.logging import logger
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.protocol.messages import Barrier, Block, End, Retract, RetractEnd, Signal, TaskId, Watermark
from penstock.tasks.protocol.wire import (
    SENT_AHEAD,
    BoundedFlightServer,
    call_options,
    decode,
    encode,
    error_of_flight,
    flight_error,
)

_log = logger(__name__)

FRAME_SIGNALS_MAX = 64
_TAKEN, _BLOCKED = b"T", b"B"
_ANSWER = struct.Struct("<cQ")


@dataclass(frozen=True, slots=True)
class ChannelId:
    """Names a channel of one attempt of a stream; the descriptor of its Flight exchange."""

    attempt: int
    upstream: TaskId
    downstream: TaskId

    @property
    def stream_id(self) -> int:
        return self.downstream.stream_id

    def __str__(self) -> str:
        return f"{self.upstream} -> {self.downstream} (attempt {self.attempt})"


# --- frames ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """What travels at once: items `sequence`, `sequence + 1`, ... of the channel."""

    sequence: int
    block: Block | None
    signals: tuple[Signal, ...]

    @property
    def size(self) -> int:
        return (self.block is not None) + len(self.signals)

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        return 0 if self.block is None else self.block.nbytes

    def header(self) -> bytes:
        """Returns everything but the block's data as bytes."""
        return json.dumps([self.sequence, [_signal_to_json(s) for s in self.signals]]).encode()

    @classmethod
    def from_wire(cls, header: bytes, data: pa.RecordBatch | None) -> Frame:
        """Returns the frame that was sent as `header` and `data`."""
        sequence, signals = json.loads(header)
        block = None if data is None else Block(data)
        return cls(sequence, block, tuple(_signal_from_json(s) for s in signals))


def _signal_to_json(signal: Signal) -> list[Any]:
    if isinstance(signal, Watermark):
        return ["watermark", signal.ts, signal.idle, signal.quiet_s]
    if isinstance(signal, Barrier):
        return ["barrier", signal.checkpoint_id]
    if isinstance(signal, Retract):
        return ["cleared", signal.first, signal.last]
    return ["settled"] if isinstance(signal, RetractEnd) else ["end"]


def _signal_from_json(parts: list[Any]) -> Signal:
    kind, *fields = parts
    return _SIGNALS[kind](*fields)  # type: ignore[no-any-return]


_SIGNALS: dict[str, Any] = {
    "watermark": Watermark, "barrier": Barrier, "cleared": Retract, "settled": RetractEnd, "end": End,
}


def next_frame(output: ChannelQueue[TaskId], downstream: TaskId, sequence: int) -> Frame | None:
    """Returns the frame made of the oldest items of a channel, without taking them; None if it is empty."""
    block: Block | None = None
    signals: list[Signal] = []
    for place, item in enumerate(output.peek_many(downstream, FRAME_SIGNALS_MAX + 1)):
        if not isinstance(item, Block):
            signals.append(item)
        elif place == 0:
            block = item
        else:
            break
    if block is None and not signals:
        return None
    return Frame(sequence, block, tuple(signals[:FRAME_SIGNALS_MAX]))


# --- sending -----------------------------------------------------------------------------------------------------


class RemoteLink:
    """The sending end of a channel. A `runner.Link`.

    Whoever calls `move` sends what surely needn't wait for the peer: a small frame, while none is under way. A thread
    of the link's own does the rest: it opens the exchange, sends large frames, and hears the answers.
    """

    def __init__(
        self,
        channel: ChannelId,
        address: str,
        secret: bytes,
        output: ChannelQueue[TaskId],
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        """Connects when the first item is there. `on_change` is called when the channel breaks or gets blocked."""
        self.upstream = channel.upstream
        self.downstream = channel.downstream
        self._channel = channel
        self._address = address
        self._secret = secret
        self._output = output
        self._clock = clock
        self._on_change = on_change
        self._sequence = 0
        self._blocked_since: float | None = None
        self._failure: BaseException | None = None
        self._closing = False
        self._flag = threading.Event()
        self._lock = threading.Lock()
        self.resting = True  # no frame is under way, and the thread waits for the flag
        self._sent: Frame | None = None  # a frame that `move` has sent, for the thread to hear its answer
        self._client: flight.FlightClient | None = None
        self._exchange: _Exchange | None = None
        self._thread = threading.Thread(target=self._run, name=f"send {channel}", daemon=True)
        self._thread.start()

    def move(self) -> bool:
        """Sends the next frame, or lets the thread do it. Returns False: the items leave when they are answered."""
        with self._lock:
            frame = next_frame(self._output, self.downstream, self._sequence) if self.resting else None
            if frame is None:
                return False
            self.resting = False
        exchange = self._exchange
        if exchange is not None and exchange.accepts(frame.block) and frame.nbytes <= SENT_AHEAD:
            try:
                exchange.send(frame)
            except (flight.FlightError, pa.ArrowException, OSError) as error:
                raise self._broken(error) from error
            self._sent = frame
        self._flag.set()
        return False

    def blocked_since(self) -> float | None:
        return self._blocked_since

    def failure(self) -> BaseException | None:
        return self._failure

    def close(self) -> None:
        """Breaks off what is under way; what the peer hasn't acknowledged stays in the output queue."""
        self._closing = True
        self._flag.set()
        exchange = self._exchange
        if exchange is not None:
            exchange.cancel()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._flag.wait()
                self._flag.clear()
                while not self._closing and (frame := self._next()) is not None:
                    self._deliver(frame)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            self._fail(self._broken(error))
        except PenstockError as error:
            self._fail(error)
        finally:
            if self._exchange is not None:
                self._exchange.abandon()
            if self._client is not None:
                self._client.close()

    def _next(self) -> Frame | None:
        """Returns the frame that is under way or the next one, or rests."""
        with self._lock:
            frame = self._sent or next_frame(self._output, self.downstream, self._sequence)
            self.resting = frame is None
            return frame

    def _broken(self, error: Exception) -> PenstockError:
        return error_of_flight(error, f"channel {self._channel} to {self._address} broke")

    def _fail(self, error: BaseException) -> None:
        if not self._closing:
            self._failure = error
            self._on_change()

    def _deliver(self, frame: Frame) -> None:
        exchange = self._exchange
        if self._sent is None or exchange is None:
            exchange = self._exchange_for(frame.block)
            exchange.send(frame)
        while (answer := exchange.answer()) == (_BLOCKED, frame.sequence):
            self._blocked_since = self._clock.monotonic()
            self._output.stop(self.downstream, True)
            self._on_change()
        if answer != (_TAKEN, frame.sequence):
            raise InternalError(f"channel {self._channel}: frame {frame.sequence} was answered with {answer}")
        self._blocked_since = None
        self._output.stop(self.downstream, False)
        self._sent = None
        self._sequence += frame.size
        for _ in range(frame.size):
            self._output.take(self.downstream)

    def _exchange_for(self, block: Block | None) -> _Exchange:
        """Returns the open exchange, or a new one if there is none or the block has another schema."""
        if self._exchange is not None and self._exchange.accepts(block):
            return self._exchange
        if self._exchange is not None:
            self._exchange.finish()
        if self._client is None:
            self._client = flight.FlightClient(f"grpc://{self._address}")
        self._exchange = _Exchange(self._client, self._channel, self._secret)
        if self._closing:
            self._exchange.cancel()
        return self._exchange


class _Exchange:
    """One Flight exchange: frames out, answers in; one schema for all blocks."""

    def __init__(self, client: flight.FlightClient, channel: ChannelId, secret: bytes) -> None:
        descriptor = flight.FlightDescriptor.for_command(encode(channel))
        self._writer, self._reader = client.do_exchange(descriptor, call_options(secret))
        self._schema: pa.Schema | None = None

    def accepts(self, block: Block | None) -> bool:
        return block is None or self._schema is None or self._schema.equals(block.data.schema)

    def send(self, frame: Frame) -> None:
        if frame.block is None:
            self._writer.write_metadata(frame.header())
            return
        if self._schema is None:
            self._schema = frame.block.data.schema
            self._writer.begin(self._schema)
        self._writer.write_with_metadata(frame.block.data, frame.header())

    def answer(self) -> tuple[bytes, int]:
        try:
            metadata = self._reader.read_chunk().app_metadata
        except StopIteration:
            raise UnavailableError("the receiver ended the channel") from None
        kind, sequence = _ANSWER.unpack(metadata.to_pybytes())
        return kind, sequence

    def finish(self) -> None:
        self._writer.done_writing()

    def cancel(self) -> None:
        """Breaks off whatever another thread waits for here."""
        self._reader.cancel()

    def abandon(self) -> None:
        self.cancel()
        with contextlib.suppress(flight.FlightError, pa.ArrowException):  # that it is broken off is known
            self._writer.close()


# --- receiving ---------------------------------------------------------------------------------------------------


class _Inbox:
    """The receiving end of a channel: the downstream task's input queue and how far the channel has come."""

    def __init__(self, channel: ChannelId, queue: ChannelQueue[TaskId]) -> None:
        self.channel = channel
        self.queue = queue
        self.sequence = 0
        self.open = True
        self.waiting = False
        self.changed = threading.Event()

    def put(self, frame: Frame, on_blocked: Callable[[], None]) -> None:
        """Puts a frame into the queue, waiting while it is full; raises StaleAttemptError if the inbox is closed."""
        if frame.sequence != self.sequence:
            raise InternalError(f"channel {self.channel}: got frame {frame.sequence}, expected {self.sequence}")
        if frame.block is not None:
            self._put_block(frame.block, on_blocked)
        for signal in frame.signals:
            self.queue.try_put(self.channel.upstream, signal)
        self.sequence += frame.size

    def _put_block(self, block: Block, on_blocked: Callable[[], None]) -> None:
        blocked, pieces = False, deque([block])
        # Set before the queue is looked at, so that no change in between goes unnoticed.
        self.waiting = True
        try:
            while True:
                self.changed.clear()
                if not self.open:
                    raise StaleAttemptError(f"channel {self.channel} was closed by its receiver")
                if self.queue.put_pieces(self.channel.upstream, pieces):
                    return
                if not blocked:
                    blocked = True
                    on_blocked()
                self.changed.wait()
        finally:
            self.waiting = False


class ExchangeServer(BoundedFlightServer):
    """The receiving side of a worker. Start it after the fork: gRPC doesn't survive one."""

    def __init__(self, secret: bytes, host: str = "127.0.0.1") -> None:
        super().__init__(secret, host)
        self._inboxes: dict[tuple[TaskId, TaskId], _Inbox] = {}
        self._lock = threading.Lock()

    def register(self, channel: ChannelId, queue: ChannelQueue[TaskId]) -> None:
        """Lets `channel` deliver into `queue`; an older attempt of the channel is closed."""
        with self._lock:
            old = self._inboxes.get((channel.upstream, channel.downstream))
            if old is not None and old.channel.attempt > channel.attempt:
                raise StaleAttemptError(f"{channel}: attempt {old.channel.attempt} runs already")
            self._inboxes[channel.upstream, channel.downstream] = _Inbox(channel, queue)
        if old is not None:
            _close_inbox(old)

    def unregister(self, stream_id: int) -> None:
        """Closes all channels into tasks of the stream."""
        with self._lock:
            keys = [key for key in self._inboxes if key[1].stream_id == stream_id]
            closed = [self._inboxes.pop(key) for key in keys]
        for inbox in closed:
            _close_inbox(inbox)

    def queue_changed(self, stream_id: int) -> None:
        """Lets blocked channels of the stream look at their queues again. Cheap; any thread."""
        for (_, downstream), inbox in tuple(self._inboxes.items()):
            if inbox.waiting and downstream.stream_id == stream_id:
                inbox.changed.set()

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Serves one channel until its sender ends it."""
        self.let_in(context)
        try:
            channel: ChannelId = decode(descriptor.command, (ChannelId,))
            inbox = self._inbox(channel)
            while True:
                try:
                    chunk = reader.read_chunk()
                except StopIteration:
                    return
                frame = Frame.from_wire(chunk.app_metadata.to_pybytes(), chunk.data)
                blocked = _ANSWER.pack(_BLOCKED, frame.sequence)
                inbox.put(frame, lambda answer=blocked: writer.write_metadata(answer))  # type: ignore[misc]
                writer.write_metadata(_ANSWER.pack(_TAKEN, frame.sequence))
        except PenstockError as error:
            raise flight_error(error) from error

    def _inbox(self, channel: ChannelId) -> _Inbox:
        with self._lock:
            inbox = self._inboxes.get((channel.upstream, channel.downstream))
        if inbox is None or inbox.channel.attempt != channel.attempt:
            known = "none" if inbox is None else f"attempt {inbox.channel.attempt}"
            raise StaleAttemptError(f"channel {channel} is refused: the receiver knows {known}")
        return inbox


def _close_inbox(inbox: _Inbox) -> None:
    inbox.open = False
    inbox.changed.set()
