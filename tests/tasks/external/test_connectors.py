"""TEST CONNECTION against real servers: what works, and that refused, unreachable and unknown are told apart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError
from kits.basics.external_servers import Kafka, Mosquitto, Postgres, free_port
from kits.engines.embedded import Embedded

from penstock.common.connection import OpenedConnection
from penstock.common.errors import (
    ConnectionFailedError,
    ContentRefusedError,
    ExternalSystemError,
    LoginRefusedError,
    TargetMissingError,
)
from penstock.sql.tree.expression_nodes import quote_string
from penstock.tasks.external.connectors import kafka as kafka_connector

Tester = Callable[..., tuple[str, str]]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    made = Embedded(tmp_path_factory.mktemp("connectors"))
    yield made
    made.close()


@pytest.fixture
def tested(engine: Embedded, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tester]:
    """Makes a connection of a type with options, secrets among them as they are, and tests it: (state, detail)."""
    secrets = ("password", "token")

    def run(kind: str, **options: Any) -> tuple[str, str]:
        engine.run("DROP CONNECTION IF EXISTS c")
        for name in secrets:
            if name in options:
                monkeypatch.setenv(f"TESTED_{name}", options[name])
                options[name] = f"env:TESTED_{name}"
        text = ", ".join(f"{name}={quote_string(str(value))}" for name, value in options.items())
        engine.run(f"CREATE CONNECTION c TYPE {kind} WITH ({text})")
        [(_, state, _, detail)] = engine.run("TEST CONNECTION c")
        return state, detail

    yield run
    engine.run("DROP CONNECTION IF EXISTS c")


def refused(answer: tuple[str, str], beginning: str, *, without: str = "") -> bool:
    """Whether a test failed with a reason that begins like this and doesn't have a secret in it."""
    state, detail = answer
    assert not without or without not in detail
    assert (state, detail.startswith(beginning)) == ("FAILED", True), detail
    return True


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_mqtt(tested: Tester, mosquitto: Mosquitto, version: str) -> None:
    """A broker lets in who has the password, in both versions of the protocol, and nobody else."""
    login = {"url": mosquitto.url, "username": mosquitto.username, "version": version}
    assert tested("mqtt", **login, password=mosquitto.password) == ("OK", f"MQTT {version}")
    assert refused(tested("mqtt", **login, password="guessed-it"), "login refused by mqtt://", without="guessed-it")
    assert refused(tested("mqtt", url=mosquitto.url, version=version), "login refused")
    assert refused(tested("mqtt", url=f"mqtt://127.0.0.1:{free_port()}", version=version), "unreachable: mqtt://")
    assert refused(tested("mqtt", url=f"mqtts://127.0.0.1:{mosquitto.port}", timeout="2s"), "unreachable: mqtts://")


def test_a_broker_that_comes_back(tested: Tester, engine: Embedded, tmp_path: Path) -> None:
    """It is FAILED while it is away or frozen, and OK afterwards, without anything else being done."""
    broker = Mosquitto(tmp_path, "allow_anonymous true")
    broker.start()
    try:
        assert tested("mqtt", url=broker.url, timeout="500ms")[0] == "OK"
        broker.freeze()
        [(_, state, _, detail)] = engine.run("TEST CONNECTION c")
        assert (state, detail) == ("FAILED", f"unreachable: {broker.url}: no answer within 0.5s")
        broker.thaw()
        assert engine.run("TEST CONNECTION c")[0][1] == "OK"
        broker.kill()
        assert engine.run("TEST CONNECTION c")[0][1] == "FAILED"
        broker.start()
        assert engine.run("TEST CONNECTION c")[0][1] == "OK"
    finally:
        broker.kill()


def test_postgres(tested: Tester, postgres: Postgres) -> None:
    """The server's version; a wrong password, an unknown user and an unknown database are three different things."""
    place = {"host": "127.0.0.1", "port": postgres.port, "username": postgres.username, "database": postgres.database}
    state, detail = tested("postgres", **place, password=postgres.password)
    assert (state, detail.split(", ")[1]) == ("OK", "database postgres")
    wrong = tested("postgres", **place, password="guessed-it")
    assert refused(wrong, f"login refused by 127.0.0.1:{postgres.port}", without="guessed-it")
    assert refused(tested("postgres", **place), "login refused")
    assert refused(tested("postgres", **{**place, "username": "nobody"}, password="p" * 9), "login refused")
    unknown = tested("postgres", **{**place, "database": "nowhere"}, password=postgres.password)
    assert refused(unknown, "unknown database")
    assert refused(tested("postgres", **{**place, "port": free_port()}), "unreachable: 127.0.0.1:")
    assert refused(tested("postgres", **place, sslmode="require", password="p" * 9), "unreachable", without="p" * 9)


