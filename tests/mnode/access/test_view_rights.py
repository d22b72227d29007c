"""Rights on views: what a view shows is what its owner, or its reader, may read now, and never more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.engines.embedded import NOW_MS, Embedded, StandingClock

from penstock.common.errors import PermissionDeniedError
from penstock.mnode.access.roles import OWNER, identity_of
from penstock.sql.schema import Column, Table
from penstock.sql.types import INT


class Bed(Embedded):
    """An engine with a table, two admins and bob, who has no right yet."""

    def __init__(self, path: Path) -> None:
        self.time = StandingClock(NOW_MS)
        super().__init__(path, clock=self.time)
        self.all(
            "create user ada pass 'correct horse' role admin", "create user eve pass 'stapled horse' role admin",
            "create user bob pass 'battery staple' role none", "create database d vgroups 1",
            "create table d.n (ts timestamp, v int)", "insert into d.n values (now, 2)")

    def as_user(self, name: str | None, *statements: str) -> None:
        """Executes statements as this user, with the rights of now, who is that of the session from then on; None is
        the owner.
        """
        user = None if name is None else self.engine.catalog.users.named(name)
        self.session.identity = OWNER if user is None else identity_of(user)
        self.all(*statements)

    def refusal(self, query: str = "select v from d.w") -> str:
        """Returns why the user of the session may not execute a query."""
        with pytest.raises(PermissionDeniedError) as refused:
            self.execute(query)
        return refused.value.message


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    bed = Bed(tmp_path / "data")
    yield bed
    bed.close()


def test_a_view_shows_what_its_owner_may_read(bed: Bed) -> None:
    """Its reader needs a right on the view alone, for which the table stays closed."""
    bed.as_user("ada", "create view d.w as select v from n", "create view d.hidden as select 1 as x")
    bed.as_user("bob")
    assert "READ on d.w; user bob" in bed.refusal()
    for statement in ("describe d.w", "show create view d.w", "show d.views", "select * from d.nothing"):
        assert "user bob" in bed.refusal(statement)
    bed.as_user(None, "grant read on d.w to bob")
    bed.as_user("bob")
    for query in ("select v from d.w", "select max(x.v) from (select * from d.w) x", "select (select v from d.w)"):
        assert bed.run(query) == [(2,)]
    assert "READ on d.n; user bob" in bed.refusal("select v from d.n")
    assert "READ on d.n; user bob" in bed.refusal("select w.v from d.w w join d.n n on w.v = n.v")
    assert bed.run("select view_name, owner, status from information_schema.ins_views") == [("w", "ada", "ready")]
    assert [row[0] for row in bed.run("show d.views")] == ["w"]
    assert bed.run("show create view d.w") == [("w", "CREATE VIEW w AS select v from n")]
    assert bed.run("select table_name from information_schema.ins_columns") == [("w",)]


@pytest.mark.parametrize(("change", "why"), [
    ("alter user ada role none", "view d.w needs READ on d.n; user ada has role none"),
    ("drop user ada", "its owner ada no longer exists"),
])
@pytest.mark.parametrize("reader", ["bob", "eve", None])
def test_nobody_reads_what_the_owner_may_not_read_any_more(bed: Bed, change: str, why: str, reader: str | None) -> None:
    """Whoever reads it, by whatever statement; somebody else of the same name doesn't own it. To replace it does."""
    bed.as_user("ada", "create view d.w as select v from n")
    bed.as_user(None, "create view d.above as select v from w", "grant read on d.w to bob",
                "grant read on d.above to bob", change)
    bed.as_user(reader)
    for query in ("select v from d.w", "select v from d.above", "explain select (select v from d.w)",
                  "with x as (select v from d.w) select * from x"):
        assert why in bed.refusal(query)
    if reader is None:
        bed.all("create stable d.m (ts timestamp, v int) tags (g int)", "create table d.x using d.m tags (1)")
        for statement in ("delete from d.m where g in (select v from d.w)", "insert into d.x select now, v from d.w",
                          "create table d.y as select now as ts, v from d.w", "create view d.z as select v from d.w",
                          "create materialized view d.y as select distinct v from d.w"):
            assert why in bed.refusal(statement)
        bed.all("create database e", "use e")
        assert why in bed.refusal("create view d.z as select v from w")
    bed.as_user(None)
    assert why in bed.run("select reason from information_schema.ins_views where view_name = 'above'")[0][0]
    bed.time.advance(1)
    bed.execute("create user if not exists ada pass 'correct horse' role admin")
    bed.as_user(reader)
    assert why in bed.refusal()
    bed.as_user(None, "create or replace view d.w as select v from n")
    bed.as_user(reader)
    assert bed.run("select v from d.above") == [(2,)]


