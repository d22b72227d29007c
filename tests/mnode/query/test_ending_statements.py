"""Statements are ended: by KILL QUERY, by time, by size, by number, and when nobody waits for them; nothing is left."""

from __future__ import annotations

import io
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
from kits.basics.waiting import wait_until
from kits.engines.served_here import ServedHere

from penstock.common.config import load_config
from penstock.common.errors import (
    BusyError,
    CancelledError,
    LimitExceededError,
    NotFoundError,
    PenstockError,
    PermissionDeniedError,
    SqlSyntaxError,
)
from penstock.mnode.access.audit_log import Origin
from penstock.mnode.access.roles import Identity
from penstock.mnode.access.session import SessionState
from penstock.mnode.engine import Engine
from penstock.shell.api.dbapi import Connection, OperationalError, ProgrammingError
from penstock.shell.flight_sql import client
from penstock.shell.terminal.screen import Screen
from penstock.shell.terminal.shell_session import ShellOptions, ShellSession
from penstock.sql.dialect.parser import parse_one

#: 25 million pairs of rows, each with a text that takes a while.
ENDLESS = ("SELECT sum(length(replace(repeat('a', b.v), 'a', 'b'))) FROM d.m a LEFT WINDOW JOIN d.m b "
           "WINDOW_OFFSET(-10s, 10s)")
ORIGIN = Origin()
READER, OTHER = Identity("ann", "read"), Identity("bob", "read")


@pytest.fixture(autouse=True, params=["embedded", "http"])
def origin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements come from this process, and are computed here, or from clients, and are computed by another one."""
    monkeypatch.setattr(sys.modules[__name__], "ORIGIN", Origin(request.param))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """Opens an engine, with settings, over a table that `ENDLESS` can be asked of."""
    with ExitStack() as stack:
        def opened(**settings: Any) -> Engine:
            engine = Engine(tmp_path / "data", load_config(settings, environment={}))
            stack.callback(engine.close)
            fill(engine)
            return engine
        yield opened


def fill(engine: Engine) -> None:
    run(engine, "CREATE DATABASE d VGROUPS 1 KEEP 36500d")
    run(engine, "CREATE TABLE d.m (ts TIMESTAMP, v INT)")
    values = " ".join(f"({1_700_000_000_000 + n}, {n})" for n in range(5000))
    run(engine, f"INSERT INTO d.m VALUES {values}")


def run(engine: Engine, text: str, identity: Identity | None = None) -> Any:
    state = SessionState("UTC", origin=ORIGIN) if identity is None else SessionState(
        "UTC", identity=identity, origin=ORIGIN)
    return engine.execute(text, state)


class Attempt:
    """A statement in a thread; `error` is what it ended with."""

    def __init__(self, engine: Engine, text: str, identity: Identity | None = None) -> None:
        self.error: PenstockError | None = None
        self._engine, self._text, self._identity = engine, text, identity
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            run(self._engine, self._text, self._identity)
        except PenstockError as error:
            self.error = error

    def ended(self) -> PenstockError | None:
        self._thread.join(60.0)
        assert not self._thread.is_alive(), "it goes on"
        return self.error


def kill_id(engine: Engine, text: str) -> str:
    """Returns the id of the statement that computes."""
    found: list[str] = []

    def look() -> bool:
        found[:] = [f"{each.id:x}" for each, _ in engine.activity.running() if each.text == text and each.computes]
        return bool(found)

    wait_until(look, 60.0, what="nothing computes")
    return found[0]


def nothing_is_left(engine: Engine) -> bool:
    """Tells whether no statement runs, nothing is spilled, and the engine has nothing that a query holds."""
    spill = engine.paths.spill
    return not engine.activity.running() and not (spill.exists() and [*spill.rglob("*.tmp")])


def test_kill_query(start: Callable[..., Engine]) -> None:
    """One's own, and for admins any; the statement ends at once and says who has ended it."""
    engine = start()
    for killer, refused in ((READER, False), (OTHER, True), (None, False)):
        attempt = Attempt(engine, ENDLESS, READER)
        kill = f"KILL QUERY '{kill_id(engine, ENDLESS)}'"
        if refused:
            with pytest.raises(PermissionDeniedError, match="another user's"):
                run(engine, kill, killer)
            killer = None
        run(engine, kill, killer)
        error = attempt.ended()
        assert isinstance(error, CancelledError)
        assert f"KILL QUERY of user {'root' if killer is None else 'ann'}" in str(error)
        wait_until(lambda: nothing_is_left(engine), 10.0)
        with pytest.raises(NotFoundError, match="SHOW QUERIES"):
            run(engine, kill)
    assert run(engine, "SELECT count(*) FROM d.m").table.to_pylist() == [{"count(*)": 5000}]


