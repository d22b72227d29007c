"""GRANT and REVOKE: what a user may read, write and see, by role and beyond it, at every interface."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kits.engines.embedded import Embedded

from penstock.common.errors import (
    InvalidStatementError,
    NotFoundError,
    NotSupportedError,
    PenstockError,
    PermissionDeniedError,
    SqlSyntaxError,
)
from penstock.mnode.access import visibility
from penstock.mnode.access.roles import OWNER, Identity
from penstock.mnode.catalog.system_schema import SCHEMAS
from penstock.shell.flight_sql.protobuf_messages import make
from penstock.shell.server.metadata import answer
from penstock.sql.dialect.create_statements import grant_statement
from penstock.sql.dialect.generator import print_sql
from penstock.sql.dialect.parser import parse_one
from penstock.sql.rights import GrantObject, Right, Rights
from penstock.sql.tree.statements import Grant, Revoke

GRANTS_OF_BOB = "select * from information_schema.ins_user_privileges where user_name = 'bob'"
OUTSIDE = "connection pg (table 'hr.salaries')"


class Bed(Embedded):
    """An engine with two databases, a stream, a connection that counts who asks it, and bob, who has no right yet."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked: list[str] = []
        self.all(
            "create user ada pass 'correct horse' role admin", "create user bob pass 'battery staple' role none",
            "create database d vgroups 1", "create database e vgroups 1",
            "create stable d.m (ts timestamp, v int) tags (g int)", "create table d.a using d.m tags (1)",
            "create table d.n (ts timestamp, v int)", "create table e.t (ts timestamp, v int)",
            "insert into d.a values (now, 1)", "insert into d.n values (now, 2)", "insert into e.t values (now, 3)",
            "create stream s into d.o as select _wstart, count(*) c from d.m partition by tbname interval(1s)",
            "create connection pg type postgres with (host='127.0.0.1', port='9', database='x', username='u', "
            "password='env:NOWHERE', timeout='1s')")
        self.watch()

    def watch(self) -> None:
        def describe(connection: str, name: str) -> Any:
            self.asked.append(connection)
            raise NotSupportedError("the server was asked")

        self.engine.catalog.describe_external = describe

    def as_user(self, name: str | None) -> None:
        """Makes the session one of this user as a login would, with the rights of now; None is the owner."""
        user = None if name is None else self.engine.catalog.users.named(name)
        self.session.identity = OWNER if user is None else Identity(user.name, user.role, frozenset(user.granted))

    def granted(self, *grants: str) -> None:
        """Grants as the owner, and logs bob in anew."""
        self.as_user(None)
        self.all(*grants)
        self.as_user("bob")

    def is_refused(self, text: str) -> bool:
        """Tells whether a statement is refused for want of rights; any other error is none of these."""
        try:
            self.execute(text)
        except PermissionDeniedError:
            return True
        except PenstockError:
            return False
        return False


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    bed = Bed(tmp_path / "data")
    yield bed
    bed.close()


@pytest.mark.parametrize(("text", "privileges", "on"), [
    ("READ ON d.t", ("read",), GrantObject("table", "t", "d")),
    ("write, read ON d.*", ("read", "write"), GrantObject("table", None, "d")),
    ("ALL ON *.*", ("read", "write"), GrantObject("table")),
    ("ALL PRIVILEGES ON t", ("read", "write"), GrantObject("table", "t")),
    ("READ ON CONNECTION pg", ("read",), GrantObject("connection", "pg")),
    ("READ ON CONNECTION *", ("read",), GrantObject("connection")),
    ("READ ON connection.`T`", ("read",), GrantObject("table", "T", "connection")),
    ("READ ON connection", ("read",), GrantObject("table", "connection")),
])
def test_grant_and_revoke_are_read(text: str, privileges: tuple[str, ...], on: GrantObject) -> None:
    """TDengine's forms, and one for connections; READ and WRITE in either order."""
    assert parse_one(f"GRANT {text} TO bob") == Grant(privileges, on, "bob")  # type: ignore[arg-type]
    assert parse_one(f"REVOKE {text} FROM bob") == Revoke(privileges, on, "bob")  # type: ignore[arg-type]