def test_what_is_granted_to_the_owner_is_enough(bed: Bed) -> None:
    """It is held against the rights of now, not against those that there were."""
    bed.as_user("ada", "create view d.w as select v from n")
    bed.as_user(None, "alter user ada role none", "grant read on d.n to ada", "grant read on d.w to bob")
    bed.as_user("bob")
    assert bed.run("select v from d.w") == [(2,)]
    bed.as_user(None, "revoke read on d.n from ada")
    bed.as_user("bob")
    assert "READ on d.n; user ada" in bed.refusal()


def test_an_invoker_view_shows_what_its_reader_may_read(bed: Bed) -> None:
    """In a view of somebody else's the reader is that one's owner."""
    bed.as_user("ada", "create view d.w sql security invoker as select v from n",
                "create view d.above as select v from w")
    bed.as_user(None, "grant read on d.w to bob", "grant read on d.above to bob")
    bed.as_user("bob")
    assert "READ on d.n; user bob" in bed.refusal()
    assert bed.run("select v from d.above") == [(2,)]
    bed.as_user(None, "alter user ada role none", "grant read on d.w to ada", "grant read on d.n to bob")
    bed.as_user("bob")
    assert bed.run("select v from d.w") == [(2,)]
    assert "READ on d.n; user ada" in bed.refusal("select v from d.above")
    assert "READ on d.n; user ada" in bed.refusal("select w.v from d.w, d.above a where a.v = w.v")


def test_system_tables_are_those_of_the_reader(bed: Bed) -> None:
    """Through a view, too, nobody sees what others may use."""
    bed.as_user("ada", "create view d.w as select table_name v from information_schema.ins_tables where db_name = 'd'")
    bed.as_user(None, "grant read on d.w to bob")
    assert bed.run("select v from d.w") == [("n",)]
    bed.as_user("bob")
    assert bed.run("select v from d.w") == []


def test_tables_of_connections_are_asked_for_by_who_may_read_them(bed: Bed) -> None:
    """Never by lists, which wait for nobody; a view's owner needs the right, or its reader does."""
    asked: list[str] = []

    def describe(connection: str, name: str) -> Table:
        asked.append(name)
        return Table(0, connection, name, "external", (Column("v", INT, "v"),))

    bed.engine.catalog.describe_external = describe
    bed.execute("create connection pg type postgres with (host='127.0.0.1', port='9', database='x', username='u', "
                "password='env:NOWHERE', timeout='1s')")
    far = "create view d.{} sql security {} as select v from connection pg (table 'far')"
    bed.as_user("ada", far.format("w", "definer"), far.format("own", "invoker"),
                "create view d.above as select v from w")
    bed.as_user(None, *(f"grant read on d.{view} to bob" for view in ("w", "own", "above")))
    asked.clear()
    assert bed.run("select view_name, `columns`, status from information_schema.ins_views order by view_name") == [
        (view, None, "unknown") for view in ("above", "own", "w")]
    assert bed.run("select col_name from information_schema.ins_columns where table_type = 'VIEW'") == []
    bed.as_user("bob")
    assert "READ on CONNECTION pg; user bob" in bed.refusal("select v from d.own")
    assert not asked
    assert bed.run("describe d.above") == [("v", "INT", 4, "", "")]
    assert asked == ["far"]
    bed.as_user(None, "alter user ada role none")
    bed.as_user("bob")
    assert "READ on CONNECTION pg; user ada" in bed.refusal("select v from d.w")
    assert asked == ["far"]


def test_views_are_admins_to_make_and_grants_end_with_them(bed: Bed) -> None:
    """Who makes another one of the same name shares it with nobody."""
    bed.as_user(None, "create view d.w as select v from n", "grant read on d.w to bob", "alter user bob role write")
    bed.as_user("bob")
    for statement in ("create view d.x as select 1", "create or replace view d.w as select 1", "drop view d.w"):
        assert "needs the role admin" in bed.refusal(statement)
    bed.as_user(None, "alter user bob role none", "drop view d.w", "create view d.w as select v from n")
    bed.as_user("bob")
    assert "READ on d.w; user bob" in bed.refusal()


def test_a_stream_with_a_trigger_shows_nobody_what_he_may_not_read(bed: Bed) -> None:
    """Its names lead to its own database, and conditions of NOTIFY may have queries."""
    bed.all("create database secret vgroups 1", "create table secret.n (ts timestamp, hidden int)",
            "grant read on d.* to bob")
    bed.as_user("bob", "use d")
    trigger = "interval(1m) sliding(1m) from n notify('http://127.0.0.1:1/x') on (window_close)"
    explained = f"explain create stream s {trigger} where a > 0 into r as select _twstart, max(v) a from n"
    assert bed.run(explained)
    assert "READ on secret.n; user bob" in bed.refusal(explained.replace("stream s", "stream secret.s"))
    assert "READ on secret.n; user bob" in bed.refusal(explained.replace("from n notify", "from secret.n notify"))
    assert "READ on secret.n; user bob" in bed.refusal(
        explained.replace("where a > 0", "where a > (select max(hidden) from secret.n)"))
    assert "needs the role admin" in bed.refusal(explained.removeprefix("explain "))
