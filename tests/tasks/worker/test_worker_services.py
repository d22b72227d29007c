"""What workers and the engine say to each other: control messages, results and rows, errors, state folders."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.flight
import pytest
from kits.basics.waiting import wait_until

from penstock.common.admission import ConnectionBounds
from penstock.common.clock import ManualClock, SystemClock
from penstock.common.errors import InternalError, NotFoundError, PenstockError, StaleAttemptError, UnavailableError
from penstock.common.fs import OsFs
from penstock.common.paths import DataPaths
from penstock.common.sent_errors import decode_error, encode_error
from penstock.mnode.controller import worker_connections
from penstock.mnode.controller.worker_connections import WorkerConnection, WorkerListener
from penstock.mnode.dnode.dnode_service import DnodeService
from penstock.tasks.dnode_access.data_access import LOCK_NAME, StateDirectories
from penstock.tasks.dnode_access.dnode_client import DnodeClient
from penstock.tasks.dnode_access.flight_result_writer import FlightResultWriter
from penstock.tasks.dnode_access.log_notifier import WalNotifier
from penstock.tasks.dnode_access.write_messages import SmallWrite, WorkerWrites
from penstock.tasks.protocol import control
from penstock.tasks.protocol.control import ControlConnection, ControlListener, Heartbeat, Hello, Shutdown, StopTasks
from penstock.tasks.protocol.messages import ResultWrite, TaskId
from penstock.tasks.protocol.numbered_children import NumberedChildren
from penstock.tasks.protocol.store_requests import RowsRequest
from penstock.tasks.protocol.wire import decode, encode, error_of_flight
from penstock.tasks.state.copied_state import CheckpointOf

SECRET = b"secret"
SINK = TaskId(5, "sink", 1)


# --- control -----------------------------------------------------------------------------------------------------


def connected(secret: bytes = SECRET) -> tuple[ControlConnection, ControlConnection]:
    """Returns the mnode's and the worker's end of a connection; raises what either end raises."""
    listener = ControlListener()
    ends: list[ControlConnection | PenstockError] = []

    def accept() -> None:
        try:
            caller = listener.accept()
            assert caller is not None
            caller[0].authenticate(SECRET)
            ends.append(caller[0])
        except PenstockError as error:
            ends.append(error)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        worker = control.connect(listener.address, secret, 5)
    finally:
        thread.join()
        listener.close()
    mnode = ends[0]
    if isinstance(mnode, PenstockError):
        raise mnode
    return mnode, worker


def test_control_messages_arrive_in_order() -> None:
    """What one end sends the other receives, both ways; a closed end ends the other."""
    mnode, worker = connected()
    worker.send(Hello("g", 1, 99, "127.0.0.1:1"))
    worker.send(Heartbeat(()))
    mnode.send(StopTasks(1, 2))
    mnode.send(Shutdown())
    assert [mnode.receive(), mnode.receive()] == [Hello("g", 1, 99, "127.0.0.1:1"), Heartbeat(())]
    assert [worker.receive(), worker.receive()] == [StopTasks(1, 2), Shutdown()]
    mnode.close()
    with pytest.raises(UnavailableError):
        worker.receive()
    worker.close()


def test_a_closed_connection_wakes_its_own_reader() -> None:
    """A thread that waits in receive is woken when another thread closes the connection; twice is no error."""
    mnode, worker = connected()
    raised: list[BaseException] = []

    def receive() -> None:
        try:
            mnode.receive()
        except UnavailableError as error:
            raised.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    mnode.close()
    thread.join(60)
    assert len(raised) == 1
    mnode.close()
    worker.close()


def test_a_caller_without_the_secret_is_not_let_in() -> None:
    """Both ends see that the secret is wrong."""
    with pytest.raises(PenstockError):
        connected(b"guess")


@pytest.mark.parametrize("said", [b"", b"\x00", b"\x00\x00\x00\x20", b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n"])
def test_who_says_half_of_it_is_sent_away(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that doesn't go on, or says too much, is closed in time, and workers get in meanwhile."""
    monkeypatch.setattr(worker_connections, "WORKER_PORTS", ConnectionBounds(strangers=5, login_timeout_s=0.5))
    hellos: list[WorkerConnection] = []
    listener = WorkerListener(SECRET, hellos.append, lambda worker, message: None, lambda worker, reason: None)
    with ExitStack() as stack:
        stack.callback(listener.close)
        callers = [stack.enter_context(socket.create_connection(listener.address, timeout=30)) for _ in range(10)]
        for caller in callers:
            with contextlib.suppress(ConnectionError):  # it was sent away
                caller.sendall(said)
        worker = control.connect(listener.address, SECRET, 5)
        worker.send(Hello("g", 1, 99, "127.0.0.1:1"))
        wait_until(lambda: len(hellos) == 1)
        wait_until(lambda: listener.admission.counts().connections == 1)
        for caller in callers:
            with contextlib.suppress(ConnectionError):
                while caller.recv(100):
                    pass
        hellos[0].send(Shutdown())
        assert worker.receive() == Shutdown()
        worker.close()


