"""Views over restarts, in each other, with users' functions, and in the time zone of who made them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.engines.embedded import Embedded

from penstock.common.errors import InvalidStatementError, LimitExceededError, NotFoundError, PenstockError
from penstock.sql.schema import VIEWS_MAX

VIEWS = "select view_name, `columns`, status from information_schema.ins_views order by view_name"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Embedded]:
    opened = Embedded(tmp_path / "data")
    opened.all("create database d vgroups 1", "use d", "create table t (ts timestamp, v int)",
               "insert into t values ('2023-11-14 23:30:00', 1) ('2023-11-15 00:30:00', 2)")
    yield opened
    opened.close()


def nested(name: str, levels: int) -> str:
    query = f"select ts, v from {name}"
    for _ in range(levels):
        query = f"select ts, v from ({query})"
    return query


def test_views_outlast_restarts(db: Embedded) -> None:
    """As they were last replaced; what was dropped stays away, alone or with its database."""
    db.all("create view a as select 1 as x", "create or replace view a (y, z) as select v, ts from t",
           "create view b as select y from a", "create view c as select 1", "drop view c",
           "create database e", "create view e.f as select 1", "drop database e")
    for _ in range(2):
        assert db.run(VIEWS) == [("a", 2, "ready"), ("b", 1, "ready")]
        assert db.run("select y from b order by y") == [(1,), (2,)]
        assert db.run("show create view a") == [("a", "CREATE VIEW a (y, z) AS select v, ts from t")]
        db.reopen()
    db.all("create database e", "use e")
    with pytest.raises(NotFoundError):
        db.run("select * from f")


def test_a_view_is_read_in_the_time_zone_of_who_made_it(db: Embedded) -> None:
    """Its days and times without a zone are those that its owner saw; times of the rest of a query are the reader's."""
    db.session.time_zone = "Europe/Berlin"
    db.execute("create view days as select _wstart as day, count(*) as n from t where ts >= '2023-11-15 00:30:00' "
               "interval(1d)")
    counts = "select n from days order by n"
    wanted = db.run(counts)
    assert wanted == [(2,)]  # 23:30 and 00:30 in UTC are of the same day there
    db.session.time_zone = "UTC"
    assert db.run(counts) == wanted
    assert db.run("select count(*) from days d, t where d.day < t.ts and t.ts >= '2023-11-15 00:30:00'") == [(1,)]


def test_now_and_user_are_those_of_the_statement(db: Embedded) -> None:
    """Whoever made the view, and whenever."""
    db.execute("create view w as select now() as n, user() as u from t limit 1")
    assert db.run("select w.n = now(), w.u from w") == [(True, "root")]


def test_views_call_functions_of_users(db: Embedded, tmp_path: Path) -> None:
    """Row by row and as aggregates; once a function is dropped the view says so."""
    (tmp_path / "twice.py").write_text(
        "import pyarrow.compute as pc\n\n\ndef twice(v):\n    return pc.multiply(v, 2).cast('int32')\n")
    db.all(f"create function twice as '{tmp_path / 'twice.py'}:twice' outputtype int language python",
           "create view w as select twice(v) as x from t where twice(v) > 2", "create view above as select x from w")
    assert db.run("select x from above") == [(4,)]
    db.execute("drop function twice")
    with pytest.raises(PenstockError, match=r"view d\.above can't be read: view d\.w can't be read: .*twice"):
        db.run("select x from above")


def test_no_view_reads_itself(db: Embedded) -> None:
    """Not by way of others either; what stood there stays."""
    db.all("create view a as select v from t", "create view b as select v from a", "create view c as select * from b")
    for query in ("select v from c", "select v from a", "select 1 as v where 1 in (select v from b)",
                  "with x as (select * from b) select 1 as v"):
        with pytest.raises(InvalidStatementError, match=r"view d\.a would read itself"):
            db.execute(f"create or replace view a as {query}")
    db.execute("create or replace view a as with c as (select 7 as v) select v from c")
    assert db.run("select v from c") == [(7,)]


def test_how_many_views_a_statement_reads_is_bounded(db: Embedded) -> None:
    """Those that can be made can be read, until one of them comes to read more."""
    before = "t"
    for number in range(VIEWS_MAX):
        db.execute(f"create view w{number} as {nested(before, 0)}")
        before = f"w{number}"
    assert db.run(f"select v from {before} order by v") == [(1,), (2,)]
    for statement in (f"create view one_more as select * from {before}", f"select * from {before}, w0"):
        with pytest.raises(LimitExceededError, match=f"at most {VIEWS_MAX} views"):
            db.execute(statement)
    db.all("create view extra as select ts, v from t", "create or replace view w0 as select ts, v from extra")
    with pytest.raises(LimitExceededError, match=f"at most {VIEWS_MAX} views"):
        db.run(f"select v from {before}")
    assert (before, None, "broken") in db.run(VIEWS)


def test_views_that_nest_too_deep_are_refused(db: Embedded) -> None:
    """Each alone may nest as deep as any query."""
    made = [f"create view w{number} as {nested(f'w{number - 1}' if number else 't', 45)}" for number in range(10)]
    with pytest.raises(LimitExceededError, match="nested too deeply"):
        db.all(*made)
    assert db.run("select v from w1 order by v") == [(1,), (2,)]


def test_a_view_may_be_read_wherever_a_table_is(db: Embedded) -> None:
    """Joined with itself and asked for in expressions; what is named around it isn't known in it."""
    db.all("create view w as with x as (select ts, v from t) select x.ts, x.v, (select max(v) from x) as most from x",
           "create view blind as select v from t where v = (select max(v) from w)")
    assert db.run("select a.v, b.v, a.most from w a join w b on a.ts = b.ts order by a.v") == [(1, 1, 2), (2, 2, 2)]
    assert db.run("with t as (select 5 as v), x as (select 6 as v) select v from blind union all select v from x") == [
        (2,), (6,)]
    assert db.run("select v, (select count(*) from w where w.v <= t.v) from t order by v") == [(1, 1), (2, 2)]
    assert db.run("select t.v from t where exists (select 1 from blind b where b.v = t.v)") == [(2,)]
    db.all("create table u (ts timestamp, q int, r int)", "create view lone as select q from u",
           "alter table u drop column q")
    with pytest.raises(NotFoundError, match=r"view d\.lone can't be read: column q does not exist in u"):
        db.run("select (select max(lone.q) from lone) from (select 1 as q) y")
