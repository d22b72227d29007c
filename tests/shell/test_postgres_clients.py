"""PostgreSQL's own clients against a server: psql, psycopg, SQLAlchemy, pandas; and those that mean no good."""

from __future__ import annotations

import shutil
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pandas as pd
import psycopg
import pytest
import sqlalchemy
from kits.basics.certificates import NO_OPENSSL, OPENSSL, make_certificate
from kits.basics.waiting import wait_until
from kits.engines.postgres_here import PostgresHere, postgres_here
from kits.engines.serve_kit import CREATE_SLOW_FUNCTION, add_slow_function
from psycopg.generators import execute

from penstock.mnode.engine import Engine

needs_psql = pytest.mark.skipif(shutil.which("psql") is None, reason="psql isn't installed")
SECRET = "secret 12"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresHere]:
    with postgres_here(tmp_path_factory.mktemp("postgres") / "data") as here:
        here.execute("CREATE DATABASE power VGROUPS 1")
        here.execute("CREATE STABLE power.meters (ts TIMESTAMP, v DOUBLE, n INT) TAGS (place VARCHAR(20))")
        here.execute("CREATE TABLE power.t (ts TIMESTAMP, v INT, s VARCHAR(20), b VARBINARY(10), ok BOOL, f FLOAT, "
                     "d DECIMAL(10, 2), u BIGINT UNSIGNED)")
        here.execute("INSERT INTO power.a USING power.meters TAGS ('north') VALUES (1700000000000, 1.5, 1) "
                     "power.b USING power.meters TAGS ('south') VALUES (1700000000000, 2.5, 2)")
        here.execute("CREATE VIEW power.high AS SELECT ts, v FROM meters WHERE v > 2")
        yield here


@needs_psql
def test_psql(server: PostgresHere) -> None:
    """Answers, errors with their place and hint, notices, settings, and COPY from and to psql."""
    server.execute("CREATE TABLE power.p (ts TIMESTAMP, v INT, s VARCHAR(20))")
    found = server.psql(r"""
        USE power;
        INSERT INTO p VALUES (1700000000000, 1, 'a\b'); SELECT * FROM p;
        \copy p (ts, v, s) from stdin
1700000000001	2	x\ty
1700000000002	\N	\N
\.
        COPY p TO STDOUT (FORMAT csv, HEADER);
        SET TIME ZONE 'Asia/Kolkata'; SHOW timezone; SELECT ts FROM p LIMIT 1;
        BEGIN; INSERT INTO p VALUES (1700000000003, 4, ''); ROLLBACK;
        SELECT "v" FROM p WHERE ts = 1700000000003; SELEC 1; SELECT nope FROM p;
        """, "-t")
    assert found.stdout.splitlines() == [
        r"2023-11-14 22:13:20.000+00|1|a\b",
        "ts,v,s", r"2023-11-14 22:13:20.000+00,1,a\b", "2023-11-14 22:13:20.001+00,2,x\ty",
        "2023-11-14 22:13:20.002+00,,", "Asia/Kolkata", "2023-11-15 03:43:20.000+05:30", "4"]
    assert "WARNING:  there are no transactions: what was written stays" in found.stderr
    assert "a statement is expected\nLINE 1: SELEC 1;" in found.stderr
    assert "HINT:  did you mean SELECT?" in found.stderr
    assert "column nope does not exist in p" in found.stderr


def test_psycopg_values(server: PostgresHere) -> None:
    """Parameters and results come back as they were, as text and in binary."""
    start = datetime(2024, 1, 1, tzinfo=UTC)
    rows = [(start + timedelta(hours=place), place, f"it's \\ {place}", b"\xff\0", place % 2 == 0, place / 4)
            for place in range(5)]
    with server.connect(dbname="power") as con:
        for form in ("%s", "%b"):
            con.execute("DELETE FROM t WHERE ts > 0")
            con.cursor().executemany(f"INSERT INTO t (ts, v, s, b, ok, f) VALUES ({', '.join([form] * 6)})", rows)
            for binary in (False, True):
                with con.cursor(binary=binary) as cursor:
                    cursor.execute(f"SELECT ts, v, s, b, ok, f FROM t WHERE v >= {form} ORDER BY ts", (2,))
                    assert cursor.fetchall() == rows[2:]
        con.execute("INSERT INTO t (ts, d, u) VALUES (%s, %s, %s)", (start - timedelta(hours=1), "1.25", 2**64 - 1))
        [(d, u, s)] = con.execute("SELECT d, u, s FROM t WHERE u > 5").fetchall()
        assert (str(d), int(u), s) == ("1.25", 2**64 - 1, None)
        assert con.execute("").description is None
        assert con.execute("SHOW DATABASES").fetchall()[-1] == ("power",)


