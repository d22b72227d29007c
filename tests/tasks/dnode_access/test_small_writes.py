"""How the small writes of a worker's sink tasks share a connection: messages, gathering, ends; without Flight."""

from __future__ import annotations

import queue
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.common.errors import InternalError, PenstockError, UnavailableError
from penstock.common.sent_errors import encode_error
from penstock.tasks.dnode_access.small_write_queue import SmallWriteQueue
from penstock.tasks.dnode_access.small_writes import SmallWriter, SmallWrites
from penstock.tasks.dnode_access.write_messages import (
    SMALL_WRITE_MAX,
    SinkEnd,
    SmallWrite,
    WorkerWrites,
    WriteOutcome,
    WritesOf,
    outcomes,
    pack_outcomes,
    parts,
    rows_of,
)
from penstock.tasks.protocol.messages import Delivered, ResultWrite, TaskId
from penstock.tasks.protocol.numbered_children import NumberedChildren
from penstock.tasks.protocol.wire import SENT_AHEAD, decode, encode

SINK = TaskId(5, "sink", 1)
OF = WritesOf(5, 1, SINK, 77)
ROWS = pa.record_batch({"_child": pa.array([0, 1], pa.int32()), "name": pa.array(["ä", None])})
PACKED = ROWS.serialize().to_pybytes()


# --- messages ----------------------------------------------------------------------------------------------------


def test_a_message_holds_writes_of_several_tasks() -> None:
    """What was packed is what it consists of, in its order; rows come back with their schema."""
    fresh = NumberedChildren(["c"], [[1], [None]]), Delivered("p", "s")
    sent = [SmallWrite(0, (OF, ROWS.schema), fresh, PACKED), SinkEnd(4),
            SmallWrite(9, None, (), PACKED), SmallWrite(9, None, (NumberedChildren(["d"]),), PACKED)]
    assert parts(b"".join(part.pack() for part in sent)) == sent
    assert rows_of(PACKED, ROWS.schema) == ROWS


WRITE = SmallWrite(0, (OF, ROWS.schema), (), PACKED).pack()


@pytest.mark.parametrize("message", [
    b"x", WRITE[:-1], WRITE + b"x", struct.pack("<III", 0, 3, 0) + b"abc", bytes(SENT_AHEAD + 12),
    *(struct.pack("<III", 0, len(new), 1) + new + b"r" for new in (
        b"junk", encode(print), encode(7), encode((OF, b"no schema", ())), encode((None, b"", (OF,))),
        encode((None, b"", (), 1)), encode((SINK, b"", ())), encode((OF, ROWS.schema.serialize().to_pybytes(), [])))),
])
def test_forged_messages_are_refused(message: bytes) -> None:
    """Broken off, too long, without rows, and with what doesn't belong there."""
    with pytest.raises(InternalError):
        parts(message)


@pytest.mark.parametrize("forged", [b"r", PACKED[:-8], b"\xff" * len(PACKED)])
def test_forged_rows_are_refused(forged: bytes) -> None:
    """Bytes that aren't rows, or not all of them."""
    with pytest.raises(InternalError):
        rows_of(forged, ROWS.schema)


def test_rows_whose_texts_reach_too_far_are_refused() -> None:
    """Offsets are checked before anybody follows them."""
    rows = pa.record_batch({"name": ["ab", "c"]}).serialize().to_pybytes()
    forged = rows.replace(struct.pack("<iii", 0, 2, 3), struct.pack("<iii", 0, 2, 1 << 20))
    assert forged != rows
    with pytest.raises(InternalError):
        rows_of(forged, pa.schema({"name": pa.string()}))


def test_answers_say_what_became_of_each_write() -> None:
    """Errors keep their class; what isn't an answer is refused."""
    error = encode_error(UnavailableError("away"))
    good, bad = outcomes(pack_outcomes([(3, None), (0, error)]))
    assert good == WriteOutcome(3, None)
    assert (bad.number, type(bad.error), str(bad.error)) == (0, UnavailableError, "away")
    assert type(outcomes(encode(((1, 7),)))[0].error) is InternalError
    for forged in (b"", encode((1, 2)), encode(((1, 2, 3),))):
        with pytest.raises(InternalError):
            outcomes(forged)


# --- gathering ---------------------------------------------------------------------------------------------------


