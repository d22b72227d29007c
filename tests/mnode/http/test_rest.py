"""SQL and line protocol over HTTP, as curl and Telegraf speak it: real requests on the loopback interface."""

from __future__ import annotations

import base64
import contextlib
import errno
import gc
import gzip
import http.client
import json
import shlex
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kits.basics.certificates import NO_OPENSSL, OPENSSL, make_certificate
from kits.basics.external_servers import free_port
from kits.basics.places import ROOT
from kits.basics.waiting import wait_until
from kits.engines.embedded import Embedded
from kits.pages.examples import shown_in
from sqlglot import exp

from penstock.common.admission import ConnectionBounds
from penstock.common.errors import ConfigError
from penstock.mnode.engine import Engine
from penstock.mnode.http import http_handler
from penstock.mnode.http.http_messages import HttpBounds
from penstock.mnode.http.http_server import HttpListener
from penstock.mnode.http.http_sessions import HttpSessions
from penstock.mnode.http.rest import Rest

SIZE_MAX = 100_000
LINE = b"meters,location=a current=10.3 1648791213000000000\n"
CURL = shutil.which("curl")


@dataclass(frozen=True)
class Said:
    """An answer: `body` is JSON, or None if there is none."""

    status: int
    headers: http.client.HTTPMessage
    body: Any


class Client:
    """Asks one listener, as one of its users."""

    def __init__(self, port: int, authorization: str | None = None) -> None:
        self.port = port
        self.headers = {} if authorization is None else {"Authorization": authorization}

    def ask(self, method: str, path: str, body: bytes | Iterator[bytes] = b"", **headers: str) -> Said:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {**self.headers, **headers})
            answer = connection.getresponse()
            content = answer.read()
            is_json = answer.headers.get("Content-Type") == "application/json"
            return Said(answer.status, answer.headers, json.loads(content) if is_json else content.decode() or None)
        finally:
            connection.close()

    def sql(self, text: str, database: str = "") -> Said:
        return self.ask("POST", f"/sql/{database}" if database else "/sql", text.encode())

    def write(self, lines: bytes, query: str = "?db=d", path: str = "/write", **headers: str) -> Said:
        return self.ask("POST", path + query, lines, **headers)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@contextlib.contextmanager
def embedded(folder: Path) -> Iterator[Embedded]:
    # Each engine would start a query process, whose answers other tests see.
    opened = Embedded(folder / "data", {"logLevel": "debug", "queryProcess": False})
    opened.execute("CREATE DATABASE d KEEP 36500")
    yield opened
    opened.close()


@contextlib.contextmanager
def listening(db: Embedded) -> Iterator[HttpListener]:
    engine = db.engine
    opened = HttpListener("127.0.0.1", 0, Rest(engine, HttpSessions(engine.logins, "UTC"), SIZE_MAX).routes(),
                      any_name=lambda: bool(engine.catalog.users.all()))
    yield opened
    opened.close()


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Embedded]:
    with embedded(tmp_path) as opened:
        yield opened


@pytest.fixture
def listener(db: Embedded) -> Iterator[HttpListener]:
    with listening(db) as opened:
        yield opened


