"""Plans that are given values when they run: they read and return what plans with constants in their place do."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from kits.basics.query_harness import Harness, at
from sqlglot import exp

from penstock.common.closed_duckdb import RenewableDuckdb
from penstock.common.errors import InvalidStatementError, InvalidValueError
from penstock.mnode.query.query_runner import EngineBackend, OpenQuery
from penstock.planner.query.batch_plan import BatchPlan, QueryPlan
from penstock.planner.query.given_plan import given_plan
from penstock.planner.query.select import plan_query
from penstock.planner.query.timeless_plan import timeless_plan
from penstock.sql.dialect.parser import parse_query
from penstock.sql.schema import Session
from penstock.sql.tree.expression_nodes import Given
from penstock.sql.tree.statements import Query
from penstock.sql.tree.walking import found_in
from penstock.sql.types import BIGINT, DOUBLE, INT, VARCHAR, DataType, timestamp

T0 = at("2024-01-01 00:00:00")
KINDS: Mapping[str, DataType] = {"first": timestamp(), "last": timestamp(), "number": BIGINT, "part": DOUBLE,
                                 "name": VARCHAR, "site": INT}
VALUES: Mapping[str, object] = {"first": T0 + 1000, "last": T0 + 3000, "number": T0 + 2000, "part": T0 + 1500.5,
                                "name": "c1", "site": 2}


@pytest.fixture(scope="module")
def db() -> Harness:
    harness = Harness(now_ms=at("2024-06-01 12:00:00"))
    harness.create("st", {"a": INT}, {"t": INT})
    for number in (1, 2, 3):
        harness.child(f"c{number}", "st", number)
        harness.insert(f"c{number}", [(T0 + i * 500, i * number) for i in range(10)])
    harness.create("n", {"v": INT})
    harness.insert("n", [(T0 + i * 1000, i) for i in range(6)])
    harness.create("k", {"id": INT}, key=True)
    return harness


def placed(text: str) -> Query:
    """The query with given values in the place of `g.name`."""
    query = parse_query(text)
    for node in found_in(query, exp.Column):
        if node.table == "g":
            node.replace(Given(this=node.name, kind=KINDS[node.name]))
    return query


def planned(db: Harness, text: str) -> BatchPlan:
    return plan_query(placed(text), db, Session("db", "UTC", db.now_ms))


def given(db: Harness, text: str, **values: object) -> QueryPlan:
    return given_plan(planned(db, text), {**VALUES, **values}, db)


def with_constants(db: Harness, text: str) -> BatchPlan:
    for name, value in VALUES.items():
        constant = f"CAST({value} AS TIMESTAMP)" if name in ("first", "last") else repr(value)
        text = text.replace(f"g.{name}", constant)
    return db.plan(text)


def run(db: Harness, plan: QueryPlan) -> list[object]:
    with OpenQuery(plan, db, EngineBackend(RenewableDuckdb(lambda: db.connection))) as query:
        return sorted(query.table().to_pylist(), key=repr)


@pytest.mark.parametrize("text", [
    "select count(*) c, sum(v) s from n where ts >= g.first and ts < g.last",
    "select count(*) c from n where ts >= g.first and ts < g.last",
    "select ts, v from n where ts > g.first and g.last >= ts",
    "select ts, v from n where ts between g.first and g.last",
    "select ts, v from n where ts between g.first and '2024-01-01 00:00:02'",
    "select ts, v from n where ts = g.first",
    "select ts, v from n where ts >= g.first - 1s and ts < g.last + 500a",
    "select ts, v from n where ts >= g.number",
    "select ts, v from n where ts < g.part",
    "select ts, v from n where ts >= cast(g.part as timestamp) + 1s and v < 5",
    "select ts, v from n where ts >= timetruncate(g.first, 1s) + 1s",
    "select ts, v from n where ts >= g.first or v = 5",
    "select g.first f, g.name m, g.site + 1 t, count(*) c from n where v = g.site",
    "select tbname, a from st where tbname = g.name and ts >= g.last",
    "select tbname, a from st where tbname is not distinct from g.name and t = 1",
    "select tbname, a from st where t = g.site and ts < g.last",
    "select tbname, count(*) c from st where t >= g.site and t < 3 group by tbname",
    "select last_row(a) a, tbname m from st where t = g.site partition by tbname",
    "select x.c, y.v from (select count(*) c from st where ts < g.last) x, n y where y.ts = g.first",
    "select v from n where v in (select a from st where tbname = g.name and ts <= g.last)",
    "select _wstart ts, count(*) c from n where ts >= g.first interval(2s)",
    "select a.v, b.a from n a join c1 b on a.ts = b.ts where a.ts >= g.first and b.ts < g.last",
])
def test_a_plan_reads_and_returns_what_one_with_constants_does(db: Harness, text: str) -> None:
    """The same rows of the same tables."""
    one, other = given(db, text), with_constants(db, text)
    assert run(db, one) == run(db, other)
    assert [scan.counted for scan in one.scans] == [scan.counted for scan in other.scans]
    for mine, its in zip(one.scans, other.scans, strict=True):
        assert mine.tuids == its.tuids
        if "g.part" not in text:  # whose bounds may be one farther out
            assert (mine.first_ts, mine.last_ts) == (its.first_ts, its.last_ts)


@pytest.mark.parametrize("text", [
    "select count(*) c from n where ts >= g.first", "select ts, v from n where ts < g.last + 1s",
    "select ts from n where ts between g.first and g.last", "select a from st where ts >= cast(g.number as timestamp)",
])
def test_no_row_is_beside_no_instant(db: Harness, text: str) -> None:
    """As where it is NULL."""
    assert run(db, given(db, text, first=None, last=None, number=None)) == ([{"c": 0}] if "count" in text else [])


def test_no_table_has_no_name(db: Harness) -> None:
    """And a table of another kind is none."""
    assert run(db, given(db, "select a from st where tbname = g.name", name=None)) == []
    assert run(db, given(db, "select a from st where tbname = g.name", name="n")) == []


def test_instants_beyond_all_times_leave_all_rows_or_none(db: Harness) -> None:
    """They stay within 64 bits."""
    text = "select v from n where ts >= g.first and ts < g.last - 1s"
    assert run(db, given(db, text, first=-(1 << 63), last=(1 << 63) - 1)) == [{"v": number} for number in range(6)]
    assert run(db, given(db, text, first=(1 << 63) - 1, last=-(1 << 63))) == []


def test_child_tables_that_come_later_are_read(db: Harness) -> None:
    """By tag and by name."""
    plan = planned(db, "select count(*) c from st where t = g.site")
    assert run(db, given_plan(plan, {"site": 9}, db)) == [{"c": 0}]
    db.child("late", "st", 9)
    db.insert("late", [(T0, 1)])
    assert run(db, given_plan(plan, {"site": 9}, db)) == [{"c": 1}]
    named = planned(db, "select count(*) c from st where tbname = g.name")
    assert run(db, given_plan(named, {"name": "late"}, db)) == [{"c": 1}]


@pytest.mark.parametrize("text", [
    "select _qstart, count(*) from n where ts >= g.first and ts < g.last",
    "select _wstart, count(*) from n where ts >= g.first and ts < g.last interval(1s) fill(value, 0)",
    "select _wstart, count(*) from n where ts >= g.first and ts < g.last interval(1s, auto)",
    "select _wstart, count(*) from n where ts >= '2024-01-01' and ts < g.last and ts < '2024-01-02' interval(1h) "
    "fill(null)",
    "select ts from k where id = g.site and ts >= g.first interval(1s, auto)",
])
def test_what_planning_must_know_is_refused(db: Harness, text: str) -> None:
    """Nothing is taken for unbounded that isn't known yet."""
    with pytest.raises(InvalidStatementError):
        planned(db, text)


