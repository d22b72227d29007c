"""Streams and queries that look up in tables of PostgreSQL."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kits.basics.external_servers import Postgres
from kits.basics.places import ROOT
from kits.basics.waiting import wait_until
from kits.engines.sandboxes import T0, TestBed
from kits.pages.examples import examples, shown_in

import penstock
from penstock.common.errors import ConnectionFailedError, InUseError, NotFoundError, NotSupportedError, PenstockError
from penstock.shell.terminal.script import SqlText, split_all
from penstock.sql.dialect.parser import parse_one
from penstock.sql.tree.statements import CreateIngest

JOINED = ("select m.ts, p.site, p.since, p.limit_ from d.m m left join connection pg (table 'fleet.devices') p "
          "on m.dev = p.id")


@pytest.fixture
def fleet(postgres: Postgres) -> Iterator[Any]:
    """A session on a server with a table of devices."""
    with postgres.connect() as session:
        session.execute("DROP SCHEMA IF EXISTS fleet CASCADE")
        session.execute("CREATE SCHEMA fleet")
        session.execute("CREATE TABLE fleet.devices (id varchar(8) PRIMARY KEY, site text, limit_ numeric(8, 2), "
                        "since timestamptz, active boolean, n smallint, big bigint, tags jsonb, day date)")
        session.execute("INSERT INTO fleet.devices VALUES ('a', 'north', 2.5, '2024-01-02 03:04:05.678+00', true, 7, "
                        "1234567890123, '{\"k\": 1}', '2024-02-03'), ('b', 'south', NULL, 'infinity', false, NULL, "
                        "NULL, NULL, NULL)")
        yield session


class Bed(TestBed):
    def __init__(self, server: Postgres, password: Path, **options: Any) -> None:
        super().__init__(**options)
        password.write_text(server.password)
        self.all("create database d vgroups 2 keep 36500",
                 "create stable d.m (ts timestamp, v int, dev varchar(8)) tags (g int)",
                 "create table d.c using d.m tags (1)",
                 f"create connection pg type postgres with (host='127.0.0.1', port='{server.port}', sslmode='disable', "
                 f"database='{server.database}', username='{server.username}', password='file:{password}', "
                 "timeout='2s')")

    def insert(self, *rows: tuple[int, str]) -> None:
        for ts, device in rows:
            self.execute(f"insert into d.c values ({T0 + ts}, {ts}, '{device}')")
        self.run()


def test_types_of_columns(postgres: Postgres, fleet: Any, tmp_path: Path) -> None:
    """An external table is read like one of our own; what has no type here is text."""
    with Bed(postgres, tmp_path / "p") as bed:
        rows = bed.rows("select * from connection pg (table 'fleet.devices') order by id")
        since = 1_704_164_645_678 - T0
        day = 1_706_918_400_000 - T0
        assert rows == [("a", "north", 2.5, since, True, 7, 1234567890123, '{"k": 1}', day),
                        ("b", "south", None, None, False, None, None, None, None)]
        assert bed.rows("select count(*), max(n) from connection pg (table 'fleet.devices') p where p.active") == [
            (1, 7)]


def test_many_rows_are_read_in_pieces(postgres: Postgres, fleet: Any, tmp_path: Path,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them come, and of more than are kept none."""
    monkeypatch.setattr("penstock.tasks.external.connectors.postgres_tables._ROWS_AT_ONCE", 7)
    fleet.execute("CREATE TABLE fleet.many AS SELECT n, n * 2 AS twice FROM generate_series(1, 100) n")
    with Bed(postgres, tmp_path / "p") as bed:
        query = "select count(*), sum(n), sum(twice) from connection pg (table 'fleet.many')"
        assert bed.rows(query) == [(100, 5050, 10100)]
        monkeypatch.setattr("penstock.tasks.external.connectors.postgres_tables.ROWS_MAX", 99)
        with pytest.raises(NotSupportedError, match="more than 99 rows"):
            bed.execute(query)


def test_streams_find_what_queries_find(postgres: Postgres, fleet: Any, tmp_path: Path) -> None:
    """Whichever side of the join the external table is, and with groups of what is found there."""
    with Bed(postgres, tmp_path / "p") as bed:
        bed.execute(f"create stream s into d.o as {JOINED} partition by m.tbname")
        bed.execute("create stream t trigger at_once into d.o2 as select _wstart, p.site, count(*) n from "
                    "connection pg (table 'fleet.devices') p join d.m m on p.id = m.dev partition by p.site "
                    "interval(10a)")
        bed.insert((1, "a"), (2, "b"), (3, "c"), (11, "a"))
        results = bed.rows("select ts, site, since, limit_ from d.o")
        assert results == bed.rows(JOINED)
        assert [row[1] for row in results] == ["north", "south", None, "north"]
        assert bed.rows("select `_wstart`, site, n from d.o2 order by 1, 2") == [
            (0, "north", 1), (0, "south", 1), (10, "north", 1)]
        assert bed.rows("select name, state, used_by from information_schema.ins_connections") == [
            ("pg", "OK", "stream s, stream t")]
        with pytest.raises(InUseError, match="stream s, stream t"):
            bed.execute("drop connection pg")
        bed.execute("drop stream s")
        bed.execute("drop stream t")
        bed.execute("drop connection pg")