@pytest.fixture
def client(listener: HttpListener) -> Client:
    return Client(listener.port)


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of one engine that gets all malformed requests."""
    with embedded(tmp_path_factory.mktemp("unharmed")) as db, listening(db) as listener:
        yield Client(listener.port)


def raw(port: int, request: bytes) -> bytes:
    """Returns all that is said to these bytes until the connection is closed, or reset, by the other side."""
    said = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        try:
            connection.sendall(request)
            # Who has shut down counts as gone a moment later: an answer may take longer.
            if b"Connection: close\r\n" not in request:
                connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(65536):
                said += more
        except OSError as error:  # Whoever is refused before the end of what it says may be cut off.
            if error.errno not in {errno.ECONNRESET, errno.ENOTCONN, errno.EPIPE}:
                raise
    return said


# --- SQL -------------------------------------------------------------------------------------------------------------


def test_statements_answer_in_json(client: Client) -> None:
    """Columns with types and lengths, rows as arrays, how many; other statements say what they changed."""
    assert client.sql("CREATE TABLE d.t (ts TIMESTAMP, i INT, f FLOAT, x DOUBLE, b BOOL, s VARCHAR(20))").body == {
        "code": 0, "column_meta": [["affected_rows", "INT", 4]], "data": [[0]], "rows": 1}
    assert client.sql("INSERT INTO t VALUES ('2024-05-01 10:00:00.125Z', 1, 0.1, 2.5, true, 'ä\"\n') "
                      "('2024-05-01 10:00:01Z', NULL, NULL, NULL, NULL, NULL);", "d").body["data"] == [[2]]
    said = client.sql("SELECT * FROM t ORDER BY ts", "d")
    assert said.status == 200
    assert said.body == {
        "code": 0,
        "column_meta": [["ts", "TIMESTAMP", 8], ["i", "INT", 4], ["f", "FLOAT", 4], ["x", "DOUBLE", 8],
                        ["b", "BOOL", 1], ["s", "VARCHAR", 20]],
        "data": [["2024-05-01T10:00:00.125Z", 1, 0.1, 2.5, True, 'ä"\n'],
                 ["2024-05-01T10:00:01.000Z", None, None, None, None, None]],
        "rows": 2,
    }
    assert client.sql("SELECT * FROM t WHERE i > 5", "d").body["data"] == []


def test_values_that_json_lacks_have_a_form(client: Client) -> None:
    """Binaries are hexadecimal, decimals exact text, and microseconds have six digits."""
    client.sql("CREATE DATABASE u PRECISION 'us' KEEP 36500")
    client.sql("CREATE TABLE t (ts TIMESTAMP, v VARBINARY(10), n DECIMAL(20, 4), u BIGINT UNSIGNED)", "u")
    client.sql("INSERT INTO t VALUES ('2024-05-01 10:00:00.000001Z', '\\x00ff', 12345678901234.5678, "
               "18446744073709551615)", "u")
    assert client.sql("SELECT * FROM t", "u").body["data"] == [
        ["2024-05-01T10:00:00.000001Z", "00ff", "12345678901234.5678", 18446744073709551615]]


def test_values_of_duckdbs_types_are_json(client: Client) -> None:
    """Lists are arrays, structs and maps objects, others text."""
    query = "SELECT date '2024-02-29', [1.5, NULL], {'a': [NULL]}, map {'k': 1}, interval '1' day, 'infinity'::date"
    said = client.sql(query).body
    assert said["data"] == [["2024-02-29", [1.5, None], {"a": [None]}, {"k": 1}, "1 day", "infinity"]]
    assert [kind for _, kind, _ in said["column_meta"]][:2] == ["DATE", "DOUBLE[]"]


def test_many_rows_come_whole(client: Client, db: Embedded) -> None:
    """Answers that are sent in pieces are one JSON document."""
    client.sql("CREATE TABLE d.t (ts TIMESTAMP, v INT)")
    rows = " ".join(f"({1_700_000_000_000 + row}, {row})" for row in range(10_000))
    db.execute(f"INSERT INTO d.t VALUES {rows}")
    said = client.sql("SELECT v FROM d.t ORDER BY ts")
    assert said.headers["Transfer-Encoding"] == "chunked"
    assert said.body["data"] == [[row] for row in range(10_000)]
    old = raw(client.port, b"POST /sql HTTP/1.0\r\nHost: localhost\r\nContent-Length: 28\r\n\r\n"
                           b"SELECT v FROM d.t LIMIT 5000")
    assert json.loads(old.partition(b"\r\n\r\n")[2])["rows"] == 5000


@pytest.mark.parametrize(("text", "status", "code"), [
    ("SELEC 1", 400, 0x2600), ("", 400, 0x2600), ("SELECT 1; SELECT 2", 400, 0x2600),
    ("SELECT * FROM d.missing", 404, 0x2603), ("USE missing", 404, 0x0388),
    ("CREATE DATABASE d", 409, 0x0381), ("SHOW TABLES", 400, 0x2616), ("CREATE TOPIC t AS DATABASE d", 400, 0xFFFF),
])
def test_errors_have_a_status_a_code_and_a_text(client: Client, text: str, status: int, code: int) -> None:
    """The client's mistakes are 4xx, in the words of SQL."""
    said = client.sql(text)
    assert (said.status, said.body["code"]) == (status, code)
    assert said.body["desc"] == said.body["error"] != ""


def test_each_request_is_a_session_of_its_own(client: Client) -> None:
    """USE ends with its request, on the same connection too."""
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=60)
    codes = []
    for text in ("CREATE TABLE d.t (ts TIMESTAMP, v INT)", "USE d", "SELECT * FROM t"):
        connection.request("POST", "/sql", text.encode())
        codes.append(json.loads(connection.getresponse().read())["code"])
    connection.close()
    assert codes == [0, 0, 0x2616]


