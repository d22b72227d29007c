"""Queries with long texts, which the process of the queries reads and plans: the same answers, the same refusals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from kits.engines.embedded import Embedded

from penstock.common.errors import (
    CancelledError,
    InternalError,
    LimitExceededError,
    PenstockError,
    PermissionDeniedError,
    UnavailableError,
)
from penstock.common.responsiveness import LONG_TEXT
from penstock.mnode.access.audit_log import Origin
from penstock.mnode.access.roles import Identity
from penstock.mnode.access.session import SessionState
from penstock.mnode.query import query_statements
from penstock.mnode.query.plan_messages import PlannedQuery, PlanRequest, decode_answer, decode_question
from penstock.mnode.query.unread_queries import UnreadQuery, gives_rows, is_long_query
from penstock.sql.schema import Session

BLANKS = " " * LONG_TEXT
QUERIES = [
    "SELECT * FROM m ORDER BY ts, g",
    "SELECT ts::date d, [v, g] l, {'a': interval '1' day} s, 'x'::enum('x') e FROM m ORDER BY ts, g",
    "SELECT ts, v + 1 AS w, now() FROM d.n WHERE ts >= '2023-11-14 22:13:20' LIMIT 3",
    "SELECT tbname, g, count(*), avg(v) FROM m WHERE g > 1 GROUP BY tbname, g ORDER BY tbname",
    "SELECT _wstart, sum(v) FROM m PARTITION BY tbname INTERVAL(2s) ORDER BY _wstart, sum(v)",
    "SELECT _wstart, sum(v) FROM m WHERE ts >= '2023-11-14 22:13:20' AND ts < '2023-11-14 22:14:00' "
    "INTERVAL(5s) FILL(PREV)",
    "SELECT a.ts, a.v, b.v FROM m1 a JOIN m2 b ON a.ts = b.ts",
    "(SELECT v FROM m1) UNION ALL (SELECT v FROM m2)",
    "SELECT last_row(*) FROM m",
    "SELECT max(c) FROM (SELECT count(*) AS c FROM m PARTITION BY tbname)",
    "SELECT stable_name FROM information_schema.ins_stables WHERE db_name = 'd'",
    "SELECT DISTINCT tbname, g FROM m ORDER BY tbname",
    "SELECT 1 + 1, 'ö'",
]
WRONG = [
    "SELECT nosuch FROM m", "SELECT v FROM nosuch", "SELECT v FROM nosuch.m", "SELECT FROM WHERE",
    "SELECT no(v) FROM m",
    "SELECT v FROM m; SELECT v FROM m", "SELECT avg(v), ts FROM m1 INTERVAL(1s) FILL(VALUE)", "SELECT v FROM meter",
]


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path_factory.mktemp("unread") / "data", {"queryWordsMax": 500})
    start = 1_700_000_000_000
    embedded.all(
        "CREATE DATABASE d KEEP 36500", "CREATE DATABASE e KEEP 36500",
        "CREATE STABLE d.m (ts TIMESTAMP, v INT) TAGS (g INT)",
        *(f"CREATE TABLE d.m{g} USING d.m TAGS ({g})" for g in (1, 2, 3)), "CREATE TABLE d.n (ts TIMESTAMP, v DOUBLE)",
        "CREATE TABLE e.secret (ts TIMESTAMP, v INT)",
        *(f"INSERT INTO d.m{g} VALUES ({start + 1000 * row}, {row * g})" for g in (1, 2, 3) for row in range(4)),
        *(f"INSERT INTO d.n VALUES ({start + row}, {row / 4})" for row in range(5)),
        "CREATE USER ada PASS 'correct horse' ROLE admin",
        "CREATE USER bob PASS 'battery staple' ROLE none", "GRANT READ ON d.* TO bob")
    yield embedded
    embedded.close()


def client(db: Embedded, user: str | None = None) -> SessionState:
    """Returns the session of a client that has come by HTTP: of an admin, or of a user."""
    state = SessionState("UTC", "d", origin=Origin("HTTP", "127.0.0.1"))
    if user is not None:
        known = db.engine.catalog.users.named(user)
        assert known is not None
        state.identity = Identity(user, known.role, frozenset(known.granted))
    return state


def ask(db: Embedded, text: str, state: SessionState) -> pa.Table:
    statement = db.engine.read_or_query(text, state)
    assert gives_rows(statement)
    with db.engine.open_query(statement, text, state) as opened:
        return opened.table()


@pytest.fixture
def reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine fails where it would read a query itself."""
    monkeypatch.setattr(query_statements, "parse_query", None)


@pytest.mark.usefixtures("reads_nothing")
@pytest.mark.parametrize("text", QUERIES)
def test_the_answer_is_that_of_a_short_text(db: Embedded, text: str) -> None:
    """Rows, names and types; `query_columns` tells the latter without running it."""
    long = f"{BLANKS}{text}"
    assert is_long_query(long)
    state = client(db)
    want = ask(db, text, state)
    assert ask(db, long, state).equals(want)
    columns = db.engine.query_columns(UnreadQuery(source_text=long), state)
    assert [column.name for column in columns] == want.column_names


@pytest.mark.usefixtures("reads_nothing")
@pytest.mark.parametrize("text", WRONG)
def test_errors_are_those_of_a_short_text(db: Embedded, text: str) -> None:
    """The same class, text, hint and position."""
    state, errors = client(db), []
    for whole in (text, f"{text}{BLANKS}"):
        with pytest.raises(PenstockError) as raised:
            ask(db, whole, state)
        errors.append((type(raised.value), str(raised.value), raised.value.hint, raised.value.position))
    assert errors[0] == errors[1]