def test_kill_query_in_the_dialect() -> None:
    """The id is text, as SHOW QUERIES has it."""
    assert repr(parse_one("KILL QUERY '1f'")) == "KillQuery(number=31)"
    for text in ("KILL QUERY", "KILL QUERY 'x'", "KILL QUERY ''", "KILL QUERY '-1'", "KILL QUERY '1' 2"):
        with pytest.raises(SqlSyntaxError):
            parse_one(text)


def test_a_query_ends_after_its_time(start: Callable[..., Engine]) -> None:
    """Whatever it computes then; what computes nothing is not ended."""
    engine = start(queryTimeout="100ms")
    for text in (ENDLESS, f"EXPLAIN ANALYZE {ENDLESS}"):
        assert isinstance(Attempt(engine, text).ended(), LimitExceededError), text
    wait_until(lambda: nothing_is_left(engine), 10.0)
    run(engine, "CREATE TABLE d.o (ts TIMESTAMP, v INT)")


def test_queries_wait_for_their_turn(start: Callable[..., Engine]) -> None:
    """Up to a number and a time; what goes on can be looked at, and ended, all the while; then the next one runs."""
    engine = start(queriesMax=1, queriesWaitingMax=1, queryWait="300ms")
    first = Attempt(engine, ENDLESS)
    kill = f"KILL QUERY '{kill_id(engine, ENDLESS)}'"
    waiting = Attempt(engine, "SELECT count(*) FROM d.m")
    wait_until(lambda: len(engine.activity.running()) == 2, 60.0)
    error = waiting.ended()
    assert isinstance(error, BusyError)
    assert error.retry
    assert "1 queries run already, and none has ended for 300ms (try again, or raise queriesMax" in str(error)
    assert run(engine, "SELECT count(*) FROM performance_schema.perf_queries").table.num_rows == 1
    run(engine, kill)
    first.ended()
    assert run(engine, "SELECT count(*) FROM d.m").table.num_rows == 1


def test_too_many_wait(start: Callable[..., Engine]) -> None:
    """One more is refused at once; who waits gets the place that becomes free, and may be ended meanwhile, too."""
    engine = start(queriesMax=1, queriesWaitingMax=2, queryWait="1h")
    first = Attempt(engine, ENDLESS)
    kill = f"KILL QUERY '{kill_id(engine, ENDLESS)}'"
    count, dropped = "SELECT count(*) FROM d.m", "SELECT sum(v) FROM d.m"
    waiting, ended = Attempt(engine, count), Attempt(engine, dropped)
    second = kill_id(engine, dropped)
    kill_id(engine, count)
    with pytest.raises(BusyError, match="and 2 wait"):
        run(engine, "SELECT max(v) FROM d.m")
    run(engine, f"KILL QUERY '{second}'")
    assert isinstance(ended.ended(), CancelledError)
    run(engine, kill)
    assert first.ended() is not None
    assert waiting.ended() is None
    wait_until(lambda: nothing_is_left(engine), 10.0)


def test_one_user_takes_not_all_places(start: Callable[..., Engine]) -> None:
    """More of that user's wait, or are refused with the key; others' run at once, and admins' as many as there are."""
    engine = start(queriesMax=3, queriesPerUserMax=1, queriesWaitingMax=1, queryWait="1h")
    first = Attempt(engine, ENDLESS, READER)
    kill = f"KILL QUERY '{kill_id(engine, ENDLESS)}'"
    count = "SELECT count(*) FROM d.m"
    waiting = Attempt(engine, count, READER)
    kill_id(engine, count)
    with pytest.raises(BusyError, match=r"1 queries of user ann run already, and 1 wait .*queriesPerUserMax"):
        run(engine, count + " ", READER)
    with pytest.raises(BusyError, match="queriesPerUserMax"):
        run(engine, f"EXPLAIN {count}", READER)
    for identity in (OTHER, None):
        assert run(engine, count, identity).table.num_rows == 1
    assert run(engine, "SELECT count(*) FROM performance_schema.perf_queries", READER).table.num_rows == 1
    admins = [Attempt(engine, ENDLESS + " " * n) for n in (1, 2)]
    ids = [kill_id(engine, ENDLESS + " " * n) for n in (1, 2)]
    run(engine, kill)
    assert first.ended() is not None
    assert waiting.ended() is None
    for number, attempt in zip(ids, admins, strict=True):
        run(engine, f"KILL QUERY '{number}'")
        assert attempt.ended() is not None
    wait_until(lambda: nothing_is_left(engine), 10.0)


