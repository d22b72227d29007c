"""The exchange between workers: order, bounds, blocking, schemas, attempts and the secret."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.basics.waiting import wait_until
from kits.engines.runtime_fakes import numbers

from penstock.common.admission import REASONS, ConnectionBounds, PortCounts
from penstock.common.clock import SystemClock
from penstock.common.errors import PenstockError, StaleAttemptError, UnavailableError
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.protocol import wire
from penstock.tasks.protocol.messages import Barrier, Block, End, Item, TaskId, Watermark
from penstock.tasks.protocol.wire import SENT_AHEAD, call_options
from penstock.tasks.worker import exchange as exchange_module
from penstock.tasks.worker.exchange import (
    FRAME_SIGNALS_MAX,
    ChannelId,
    ExchangeServer,
    Frame,
    RemoteLink,
    next_frame,
)

SECRET = b"secret"
UP, DOWN = TaskId(1, "source", 0), TaskId(1, "agg", 1)
ROW_BYTES = numbers(0, 1).nbytes


class Channel:
    """A sender and a receiver of one channel in this process."""

    def __init__(
        self, server: ExchangeServer, input_rows: int = 1000, attempt: int = 1, send_as: int = 1,
        output_rows: int = 1000,
    ) -> None:
        self.server = server
        self.changed = threading.Condition()
        self.output: ChannelQueue[TaskId] = ChannelQueue(output_rows * ROW_BYTES, [DOWN], self.change)
        self.input: ChannelQueue[TaskId] = ChannelQueue(input_rows * ROW_BYTES, [UP], self.change)
        server.register(ChannelId(attempt, UP, DOWN), self.input)
        self.link = RemoteLink(
            ChannelId(send_as, UP, DOWN), server.address, SECRET, self.output, SystemClock(), self.change
        )

    def change(self) -> None:
        self.server.queue_changed(1)
        with self.changed:
            self.changed.notify_all()

    def send(self, *items: Item) -> None:
        for item in items:
            assert self.output.try_put(DOWN, item)
        self.link.move()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 10)

    def receive(self, count: int) -> list[Item]:
        items: list[Item] = []
        while len(items) < count:
            self.wait_for(lambda: not self.input.is_empty())
            item = self.input.take(UP)
            assert item is not None
            items.append(item)
            self.link.move()
        return items

    def wait_failure(self) -> BaseException:
        self.wait_for(lambda: self.link.failure() is not None)
        failure = self.link.failure()
        assert failure is not None
        return failure


@pytest.fixture(scope="module")
def server() -> Iterator[ExchangeServer]:
    server = ExchangeServer(SECRET)
    yield server
    server.shutdown()


@contextmanager
def opened(channel: Channel) -> Iterator[Channel]:
    try:
        yield channel
    finally:
        channel.server.unregister(1)
        channel.link.close()


def test_blocks_and_signals_keep_their_order(server: ExchangeServer) -> None:
    """Signals before the first block, between blocks and behind them arrive where they were."""
    items: list[Item] = [
        Watermark(None, idle=True), Barrier(1), Block(numbers(0, 5)), Watermark(7), Block(numbers(5, 5)),
        Block(numbers(10, 1)), Barrier(2), Watermark(9), End(),
    ]  # fmt: skip
    with opened(Channel(server)) as channel:
        channel.send(*items)
        assert channel.receive(len(items)) == items
        wait_until(channel.output.is_empty)


def test_only_what_may_have_to_wait_is_left_to_the_links_thread(
    server: ExchangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first frame, which opens the exchange, and large ones are sent by the thread, small ones by the caller."""
    senders: list[bool] = []
    send = exchange_module._Exchange.send

    def noted(exchange: exchange_module._Exchange, frame: Frame) -> None:
        senders.append(threading.current_thread() is threading.main_thread())
        send(exchange, frame)

    monkeypatch.setattr(exchange_module._Exchange, "send", noted)
    rows = SENT_AHEAD // ROW_BYTES + 1
    items: list[Item] = [Watermark(1), Block(numbers(0, 5)), Block(numbers(0, rows)), Watermark(2)]
    with opened(Channel(server, input_rows=rows, output_rows=rows)) as channel:
        for item in items:
            channel.send(item)
            assert channel.receive(1) == [item]
            wait_until(lambda: channel.link.resting)
    assert senders == [False, True, False, True]