def test_nobody_listening_is_an_error_with_the_address() -> None:
    """A worker that comes after the engine has gone says where it called."""
    listener = ControlListener()
    listener.close()
    with pytest.raises(UnavailableError, match=f"127.0.0.1:{listener.address[1]}"):
        control.connect(listener.address, SECRET, 5)


@dataclass(frozen=True)
class Stranger:
    """A class that no message may contain."""

    n: int = 1


@pytest.mark.parametrize("data", [encode(Stranger()), encode(print), b"", b"junk", encode(7), pickle.dumps(eval)])
def test_only_known_messages_are_decoded(data: bytes) -> None:
    """Classes and functions outside of the closed set, junk and other values are refused."""
    with pytest.raises(InternalError):
        decode(data, (Hello,))


@pytest.mark.parametrize(
    "error", [StaleAttemptError("attempt 1 is old", hint="stop"), NotFoundError("no table", code=0x2603)]
)
def test_errors_keep_their_class_text_code_and_hint(error: PenstockError) -> None:
    """An error that crosses to another process is the same there."""
    copy = decode_error(encode_error(error))
    assert type(copy) is type(error)
    assert (copy.message, copy.code, copy.hint) == (error.message, error.code, error.hint)
    assert str(decode_error(encode_error(KeyError("x")))) == "KeyError: 'x'"


# --- results and rows --------------------------------------------------------------------------------------------


class Dnode:
    """A dnode's service that remembers writes and fails on demand."""

    def __init__(self) -> None:
        self.writes: list[ResultWrite] = []
        self.reads: list[RowsRequest] = []
        self.error: Exception | None = None
        self.on_write: Callable[[ResultWrite], None] | None = None
        self.service = DnodeService(SECRET, lambda write: partial(self.write, write), self.read, self.keep)

    def write(self, write: ResultWrite) -> None:
        if self.on_write is not None:
            self.on_write(write)
        if self.error is not None:
            raise self.error
        self.writes.append(write)

    def keep(self, checkpoint: CheckpointOf, changes: Iterable[pa.RecordBatch]) -> None:
        raise AssertionError("nobody has a state here")

    def read(self, request: RowsRequest) -> pa.Table:
        if self.error is not None:
            raise self.error
        self.reads.append(request)
        return pa.table({"_tuid": request.tuids or [], "v": pa.array([1.5, None], pa.float64())})


@pytest.fixture
def dnode() -> Iterator[Dnode]:
    dnode = Dnode()
    yield dnode
    dnode.service.shutdown()


class Writer:
    """A result writer whose answers can be waited for."""

    def __init__(self, address: str, secret: bytes = SECRET, client: DnodeClient | None = None) -> None:
        self.woken = threading.Event()
        self.client = client or DnodeClient(address, secret)
        self.writer = FlightResultWriter(self.client, "w", self.woken.set)

    def wait(self, count: int) -> None:
        """Waits until so many writes are acknowledged; raises what one failed with."""
        while self.writer.acknowledged() < count:
            assert self.woken.wait(60)
            self.woken.clear()

    def write(self, *writes: ResultWrite) -> None:
        """Submits writes at once and waits for all of them."""
        expected = self.writer.acknowledged() + len(writes)
        for write in writes:
            self.writer.submit(write)
        self.wait(expected)