def test_casts_say_what_parameters_are(server: PostgresHere) -> None:
    """Clients that ask are told, so that they can send values in binary."""
    with server.connect(dbname="power") as con:
        raw = con.pgconn
        raw.send_prepare(b"s", b"SELECT $1::timestamptz AS a, $2::int8 AS b, $3 AS c, $4 :: Double  Precision AS d, "
                               b"'$9::int' AS e, $1 AS f", [0, 0, 23])
        con.wait(execute(raw))
        raw.send_describe_prepared(b"s")
        [told] = con.wait(execute(raw))
        assert [told.param_type(place) for place in range(told.nparams)] == [1184, 20, 23, 701]
        raw.send_query_prepared(b"s", [struct.pack("!q", 763_344_005_250_000), struct.pack("!q", -5),
                                       struct.pack("!i", 7), b"2.5"], [1, 1, 1, 0])
        [answer] = con.wait(execute(raw))
        assert [answer.get_value(0, place) for place in range(5)] == [
            b"2024-03-10 00:00:05.250+00", b"-5", b"7", b"2.5", b"$9::int"]
        assert con.execute("SELECT count(*) FROM t WHERE ts > %s::timestamptz AND s = %s::text",
                           ("2100-01-01", "x")).fetchall() == [(0,)]


@pytest.mark.parametrize("binary", [False, True])
def test_psycopg_values_of_duckdbs_types(server: PostgresHere, binary: bool) -> None:
    """Those that PostgreSQL has, too, and lists of plain ones come as Python's; the others as text."""
    with server.connect(dbname="power") as con, con.cursor(binary=binary) as cursor:
        cursor.execute("SELECT date '2024-02-29', time '10:00:01.5', interval '1 day 02:00:00', cast(7 AS hugeint), "
                       "cast('550e8400-e29b-41d4-a716-446655440000' AS uuid), [1, NULL], {'a': 1}, NULL::date, "
                       "'x'::enum('x')")
        assert cursor.fetchall() == [
            (date(2024, 2, 29), time(10, 0, 1, 500_000), timedelta(days=1, hours=2), Decimal(7),
             UUID("550e8400-e29b-41d4-a716-446655440000"), [1, None], "{'a': 1}", None, "x")]
        types = [column.type_code for column in cursor.description or ()]
        assert types == [1082, 1083, 1186, 1700, 2950, 1007, 25, 1082, 25]
        with pytest.raises(psycopg.DataError):
            cursor.execute("SELECT 'infinity'::date").fetchall()


