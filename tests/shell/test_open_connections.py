"""What is known of an open connection is forgotten when it must be: each row is written as things are then."""

from __future__ import annotations

import base64
import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import grpc
import psycopg
import pyarrow as pa
import pytest
from kits.engines.served_here import NOW_MS, ServedHere, path_of
from psycopg import errors

from penstock.mnode.http.http_server import HttpListener
from penstock.mnode.http.http_sessions import HttpSessions
from penstock.mnode.http.rest import Rest
from penstock.shell.flight_sql import protobuf_messages
from penstock.shell.flight_sql.frames import frames
from penstock.shell.flight_sql.protobuf_messages import make, pack, read, unpack
from penstock.shell.postgres.postgres_server import PostgresServer

PASSWORD = "correct horse battery"
WAYS = ["rest", "lines", "flight", "postgres"]

Write = Callable[[int, int], None]
"""Writes a value, so many ms from the beginning. Raises NotLoggedInError, NotAllowedError."""


class NotLoggedInError(Exception):
    """The login isn't valid any more."""


class NotAllowedError(Exception):
    """Who has logged in may not do this."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedHere]:
    with ServedHere(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def run(served: ServedHere) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
    """Executes statements of the owner. There are the databases d and e, each with a table t, the user ada, and another
    admin, since without users everybody comes in.
    """
    with served.own() as own:
        def execute(text: str) -> list[tuple[Any, ...]]:
            cursor = own.execute(text)
            return cursor.fetchall() if cursor.description else []

        for database in ("d", "e"):
            execute(f"CREATE DATABASE {database} KEEP 36500")
            execute(f"CREATE TABLE {database}.t (ts TIMESTAMP, v BIGINT)")
        for user in ("eve", "ada"):
            execute(f"CREATE USER {user} PASS '{PASSWORD}' ROLE admin")
        yield execute


@contextmanager
def writing(served: ServedHere, way: str) -> Iterator[Write]:
    """Gives what writes into d.t, or as a line into d.m, over one connection."""
    with {"rest": by_http, "lines": by_http, "flight": by_flight, "postgres": by_postgres}[way](served, way) as write:
        yield write


@contextmanager
def by_http(served: ServedHere, way: str) -> Iterator[Write]:
    engine = served.lease.engine
    listener = HttpListener("127.0.0.1", 0, Rest(engine, HttpSessions(engine.logins, "UTC"), 1 << 20).routes(),
                            any_name=lambda: True)
    connection = http.client.HTTPConnection("127.0.0.1", listener.port, timeout=60)
    headers = {"Authorization": "Basic " + base64.b64encode(f"ada:{PASSWORD}".encode()).decode()}

    def write(ms: int, value: int) -> None:
        if way == "rest":
            connection.request("POST", "/sql/d", f"INSERT INTO t VALUES ({NOW_MS + ms}, {value})", headers)
        else:
            connection.request("POST", "/write?db=d&precision=ms", f"m,g=x v={value}i {NOW_MS + ms}", headers)
        answer = connection.getresponse()
        said = answer.read()
        if answer.status == HTTPStatus.UNAUTHORIZED:
            raise NotLoggedInError(said)
        if answer.status == HTTPStatus.FORBIDDEN:
            raise NotAllowedError(said)
        assert answer.status in (HTTPStatus.OK, HTTPStatus.NO_CONTENT), said

    try:
        yield write
    finally:
        connection.close()
        listener.close()


@contextmanager
def by_flight(served: ServedHere, way: str) -> Iterator[Write]:
    headers = [("authorization", f"Bearer {served.lease.engine.logins.login('ada', PASSWORD).text}")]
    with served.channel() as channel:
        put, act = channel.stream_unary(path_of("DoPut")), channel.unary_stream(path_of("DoAction"))

        def described(command: Any) -> Any:
            return make("FlightDescriptor", type=protobuf_messages.DESCRIPTOR_OF_COMMAND, cmd=pack(command))

        def update(text: str) -> None:
            first = make("FlightData", flight_descriptor=described(make("CommandStatementUpdate", query=text)))
            put(iter([first.SerializeToString()]), metadata=headers)

        update("USE d")
        request = pack(make("ActionCreatePreparedStatementRequest", query="INSERT INTO t VALUES (?, ?)"))
        [made] = act(make("Action", type="CreatePreparedStatement", body=request).SerializeToString(), metadata=headers)
        handle = unpack(read("Result", made).body).prepared_statement_handle
        command = described(make("CommandPreparedStatementUpdate", prepared_statement_handle=handle))

        def write(ms: int, value: int) -> None:
            row = pa.record_batch([pa.array([NOW_MS + ms]), pa.array([value])], names=["0", "1"])
            try:
                put(iter(frames(row.schema, [row], 1 << 20, command)), metadata=headers)
            except grpc.RpcError as error:
                kind = {grpc.StatusCode.UNAUTHENTICATED: NotLoggedInError,
                        grpc.StatusCode.PERMISSION_DENIED: NotAllowedError}.get(error.code())
                if kind is None:
                    raise
                raise kind from error

        write.use = update  # type: ignore[attr-defined]
        yield write


@contextmanager
def by_postgres(served: ServedHere, way: str) -> Iterator[Write]:
    server = PostgresServer(served.lease.engine, served.config, 0)
    try:
        with psycopg.connect(host="127.0.0.1", port=server.port, user="ada", password=PASSWORD, dbname="d",
                             autocommit=True) as connection:
            def write(ms: int, value: int) -> None:
                try:
                    connection.execute("INSERT INTO t VALUES (%s, %s)", (NOW_MS + ms, value), prepare=True)
                except errors.InvalidPassword as error:
                    raise NotLoggedInError from error
                except errors.InsufficientPrivilege as error:
                    raise NotAllowedError from error

            write.use = connection.execute  # type: ignore[attr-defined]
            yield write
    finally:
        server.close()


Run = Callable[[str], list[tuple[Any, ...]]]


def warm(write: Write) -> None:
    """Writes until nothing of what a row needs is new."""
    for number in range(3):
        write(number, number)


@pytest.mark.parametrize("change", [f"ALTER USER ada PASS '{PASSWORD} staple'", "DROP USER ada"])
@pytest.mark.parametrize("way", WAYS)
def test_another_password_and_no_user_end_logins_at_once(served: ServedHere, run: Run, way: str, change: str) -> None:
    """With the next row."""
    with writing(served, way) as write:
        warm(write)
        run(change)
        with pytest.raises(NotLoggedInError):
            write(3, 3)


@pytest.mark.parametrize("way", WAYS)
def test_rights_count_at_once(served: ServedHere, run: Run, way: str) -> None:
    """Whether a role is taken or a grant; what is granted again is there again."""
    with writing(served, way) as write:
        warm(write)
        run("ALTER USER ada ROLE none")
        with pytest.raises(NotAllowedError):
            write(3, 3)
        run("GRANT WRITE ON d.* TO ada")
        write(4, 4)
        run("REVOKE WRITE ON d.* FROM ada")
        with pytest.raises(NotAllowedError):
            write(5, 5)
    assert run(f"SELECT v FROM d.{'m' if way == 'lines' else 't'} WHERE v > 2") == [(4,)]


@pytest.mark.parametrize("way", WAYS)
def test_rows_go_into_the_table_that_is_there_now(served: ServedHere, run: Run, way: str) -> None:
    """With the columns that it has."""
    table = "m" if way == "lines" else "t"
    with writing(served, way) as write:
        warm(write)
        run(f"ALTER TABLE d.{table} ADD COLUMN w INT")
        run(f"ALTER TABLE d.{table} DROP COLUMN w")
        write(3, 3)
        run(f"DROP TABLE d.{table}")
        tags = " TAGS (g NCHAR(16))" if way == "lines" else ""
        run(f"CREATE TABLE d.{table} (_ts TIMESTAMP, x INT, v BIGINT){tags}" if way == "lines"
            else f"CREATE TABLE d.{table} (ts TIMESTAMP, v VARCHAR(10))")
        write(4, 4)
    assert run(f"SELECT v FROM d.{table}") == [(4 if way == "lines" else "4",)]


@pytest.mark.parametrize("way", ["flight", "postgres"])
def test_a_prepared_row_goes_into_the_database_in_use(served: ServedHere, run: Run, way: str) -> None:
    """Also if another one was when it was prepared."""
    with writing(served, way) as write:
        warm(write)
        write.use("USE e")  # type: ignore[attr-defined]
        write(3, 3)
    assert run("SELECT v FROM e.t") == [(3,)]
    assert run("SELECT count(*) FROM d.t") == [(3,)]
