"""The registry of connections: what it keeps and refuses, who uses one, and that secrets appear nowhere."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.basics.asking import least_role
from kits.engines.embedded import Embedded

from penstock.common.clock import ManualClock
from penstock.common.connection import (
    KINDS,
    RULES,
    ExternalConnection,
    OpenedConnection,
    checked_kind,
    checked_options,
    opened,
)
from penstock.common.errors import (
    ConnectionFailedError,
    InUseError,
    InvalidStatementError,
    LoginRefusedError,
    NotFoundError,
    PenstockError,
    SecretMissingError,
    SqlSyntaxError,
)
from penstock.mnode.access.session import Result
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_records import AskedStream, StreamRecord, StreamUses, TableRead
from penstock.mnode.ddl import connections as connections_module
from penstock.mnode.ddl.connections import Connections
from penstock.sql.dialect.parser import parse_one
from penstock.sql.tree.expression_nodes import quote_string
from penstock.sql.tree.statements import AlterConnection, CreateConnection, DropConnection, Statement, TestConnection
from penstock.tasks.protocol.task_status import ConnectionHealth
from penstock.tasks.protocol.wire import decode, encode

NOW = 1_700_000_000_000
HALL = "CREATE CONNECTION hall TYPE mqtt WITH (url='mqtt://hall', username='pen', password='env:HALL', timeout='100ms')"


class FakeServer:
    """What a connection leads to; `problem` is what it does with who comes."""

    def __init__(self) -> None:
        self.problem: PenstockError | None = None
        self.seen: list[OpenedConnection] = []

    def probe(self, connection: OpenedConnection, timeout_s: float) -> str:
        self.seen.append(connection)
        if self.problem is not None:
            raise self.problem
        return "it is there"


class Registry:
    """The registry over a real catalog, with an environment, files and a server of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock(NOW)
        self.environ = {"HALL": "a secret"}
        self.files: dict[str, str] = {}
        self.server = FakeServer()
        self.open()

    def open(self) -> None:
        self.catalog = Catalog(self.path)
        self.connections = Connections(self.catalog, self.clock, self.environ, self.read_text, self.server.probe)

    def read_text(self, path: str) -> str:
        if path not in self.files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.files[path]

    def run(self, text: str) -> list[tuple[object, ...]]:
        statement = parse_one(text)
        match statement:
            case CreateConnection():
                self.connections.create(statement)
            case AlterConnection():
                self.connections.alter(statement)
            case DropConnection():
                self.connections.drop(statement)
            case TestConnection():
                table = self.connections.test(statement).table
                assert table is not None
                return [tuple(row.values()) for row in table.to_pylist()]
        return []

    def health(self) -> tuple[str, str, int | None]:
        """Returns state, reason and since-when of the only connection."""
        health = self.connections.infos()[0].health
        return health.state, health.reason, health.since_ms


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    made = Registry(tmp_path / "catalog")
    yield made
    made.catalog.close()


def stream(name: str, *connections: str) -> StreamRecord:
    asked, uses = AskedStream("CREATE STREAM ...", "d", "UTC", NOW), StreamUses((TableRead(1),), (), connections)
    return StreamRecord(0, name, asked, 2, False, (), uses)


# --- options -------------------------------------------------------------------------------------------------------

def valid_options() -> st.SearchStrategy[tuple[str, dict[str, str]]]:
    """Draws a kind with options that it takes."""
    plain = st.text(st.characters(categories=("L", "N", "P", "Zs")), min_size=1, max_size=12).filter(str.isprintable)
    special: dict[object, st.SearchStrategy[str]] = {
        "port": st.integers(1, 65_535).map(str), "timeout": st.sampled_from(("100ms", "2s", "10m", "3")),
        ("mqtt", "url"): st.sampled_from(("mqtt://h", "mqtts://h:8884")),
        ("files", "url"): st.sampled_from(("file:///data", "s3://b/p", "memory://a")),
        ("files", "endpoint"): st.just("https://s3.example"), ("webhook", "url"): st.just("http://127.0.0.1:80/a?b=c"),
    }

    @st.composite
    def draw_options(draw: st.DrawFn) -> tuple[str, dict[str, str]]:
        kind = draw(st.sampled_from(KINDS))
        rules = RULES[kind]
        chosen = draw(st.sets(st.sampled_from(sorted(rules)))) | {n for n, rule in rules.items() if rule.required}
        options = {}
        for name in sorted(chosen):
            rule = rules[name]
            if rule.secret:
                options[name] = draw(st.sampled_from(("env:A_1", "file:/run/a b")))
            elif rule.choices:
                options[name] = draw(st.sampled_from(rule.choices))
            else:
                options[name] = draw(special.get((kind, name), special.get(name, plain)))
        if "password" in options or options.get("security", "").startswith("sasl"):
            options.setdefault("username", "pen")
        if options.get("security", "").startswith("sasl"):
            options.setdefault("password", "env:A_1")
        return kind, options

    return draw_options()


