"""`penstock.connect(host=...)`: the same interface, answers and errors as with an engine in this process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kits.basics.certificates import NO_OPENSSL, OPENSSL, make_certificate
from kits.engines.served_here import ServedHere
from rich.console import Console

import penstock
from penstock.common import errors
from penstock.common.clock import SystemClock
from penstock.mnode.engine import Engine
from penstock.shell.api import dbapi
from penstock.shell.terminal.top import ConnectedEngine, TopState, render

NOW_US = 1_700_000_000_000_000
CREATE = (
    "CREATE DATABASE d VGROUPS 2 PRECISION 'us'",
    "CREATE TABLE d.all_types (ts TIMESTAMP, a BOOL, b TINYINT, c SMALLINT UNSIGNED, e BIGINT UNSIGNED, f FLOAT, "
    "g DOUBLE, h VARCHAR(10), i NCHAR(10), j VARBINARY(10), k DECIMAL(20,3))",
    "CREATE STABLE d.s (ts TIMESTAMP, v INT) TAGS (place VARCHAR(8))",
    "INSERT INTO d.all_types VALUES ('2024-05-01 10:00:00.000001', true, -1, 2, 3, 1.5, 2.5, 'é', '漢', '\\x01ff', "
    "12.345)",
    "INSERT INTO d.all_types (ts) VALUES ('2024-05-01 10:00:01')",
)
QUERIES = (
    "SELECT * FROM d.all_types ORDER BY ts", "SELECT count(*), max(g) FROM d.all_types", "SHOW DATABASES",
    "DESCRIBE d.all_types", "SELECT NULL AS nothing, 1 AS one", "EXPLAIN SELECT v FROM d.s",
    "SELECT ts FROM d.all_types UNION ALL SELECT ts FROM d.s",
)


#: A client that reaches nobody, and the modules that it has imported by then which only engines need.
CLIENT = """
import sys, penstock
from penstock.shell.main import main
code = main(["--host", "127.0.0.1", "--port", "1", "-c", "SELECT 1"])
print(code, [name for name in ("penstock.mnode.engine", "duckdb", "pandas", "prompt_toolkit") if name in sys.modules])
"""


def test_a_client_imports_no_engine() -> None:
    """Importing one takes a second of the processor, which who only asks a server needn't wait for."""
    answer = subprocess.run([sys.executable, "-c", CLIENT], capture_output=True, text=True, check=True)
    assert answer.stdout == "1 []\n", answer.stderr


@pytest.fixture
def here(tmp_path: Path) -> Iterator[ServedHere]:
    with ServedHere(tmp_path / "data", {"timezone": "Europe/Berlin"}) as server:
        yield server


@pytest.fixture
def pair(here: ServedHere) -> Iterator[tuple[Any, Any]]:
    """A connection to the engine itself, and one to it through the server."""
    with here.own() as own, here.connect(timezone="Europe/Berlin") as remote:
        yield own, remote


def test_answers_are_the_same(pair: tuple[Any, Any]) -> None:
    """Rows, types, Arrow tables and counts don't tell a server from an engine in this process."""
    own, remote = pair
    for statement in CREATE:
        remote.execute(statement)
    for query in QUERIES:
        local, answer = own.execute(query), remote.execute(query)
        assert answer.description == local.description, query
        assert answer.fetch_arrow().equals(local.fetch_arrow()), query
        assert answer.rowcount == local.rowcount
        assert answer.fetchall() == local.fetchall()


def test_statements_of_a_session(pair: tuple[Any, Any]) -> None:
    """USE is remembered and shown, inserted Arrow data is counted, parameters are bound, and rows are changed."""
    own, remote = pair
    for statement in CREATE:
        remote.execute(statement)
    assert remote.session.database is None
    remote.execute("USE d")
    assert remote.session.database == "d"
    assert own.session.database is None
    rows = pa.table({"tbname": ["x", "y"], "place": ["a", "b"], "v": [1, 2],
                     "ts": pa.array([NOW_US, NOW_US + 1], pa.timestamp("us"))})
    assert remote.cursor().insert_arrow("s", rows).rowcount == 2
    assert remote.cursor().insert_arrow("d.`s`", rows.slice(0, 1)).rowcount == 1
    some = [(f"2024-05-01 00:00:0{n}", n) for n in range(5)]
    cursor = remote.cursor().executemany("INSERT INTO x VALUES (?, ?)", some)
    assert cursor.rowcount == 5
    assert remote.execute("SELECT sum(v) FROM s WHERE tbname = ?", ("x",)).fetchall() == [(11,)]
    remote.execute("DELETE FROM x WHERE ts >= '2024-05-01 00:00:03'")
    assert remote.execute("SELECT count(*) FROM x").fetchall() == [(4,)]
    remote.execute("DROP DATABASE d")
    assert remote.session.database is None