def test_nothing_is_planned_while_it_waits(start: Callable[..., Engine]) -> None:
    """What is wrong in a query is found once it has its turn, so that no more are planned at once than may run."""
    engine = start(queriesMax=1, queriesWaitingMax=0)
    first = Attempt(engine, ENDLESS)
    kill = f"KILL QUERY '{kill_id(engine, ENDLESS)}'"
    for text in ("SELECT missing FROM d.m", "EXPLAIN SELECT missing FROM d.m"):
        with pytest.raises(BusyError):
            run(engine, text)
    run(engine, kill)
    first.ended()
    with pytest.raises(NotFoundError, match="column missing"):
        run(engine, "SELECT missing FROM d.m")


def test_results_are_bounded_but_for_admins(start: Callable[..., Engine]) -> None:
    """In rows and in bytes; the error names the key."""
    engine = start(resultRowsMax=100, resultSizeMax="20KiB")
    with pytest.raises(LimitExceededError, match=r"more than 100 rows .*resultRowsMax"):
        run(engine, "SELECT ts FROM d.m", READER)
    with pytest.raises(LimitExceededError, match=r"more than 20KiB .*resultSizeMax"):
        run(engine, "SELECT repeat('a', 1000) FROM d.m LIMIT 30", READER)
    assert run(engine, "SELECT ts, v FROM d.m LIMIT 100", READER).table.num_rows == 100
    assert run(engine, "SELECT ts FROM d.m WHERE v < 0", READER).table.num_rows == 0
    assert run(engine, "SELECT ts, v, repeat('a', 1000) FROM d.m").table.num_rows == 5000
    writer, copy = Identity("eve", "write"), "INSERT INTO d.m SELECT ts + 1d, v FROM d.m"
    for limit, key in (("", "resultRowsMax"), (" LIMIT 101", "resultRowsMax")):
        with pytest.raises(LimitExceededError, match=key):
            run(engine, copy + limit, writer)
    assert run(engine, "SELECT count(*) FROM d.m").table.to_pylist() == [{"count(*)": 5000}]
    assert run(engine, copy + " LIMIT 100", writer).affected == 100
    assert run(engine, copy).affected == 5100


@pytest.mark.parametrize("statement", ["CREATE TABLE d.o AS {}", "INSERT INTO d.m (ts) {}"])
def test_who_takes_rows_of_a_query_ends_with_it(start: Callable[..., Engine], statement: str) -> None:
    """By KILL QUERY and after its time; nothing of it is there then."""
    engine = start()
    text = statement.format(ENDLESS)
    attempt = Attempt(engine, text)
    run(engine, f"KILL QUERY '{kill_id(engine, text)}'")
    assert isinstance(attempt.ended(), CancelledError)
    state = SessionState("UTC", origin=ORIGIN, query_timeout_s=0.1)
    with pytest.raises(LimitExceededError, match="queryTimeout"):
        engine.execute(text, state)
    wait_until(lambda: nothing_is_left(engine), 10.0)
    assert engine.catalog.table("d", "o") is None
    assert run(engine, "SELECT count(*) FROM d.m").table.to_pylist() == [{"count(*)": 5000}]


def test_queries_are_bounded_in_words_but_for_admins(start: Callable[..., Engine]) -> None:
    """From SELECT on, wherever it stands; a text is one word, and the rows of an INSERT are none."""
    engine = start(queryWordsMax=100)
    fits, too_long = (f"SELECT v FROM d.m WHERE v IN ({', '.join(map(str, range(n)))})" for n in (45, 46))
    writer = Identity("eve", "write")
    assert run(engine, fits, READER).table.num_rows == 45
    for before in ("", "EXPLAIN ", "INSERT INTO d.m (ts, v) "):
        with pytest.raises(LimitExceededError, match=r"more than 100 words.*line 1, column \d+.*queryWordsMax"):
            run(engine, before + too_long, writer)
    assert run(engine, too_long).table.num_rows == 46
    assert run(engine, f"SELECT '{'a b ' * 1000}'", READER).table.num_rows == 1
    tables = " ".join(f"d.m VALUES ({n}, {n}) ({n + 1}, {n})" for n in range(100))
    assert run(engine, f"INSERT INTO {tables}", writer).affected == 200


def test_a_closed_connection_ends_its_statements(start: Callable[..., Engine]) -> None:
    """Those of other connections go on."""
    engine = start()
    number = engine.activity.login("ann")
    errors: list[PenstockError] = []

    def ask() -> None:
        try:
            engine.execute(ENDLESS, SessionState("UTC", connection_id=number))
        except PenstockError as error:
            errors.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    other = Attempt(engine, ENDLESS + " ")
    kill_id(engine, ENDLESS)
    kept = kill_id(engine, ENDLESS + " ")
    engine.activity.logout(number)
    thread.join(60.0)
    assert [type(error) for error in errors] == [CancelledError]
    run(engine, f"KILL QUERY '{kept}'")
    other.ended()


