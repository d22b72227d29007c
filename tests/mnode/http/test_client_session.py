"""One session of statements as the shell answers it, and as TDengine's connectors get it over REST."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from kits.basics.client_packages import client_process, needs_clients
from kits.engines.client_session import DATABASE, PASSWORD, ask_engine, run_session, session_engine
from kits.engines.taos_port import taos_port
from kits.engines.threaded import Threaded


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Threaded]:
    with session_engine(tmp_path_factory.mktemp("session") / "data") as opened:
        yield opened


@pytest.fixture(scope="module")
def port(engine: Threaded) -> Iterator[int]:
    with taos_port(engine.engine) as port:
        yield port


def test_the_shell_gives_the_golden_answers(engine: Threaded) -> None:
    """They are the ones that all clients are held against."""
    engine.session.database = DATABASE
    run_session(engine, ask_engine(engine))


@needs_clients
@pytest.mark.parametrize("kind", ["plain", "alchemy", "by_socket"])
def test_tdengines_connector_gets_the_answers_of_the_shell(engine: Threaded, port: int, kind: str) -> None:
    """taosrest as it is and under SQLAlchemy, taosws: rows, numbers of rows, errors with their numbers and texts."""
    with client_process("taos_client", kind, str(port), "ada", PASSWORD, DATABASE) as client:
        run_session(engine, client.ask)


@needs_clients
def test_sqlalchemy_finds_tables_and_columns(engine: Threaded, port: int) -> None:
    """By what TDengine's dialect asks for, views among it."""
    engine.run("CREATE DATABASE seen", "CREATE TABLE seen.plain (ts TIMESTAMP, v INT, t VARCHAR(7))",
               "CREATE TABLE seen.wide (ts TIMESTAMP, d DOUBLE) TAGS (place NCHAR(9))")
    with client_process("taos_client", "alchemy", str(port), "ada", PASSWORD, "seen") as client:
        assert json.loads(client.ask("tables")) == ["plain", "wide"]
        assert json.loads(client.ask("columns of wide")) == [
            ["ts", "DATETIME"], ["d", "FLOAT"], ["place", "VARCHAR"]]
    engine.run("DROP DATABASE seen")