@given(valid_options())
def test_what_is_valid_is_taken_and_read_back_as_it_was(drawn: tuple[str, dict[str, str]]) -> None:
    """Any valid options go through the statement's text, and what is opened has them, the defaults and the secrets."""
    kind, options = drawn
    text = ", ".join(f"{name}={quote_string(value)}" for name, value in options.items())
    statement = parse_one(f"CREATE CONNECTION c TYPE {kind} WITH ({text})")
    assert isinstance(statement, CreateConnection)
    known = checked_kind(statement.kind)
    taken = checked_options(known, statement.options)
    assert dict(taken) == options
    connection = opened(ExternalConnection("c", known, taken), {"A_1": "one"}, lambda path: f"{path} has it\n")
    for name, rule in RULES[connection.kind].items():
        given_value = options.get(name, rule.default)
        secrets = {"env:A_1": "one", "file:/run/a b": "/run/a b has it"}
        expected = secrets.get(given_value or "") if rule.secret else None
        assert connection.options.get(name) == (expected or given_value)
    assert connection.timeout_s > 0


@given(valid_options(), st.data())
def test_all_mistakes_are_said_at_once(drawn: tuple[str, dict[str, str]], data: st.DataObject) -> None:
    """Whichever options are spoilt, left out or invented, one error names each of them and no other."""
    kind, options = drawn
    rules = RULES[kind]  # type: ignore[index]
    spoilable = [name for name in options if name in ("port", "timeout", "url", "endpoint") or rules[name].choices
                 or rules[name].secret]
    wrong = data.draw(st.sets(st.sampled_from(sorted(spoilable))) if spoilable else st.just(set()))
    missing = data.draw(st.sets(st.sampled_from(sorted(n for n, rule in rules.items() if rule.required))))
    given_options = [(name, "!" if name in wrong else value) for name, value in options.items() if name not in missing]
    invented = data.draw(st.sets(st.sampled_from(("zzz", "qqq"))))
    given_options += [(name, "1") for name in sorted(invented)]
    if not (wrong - missing) and not missing and not invented:
        return
    with pytest.raises(InvalidStatementError) as caught:
        checked_options(kind, given_options)  # type: ignore[arg-type]
    problems = caught.value.message.partition(": ")[2].split("; ")
    named = {problem.split()[0].rstrip(":") for problem in problems}
    assert named >= (wrong | missing | invented)
    if "security" not in wrong and "password" not in missing:
        assert named == (wrong | missing | invented)


def test_who_must_set_a_secret_is_said_with_its_name() -> None:
    """Each variable and file that isn't there, is empty or is no text is named in one error, with what to do."""
    def read_text(path: str) -> str:
        if path == "/bytes":
            raise UnicodeDecodeError("utf-8", b"", 0, 1, "no")
        if path == "/empty":
            return "\n"
        raise PermissionError(13, "Permission denied")

    for reference, expected in (
        ("env:NOT_SET", "the environment variable NOT_SET is not set"),
        ("file:/closed", "the file /closed cannot be read: Permission denied"),
        ("file:/bytes", "the file /bytes cannot be read: it is not valid UTF-8"),
        ("file:/empty", "the file /empty is empty"),
    ):
        connection = ExternalConnection("lake", "files", (("key", reference), ("secret", "env:NEITHER"), ("url", "s3://b")))
        with pytest.raises(SecretMissingError, match="the operator must") as caught:
            opened(connection, {}, read_text)
        assert f"key: {expected}; secret: the environment variable NEITHER is not set" in str(caught.value)


# --- the registry --------------------------------------------------------------------------------------------------

