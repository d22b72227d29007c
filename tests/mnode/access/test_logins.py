"""Who may ask and what: users, passwords, tokens and roles, without any network."""

from __future__ import annotations

import base64
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.basics.asking import least_role
from kits.engines.embedded import Embedded

from penstock.common.clock import ManualClock
from penstock.common.errors import (
    AlreadyExistsError,
    ConfigError,
    InvalidStatementError,
    LoginDelayedError,
    NotFoundError,
    PenstockError,
    PermissionDeniedError,
    SqlSyntaxError,
    UnauthenticatedError,
)
from penstock.common.passwords import PasswordHash, hash_password, scram_verifier
from penstock.mnode.access import logins as logins_module
from penstock.mnode.access.audit_log import Origin
from penstock.mnode.access.login_throttle import LoginThrottle
from penstock.mnode.access.logins import Logins, check_host, is_loopback
from penstock.mnode.access.roles import OWNER, Identity
from penstock.mnode.access.session import Result
from penstock.mnode.catalog.catalog_records import UserRecord
from penstock.sql.dialect.parser import parse_one
from penstock.sql.rights import Role
from penstock.sql.tree.statements import CreateUser, Statement

LIFETIME_S = 600.0


class KnownUsers:
    """Users in memory; their hashes are made cheaply, by the same function."""

    def __init__(self) -> None:
        self.records: dict[str, UserRecord] = {}
        self.are_lost = False

    def add(self, name: str, password: str, role: Role) -> None:
        self.records[name] = UserRecord(
            name, role, hash_password(password, name.encode(), cost=2), scram_verifier(password, b"s", 1), 0)

    def named(self, name: str) -> UserRecord | None:
        return self.records.get(name)

    def all(self) -> list[UserRecord]:
        return list(self.records.values())


@pytest.fixture
def users() -> KnownUsers:
    known = KnownUsers()
    known.add("ada", "correct horse", "admin")
    return known


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def logins(users: KnownUsers, clock: ManualClock) -> Logins:
    numbers = itertools.count()
    return Logins(users, clock, lambda size: next(numbers).to_bytes(size, "big"), LIFETIME_S, trusting=True)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def counted_hashes(monkeypatch: pytest.MonkeyPatch) -> list[PasswordHash]:
    """Returns the hashes that passwords are held against from now on."""
    tried: list[PasswordHash] = []
    fits = PasswordHash.fits

    def count(self: PasswordHash, password: str) -> bool:
        tried.append(self)
        return fits(self, password)

    monkeypatch.setattr(PasswordHash, "fits", count)
    return tried


def test_a_hash_fits_its_password_alone() -> None:
    """Another password, and the same one with another salt, give another hash; neither is shown."""
    one, other = hash_password("secret 1", b"a" * 16), hash_password("secret 1", b"b" * 16)
    assert one.fits("secret 1")
    assert other.fits("secret 1")
    assert not one.fits("secret 2")
    assert not one.fits("")
    assert one.digest != other.digest
    assert one.digest not in repr(one)
    assert one.salt not in repr(one)


def test_a_pass_is_good_for_a_minute_while_nothing_about_its_user_changes(
    logins: Logins, users: KnownUsers, clock: ManualClock
) -> None:
    """Another password, another role, the minute, the token's end: after each of them the header is read again."""
    origin = Origin("http", "192.0.2.1")
    header = basic("ada", "correct horse")
    first = logins.admit(header, origin)
    assert (first.identity, first.origin) == (Identity("ada", "admin"), origin)
    assert logins.holds(first)
    clock.advance(59.9)
    assert logins.holds(first)
    clock.advance(0.1)
    assert not logins.holds(first)
    again = logins.admit(header, origin)
    users.add("ada", "correct horse", "read")
    assert not logins.holds(again)
    reader = logins.admit(header, origin)
    assert reader.identity == Identity("ada", "read")
    users.add("ada", "battery staple", "read")
    assert not logins.holds(reader)
    with pytest.raises(UnauthenticatedError):
        logins.admit(header, origin)
    token = logins.login("ada", "battery staple")
    clock.advance(LIFETIME_S - 30.0)
    by_token = logins.admit(f"Bearer {token.text}", origin)
    clock.advance(29.9)
    assert logins.holds(by_token)
    clock.advance(0.1)
    assert not logins.holds(by_token)
    del users.records["ada"]
    owner = logins.admit(None, origin)
    assert logins.holds(owner)
    users.add("bob", "battery staple", "read")
    assert not logins.holds(owner)


