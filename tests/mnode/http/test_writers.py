"""Those who write rows over HTTP: the clients of InfluxDB 1, 2 and 3 and of OpenTSDB as their users have them."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from kits.basics.client_packages import ClientProcess, client_process, needs_clients
from kits.engines.embedded import Embedded
from kits.engines.taos_port import taos_port

PASSWORD = "correct horse"
LINES = ["cpu,host=a usage=0.5,cores=4i 1714557600", "cpu,host=b usage=0.75,cores=8i 1714557601"]
WRONG = ["cpu,host=c usage=1 1714557602", "cpu,host=c usage=\"text\" 1714557603"]


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path_factory.mktemp("writers") / "data")
    embedded.execute(f"CREATE USER ada PASS '{PASSWORD}' ROLE admin")
    yield embedded
    embedded.close()


@pytest.fixture(scope="module")
def port(db: Embedded) -> Iterator[int]:
    with taos_port(db.engine) as port:
        yield port


@pytest.fixture(scope="module")
def clients() -> Iterator[ClientProcess]:
    with client_process("writer_client") as running:
        yield running


@needs_clients
@pytest.mark.parametrize("name", ["influxdb", "influxdb-client", "influxdb3-python"])
def test_clients_of_influxdb_write(db: Embedded, port: int, clients: ClientProcess, name: str) -> None:
    """Rows are there; wrong lines, a wrong password and a missing database are told, and right lines written."""
    database = name.replace("-", "_")
    db.execute(f"CREATE DATABASE {database} KEEP 36500")
    assert clients.ask([name, port, database, "ada", PASSWORD, "s", LINES]) == ""
    assert db.run(f"SELECT host, usage, cores FROM {database}.cpu ORDER BY _ts") == [("a", 0.5, 4), ("b", 0.75, 8)]
    said = clients.ask([name, port, database, "ada", PASSWORD, "s", WRONG])
    assert "usage" in said
    assert "dropped=1" in said
    assert db.run(f"SELECT count(*) FROM {database}.cpu") == [(3,)]
    assert "user or password is wrong" in clients.ask([name, port, database, "ada", "wrong", "s", LINES])
    if name != "influxdb":  # which creates it
        assert "missing does not exist" in clients.ask([name, port, "missing", "ada", PASSWORD, "s", LINES])


@needs_clients
def test_a_client_of_opentsdb_writes(db: Embedded, port: int, clients: ClientProcess) -> None:
    """Points are rows of a super table for each metric; a wrong one is told, the other written."""
    db.execute("CREATE DATABASE tsdb KEEP 36500")
    points = [json.dumps({"metric": "sys.cpu", "timestamp": 1714557600 + number, "value": number / 2,
                          "tags": {"host": f"h{number}"}}) for number in range(3)]
    assert clients.ask(["opentsdb-client", port, "tsdb", "ada", PASSWORD, "s", points]) == ""
    assert db.run("SELECT _value, host FROM tsdb.sys_cpu ORDER BY _ts") == [(0.0, "h0"), (0.5, "h1"), (1.0, "h2")]
    said = clients.ask(["opentsdb-client", port, "tsdb", "ada", PASSWORD, "s", [
        points[0].replace("600", "700"), '{"metric": "sys.cpu", "timestamp": "x", "value": 1}']])
    assert '"success": 1, "failed": 1' in said
    assert "point 2: x is not a timestamp" in said
    assert db.run("SELECT count(*) FROM tsdb.sys_cpu") == [(4,)]


def ask(port: int, path: str, body: str, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, body.encode(), headers)
        answer = connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if content else None
    finally:
        connection.close()


BASIC = {"Authorization": "Basic " + base64.b64encode(f"ada:{PASSWORD}".encode()).decode()}


def test_lines_of_telnet_and_of_influxdb_with_a_name_behind_the_question_mark(db: Embedded, port: int) -> None:
    """`u` and `p` let in where there is no header; without them nobody is."""
    db.execute("CREATE DATABASE lines KEEP 36500")
    who = "u=ada&p=correct%20horse"
    lines = "put m.n 1714557600 7i host=a\n\nm.n 1714557601123 8i host=a"
    assert ask(port, f"/opentsdb/v1/put/telnet/lines?{who}", lines) == (204, None)
    assert ask(port, "/opentsdb/v1/put/telnet/lines", "m.n 1714557602 9i", **BASIC) == (204, None)
    assert db.run("SELECT _value FROM lines.m_n ORDER BY _ts") == [(7,), (8,), (9,)]
    for path in ("/write", "/influxdb/v1/write"):
        assert ask(port, f"{path}?db=lines&precision=s&{who}", LINES[0]) == (204, None)
        assert ask(port, f"{path}?db=lines&precision=s", LINES[0])[0] == 401
    for path in ("/opentsdb/v1/put/telnet/lines", "/opentsdb/v1/put/json/lines", "/api/v2/write?bucket=lines"):
        assert ask(port, path, "m 0 1")[0] == 401


def test_refused_points_are_counted(db: Embedded, port: int) -> None:
    """Whether they were no points or no rows; what is right is written."""
    db.execute("CREATE DATABASE points KEEP 36500")
    lines = "m 1714557600 1 host=a\nm 17 1 host=a\nm 1714557601 2i host=a\nm 1714557602 3 host=a"
    status, document = ask(port, "/opentsdb/v1/put/telnet/points", lines, **BASIC)
    assert (status, document["code"]) == (400, 0x2605)
    assert document["message"].startswith("partial write: line 2: 17 is not a timestamp dropped=2")
    assert ask(port, "/opentsdb/v1/put/telnet/points?summary", lines, **BASIC)[1]["failed"] == 2
    assert db.run("SELECT _value FROM points.m ORDER BY _ts") == [(1.0,), (3.0,)]
    assert ask(port, "/opentsdb/v1/put/json/", "[]", **BASIC)[0] == 400
    assert ask(port, "/opentsdb/v1/put/json/missing", '{"metric":"m","timestamp":0,"value":1}', **BASIC)[0] == 404


def test_errors_of_version_2_are_in_its_words(db: Embedded, port: int) -> None:
    """Clients of it show the message and act upon the status."""
    db.execute("CREATE DATABASE words KEEP 36500")
    for path, body, status, word in (
        ("bucket=words", "cpu usage=", 400, "invalid"), ("bucket=missing", "cpu usage=1", 404, "not found"),
        ("bucket=words&precision=weeks", "cpu usage=1", 400, "invalid"), ("", "cpu usage=1", 400, "invalid"),
    ):
        said, document = ask(port, f"/api/v2/write?{path}", body, **BASIC)
        assert (said, document["code"]) == (status, word)
        assert document["message"]
    assert ask(port, "/api/v2/write?bucket=words/autogen&org=o", "cpu usage=1 1714557600000000000", **BASIC)[0] == 204