CHILDREN = NumberedChildren(["c1", "c2"], [[1, 2], ["x", None], [None, None]])
FIRST = {"_child": pa.array([0, 1], pa.int32()), "_op": pa.array([0, 1], pa.uint8()), "ts": pa.array([1, 2])}


def result(
    columns: dict[str, pa.Array], children: NumberedChildren = CHILDREN, task: TaskId = SINK
) -> ResultWrite:
    return ResultWrite(5, 1, task, 77, children, pa.record_batch(columns))


def long(start: int, rows: int = 20_000) -> ResultWrite:
    """Returns a write that is too large to be sent with others."""
    return result({"_child": pa.array([0] * rows, pa.int32()), "_op": pa.array([0] * rows, pa.uint8()),
                   "ts": pa.array(range(start, start + rows))})


def test_writes_arrive_unchanged_and_in_order(dnode: Dnode) -> None:
    """Small and large writes mixed, all under way at once, arrive as they were submitted."""
    writer = Writer(dnode.service.address)
    writes = [result(FIRST), long(0), result(FIRST), result(FIRST), long(7), long(8), result(FIRST)]
    writer.write(*writes)
    writer.write(*writes)
    assert dnode.writes == writes * 2
    writer.writer.close()


def test_a_task_is_woken_when_it_waits_for_a_write(dnode: Dnode) -> None:
    """By the acknowledgement that it names, not by others; unless it is there already. A failure always wakes."""
    writer = Writer(dnode.service.address)
    assert not writer.writer.wake_at(math.inf)
    writer.writer.submit(result(FIRST))
    writer.writer.submit(long(0))
    wait_until(lambda: writer.writer.acknowledged() == 2)
    assert not writer.woken.is_set()
    assert writer.writer.wake_at(2)
    assert not writer.writer.wake_at(3)
    writer.writer.submit(result(FIRST))
    assert writer.woken.wait(60)
    writer.woken.clear()
    dnode.error = StaleAttemptError("superseded")
    writer.writer.submit(result(FIRST))
    assert writer.woken.wait(60)
    writer.writer.close()


def test_children_are_sent_once_and_known_from_then_on(dnode: Dnode) -> None:
    """The dnode has one list of children per connection, which grows as the sink's does."""
    children = NumberedChildren.of([CHILDREN[0]])
    writer = Writer(dnode.service.address)
    writer.write(result(FIRST, children))
    children.append(CHILDREN[1])
    writer.write(result(FIRST, children), result(FIRST, children))
    assert dnode.writes[0].children is dnode.writes[2].children
    assert dnode.writes[2].children == CHILDREN
    writer.writer.close()


class Growing(NumberedChildren):
    """A sink task finds another child whenever some are being sent."""

    def between(self, first: int, end: int) -> NumberedChildren:
        found = super().between(first, end)
        self.append(CHILDREN[len(self) % len(CHILDREN)])
        return found


@pytest.mark.parametrize("is_small", [True, False])
def test_children_that_come_while_others_are_sent_are_sent_too(dnode: Dnode, is_small: bool) -> None:
    """With the next write: large ones are sent by a thread of their own, while the task makes the next."""
    children = Growing.of([CHILDREN[0]])
    writer = Writer(dnode.service.address)
    rows = (result(FIRST) if is_small else long(0)).rows
    for count in (1, 2, 3):
        writer.write(ResultWrite(5, 1, SINK, 77, children, rows))
        assert dnode.writes[-1].children == NumberedChildren(children.names[:count], [
            values[:count] for values in children.tags])
    writer.writer.close()