# --- line protocol ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/write", "/influxdb/v1/write"])
def test_lines_as_telegraf_sends_them(client: Client, path: str) -> None:
    """Plain or gzip, with a length or in chunks: nothing comes back but that it is done."""
    def stamped(seconds: int) -> bytes:
        return LINE.replace(b"1648791213", str(1648791213 + seconds).encode())

    assert client.ask("GET", "/ping").status == client.ask("HEAD", "/ping").status == 204
    assert client.ask("GET", "/ping").headers["X-Influxdb-Version"]
    for said in (
        client.write(stamped(0), path=path),
        client.write(gzip.compress(stamped(1)), path=path, **{"Content-Encoding": "gzip"}),
        client.ask("POST", f"{path}?db=d", iter([stamped(2)[:10], stamped(2)[10:]])),
        client.ask("POST", f"{path}?db=d", iter([gzip.compress(stamped(3))]), **{"Content-Encoding": "gzip"}),
        client.write(gzip.compress(stamped(4)) + gzip.compress(stamped(5)), path=path, **{"Content-Encoding": "gzip"}),
        client.write(b"meters,location=a current=1 1648791300\n", "?db=d&precision=s", path),
        client.write(b"meters,location=a current=1 1648791301000000\n", "?db=d&precision=u", path),
    ):
        assert (said.status, said.body) == (204, None)
    assert client.sql("SELECT count(*), sum(current) FROM d.meters").body["data"] == [[8, pytest.approx(63.8)]]


def test_refused_lines_say_why(client: Client) -> None:
    """The number of the line, the missing database, the unknown precision; what is right is written all the same."""
    assert client.write(b"meters,location=a current=\n").status == 400
    assert client.write(LINE, "").status == client.write(LINE, "?db=d&precision=d").status == 400
    said = client.write(LINE, "?db=missing")
    assert (said.status, 'database not found: "missing"' in said.body["error"]) == (404, True)
    assert client.sql("SELECT * FROM d.meters").status == 404
    said = client.write(
        LINE + b"meters,location=a current=\nmeters,location=b current=1\nmeters,location=c current=1i\n")
    assert said.status == 400
    assert "partial write: line 2: " in said.body["error"]
    assert "dropped=2" in said.body["error"]
    assert client.sql("SELECT location FROM d.meters ORDER BY location").body["data"] == [["a"], ["b"]]


