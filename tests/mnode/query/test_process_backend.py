"""The process that computes queries of clients: what it answers, how it and its queries end, and what it may do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.basics.waiting import wait_until

from penstock.common.closed_duckdb import DuckdbBounds, RenewableDuckdb
from penstock.common.errors import InternalError, InvalidValueError, LimitExceededError, PenstockError, UnavailableError
from penstock.common.quantities import MIB
from penstock.common.sent_errors import decode_error
from penstock.mnode.query import query_process
from penstock.mnode.query.process_backend import ProcessBackend, ProcessRun
from penstock.mnode.query.query_execution import LocalRun, RunnableQuery
from penstock.mnode.query.query_frames import (
    ARROW,
    END,
    ERROR,
    JSON,
    REQUEST,
    QueryRequest,
    receive_frame,
    send_frame,
)
from penstock.mnode.query.query_process import HangUpWatch, ProcessSettings, QueryServer

NUMBER = pa.schema([("n", pa.int64())])
ENDLESS = RunnableQuery("SELECT count(*) FROM range(10000000000) a, range(1000) b WHERE hash(a.range) = b.range", {},
                        NUMBER)
ONE = RunnableQuery("SELECT 1", {}, NUMBER)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vnodes")


@pytest.fixture(scope="module")
def backend(folder: Path) -> Iterator[ProcessBackend]:
    bounds = DuckdbBounds(256 * MIB, 2, folder.parent / "spill", 64 * MIB)
    with closing(ProcessBackend(ProcessSettings(bounds, (folder,), 3))) as opened:
        yield opened


def answer(backend: ProcessBackend, query: RunnableQuery) -> pa.Table:
    with closing(backend.open(query)) as run:
        return run.table()


def process_of(backend: ProcessBackend) -> psutil.Process:
    assert answer(backend, ONE).to_pydict() == {"n": [1]}
    assert backend.pid is not None
    return psutil.Process(backend.pid)


@pytest.mark.parametrize("rows_max", [1, 1000])
@given(data=st.data())
@settings(max_examples=times(6, 150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_backends_answer_the_same(backend: ProcessBackend, rows_max: int, data: st.DataObject) -> None:
    """In each form: the same types, rows, order and JSON."""
    texts = data.draw(st.lists(st.none() | st.text(), max_size=30))
    numbers = data.draw(st.lists(st.none() | st.integers(-2**50, 2**50), min_size=len(texts),
                                 max_size=len(texts)))
    tables = {"a": pa.table({"n": pa.array(numbers, pa.int64()), "s": pa.array(texts, pa.string())}).slice(1),
              "b b": pa.table({"f": [0.1, float("nan")], "d": pa.array([None, 7], pa.decimal128(38, 2))})}
    schema = pa.schema([("n", pa.timestamp("us")), ("s", pa.string()), ("s", pa.binary()), ("f", pa.float32()),
                        ("d", pa.decimal128(38, 2)), ("x", pa.null())])
    query = RunnableQuery('SELECT n, s, encode(s), f, d, NULL FROM a, "b b" ORDER BY ALL', tables, schema)
    runs = [lambda: backend.open(query), lambda: LocalRun(duckdb.connect(), query)]
    found = []
    for run in runs:
        with closing(run()) as first, closing(run()) as second, closing(run()) as third:
            found.append((first.table(), [batch for batch in second.batches(rows_max) if batch.num_rows],
                          b",\n".join(piece.text for piece in third.json(rows_max))))
    (table, batches, text), (other_table, other_batches, other_text) = found
    assert table.schema == other_table.schema == schema
    assert str(table.to_pylist()) == str(other_table.to_pylist())  # NaN doesn't equal itself
    assert str([batch.to_pylist() for batch in batches]) == str([batch.to_pylist() for batch in other_batches])
    assert all(batch.num_rows <= rows_max for batch in batches)
    assert text == other_text


@pytest.mark.parametrize(("sql", "kind"), [
    ("SELECT CAST('x' AS INTEGER)", InvalidValueError), ("SELECT error('limit: too many')", LimitExceededError),
    ("SELECT nosuch", InternalError), ("SELEC", InternalError), ("SELECT 1, 2", InternalError)])
def test_errors_are_those_of_the_engine(backend: ProcessBackend, sql: str, kind: type[PenstockError]) -> None:
    """The same class and the same text."""
    query = RunnableQuery(sql, {}, NUMBER)
    errors = []
    for run in (backend.open(query), LocalRun(duckdb.connect(), query)):
        with closing(run), pytest.raises(kind) as raised:
            run.table()
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


def test_a_query_without_memory_says_so(backend: ProcessBackend) -> None:
    """It is the query that fails, not the process."""
    before = process_of(backend).pid
    sql = "SELECT count(*) FROM (SELECT DISTINCT md5(r::VARCHAR) || repeat('x', 500) FROM range(3000000) t(r))"
    with pytest.raises(UnavailableError, match="queryMemory or spillMax"):
        answer(backend, RunnableQuery(sql, {}, NUMBER))
    assert process_of(backend).pid == before


@pytest.mark.parametrize("taken", [0, 1])
def test_a_query_can_be_left(backend: ProcessBackend, taken: int) -> None:
    """Before its first row, or half-read: it has ended in the process when it is closed."""
    before = process_of(backend)
    query = RunnableQuery("SELECT range FROM range(1000000000)", {}, NUMBER)
    with closing(backend.open(query)) as run:
        rows = run.batches(1000)
        for _ in range(taken):
            assert next(rows).num_rows == 1000
    assert process_of(backend) == before
    wait_until(lambda: before.num_fds() < 16, 10.0, what="connections are left")


def test_a_query_can_be_interrupted(backend: ProcessBackend) -> None:
    """By another thread, as often as it likes; the process goes on."""
    before = process_of(backend)
    with closing(backend.open(ENDLESS)) as run:
        stop = threading.Event()

        def interrupt() -> None:
            while not stop.wait(0.01):
                run.interrupt()

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(PenstockError):
            run.table()
        stop.set()
        thread.join()
        run.interrupt()
    run.interrupt()
    assert process_of(backend) == before


def test_a_process_that_was_killed_is_replaced(backend: ProcessBackend) -> None:
    """The query that it computed says that another try helps; one that comes later gets its answer."""
    before = process_of(backend)
    with closing(backend.open(RunnableQuery("SELECT range FROM range(1000000000)", {}, NUMBER))) as run:
        rows = run.batches(1000)
        next(rows)
        before.kill()
        with pytest.raises(UnavailableError, match="try again") as raised:
            list(rows)
    assert raised.value.retry
    after = process_of(backend)
    assert after != before
    after.kill()  # while nobody asks it for anything
    wait_until(lambda: backend.pid != after.pid, 60)
    assert process_of(backend) != after


def test_it_is_of_low_priority_and_knows_nothing(backend: ProcessBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes first when memory is short, and the engine's environment isn't its."""
    process_of(backend).kill()
    monkeypatch.setenv("PENSTOCK_TEST_PASSWORD", "battery staple")
    wait_until(lambda: backend.pid is None, 60)
    process = process_of(backend)
    assert process.nice() == min(19, psutil.Process().nice() + 3)
    assert Path(f"/proc/{process.pid}/oom_score_adj").read_text().strip() == "1000"
    assert "PENSTOCK_TEST_PASSWORD" not in process.environ()
    assert not process.net_connections("inet")