def test_a_token_stands_for_its_user_until_it_expires(logins: Logins, clock: ManualClock) -> None:
    """Just before its end it is good, at its end it isn't, and a made up one never is."""
    token = logins.login("ada", "correct horse")
    assert token.text not in repr(token)
    clock.advance(LIFETIME_S - 1)
    assert logins.identify(token.text) == logins.authorize(f"Bearer {token.text}") == Identity("ada", "admin")
    clock.advance(1)
    with pytest.raises(UnauthenticatedError, match="has expired"):
        logins.identify(token.text)
    with pytest.raises(UnauthenticatedError, match="is not known"):
        logins.identify(token.text + "x")


@pytest.mark.parametrize("header", [
    None, "", "Basic", "Basic ???", "Basic " + base64.b64encode(b"no colon").decode(), "Bearer", "Bearer x", "Digest x",
    basic("ada", "wrong horse"), basic("ada", ""), basic("nobody", "correct horse"), basic("ADA", "correct horse"),
])
def test_what_is_wrong_or_malformed_gets_no_identity(logins: Logins, header: str | None) -> None:
    """No header, broken ones, wrong passwords and unknown users are refused, with the same words for the latter two."""
    with pytest.raises(UnauthenticatedError):
        logins.authorize(header)


def test_unknown_users_and_wrong_passwords_look_the_same(logins: Logins, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same words, after the same work."""
    tried = counted_hashes(monkeypatch)
    texts = set()
    for user in ("ada", "nobody"):
        with pytest.raises(UnauthenticatedError) as caught:
            logins.check(user, "wrong horse")
        texts.add(str(caught.value))
    assert len(texts) == 1
    assert len(tried) == 2


def test_only_the_first_request_pays_for_the_hash(
    logins: Logins, users: KnownUsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A right password is known again without it; a wrong one, an old one and one of a new user aren't."""
    assert logins.check("ada", "correct horse").name == "ada"
    tried = counted_hashes(monkeypatch)
    assert logins.check("ada", "correct horse").name == "ada"
    assert not tried
    with pytest.raises(UnauthenticatedError):
        logins.check("ada", "wrong horse")
    users.add("ada", "another horse", "admin")
    with pytest.raises(UnauthenticatedError):
        logins.check("ada", "correct horse")
    assert len(tried) == 2


def test_a_token_ends_with_the_password_or_the_user_and_has_the_role_of_now(
    logins: Logins, users: KnownUsers
) -> None:
    """What an admin changes holds for the next request."""
    users.add("bob", "battery staple", "read")
    token = logins.login("bob", "battery staple").text
    users.records["bob"] = replace(users.records["bob"], role="write")
    assert logins.identify(token).role == "write"
    users.add("bob", "staple battery", "write")
    with pytest.raises(UnauthenticatedError, match="no longer valid"):
        logins.identify(token)
    token = logins.login("bob", "staple battery").text
    del users.records["bob"]
    with pytest.raises(UnauthenticatedError, match="no longer valid"):
        logins.identify(token)


def test_tokens_are_bounded(logins: Logins, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound the oldest ones go."""
    monkeypatch.setattr(logins_module, "_TOKENS_MAX", 3)
    tokens = [logins.login("ada", "correct horse").text for _ in range(4)]
    assert [logins.identify(token).name for token in tokens[1:]] == ["ada"] * 3
    with pytest.raises(UnauthenticatedError):
        logins.identify(tokens[0])


def test_without_users_everybody_is_the_owner_but_only_on_this_machine(logins: Logins, users: KnownUsers) -> None:
    """Where it is configured no header is needed; the first user ends that, also for tokens that were given out."""
    first = users.records.pop("ada")
    token = logins.login("anybody", "anything").text
    assert logins.authorize(None) == logins.identify(token) == logins.identify("made up") == OWNER
    for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
        check_host(host, users)
    for host in ("0.0.0.0", "::", "192.168.1.1", "db.example.com", ""):
        with pytest.raises(ConfigError, match="there are no users"):
            check_host(host, users)
        assert not is_loopback(host)
    users.records["ada"] = first
    check_host("0.0.0.0", users)
    for refused in (lambda: logins.authorize(None), lambda: logins.identify(token)):
        with pytest.raises(UnauthenticatedError):
            refused()


@pytest.mark.parametrize(("statement", "role"), [
    ("SELECT 1", "none"), ("SELECT 1 UNION SELECT 2", "none"), ("SHOW DATABASES", "none"), ("DESCRIBE t", "read"),
    ("EXPLAIN SELECT 1", "none"), ("EXPLAIN SELECT * FROM t", "read"), ("SELECT 1 UNION SELECT v FROM t", "read"),
    ("USE d", "read"), ("SHOW USERS", "none"), ("SHOW TABLES", "read"), ("SHOW TABLE TAGS FROM t", "read"),
    ("SELECT * FROM information_schema.ins_tables", "none"),
    ("GRANT READ ON d.t TO u", "admin"), ("REVOKE ALL ON d.* FROM u", "admin"),
    ("EXPLAIN CREATE STREAM s INTO o AS SELECT _wstart, count(*) FROM t INTERVAL(1s)", "read"),
    ("EXPLAIN ANALYZE STREAM s", "read"),
    ("INSERT INTO t VALUES (now, 1)", "write"), ("INSERT INTO t SELECT * FROM u", "write"),
    ("DELETE FROM t WHERE ts < now", "write"), ("NOTE TIME now ON d", "write"),
    ("CREATE TABLE t (ts TIMESTAMP, v INT)", "admin"), ("DROP STREAM s", "admin"), ("PAUSE STREAM s", "admin"),
    ("CREATE USER u PASS 'abcdefgh'", "admin"), ("DROP USER u", "admin"), ("ALTER USER u ROLE admin", "admin"),
    ("FLUSH DATABASE d", "admin"), ("CREATE FUNCTION f RETURNS INT LANGUAGE PYTHON AS 'm:f'", "admin"),
    ("SELECT 1 >> 'file.csv'", "admin"), ("SELECT 1 UNION SELECT 2 >> 'file.csv'", "admin"),
    ("INSERT INTO t FILE 'file.csv'", "admin"), ("CREATE VIEW v AS SELECT 1", "admin"),
    ("CREATE TABLE t AS SELECT * FROM u", "admin"), ("DROP VIEW v", "admin"),
    ("SHOW VIEWS", "read"), ("SHOW CREATE VIEW v", "read"),
])
def test_what_takes_which_role(statement: str, role: Role) -> None:
    """Reading reads, writing writes rows, and the rest, with all files of the machine, is an admin's."""
    assert least_role(statement) == role


# --- with an engine --------------------------------------------------------------------------------------------------


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path / "data")
    yield embedded
    embedded.close()


def test_statements_about_users(db: Embedded) -> None:
    """They last, they have rules, and there is always an admin."""
    with pytest.raises(InvalidStatementError, match="the first user must be an admin"):
        db.execute("CREATE USER bob PASS 'battery staple'")
    db.all("CREATE USER ada PASS 'correct horse' ROLE admin", "CREATE USER bob PASS 'battery staple'",
           "CREATE USER IF NOT EXISTS bob PASS 'something else' ROLE admin",
           "CREATE USER eve ROLE write PASS '12345678'")
    db.reopen()
    assert db.run("SELECT name, super, role FROM information_schema.ins_users") == [
        ("ada", 1, "admin"), ("bob", 0, "read"), ("eve", 0, "write")]
    assert db.engine.logins.check("bob", "battery staple") == Identity("bob", "read")
    db.all("ALTER USER bob PASS 'staple battery' ROLE write", "DROP USER eve", "DROP USER IF EXISTS eve")
    assert db.engine.logins.check("bob", "staple battery") == Identity("bob", "write")
    for refused, kind, text in (
        ("CREATE USER ada PASS 'correct horse'", AlreadyExistsError, "already exists"),
        ("CREATE USER `a:b` PASS 'correct horse'", InvalidStatementError, "colon"),
        (f"CREATE USER {'u' * 24} PASS 'correct horse'", InvalidStatementError, "at most 23 fit"),
        ("CREATE USER dan PASS 'short'", InvalidStatementError, "8 to 255 characters"),
        (f"CREATE USER dan PASS '{'x' * 256}'", InvalidStatementError, "8 to 255 characters"),
        ("ALTER USER bop ROLE read", NotFoundError, "did you mean bob"),
        ("DROP USER eve", NotFoundError, "does not exist"),
        ("DROP USER ada", InvalidStatementError, "only admin"),
        ("ALTER USER ada ROLE write", InvalidStatementError, "only admin"),
        ("CREATE USER dan", SqlSyntaxError, "PASS"),
        ("CREATE USER dan PASS 'abcdefgh' ROLE root", SqlSyntaxError, "READ, WRITE or ADMIN"),
        ("CREATE USER dan PASS 'abcdefgh' PASS 'abcdefgh'", SqlSyntaxError, "twice"),
        ("ALTER USER bob", SqlSyntaxError, "PASS or ROLE"),
    ):
        with pytest.raises(kind, match=text):
            db.execute(refused)
    db.all("ALTER USER bob ROLE admin", "DROP USER ada")


def test_an_engine_refuses_what_the_role_does_not_allow(db: Embedded) -> None:
    """Statements, Arrow tables and lines alike; the embedded owner isn't asked. One's own password is one's own."""
    db.all("CREATE USER ada PASS 'correct horse' ROLE admin", "CREATE USER bob PASS 'battery staple'",
           "CREATE DATABASE d", "CREATE TABLE d.t (ts TIMESTAMP, v INT)")
    db.session.identity = Identity("bob", "read")
    assert db.run("SELECT user()") == [("bob",)]
    for refused in (
        lambda: db.execute("INSERT INTO d.t VALUES (now, 1)"),
        lambda: db.engine.ingest_lines(b"m v=1", "d", "ns", db.session),
        lambda: db.execute("ALTER USER ada PASS 'taken over'"),
        lambda: db.execute("ALTER USER bob ROLE admin"),
        lambda: db.execute("ALTER USER bob PASS 'battery staple' ROLE admin"),
    ):
        with pytest.raises(PermissionDeniedError, match="user bob has role read"):
            refused()
    db.execute("ALTER USER bob PASS 'staple battery'")
    db.session.identity = Identity("bob", "write")
    db.execute("INSERT INTO d.t VALUES (now, 1)")
    assert db.engine.ingest_lines(b"m v=1", "d", "ns", db.session) == 1


def test_passwords_are_nowhere_to_be_seen(tmp_path: Path) -> None:
    """Not in the files of the data directory, its log included, not in SHOW QUERIES, and not in statements' reprs."""
    password = "Xylophone-4711"
    text = f"CREATE USER ada PASS '{password}' ROLE admin"
    assert password not in repr(parse_one(text)) + repr(parse_one(f"ALTER USER ada PASS '{password}'"))
    db = Embedded(tmp_path / "data", {"logLevel": "debug"})
    seen: list[str] = []
    execute = db.engine._dispatch.execute

    def watch(statement: Statement, *rest: Any) -> Result:
        if isinstance(statement, CreateUser):
            seen.extend(row[0] for row in db.run("SELECT sql FROM performance_schema.perf_queries"))
        return execute(statement, *rest)

    db.engine._dispatch.execute = watch  # type: ignore[method-assign]
    db.execute(text)
    token = db.engine.logins.login("ada", password).text
    for wrong in (f"{password}!", "nonsense"):
        with pytest.raises(PenstockError):
            db.engine.logins.check("ada", wrong)
    with pytest.raises(PenstockError):
        db.engine.logins.check(password, "the password in the wrong field")
    db.close()
    assert any(line == "CREATE USER ada" for line in seen)
    assert password not in "".join(seen)
    content = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert b"ada" in content
    assert password.encode() not in content
    assert token.encode() not in content


def test_settings_of_spark_that_are_secret_are_not_shown(tmp_path: Path) -> None:
    """Everybody may look at the configuration, but not at the keys to other places."""
    db = Embedded(tmp_path / "data", {"spark.hadoop.fs.s3a.secret.key": "Xylophone", "spark.app.name": "here"})
    shown = {row[0]: row[1] for row in db.run("SHOW VARIABLES")}
    db.close()
    assert shown["spark.hadoop.fs.s3a.secret.key"] == "***"
    assert shown["spark.app.name"] == "here"
    assert shown["tokenLifetime"] == "1d"


# --- wrong ones ------------------------------------------------------------------------------------------------------

TRIES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from(["right", "wrong", "ends", "wait"])),
                 max_size=80)


