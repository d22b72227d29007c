"""What both ends of a connection decide, without sockets and threads: frames, the wire, interleavings of channels."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable

import pyarrow as pa
import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.engines.runtime_fakes import numbers

from penstock.common.errors import InternalError, PenstockError, StaleAttemptError, UnavailableError
from penstock.tasks.exchange.channel_frames import (
    BLOCKED,
    FRAME_SIGNALS_MAX,
    REFUSED,
    TAKEN,
    ChannelId,
    Frame,
    FrameAnswer,
    Message,
    answers_from_wire,
    answers_to_wire,
    frame_to_wire,
    next_frame,
)
from penstock.tasks.exchange.incoming_channels import IncomingChannels, IncomingConnection
from penstock.tasks.exchange.outgoing_channels import OutgoingChannel, OutgoingChannels
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.protocol.messages import (
    Barrier,
    Block,
    End,
    Item,
    Retract,
    RetractEnd,
    TaskId,
    Watermark,
)

DOWN = TaskId(1, "agg", 1)
ROW_BYTES = numbers(0, 1).nbytes
AHEAD_MAX = 1000

WORDS = pa.record_batch({"word": ["a", "b"], "n": pa.array([1, None], pa.int32())})
CODED = pa.record_batch({"word": pa.array(["a", "b", "a"]).dictionary_encode(), "n": pa.array([1, 2, 3])})
NESTED = pa.record_batch({"words": pa.array([["a"], []], pa.list_(pa.dictionary(pa.int32(), pa.string())))})
SCHEMAS = (numbers(0, 3), numbers(3, 3000), WORDS, CODED, NESTED, WORDS.slice(1, 1), WORDS.slice(0, 0))

SIGNALS = st.one_of(
    st.builds(Watermark, st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), st.booleans(), st.floats(0, 1e9)),
    st.builds(Barrier, st.integers(0, 2**62)),
    st.builds(Retract, st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1)),
    st.just(RetractEnd()),
    st.just(End()),
)
BLOCKS = st.sampled_from(SCHEMAS).map(Block)


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


@settings(max_examples=times(16, 400))
@given(st.lists(st.tuples(st.one_of(st.none(), BLOCKS), st.lists(SIGNALS, max_size=5)), max_size=8))
def test_frames_survive_the_wire(frames: list[tuple[Block | None, list[Watermark]]]) -> None:
    """What a channel's frames hold is read back the same, schemas that change and dictionaries included."""
    sent = received = None
    for sequence, (block, signals) in enumerate(frames):
        frame = Frame(sequence, block, tuple(signals))
        header, wrapped, sent = frame_to_wire(7, frame, None, sent)
        message = Message.from_wire(pa.py_buffer(header), wrapped)
        read, received = message.frame(received)
        assert (read, message.number, message.closes) == (frame, 7, False)
        if read.block is not None and block is not None:
            assert read.block.data.schema.equals(block.data.schema)


def test_a_schema_travels_once() -> None:
    """Further blocks of a schema come without it."""
    frame = Frame(0, Block(numbers(0, 3)), ())
    first, _, schema = frame_to_wire(1, frame, None, None)
    second, _, _ = frame_to_wire(1, frame, None, schema)
    assert len(second) < len(first) - numbers(0, 3).schema.serialize().size + 1


@settings(max_examples=times(24, 600))
@given(st.data(), st.sampled_from((0, 1)))
def test_damaged_messages_are_refused(data: st.DataObject, large: int) -> None:
    """A message that is cut off, longer, or of which lengths or signals are changed is an InternalError."""
    frame = Frame(0, Block(SCHEMAS[large]), (Watermark(1), Barrier(2)))
    header, wrapped, _ = frame_to_wire(1, frame, ChannelId(1, TaskId(1, "source", 0), DOWN), None)
    header_bytes = struct.calcsize("<cQQIIII")
    damaged = data.draw(st.one_of(
        st.integers(0, len(header) - 1).map(lambda end: header[:end]),
        st.binary(min_size=1, max_size=5).map(lambda more: header + more),
        st.just(b"?" + header[1:]),
        st.integers(17, header_bytes - 1).map(lambda at: header[:at] + bytes([header[at] ^ 1]) + header[at + 1 :]),
        st.just(header.replace(b"barrier", b"carrier")),
    ))
    channels = IncomingChannels()
    with pytest.raises(InternalError):
        channels.arrived(IncomingConnection(_unheard), Message.from_wire(pa.py_buffer(damaged), wrapped))


