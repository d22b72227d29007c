"""Queries end when a session wants no more of them, and with the client that waits for them, by every interface."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.basics.relay import Relay
from kits.basics.waiting import wait_until
from kits.engines.embedded import NoRuntime
from kits.engines.served_here import ServedHere
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

import penstock
from penstock.common.clock import SystemClock
from penstock.common.config import Config
from penstock.common.errors import PenstockError, SqlSyntaxError
from penstock.mnode.engine import Engine
from penstock.mnode.http.http_server import HttpListener
from penstock.mnode.http.http_sessions import HttpSessions
from penstock.mnode.http.rest import Rest
from penstock.mnode.http.taos_rest import TaosRest
from penstock.shell.api.dbapi import Connection
from penstock.shell.postgres.postgres_server import PostgresServer
from penstock.shell.taos_socket.socket_route import socket_routes
from penstock.sql.dialect.generator import print_sql
from penstock.sql.dialect.parser import parse_one
from penstock.sql.tree.statements import SetQueryTimeout

#: 25 million pairs of rows, each with a text that takes a while.
ENDLESS = ("SELECT sum(length(replace(repeat('a', b.v), 'a', 'b'))) AS n FROM d.m a LEFT WINDOW JOIN d.m b "
           "WINDOW_OFFSET(-10s, 10s)")
COUNT = "SELECT count(*) FROM d.m"


class AllServed(ServedHere):
    """An engine with every interface that it has, in this process and by the clock of the machine."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        engine = self.lease.engine
        self.listener = HttpListener("127.0.0.1", 0, {
            **Rest(engine, HttpSessions(engine.logins, "UTC"), 1 << 20).routes(),
            **TaosRest(engine, HttpSessions(engine.logins, "UTC"), 1 << 20).routes(),
            **socket_routes(engine, "UTC", 1 << 20, 60.0)})
        self.postgres = PostgresServer(engine, self.config, 0)

    def _engine(self, path: Path, config: Config) -> Engine:
        return Engine(path, config, clock=SystemClock(), runtime=lambda config, root: NoRuntime())

    @property
    def engine(self) -> Engine:
        return self.lease.engine

    @property
    def socket(self) -> str:
        return str(self.data / "penstock.sock")

    def close(self) -> None:
        self.postgres.close()
        self.listener.close()

    def computes(self) -> bool:
        return any(running.computes for running, _ in self.engine.activity.running())


@pytest.fixture(scope="module")
def all_served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllServed]:
    with AllServed(tmp_path_factory.mktemp("ends") / "data") as here, closing(here), here.own() as own:
        own.execute("CREATE DATABASE d VGROUPS 1 KEEP 36500d")
        own.execute("CREATE TABLE d.m (ts TIMESTAMP, v INT)")
        values = " ".join(f"({1_700_000_000_000 + n}, {n})" for n in range(5000))
        own.execute(f"INSERT INTO d.m VALUES {values}")
        yield here


# --- SET queryTimeout ------------------------------------------------------------------------------------------------


def psycopg_session(here: AllServed, stack: ExitStack) -> Callable[[str], object]:
    connection = stack.enter_context(psycopg.connect(
        host="127.0.0.1", port=here.postgres.port, user="who", autocommit=True))
    return connection.execute


def session_of(connect: Callable[[AllServed], Connection]) -> Callable[[AllServed, ExitStack], Callable[[str], object]]:
    return lambda here, stack: stack.enter_context(connect(here)).execute


SESSIONS = {
    "embedded": session_of(lambda here: here.own()),
    "flight": session_of(lambda here: here.connect()),
    "socket": session_of(lambda here: penstock.connect(host=f"unix:{here.socket}")),
    "postgres": psycopg_session,
}


@pytest.mark.parametrize("interface", SESSIONS)
def test_a_session_says_how_long_its_queries_may_take(all_served: AllServed, interface: str) -> None:
    """It is the session's alone, holds until it is taken back, and ends nothing that is shorter."""
    with ExitStack() as stack:
        ask, other = (SESSIONS[interface](all_served, stack) for _ in range(2))
        ask("SET queryTimeout = '200ms'")
        for _ in range(2):
            with pytest.raises((PenstockError, psycopg.Error), match="took longer than 200ms"):
                ask(ENDLESS)
        ask("SET queryTimeout '1h'")
        ask(COUNT)
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(other, ENDLESS)
            running = wait_until(lambda: [each for each, _ in all_served.engine.activity.running() if each.computes])
            assert running[0].timeout_s == all_served.config.query_timeout
            running[0].cancel()
            with pytest.raises((PenstockError, psycopg.Error), match="cancelled"):
                asked.result()
        ask("SET queryTimeout DEFAULT")
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(ask, ENDLESS)
            running = wait_until(lambda: [each for each, _ in all_served.engine.activity.running() if each.computes])
            assert running[0].timeout_s == all_served.config.query_timeout
            running[0].cancel()
            with pytest.raises((PenstockError, psycopg.Error), match="cancelled"):
                asked.result()


def test_postgres_clients_see_the_timeout_of_their_session(all_served: AllServed) -> None:
    """By PostgreSQL's name, whichever one it was set by."""
    with psycopg.connect(host="127.0.0.1", port=all_served.postgres.port, user="who", autocommit=True) as connection:
        for set_to, shown in (("SET queryTimeout '90s'", "90s"), ("SET queryTimeout TO 2m", "2min"),
                              ("SET statement_timeout = 250", "250ms"), ("SET queryTimeout 0", "0")):
            connection.execute(set_to)
            assert connection.execute("SHOW statement_timeout").fetchone() == (shown,)