def test_psycopg_copy_and_pipeline(server: PostgresHere) -> None:
    """COPY both ways, statements sent without waiting, rows taken some at a time."""
    server.execute("CREATE TABLE power.c (ts TIMESTAMP, v INT, s VARCHAR(20))")
    rows = [(1_700_000_000_000 + place, place, None if place % 3 == 0 else f"a,\"{place}\\") for place in range(2000)]
    with server.connect(dbname="power") as con:
        with con.cursor() as cursor, cursor.copy("COPY c (ts, v, s) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        assert con.execute("SELECT count(*) FROM c").fetchone() == (2000,)
        for form in ("", " (FORMAT csv)"):
            with con.cursor() as cursor, cursor.copy(f"COPY (SELECT v, s FROM c ORDER BY ts) TO STDOUT{form}") as copy:
                lines = b"".join(copy).decode().splitlines()
            assert len(lines) == 2000
        assert lines[1] == '1,"a,""1\\"'
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="COPY"), con.cursor() as cursor, \
                cursor.copy("COPY c (ts, v, s) FROM STDIN") as copy:
            copy.write("1700000000000\tnot a number\tx\n")
        with pytest.raises(ZeroDivisionError), con.cursor() as cursor, cursor.copy("COPY c FROM STDIN") as copy:
            copy.write(str(1 // 0))
        with con.pipeline():
            first, second = con.execute("SELECT count(*) FROM c"), con.execute("SELECT v FROM c LIMIT %s", (3,))
            assert (first.fetchone(), second.fetchall()) == ((2000,), [(0,), (1,), (2,)])
        assert len(list(con.cursor().stream("SELECT v FROM c", size=100))) == 2000


@pytest.mark.parametrize(("statement", "state"), [
    ("SELEC 1", "42601"), ("SELECT nope FROM t", "42703"), ("SELECT 1 FROM nope", "42P01"), ("USE nope", "3D000"),
    ("CREATE TABLE t (ts TIMESTAMP, v INT)", "42P07"), ("INSERT INTO t (ts, v) VALUES (1, 'x')", "22023"),
    ("SET timezone TO 'Mars'", "22023"), ("COPY t TO STDOUT BINARY", "0A000"), ("DROP STREAM nope", "42704")])
def test_errors_have_sqlstates(server: PostgresHere, statement: str, state: str) -> None:
    """The class of an error that programs go by; the connection goes on."""
    with server.connect(dbname="power") as con:
        with pytest.raises(psycopg.Error) as caught:
            con.execute(statement)
        assert caught.value.sqlstate == state
        assert con.execute("SELECT 1").fetchone() == (1,)


@needs_psql
def test_psql_describes(server: PostgresHere) -> None:
    """What psql shows by its backslash commands comes from pg_catalog."""
    tables = server.psql(r"\dt", "-d", "power", "-t").stdout.splitlines()
    assert {"power|meters|table|root", "power|t|table|root"} <= set(tables)
    assert not any("|a|" in line for line in tables)
    assert server.psql(r"\dv", "-d", "power", "-t").stdout.splitlines() == ["power|high|view|root"]
    assert server.psql(r"\d meters", "-d", "power", "-t").stdout.splitlines() == [
        "ts|timestamp with time zone||not null|", "v|double precision|||", "n|integer|||",
        "place|character varying(20)|||"]
    assert "d|numeric(10,2)||||plain|||" in server.psql(r"\d+ power.t", "-t").stdout
    assert '"t_pkey" PRIMARY KEY, btree (ts)' in server.psql(r"\d power.t").stdout
    server.execute("CREATE TABLE power.`K 1` (ts TIMESTAMP, k INT PRIMARY KEY, v INT) COMMENT 'of two'")
    assert '"K 1_pkey" PRIMARY KEY, btree (ts, k)' in server.psql(r'\d power."K 1"').stdout
    assert "|of two" in server.psql(r"\dt+ power.*", "-t").stdout
    assert "power|root" in server.psql(r"\dn", "-t").stdout
    assert "power|root|UTF8|C|C||libc|" in server.psql(r"\l", "-t").stdout
    assert "power|root|UTF8|C|C||libc|||pg_default|" in server.psql(r"\l+", "-t").stdout
    assert server.psql(r"\d nope").stdout == ""


def test_sqlalchemy_inspects_and_reads(server: PostgresHere) -> None:
    """SQLAlchemy's dialect for PostgreSQL connects and reflects; pandas reads a table and a query through it."""
    engine = sqlalchemy.create_engine(f"postgresql+psycopg://who@127.0.0.1:{server.server.port}/power")
    try:
        inspector = sqlalchemy.inspect(engine)
        assert {"meters", "t"} <= set(inspector.get_table_names())
        assert "power" in inspector.get_schema_names()
        assert (inspector.get_view_names(), inspector.has_table("high")) == (["high"], True)
        assert [column["nullable"] for column in inspector.get_columns("high")] == [True, True]
        assert pd.read_sql_table("high", engine)["v"].to_list() == [2.5]
        assert (inspector.has_table("t"), inspector.has_table("nope")) == (True, False)
        for schema in (None, "power"):
            found = {column["name"]: str(column["type"]) for column in inspector.get_columns("t", schema=schema)}
            assert (found["v"], found["s"], found["d"]) == ("INTEGER", "VARCHAR(20)", "NUMERIC(10, 2)")
        assert [inspector.get_indexes("t"), inspector.get_foreign_keys("t")] == [[], []]
        for frame in (pd.read_sql("SELECT ts, v FROM meters ORDER BY v", engine),
                      pd.read_sql_table("meters", engine).sort_values("v")):
            assert frame["v"].to_list() == [1.5, 2.5]
    finally:
        engine.dispose()


def test_catalog_tells_what_one_may_see(tmp_path: Path) -> None:
    """Tables that a user has no right on are in no table of the catalog; none of its queries reaches a file."""
    with postgres_here(tmp_path, {"trustLoopback": False}) as here:
        here.execute(f"CREATE USER root PASS '{SECRET}' ROLE admin")
        for name in ("d", "hidden"):
            here.execute(f"CREATE DATABASE {name} VGROUPS 1")
            here.execute(f"CREATE TABLE {name}.t_{name} (ts TIMESTAMP, v_{name} INT)")
            here.execute(f"CREATE VIEW {name}.w_{name} AS SELECT 1 AS x_{name}")
        here.execute(f"CREATE USER some PASS '{SECRET}' ROLE none")
        here.execute("GRANT READ ON d.t_d TO some")
        here.execute("GRANT READ ON d.w_d TO some")
        texts = ("SELECT relname FROM pg_class", "SELECT attname FROM pg_attribute", "SELECT nspname FROM pg_namespace",
                 "SELECT datname FROM pg_database", "SELECT table_name FROM information_schema.tables",
                 "SELECT column_name FROM information_schema.columns", "SELECT rolname FROM pg_roles",
                 "SELECT viewname FROM pg_views", "SELECT table_name FROM information_schema.views")
        with here.connect(user="some", password=SECRET, dbname="d") as con:
            seen = {value for text in texts for (value,) in con.execute(text)}
            assert {"d", "t_d", "v_d", "w_d", "x_d", "some"} <= seen
            assert not {"hidden", "t_hidden", "v_hidden", "w_hidden", "x_hidden", "root"} & seen
            for source in ("read_csv('/etc/passwd')", "'/etc/passwd'", "duckdb_settings()"):
                with pytest.raises(psycopg.Error):
                    con.execute(f"SELECT * FROM pg_class, {source} AS s")
            assert con.execute("SELECT pg_catalog.version()").fetchone() is not None
            assert con.execute("SELECT has_table_privilege('t_d', 'select'), has_table_privilege('t_d', 'insert'), "
                               "has_any_column_privilege('some', '\"d\".\"t_d\"', 'SELECT, INSERT'), "
                               "has_schema_privilege('d', 'usage'), has_schema_privilege('d', 'create'), "
                               "has_table_privilege('hidden.t_hidden', 'select')").fetchall() == [
                (True, False, True, True, False, None)]
            with here.connect(user="root", password=SECRET) as admin:
                assert {pid for (pid,) in con.execute("SELECT pid FROM pg_stat_activity")} == {con.info.backend_pid}
                assert con.execute(f"SELECT pg_terminate_backend({admin.info.backend_pid})").fetchall() == [(False,)]
                assert (con.info.backend_pid, "some") in admin.execute(
                    "SELECT pid, usename FROM pg_stat_activity").fetchall()


def test_materialized_views_are_told_as_such(tmp_path: Path) -> None:
    """With their queries, of windows and of any, and not among the tables; streams into tables are none."""
    with postgres_here(tmp_path) as here:
        for text in ("CREATE DATABASE d VGROUPS 1", "CREATE STABLE d.m (ts TIMESTAMP, v INT) TAGS (g INT)", "USE d",
                     "CREATE VIEW w AS SELECT 1 AS x", "CREATE STREAM s INTO o AS SELECT g, sum(v) FROM m GROUP BY g"):
            here.execute(text)
        kinds = "SELECT relname, relkind FROM pg_class WHERE relkind <> 'i' ORDER BY relname"
        views = ("SELECT schemaname, matviewname, hasindexes, ispopulated, definition FROM pg_matviews "
                 "ORDER BY matviewname")
        with here.connect(dbname="d") as con:
            assert con.execute(views).fetchall() == []
            here.execute("CREATE MATERIALIZED VIEW sums AS SELECT g, sum(v) s FROM m GROUP BY g")
            here.execute("CREATE MATERIALIZED VIEW tens AS SELECT _wstart, count(*) FROM m INTERVAL(10s)")
            assert con.execute(kinds).fetchall() == [
                ("m", "r"), ("o", "r"), ("sums", "m"), ("tens", "m"), ("w", "v")]
            assert con.execute(views).fetchall() == [
                ("d", "sums", True, True, "SELECT g, sum(v) s FROM m GROUP BY g"),
                ("d", "tens", False, True, "SELECT _wstart, count(*) FROM m INTERVAL(10s)")]
            assert con.execute("SELECT tablename FROM pg_tables ORDER BY 1").fetchall() == [("m",), ("o",)]
            here.execute("DROP MATERIALIZED VIEW sums")
            assert ("sums", "m") not in con.execute(kinds).fetchall()


def test_arrays(server: PostgresHere) -> None:
    """Lists of plain values are arrays, also where binary values are asked for; others are texts."""
    with server.connect(dbname="power") as con:
        con.execute("INSERT INTO t (ts, v) VALUES (1700000000009, 7)")
        for binary in (False, True):
            assert con.execute("SELECT conkey, ARRAY['a', NULL, 'b c'], ARRAY[1.5::real] FROM pg_constraint "
                               "WHERE conname = 't_pkey'", binary=binary).fetchall() == [
                ([1], ["a", None, "b c"], [1.5])]
            assert con.execute("SELECT 1, [v, NULL] AS a, ['a', 'null', '\"'] AS b, [v > 1, false] AS c, [0.5] AS d, "
                               "[[v]] AS e, list_filter([v], lambda x: x < 0) AS f FROM t WHERE ts = 1700000000009",
                               binary=binary).fetchall() == [
                (1, [7, None], ["a", "null", '"'], [True, False], [0.5], "[[7]]", [])]


@pytest.mark.parametrize("by_statement", [False, True])
def test_cancel(server: PostgresHere, tmp_path: Path, by_statement: bool) -> None:
    """A cancel request or pg_cancel_backend ends what runs, of that connection alone, and the connection goes on."""
    add_slow_function(tmp_path)
    with postgres_here(tmp_path, {"blockRowsMax": 1}) as here, here.connect() as con, here.connect() as other:
        here.execute("CREATE DATABASE d VGROUPS 1")
        here.execute("CREATE TABLE d.t (ts TIMESTAMP, v DOUBLE)")
        rows = ", ".join(f"({1_700_000_000_000 + place}, 1)" for place in range(100_000))
        here.execute(f"INSERT INTO d.t VALUES {rows}")
        here.execute(CREATE_SLOW_FUNCTION)
        other.execute("SELECT pg_backend_pid()")  # what the first query of the catalog has to make is there then
        cancel = (lambda: other.execute(f"SELECT pg_cancel_backend({con.info.backend_pid})")) if by_statement \
            else con.cancel_safe
        waits = threading.Thread(target=lambda: _when_it_runs(here, cancel))
        waits.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            con.execute("SELECT max(slow(v)) FROM d.t")
        waits.join()
        assert [each.execute("SELECT 1").fetchone() for each in (con, other)] == [(1,), (1,)]
        forged = socket.create_connection(("127.0.0.1", here.server.port))
        forged.sendall(struct.pack("!IIII", 16, 80_877_102, con.info.backend_pid, 1))
        assert forged.recv(1) == b""
        forged.close()


def test_cursors(tmp_path: Path) -> None:
    """psycopg's named cursors take some rows at a time, with parameters and in binary; held ones outlast COMMIT."""
    with postgres_here(tmp_path) as here, here.connect(autocommit=False) as con:
        here.execute("CREATE DATABASE d VGROUPS 1")
        here.execute("CREATE TABLE d.t (ts TIMESTAMP, v INT)")
        here.execute("INSERT INTO d.t VALUES " + ", ".join(f"({1_700_000_000_000 + n}, {n})" for n in range(10_000)))
        wanted = [(n,) for n in range(10, 10_000)]
        for binary in (False, True):
            with con.cursor("some rows", binary=binary) as cursor:
                cursor.execute("SELECT v FROM d.t WHERE v >= %s ORDER BY ts", (10,))
                assert [column.name for column in cursor.description or ()] == ["v"]
                assert cursor.fetchmany(5000) == wanted[:5000]
                assert cursor.fetchone() == wanted[5000]
                assert cursor.fetchall() == wanted[5001:]
                assert cursor.fetchall() == []
        with con.cursor("held", withhold=True) as cursor:
            cursor.execute("SELECT v FROM d.t ORDER BY ts")
            assert cursor.fetchmany(2) == [(0,), (1,)]
            con.commit()
            assert cursor.fetchmany(2) == [(2,), (3,)]
        con.commit()
        con.autocommit = True
        said = here.psql("BEGIN; DECLARE c NO SCROLL CURSOR FOR SELECT v FROM d.t ORDER BY ts;\n"
                         "FETCH 2 FROM c; MOVE FORWARD 3 IN c; FETCH c; FETCH NEXT c; FETCH 0 c;"
                         "FETCH FORWARD ALL FROM c; CLOSE c; FETCH c; COMMIT", "-t")
        lines = said.stdout.split()
        assert lines[:5] == ["0", "1", "5", "6", "7"]
        assert len(lines) == 9_997
        assert "there is no portal 'c'" in said.stderr
        for text, error in (
                ("DECLARE c CURSOR FOR SELECT 1", "would be closed at the end of the statement"),
                ("DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT 1", "go forward only"),
                ("DECLARE c CURSOR WITH HOLD FOR CREATE DATABASE x", "is for a query"),
                ("FETCH PRIOR FROM c", "can't be understood")):
            with pytest.raises(psycopg.Error, match=error):
                con.execute(text)
        with pytest.raises(psycopg.Error) as refused:
            con.execute(text := "DECLARE c CURSOR WITH HOLD\nFOR SELECT v,\nnothing FROM d.t")
        assert refused.value.diag.statement_position == str(1 + text.index("nothing"))
        shown = dict(con.execute("SHOW ALL").fetchall())
        assert (shown["TimeZone"], shown["jit"]) == ("UTC", "off")


def test_statement_timeout(tmp_path: Path) -> None:
    """It ends a query of its session, if that is sooner than the engine would; RESET takes it back."""
    add_slow_function(tmp_path)
    with postgres_here(tmp_path, {"blockRowsMax": 1, "queryTimeout": "1h"}) as here, here.connect() as con:
        here.execute("CREATE DATABASE d VGROUPS 1")
        here.execute("CREATE TABLE d.t (ts TIMESTAMP, v DOUBLE)")
        here.execute("INSERT INTO d.t VALUES " + ", ".join(f"({1_700_000_000_000 + n}, 1)" for n in range(100_000)))
        here.execute(CREATE_SLOW_FUNCTION)
        con.execute("SET statement_timeout = '50ms'")
        assert con.execute("SHOW statement_timeout").fetchone() == ("50ms",)

        def let_time_pass() -> None:
            while not any(each.computes for each, _ in here.engine.activity.running()):
                threading.Event().wait(0.01)
            here.clock.advance(1)

        passes = threading.Thread(target=let_time_pass)
        passes.start()
        with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="longer than 50ms"):
            con.execute("SELECT max(slow(v)) FROM d.t")
        passes.join()
        con.execute("RESET statement_timeout")
        assert con.execute("SHOW statement_timeout").fetchone() == ("0",)
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="not a duration"):
            con.execute("SET statement_timeout = 'soon'")