def _unheard(answer: FrameAnswer) -> None:
    raise AssertionError(f"answered: {answer}")


def test_rows_without_a_schema_and_wrong_wrapping_are_refused() -> None:
    """So are rows of a schema that never came, and blocks that aren't wrapped, or not alone."""
    frame = Frame(0, Block(numbers(0, 3000)), ())
    header, wrapped, schema = frame_to_wire(1, frame, None, None)
    assert wrapped is not None
    for other in (numbers(0, 1), pa.concat_batches([wrapped, wrapped]), wrapped.slice(0, 0)):
        with pytest.raises(InternalError, match="wrapped"):
            Message.from_wire(pa.py_buffer(header), other)
    header, wrapped, _ = frame_to_wire(1, frame, None, schema)
    with pytest.raises(InternalError, match="without a schema"):
        Message.from_wire(pa.py_buffer(header), wrapped).frame(None)


def test_answers_survive_the_wire_and_damaged_ones_are_refused() -> None:
    """Several answers go in one message; an error keeps its class."""
    answers = [FrameAnswer(TAKEN, 1, 5), FrameAnswer(REFUSED, 2, 0, StaleAttemptError("old")),
               FrameAnswer(BLOCKED, 2**40, 2**60)]
    data = answers_to_wire(answers)
    read = list(answers_from_wire(data))
    assert [(each.kind, each.number, each.sequence) for each in read] == [
        (each.kind, each.number, each.sequence) for each in answers]
    assert isinstance(read[1].error, StaleAttemptError)
    ends = {len(answers_to_wire(answers[:count])) for count in range(4)}
    for end in range(len(data)):
        if end not in ends:
            with pytest.raises(InternalError, match="damaged answer"):
                list(answers_from_wire(data[:end]))
    with pytest.raises(InternalError, match="damaged answer"):
        list(answers_from_wire(b"?" + data[1:]))


# --- both ends together ------------------------------------------------------------------------------------------


class Way:
    """One channel: what was put in, what came out, and both of its ends."""

    def __init__(self, pair: Pair, stream: int, place: int, input_rows: int) -> None:
        self.id = ChannelId(1, TaskId(stream, "source", 0), TaskId(stream, "agg", place))
        self.output: ChannelQueue[TaskId] = ChannelQueue(40 * ROW_BYTES, [self.id.downstream], lambda: None)
        self.input: ChannelQueue[TaskId] = ChannelQueue(
            input_rows * ROW_BYTES, [self.id.upstream], lambda: pair.changed(stream))
        self.sent: list[Item] = []
        self.got: list[Item] = []
        self.closed = False
        pair.incoming.register(self.id, self.input)
        self.pair = pair
        self.channel: OutgoingChannel
        self.open()

    def open(self) -> None:
        channel = self.pair.outgoing.add(self.id, self.output, lambda: None)
        assert channel is not None
        self.channel = channel

    def send(self, item: Item) -> None:
        if self.output.try_put(self.id.downstream, item):
            self.sent.append(item)
            self.pair.outgoing.offer(self.channel)

    def receive(self) -> None:
        item = self.input.take(self.id.upstream)
        if item is not None:
            self.got.append(item)

    def check(self) -> None:
        """What came out is the beginning of what went in, cut smaller at most; the rest is under way or waits."""
        self.output.validate()
        self.input.validate()
        assert joined(self.got) == joined(self.sent)[: len(joined(self.got))]


def joined(items: list[Item]) -> list[object]:
    """Returns rows and signals one by one, since blocks may be cut on their way."""
    return [each for item in items
            for each in (item.data.column(0).to_pylist() if isinstance(item, Block) else [item])]


