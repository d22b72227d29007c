"""Simple requests of many connections are answered together; everything else is its own thread's."""

from __future__ import annotations

import base64
import http.client
import json
import select
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from kits.engines.embedded import Embedded

from penstock.common.config import load_config
from penstock.common.errors import PenstockError, StorageError
from penstock.mnode.engine import Engine
from penstock.mnode.http.gathered_requests import Begun, GatheredRequests, SimpleRun
from penstock.mnode.http.http_server import HttpListener
from penstock.mnode.http.http_sessions import HttpSessions
from penstock.mnode.http.rest import Rest
from penstock.shell.postgres.postgres_server import PostgresServer

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="nothing is gathered without epoll")
FIRST_MS = 1_600_000_000_000


class Echo:
    """Answers what it was sent; `no` isn't simple, `bad` can't be begun, and the write of `full` is refused."""

    def __init__(self, answer: Callable[[bytes], bytes] = bytes) -> None:
        self._answer = answer
        self.kept = b""
        self.waited = False
        #: called before a request is begun
        self.before: Callable[[], object] = lambda: None

    def begin(self, data: bytes) -> Begun | None:
        self.before()
        self.kept, self.waited = data, False
        if data == b"bad":
            raise ValueError(data)
        return None if data == b"no" else self

    def wait(self) -> int:
        self.waited = True
        if self.kept == b"full":
            raise StorageError("the disk is full")
        return 1

    def conclude(self, error: PenstockError | None) -> tuple[bytes, bool]:
        assert self.waited
        return (self._answer(self.kept) if error is None else error.message.encode()), self.kept != b"last"


class Rounds:
    """Counts how often writes were begun and acknowledged together."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def together(self) -> Iterator[None]:
        self.count += 1
        yield


@pytest.fixture
def rounds() -> Rounds:
    return Rounds()


@pytest.fixture
def gathered(rounds: Rounds) -> Iterator[GatheredRequests]:
    opened = GatheredRequests(rounds.together)
    yield opened
    opened.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as threads:
        yield threads


def asked(client: socket.socket, text: bytes) -> bytes:
    client.sendall(text)
    return client.recv(1000)


def test_what_waits_together_is_acknowledged_together(
    gathered: GatheredRequests, rounds: Rounds, pool: ThreadPoolExecutor
) -> None:
    """While one is begun nine others come, of which one is refused; they take one more round, and each its answer."""
    pairs = [socket.socketpair() for _ in range(10)]
    echoes = [Echo() for _ in pairs]
    begins, others_have_come = threading.Event(), threading.Event()

    def hold() -> None:
        begins.set()
        assert others_have_come.wait(30.0)

    echoes[0].before = hold
    served = [pool.submit(gathered.serve, ours, echo) for (ours, _), echo in zip(pairs, echoes, strict=True)]
    for _, theirs in pairs[1:]:
        assert asked(theirs, b"simple") == b"simple"
    before = rounds.count
    pairs[0][1].sendall(b"first")
    assert begins.wait(30.0)
    texts = [b"full" if number == 5 else b"%d" % number for number in range(1, 10)]
    for (_, theirs), text in zip(pairs[1:], texts, strict=True):
        theirs.sendall(text)
    others_have_come.set()
    answers = [theirs.recv(1000) for _, theirs in pairs]
    assert answers == [b"first", *(b"the disk is full" if text == b"full" else text for text in texts)]
    assert rounds.count == before + 2
    for _, theirs in pairs:
        theirs.close()
    assert [each.result(30.0) for each in served] == [b""] * 10


@pytest.mark.parametrize("text", [b"no", b"bad", b"last"])
def test_the_own_thread_goes_on_where_a_request_is_not_simple(
    gathered: GatheredRequests, pool: ThreadPoolExecutor, text: bytes
) -> None:
    """What can't be begun is left to it, and so is what follows the last one that is simple; others aren't touched."""
    ours, theirs = socket.socketpair()
    other, others = socket.socketpair()
    with ours, theirs, other, others:
        echo = Echo()
        served, stays = pool.submit(gathered.serve, ours, echo), pool.submit(gathered.serve, other, Echo())
        assert asked(theirs, b"simple") == b"simple"
        theirs.sendall(text)
        assert served.result(30.0) == b""
        assert echo.kept == text
        assert asked(others, b"simple") == b"simple"
        assert not stays.done()
        others.close()
        assert stays.result(30.0) == b""


def test_who_takes_no_answer_holds_nobody_up(gathered: GatheredRequests, pool: ThreadPoolExecutor) -> None:
    """What the system takes of its answer is sent, the rest is its own thread's; others are answered meanwhile."""
    ours, theirs = socket.socketpair()
    other, others = socket.socketpair()
    with ours, theirs, other, others:
        long = bytes(range(256)) * 50_000
        served = pool.submit(gathered.serve, ours, Echo(lambda data: long))
        stays = pool.submit(gathered.serve, other, Echo())
        theirs.sendall(b"long")
        assert asked(others, b"simple") == b"simple"
        rest = served.result(30.0)
        assert 0 < len(rest) < len(long)
        taken = b""
        while len(taken) + len(rest) < len(long):
            taken += theirs.recv(1 << 20)
        assert taken + rest == long
        others.close()
        assert stays.result(30.0) == b""