def test_kafka(tested: Tester, kafka: Kafka) -> None:
    """The brokers are counted; nobody, and brokers that want something else, are named."""
    state, detail = tested("kafka", servers=kafka.servers)
    assert (state, detail.split(", ")[:2]) == ("OK", ["Kafka", "3 brokers"])
    assert refused(tested("kafka", servers=f"127.0.0.1:{free_port()}", timeout="500ms"), "unreachable: 127.0.0.1:")
    secret = {"username": "pen", "password": "guessed-it"}
    answer = tested("kafka", servers=kafka.servers, security="sasl_plaintext", timeout="500ms", **secret)
    assert refused(answer, "", without="guessed-it")
    assert refused(tested("kafka", servers=kafka.servers, security="ssl", tls_ca="/none.pem"), "no client can be made")


def test_kafka_brokers_that_hang(tested: Tester) -> None:
    """Brokers that take connections and say nothing cost the timeout."""
    cluster = Kafka(1)
    try:
        cluster.freeze()
        assert refused(tested("kafka", servers=cluster.servers, timeout="500ms"), "unreachable")
    finally:
        cluster.close()


@pytest.mark.parametrize(("code", "kind"), [
    (KafkaError._AUTHENTICATION, LoginRefusedError), (KafkaError.SASL_AUTHENTICATION_FAILED, LoginRefusedError),
    (KafkaError.TOPIC_AUTHORIZATION_FAILED, LoginRefusedError), (KafkaError.UNKNOWN_TOPIC_OR_PART, TargetMissingError),
    (KafkaError.MSG_SIZE_TOO_LARGE, ContentRefusedError), (KafkaError._ALL_BROKERS_DOWN, ConnectionFailedError),
    (KafkaError.NOT_LEADER_FOR_PARTITION, ConnectionFailedError),
])
def test_errors_of_kafka(code: int, kind: type[ExternalSystemError]) -> None:
    """What only brokers with users and limits say has its class, and no secret in it."""
    connection = OpenedConnection("c", "kafka", {"servers": "k:9092", "password": "guessed-it"}, 1)
    error = kafka_connector.external_error(connection, KafkaError(code, "guessed-it is wrong"))
    assert type(error) is kind
    assert error.retry == (kind is ConnectionFailedError)
    assert "guessed-it" not in str(error)


def test_files(tested: Tester, tmp_path: Path) -> None:
    """Folders that are there are listed; those that can be made are fine; others, and other schemes, are unknown."""
    (tmp_path / "one").write_text("1")
    assert tested("files", url=tmp_path.as_uri()) == ("OK", "file, 1 entries")
    assert tested("files", url=(tmp_path / "later").as_uri()) == ("OK", "file, the folder is not there yet")
    assert refused(tested("files", url=(tmp_path / "one" / "two" / "three").as_uri()), "unknown folder file://")
    assert tested("files", url="memory://somewhere")[0] == "OK"
    assert refused(tested("files", url="nowhere://somewhere"), "unknown kind of place")


@pytest.fixture(scope="module")
def web() -> Iterator[tuple[str, list[str]]]:
    """A web server that answers with the status that its path names; the tokens that it was shown."""
    tokens: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            tokens.append(self.headers.get("Authorization", ""))
            self.send_response(int(self.path.strip("/")))
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", tokens
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("status", "beginning"), [
    (200, None), (405, None), (501, None), (401, "login refused"), (403, "login refused"), (404, "unknown address"),
    (429, "unreachable"), (503, "unreachable"),
])
def test_webhooks(tested: Tester, web: tuple[str, list[str]], status: int, beginning: str | None) -> None:
    """HEAD tells whether the address is there and takes the token; that it takes POST only is no failure."""
    url, tokens = web
    answer = tested("webhook", url=f"{url}/{status}", token="a-token")
    assert tokens[-1] == "Bearer a-token"
    if beginning is None:
        assert answer == ("OK", f"HTTP, answers {status}")
    else:
        assert refused(answer, beginning, without="a-token")


def test_a_webhook_that_nobody_serves(tested: Tester) -> None:
    """Nobody listens: that is unreachable."""
    assert refused(tested("webhook", url=f"http://127.0.0.1:{free_port()}/hook"), "unreachable")
