"""ADBC's driver against `penstock serve`: what any program sees that speaks Arrow Flight SQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi
import polars
import pyarrow as pa
import pytest
from adbc_driver_manager import ProgrammingError
from conftest import times
from kits.basics.waiting import wait_until
from kits.engines.serve_kit import CREATE_SLOW_FUNCTION, Served, add_slow_function, served
from kits.engines.served_here import ServedHere

import penstock

CONNECTIONS = times(50, 200)
T0 = 1_700_000_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data = tmp_path_factory.mktemp("serve") / "data"
    with served(data) as running:
        add_slow_function(data)
        yield running


@pytest.fixture
def con(server: Served) -> Iterator[Any]:
    with connect(server) as connection:
        yield connection


def connect(server: Served | ServedHere, **login: str) -> Any:
    """Returns a connection of ADBC, by default as somebody, who is welcome as long as there are no users."""
    options = login or {"username": "anybody", "password": "anything"}
    return adbc_driver_flightsql.dbapi.connect(server.uri, db_kwargs=options, autocommit=True)


def rows_of(con: Any, query: str, parameters: tuple[object, ...] | None = None) -> list[tuple[Any, ...]]:
    with con.cursor() as cursor:
        cursor.execute(query, parameters)
        return [tuple(row) for row in cursor.fetchall()]


def do(con: Any, *statements: str) -> None:
    for statement in statements:
        with con.cursor() as cursor:
            cursor.execute(statement)


def test_polars_writes_and_reads(con: Any) -> None:
    """`write_database` with the engine adbc, and `read_database`, take Categorical and Binary columns along."""
    do(con, "CREATE DATABASE frames VGROUPS 1 PRECISION 'us'", "USE frames")
    frame = polars.DataFrame({"ts": [datetime(2024, 5, 1)], "b": [b"\xff"],
                              "c": polars.Series(["x"], dtype=polars.Categorical)})
    assert frame.write_database("frame", con, engine="adbc") == 1
    assert frame.write_database("frame", con, engine="adbc", if_table_exists="replace") == 1
    assert polars.read_database("SELECT * FROM frame", con).rows() == frame.rows()


def test_values_of_duckdbs_types(con: Any) -> None:
    """They come as Arrow has them, without a table."""
    with con.cursor() as cursor:
        cursor.execute("SELECT date '2024-02-29' d, [1, NULL] l, {'a': 'x'} s, map {'k': 1} m, interval '1' day i, "
                       "'x'::enum('x') e")
        found = cursor.fetch_arrow_table()
    assert found.to_pylist() == [{"d": date(2024, 2, 29), "l": [1, None], "s": {"a": "x"}, "m": [("k", 1)],
                                  "i": pa.MonthDayNano([0, 1, 0]), "e": "x"}]
    assert found.schema.field("d").type == pa.date32()


def test_a_script(con: Any) -> None:
    """DDL, bulk ingest in its four modes, queries and parameters do what they do in an engine of one's own."""
    do(con, "CREATE DATABASE script VGROUPS 2", "USE script",
       "CREATE STABLE meters (ts TIMESTAMP, amps DOUBLE, note VARCHAR(20)) TAGS (place VARCHAR(16))")
    rows = pa.table({
        "tbname": ["d1", "d2", "d1"], "place": ["Rome", "Oslo", "Rome"], "amps": [1.5, 2.5, None],
        "ts": pa.array([T0, T0, T0 + 60_000], pa.timestamp("ms")),
        "note": pa.array(["one", "two", "one"]).dictionary_encode()})
    with con.cursor() as cursor:
        assert cursor.adbc_ingest("meters", rows, mode="append", db_schema_name="script") == 3
        plain = pa.table({"ts": pa.array([T0 * 1000, T0 * 1000 + 1000], pa.timestamp("us")),
                          "value": pa.array([10, 20], pa.int32())})
        assert cursor.adbc_ingest("plain", plain, mode="create") == 2
        assert cursor.adbc_ingest("plain", plain.slice(0, 1), mode="create_append") == 1
        with pytest.raises(ProgrammingError, match="exists"):
            cursor.adbc_ingest("plain", plain, mode="create")
        assert cursor.adbc_ingest("plain", plain.slice(0, 1), mode="replace") == 1
        with pytest.raises(ProgrammingError, match="nowhere"):
            cursor.adbc_ingest("nowhere", plain, mode="append")
    assert rows_of(con, "SELECT value FROM plain") == [(10,)]
    assert rows_of(con, "SELECT ts, amps, note, place FROM meters WHERE amps IS NOT NULL ORDER BY place") == [
        (datetime(2023, 11, 14, 22, 13, 20), 2.5, "two", "Oslo"),
        (datetime(2023, 11, 14, 22, 13, 20), 1.5, "one", "Rome")]
    assert rows_of(con, "SELECT count(*) FROM meters WHERE place = ? AND ts >= ?",
                   ("Rome", datetime(2023, 11, 14, 22, 14))) == [(1,)]
    with con.cursor() as cursor:
        cursor.execute("INSERT INTO d3 USING meters TAGS (?) VALUES (?, ?, ?)",
                       ("Bonn", datetime(2024, 5, 1, 10), 7.25, "it's ?"))
        assert cursor.rowcount == 1
        cursor.executemany("INSERT INTO d3 USING meters TAGS ('Bonn') VALUES (?, ?, 'many')",
                           [(datetime(2024, 5, 1, 11, minute), float(minute)) for minute in range(10)])
        assert cursor.rowcount == 10
        cursor.execute("DELETE FROM d3 WHERE ts >= '2024-05-01 11:05:00'")
    assert rows_of(con, "SELECT count(*), max(amps), first(note) FROM d3") == [(6, 7.25, "it's ?")]
    assert [row[0] for row in rows_of(con, "SHOW STABLES")] == ["meters"]