def test_a_restart_needs_no_server(postgres: Postgres, fleet: Any, tmp_path: Path) -> None:
    """What columns there are is known from the creation on: a stream can be planned while the server is away, or after
    the table has got more columns."""
    with Bed(postgres, tmp_path / "p") as bed:
        bed.execute(f"create stream s into d.o as {JOINED} partition by m.tbname")
        bed.insert((1, "a"))
        fleet.execute("ALTER TABLE fleet.devices ADD COLUMN more int")
        fleet.execute("ALTER TABLE fleet.devices ALTER COLUMN site TYPE varchar(20)")
        bed.execute("alter connection pg set (port='1')")
        bed.execute("stop stream s")
        bed.execute("start stream s")
        bed.execute(f"alter connection pg set (port='{postgres.port}')")
        bed.insert((2, "b"))
        assert bed.rows("select ts, site from d.o") == [(1, "north"), (2, "south")]


def test_the_readme_leads_from_a_broker_into_postgres(postgres: Postgres, tmp_path: Path) -> None:
    """The statements of the README work; its messages are rows here, and its server is the test's."""
    [text] = shown_in(ROOT / "README.md", "sql")
    (tmp_path / "secret").write_text(postgres.password)
    text = text.replace("host='127.0.0.1', database='plant', username='pen', password='file:/run/secrets/store'", (
        f"host='127.0.0.1', port='{postgres.port}', sslmode='disable', database='{postgres.database}', "
        f"username='{postgres.username}', password='file:{tmp_path / 'secret'}'"))
    with postgres.connect() as session, TestBed() as bed:
        session.execute("DROP TABLE IF EXISTS devices, load_of_sites")
        session.execute("CREATE TABLE devices (id int, site text)")
        session.execute("INSERT INTO devices VALUES (7, 'north'), (8, 'south')")
        bed.all("create database plant", "use plant")
        for piece in split_all(text):
            assert isinstance(piece, SqlText)
            if isinstance(parse_one(piece.text), CreateIngest):
                planned = [row[0] for row in bed.rows(f"explain {piece.text}")]
                assert "Ingest from kafka connection hall (meters)" in planned[0]
            else:
                bed.execute(piece.text)
        for device, amps in ((7, 1.0), (8, 4.0), (7, 3.0), (9, 5.0)):
            bed.execute(f"insert into `{device}` using meters tags ({device}) values ({T0 + int(amps)}, {amps})")
        for device in (7, 8, 9):
            bed.execute(f"insert into `{device}` values ({T0 + 120_000}, 0)")
        bed.run()
        assert session.execute("SELECT site, amps FROM load_of_sites ORDER BY 1").fetchall() == [
            ("north", 2.0), ("south", 4.0)]


def test_the_page_on_joins_looks_up(postgres: Postgres, tmp_path: Path) -> None:
    """The stream and the query of docs/joins.md work, over a table of PostgreSQL's."""
    [text] = [example.block.text for example in examples((ROOT / "docs" / "joins.md").read_text("utf-8"))
              if example.option == "run-by"]
    (tmp_path / "secret").write_text(postgres.password)
    with postgres.connect() as session, TestBed() as bed:
        session.execute("DROP TABLE IF EXISTS devices")
        session.execute("CREATE TABLE devices (id int, site text)")
        session.execute("INSERT INTO devices VALUES (7, 'north')")
        bed.all("create database plant vgroups 1", "use plant",
                "create stable motors (ts timestamp, amps double) tags (line int)",
                f"create connection fleet type postgres with (host='127.0.0.1', port='{postgres.port}', "
                f"sslmode='disable', database='{postgres.database}', username='{postgres.username}', "
                f"password='file:{tmp_path / 'secret'}')")
        stream, query = [piece.text for piece in split_all(text) if isinstance(piece, SqlText)]
        bed.execute(stream)
        bed.execute(f"insert into m7 using motors tags (7) values ({T0}, 2.5) ({T0 + 120_000}, 0)")
        bed.run()
        assert bed.rows("select site, amps from amps_of_sites") == [("north", 2.5)]
        assert bed.rows(query) == [(7, "north")]


@pytest.mark.parametrize(("statement", "error", "words"), [
    ("select * from connection pg (table 'nope')", PenstockError, "table nope does not exist"),
    ("select * from connection px (table 'nope')", NotFoundError, "connection px does not exist"),
    ("select * from connection web (table 'nope')", NotSupportedError, "has no tables"),
    ("select nope from connection pg (table 'fleet.devices')", NotFoundError, "column nope does not exist"),
])
def test_what_is_not_there_is_said(
    postgres: Postgres, fleet: Any, tmp_path: Path, statement: str, error: type[Exception], words: str
) -> None:
    """Unknown connections, tables and columns are named, and so are connections that have no tables."""
    with Bed(postgres, tmp_path / "p") as bed:
        bed.execute("create connection web type webhook with (url='http://127.0.0.1:1/')")
        with pytest.raises(error, match=words):
            bed.execute(statement)