@pytest.fixture(params=["own", "remote"])
def connected(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Engine, Connection]]:
    """An engine over a table that `ENDLESS` can be asked of; a connection to it in this process, or to its server."""
    with ServedHere(tmp_path / "data") as here, here.own() as own:
        engine = here.lease.engine
        fill(engine)
        with here.connect() if request.param == "remote" else nullcontext(own) as connection:
            yield engine, connection


def test_cancel_ends_what_runs(connected: tuple[Engine, Connection]) -> None:
    """Also at a server; the connection can be used on."""
    engine, connection = connected
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(connection.execute, ENDLESS)
        kill_id(engine, ENDLESS)
        connection.cancel()
        with pytest.raises(OperationalError) as caught:
            asked.result(60.0)
    assert isinstance(caught.value, CancelledError)
    wait_until(lambda: nothing_is_left(engine), 10.0)
    assert connection.execute("SELECT count(*) FROM d.m").fetchall() == [(5000,)]


def test_cancel_between_two_calls_of_a_statement_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client at a server asks for the plan, and then for the rows: what comes in between isn't lost."""
    with ServedHere(tmp_path / "data") as here, here.own():
        fill(here.lease.engine)
        with here.connect() as connection, monkeypatch.context() as patch:
            real = client.batches_of

            def cancelled_before(stream: Iterator[bytes]) -> Any:
                connection.cancel()
                return real(stream)

            patch.setattr(client, "batches_of", cancelled_before)
            with pytest.raises(OperationalError) as caught:
                connection.execute(ENDLESS)
            assert isinstance(caught.value, CancelledError)
        wait_until(lambda: nothing_is_left(here.lease.engine), 60.0)


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_in_python_ends_the_query(connected: tuple[Engine, Connection]) -> None:
    """KeyboardInterrupt comes at once, nothing goes on behind it, and the connection answers."""
    engine, connection = connected

    def press_ctrl_c() -> None:
        kill_id(engine, ENDLESS)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with ThreadPoolExecutor() as pool:
        pressed = pool.submit(press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            connection.execute(ENDLESS)
        pressed.result()
    wait_until(lambda: nothing_is_left(engine), 10.0)
    assert connection.execute("SELECT count(*) FROM d.m").fetchall() == [(5000,)]
    with pytest.raises(ProgrammingError, match="column"):
        connection.execute("SELECT missing FROM d.m")


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_in_the_shell_ends_the_query(connected: tuple[Engine, Connection]) -> None:
    """Nothing goes on behind the prompt, here or at the server, and the next statement is answered."""
    engine, connection = connected
    output, errors = io.StringIO(), io.StringIO()
    shell = ShellSession(connection, engine.config, Screen(output, errors, environment={}), ShellOptions(timer=False),
                         interactive=True)

    def press_ctrl_c() -> None:
        kill_id(engine, ENDLESS)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with ThreadPoolExecutor() as pool:
        pressed = pool.submit(press_ctrl_c)
        assert not shell.run_text(f"{ENDLESS};")
        pressed.result()
    assert "the query was ended" in errors.getvalue()
    wait_until(lambda: nothing_is_left(engine), 10.0)
    assert shell.run_text("SELECT count(*) FROM d.m;")
    assert "5000" in output.getvalue()


def test_fill_is_bounded_over_all_groups(start: Callable[..., Engine]) -> None:
    """Each of thirty groups would have less than ten million windows."""
    engine = start()
    run(engine, "CREATE STABLE d.s (ts TIMESTAMP, v INT) TAGS (g INT)")
    run(engine, "INSERT INTO " + " ".join(
        f"d.t{n} USING d.s TAGS ({n}) VALUES (1700000000000, 1)" for n in range(30)))
    query = ("SELECT count(*) FROM (SELECT tbname, _wstart, sum(v) FROM d.s WHERE ts >= 1700000000000 AND "
             "ts < {last} PARTITION BY tbname INTERVAL(1s) FILL(NULL)) q")
    with pytest.raises(LimitExceededError, match="more than 10,000,000 windows in all groups together"):
        run(engine, query.format(last=1_700_000_000_000 + 400_000_000))
    [row] = run(engine, query.format(last=1_700_000_000_000 + 100_000)).table.to_pylist()
    assert list(row.values()) == [30 * 100]