def test_time_zones(pair: tuple[Any, Any]) -> None:
    """The zone of a connection holds for what it writes and reads; an unknown one is refused and changes nothing."""
    _, remote = pair
    for connection in pair:
        connection.set_time_zone("Asia/Tokyo")
        with pytest.raises(dbapi.DataError, match="unknown time zone Nowhere"):
            connection.set_time_zone("Nowhere")
    remote.execute("CREATE DATABASE d")
    remote.execute("CREATE TABLE d.t (ts TIMESTAMP, v INT)")
    remote.execute("INSERT INTO d.t VALUES ('2024-05-01 09:00:00', 1)")
    remote.set_time_zone("UTC")
    times = [connection.execute("SELECT ts FROM d.t").fetchone()[0] for connection in pair]
    assert times == [datetime(2024, 5, 1, 9), datetime(2024, 5, 1)]


def test_errors_are_the_same(pair: tuple[Any, Any]) -> None:
    """An error comes in its own class, with its code, hint and position."""
    own, remote = pair
    for statement in CREATE:
        remote.execute(statement)
    for statement in ("SELEC 1", "SELECT *\nFROM d.nothing", "SELECT nothing FROM d.s", "CREATE DATABASE d",
                      "INSERT INTO d.all_types (ts, b) VALUES (1700000000000000, 'x')",
                      "CREATE USER u PASS 'short' ROLE admin"):
        raised = []
        for connection in (own, remote):
            with pytest.raises(errors.PenstockError) as caught:
                connection.execute(statement)
            raised.append(caught.value)
        assert isinstance(raised[1], dbapi.Error)
        assert [type(each) for each in raised] == [type(raised[0])] * 2
        assert str(raised[1]) == str(raised[0])
        assert (raised[1].code, raised[1].hint, raised[1].position) == (
            raised[0].code, raised[0].hint, raised[0].position)


def test_rows_that_do_not_fit_are_named(pair: tuple[Any, Any]) -> None:
    """The row that an insert fails with is counted over all rows, however they travel."""
    _, remote = pair
    for statement in CREATE:
        remote.execute(statement)
    times = pa.array(range(NOW_US, NOW_US + 200), pa.timestamp("us"))
    batches = [pa.record_batch({"ts": times.slice(first, 100), "h": [text] * 100})
               for first, text in ((0, "short"), (100, "much too long for it"))]
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    with pytest.raises(errors.InvalidValueError, match="row 101, column h"):
        remote.cursor().insert_arrow("d.all_types", reader)


def test_what_a_server_does_not_offer(pair: tuple[Any, Any]) -> None:
    """What works only next to the engine is refused with a reason."""
    _, remote = pair
    remote.execute("CREATE DATABASE d")
    with pytest.raises(errors.NotSupportedError, match="POST /write"):
        remote.ingest_lines("m v=1 1", database="d")
    with pytest.raises(errors.NotSupportedError, match="embedded engine"):
        remote.time_window("d")


def test_top_looks_at_a_server(pair: tuple[Any, Any]) -> None:
    """`.top` shows the streams of a server."""
    own, remote = pair
    remote.execute("CREATE DATABASE d VGROUPS 1")
    remote.execute("CREATE TABLE d.t (ts TIMESTAMP, v INT)")
    remote.execute("CREATE STREAM s INTO d.r AS SELECT _wstart AS ts, sum(v) AS total FROM d.t INTERVAL(1m)")
    looks = [ConnectedEngine(connection, SystemClock()).look() for connection in (own, remote)]
    assert [[stream["stream_name"] for stream in look["streams"]] for look in looks] == [["s"], ["s"]]
    for look in looks:
        shown = StringIO()
        Console(file=shown, width=160).print(render(TopState(look, opened="s")))
        assert all(f"{level} v" in shown.getvalue() for level in ("source", "agg", "sink"))


@pytest.mark.skipif(OPENSSL is None, reason=NO_OPENSSL)
def test_tls(tmp_path: Path) -> None:
    """With a certificate the server speaks TLS alone, to clients that trust it."""
    certificate, key = make_certificate(tmp_path)
    settings = {"tlsCertificate": str(certificate), "tlsKey": str(key)}
    with ServedHere(tmp_path / "data", settings) as here:
        with penstock.connect(host="localhost", port=here.port, tls_roots=str(certificate)) as remote:
            assert remote.execute("SELECT 1").fetchall() == [(1,)]
        with pytest.raises(errors.UnavailableError):
            penstock.connect(host="localhost", port=here.port)
        with pytest.raises(errors.NotFoundError, match=r"nowhere\.pem"):
            penstock.connect(host="localhost", port=here.port, tls_roots=str(tmp_path / "nowhere.pem"))


def test_nobody_answers() -> None:
    """Without a server the error says so at once."""
    with pytest.raises(errors.UnavailableError, match=r"127\.0\.0\.1:1 doesn't answer"):
        penstock.connect(host="127.0.0.1", port=1)


def test_rows_of_a_standby_tell_how_old_they_are(here: ServedHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cursor knows it from behind the rows; it is None of an active node, or without a cluster."""
    with here.connect() as remote, remote.cursor() as cursor:
        assert cursor.execute("SELECT 1").lag_seconds is None
        monkeypatch.setattr(Engine, "lag_s", 0.25)
        assert cursor.execute("SELECT 1").lag_seconds == 0.25
