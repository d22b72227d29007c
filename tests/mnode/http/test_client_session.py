"""One session of statements as the shell answers it, and as TDengine's connectors get it over REST."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from conftest import by_night
from kits.basics.client_packages import client_process, needs_clients
from kits.basics.waiting import wait_until
from kits.engines.client_session import DATABASE, PASSWORD, ask_engine, run_session, session_engine
from kits.engines.taos_port import taos_port
from kits.engines.threaded import Threaded

T0 = 1_700_000_100_000


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
@pytest.mark.parametrize("kind", ["plain", pytest.param("alchemy", marks=by_night), "by_socket"])
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


@needs_clients
@pytest.mark.parametrize("kind", ["plain", pytest.param("by_socket", marks=by_night)])
def test_tdengines_connector_makes_streams_with_triggers(engine: Threaded, port: int, kind: str) -> None:
    """Three of the kinds that its documentation shows: for each row, for each table and window, and by the clock."""
    engine.run(f"CREATE DATABASE {kind}", f"USE {kind}", "CREATE TABLE calls (ts TIMESTAMP, n INT)",
               "CREATE TABLE levels (ts TIMESTAMP, v DOUBLE)",
               "CREATE STABLE meters (ts TIMESTAMP, v INT) TAGS (g INT)",
               "CREATE TABLE m1 USING meters TAGS (1)", "CREATE TABLE m2 USING meters TAGS (2)",
               f"INSERT INTO levels VALUES ({T0}, 1) ({T0 + 60_000}, 3) ({T0 + 600_000}, 50)")
    with client_process("taos_client", kind, str(port), "ada", PASSWORD, kind) as client:
        client.ask("SHOW DATABASES")  # from the second statement on, each client uses the database
        for statement in (
            f"CREATE STREAM {kind}_each count_window(1) FROM calls INTO answers AS SELECT _twstart, avg(v) mean FROM "
            "levels WHERE _c0 >= _twend - 5m AND _c0 <= _twend",
            f"CREATE STREAM {kind}_windows INTERVAL(5m) SLIDING(5m) FROM meters PARTITION BY tbname INTO means AS "
            "SELECT _twstart, avg(v) mean, count(*) n FROM %%tbname WHERE _c0 >= _twstart AND _c0 < _twend",
            f"CREATE STREAM {kind}_clock PERIOD(1s) INTO counts AS SELECT cast(_tlocaltime / 1000000 AS TIMESTAMP) "
            "ts, count(*) n FROM levels",
            f"INSERT INTO calls VALUES ({T0 + 120_000}, 1)",
            f"INSERT INTO m1 VALUES ({T0}, 1) ({T0 + 1000}, 3) ({T0 + 300_000}, 9) m2 VALUES ({T0}, 5) "
            f"({T0 + 300_000}, 9)",
        ):
            assert not client.ask(statement).startswith("ERROR")
        for query, value in (("SELECT max(mean) FROM answers", 2), ("SELECT sum(n) FROM means", 3),
                             ("SELECT max(n) FROM counts", 3)):
            wait_until(lambda query=query, value=value: client.ask(query).split()[-1] in (f"{value}", f"{value}.0"))
    assert engine.run("SELECT mean, n, tag_tbname FROM means ORDER BY tag_tbname") == [(2.0, 2, "m1"), (5.0, 1, "m2")]
    for stream in ("each", "windows", "clock"):
        engine.run(f"DROP STREAM {kind}_{stream}")
    engine.run(f"DROP DATABASE {kind}")