@pytest.mark.parametrize("path", ["/query", "/influxdb/v1/query"])
def test_databases_are_created_as_clients_of_influxdb_do(client: Client, path: str) -> None:
    """From a form or the address, quoted or not, again without harm; every other statement is refused."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for body in (b"q=CREATE+DATABASE+%22Tele+graf%22", b"q=CREATE+DATABASE+%22Tele+graf%22",
                 b"q=create+database+plain+WITH+DURATION+3d"):
        said = client.ask("POST", path, body, **form)
        assert (said.status, said.body) == (200, {"results": [{"statement_id": 0}]})
    assert client.ask("POST", f"{path}?q=CREATE%20DATABASE%20third").status == 200
    assert client.sql("SHOW USER DATABASES").body["data"] == [["d"], ["Tele graf"], ["plain"], ["third"]]
    assert client.write(b"cpu usage=1 1700000000000000007", "?db=Tele%20graf").status == 204
    assert client.sql("SELECT _ts FROM `Tele graf`.cpu").body["data"] == [["2023-11-14T22:13:20.000000007Z"]]
    said = client.ask("POST", path, b"q=DROP+DATABASE+plain", **form)
    assert said.status == 400
    assert "only CREATE DATABASE" in said.body["results"][0]["error"]


# --- bodies ----------------------------------------------------------------------------------------------------------


def test_a_body_is_bounded_also_when_it_is_packed(client: Client) -> None:
    """Too long as it is, in chunks, or once unpacked: 413; at the bound it is taken."""
    fitting = b"SELECT 1" + b" " * (SIZE_MAX - 8)
    assert client.ask("POST", "/sql", fitting).status == 200
    packed = gzip.compress(fitting * 100)
    assert len(packed) < SIZE_MAX
    for said in (
        client.ask("POST", "/sql", fitting + b" "),
        client.ask("POST", "/sql", iter([fitting, b" "])),
        client.ask("POST", "/sql", packed, **{"Content-Encoding": "gzip"}),
        client.ask("POST", "/sql", b"x" * 5_000_000),
    ):
        assert said.status == 413
        assert f"more than {SIZE_MAX} bytes" in said.body["desc"]
    assert client.sql("SELECT 1").status == 200


@pytest.mark.parametrize(("rest", "status"), [
    (b"Content-Length: x\r\n\r\n", 400),
    (b"Content-Length: -1\r\n\r\n", 400),
    (b"Content-Length: 8\r\nContent-Length: 9\r\n\r\nSELECT 1", 400),
    (b"Content-Length: 20\r\n\r\nSELECT 1", 400),
    (b"Transfer-Encoding: chunked\r\nContent-Length: 8\r\n\r\n8\r\nSELECT 1\r\n0\r\n\r\n", 400),
    (b"Transfer-Encoding: br\r\n\r\n", 400),
    (b"Transfer-Encoding: chunked\r\n\r\n8\r\nSELECT 1\r\n", 400),
    (b"Transfer-Encoding: chunked\r\n\r\n7\r\nSELECT 1\r\n0\r\n\r\n", 400),
    (b"Transfer-Encoding: chunked\r\n\r\n-8\r\nSELECT 1\r\n0\r\n\r\n", 400),
    (b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 2000 + b"\r\n", 400),
    (b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 200 + b"\r\n", 400),
    (b"Content-Encoding: gzip\r\nContent-Length: 8\r\n\r\nSELECT 1", 400),
    (b"Content-Encoding: gzip\r\nContent-Length: 12\r\n\r\n" + gzip.compress(b"SELECT 1", mtime=0)[:12], 400),
    (b"Content-Encoding: br\r\nContent-Length: 8\r\n\r\nSELECT 1", 415),
    (b"Content-Length: 2\r\n\r\n\xff\xfe", 400),
    (b"Content-Length : 8\r\n\r\nSELECT 1", 400),
    (b"Content-Length: 8\r\n A: folded\r\n\r\nSELECT 1", 400),
    (b"A: \0\r\nContent-Length: 8\r\n\r\nSELECT 1", 400),
    (b"no header\r\nContent-Length: 8\r\n\r\nSELECT 1", 400),
    # Spaces take no longer than other letters: the answer comes before the client's patience ends.
    ((b"A: a" + b" " * 60_000 + b"b\r\n") * 20 + b"Content-Length: 8\r\n\r\nSELECT 1", 200),
    (b"Transfer-Encoding: chunked\r\n\r\n8;a=b\r\nSELECT 1\r\n0\r\nTrailer: x\r\n\r\n", 200),
    (b"Content-Length: 8\r\nExpect: 100-continue\r\n\r\nSELECT 1", 100),
])
def test_malformed_bodies_are_refused_and_harm_nobody(unharmed: Client, rest: bytes, status: int) -> None:
    """Each gets a status, and the next client is answered."""
    close = b"Connection: close\r\n" if status == 200 else b""
    said = raw(unharmed.port, b"POST /sql HTTP/1.1\r\nHost: localhost\r\n" + close + rest)
    assert int(said.split()[1]) == status, said
    assert unharmed.sql("SELECT 1").status == 200


@pytest.mark.parametrize("request_", [
    b"\r\n\r\n", b"NONSENSE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
    b"POST /sql HTTP/1.1\r\n" + b"a" * 70_000 + b"\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    b"POST /sql HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
])
def test_malformed_requests_harm_nobody(unharmed: Client, request_: bytes) -> None:
    """What isn't HTTP, or too much of it, is answered with a refusal or not at all."""
    assert not raw(unharmed.port, request_).startswith(b"HTTP/1.1 2")
    assert unharmed.sql("SELECT 1").status == 200