def test_what_comes_while_messages_are_on_their_way_goes_in_one() -> None:
    """Two messages at once; the rest waits for an answer and goes together, but for what wasn't released."""
    waiting = SmallWriteQueue()
    sent = []
    for number in range(5):
        waiting.add(number, b"%d" % number)
        assert waiting.next_message() is None
        waiting.release()
        sent.append(waiting.next_message())
    waiting.add(5, b"5")
    assert sent == [b"0", b"1", None, None, None]
    waiting.drop(3)
    waiting.drop(5)
    waiting.release()
    waiting.note_answer()
    assert waiting.next_message() == b"24"
    assert waiting.next_message() is None
    waiting.note_answer()
    waiting.note_answer()
    with pytest.raises(IndexError):
        waiting.note_answer()


def test_no_more_bytes_are_on_their_way_than_never_wait() -> None:
    """What would be too much stays for the next message."""
    waiting = SmallWriteQueue()
    for number in range(3):
        waiting.add(number, bytes(SMALL_WRITE_MAX - 100 * number))
    waiting.release()
    first = waiting.next_message()
    assert first is not None
    assert len(first) == SMALL_WRITE_MAX
    assert waiting.next_message() is None
    waiting.note_answer()
    second = waiting.next_message()
    assert second is not None
    assert len(second) == SMALL_WRITE_MAX - 100


# --- the connection ----------------------------------------------------------------------------------------------


class _Connection:
    """Both ends of a connection that its test answers on."""

    def __init__(self) -> None:
        self.sent: queue.Queue[bytes | None] = queue.Queue()
        self.answers: queue.Queue[bytes | Exception | None] = queue.Queue()
        self.closed = threading.Event()

    def write_metadata(self, message: bytes) -> None:
        self.sent.put(message)

    def done_writing(self) -> None:
        self.sent.put(None)

    def close(self) -> None:
        self.closed.set()

    def read(self) -> Any:
        answer = self.answers.get(timeout=60)
        if isinstance(answer, Exception):
            raise answer
        return None if answer is None else pa.py_buffer(answer)

    def receive(self) -> list[SmallWrite | SinkEnd] | None:
        """Returns what comes next; None: the end."""
        message = self.sent.get(timeout=60)
        return None if message is None else parts(message)


class _Dnode:
    """Remembers the connections that were opened."""

    def __init__(self) -> None:
        self.opened: queue.Queue[_Connection] = queue.Queue()
        self.connections: list[_Connection] = []

    def open_writes(self, command: bytes, schema: pa.Schema) -> tuple[Any, Any]:
        assert decode(command, (WorkerWrites,)) == WorkerWrites()
        assert len(schema) == 0
        connection = _Connection()
        self.connections.append(connection)
        self.opened.put(connection)
        return connection, connection

    def connection(self) -> _Connection:
        return self.opened.get(timeout=60)


class _Sink:
    """A sink task that waits for what it hears."""

    def __init__(self, writes: SmallWrites) -> None:
        self.heard: queue.Queue[PenstockError | None] = queue.Queue()
        self.writer: SmallWriter = writes.join(self.heard.put)

    def submit(self) -> None:
        assert self.writer.submit(ResultWrite(5, 1, SINK, 77, NumberedChildren(["c"]), ROWS))

    def hears(self) -> PenstockError | None:
        return self.heard.get(timeout=60)


@pytest.fixture
def dnode() -> Iterator[_Dnode]:
    dnode = _Dnode()
    yield dnode
    for connection in dnode.connections:
        connection.answers.put(None)  # nobody waits for answers any more
    assert dnode.opened.empty()  # its test has looked at all of them


def test_tasks_share_a_connection_and_hear_their_own_answers(dnode: _Dnode) -> None:
    """The first write says whose they are and brings children, later ones don't; an error is heard by one task."""
    writes = SmallWrites(dnode.open_writes)
    one, other = _Sink(writes), _Sink(writes)
    connection = dnode.connection()
    one.submit()
    first = SmallWrite(0, (OF, ROWS.schema), (NumberedChildren(["c"]),), PACKED)
    assert connection.receive() == [first]
    other.submit()
    assert connection.receive() == [SmallWrite(1, first.kind, first.fresh, PACKED)]
    one.submit()
    other.submit()
    connection.answers.put(pack_outcomes([(0, None)]))
    assert one.hears() is None
    assert connection.receive() == [SmallWrite(0, None, (), PACKED), SmallWrite(1, None, (), PACKED)]
    connection.answers.put(pack_outcomes([(1, encode_error(InternalError("no")))]))
    assert isinstance(other.hears(), InternalError)
    connection.answers.put(pack_outcomes([(0, None), (1, encode_error(InternalError("no")))]))
    assert one.hears() is None
    for sink in (one, other):
        sink.writer.leave()
    connection.answers.put(None)
    assert connection.closed.wait(30)