class Pair:
    """Two workers and a connection whose messages wait until they are told to go on."""

    def __init__(self) -> None:
        self.outgoing = OutgoingChannels(AHEAD_MAX)
        self.incoming = IncomingChannels()
        self.to_receiver: deque[tuple[bytes, pa.RecordBatch | None]] = deque()
        self.to_sender: deque[FrameAnswer] = deque()
        self.connection = IncomingConnection(self.to_sender.append)
        self.news: set[int] = set()
        self.under_way: dict[int, int] = {}

    def changed(self, stream: int) -> None:
        if self.incoming.waits(stream):
            self.news.add(stream)

    def write(self, may_wait: bool) -> bool:
        outgoing = self.outgoing.take(may_wait)
        if outgoing is None:
            return False
        assert self.outgoing.take(True) is None  # one at a time
        self.to_receiver.append(outgoing.to_wire())
        self.outgoing.written()
        return True

    def read(self) -> bool:
        if not self.to_receiver:
            return False
        header, wrapped = self.to_receiver.popleft()
        self.incoming.arrived(self.connection, Message.from_wire(pa.py_buffer(header), wrapped))
        return True

    def hear(self) -> bool:
        if not self.to_sender:
            return False
        self.outgoing.answered(self.to_sender.popleft(), 1.0)
        return True

    def unpark(self) -> bool:
        if not self.news:
            return False
        self.incoming.room(self.news.pop())
        return True

    def settle(self, *ways: Way) -> None:
        """Lets everything go on until nothing does."""
        while self.write(True) or self.read() or self.hear() or self.unpark():
            pass


STEPS = st.lists(st.tuples(st.sampled_from(("put", "signal", "take", "write", "send", "read", "hear", "unpark")),
                           st.integers(0, 3), st.integers(1, 30)), max_size=120)