def test_small_inserts_are_read_as_rows(db: Embedded, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """They aren't parsed as other statements are, and answer as these do."""
    assert client.sql("CREATE TABLE d.t (ts TIMESTAMP, v INT)").status == 200
    parsed = client.ask("POST", "/sql/d", b"INSERT INTO t VALUES (1700000000000, 2) -- parsed")
    monkeypatch.setattr(type(db.engine), "read", lambda *_: pytest.fail("the statement was parsed"))
    short = client.ask("POST", "/sql/d", b"INSERT INTO t VALUES (1700000000001, 3)")
    assert (short.status, short.body) == (parsed.status, parsed.body)
    monkeypatch.undo()
    assert client.ask("POST", "/sql/d", b"SELECT v FROM t ORDER BY ts").body["data"] == [[2], [3]]


def test_requests_that_come_together_are_answered_one_by_one(client: Client) -> None:
    """The last one ends the connection, one of HTTP/1.0 unless it asks for the opposite."""
    def sql(statement: bytes, version: bytes, *headers: bytes) -> bytes:
        return b"\r\n".join((b"POST /sql HTTP/" + version, b"Host: localhost", *headers,
                             b"content-length: %d" % len(statement), b"", statement))

    usual, last = sql(b"SHOW DATABASES", b"1.1"), sql(b"SHOW USERS", b"1.1", b"Connection: close")
    assert raw(client.port, usual + last + usual).count(b"HTTP/1.1 200 OK") == 2
    old, stays = sql(b"CREATE DATABASE e", b"1.0"), sql(b"DROP DATABASE e", b"1.0", b"Connection: Keep-Alive")
    assert raw(client.port, old + usual).count(b"HTTP/1.1 200 OK") == 1
    assert raw(client.port, stays + last).count(b"HTTP/1.1 200 OK") == 2


def test_many_connections_at_once(client: Client) -> None:
    """200 clients write and ask together, some of them leave in the middle, and nothing is lost."""
    client.sql("CREATE STABLE d.meters (_ts TIMESTAMP, current DOUBLE) TAGS (location NCHAR(16))")
    half_sent = []
    for _ in range(50):
        connection = socket.create_connection(("127.0.0.1", client.port), timeout=30)
        connection.sendall(b"POST /write?db=d HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nmeters,")
        half_sent.append(connection)

    def work(number: int) -> int:
        return client.write(b"meters,location=l%d current=1 %d\n" % (number % 10, 1648791213000 + number),
                            "?db=d&precision=ms").status

    with ThreadPoolExecutor(200) as pool:
        assert set(pool.map(work, range(400))) == {204}
    for connection in half_sent:
        connection.close()
    assert client.sql("SELECT count(*) FROM d.meters").body["data"] == [[400]]


def bounds(strangers: int = 10, login_timeout_s: float = 60.0, total: int = 100, rate: int = 1 << 20) -> HttpBounds:
    return HttpBounds(ConnectionBounds(strangers, login_timeout_s, total, total), rate)


def test_a_body_must_come_at_a_rate(db: Embedded) -> None:
    """A body that comes byte by byte gives 408, however short the pauses are."""
    routes = Rest(db.engine, HttpSessions(db.engine.logins, "UTC"), SIZE_MAX).routes()
    slow = HttpListener("127.0.0.1", 0, routes, bounds=bounds(login_timeout_s=0.5))
    with socket.create_connection(("127.0.0.1", slow.port), timeout=30) as connection:
        connection.sendall(b"POST /sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
        assert dripped(connection, b"S").split()[1] == b"408"
    slow.close()


def test_a_header_must_come_in_time(db: Embedded) -> None:
    """Time runs for the whole header, before a login and after it."""
    listener = HttpListener("127.0.0.1", 0, Rest(db.engine, HttpSessions(db.engine.logins, "UTC"), SIZE_MAX).routes(),
                    bounds=bounds(login_timeout_s=0.5))
    with socket.create_connection(("127.0.0.1", listener.port), timeout=30) as connection:
        assert dripped(connection, b"G") == b""
    with socket.create_connection(("127.0.0.1", listener.port), timeout=30) as connection:
        log_in(connection)
        connection.sendall(b"GET /ping HTTP/1.1\r\n")
        assert dripped(connection, b"X") == b""
    listener.close()


def log_in(connection: socket.socket) -> None:
    """Executes a statement, which makes the client known: without users anybody may."""
    connection.sendall(b"POST /sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\nSHOW DATABASES")
    answer = connection.recv(65536)
    while not answer.endswith(b"0\r\n\r\n"):
        answer += connection.recv(65536)
    assert answer.split()[1] == b"200"


def dripped(connection: socket.socket, byte: bytes) -> bytes:
    """Sends a byte again and again until there is an answer, and returns it."""
    connection.settimeout(0.02)
    for _ in range(1000):
        try:
            connection.sendall(byte)
            return connection.recv(65536)
        except TimeoutError:
            continue
        except ConnectionError:
            return b""
    raise AssertionError("it listens for ever")


def test_half_sent_headers_refuse_nobody(db: Embedded) -> None:
    """Whoever holds connections open loses the oldest of them to those who log in at once."""
    listener = HttpListener("127.0.0.1", 0, Rest(db.engine, HttpSessions(db.engine.logins, "UTC"), SIZE_MAX).routes())
    half_sent = [socket.create_connection(("127.0.0.1", listener.port), timeout=30) for _ in range(600)]
    for connection in half_sent:
        with contextlib.suppress(ConnectionError):  # it was sent away
            connection.sendall(b"GET /")
    assert not closed_at_once(listener.port)
    wait_until(lambda: listener.counts().connections <= 256)
    assert listener.counts().refused["strangers"] >= 600 - 256
    for connection in half_sent:
        connection.close()
    listener.close()


def test_who_has_logged_in_stays_when_there_are_too_many(db: Embedded) -> None:
    """Beyond the bound new connections are closed, until another one ends."""
    listener = HttpListener("127.0.0.1", 0, Rest(db.engine, HttpSessions(db.engine.logins, "UTC"), SIZE_MAX).routes(),
                    bounds=bounds(total=2, strangers=2))
    with socket.create_connection(("127.0.0.1", listener.port), timeout=30) as first:
        log_in(first)
        with socket.create_connection(("127.0.0.1", listener.port), timeout=30) as second:
            log_in(second)
            assert closed_at_once(listener.port)
        wait_until(lambda: not closed_at_once(listener.port))
        log_in(first)
    listener.close()


def closed_at_once(port: int) -> bool:
    """Tells whether a new connection gets no answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        try:
            connection.sendall(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return connection.recv(65536) == b""
        except ConnectionError:
            return True


# --- who asks --------------------------------------------------------------------------------------------------------


def test_without_users_only_pages_of_others_are_refused(client: Client) -> None:
    """No login is needed on this machine, but a browser that a foreign page has lured here is sent away."""
    assert client.sql("SELECT 1").status == 200
    assert client.ask("POST", "/sql", b"SELECT 1", Host="elsewhere.example").status == 421
    for origin in ("https://elsewhere.example", "null", f"http://localhost:{client.port + 1}"):
        assert client.ask("POST", "/sql", b"SELECT 1", Origin=origin).status == 403
    assert client.ask("POST", "/sql", b"SELECT 1", Origin=f"http://127.0.0.1:{client.port}").status == 200
    assert client.ask("GET", "/sql").status == 405
    assert client.ask("PUT", "/sql").status == 405
    assert client.ask("POST", "/elsewhere", b"SELECT 1").status == 404


def test_with_users_a_password_or_a_token_is_needed(
    db: Embedded, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For SQL and for lines; what the role doesn't allow is another refusal. Who comes too early waits for it."""
    pauses: list[float] = []
    monkeypatch.setattr(http_handler, "_pause", pauses.append)
    db.all("CREATE USER ada PASS 'correct horse' ROLE admin", "CREATE USER bob PASS 'battery staple'",
           "CREATE USER eve PASS 'to whom it may' ROLE write")
    for authorization in (None, basic("ada", "wrong horse"), basic("nobody", "correct horse"), "Bearer x", "Basic x"):
        stranger = Client(client.port, authorization)
        for said in (stranger.sql("SELECT 1"), stranger.write(b"x" * 5_000_000), stranger.ask("POST", "/login")):
            assert said.status == 401
            assert said.headers["WWW-Authenticate"].startswith("Basic")
            assert said.body["code"] == 0x0357
    often = Client(client.port, basic("ada", "wrong horse")).write(LINE)
    assert (often.status, often.headers["Retry-After"]) == (429, "1")
    assert pauses == [1.0]
    assert Client(client.port).ask("GET", "/ping").status == 204
    reader, writer, admin = (Client(client.port, basic(*pair)) for pair in (
        ("bob", "battery staple"), ("eve", "to whom it may"), ("ada", "correct horse")))
    assert reader.sql("SELECT user()").body["data"] == [["bob"]]
    for said in (reader.write(LINE), reader.sql("INSERT INTO d.t VALUES (now, 1)"), writer.sql("DROP DATABASE d")):
        assert (said.status, said.body["code"]) == (403, 0x0303)
    assert writer.write(LINE).status == 204
    given = reader.ask("POST", "/login").body
    holder = Client(client.port, f"Bearer {given['token']}")
    assert holder.ask("POST", "/sql", b"SELECT user()", Host="any.name.example").body["data"] == [["bob"]]
    db.clock.advance(given["lifetime_s"])  # type: ignore[attr-defined]
    expired = holder.sql("SELECT 1")
    assert (expired.status, expired.body["code"]) == (401, 0x0357)
    assert "expired" in expired.body["desc"]
    assert admin.sql("DROP DATABASE d").status == 200


def test_who_stays_connected_is_let_in_by_what_is_true_now(db: Embedded, client: Client) -> None:
    """Requests of one connection, with one header: after ALTER USER and DROP USER the next one hears of it."""
    db.all("CREATE USER root PASS 'who stays all along' ROLE admin", "CREATE USER ada PASS 'correct horse'")
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=60)

    def asked(user: str, password: str, text: bytes = b"SELECT user()") -> tuple[int, Any]:
        connection.request("POST", "/sql", text, {"Authorization": basic(user, password)})
        answer = connection.getresponse()
        document = json.loads(answer.read())
        return answer.status, document.get("data", document["code"])

    try:
        for _ in range(2):
            assert asked("ada", "correct horse") == (200, [["ada"]])
            assert asked("ada", "correct horse", b"DROP DATABASE d") == (403, 0x0303)
            assert asked("root", "who stays all along") == (200, [["root"]])
            assert asked("ada", "wrong horse") == (401, 0x0357)
            db.clock.advance(1.0)  # type: ignore[attr-defined]
        assert asked("ada", "correct horse") == (200, [["ada"]])
        db.execute("ALTER USER ada PASS 'battery staple'")
        assert asked("ada", "correct horse") == (401, 0x0357)
        db.clock.advance(2.0)  # type: ignore[attr-defined]
        assert asked("ada", "battery staple") == (200, [["ada"]])
        db.execute("DROP USER ada")
        assert asked("ada", "battery staple") == (401, 0x0357)
    finally:
        connection.close()


def test_secrets_in_requests_are_not_logged(db: Embedded, client: Client) -> None:
    """Neither what stands behind the question mark, nor a header, nor a malformed line."""
    client.write(LINE, "?db=d&u=ada&p=Xylophone-4711", Authorization=basic("ada", "Xylophone-4712"))
    raw(client.port, b"GET /Xylophone-4713 and more HTTP/1.1\r\n\r\n")
    db.close()
    log = "".join(path.read_text() for path in db.engine.paths.root.glob("log/*"))
    assert "POST /write: 204" in log
    assert "Xylophone" not in log


@pytest.mark.skipif(CURL is None, reason="curl isn't there")
def test_the_page_shows_what_curl_prints(db: Embedded, client: Client) -> None:
    """The commands of docs/server.md do what it says."""
    page = ROOT / "docs" / "server.md"
    commands = [line for block in shown_in(page, "bash") for line in block.splitlines() if line.startswith("curl ")]
    (printed,) = shown_in(page, "json")
    db.all("CREATE USER ada PASS 'correct-horse' ROLE admin", "CREATE DATABASE power KEEP 36500")
    said = [subprocess.run([*shlex.split(command.replace(":8080", f":{client.port}")), "-sS"], check=True,
                           capture_output=True, text=True, timeout=60).stdout for command in commands]
    assert said == ["", printed]


# --- the engine's own listener ---------------------------------------------------------------------------------------


def test_an_engine_opens_its_port_and_lets_go_of_it(tmp_path: Path) -> None:
    """Idle connections end with it, and a new engine gets the same port."""
    port = free_port()
    for _ in range(2):
        embedded = Embedded(tmp_path / "data", {"httpPort": port})
        idle = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        idle.request("POST", "/sql", b"SELECT 1")
        assert idle.getresponse().read()
        embedded.close()
        assert idle.sock is None or idle.sock.recv(1) == b""
        idle.close()
    with pytest.raises(OSError, match="refused"):
        Client(port).sql("SELECT 1")


def test_without_users_no_other_interface_is_opened(tmp_path: Path) -> None:
    """The engine doesn't start; with a user it does."""
    port = free_port()
    everywhere = {"httpPort": port, "host": "0.0.0.0"}
    with pytest.raises(ConfigError, match="there are no users"):
        Embedded(tmp_path / "data", everywhere)
    embedded = Embedded(tmp_path / "data")
    embedded.execute("CREATE USER ada PASS 'correct horse' ROLE admin")
    embedded.close()
    embedded = Embedded(tmp_path / "data", everywhere)
    assert Client(port).sql("SELECT 1").status == 401
    assert Client(port, basic("ada", "correct horse")).sql("SELECT 1").status == 200
    embedded.close()
    log = "".join(path.read_text() for path in (tmp_path / "data" / "log").iterdir())
    assert log.count("in clear") == 1


@pytest.mark.skipif(OPENSSL is None, reason=NO_OPENSSL)
def test_tls(tmp_path: Path) -> None:
    """With a certificate only TLS is spoken; clients that don't, or that wait, keep nobody from it."""
    certificate, key = make_certificate(tmp_path)
    port = free_port()
    with pytest.raises(ConfigError, match="belong together"):
        Embedded(tmp_path / "data", {"httpPort": port, "tlsCertificate": str(certificate)})
    with pytest.raises(ConfigError, match="not a certificate and its key"):
        Embedded(tmp_path / "data", {"httpPort": port, "tlsCertificate": str(key), "tlsKey": str(key)})
    embedded = Embedded(
        tmp_path / "data", {"httpPort": port, "tlsCertificate": str(certificate), "tlsKey": str(key)})
    with socket.create_connection(("127.0.0.1", port), timeout=30):
        assert b"HTTP" not in raw(port, b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
        context = ssl.create_default_context(cafile=str(certificate))
        connection = http.client.HTTPSConnection("localhost", port, timeout=30, context=context)
        connection.request("POST", "/sql", b"SELECT 1")
        assert json.loads(connection.getresponse().read())["data"] == [[1]]
        connection.close()
    embedded.close()


# --- long answers, and those that nobody waits for -------------------------------------------------------------------


@pytest.fixture
def many(db: Embedded) -> Embedded:
    """Has a table of five thousand rows."""
    db.execute("CREATE TABLE d.m (ts TIMESTAMP, v INT)")
    db.execute("INSERT INTO d.m VALUES " + " ".join(f"({1_700_000_000_000 + n}, {n})" for n in range(5000)))
    return db


#: 300 MB of rows, and what is computed for minutes before there is one.
LONG = "SELECT repeat('a', 60000) FROM d.m"
ENDLESS = ("SELECT sum(length(replace(repeat('a', b.v), 'a', 'b'))) FROM d.m a LEFT WINDOW JOIN d.m b "
           "WINDOW_OFFSET(-10s, 10s)")


def asked(port: int, statement: str) -> socket.socket:
    """Returns a connection on which a statement was sent."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(f"POST /sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(statement)}\r\n\r\n{statement}"
                       .encode())
    return connection


def test_rows_are_sent_as_they_are_made(many: Embedded, listener: HttpListener) -> None:
    """A long result begins at once; when the client goes, the query ends and nothing of it is left."""
    with asked(listener.port, LONG) as connection:
        assert b"200 OK" in connection.recv(65536)
        [(running, _)] = many.engine.activity.running()
        assert running.text == LONG
    wait_until(lambda: not many.engine.activity.running(), 30.0)
    assert many.run("SELECT count(*) FROM d.m") == [(5000,)]


def test_a_query_ends_with_the_client_that_waits_for_it(many: Embedded, listener: HttpListener) -> None:
    """It is noticed while it computes, before there is anything to send."""
    with asked(listener.port, ENDLESS):
        wait_until(lambda: any(running.computes for running, _ in many.engine.activity.running()), 30.0)
    wait_until(lambda: not many.engine.activity.running(), 30.0)


def test_a_long_query_leaves_nothing_to_the_garbage_collector(client: Client) -> None:
    """Neither cycles nor what all trees share holds the trees of its text and of its plan once it is answered."""
    client.sql("CREATE TABLE d.t (ts TIMESTAMP, v INT)")
    arms = " ".join(f"WHEN {arm} THEN {arm}" for arm in range(500))
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            assert client.sql(f"SELECT CASE v {arms} END FROM t", "d").body["rows"] == 0
        wait_until(lambda: sum(type(item) is exp.If for item in gc.get_objects()) < 500)
    finally:
        gc.enable()


def test_an_error_within_the_rows_breaks_the_answer_off(many: Embedded, listener: HttpListener) -> None:
    """No client takes it for whole: the last piece is missing, and what is there is no JSON; its last line says why."""
    with asked(listener.port, LONG) as connection:
        said = connection.recv(65536)
        [(running, _)] = many.engine.activity.running()
        many.run(f"KILL QUERY '{running.id:x}'")
        said += b"".join(iter(lambda: connection.recv(1 << 20), b""))
    assert not said.endswith(b"0\r\n\r\n")
    told = json.loads(said.rstrip().splitlines()[-1])
    assert "ended by KILL QUERY of user root" in told["desc"]
    assert told["code"]


def test_an_error_before_the_rows_has_its_status(many: Embedded, client: Client) -> None:
    """What fails before the first rows are there is no answer that breaks off."""
    said = client.sql("SELECT concat(repeat('a', 60000), repeat('b', 60000)) FROM m",
                      "d")
    assert said.status == 400
    assert "longer than 65517 bytes" in said.body["desc"]


def test_rows_of_a_standby_have_their_age_in_a_header(
        db: Embedded, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of a cluster that follows says how old they may be; others say nothing."""
    assert "Penstock-Lag-Seconds" not in client.ask("POST", "/sql", b"SELECT 1").headers
    monkeypatch.setattr(Engine, "lag_s", 0.25)
    assert client.ask("POST", "/sql", b"SELECT 1").headers["Penstock-Lag-Seconds"] == "0.250"