def test_a_bound_that_cannot_be_computed_is_an_error(db: Harness) -> None:
    """Here the year of a text that has none."""
    with pytest.raises(InvalidValueError, match="bound of time"):
        given(db, "select v from n where ts >= cast(strptime(g.name, '%Y') as timestamp)")


@pytest.mark.parametrize(("text", "lasts", "timeless"), [
    ("select v from n where ts >= g.first", True, True),
    ("select a from st where tbname = g.name", True, True),
    ("select a from st where tbname = 'c1'", False, True),
    ("select a from st where t = 1", False, True),
    ("select distinct t from st", False, True),
    ("select v from n where ts < now() - 1s", True, False),
    ("select v, today() d from n", True, False),
    ("select v from n where ts < case when g.last < now() then g.last else now() end", True, False),
    ("select v from n where ts < g.last + (now() - cast(0 as timestamp))", True, False),
    ("select a from st where t < g.site + cast(now() as bigint)", True, False),
])
def test_plans_know_how_long_they_last(db: Harness, text: str, lasts: bool, timeless: bool) -> None:
    """Child tables come without a change that anybody counts."""
    assert planned(db, text).lasts is lasts
    session = Session("db", "UTC", db.now_ms)
    plan = timeless_plan(lambda at: plan_query(placed(text), db, at), session)
    assert (plan is not None) is timeless
