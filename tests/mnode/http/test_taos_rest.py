"""REST as TDengine's adapter speaks it: log-ins, parameters, documents, and errors with status 200."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from kits.basics.external_servers import free_port
from kits.engines.embedded import Embedded
from kits.engines.serve_kit import served
from kits.engines.taos_port import taos_port

PASSWORD = "correct:horse/staple 4711"
BASIC = {"Authorization": "Basic " + base64.b64encode(f"ada:{PASSWORD}".encode()).decode()}


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path_factory.mktemp("taos") / "data", {"logLevel": "debug"})
    embedded.all(
        f"CREATE USER ada PASS '{PASSWORD}' ROLE admin", "CREATE USER bob PASS 'another horse' ROLE read",
        "CREATE DATABASE d KEEP 36500",
        "CREATE TABLE d.t (ts TIMESTAMP, v INT, word VARCHAR(12), name NCHAR(5))",
        "INSERT INTO d.t VALUES ('2024-05-01 10:00:00.125', 1, 'one', 'ö')")
    yield embedded
    embedded.close()


@pytest.fixture(scope="module")
def port(db: Embedded) -> Iterator[int]:
    with taos_port(db.engine) as port:
        yield port


def ask(port: int, path: str, body: str | bytes = "", method: str = "POST", **headers: str) -> tuple[int, Any]:
    """Returns status and document."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body.encode() if isinstance(body, str) else body, headers)
        answer = connection.getresponse()
        content = answer.read()
        is_json = answer.headers.get("Content-Type") == "application/json"
        return answer.status, json.loads(content) if is_json else content
    finally:
        connection.close()


def rows(port: int, path: str, text: str = "SELECT * FROM d.t") -> Any:
    status, document = ask(port, path, text, **BASIC)
    assert (status, document["code"]) == (200, 0)
    return document["data"]


# --- who asks --------------------------------------------------------------------------------------------------------


def test_every_form_of_credentials_lets_in(db: Embedded, port: int) -> None:
    """Basic, the token of a login behind Taosd, Bearer and `?token=`, and user and password there; wrong ones don't."""
    status, document = ask(port, f"/rest/login/ada/{quote(PASSWORD, safe='')}", method="GET")
    assert (status, document["code"]) == (200, 0)
    token = document["desc"]
    for headers, query in (
        (BASIC, ""), ({"Authorization": f"Taosd {token}"}, ""), ({"Authorization": f"Bearer {token}"}, ""),
        ({}, f"?token={token}"), ({}, f"?token={quote(f'ada:{PASSWORD}')}"),
    ):
        assert ask(port, f"/rest/sql/d{query}", "SELECT user()", **headers)[1]["data"] == [["ada"]]
    for headers, query in (
        ({}, ""), ({"Authorization": "Basic " + base64.b64encode(b"ada:wrong").decode()}, ""), ({}, "?token=wrong"),
        ({"Authorization": "Taosd wrong"}, ""), ({"Authorization": "Other x"}, ""),
    ):
        status, document = ask(port, f"/rest/sql{query}", "SELECT 1", **headers)
        assert (status, document["code"]) == (401, 0x0357)
    assert ask(port, "/rest/login/ada/wrong", method="GET")[0] == 401


def test_no_password_is_logged(db: Embedded, port: int) -> None:
    """Though it stands in the path; nor is a path that there isn't."""
    ask(port, f"/rest/login/ada/{quote(PASSWORD, safe='')}", method="GET")
    ask(port, f"/rest/logins/ada/{quote(PASSWORD, safe='')}", method="GET")
    ask(port, f"/opentsdb/v1/put/json/d?u=ada&p={quote(PASSWORD)}", "[]")
    log = "".join(path.read_text() for path in db.engine.paths.root.glob("log/*"))
    assert "GET /rest/login/*/: 200" in log
    assert "4711" not in log


# --- documents -------------------------------------------------------------------------------------------------------


def test_instants_are_in_the_zone_that_is_asked_for(port: int) -> None:
    """`tz` shows them there, `conn_tz` reads them there, too; sqlt gives numbers."""
    assert rows(port, "/rest/sql")[0][0] == rows(port, "/rest/sqlutc/d", "SELECT * FROM t")[0][0] == (
        "2024-05-01T10:00:00.125Z")
    assert rows(port, "/rest/sqlt")[0][0] == 1714557600125
    assert rows(port, "/rest/sql?tz=Asia/Kolkata")[0][0] == "2024-05-01T15:30:00.125+05:30"
    read = "SELECT TIMESTAMP '2024-05-01 12:00:00' AS at"
    assert rows(port, "/rest/sql?conn_tz=Europe/Berlin", read) == [["2024-05-01T12:00:00.000+02:00"]]
    assert rows(port, "/rest/sql?tz=Europe/Berlin", read) == [["2024-05-01T14:00:00.000+02:00"]]


def test_rows_may_be_objects(port: int) -> None:
    """With `row_with_meta`, also the row that tells of a change."""
    assert rows(port, "/rest/sql?row_with_meta=true&req_id=17", "SELECT v, word FROM d.t") == [{"v": 1, "word": "one"}]
    assert rows(port, "/rest/sql?row_with_meta=true", "CREATE DATABASE IF NOT EXISTS d") == [{"affected_rows": 0}]