def test_a_server_that_is_away_is_said(tmp_path: Path) -> None:
    """A query fails at once, and says why."""
    with TestBed() as bed:
        bed.execute("create connection pg type postgres with (host='127.0.0.1', port='1', database='d', username='u', "
                    "timeout='1s')")
        with pytest.raises(ConnectionFailedError, match="connection pg: unreachable"):
            bed.execute("select * from connection pg (table 't')")


@pytest.mark.spark
def test_what_goes_wrong_there_is_named_and_heals(tmp_path: Path) -> None:
    """While the server is away, or its table, rows wait and nothing is lost; other streams go on; no attempt is given
    up."""
    server = Postgres()
    try:
        server.start()
        (tmp_path / "secret").write_text(server.password)
        with server.connect() as session:
            session.execute("CREATE TABLE devices (id int, site text)")
            session.execute("INSERT INTO devices VALUES (0, 'north'), (1, 'south')")
        connection = penstock.connect(str(tmp_path / "data"), {
            "heartbeatInterval": "100ms", "timezone": "UTC", "idleTimeout": "100ms", "sinkCallsPerSecond": 1000})
        try:
            _disturb(connection.cursor(), server, tmp_path / "secret")
        finally:
            connection.close()
    finally:
        server.remove()


def _disturb(cursor: Any, server: Postgres, secret: Path) -> None:
    def rows(text: str) -> list[tuple[Any, ...]]:
        cursor.execute(text)
        return list(cursor.fetchall()) if cursor.description else []

    def until(condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, 240, what)  # attempts come after growing pauses

    def written(table: str, count: int) -> None:
        until(lambda: rows(f"SELECT count(*) FROM d.{table}") == [(count,)], f"{table} has no {count} rows")

    for statement in (
        "CREATE DATABASE d VGROUPS 2", "CREATE STABLE d.m (ts timestamp, dev int) TAGS (g int)",
        *(f"CREATE TABLE d.c{n} USING d.m TAGS ({n})" for n in range(4)),
        f"CREATE CONNECTION pg TYPE postgres WITH (host='127.0.0.1', port='{server.port}', sslmode='disable', "
        f"database='{server.database}', username='{server.username}', password='file:{secret}', timeout='1s')",
        "CREATE STREAM s LOOKUP_FRESHNESS 100a INTO d.o AS SELECT m.ts, p.site FROM d.m m LEFT JOIN "
        "CONNECTION pg (TABLE 'devices') p ON m.dev = p.id PARTITION BY m.tbname",
        "CREATE STREAM n INTO d.n AS SELECT ts, dev FROM d.m PARTITION BY tbname",
    ):
        rows(statement)
    inserted = 0

    def insert() -> None:
        nonlocal inserted
        inserted += 1
        for n in range(4):
            rows(f"INSERT INTO d.c{n} VALUES ({T0 + inserted}, {n % 2})")

    def strand(words: str) -> None:
        """Inserts rows until some wait, and it is told why; as long as the copy is young enough, it serves."""
        def wait_for_it() -> bool:
            if rows("SELECT count(*) FROM d.o") == [(4 * inserted,)]:
                insert()
            return any(words in str(row[0]) for row in rows(
                "SELECT reason FROM information_schema.ins_stream_tasks "
                "WHERE stream_name = 's' AND state = 'RETRYING'"))

        until(wait_for_it, f"no task said {words}")
        until(lambda: any(row[0] == "FAILED" and words in row[1] for row in rows(
            "SELECT state, reason FROM information_schema.ins_connections")), "the connection is fine")
        written("n", 4 * inserted)

    insert()
    written("o", 4)
    until(lambda: rows("SELECT state FROM information_schema.ins_connections") == [("OK",)], "not OK")
    server.stop(signal.SIGINT)
    strand("unreachable")
    server.start()
    written("o", 4 * inserted)
    with server.connect() as session:
        session.execute("ALTER TABLE devices RENAME TO elsewhere")
        strand("unknown database or table")
        session.execute("ALTER TABLE elsewhere RENAME TO devices")
    written("o", 4 * inserted)
    secret.write_text("wrong")
    rows("ALTER CONNECTION pg SET (timeout='2s')")
    strand("login refused")
    secret.write_text(server.password)
    rows("ALTER CONNECTION pg SET (timeout='1s')")
    written("o", 4 * inserted)
    assert rows("SELECT site, count(*) FROM d.o GROUP BY site ORDER BY 1") == [
        ("north", 2 * inserted), ("south", 2 * inserted)]
    assert rows("SELECT state, attempt FROM information_schema.ins_streams WHERE stream_name = 's'") == [("RUNNING", 1)]
    until(lambda: rows("SELECT state FROM information_schema.ins_connections") == [("OK",)], "not OK again")