def test_errors_have_their_kind(con: Any) -> None:
    """A wrong statement is the programmer's error, with the engine's text and TDengine's code."""
    for statement, text in [
        ("SELEC 1", "0x2600"), ("SELECT a FROM nowhere.t", "nowhere"),
        ("CREATE DATABASE information_schema", "information_schema"),
    ]:
        with con.cursor() as cursor, pytest.raises(ProgrammingError, match=text):
            cursor.execute(statement)
    with con.cursor() as cursor, pytest.raises(ProgrammingError, match=r"parameters"):
        cursor.execute("SELECT ?, ?", (1,))


def test_metadata(con: Any) -> None:
    """Databases are db schemas; tables come with their types, columns and keys."""
    do(con, "CREATE DATABASE meta PRECISION 'us'",
       "CREATE STABLE meta.s (ts TIMESTAMP, id INT PRIMARY KEY, v DECIMAL(10,2)) TAGS (t NCHAR(8))",
       "CREATE TABLE meta.c USING meta.s TAGS ('x')", "CREATE TABLE meta.n (ts TIMESTAMP, b BOOL)")
    [catalog] = con.adbc_get_objects(depth="tables", db_schema_filter="meta").read_all().to_pylist()
    [schema] = catalog["catalog_db_schemas"]
    assert schema["db_schema_name"] == "meta"
    assert [(table["table_name"], table["table_type"]) for table in schema["db_schema_tables"]] == [
        ("n", "TABLE"), ("s", "SUPER TABLE")]
    assert con.adbc_get_table_schema("s", db_schema_filter="meta") == pa.schema([
        ("ts", pa.timestamp("us")), ("id", pa.int32()), ("v", pa.decimal128(10, 2)), ("t", pa.string())])
    assert con.adbc_get_table_schema("c", db_schema_filter="meta").names == ["ts", "id", "v", "t"]
    assert con.adbc_get_table_types() == ["CHILD TABLE", "SUPER TABLE", "SYSTEM TABLE", "TABLE", "VIEW"]
    info = con.adbc_get_info()
    assert (info["vendor_name"], info["vendor_version"]) == ("Penstock", penstock.__version__)
    con.adbc_current_db_schema = "meta"
    assert con.adbc_current_db_schema == "meta"
    assert rows_of(con, "SELECT count(*) FROM n") == [(0,)]


def test_results_are_streamed(con: Any) -> None:
    """A result of many blocks arrives whole and in order."""
    do(con, "CREATE DATABASE wide VGROUPS 1")
    count = 200_000
    rows = pa.table({"ts": pa.array(range(T0, T0 + count), pa.timestamp("ms")), "text": ["x" * 100] * count})
    batches = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=50_000))
    with con.cursor() as cursor:
        assert cursor.adbc_ingest("t", batches, mode="create", db_schema_name="wide") == count
        cursor.execute("SELECT ts, text FROM wide.t ORDER BY ts")
        found = cursor.fetch_arrow_table()
    assert found.num_rows == count
    assert found.column("ts").cast(pa.int64()).to_pylist() == list(range(T0, T0 + count))
    assert len(found.column("ts").chunks) > 1


def test_cancel(con: Any, server: Served) -> None:
    """A query whose client gives up ends at once, and the engine goes on."""
    do(con, "CREATE DATABASE endless VGROUPS 1",
       CREATE_SLOW_FUNCTION)
    rows = pa.table({"ts": pa.array(range(T0, T0 + 500_000), pa.timestamp("ms")), "v": [1.0] * 500_000})
    with con.cursor() as cursor:
        cursor.adbc_ingest("t", rows, mode="create", db_schema_name="endless")
    ended: list[BaseException] = []

    def read(cursor: Any) -> None:
        try:
            cursor.execute("SELECT max(slow(v)) FROM endless.t")
            cursor.fetchall()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            ended.append(error)

    def running() -> list[str]:
        with penstock.connect(host="127.0.0.1", port=server.port, config={"timezone": "UTC"}) as other:
            texts = other.execute("SELECT sql FROM performance_schema.perf_queries").fetchall()
            return [text for (text,) in texts if "slow(v)" in text]

    with con.cursor() as cursor:
        reader = threading.Thread(target=read, args=[cursor])
        reader.start()
        wait_until(running, what="the query never ran")
        cursor.adbc_cancel()
        reader.join(timeout=30)
    assert len(ended) == 1
    assert "cancel" in str(ended[0]).lower()
    wait_until(lambda: not running(), what="the query went on")
    assert rows_of(con, "SELECT count(*) FROM endless.t") == [(500_000,)]