def test_what_a_thread_submits_that_sends_goes_in_one_message(dnode: _Dnode) -> None:
    """Once it has called `send`, what it submits waits for that; what another thread submits doesn't."""
    writes = SmallWrites(dnode.open_writes)
    one, other = _Sink(writes), _Sink(writes)
    connection = dnode.connection()
    writes.send()
    one.submit()
    other.submit()
    assert connection.sent.empty()
    writes.send()
    writes.send()
    first, second = connection.receive() or ()
    assert (first.number, second.number) == (0, 1)
    one.submit()
    elsewhere = threading.Thread(target=other.submit)
    elsewhere.start()
    elsewhere.join()
    assert [part.number for part in connection.receive() or ()] == [0, 1]
    connection.answers.put(pack_outcomes([(0, None), (1, None)]))
    assert (one.hears(), other.hears()) == (None, None)


def test_who_leaves_is_forgotten_and_the_last_one_ends_the_connection(dnode: _Dnode) -> None:
    """The dnode is told of a task's end if it knows the task; who comes after the last one opens a new connection."""
    writes = SmallWrites(dnode.open_writes)
    silent, one, other = _Sink(writes), _Sink(writes), _Sink(writes)
    connection = dnode.connection()
    one.submit()
    connection.receive()
    silent.writer.leave()
    one.writer.leave()
    assert connection.receive() == [SinkEnd(1)]
    connection.answers.put(pack_outcomes([(1, None)]))
    other.writer.leave()
    assert connection.receive() is None
    connection.answers.put(None)
    assert connection.closed.wait(30)
    assert one.heard.empty()
    late = _Sink(writes)
    late.submit()
    assert dnode.connection().receive() == [SmallWrite(0, (OF, ROWS.schema), (NumberedChildren(["c"]),), PACKED)]


@pytest.mark.parametrize(
    ("end", "kind"),
    [(flight.FlightUnavailableError("gone"), UnavailableError), (None, UnavailableError), (b"junk", InternalError)])
def test_a_broken_connection_fails_all_and_serves_nobody_else(
    dnode: _Dnode, end: Exception | bytes | None, kind: type[PenstockError]
) -> None:
    """Whether the dnode goes away, ends the answers or answers nonsense; who comes next gets another connection."""
    writes = SmallWrites(dnode.open_writes)
    sinks = [_Sink(writes), _Sink(writes)]
    broken = dnode.connection()
    sinks[0].submit()
    broken.receive()
    broken.answers.put(end)
    for sink in sinks:
        assert type(sink.hears()) is kind
        sink.submit()
        sink.writer.leave()
    assert broken.sent.empty()
    new = _Sink(writes)
    new.submit()
    connection = dnode.connection()
    assert connection.receive() == [SmallWrite(0, (OF, ROWS.schema), (NumberedChildren(["c"]),), PACKED)]
    connection.answers.put(pack_outcomes([(0, None)]))
    assert new.hears() is None


def test_an_answer_that_nobody_waits_for_breaks_the_connection(dnode: _Dnode) -> None:
    """Both ends would disagree about what is answered."""
    sink = _Sink(SmallWrites(dnode.open_writes))
    dnode.connection().answers.put(pack_outcomes([(0, None)]))
    assert isinstance(sink.hears(), InternalError)


def test_large_writes_are_not_taken(dnode: _Dnode) -> None:
    """Neither many rows nor many children nor rows with dictionaries; nothing is sent, and children stay unsent."""
    sink = _Sink(SmallWrites(dnode.open_writes))
    many = pa.record_batch({"ts": pa.array(range(SMALL_WRITE_MAX // 8 + 1))})
    children = NumberedChildren([f"child {number}" * 10 for number in range(1000)])
    named = pa.record_batch({"name": pa.array(["a"]).dictionary_encode()})
    for rows, of in ((many, []), (ROWS, children), (named, [])):
        assert not sink.writer.submit(ResultWrite(5, 1, SINK, 77, of, rows))
    sink.submit()
    assert dnode.connection().receive() == [SmallWrite(0, (OF, ROWS.schema), (NumberedChildren(["c"]),), PACKED)]