@pytest.mark.parametrize("on", [
    GrantObject("table"), GrantObject("table", None, "D"), GrantObject("table", "select", "d b"),
    GrantObject("connection"), GrantObject("connection", "p`g"),
])
def test_a_grant_is_written_as_the_statement_that_gives_it(on: GrantObject) -> None:
    """Dumps list them so."""
    assert parse_one(print_sql(grant_statement("to", Right("write", on)))) == Grant(("write",), on, "to")


@pytest.mark.parametrize("text", [
    "GRANT ON d.t TO bob", "GRANT DROP ON d.t TO bob", "GRANT READ d.t TO bob", "GRANT READ ON d.t FROM bob",
    "GRANT READ ON *.t TO bob", "GRANT READ ON d.t", "REVOKE READ ON d.t TO bob", "GRANT READ ON CONNECTION TO bob x",
    "GRANT READ ON d.t TO bob WITH g = 1",
])
def test_what_is_no_grant_is_a_syntax_error(text: str) -> None:
    """Also a condition on tags, which TDengine has."""
    with pytest.raises(SqlSyntaxError):
        parse_one(text)


READS = {
    "table": ("select * from d.n", "select 1 union all select v from d.n", "select * from (select * from d.n)",
              "select x.v from e.t x join d.n y on x.ts = y.ts", "explain select * from d.n", "describe d.n",
              "explain create stream z into e.z as select ts, v from d.n", "show create table d.n",
              "show table distributed d.n"),
    "connection": (f"select * from {OUTSIDE}", f"select 1 union all select id from {OUTSIDE}",
                   f"select * from (select * from {OUTSIDE})", f"select * from e.t m join {OUTSIDE} p on m.v = p.id",
                   f"explain select * from {OUTSIDE}", f"insert into e.t select * from {OUTSIDE}",
                   f"explain create stream z into e.z as select m.ts, p.id from e.t m join {OUTSIDE} p on m.v = p.id",
                   "explain create ingest i from connection pg into e.t"),
}


def test_no_role_but_admin_reaches_what_connections_lead_to(bed: Bed) -> None:
    """Each way to an external table is refused before the server is asked; with a grant each of them asks it."""
    bed.granted("grant all on e.* to bob")
    for role in ("none", "read", "write"):
        bed.granted(f"alter user bob role {role}")
        for text in READS["connection"]:
            assert bed.is_refused(text), text
    with pytest.raises(PermissionDeniedError, match="GRANT READ ON CONNECTION pg TO bob"):
        bed.engine.query_columns(parse_one(READS["connection"][0]), bed.session)  # type: ignore[arg-type]
    assert not bed.asked
    assert bed.run("show connections") == []
    bed.granted("grant read on connection pg to bob")
    for text in READS["connection"]:
        assert not bed.is_refused(text), text
    assert len(bed.asked) >= len(READS["connection"]) - 1
    assert [row[0] for row in bed.run("show connections")] == ["pg"]
    assert bed.is_refused("explain create stream z into connection pg (table 'x') as select ts, v from e.t")
    bed.granted("grant write on connection * to bob")
    assert not bed.is_refused("explain create stream z into connection pg (table 'x') as select ts, v from e.t")
    assert bed.is_refused("create stream z into connection pg (table 'x') as select ts, v from e.t")


def test_reading_takes_read_on_the_table(bed: Bed) -> None:
    """On it, on its database or on all; without it nothing is told, and with it nothing is written."""
    bed.granted("grant all on e.* to bob")
    for on in ("d.n", "d.*", "*.*"):
        for text in READS["table"]:
            assert bed.is_refused(text), text
        bed.granted(f"grant read on {on} to bob")
        for text in READS["table"]:
            assert not bed.is_refused(text), text
        bed.granted(f"revoke read on {on} from bob")
    bed.granted("grant read on d.* to bob")
    for text in ("insert into d.n values (now, 1)", "delete from d.n", "note time now on d",
                 "create table d.x (ts timestamp, v int)", "drop table d.n", "select * from d.n >> 'x.csv'",
                 "explain select * from d.n >> 'x.csv'"):
        assert bed.is_refused(text), text


