"""Channels between workers over real connections: order, bounds, blocking, attempts, the secret, and what ends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.basics.waiting import wait_until
from kits.engines.runtime_fakes import numbers

from penstock.common.admission import REASONS, ConnectionBounds, PortCounts
from penstock.common.clock import SystemClock
from penstock.common.errors import StaleAttemptError, UnavailableError
from penstock.tasks.exchange import outgoing_bundles
from penstock.tasks.exchange.channel_frames import ChannelId
from penstock.tasks.exchange.exchange_server import ExchangeServer
from penstock.tasks.exchange.outgoing_bundles import OutgoingBundles
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.protocol import wire
from penstock.tasks.protocol.messages import Barrier, Block, End, Item, TaskId, Watermark
from penstock.tasks.protocol.wire import SENT_AHEAD, call_options

SECRET = b"secret"
UP, DOWN = TaskId(1, "source", 0), TaskId(1, "agg", 1)
ROW_BYTES = numbers(0, 1).nbytes


class Channel:
    """A sender and a receiver of one channel in this process."""

    def __init__(
        self, server: ExchangeServer, input_rows: int = 1000, attempt: int = 1, send_as: int = 1,
        output_rows: int = 1000, bundles: OutgoingBundles | None = None, place: int = 0,
    ) -> None:
        """Channels with the same `bundles` go over one connection; `place`: several of a server have different ones."""
        self.server = server
        self.changed = threading.Condition()
        self.up, self.down = TaskId(1 + place, "source", 0), TaskId(1 + place, "agg", 1)
        self.output: ChannelQueue[TaskId] = ChannelQueue(output_rows * ROW_BYTES, [self.down], self.change)
        self.input: ChannelQueue[TaskId] = ChannelQueue(input_rows * ROW_BYTES, [self.up], self.change)
        server.register(ChannelId(attempt, self.up, self.down), self.input)
        self.bundles = OutgoingBundles(SECRET, SystemClock()) if bundles is None else bundles
        self.link = self.bundles.link(
            ChannelId(send_as, self.up, self.down), server.address, self.output, self.change)

    def change(self) -> None:
        self.server.queue_changed(self.up.stream_id)
        with self.changed:
            self.changed.notify_all()

    def send(self, *items: Item) -> None:
        for item in items:
            assert self.output.try_put(self.down, item)
        self.link.move()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 10)

    def receive(self, count: int) -> list[Item]:
        items: list[Item] = []
        while len(items) < count:
            self.wait_for(lambda: not self.input.is_empty())
            item = self.input.take(self.up)
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
        channel.server.unregister(channel.up.stream_id)
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
    write = outgoing_bundles._PeerConnection.write

    def noted(connection: outgoing_bundles._PeerConnection, header: bytes, wrapped: pa.RecordBatch | None) -> None:
        senders.append(threading.current_thread() is threading.main_thread())
        write(connection, header, wrapped)

    monkeypatch.setattr(outgoing_bundles._PeerConnection, "write", noted)
    rows = SENT_AHEAD // ROW_BYTES + 1
    items: list[Item] = [Watermark(1), Block(numbers(0, 5)), Block(numbers(0, rows)), Watermark(2)]
    with opened(Channel(server, input_rows=rows, output_rows=rows)) as channel:
        for item in items:
            channel.send(item)
            assert channel.receive(1) == [item]
            wait_until(lambda: channel.output.is_empty() and channel.link.resting)
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
    with opened(Channel(server, bundles=OutgoingBundles(b"guess", SystemClock()))) as channel:
        channel.send(Watermark(1))
        assert "secret" in str(channel.wait_failure())
        assert channel.input.is_empty()


def test_a_dead_receiver_is_an_error_that_names_the_channel() -> None:
    """If the peer's server goes away, the link fails with an UnavailableError."""
    server = ExchangeServer(SECRET)
    with opened(Channel(server)) as channel:
        channel.send(Watermark(1))
        assert channel.receive(1) == [Watermark(1)]
    server.shutdown()
    channel.link = channel.bundles.link(ChannelId(1, UP, DOWN), server.address, channel.output, channel.change)
    channel.send(Watermark(2))
    failure = channel.wait_failure()
    assert isinstance(failure, UnavailableError)
    assert "1-source-0 -> 1-agg-1" in str(failure)
    channel.link.close()


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


SIGNALS = st.one_of(
    st.builds(Watermark, st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), st.booleans(),
              st.floats(0, 1e9)),
    st.builds(Barrier, st.integers(0, 2**62)),
    st.just(End()),
)


@settings(max_examples=times(6, 150), deadline=None)
@given(st.lists(st.one_of(SIGNALS, st.integers(0, 20).map(lambda rows: Block(numbers(0, rows)))), max_size=40))
def test_any_sequence_arrives_as_it_was_sent(server: ExchangeServer, items: list[Item]) -> None:
    """Whatever is sent through a small receiver arrives complete and in order."""
    with opened(Channel(server, input_rows=20)) as channel:
        channel.send(*items)
        assert channel.receive(len(items)) == items
        wait_until(channel.output.is_empty)


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith(("send to", "hear "))}