@pytest.mark.usefixtures("reads_nothing")
def test_who_may_not_read_a_table_is_told_nothing_of_it(db: Embedded) -> None:
    """Neither whether there is a table, nor a database; tables that may be read are."""
    bob = client(db, "bob")
    assert ask(db, f"SELECT count(*) FROM m{BLANKS}", bob).to_pydict() == {"count(*)": [12]}
    for name in ("e.secret", "e.nosuch", "f.secret"):
        with pytest.raises(PermissionDeniedError):
            ask(db, f"SELECT * FROM {name}{BLANKS}", bob)
        with pytest.raises(PermissionDeniedError):
            db.engine.query_columns(UnreadQuery(source_text=f"SELECT * FROM {name}"), bob)


def test_long_queries_of_users_have_as_few_words_as_others(db: Embedded) -> None:
    """What counts is words, not characters."""
    many = f"SELECT {' + '.join(['1'] * 400)}{BLANKS}"
    with pytest.raises(LimitExceededError, match="500"):
        ask(db, many, client(db, "bob"))
    assert ask(db, many, client(db)).num_rows == 1


def test_what_only_the_engine_knows_it_plans_itself(db: Embedded, tmp_path: Path) -> None:
    """Code of users; whoever may not read the table is refused there as well."""
    (tmp_path / "twice.py").write_text(
        "import pyarrow.compute as pc\n\n\ndef twice(v):\n    return pc.multiply(v, 2).cast('int32')\n")
    db.all(f"CREATE FUNCTION twice AS '{tmp_path / 'twice.py'}:twice' OUTPUTTYPE INT LANGUAGE PYTHON")
    text = f"SELECT twice(v) AS w FROM m1 ORDER BY ts{BLANKS}"
    assert ask(db, text, client(db)).to_pydict() == {"w": [0, 2, 4, 6]}
    assert [column.name for column in db.engine.query_columns(UnreadQuery(source_text=text), client(db))] == ["w"]
    with pytest.raises(PermissionDeniedError):
        ask(db, f"SELECT twice(v) FROM e.secret{BLANKS}", client(db, "bob"))


def test_views_are_planned_by_the_engine(db: Embedded) -> None:
    """Which knows what their owners may read; the reader needs a right on the view alone."""
    db.all("INSERT INTO e.secret VALUES (now, 7)", "CREATE VIEW d.shown AS SELECT v FROM e.secret",
           "CREATE VIEW e.hidden AS SELECT v FROM secret", "CREATE VIEW d.own SQL SECURITY INVOKER AS "
           "SELECT v FROM e.secret")
    for state in (client(db), client(db, "bob")):
        assert ask(db, f"SELECT shown.v AS w FROM shown, m1 ORDER BY w{BLANKS}", state).column(0)[0].as_py() == 7
    for view in ("own", "e.hidden"):
        with pytest.raises(PermissionDeniedError):
            ask(db, f"SELECT v FROM {view}{BLANKS}", client(db, "bob"))


def test_planning_ends_when_asked(db: Embedded) -> None:
    """Who hangs up while the process reads doesn't wait for it; later queries are answered."""
    text = f"SELECT {', '.join(f'v + {n}' for n in range(20_000))} FROM m"
    state = client(db)
    statement = db.engine.read_or_query(text, state)
    assert gives_rows(statement)

    def end_later(cancel: Callable[[], None]) -> None:
        threading.Timer(0.05, cancel).start()

    with ExitStack() as stack, pytest.raises(CancelledError):
        stack.enter_context(db.engine.open_query(statement, text, state, end_later))
    assert ask(db, f"SELECT 1{BLANKS}", state).num_rows == 1


def test_the_death_of_the_process_is_an_error_that_says_so(db: Embedded) -> None:
    """Between planning and rows; the next query gets another one."""
    state = client(db)
    text = f"SELECT v FROM m1{BLANKS}"
    statement = db.engine.read_or_query(text, state)
    assert gives_rows(statement)
    process = db.engine.parts.queries.process
    assert process is not None
    with db.engine.open_query(statement, text, state) as opened:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(UnavailableError):
            opened.table()
    assert ask(db, text, state).num_rows == 4


@pytest.mark.parametrize("text", [
    "INSERT INTO m1 VALUES (1, 2)", "SELECT v FROM m1 >> '/tmp/x'", "SHOW TABLES", "SELECTED"])
def test_other_statements_are_read_by_the_engine(text: str) -> None:
    """However long they are."""
    assert not is_long_query(f"{text}{BLANKS}")


@pytest.mark.parametrize("decode", [decode_answer, decode_question, PlannedQuery.decode, PlanRequest.decode])
@pytest.mark.parametrize("data", [
    b"", b"[]", b"{}", b"null", b'["forget", "it"]', b'[[], [["a", 0]]]', b'[{"class": "X"}]'])
def test_what_is_no_message_is_an_error(decode: object, data: bytes) -> None:
    """Whatever comes instead."""
    assert callable(decode)
    with pytest.raises(InternalError):
        decode(data)


def test_requests_keep_what_the_session_is() -> None:
    """But for rights, which stay with the engine."""
    session = Session("d", "Europe/Berlin", 7, "bob", {"a": "b"})
    assert PlanRequest.decode(PlanRequest.of("SELECT 1", 3, session).encode()).session == session