NESTED_READS = (
    "select (select v from n)", "select v from a where v in (select v from n)",
    "select 1 where exists (select 1 from d.n)", "select v from a where v > all (select v from n)",
    "select v from a order by (select max(v) from n)", "select v, (select 1 from (select * from n) limit 1) from a",
    "select v from a intersect select v from n", "with n as (select v from n) select v from n",
    "with x as (select v from n) select 1", "with n as (select 1 v) select v from d.n",
    "select v from (with n as (select 1 v) select v from n) union select v from n",
    "select (with n as (select 1 v) select v from n), (select v from n)",
    "with x as (select 1 from n), n as (select 2) select 3",
    "with n as (select 1 v) select v from n between cut 'start' and 'end'")


def test_no_query_within_another_is_overlooked(bed: Bed) -> None:
    """Wherever a table is read, that takes READ on it; a name of WITH hides a table only where it does for queries."""
    bed.granted("grant read on d.m to bob", "use d")
    for text in NESTED_READS:
        assert bed.is_refused(text), text
    table = bed.execute("with n as (select v from a), x as (select v + 1 v from n) select n.v, x.v w from n, x").table
    assert table is not None
    assert table.num_rows == 1
    bed.granted("grant read on d.n to bob")
    for text in NESTED_READS:
        assert not bed.is_refused(text), text


def test_conditions_of_delete_take_what_their_queries_read(bed: Bed) -> None:
    """Or who may write a table alone would learn from what is gone what is in others."""
    bed.granted("use d", "create table h (ts timestamp, g int)", "insert into h values (now, 1)",
                "create view w as select g from h", "grant write on d.m to bob")
    condition = "delete from d.m where g in (select g from {})"
    for table in ("h", "d.h", "(select * from h)", "h where g in (select g from h)", "w", "m"):
        assert bed.is_refused(condition.format(table)), table
    bed.granted("grant read on d.w to bob")
    bed.execute(condition.format("w"))
    bed.as_user(None)
    assert bed.run("select count(*) from d.m") == [(0,)]


def test_rows_of_a_key_go_by_what_is_in_them_for_who_may_read_it(bed: Bed) -> None:
    """Which rows go, and what a condition says of one that it can't compute, tell what is in them."""
    bed.all("create table d.k (k int primary key, v int)", "insert into d.k values (1, 5) (2, 6)")
    bed.granted("grant write on d.k to bob")
    assert bed.is_refused("delete from d.k where v = 5")
    assert not bed.is_refused("delete from d.k")
    bed.granted("grant read on d.k to bob")
    assert not bed.is_refused("delete from d.k where v = 5")


def test_writing_takes_write_on_the_table(bed: Bed) -> None:
    """Statements, Arrow tables and lines; rows of child tables take it on the super table, also of new ones."""
    bed.granted("grant write on d.m to bob")
    bed.all("insert into d.a values (now + 1s, 1)", "insert into d.b using d.m tags (2) values (now + 1s, 1)",
            "delete from d.a where ts > now")
    bed.engine.check_insert("d.m", bed.session)
    for refused in (
        lambda: bed.execute("insert into d.n values (now + 1s, 1)"),
        lambda: bed.execute("insert into d.a values (now + 1s, 1) d.n values (now + 1s, 1)"),
        lambda: bed.execute("insert into d.n using d.m tags (1) values (now + 1s, 1)"),
        lambda: bed.execute("insert into d.a select * from d.n"),
        lambda: bed.execute("select * from d.a"),
        lambda: bed.engine.check_insert("d.n", bed.session),
        lambda: bed.engine.ingest_lines(b"m v=1", "d", "ns", bed.session),
    ):
        with pytest.raises(PermissionDeniedError):
            refused()
    bed.granted("grant write on d.* to bob")
    assert bed.engine.ingest_lines(b"lines v=1", "d", "ns", bed.session) == 1


def test_roles_mean_what_they_meant_but_for_connections(bed: Bed) -> None:
    """`read` reads every table and sees every stream, `write` writes them, and neither makes any."""
    bed.granted("alter user bob role read")
    assert bed.run("select v from d.n union all select v from e.t") == [(2,), (3,)]
    assert [row[0] for row in bed.run("show streams")] == ["s"]
    assert [row[0] for row in bed.run("show user databases")] == ["d", "e"]
    assert bed.is_refused("insert into d.n values (now + 1s, 1)")
    bed.granted("alter user bob role write")
    bed.all("insert into d.n values (now + 1s, 1)", "delete from d.n where ts > now", "note time now on d")
    assert bed.engine.ingest_lines(b"lines v=1", "d", "ns", bed.session) == 1
    assert bed.is_refused("create database f")
    assert bed.is_refused("create stream z into d.z as select ts, v from d.n")