def test_connections_outlive_the_engine(registry: Registry) -> None:
    """After opening the catalog again all is as it was, but nothing is known of whether it works."""
    registry.run(HALL)
    registry.run("CREATE CONNECTION bus TYPE kafka WITH (servers='k')")
    registry.run("ALTER CONNECTION bus SET (servers='k1,k2')")
    registry.run("DROP CONNECTION IF EXISTS other")
    registry.run("TEST CONNECTION hall")
    before = registry.connections.infos()
    registry.catalog.close()
    registry.open()
    after = registry.connections.infos()
    assert [(info.connection, info.created_ms) for info in after] == [
        (info.connection, info.created_ms) for info in before]
    assert {info.connection.name: info.connection.version for info in after} == {"hall": 1, "bus": 2}
    assert {info.health.state for info in before} == {"OK", "UNTESTED"}
    assert {info.health.state for info in after} == {"UNTESTED"}


def test_a_connection_in_use_cannot_be_dropped(registry: Registry) -> None:
    """DROP names the users; once they are gone it works."""
    registry.run(HALL)
    first = registry.catalog.streams.create(stream("alarms", "other", "hall"))
    second = registry.catalog.streams.create(stream("hourly", "hall"))
    registry.catalog.streams.create(stream("apart"))
    assert registry.connections.infos()[0].used_by == ("stream alarms", "stream hourly")
    with pytest.raises(InUseError, match="in use by stream alarms, stream hourly"):
        registry.run("DROP CONNECTION hall")
    for record in (first, second):
        registry.catalog.streams.drop(record.id)
    registry.run("DROP CONNECTION hall")
    assert registry.connections.infos() == []
    with pytest.raises(NotFoundError):
        registry.connections.open("hall")


def test_users_hear_of_changes(registry: Registry) -> None:
    """ALTER counts the version up and tells who watches, who then gets the new options and the secret as it is now."""
    heard: list[ExternalConnection] = []
    registry.connections.watch(heard.append)
    registry.run(HALL)
    before = registry.connections.open("hall")
    registry.environ["HALL"] = "another"
    registry.run("ALTER CONNECTION hall SET (url='mqtt://new', timeout=NULL)")
    after = registry.connections.open("hall")
    assert [connection.version for connection in heard] == [2]
    assert (before.version, before.options["password"], before.timeout_s) == (1, "a secret", 0.1)
    assert (after.version, after.options["password"], after.timeout_s) == (2, "another", 10.0)
    assert dict(heard[0].options) == {"url": "mqtt://new", "username": "pen", "password": "env:HALL"}
    with pytest.raises(InvalidStatementError):
        registry.run("ALTER CONNECTION hall SET (url=NULL)")
    assert len(heard) == 1
    assert registry.connections.find("hall") == heard[0]


def test_state_reason_and_since_when_of_a_connection(registry: Registry) -> None:
    """The last test or use decides; `since` is when the state began; what concerns older options counts for nothing."""
    registry.run(HALL)
    assert registry.health() == ("UNTESTED", "", None)
    assert registry.run("TEST CONNECTION hall") == [("hall", "OK", 0.0, "it is there")]
    assert registry.health() == ("OK", "", NOW)
    registry.clock.advance(5)
    registry.run("TEST CONNECTION hall")
    assert registry.health() == ("OK", "", NOW)
    old = registry.connections.open("hall")
    registry.connections.note(old, ConnectionFailedError("unreachable: the cable is out"))
    assert registry.health() == ("FAILED", "unreachable: the cable is out", NOW + 5000)
    registry.run("ALTER CONNECTION hall SET (url='mqtt://new')")
    assert registry.health() == ("UNTESTED", "", None)
    registry.connections.note(old, ConnectionFailedError("unreachable: the cable is out"))
    assert registry.health() == ("UNTESTED", "", None)
    registry.server.problem = LoginRefusedError("login refused", hint="ask the warden")
    assert registry.run("TEST CONNECTION hall") == [("hall", "FAILED", 0.0, "login refused (ask the warden)")]
    del registry.environ["HALL"]
    [(_, state, _, detail)] = registry.run("TEST CONNECTION hall")
    assert state == "FAILED"
    assert "HALL is not set" in str(detail)