def test_a_refused_write_raises_in_the_task_and_none_behind_it_is_performed(dnode: Dnode) -> None:
    """A StaleAttemptError arrives as such; what was sent behind the write is refused too; another writer goes on."""
    gate = threading.Event()

    def fail(write: ResultWrite) -> None:
        gate.wait(60)
        dnode.on_write = None
        raise StaleAttemptError("attempt 1 was fenced off")

    dnode.on_write = fail
    writer = Writer(dnode.service.address)
    for write in (result(FIRST), result(FIRST), long(0)):
        writer.writer.submit(write)
    gate.set()
    for _ in range(2):
        with pytest.raises(StaleAttemptError, match="fenced off"):
            writer.wait(1)
    writer.writer.submit(result(FIRST))
    writer.writer.close()
    another = Writer(dnode.service.address)
    another.write(result(FIRST))
    assert dnode.writes == [result(FIRST)]
    another.writer.close()


def test_a_refused_write_of_one_task_leaves_the_worker_s_others_alone(dnode: Dnode) -> None:
    """Two sink tasks share a connection: what the one sends is refused from a failure on, the other's is performed."""
    def refuse(write: ResultWrite) -> None:
        if write.task == SINK:
            raise StaleAttemptError("attempt 1 was fenced off")

    dnode.on_write = refuse
    refused = Writer(dnode.service.address)
    another = Writer(dnode.service.address, client=refused.client)
    of_another = result(FIRST, task=TaskId(6, "sink", 0))
    for _ in range(3):
        another.writer.submit(of_another)
        refused.writer.submit(result(FIRST))
    with pytest.raises(StaleAttemptError, match="fenced off"):
        refused.wait(1)
    another.wait(3)
    dnode.on_write = None
    another.write(of_another, of_another)
    new_attempt = Writer(dnode.service.address, client=refused.client)
    new_attempt.write(result(FIRST))
    assert dnode.writes == [of_another] * 5 + [result(FIRST)]
    for writer in (refused, another, new_attempt):
        writer.writer.close()


@pytest.mark.parametrize("first_is_small", [True, False])
def test_a_write_waits_for_those_before_it_that_go_another_way(dnode: Dnode, first_is_small: bool) -> None:
    """While a small write is under way no large one is performed, and the other way round; their order stays."""
    gate, at_work = threading.Event(), threading.Event()

    def hold(write: ResultWrite) -> None:
        at_work.set()
        assert gate.wait(60)

    dnode.on_write = hold
    writer = Writer(dnode.service.address)
    writes = [result(FIRST), long(0), result(FIRST)] if first_is_small else [long(0), result(FIRST), long(7)]
    for write in writes:
        writer.writer.submit(write)
    assert at_work.wait(60)
    at_work.clear()
    # Another task's write comes through meanwhile by the way that isn't held, so what doesn't come is waiting.
    dnode.on_write = None
    another = Writer(dnode.service.address, client=writer.client)
    rows = (long(3) if first_is_small else result(FIRST)).rows
    of_another = ResultWrite(6, 1, TaskId(6, "sink", 0), 77, NumberedChildren(), rows)
    another.write(of_another)
    assert dnode.writes == [of_another]
    gate.set()
    writer.wait(3)
    assert dnode.writes == [of_another, *writes]
    writer.writer.close()
    another.writer.close()


@pytest.mark.parametrize("message", [b"junk", encode((1, 2)), SmallWrite(7, None, (), b"rows").pack()])
def test_a_message_that_holds_no_small_writes_is_refused(dnode: Dnode, message: bytes) -> None:
    """The connection ends with an InternalError, and nothing is performed; the service goes on."""
    client = DnodeClient(dnode.service.address, SECRET)
    stream, answers = client.open_writes(encode(WorkerWrites()), pa.schema([]))
    stream.write_metadata(message)
    assert answers.read() is None
    with pytest.raises(pa.flight.FlightError) as raised:
        stream.close()
    assert isinstance(error_of_flight(raised.value, ""), InternalError)
    writer = Writer(dnode.service.address)
    writer.write(result(FIRST))
    assert dnode.writes == [result(FIRST)]
    writer.writer.close()