def test_a_new_login_keeps_the_timeout(tmp_path: Path) -> None:
    """A token that has expired is renewed by the client, and with it its session at the server."""
    with ServedHere(tmp_path / "data") as here:
        with here.own() as own:
            own.execute("CREATE USER boss PASS 'correct horse' ROLE admin")
        with here.connect("boss", "correct horse") as connection:
            connection.execute("SET queryTimeout '7s'")
            here.clock.advance(here.config.token_lifetime + 1)
            timeouts: list[float] = []
            engine, listed = here.lease.engine, here.lease.engine.activity.statement

            def note(*words: object, timeout_s: float = 0.0, **more: object) -> object:
                timeouts.append(timeout_s)
                return listed(*words, timeout_s=timeout_s, **more)  # type: ignore[arg-type]

            engine.activity.statement = note  # type: ignore[method-assign,assignment]
            connection.execute("SELECT 1")
            assert timeouts[-1] == 7.0


@given(st.integers(1, 365 * 86_400_000))
def test_a_timeout_is_read_as_it_is_written(milliseconds: int) -> None:
    """In any unit that fits."""
    assert parse_one(f"SET queryTimeout '{milliseconds}ms'") == SetQueryTimeout(milliseconds / 1000)
    statement = parse_one(print_sql(SetQueryTimeout(milliseconds / 1000)))
    assert isinstance(statement, SetQueryTimeout)
    assert statement.timeout_s == pytest.approx(milliseconds / 1000)


@pytest.mark.parametrize(("text", "said"), [
    ("SET", "queryTimeout or ansiQuotes is expected"), ("SET jit off", "queryTimeout or ansiQuotes is expected"),
    ("SET queryTimeout", "a duration is expected"), ("SET queryTimeout 5", "a duration is expected"),
    ("SET queryTimeout 'soon'", "a duration is expected.*units are us"), ("SET queryTimeout '-1s'", "a duration"),
    ("SET queryTimeout '1us'", "from 1ms to 365d"), ("SET queryTimeout 366d", "from 1ms to 365d"),
    ("SET queryTimeout 1s 2s", "the end of the statement"),
])
def test_what_is_no_timeout_is_refused(text: str, said: str) -> None:
    """The error says what is expected."""
    with pytest.raises(SqlSyntaxError, match=said):
        parse_one(text)


# --- clients that hang up --------------------------------------------------------------------------------------------


def post(relay: Relay, path: str) -> None:
    client = http.client.HTTPConnection("127.0.0.1", relay.port)
    client.request("POST", path, ENDLESS.encode())
    client.getresponse().read()


def by_web_socket(relay: Relay) -> None:
    with connect(f"ws://127.0.0.1:{relay.port}/ws") as connection:
        for action, arguments in (("conn", {"user": "who", "password": "x"}), ("query", {"sql": ENDLESS})):
            connection.send(json.dumps({"action": action, "args": arguments}))
            connection.recv()


def by_psycopg(relay: Relay, ask: Callable[[psycopg.Connection[tuple[object, ...]]], object]) -> None:
    with psycopg.connect(host="127.0.0.1", port=relay.port, user="who", autocommit=True) as connection:
        ask(connection)


def by_cursor(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    with connection.cursor("one", withhold=True) as cursor:
        cursor.execute(ENDLESS)
        cursor.fetchone()


def by_copy(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    with connection.cursor().copy(f"COPY ({ENDLESS}) TO STDOUT") as copy:
        copy.read()


def by_flight(relay: Relay, host: str = "127.0.0.1") -> None:
    port = 0 if host != "127.0.0.1" else relay.port
    with penstock.connect(host=host, port=port) as connection:
        connection.execute(ENDLESS)


#: Which interface a client is connected to, and how it asks.
CLIENTS: dict[str, tuple[str, Callable[[Relay], None]]] = {
    "rest": ("http", lambda relay: post(relay, "/sql")),
    "taos rest": ("http", lambda relay: post(relay, "/rest/sql")),
    "web socket": ("http", by_web_socket),
    "simple": ("postgres", lambda relay: by_psycopg(relay, lambda con: con.execute(ENDLESS))),
    "extended": ("postgres", lambda relay: by_psycopg(relay, lambda con: con.execute(ENDLESS, binary=True))),
    "cursor": ("postgres", lambda relay: by_psycopg(relay, by_cursor)),
    "copy": ("postgres", lambda relay: by_psycopg(relay, by_copy)),
    "flight": ("flight", by_flight),
    "socket": ("socket", lambda relay: by_flight(relay, f"unix:{relay.path}")),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_query_ends_with_its_client(all_served: AllServed, client: str) -> None:
    """Whatever it speaks; it is noticed while the query computes, and the engine goes on."""
    interface, ask = CLIENTS[client]
    ports = {"http": all_served.listener.port, "postgres": all_served.postgres.port, "flight": all_served.port}

    def ask_in_vain(relay: Relay) -> None:
        with suppress(PenstockError, psycopg.Error, OSError, http.client.HTTPException, WebSocketException):
            ask(relay)

    with Relay(all_served.socket if interface == "socket" else ("127.0.0.1", ports[interface])) as relay:
        waiting = threading.Thread(target=ask_in_vain, args=(relay,))
        waiting.start()
        wait_until(all_served.computes)
        relay.cut()
        wait_until(lambda: not all_served.engine.activity.running(), what="the query went on")
        waiting.join()
    with all_served.own() as own:
        assert own.execute(COUNT).fetchall() == [(5000,)]