def test_channels_to_one_worker_share_a_connection_and_its_threads(server: ExchangeServer) -> None:
    """Any number of channels has one connection and two threads; those begin with a frame, and end with the last."""
    bundles = OutgoingBundles(SECRET, SystemClock())
    before = threads()
    channels = [Channel(server, bundles=bundles, place=place) for place in range(20)]
    assert (len(bundles), threads()) == (1, before)
    for channel in channels:
        channel.send(Block(numbers(0, 5)), Watermark(3))
    for channel in channels:
        assert channel.receive(2) == [Block(numbers(0, 5)), Watermark(3)]
    assert threads() - before == {f"send to {server.address}", f"hear {server.address}"}
    for channel in channels[1:]:
        channel.link.close()
    channels[0].send(Watermark(4))
    assert channels[0].receive(1) == [Watermark(4)]
    assert len(bundles) == 1
    channels[0].link.close()
    assert (len(bundles), threads()) == (0, before)
    for channel in channels:
        server.unregister(channel.up.stream_id)


def test_a_blocked_channel_holds_no_other_one_up(server: ExchangeServer) -> None:
    """While one channel waits for room, another of the same connection goes on, with large blocks, too."""
    bundles = OutgoingBundles(SECRET, SystemClock())
    rows = SENT_AHEAD // ROW_BYTES + 1
    with (opened(Channel(server, input_rows=10, bundles=bundles)) as full,
          opened(Channel(server, input_rows=rows, output_rows=3 * rows, bundles=bundles, place=1)) as free):
        full.send(Block(numbers(0, 10)), Block(numbers(10, 10)))
        full.wait_for(lambda: full.link.blocked_since() is not None)
        items: list[Item] = [Block(numbers(0, rows)), Watermark(1), Block(numbers(0, rows)), Block(numbers(0, 2))]
        free.send(*items)
        assert free.receive(4) == items
        assert full.link.blocked_since() is not None
        assert full.receive(2) == [Block(numbers(0, 10)), Block(numbers(10, 10))]


def test_a_refused_attempt_leaves_the_connection_to_the_others(server: ExchangeServer) -> None:
    """A channel that is refused fails alone."""
    bundles = OutgoingBundles(SECRET, SystemClock())
    with (opened(Channel(server, attempt=5, send_as=4, bundles=bundles)) as stale,
          opened(Channel(server, bundles=bundles, place=1)) as other):
        stale.send(Watermark(1))
        assert isinstance(stale.wait_failure(), StaleAttemptError)
        other.send(Watermark(2))
        assert other.receive(1) == [Watermark(2)]
        assert other.link.failure() is None


def test_a_broken_connection_fails_its_channels_and_the_next_one_is_new() -> None:
    """All channels of a connection that breaks fail, each with its name; a later channel gets another connection."""
    bundles = OutgoingBundles(SECRET, SystemClock())
    server = ExchangeServer(SECRET)
    channels = [Channel(server, bundles=bundles, place=place) for place in range(2)]
    for channel in channels:
        channel.send(Watermark(1))
        assert channel.receive(1) == [Watermark(1)]
    connection = next(iter(bundles._bundles.values()))._connection
    assert connection is not None
    connection.write(b"neither frame nor end", None)
    for channel in channels:
        assert f"channel {channel.up} -> {channel.down} (attempt 1)" in str(channel.wait_failure())
        assert "header" in str(channel.wait_failure())
    assert len(bundles) == 0
    with opened(Channel(server, bundles=bundles, attempt=2, send_as=2)) as channel:
        channel.send(Watermark(2))
        assert channel.receive(1) == [Watermark(2)]
    for channel in channels:
        channel.link.close()
    server.shutdown()


def test_idle_callers_keep_no_channel_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that never present the secret are closed; one that has may rest."""
    monkeypatch.setattr(wire, "WORKER_PORTS", ConnectionBounds(strangers=5, login_timeout_s=2.0))
    server = ExchangeServer(SECRET)
    with ExitStack() as stack:
        stack.callback(server.shutdown)
        client = stack.enter_context(flight.FlightClient(f"grpc://{server.address}"))
        _, reader = client.do_exchange(flight.FlightDescriptor.for_command(b""), call_options(SECRET))
        with pytest.raises(flight.FlightError, match="none for channels"):  # but the caller knows the secret
            reader.read_chunk()
        wait_until(lambda: server.guard.admission.counts() == PortCounts(1, 0, dict.fromkeys(REASONS, 0)))
        for _ in range(50):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
        counts = server.guard.admission.counts
        wait_until(lambda: counts().refused["strangers"] + counts().refused["login"] == 50)
        assert (counts().connections, counts().strangers) == (1, 0)