def test_rows_of_flight_s_are_no_small_writes(dnode: Dnode) -> None:
    """Who sends rows where messages belong is refused."""
    client = DnodeClient(dnode.service.address, SECRET)
    rows = result(FIRST).rows
    stream, answers = client.open_writes(encode(WorkerWrites()), rows.schema)
    stream.write_batch(rows)
    assert answers.read() is None
    with pytest.raises(pa.flight.FlightError) as raised:
        stream.close()
    assert isinstance(error_of_flight(raised.value, ""), InternalError)
    assert dnode.writes == []


def test_a_defect_of_the_dnode_is_an_internal_error_in_the_task(dnode: Dnode) -> None:
    """Exceptions that aren't Penstock's arrive as InternalError with their type's name."""
    dnode.error = ValueError("a defect")
    writer = Writer(dnode.service.address)
    with pytest.raises(InternalError, match="ValueError: a defect"):
        writer.write(result(FIRST))
    writer.writer.close()


def test_another_kind_of_write_over_the_same_connection_is_a_defect(dnode: Dnode) -> None:
    """One connection serves one attempt of one task, whose rows all have the same columns."""
    writer = Writer(dnode.service.address)
    writer.write(result(FIRST))
    with pytest.raises(InternalError, match="another kind of write"):
        writer.write(result(FIRST | {"v": pa.array(["a", None])}))
    writer.writer.close()


def test_rows_are_read_and_errors_keep_their_class(dnode: Dnode) -> None:
    """A request arrives with its tables; what the dnode raises is raised here."""
    client = DnodeClient(dnode.service.address, SECRET)
    request = RowsRequest(2, 7, pa.array([3, 2**64 - 1], pa.uint64()), -5, 10, 99, pa.array([-5, 3], pa.int64()))
    assert client.ask(request).to_pydict() == {"_tuid": [3, 2**64 - 1], "v": [1.5, None]}
    assert dnode.reads == [request]
    dnode.error = NotFoundError("no such vnode")
    with pytest.raises(NotFoundError, match="no such vnode"):
        client.ask(request)
    client.close()


def test_the_dnode_serves_only_those_who_know_the_secret(dnode: Dnode) -> None:
    """A stranger's reads and writes are refused."""
    with pytest.raises(UnavailableError, match="secret"):
        DnodeClient(dnode.service.address, b"guess").ask(RowsRequest(2, 7, None, 0, 1, 1))
    writer = Writer(dnode.service.address, b"guess")
    with pytest.raises(UnavailableError):
        writer.write(result(FIRST))
    assert dnode.writes == []
    writer.writer.close()


# --- state folders and the log's end -----------------------------------------------------------------------------


def test_a_state_folder_belongs_to_one_owner_at_a_time(tmp_path: Path) -> None:
    """While one owner holds a task's folder, another waits for it and then gives up; once released, it is free."""
    paths = DataPaths(tmp_path)
    first = StateDirectories(paths, OsFs(), ManualClock())
    directory = first.open(SINK)
    assert directory == paths.state(5, "5-sink-1")
    assert first.open(SINK) == directory
    second = StateDirectories(paths, OsFs(), ManualClock())
    with pytest.raises(UnavailableError, match=f"still held by process {os.getpid()} on "):
        second.open(SINK)
    (directory / LOCK_NAME).write_bytes(b"\x1b[2J" * 1000)
    with pytest.raises(UnavailableError, match="still held by another process"):
        second.open(SINK)
    first.close()
    assert second.open(SINK) == directory
    second.close()


def test_a_waiting_owner_can_be_called_off(tmp_path: Path) -> None:
    """An attempt that is stopped while it waits for its folder ends at once."""
    first = StateDirectories(DataPaths(tmp_path), OsFs(), SystemClock())
    first.open(SINK)
    second = StateDirectories(DataPaths(tmp_path), OsFs(), SystemClock())
    second.abandon()
    with pytest.raises(UnavailableError):
        second.open(SINK)
    first.close()