def test_those_who_use_a_connection_are_heard(registry: Registry) -> None:
    """It fails as long as one of them can't use it; a test that failed is out of date once it is used."""
    registry.run(HALL)
    for name in "ab":
        registry.catalog.streams.create(stream(name, "hall"))
    away = "unreachable: the cable is out"
    registry.connections.note_health("stream a", ConnectionHealth("hall", 1, away))
    registry.clock.advance(1)
    registry.connections.note_health("stream b", ConnectionHealth("hall", 1))
    assert registry.health() == ("FAILED", away, NOW)
    registry.run("TEST CONNECTION hall")
    assert registry.health() == ("FAILED", away, NOW)
    registry.connections.note_health("stream a", ConnectionHealth("hall", 1))
    assert registry.health() == ("OK", "", NOW + 1000)
    registry.server.problem = LoginRefusedError("login refused")
    registry.run("TEST CONNECTION hall")
    assert registry.health() == ("FAILED", "login refused", NOW + 1000)
    registry.connections.note_health("stream b", ConnectionHealth("hall", 1))
    assert registry.health() == ("OK", "", NOW + 1000)
    registry.connections.note_health("stream gone", ConnectionHealth("hall", 1, away))
    assert registry.health() == ("OK", "", NOW + 1000)
    registry.connections.note_health("stream a", ConnectionHealth("nowhere", 1, away))