def test_it_does_without_pandas(backend: ProcessBackend) -> None:
    """Arrow would load it with the first array that it makes, which takes longer than a query."""
    process = process_of(backend)
    with closing(backend.open(RunnableQuery("SELECT 0.5::DOUBLE f", {}, pa.schema([("f", pa.float64())])))) as run:
        assert [piece.text for piece in run.json(10)] == [b"[0.5]"]
    assert not [file.path for file in process.memory_maps() if "/pandas/" in file.path]


def test_it_reads_below_its_directories_only(backend: ProcessBackend, folder: Path, tmp_path: Path) -> None:
    """Whatever SQL it gets."""
    for place in (folder, tmp_path):
        pq.write_table(pa.table({"n": [5]}), place / "rows.parquet")
    assert answer(backend, RunnableQuery(f"FROM read_parquet('{folder}/rows.parquet')", {}, NUMBER)).to_pydict() == {
        "n": [5]}
    for sql in (f"FROM read_parquet('{tmp_path}/rows.parquet')", "FROM read_text('/etc/passwd')",
                f"FROM read_parquet('{folder}/../{tmp_path.name}/rows.parquet')", "SET threads = 64",
                f"COPY (SELECT 1) TO '{tmp_path}/out.csv'", f"ATTACH '{tmp_path}/x.db'", "LOAD httpfs"):
        with pytest.raises(PenstockError):
            answer(backend, RunnableQuery(sql, {}, NUMBER))
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]