class _StandingClock(ManualClock):
    """Its time moves only when told to, but who waits does wait."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)


class _News:
    """A log that says how far it goes and what is new in it, with or without a bell."""

    def __init__(self, has_bell: bool) -> None:
        self.version = 0
        self.waited: list[int] = []
        self.closed = False
        self._has_bell = has_bell
        self._grown: deque[frozenset[int] | None] = deque()
        self._rung = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        self.waited.append(self.version)
        if self._has_bell and not self._grown:
            self._rung.wait(timeout_s)
        self._rung.clear()
        return self._has_bell

    def look(self) -> frozenset[int] | None:
        if not self._grown:
            return frozenset()
        self.version += 1
        return self._grown.popleft()

    def close(self) -> None:
        self.closed = True

    def grow(self, tables: frozenset[int] | None) -> None:
        self._grown.append(tables)
        self._rung.set()

    def seen(self) -> bool:
        """Tells whether the notifier waits for more, having looked at everything."""
        return not self._grown and self.waited[-1:] == [self.version]


def test_who_was_woken_may_rest_from_news() -> None:
    """While streams gather, their notifier sleeps as long; what it didn't care for wakes nobody and costs no rest."""
    rests: list[float] = []

    class RestingClock(_StandingClock):
        def wait(self, event: threading.Event, timeout_s: float) -> bool:
            rests.append(timeout_s)
            return super().wait(event, 0.0)

    notifier = WalNotifier(RestingClock(), 0.0005, rest_s=lambda: 0.02)
    news, woken = _News(has_bell=True), threading.Semaphore(0)
    try:
        notifier.follow(2, 1, 10, lambda: news, woken.release)
        assert woken.acquire(timeout=60)
        news.grow(frozenset({77}))
        wait_until(news.seen)
        assert rests == []
        news.grow(frozenset({10}))
        assert woken.acquire(timeout=60)
        wait_until(lambda: rests == [0.02])
    finally:
        notifier.stop()


def test_where_rounds_last_long_streams_read_on_less_often() -> None:
    """A stream that no record concerns is woken after eight rounds, not in each one for results of others."""
    clock = _StandingClock()
    notifier = WalNotifier(clock, 0.0005, rest_s=lambda: 0.1)
    news, woken = _News(has_bell=True), list[str]()
    try:
        notifier.follow(2, 1, 10, lambda: news, lambda: woken.append("s1"))
        news.grow(frozenset({77}))
        wait_until(news.seen)
        woken.clear()
        clock.advance(0.5)
        news.grow(frozenset({77}))
        wait_until(news.seen)
        assert woken == []
        clock.advance(0.5)
        wait_until(lambda: woken == ["s1"])
    finally:
        notifier.stop()


@pytest.mark.parametrize("has_bell", [True, False])
def test_streams_are_woken_for_records_that_concern_them(has_bell: bool) -> None:
    """By the log's bell or by looking; one that nothing concerns reads on a little later, one that has left never."""
    clock = _StandingClock()
    notifier = WalNotifier(clock, 0.0005)
    news = {2: _News(has_bell), 3: _News(has_bell)}
    woken: list[str] = []
    streams = ((2, 1, 10, "s1"), (2, 4, 20, "s4"), (3, 5, 10, "s5"))
    try:
        for vgroup_id, stream_id, table_uid, name in streams:
            notifier.follow(vgroup_id, stream_id, table_uid, lambda vgroup_id=vgroup_id: news[vgroup_id],  # type: ignore[misc]
                            lambda name=name: woken.append(name))  # type: ignore[misc]
        assert woken == ["s1", "s4", "s5"]

        def woken_by(vgroup_id: int, tables: frozenset[int] | None) -> list[str]:
            woken.clear()
            news[vgroup_id].grow(tables)
            wait_until(news[vgroup_id].seen)
            return sorted(woken)

        assert woken_by(2, frozenset({10, 77})) == ["s1"]
        assert woken_by(2, None) == ["s1", "s4"]
        assert woken_by(2, frozenset({77})) == []
        assert woken_by(2, frozenset({20})) == ["s4"]
        clock.advance(1.0)
        wait_until(lambda: woken == ["s4", "s1"])  # what is there is read although nothing more comes
        notifier.unfollow(1)
        assert woken_by(2, None) == ["s4"]
        assert woken_by(3, frozenset({10, 20})) == ["s5"]
    finally:
        notifier.stop()
    wait_until(lambda: news[2].closed and news[3].closed)