def test_what_never_answers_is_given_up(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that hangs costs a test its timeout, not more."""
    monkeypatch.setattr(connections_module, "_GRACE_S", 0.0)
    never = threading.Event()
    monkeypatch.setattr(registry.connections, "_probe", lambda connection, timeout_s: str(never.wait(30)))
    registry.run(HALL)
    assert [row[1::2] for row in registry.run("TEST CONNECTION hall")] == [("FAILED", "no answer within 100ms")]
    never.set()


def test_testing_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a test waits for its answer, other statements run, also those that change the catalog and connections."""
    asked, answer = threading.Event(), threading.Event()

    def slow(connection: OpenedConnection, timeout_s: float) -> str:
        asked.set()
        answer.wait(60)
        return "at last"

    monkeypatch.setattr("penstock.mnode.engine_parts.probe", slow)
    engine = Embedded(tmp_path)
    try:
        engine.run("CREATE CONNECTION slow TYPE files WITH (url='memory://a')")
        rows: list[tuple[object, ...]] = []
        waiting = threading.Thread(target=lambda: rows.extend(engine.run("TEST CONNECTION slow")))
        waiting.start()
        assert asked.wait(60)
        engine.all("CREATE DATABASE d", "CREATE TABLE d.t (ts TIMESTAMP, v INT)", "INSERT INTO d.t VALUES (NOW, 1)",
                   "ALTER CONNECTION slow SET (url='memory://b')", "DROP CONNECTION slow", "DROP DATABASE d")
        assert rows == []
        answer.set()
        waiting.join(60)
        assert [(row[1], row[3]) for row in rows] == [("OK", "at last")]
    finally:
        answer.set()
        engine.close()


def test_only_admins_change_and_test_connections() -> None:
    """As for functions; anybody may look, at those that were granted."""
    for text in (HALL, "ALTER CONNECTION hall SET (url='mqtt://h')", "DROP CONNECTION hall", "TEST CONNECTION hall",
                 "CREATE FUNCTION f RETURNS INT LANGUAGE PYTHON AS 'a:b'"):
        assert least_role(text) == "admin"
    assert least_role("SHOW CONNECTIONS") == "none"


def test_a_library_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without psycopg everything else works, and a test says what to install."""
    monkeypatch.delitem(sys.modules, "penstock.tasks.external.connectors.postgres", raising=False)
    monkeypatch.delattr("penstock.tasks.external.connectors.postgres", raising=False)  # where others have imported it
    monkeypatch.setitem(sys.modules, "psycopg", None)
    engine = Embedded(tmp_path)
    try:
        engine.run("CREATE CONNECTION store TYPE postgres WITH (host='127.0.0.1', database='d', username='u')")
        [(_, state, _, detail)] = engine.run("TEST CONNECTION store")
        assert state == "FAILED"
        assert "psycopg" in detail
        assert "pip install 'penstock[connections]'" in detail
    finally:
        engine.close()


# --- secrets -------------------------------------------------------------------------------------------------------

#: The first character is in no other text, so that what is found is the secret.
SECRETS = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=5, max_size=40,
).map(lambda text: "¤" + text + "¤")


def everything_written(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    made = Embedded(tmp_path_factory.mktemp("secrets"))
    yield made
    made.close()


@given(SECRETS, st.sampled_from(("env", "file")))
@settings(max_examples=times(8, 400), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_secrets_are_found_nowhere(
    engine: Embedded, tmp_path: Path, caplog: pytest.LogCaptureFixture, secret: str, scheme: str
) -> None:
    """Neither on disk nor in logs, answers, errors and texts of objects is a secret, even if a server says it."""
    caplog.set_level(logging.DEBUG)
    (tmp_path / "secret").write_text(secret, "utf-8")
    reference = "env:TEST_SECRET" if scheme == "env" else f"file:{tmp_path / 'secret'}"

    def telling(connection: OpenedConnection, timeout_s: float) -> str:
        assert connection.options["password"] == secret
        raise LoginRefusedError(connection.hidden(f"no user has {connection.options['password']}, said {connection!r}"))

    seen: list[object] = []
    connections = engine.engine.parts.connections
    with patch.dict(os.environ, {"TEST_SECRET": secret}), patch.object(connections, "_probe", telling):
        engine.run(f"CREATE CONNECTION c TYPE postgres WITH (host='h', database='d', username='u', "
                   f"password={quote_string(reference)})")
        [(_, state, _, detail)] = engine.run("TEST CONNECTION c")
        assert (state, "no user has ***" in detail) == ("FAILED", True)
        connection = engine.engine.parts.connections.open("c")
        seen += [detail, connection, str(connection), [connection], engine.run("SHOW CONNECTIONS"),
                 engine.engine.parts.connections.infos(), engine.engine.catalog.connections.all()]
        assert decode(encode(connection), (OpenedConnection,)) == connection
    engine.run("DROP CONNECTION c")
    for text in (
        "CREATE CONNECTION c TYPE postgres WITH (host='h', database='d', username='u', "
        f"password={quote_string(secret)})",
        f"CREATE CONNECTION c TYPE postgres WITH (password {quote_string(secret)})",
        f"CREATE CONNECTION c TYPE postgres WITH ({quote_string(secret)})",
        f"CREATE CONNECTION c TYPE mqtt WITH (url={quote_string(f'mqtt://u:{secret}@h')})",
        f"CREATE CONNECTION c TYPE mqtt WITH (url={quote_string(f'mqtt://u:{secret}')})",
    ):
        with pytest.raises((InvalidStatementError, SqlSyntaxError)) as caught:
            engine.run(text)
        seen += [str(caught.value), caught.value.__dict__, caught.value.__cause__]
    shown = caplog.text + repr(seen)
    assert secret not in shown
    assert secret.encode() not in everything_written(engine.path)


def test_a_statement_that_runs_is_listed_without_its_options(engine: Embedded) -> None:
    """Others see that a connection is made, not what was written by mistake."""
    listed: list[str] = []

    execute = engine.engine._dispatch.execute

    def look(statement: Statement, *rest: Any) -> Result:
        if isinstance(statement, CreateConnection | AlterConnection):
            listed.extend(row[0] for row in engine.run("SELECT sql FROM performance_schema.perf_queries"))
            raise NotFoundError("enough")
        return execute(statement, *rest)

    for text in ("CREATE CONNECTION c TYPE mqtt WITH (url='mqtt://h', password='¤')",
                 "ALTER CONNECTION c SET (password='¤')"):
        with patch.object(engine.engine._dispatch, "execute", look), pytest.raises(NotFoundError):
            engine.run(text)
    assert {text for text in listed if "CONNECTION" in text} == {"CREATE CONNECTION c TYPE mqtt", "ALTER CONNECTION c"}


def test_opened_connections_hide_every_secret() -> None:
    """The longer of two secrets goes first, so that nothing of it stays; an empty one is no text to hide."""
    options: Mapping[str, str] = {"url": "s3://b", "key": "abc", "secret": "abcdef", "timeout": "1s"}
    connection = OpenedConnection("lake", "files", options, 1)
    assert connection.hidden("abcdef and abc, at s3://b") == "*** and ***, at s3://b"