def _when_it_runs(here: PostgresHere, do: Callable[[], object]) -> None:
    wait_until(lambda: any(each.computes for each, _ in here.engine.activity.running()))
    do()


def test_logins(tmp_path: Path) -> None:
    """SCRAM lets in who has the password; whoever hasn't is told the same, whether there is such a user or not."""
    with postgres_here(tmp_path, {"trustLoopback": False}) as here:
        with pytest.raises(psycopg.OperationalError, match="there are no users yet"):
            here.connect(user="root", password=SECRET)
        here.execute(f"CREATE USER root PASS '{SECRET}' ROLE admin")
        here.execute("CREATE DATABASE d VGROUPS 1")
        here.execute(f"CREATE USER reader PASS '{SECRET}' ROLE read")
        with here.connect(user="reader", password=SECRET) as con:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                con.execute("CREATE DATABASE e")
            here.execute("ALTER USER reader PASS 'another 12'")
            with pytest.raises(psycopg.OperationalError, match="no longer valid"):
                con.execute("SELECT 1")
        for user, password in (("root", "wrong one"), ("nobody", SECRET)):
            with pytest.raises(psycopg.OperationalError, match="user or password is wrong"):
                here.connect(user=user, password=password)


@pytest.mark.skipif(OPENSSL is None, reason=NO_OPENSSL)
def test_tls(tmp_path: Path) -> None:
    """With a certificate nothing but TLS is spoken."""
    certificate, key = make_certificate(tmp_path)
    with postgres_here(tmp_path / "data", {"tlsCertificate": str(certificate), "tlsKey": str(key)}) as here:
        here.execute(f"CREATE USER root PASS '{SECRET}' ROLE admin")
        with pytest.raises(psycopg.OperationalError, match="requires TLS"):
            here.connect(user="root", password=SECRET, sslmode="disable")
        verified = {"user": "root", "password": SECRET, "sslmode": "verify-ca", "sslrootcert": str(certificate)}
        with here.connect(**verified) as con:
            assert con.execute("SELECT 1").fetchone() == (1,)