def test_grants_last_and_can_be_seen(bed: Bed) -> None:
    """After a restart too; who is no admin sees his own. What a role gives is listed with it."""
    bed.granted("grant read on d.* to bob", "grant write on e.t to bob", "grant write on e.t to bob",
                "grant all on connection pg to bob")
    bed.reopen()
    bed.as_user("bob")
    assert bed.run("select v from d.n") == [(2,)]
    wanted = [("bob", "read", "d", "*", None, None, None), ("bob", "write", "e", "t", None, None, None),
              ("bob", "read", None, None, None, None, "pg"), ("bob", "write", None, None, None, None, "pg")]
    assert bed.run("show grants") == wanted
    assert bed.run("show users") == [bed.run("select * from information_schema.ins_users")[0]]
    bed.as_user(None)
    assert bed.run("select * from information_schema.ins_user_privileges") == [
        ("ada", "all", "*", "*", None, "role admin", "*"), *wanted]
    assert len(bed.run("show users")) == 2


def test_what_is_revoked_is_gone(bed: Bed) -> None:
    """With the next request of a token too. What a wider grant or the role still gives isn't taken in silence."""
    bed.granted("grant all on d.n to bob", "grant read on d.* to bob")
    token = bed.engine.logins.login("bob", "battery staple").text
    bed.as_user(None)
    with pytest.raises(InvalidStatementError, match=r"bob has READ on d\.n by d\.\*"):
        bed.execute("revoke read on d.n from bob")
    bed.all("revoke read on d.* from bob", "revoke read on d.n from bob")
    bed.session.identity = bed.engine.logins.identify(token)
    assert bed.is_refused("select * from d.n")
    bed.execute("insert into d.n values (now + 1s, 1)")
    bed.as_user(None)
    bed.execute("revoke all on d.n from bob")
    for text, error, why in (
        ("revoke all on d.n from bob", NotFoundError, "no grant on d.n"),
        ("revoke read on d.n from ada", InvalidStatementError, "by role admin"),
        ("revoke read on connection pg from ada", InvalidStatementError, "by role admin"),
        ("grant read on d.x to bob", NotFoundError, "does not exist"),
        ("grant read on x.* to bob", NotFoundError, "does not exist"),
        ("grant read on connection x to bob", NotFoundError, "does not exist"),
        ("grant read on d.n to eve", NotFoundError, "user eve does not exist"),
        ("grant read on d.a to bob", InvalidStatementError, "child table"),
        ("grant read on information_schema.* to bob", InvalidStatementError, "system database"),
        ("grant read on n to bob", InvalidStatementError, "no database is in use"),
    ):
        with pytest.raises(error, match=why):
            bed.execute(text)
    bed.all("use d", "grant read on n to bob", "drop user bob", "create user bob pass 'battery staple' role none")
    assert bed.run(GRANTS_OF_BOB) == []


def test_grants_end_with_what_they_are_on(bed: Bed) -> None:
    """Who makes another table, database or connection of that name doesn't share it."""
    bed.granted("grant read on d.n to bob", "grant read on e.t to bob", "grant read on connection pg to bob",
                "grant read on d.* to bob", "grant read on d.o to bob")
    bed.as_user(None)
    bed.all("drop table d.n", "drop connection pg", "drop database e")
    assert [row[2:4] for row in bed.run(GRANTS_OF_BOB)] == [("d", "*"), ("d", "o")]
    bed.execute("drop database d")
    bed.reopen()
    assert bed.run(GRANTS_OF_BOB) == []