def test_who_says_nothing_is_given_back_in_time(gathered: GatheredRequests) -> None:
    """With an error, after the time that it has; and without one when all is closed."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises(TimeoutError):
            gathered.serve(ours, Echo(), 0.01)
        with ThreadPoolExecutor(1) as one:
            served: Future[bytes | bytearray] = one.submit(gathered.serve, ours, Echo(), 60.0)
            assert asked(theirs, b"simple") == b"simple"
            gathered.close()
            assert served.result(30.0) == b""
        assert gathered.serve(ours, Echo()) == b""


def test_requests_are_gathered_after_some_simple_ones_in_a_row() -> None:
    """After twice as many where that didn't last, after as many as at first where it did, and never within TLS."""
    def until_gathered(run: SimpleRun) -> int:
        return next(count for count in range(1, 10_000) if run.goes_on(simple=True))

    run = SimpleRun(never=False)
    run.goes_on(simple=True)
    assert not run.goes_on(simple=False)
    assert until_gathered(run) == 8
    for wanted in (16, 32, 64, 128, 256, 512, 1024, 1024):
        run.over()
        assert until_gathered(run) == wanted
    run.answered = 1024
    run.over()
    assert until_gathered(run) == 8
    within_tls = SimpleRun(never=True)
    assert not any(within_tls.goes_on(simple=True) for _ in range(100))


# --- by protocols ----------------------------------------------------------------------------------------------------


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Embedded]:
    opened = Embedded(tmp_path / "data")
    opened.all("CREATE DATABASE d KEEP 36500", "CREATE TABLE d.t (ts TIMESTAMP, v INT)",
               "CREATE USER root PASS 'who stays all along' ROLE admin")
    yield opened
    opened.close()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of calls by which rows were begun to be written together with others'."""
    found: list[str] = []

    def noting(name: str) -> Callable[..., Begun | None]:
        begin = getattr(Engine, name)

        def note(*arguments: Any) -> Begun | None:
            write: Begun | None = begin(*arguments)
            if write is not None:
                found.append(name)
            return write

        return note

    for name in ("begin_insert", "begin_lines"):
        monkeypatch.setattr(Engine, name, noting(name))
    return found


class Requests:
    """Asks over one connection, which stays open."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._answers = self.socket.makefile("rb")

    def made(self, path: str, body: bytes, *, password: str = "who stays all along") -> bytes:
        login = base64.b64encode(f"root:{password}".encode()).decode()
        head = (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {login}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n")
        return head.encode() + body

    def answer(self) -> tuple[int, Any]:
        status = int(self._answers.readline().split()[1])
        headers = http.client.parse_headers(self._answers)
        content = b"".join(self._pieces()) if "Transfer-Encoding" in headers else self._answers.read(
            int(headers.get("Content-Length", "0")))
        return status, json.loads(content) if content else None

    def _pieces(self) -> Iterator[bytes]:
        while size := int(self._answers.readline(), 16):
            yield self._answers.read(size)
            self._answers.readline()
        self._answers.readline()

    def is_over(self) -> bool:
        return self._answers.read(1) == b""

    def close(self) -> None:
        self._answers.close()
        self.socket.close()

    def ask(self, path: str, body: bytes, **login: str) -> tuple[int, Any]:
        self.socket.sendall(self.made(path, body, **login))
        return self.answer()

    def insert(self, second: int, value: object = 1) -> int:
        return self.ask("/sql/d", f"INSERT INTO t VALUES ({FIRST_MS + 1000 * second}, {value})".encode())[0]


@pytest.fixture
def port(db: Embedded) -> Iterator[int]:
    listener = HttpListener("127.0.0.1", 0, Rest(db.engine, HttpSessions(db.engine.logins, "UTC"), 100_000).routes())
    yield listener.port
    listener.close()


def rows_of(db: Embedded) -> list[int]:
    table = db.execute("SELECT v FROM d.t ORDER BY ts").table
    assert table is not None
    return [int(value) for value in table.column(0).to_pylist()]


def test_inserts_by_rest_are_gathered(db: Embedded, port: int, begun: list[str]) -> None:
    """Between them come a question, errors, requests in pieces and two at once: each has its own answer, in order."""
    with closing(Requests(port)) as client:
        for second in range(20):
            assert client.insert(second, second) == 200
        assert begun == ["begin_insert"] * 12  # the first eight were its thread's
        assert client.ask("/sql/d", b"SELECT count(*) FROM t")[1]["data"] == [[20]]
        for second in range(20, 40):
            assert client.insert(second, second) == 200
            assert client.insert(99, "'no number'") == 400
            assert client.insert(99, 3_000_000_000) == 400
        one, two = (client.made("/sql/d", b"INSERT INTO t VALUES (%d, %d)" % (FIRST_MS + 1000 * second, second))
                    for second in (40, 41))
        for second in range(42, 100):
            assert client.insert(second, second) == 200
        before = len(begun)
        client.socket.sendall(one[:-3])
        client.socket.sendall(one[-3:] + two)
        assert [client.answer()[0], client.answer()[0]] == [200, 200]
        assert before > 11
        client.socket.sendall(b"GARBAGE\r\n\r\n")
        assert client.answer()[0] == 400
        assert client.is_over()
    assert rows_of(db) == list(range(100))


def test_lines_are_gathered(db: Embedded, port: int, begun: list[str]) -> None:
    """Lines of a known series; a new series, and lines of which one is wrong, are the thread's."""
    with closing(Requests(port)) as client:
        for second in range(30):
            line = b"m,t=a v=%d %d" % (second, FIRST_MS + 1000 * second)
            assert client.ask("/write?db=d&precision=ms", line) == (204, None)
        assert set(begun) == {"begin_lines"}
        assert client.ask("/write?db=d&precision=ms", b"m,t=b v=1 %d" % FIRST_MS) == (204, None)
        status, told = client.ask("/write?db=d&precision=ms", b"m,t=a v=1 %d\nm,t=a v=" % (FIRST_MS + 99_000))
        assert status == 400
        assert "partial write" in told["error"]
        assert client.ask("/write?db=nowhere", b"m,t=a v=1 1")[0] == 404
    table = db.execute("SELECT count(*) FROM d.m").table
    assert table is not None
    assert table.column(0).to_pylist() == [32]