_STARTS_ONE = """
import sys, time
import pyarrow as pa
from pathlib import Path
from penstock.common.closed_duckdb import DuckdbBounds
from penstock.mnode.query.process_backend import ProcessBackend
from penstock.mnode.query.query_execution import RunnableQuery
from penstock.mnode.query.query_process import ProcessSettings
backend = ProcessBackend(ProcessSettings(DuckdbBounds(), (Path("/nowhere"),), 0))
backend.open(RunnableQuery("SELECT 1", {}, pa.schema([("n", pa.int64())]))).table()
print(backend.pid, flush=True)
input()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_engine(number: int) -> None:
    """However that ends, and though the process is stopped."""
    with subprocess.Popen([sys.executable, "-c", _STARTS_ONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as engine:
        assert engine.stdout is not None
        child = psutil.Process(int(engine.stdout.readline()))
        child.suspend()
        engine.send_signal(number)
        wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 60)


def test_it_ends_when_the_engine_closes(folder: Path) -> None:
    """Queries that come later say that the engine is closing."""
    backend = ProcessBackend(ProcessSettings(DuckdbBounds(), (folder,), 0))
    process = process_of(backend)
    backend.close()
    assert not process.is_running()
    with pytest.raises(UnavailableError, match="closing"):
        answer(backend, ONE)


def test_one_that_cannot_be_started_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And tried again for the next query."""
    with closing(ProcessBackend(ProcessSettings(DuckdbBounds(), (folder,), 0))) as backend:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", "/nowhere/python")
            with pytest.raises(UnavailableError, match="can't be started"):
                answer(backend, ONE)
        assert answer(backend, ONE).to_pydict() == {"n": [1]}


# --- hostile frames --------------------------------------------------------------------------------------------------


def scripted(says: Callable[[socket.socket], None]) -> Callable[[int | None], socket.socket]:
    """Returns what connects to a process that says what a test has it say."""
    def connect(memory: int | None) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            says(theirs)
        return ours

    return connect


@pytest.mark.parametrize("says", [
    lambda process: process.sendall(b"\xff" * 100), lambda process: send_frame(process, REQUEST),
    lambda process: send_frame(process, JSON, b"[1]", 1), lambda process: send_frame(process, ARROW, b"rows", 1),
    lambda process: send_frame(process, ARROW, pa.record_batch({"s": ["x"] * 9}).serialize().slice(0, 150), 1),
    lambda process: send_frame(process, ERROR, b"no error")])
def test_what_is_no_answer_is_an_error(says: Callable[[socket.socket], None]) -> None:
    """The engine takes nothing for granted that the process says."""
    with closing(ProcessRun(scripted(says), ONE)) as run, pytest.raises((InternalError, UnavailableError)):
        run.table()


def server_answers(data: bytes, memory: bytes | None = None) -> PenstockError:
    """Returns the error that the process answers to what is no request."""
    ours, theirs = socket.socketpair()
    numbers = []
    if memory is not None:
        numbers.append(os.memfd_create("test"))
        os.write(numbers[0], memory)
    watch = HangUpWatch()
    threading.Thread(target=watch.watch, daemon=True).start()
    with closing(duckdb.connect()) as connection, ours:
        ours.sendall(data)
        QueryServer(RenewableDuckdb(lambda: connection), watch).answer(theirs, numbers)
        frame = receive_frame(ours)
        assert frame is not None
        assert frame.kind == ERROR
        assert receive_frame(ours) is None
        return decode_error(frame.data)


def framed(kind: int, data: bytes) -> bytes:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_frame(ours, kind, data)
        return theirs.recv(1 << 20)


def request(**tables: tuple[int, int]) -> bytes:
    return framed(REQUEST, QueryRequest("SELECT 1", tables, NUMBER, None, 10).encode())


@pytest.mark.parametrize(("data", "memory"), [
    (b"\xff" * 17, None), (framed(END, b""), None), (framed(REQUEST, b"{}"), None), (request(a=(0, 8)), None),
    (request(a=(0, 9)), b"12345678"), (request(a=(-1, 8)), b"12345678"), (request(a=(0, 0)), b"12345678"),
    (request(a=(0, 8)), b"12345678")])
def test_what_is_no_request_is_refused(data: bytes, memory: bytes | None) -> None:
    """With an error, and nothing is read outside of the memory."""
    assert isinstance(server_answers(data, memory), InternalError)


def test_a_row_that_fits_no_frame_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query ends with it."""
    monkeypatch.setattr(query_process, "FRAME_MAX", 50)
    assert isinstance(server_answers(request()), LimitExceededError)