@pytest.mark.parametrize("query", ["tz=Nowhere/At_all", "conn_tz=../../etc/passwd", "row_with_meta=maybe", "req_id=x"])
def test_wrong_parameters_are_refused(port: int, query: str) -> None:
    """Before the statement is executed."""
    status, document = ask(port, f"/rest/sql?{query}", "DROP DATABASE d", **BASIC)
    assert (status, document["code"]) == (400, 0xFFFF)
    assert query.partition("=")[0] in document["desc"]


def test_columns_have_types_and_lengths(port: int) -> None:
    """Bytes, for NCHAR characters; TDengine's largest for texts without a length."""
    kinds = {"BOOL": 1, "TINYINT": 1, "SMALLINT UNSIGNED": 2, "INT": 4, "BIGINT UNSIGNED": 8, "FLOAT": 4, "DOUBLE": 8,
             "VARCHAR(9)": 9, "NCHAR(9)": 9, "VARBINARY(9)": 9, "TIMESTAMP": 8}
    columns = ", ".join(f"c{place} {kind}" for place, kind in enumerate(kinds))
    assert rows(port, "/rest/sql/d", f"CREATE TABLE kinds (ts TIMESTAMP, {columns})") == [[0]]
    meta = ask(port, "/rest/sql/d", "SELECT * FROM kinds", **BASIC)[1]["column_meta"]
    assert meta == [["ts", "TIMESTAMP", 8], *(
        [f"c{place}", kind.partition("(")[0], width] for place, (kind, width) in enumerate(kinds.items()))]
    meta = ask(port, "/rest/sql/d", "SHOW DATABASES", **BASIC)[1]["column_meta"]
    assert meta == [["name", "VARCHAR", 65517]]
    meta = ask(port, "/rest/sql/d", "INSERT INTO kinds (ts) VALUES (now)", **BASIC)[1]
    assert (meta["column_meta"], meta["data"], meta["rows"]) == ([["affected_rows", "INT", 4]], [[1]], 1)


def test_what_grafanas_plugin_asks(port: int) -> None:
    """It looks for a version 3, tests by SHOW DATABASES, and gives instants as RFC 3339 has them."""
    [[version]] = rows(port, "/rest/sql", "select server_version()")
    assert version.startswith("3.")
    assert ["d"] in rows(port, "/rest/sql", "show databases")
    assert rows(port, "/rest/sql", "select _wstart as ts, avg(v) from d.t where ts >= '2024-05-01T00:00:00Z' "
                "and ts < '2024-05-02T00:00:00.000000001Z' interval(60s)") == [["2024-05-01T10:00:00.000Z", 1.0]]
    assert ask(port, "/-/ping", method="GET")[0] == 200


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "code"), [
    ("SELECT * FROM d.missing", 0x2603), ("SELECT missing FROM d.t", 0x2602), ("SELEC", 0x2600),
    ("USE missing", 0x0388), ("CREATE DATABASE d", 0x0381), ("INSERT INTO d.t VALUES (1, 'x', 'y', 'z')", 0x2605),
    ("SHOW TOPICS", 0x0100), ("", 0x2600),
])
def test_errors_of_statements_come_with_status_200(port: int, text: str, code: int) -> None:
    """With TDengine's number, and the text without it, which clients put before it."""
    status, document = ask(port, "/rest/sql", text, **BASIC)
    assert (status, document["code"]) == (200, code)
    assert document["desc"]
    assert "[0x" not in document["desc"]


def test_what_a_role_forbids_is_an_error_of_the_statement(port: int) -> None:
    """Who may not is told so, and nothing happens."""
    status, document = ask(port, "/rest/sql?token=bob:another%20horse", "DROP DATABASE d")
    assert (status, document["code"]) == (200, 0x0303)
    assert rows(port, "/rest/sql", "SELECT count(*) FROM d.t") == [[1]]


def test_an_error_between_rows_ends_the_answer(tmp_path: Path) -> None:
    """The document breaks off, and its last line says why; no client can take it for whole."""
    embedded = Embedded(tmp_path / "data", {"queryTimeout": "1s"})
    embedded.all("CREATE DATABASE d KEEP 36500", "CREATE TABLE d.m (ts TIMESTAMP, v INT)",
                 "INSERT INTO d.m VALUES " + " ".join(f"({1_700_000_000_000 + n}, {n})" for n in range(5000)))
    with taos_port(embedded.engine) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/rest/sql", b"SELECT repeat('a', 60000) FROM d.m")
        answer = connection.getresponse()
        running = embedded.engine.activity.running()[0][0]
        assert answer.read(1000).startswith(b'{"code":0,"column_meta"')
        embedded.execute(f"KILL QUERY '{running.id:x}'")
        with pytest.raises(http.client.IncompleteRead) as short:
            answer.read()
        assert json.loads(short.value.partial.splitlines()[-1])["desc"]
        connection.close()
    embedded.close()


# --- the server ------------------------------------------------------------------------------------------------------


def test_a_server_listens_where_it_is_told(tmp_path: Path) -> None:
    """It says so when it starts; the port is listed with the others."""
    port = free_port()
    with served(tmp_path / "data", {"taosAdapterPort": port}) as server:
        assert ask(port, "/rest/sql", "SELECT 1")[1]["data"] == [[1]]
        assert ask(port, "/health", method="GET")[1]["status"] == "pass"
        assert f"TDengine's REST on 127.0.0.1:{port}" in server.greeting
