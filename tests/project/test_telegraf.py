"""examples/telegraf: the requests of Telegraf's output for InfluxDB 1, in its order, and streams over what comes in."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import tomllib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from kits.basics.places import ROOT
from kits.engines.sandboxes import T0, TestBed

from penstock.mnode.http.http_server import HttpListener
from penstock.mnode.http.http_sessions import HttpSessions
from penstock.mnode.http.rest import Rest
from penstock.shell.terminal.script import SqlText, split_all

EXAMPLE = ROOT / "examples" / "telegraf"


class Telegraf:
    """Sends what Telegraf's `outputs.influxdb` does with the example's configuration."""

    def __init__(self, port: int, user: str | None = None, password: str = "") -> None:
        config = tomllib.loads((EXAMPLE / "telegraf.conf").read_text("utf-8"))
        (self.config,) = config["outputs"]["influxdb"]
        self.port = port
        self.headers = {"User-Agent": "Telegraf/1.34.0 Go/1.24.1"}
        if user is not None:
            credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
            self.headers["Authorization"] = f"Basic {credentials}"

    def create_database(self) -> tuple[int, Any]:
        """Returns the status and the document: any 200 without an error is success."""
        form = urlencode({"q": f'CREATE DATABASE "{self.config["database"]}"'})
        return self._post("/query", form.encode(), {"Content-Type": "application/x-www-form-urlencoded"})

    def write(self, lines: str) -> tuple[int, Any]:
        """Returns the status and the document: 204 is success; `database not found` has it created; other 4xx drop."""
        assert self.config["content_encoding"] == "gzip"
        packed = gzip.compress(lines.encode())
        # The body is packed while it is sent, so that its length isn't known: it comes in chunks.
        pieces = iter([packed[:20], packed[20:]])
        return self._post(f"/write?{urlencode({'db': self.config['database']})}", pieces,
                          {"Content-Type": "text/plain; charset=utf-8", "Content-Encoding": "gzip"})

    def _post(self, path: str, body: bytes | Iterator[bytes], headers: dict[str, str]) -> tuple[int, Any]:
        assert urlsplit(self.config["urls"][0]).path == ""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", path, body, {**self.headers, **headers})
            answer = connection.getresponse()
            content = answer.read()
            return answer.status, json.loads(content) if content else None
        finally:
            connection.close()


@pytest.fixture
def bed() -> Iterator[TestBed]:
    with TestBed(config={"trustLoopback": True}) as made:
        yield made


@pytest.fixture
def port(bed: TestBed) -> Iterator[int]:
    engine = bed.engine
    listener = HttpListener("127.0.0.1", 0, Rest(engine, HttpSessions(engine.logins, "UTC"), 1_000_000).routes())
    yield listener.port
    listener.close()


def metrics(second: int, busy: float, used: float) -> str:
    """Returns what one machine measures, as Telegraf's serialiser writes it: tags sorted, integers with an i."""
    at = (T0 + second * 1000) * 1_000_000
    return "".join(f"{line} {at}\n" for line in (
        f"cpu,cpu=cpu0,host=web\\ 1 usage_user=1.5,usage_idle={100 - busy},usage_guest=0",
        f"cpu,cpu=cpu-total,host=web\\ 1 usage_user={busy},usage_idle={100 - busy},usage_guest=0",
        f"mem,host=web\\ 1 used_percent={used},total=16686776320i,swap_free=0i",
    ))


def test_the_example_runs(bed: TestBed, port: int) -> None:
    """Database and tables of the example, Telegraf's start, its batches, and the results of both streams."""
    for part in split_all((EXAMPLE / "streams.sql").read_text("utf-8")):
        if isinstance(part, SqlText):
            bed.execute(part.text)
    telegraf = Telegraf(port)
    assert telegraf.create_database() == (200, {"results": [{"statement_id": 0}]})
    # T0 is 20 seconds into a minute.
    for second, busy, used in [(0, 10.0, 50.0), (10, 20.0, 95.5), (20, 30.0, 97.0), (30, 40.0, 80.0), (40, 50.0, 60.0)]:
        assert telegraf.write(metrics(second, busy, used)) == (204, None)
        bed.run()
    assert telegraf.write(metrics(70, 0.0, 10.0)) == (204, None)
    bed.run()
    assert bed.rows("SELECT host, ts, busy, busiest, measured FROM cpu_minutes") == [("web 1", -20_000, 25.0, 40.0, 4)]
    assert bed.rows("SELECT host, ts, until, worst FROM memory_low") == [("web 1", 10_000, 30_000, 97.0)]


def test_without_anything_telegraf_makes_it_all(bed: TestBed, port: int) -> None:
    """A database that is missing is reported by the words that Telegraf knows, and made when it asks."""
    telegraf = Telegraf(port)
    status, document = telegraf.write(metrics(0, 1.0, 2.0))
    assert status == 404
    assert "database not found" in document["error"]
    assert telegraf.create_database()[0] == 200
    assert telegraf.write(metrics(0, 1.0, 2.0) + metrics(10, 1.0, 2.0)) == (204, None)
    assert telegraf.write(metrics(0, 1.0, 2.0)) == (204, None)
    assert bed.rows("SELECT _ts, used_percent, total FROM telegraf.mem ORDER BY _ts") == [
        (0, 2.0, 16686776320), (10_000, 2.0, 16686776320)]


def test_a_line_that_does_not_fit_costs_no_other(bed: TestBed, port: int) -> None:
    """Telegraf drops a batch that is answered with 400: what was right about it must be written by then."""
    telegraf = Telegraf(port)
    telegraf.create_database()
    assert telegraf.write(metrics(0, 1.0, 2.0)) == (204, None)
    status, document = telegraf.write(metrics(10, 1.0, 2.0) + "mem,host=x used_percent=3i\n" + metrics(20, 1.0, 2.0))
    assert status == 400
    assert document["error"].startswith("partial write: line 4")
    assert "dropped=1" in document["error"]
    assert bed.rows("SELECT _ts FROM telegraf.mem ORDER BY _ts") == [(0,), (10_000,), (20_000,)]


def test_with_users(bed: TestBed, port: int) -> None:
    """A writer may send lines; the database must be there, since to create it takes an admin."""
    bed.all("CREATE DATABASE telegraf PRECISION 'ns'", "CREATE USER boss PASS 'correct-horse' ROLE admin",
            "CREATE USER telegraf PASS 'battery-staple' ROLE write")
    writer = Telegraf(port, "telegraf", "battery-staple")
    status, document = writer.create_database()
    assert status == 403
    assert "needs the role admin" in document["results"][0]["error"]
    assert writer.write(metrics(0, 1.0, 2.0)) == (204, None)
    assert Telegraf(port).write(metrics(10, 1.0, 2.0))[0] == 401
    assert Telegraf(port, "boss", "correct-horse").create_database()[0] == 200