def test_who_may_not_is_refused_though_others_are_gathered(db: Embedded, port: int, begun: list[str]) -> None:
    """Wrong passwords and new ones; the connection's own thread finds out about them, and ends it."""
    insert = f"INSERT INTO t VALUES ({FIRST_MS}, 7)".encode()

    def ask_after_others(change: Callable[[], object], password: str) -> int:
        with closing(Requests(port)) as client:
            for second in range(12):
                assert client.insert(second) == 200
            change()
            return client.ask("/sql/d", insert, password=password)[0]

    assert ask_after_others(lambda: None, "guessed") == 401
    db.clock.advance(60.0)  # type: ignore[attr-defined]
    before = len(begun)
    assert before == 4
    assert ask_after_others(lambda: db.execute("ALTER USER root PASS 'something else now'"),
                            "who stays all along") == 401
    assert len(begun) == before + 4
    db.clock.advance(60.0)  # type: ignore[attr-defined]
    with closing(Requests(port)) as client:
        assert client.ask("/sql/d", insert, password="something else now")[0] == 200
    assert rows_of(db) == [7, *[1] * 11]


def test_a_log_that_takes_nothing_refuses_what_is_gathered(
    db: Embedded, port: int, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is the error of the write, and the row isn't there."""
    with closing(Requests(port)) as client:
        for second in range(12):
            assert client.insert(second) == 200
        assert begun
        with monkeypatch.context() as patch:
            patch.setattr("penstock.vnode.write.vnode_writer.BegunWrite.wait", refuse)
            status, told = client.ask("/sql/d", f"INSERT INTO t VALUES ({FIRST_MS + 60_000}, 1)".encode())
        assert status in (500, 503)
        assert "the disk is full" in told["desc"]
        assert client.insert(13) == 200


def refuse(*_: object) -> int:
    raise StorageError("the disk is full")


def test_prepared_inserts_by_postgresqls_protocol_are_gathered(db: Embedded, begun: list[str]) -> None:
    """Between them come questions, errors and pipelines; each has its own answer, and ends no connection."""
    server = PostgresServer(db.engine, load_config({}, environment={}), 0)
    insert = "INSERT INTO d.t VALUES (%s, %s)"
    try:
        with psycopg.connect(host="127.0.0.1", port=server.port, user="root", password="who stays all along",
                             autocommit=True) as connection:
            for second in range(40):
                assert connection.execute(insert, (FIRST_MS + 1000 * second, second), prepare=True).rowcount == 1
            assert len(begun) > 20
            assert connection.execute("SELECT count(*) FROM d.t").fetchone() == (40,)
            for second in range(40, 80):
                connection.execute(insert, (FIRST_MS + 1000 * second, second), prepare=True)
                if second % 15 == 0:
                    with pytest.raises(psycopg.Error, match="INT"):
                        connection.execute(insert, (FIRST_MS, 3_000_000_000), prepare=True)
            with connection.pipeline():
                for second in range(80, 100):
                    connection.execute(insert, (FIRST_MS + 1000 * second, second), prepare=True)
            for second in range(100, 140):
                connection.execute(insert, (FIRST_MS + 1000 * second, second), prepare=True)
            before = len(begun)
            db.execute("ALTER USER root PASS 'something else now'")
            with pytest.raises(psycopg.OperationalError):
                connection.execute(insert, (FIRST_MS, 1), prepare=True)
            assert len(begun) == before
    finally:
        server.close()
    assert rows_of(db) == list(range(140))