def test_another_schema_is_taken_in_its_turn(server: ExchangeServer) -> None:
    """A block with another schema than its predecessor arrives unchanged, in order."""
    words = Block(pa.record_batch({"word": ["a", "b"], "n": pa.array([1, None], pa.int32())}))
    items: list[Item] = [Block(numbers(0, 3)), words, Watermark(1), Block(numbers(3, 3))]
    with opened(Channel(server)) as channel:
        channel.send(*items)
        assert channel.receive(4) == items


def test_a_full_receiver_blocks_the_sender_until_it_has_room(server: ExchangeServer) -> None:
    """A block that doesn't fit stays in the sender's output queue, who knows that it is blocked, and goes later."""
    items: list[Item] = [Block(numbers(n * 10, 10)) for n in range(6)]
    with opened(Channel(server, input_rows=20)) as channel:
        channel.send(*items)
        channel.wait_for(lambda: channel.link.blocked_since() is not None)
        assert channel.input.used_bytes == 20 * ROW_BYTES
        assert channel.output.used_bytes == 40 * ROW_BYTES
        assert channel.receive(6) == items
        wait_until(lambda: channel.output.is_empty() and channel.link.blocked_since() is None)
        assert channel.input.peak_bytes <= 20 * ROW_BYTES


def test_an_item_leaves_the_sender_only_when_the_receiver_has_it(server: ExchangeServer) -> None:
    """If the channel is closed while blocked, what was not taken is still in the output queue."""
    channel = Channel(server, input_rows=10)
    with opened(channel):
        channel.send(Block(numbers(0, 10)), Block(numbers(10, 10)))
        channel.wait_for(lambda: channel.link.blocked_since() is not None)
    assert channel.output.peek(DOWN) == Block(numbers(10, 10))


def test_another_attempt_is_refused(server: ExchangeServer) -> None:
    """A sender of an attempt that the receiver doesn't have gets a StaleAttemptError and delivers nothing."""
    with opened(Channel(server, attempt=5, send_as=4)) as channel:
        channel.send(Block(numbers(0, 1)))
        assert isinstance(channel.wait_failure(), StaleAttemptError)
        assert channel.input.is_empty()
        with pytest.raises(StaleAttemptError):
            server.register(ChannelId(4, UP, DOWN), channel.input)


def test_a_new_attempt_cuts_the_old_one_off(server: ExchangeServer) -> None:
    """When the receiver registers the next attempt, a blocked sender of the old one fails."""
    with opened(Channel(server, input_rows=10)) as old:
        old.send(Block(numbers(0, 10)), Block(numbers(10, 10)))
        old.wait_for(lambda: old.link.blocked_since() is not None)
        with opened(Channel(server, attempt=2, send_as=2)) as new:
            assert isinstance(old.wait_failure(), StaleAttemptError)
            new.send(Block(numbers(20, 5)))
            assert new.receive(1) == [Block(numbers(20, 5))]


def test_a_sender_without_the_secret_is_refused(server: ExchangeServer) -> None:
    """Only those who know the deployment's secret may deliver."""
    with opened(Channel(server)) as channel:
        stranger = RemoteLink(
            ChannelId(1, UP, DOWN), server.address, b"guess", channel.output, SystemClock(), channel.change
        )
        channel.output.try_put(DOWN, Watermark(1))
        stranger.move()
        channel.wait_for(lambda: stranger.failure() is not None)
        assert "secret" in str(stranger.failure())
        assert channel.input.is_empty()
        stranger.close()


def test_a_dead_receiver_is_an_error_that_names_the_channel() -> None:
    """If the peer's server goes away, the link fails with an UnavailableError."""
    server = ExchangeServer(SECRET)
    channel = Channel(server)
    channel.send(Watermark(1))
    assert channel.receive(1) == [Watermark(1)]
    server.unregister(1)
    channel.link.close()
    server.shutdown()
    orphan = RemoteLink(ChannelId(1, UP, DOWN), server.address, SECRET, channel.output, SystemClock(), channel.change)
    channel.output.try_put(DOWN, Watermark(2))
    orphan.move()
    channel.wait_for(lambda: orphan.failure() is not None)
    failure = orphan.failure()
    assert isinstance(failure, PenstockError)
    assert isinstance(failure, UnavailableError)
    assert "1-source-0 -> 1-agg-1" in str(failure)
    orphan.close()