def test_many_connections(server: Served) -> None:
    """Many clients at once each get what is theirs."""
    with connect(server) as con:
        do(con, "CREATE DATABASE crowd VGROUPS 2", "CREATE STABLE crowd.s (ts TIMESTAMP, v INT) TAGS (n INT)")
    together = threading.Barrier(CONNECTIONS)

    def visit(number: int) -> list[tuple[Any, ...]] | Exception:
        try:
            with connect(server) as con:
                do(con, "USE crowd")
                together.wait(timeout=300)
                do(con, f"INSERT INTO d{number} USING s TAGS ({number}) VALUES ({T0}, {number})")
                return rows_of(con, f"SELECT v, n FROM s WHERE n = {number}")
        except Exception as error:  # noqa: BLE001
            together.abort()  # the others don't wait for who won't come, and all that went wrong is shown
            return error

    with ThreadPoolExecutor(CONNECTIONS) as visitors:
        assert list(visitors.map(visit, range(CONNECTIONS))) == [[(number, number)] for number in range(CONNECTIONS)]
    with connect(server) as con:
        assert rows_of(con, "SELECT count(*), sum(v) FROM crowd.s") == [(CONNECTIONS, sum(range(CONNECTIONS)))]


def test_logins(tmp_path: Path) -> None:
    """Once there are users, nobody gets in without a password, and a role bounds what one may do."""
    data = tmp_path / "data"
    with penstock.connect(str(data), {"timezone": "UTC"}) as own:
        own.execute("CREATE USER boss PASS 'correct horse' ROLE admin")
        own.execute("CREATE USER guest PASS 'battery staple' ROLE read")
        own.execute("CREATE DATABASE d VGROUPS 1")
        own.execute("CREATE TABLE d.t (ts TIMESTAMP, v INT)")
    with ServedHere(data) as server:
        for login in ({}, {"username": "boss", "password": "wrong horse"}, {"username": "nobody", "password": "x"},
                      {"adbc.flight.sql.authorization_header": "Bearer forged"}):
            with pytest.raises(ProgrammingError, match="UNAUTHENTICATED"), \
                    adbc_driver_flightsql.dbapi.connect(server.uri, db_kwargs=login, autocommit=True) as con:
                do(con, "SELECT 1")
        with connect(server, username="guest", password="battery staple") as con:
            assert rows_of(con, "SELECT count(*) FROM d.t") == [(0,)]
            for attempt in (f"INSERT INTO d.t VALUES ({T0}, 1)", "DROP DATABASE d"):
                with pytest.raises(ProgrammingError, match="role"):
                    do(con, attempt)
            rows = pa.table({"ts": pa.array([T0], pa.timestamp("ms")), "v": [1]})
            with con.cursor() as cursor, pytest.raises(ProgrammingError, match="role"):
                cursor.adbc_ingest("t", rows, mode="append", db_schema_name="d")
        with connect(server, username="boss", password="correct horse") as con:
            do(con, f"INSERT INTO d.t VALUES ({T0}, 1)", "ALTER USER guest PASS 'another staple'")


def test_oversize_messages(tmp_path: Path) -> None:
    """A message above the bound is refused by its size; the connection and the server go on."""
    with ServedHere(tmp_path / "data", {"flightMessageMax": "1MiB"}) as server, connect(server) as con:
        with pytest.raises(Exception, match="larger than max"):
            do(con, f"SELECT '{'x' * (2 << 20)}'")
        do(con, "CREATE DATABASE d VGROUPS 1", "CREATE TABLE d.t (ts TIMESTAMP, v DOUBLE)")
        rows = pa.table({"ts": pa.array(range(T0, T0 + 200_000), pa.timestamp("ms")), "v": [1.0] * 200_000})
        with con.cursor() as cursor, pytest.raises(Exception, match="larger than max"):
            cursor.adbc_ingest("t", rows, mode="append", db_schema_name="d")
        with con.cursor() as cursor:
            batches = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=20_000))
            assert cursor.adbc_ingest("t", batches, mode="append", db_schema_name="d") == 200_000
        assert rows_of(con, "SELECT count(*) FROM d.t") == [(200_000,)]