def test_nobody_sees_what_he_may_not_use(bed: Bed) -> None:
    """Not by SHOW, not in the system tables, not by Flight's questions about the catalog, and not in refusals."""
    bed.granted("grant read on e.t to bob")
    shown = "".join(repr(bed.run(text)) for text in (
        "show databases", "show streams", "show stream tasks", "show workers", "show vgroups", "show connections",
        "show users", "show queries", "show ingests", "show watermarks",
        *(f"select * from {database}.{table}" for database, tables in SCHEMAS.items() for table in tables
          if table not in ("ins_tables", "ins_configs", "ins_memory"))))
    for name in ("'d'", "'m'", "'n'", "'s'", "'o'", "'pg'", "'ada'"):
        assert name not in shown, name
    assert bed.run("select table_name from information_schema.ins_tables where type <> 'SYSTEM_TABLE'") == [("t",)]
    assert [row[0] for row in bed.run("show e.tables")] == ["t"]
    for refused in ("use d", "show d.tables", "show d.stables", "describe d.m", "show create database d",
                    "show create stream s", "show checkpoints for s", "explain analyze stream s", "verify stream s",
                    "use nowhere",
                    "describe nowhere.t", "select * from e.tt", "select * from nowhere.t"):
        assert bed.is_refused(refused), refused
    rights = bed.session.identity.rights
    for command, kind in ((make("CommandGetTables", table_name_filter_pattern="%"), "CommandGetTables"),
                          (make("CommandGetDbSchemas"), "CommandGetDbSchemas"),
                          (make("CommandGetPrimaryKeys", table="n"), "CommandGetPrimaryKeys")):
        def names(rights: Rights, command: Any = command, kind: str = kind) -> str:
            told = answer(command, kind, bed.engine.catalog, rights)
            assert told is not None
            return repr([batch.to_pylist() for batch in told.rows()])

        assert "'d'" in names(Rights())
        assert "'d'" not in names(rights)


@pytest.mark.parametrize("statement", [
    "verify stream {}", "show create stream {}", "explain analyze stream {}", "show checkpoints for {}"])
def test_a_stream_that_is_hidden_is_refused_like_none(bed: Bed, statement: str) -> None:
    """Whoever may not read its tables doesn't learn that there is one, nor which tables it reads."""
    bed.granted("grant read on e.t to bob")
    told = []
    for name in ("s", "nothing"):
        with pytest.raises(PermissionDeniedError) as refused:
            bed.execute(statement.format(name))
        told.append((str(refused.value), refused.value.hint))
    assert told[1] == tuple(text.replace("stream s;", "stream nothing;").replace("stream s ", "stream nothing ")
                            for text in told[0])


def test_every_system_table_has_one_rule() -> None:
    """A new one is for admins until it is said who else sees which of its rows."""
    rules = [visibility.EVERYBODY, visibility.OF_DATABASES, visibility.OF_TABLES, visibility.OF_STREAMS,
             visibility.OF_INGESTS, visibility.OF_CONNECTIONS, visibility.OF_USERS, visibility.OF_READERS_OF_ALL,
             visibility.ADMINS]
    for tables in SCHEMAS.values():
        for table in tables:
            assert sum(table in rule for rule in rules) == 1, table


def test_statements_of_others_are_an_admins_to_see(bed: Bed) -> None:
    """A user sees those of his own sessions, whichever they are."""
    with (bed.engine.activity.statement(0, "select 'of ada'", "ada"),
          bed.engine.activity.statement(7, "select 'of bob'", "bob")):
        bed.granted("alter user bob role write")
        listed = "select sql from performance_schema.perf_queries"
        for text in (listed, f"{listed} union all {listed}"):
            seen = {row[0] for row in bed.run(text)}
            assert seen == {"select 'of bob'", text}
        assert "of ada" not in repr(bed.run("show queries"))
        bed.as_user(None)
        assert "of ada" in repr(bed.run("show queries"))


def test_the_page_shows_what_its_reader_may_see(bed: Bed) -> None:
    """The overview, of which the metrics are made too, leaves out other streams."""
    assert [stream["stream_name"] for stream in bed.engine.overview()["streams"]] == ["s"]
    bed.as_user("bob")
    assert bed.engine.overview(bed.session.identity)["streams"] == []
    bed.granted("grant read on d.m to bob", "grant read on d.o to bob")
    assert [stream["stream_name"] for stream in bed.engine.overview(bed.session.identity)["streams"]] == ["s"]
