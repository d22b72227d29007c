"""One session of statements as the shell answers it, and as TDengine's connectors get it over REST."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from kits.basics.client_packages import client_process, needs_clients
from kits.engines.client_session import DATABASE, ask_engine, run_session
from kits.engines.threaded import Threaded

from penstock.mnode.http.http_server import HttpListener
from penstock.mnode.http.taos_rest import TaosRest


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Threaded]:
    opened = Threaded(tmp_path_factory.mktemp("session") / "data")
    opened.run("CREATE USER ada PASS 'correct:horse' ROLE admin")
    yield opened
    opened.engine.close()


@pytest.fixture(scope="module")
def port(engine: Threaded) -> Iterator[int]:
    listener = HttpListener("127.0.0.1", 0, TaosRest(engine.engine, engine.engine.logins, "UTC", 1 << 20).routes())
    yield listener.port
    listener.close()


def test_the_shell_gives_the_golden_answers(engine: Threaded) -> None:
    """They are the ones that all clients are held against."""
    engine.session.database = DATABASE
    run_session(engine, ask_engine(engine))


@needs_clients
@pytest.mark.parametrize("kind", ["plain", "alchemy"])
def test_tdengines_connector_gets_the_answers_of_the_shell(engine: Threaded, port: int, kind: str) -> None:
    """taosrest as it is and under SQLAlchemy: rows, numbers of rows, errors with their numbers and texts."""
    with client_process("taos_client", kind, str(port), "ada", "correct:horse", DATABASE) as client:
        run_session(engine, client.ask)


@needs_clients
def test_sqlalchemy_finds_tables_and_columns(engine: Threaded, port: int) -> None:
    """By what TDengine's dialect asks for, views among it."""
    engine.run("CREATE DATABASE seen", "CREATE TABLE seen.plain (ts TIMESTAMP, v INT, t VARCHAR(7))",
               "CREATE TABLE seen.wide (ts TIMESTAMP, d DOUBLE) TAGS (place NCHAR(9))")
    with client_process("taos_client", "alchemy", str(port), "ada", "correct:horse", "seen") as client:
        assert json.loads(client.ask("tables")) == ["plain", "wide"]
        assert json.loads(client.ask("columns of wide")) == [
            ["ts", "DATETIME"], ["d", "FLOAT"], ["place", "VARCHAR"]]
    engine.run("DROP DATABASE seen")