def test_many_beside_those_who_mean_no_good(tmp_path: Path) -> None:
    """Wrong logins, half-open connections and oversized messages change nothing for those who are at work."""
    with postgres_here(tmp_path, {"trustLoopback": False}) as here:
        here.execute(f"CREATE USER root PASS '{SECRET}' ROLE admin")
        here.execute("CREATE DATABASE d VGROUPS 1")
        here.execute("CREATE TABLE d.t (ts TIMESTAMP, v INT)")

        def work(number: int) -> int:
            with here.connect(user="root", password=SECRET, dbname="d") as con:
                for place in range(10):
                    con.execute("INSERT INTO t VALUES (%s, %s)", (1_700_000_000_000 + number * 100 + place, number))
                found = con.execute("SELECT count(*) FROM t WHERE v = %s", (number,)).fetchone()
                assert found is not None
                return int(found[0])

        strangers = []
        with ThreadPoolExecutor(8) as pool:
            working = [pool.submit(work, number) for number in range(12)]
            for data in (b"", b"\0", struct.pack("!I", 2**31), struct.pack("!II", 8, 80_877_103), b"GET / HTTP/1.1"):
                strangers += [socket.create_connection(("127.0.0.1", here.server.port)) for _ in range(4)]
                for each in strangers[-4:]:
                    each.sendall(data)
            with pytest.raises(psycopg.OperationalError):
                here.connect(user="nobody", password="wrong one")
            assert [each.result() for each in working] == [10] * 12
        for each in strangers:
            each.close()
        with here.connect(user="root", password=SECRET) as con:
            raw = socket.socket(fileno=con.pgconn.socket)
            raw.sendall(b"Q" + struct.pack("!I", 2**30))
            raw.detach()
            with pytest.raises(psycopg.OperationalError, match="at most"):
                con.execute("SELECT 1")


def test_rows_of_a_standby_come_with_a_notice(server: PostgresHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of a cluster that follows says how old they may be."""
    monkeypatch.setattr(Engine, "lag_s", 0.25)
    told = list[str]()
    with server.connect() as connection:
        connection.add_notice_handler(lambda notice: told.append(str(notice.message_primary)))
        assert connection.execute("SELECT count(*) FROM power.meters").fetchall() == [(2,)]
    assert told == ["this node of the cluster isn't active: rows are as of 0.2 s ago"]