def test_a_queue_tells_of_room_only_to_those_who_wait_for_it() -> None:
    """Every put is told, a take only after a block was refused; so nobody is woken in vain."""
    told: list[str] = []
    queue: ChannelQueue[TaskId] = ChannelQueue(10 * ROW_BYTES, [DOWN], lambda: told.append("changed"))
    assert queue.try_put(DOWN, Block(numbers(0, 10)))
    queue.take(DOWN)
    assert len(told) == 1
    assert queue.try_put(DOWN, Block(numbers(0, 6)))
    assert not queue.try_put(DOWN, Block(numbers(0, 6)))
    assert len(told) == 2
    queue.take(DOWN)
    assert len(told) == 3


def test_frames_hold_one_block_and_what_stands_behind_it() -> None:
    """A frame takes the oldest block with the signals behind it, or leading signals, never two blocks."""
    queue: ChannelQueue[TaskId] = ChannelQueue(1000, [DOWN], lambda: None)
    assert next_frame(queue, DOWN, 0) is None
    for item in (Watermark(1), Block(numbers(0, 1)), Watermark(2), Barrier(3), Block(numbers(1, 1))):
        queue.try_put(DOWN, item)
    assert next_frame(queue, DOWN, 0) == Frame(0, None, (Watermark(1),))
    queue.take(DOWN)
    assert next_frame(queue, DOWN, 1) == Frame(1, Block(numbers(0, 1)), (Watermark(2), Barrier(3)))
    signals: ChannelQueue[TaskId] = ChannelQueue(1000, [DOWN], lambda: None)
    for n in range(FRAME_SIGNALS_MAX + 5):
        signals.try_put(DOWN, Watermark(n))
    frame = next_frame(signals, DOWN, 0)
    assert frame is not None
    assert frame.size == FRAME_SIGNALS_MAX


SIGNALS = st.one_of(
    st.builds(Watermark, st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), st.booleans(),
              st.floats(0, 1e9)),
    st.builds(Barrier, st.integers(0, 2**62)),
    st.just(End()),
)


@given(st.integers(0, 2**62), st.lists(SIGNALS, max_size=10))
def test_frame_headers_survive_the_wire(sequence: int, signals: list[Watermark | Barrier | End]) -> None:
    """What a header says is read back the same."""
    frame = Frame(sequence, None, tuple(signals))
    assert Frame.from_wire(frame.header(), None) == frame


@settings(max_examples=15, deadline=None)
@given(st.lists(st.one_of(SIGNALS, st.integers(0, 20).map(lambda rows: Block(numbers(0, rows)))), max_size=40))
def test_any_sequence_arrives_as_it_was_sent(server: ExchangeServer, items: list[Item]) -> None:
    """Whatever is sent through a small receiver arrives complete and in order."""
    with opened(Channel(server, input_rows=20)) as channel:
        channel.send(*items)
        assert channel.receive(len(items)) == items
        wait_until(channel.output.is_empty)


def test_idle_callers_keep_no_channel_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that never present the secret are closed; one that has may rest."""
    monkeypatch.setattr(wire, "WORKER_PORTS", ConnectionBounds(strangers=5, login_timeout_s=2.0))
    server = ExchangeServer(SECRET)
    with ExitStack() as stack:
        stack.callback(server.shutdown)
        client = stack.enter_context(flight.FlightClient(f"grpc://{server.address}"))
        _, reader = client.do_exchange(flight.FlightDescriptor.for_command(b""), call_options(SECRET))
        with pytest.raises(flight.FlightError):  # there is no such channel, but the caller knows the secret
            reader.read_chunk()
        wait_until(lambda: server.guard.admission.counts() == PortCounts(1, 0, dict.fromkeys(REASONS, 0)))
        for _ in range(50):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
        counts = server.guard.admission.counts
        wait_until(lambda: counts().refused["strangers"] + counts().refused["login"] == 50)
        assert (counts().connections, counts().strangers) == (1, 0)