@given(TRIES)
def test_tries_are_bounded_and_wrong_ones_have_to_wait(tries: list[tuple[int, int, str]]) -> None:
    """Few are under way at once; who was wrong three times in a row waits, and longer each time, up to a minute."""
    throttle, now = LoginThrottle(), 0.0
    under_way: list[tuple[tuple[bytes, str], bool]] = []
    wrong: dict[tuple[bytes, str], int] = {}
    for user, place, act in tries:
        who = bytes([user]), str(place)
        if act == "wait":
            now += 100.0
        elif act == "ends":
            if under_way:
                ended, fits = under_way.pop(0)
                wrong[ended] = 0 if fits else wrong.get(ended, 0) + 1
                throttle.leave(ended, fits, now)
                if wrong[ended] >= 3:
                    assert 0 < throttle.enter(ended, now) <= 60
        elif not throttle.enter(who, now):
            under_way.append((who, act == "right"))
        assert all(sum(one == key for key, _ in under_way) <= 2 for one, _ in under_way)
    while under_way:
        throttle.leave(*under_way.pop(), now)
    assert throttle.enter((b"new", "elsewhere"), now) == 0


def test_many_wrong_logins_keep_no_right_one_waiting(
    logins: Logins, users: KnownUsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While wrong ones of a user are under way more are refused at once; others are tried, and the same ones once."""
    users.add("bob", "battery staple", "read")
    hold, tried = threading.Event(), counted_hashes(monkeypatch)
    fits = PasswordHash.fits

    def held(self: PasswordHash, password: str) -> bool:
        return fits(self, password) if password != "battery staple" else hold.wait(60) and fits(self, password)

    monkeypatch.setattr(PasswordHash, "fits", held)

    def attack(number: int) -> str:
        try:
            logins.check("ada", f"guess {number}", "10.0.0.9")
        except (LoginDelayedError, UnauthenticatedError) as error:
            return type(error).__name__
        return "in"

    with ThreadPoolExecutor(40) as pool:
        same = [pool.submit(logins.check, "bob", "battery staple", "10.0.0.9") for _ in range(5)]
        answers = list(pool.map(attack, range(30)))
        assert logins.check("ada", "correct horse", "10.0.0.1") == Identity("ada", "admin")
        hold.set()
        assert {future.result().name for future in same} == {"bob"}
    assert set(answers) == {"LoginDelayedError", "UnauthenticatedError"}
    assert len(tried) < 10
    with pytest.raises(LoginDelayedError) as caught:
        logins.check("ada", "correct horse!", "10.0.0.9")
    assert caught.value.retry
    assert logins.check("ada", "correct horse", "10.0.0.9").name == "ada", "what was right before costs nothing"