@settings(max_examples=times(48, 1200), deadline=None)
@given(STEPS, st.lists(st.integers(1, 25), min_size=4, max_size=4))
def test_any_interleaving_delivers_each_channel_in_order(steps: list[tuple[str, int, int]], rooms: list[int]) -> None:
    """However threads and full queues take turns, each channel gets all of its items, in order, within the bounds."""
    pair = Pair()
    ways = [Way(pair, 1 + place // 2, place, room) for place, room in enumerate(rooms)]
    count = 0
    for action, place, amount in steps:
        way = ways[place]
        if action == "put":
            way.send(Block(numbers(count, amount)))
            count += amount
        elif action == "signal":
            way.send(Watermark(count))
        elif action == "take":
            way.receive()
        else:
            perform(pair, action)
        way.check()
        assert way.input.used_bytes <= max(way.input.capacity_bytes, ROW_BYTES)
    while any(joined(way.got) != joined(way.sent) for way in ways):
        before = sum(len(way.got) for way in ways)
        pair.settle()
        for way in ways:
            way.receive()
        assert sum(len(way.got) for way in ways) > before, "it stands still"
    pair.settle()
    for way in ways:
        assert way.output.is_empty()
        assert (way.channel.frame, way.channel.blocked_since) == (None, None)


def perform(pair: Pair, action: str) -> None:
    actions: dict[str, Callable[[], bool]] = {
        "write": lambda: pair.write(True), "send": lambda: pair.write(False), "read": pair.read, "hear": pair.hear,
        "unpark": pair.unpark}
    actions[action]()


@settings(max_examples=times(32, 800), deadline=None)
@given(STEPS, st.integers(0, 119), st.sampled_from(("broken", "sender closes", "receiver closes", "new attempt")))
def test_an_end_concerns_only_those_that_it_should(steps: list[tuple[str, int, int]], at: int, end: str) -> None:
    """A channel that either end closes, or that a new attempt replaces, loses nothing but itself; a broken connection
    fails all; what wasn't acknowledged stays in the output queue, and nothing stays parked."""
    pair = Pair()
    ways = [Way(pair, 1 + place, place, 12) for place in range(4)]
    victim, others = ways[0], ways[1:]
    at = min(at, len(steps))
    for number, (action, place, amount) in enumerate([*steps, *[("read", 0, 1)] * 3]):
        if number == at:
            strike(pair, victim, end)
        way = ways[place]
        if action in ("put", "signal"):
            way.send(Block(numbers(amount, amount)) if action == "put" else Watermark(amount))
        elif action == "take":
            way.receive()
        elif end != "broken" or number < at:
            perform(pair, action)
        way.check()
    kept = joined(drain(victim.output, victim.id.downstream))
    assert joined(victim.sent)[len(joined(victim.sent)) - len(kept) :] == kept
    taken = joined([*victim.got, *drain(victim.input, victim.id.upstream)])
    assert len(taken) + len(kept) >= len(joined(victim.sent))  # an answer that nobody hears may leave a frame in both
    if end == "broken":
        assert all(isinstance(way.channel.failure, UnavailableError) for way in ways)
        assert not any(pair.incoming.waits(1 + place) for place in range(4))
        return
    for _ in range(200):
        pair.settle()
        for way in others:
            way.receive()
    assert all(joined(way.got) == joined(way.sent) and way.channel.failure is None for way in others)
    assert not pair.incoming.waits(1)
    if end == "sender closes":
        assert victim.channel.number not in pair.connection.places
    elif victim.channel.failure is not None:
        assert isinstance(victim.channel.failure, StaleAttemptError)


def strike(pair: Pair, victim: Way, end: str) -> None:
    if end == "broken":
        def error_of(id: ChannelId) -> PenstockError:
            return UnavailableError(str(id))

        assert len(pair.outgoing.broke(error_of)) == 4
        assert pair.outgoing.add(victim.id, victim.output, lambda: None) is None
        pair.incoming.lost(pair.connection)
    elif end == "sender closes":
        assert not pair.outgoing.remove(victim.channel)
    elif end == "receiver closes":
        pair.incoming.unregister(1)
    else:
        pair.incoming.register(ChannelId(2, victim.id.upstream, victim.id.downstream), victim.input)


def drain(queue: ChannelQueue[TaskId], channel: TaskId) -> list[Item]:
    items = []
    while (item := queue.take(channel)) is not None:
        items.append(item)
    return items


def test_a_caller_sends_only_what_needs_no_waiting() -> None:
    """Small frames may go while what is on its way fits; beyond that they wait for the sending thread."""
    pair = Pair()
    ways = [Way(pair, 1 + place, place, 40) for place in range(3)]
    ways[0].send(Block(numbers(0, 40)))
    nbytes = 64 + ways[0].sent[0].nbytes  # type: ignore[union-attr]
    assert nbytes < AHEAD_MAX < 3 * nbytes
    for way in ways[1:]:
        way.send(Block(numbers(0, 40)))
    sent = 0
    while pair.write(False):
        sent += 1
    assert sent == AHEAD_MAX // nbytes
    assert pair.outgoing.waits
    assert pair.read()
    assert not pair.write(False)  # what was read counts until it is heard
    assert pair.hear()
    assert pair.write(False)


def test_a_receiver_that_was_told_nothing_of_a_channel_takes_nothing() -> None:
    """A frame of a number that nobody has opened, or of a place that is out of order, isn't taken."""
    pair = Pair()
    way = Way(pair, 1, 0, 10)
    header, wrapped, _ = frame_to_wire(9, Frame(0, None, (Watermark(1),)), None, None)
    with pytest.raises(InternalError, match="nobody has opened"):
        pair.incoming.arrived(pair.connection, Message.from_wire(pa.py_buffer(header), wrapped))
    header, wrapped, _ = frame_to_wire(9, Frame(4, None, (Watermark(1),)), way.id, None)
    pair.incoming.arrived(pair.connection, Message.from_wire(pa.py_buffer(header), wrapped))
    assert [(each.kind, type(each.error)) for each in pair.to_sender] == [(REFUSED, InternalError)]
    assert way.input.is_empty()


def test_an_answer_to_nothing_is_an_error() -> None:
    """A frame that wasn't sent can't be taken; of a channel that is gone, nothing is expected."""
    pair = Pair()
    way = Way(pair, 1, 0, 10)
    way.send(Watermark(1))
    with pytest.raises(InternalError, match="wasn't sent"):
        pair.outgoing.answered(FrameAnswer(TAKEN, way.channel.number, 0), 1.0)
    assert pair.outgoing.answered(FrameAnswer(TAKEN, 77, 0), 1.0) is None
